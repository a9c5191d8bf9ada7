/* template_case.c - letter case and classes of strings, as Python's str methods have them.
 *
 * Full mappings: one character may become three. A capital sigma at the end of a word becomes the
 * final small sigma (Unicode Standard, section 3.13, Final_Sigma).
 */
#include "template_internal.h"

#define SIGMA 0x3a3

/* ---- mapping ---- */

static bool sigma_is_final(struct tpl *t, const struct str *s, size_t at)
{
    const char *begin = s->p, *p = s->p + at, *end = s->p + s->bytes;
    unsigned n, flags = UNI_IGNORABLE;
    while (p > begin && flags & UNI_IGNORABLE) {
        flags = tpl_uni_flags(uni_before(begin, p, &n));
        p -= n;
        tpl_step(t, 1);
    }
    if (flags & UNI_IGNORABLE || !(flags & UNI_CASED))
        return false;
    flags = UNI_IGNORABLE;
    for (p = begin + at + 2; p < end && flags & UNI_IGNORABLE; p += n) {
        flags = tpl_uni_flags(uni_at(p, &n));
        tpl_step(t, 1);
    }
    return flags & UNI_IGNORABLE || !(flags & UNI_CASED);
}

static unsigned lower_at(struct tpl *t, const struct str *s, size_t at, uint32_t cp,
                         uint32_t out[3])
{
    if (cp == SIGMA)
        return out[0] = sigma_is_final(t, s, at) ? 0x3c2 : 0x3c3, 1;
    return tpl_uni_lower(cp, out);
}

enum mapping { TO_UPPER, TO_LOWER, TO_TITLE, TO_CAPITAL, TO_SWAPPED, TO_FOLDED };

static unsigned map_one(struct tpl *t, const struct str *s, enum mapping how, size_t at,
                        uint32_t cp, bool after_cased, uint32_t out[3])
{
    switch (how) {
    case TO_UPPER:
        return tpl_uni_upper(cp, out);
    case TO_LOWER:
        return lower_at(t, s, at, cp, out);
    case TO_TITLE:
        return after_cased ? lower_at(t, s, at, cp, out) : tpl_uni_title(cp, out);
    case TO_CAPITAL:
        return at ? lower_at(t, s, at, cp, out) : tpl_uni_title(cp, out);
    case TO_FOLDED:
        return tpl_uni_fold(cp, out);
    default:
        if (tpl_uni_flags(cp) & UNI_UPPER)
            return lower_at(t, s, at, cp, out);
        if (tpl_uni_flags(cp) & UNI_LOWER)
            return tpl_uni_upper(cp, out);
        return out[0] = cp, 1;
    }
}

static const struct str *map(struct tpl *t, const struct str *s, enum mapping how)
{
    struct sb b;
    bool after_cased = false;
    unsigned n;
    tpl_sb_init(&b, t);
    tpl_step(t, s->bytes / 16);
    for (size_t at = 0; at < s->bytes; at += n) {
        uint32_t out[3], cp = uni_at(s->p + at, &n);
        if (cp < 0x80 && (how == TO_UPPER || how == TO_LOWER)) {
            char c = (char)cp;
            bool other = how == TO_UPPER ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z';
            tpl_sb_char(&b, other ? (char)(c ^ 0x20) : c);
            continue;
        }
        unsigned count = map_one(t, s, how, at, cp, after_cased, out);
        for (unsigned i = 0; i < count; i++)
            tpl_sb_cp(&b, out[i]);
        after_cased = how == TO_TITLE && tpl_uni_flags(cp) & UNI_CASED;
    }
    return tpl_sb_done(&b);
}

const struct str *tpl_str_upper(struct tpl *t, const struct str *s)
{
    return map(t, s, TO_UPPER);
}
const struct str *tpl_str_lower(struct tpl *t, const struct str *s)
{
    return map(t, s, TO_LOWER);
}
const struct str *tpl_str_title(struct tpl *t, const struct str *s)
{
    return map(t, s, TO_TITLE);
}
const struct str *tpl_str_swapcase(struct tpl *t, const struct str *s)
{
    return map(t, s, TO_SWAPPED);
}
const struct str *tpl_str_casefold(struct tpl *t, const struct str *s)
{
    return map(t, s, TO_FOLDED);
}

const struct str *tpl_str_capitalize(struct tpl *t, const struct str *s)
{
    return map(t, s, TO_CAPITAL);
}

/* ---- classes ---- */

/* Whether there are characters and each has one of the flags. */
bool tpl_str_all(struct tpl *t, const struct str *s, unsigned flags)
{
    unsigned n;
    tpl_step(t, s->bytes / 16);
    for (size_t at = 0; at < s->bytes; at += n)
        if (!(tpl_uni_flags(uni_at(s->p + at, &n)) & flags))
            return false;
    return s->bytes;
}

/* Some letter has the case, none has the other. */
static bool one_case(struct tpl *t, const struct str *s, unsigned wanted, unsigned other)
{
    bool any = false;
    unsigned n;
    tpl_step(t, s->bytes / 16);
    for (size_t at = 0; at < s->bytes; at += n) {
        uint32_t cp = uni_at(s->p + at, &n);
        unsigned flags = tpl_uni_flags(cp);
        if (flags & other || tpl_uni_is_title(cp))
            return false;
        any |= (flags & wanted) != 0;
    }
    return any;
}

bool tpl_str_is_lower(struct tpl *t, const struct str *s)
{
    return one_case(t, s, UNI_LOWER, UNI_UPPER);
}

bool tpl_str_is_upper(struct tpl *t, const struct str *s)
{
    return one_case(t, s, UNI_UPPER, UNI_LOWER);
}

bool tpl_str_is_title(struct tpl *t, const struct str *s)
{
    bool any = false, after_cased = false;
    unsigned n;
    tpl_step(t, s->bytes / 16);
    for (size_t at = 0; at < s->bytes; at += n) {
        uint32_t cp = uni_at(s->p + at, &n);
        bool capital = tpl_uni_flags(cp) & UNI_UPPER || tpl_uni_is_title(cp);
        bool small = tpl_uni_flags(cp) & UNI_LOWER;
        if ((capital && after_cased) || (small && !after_cased))
            return false;
        after_cased = capital || small;
        any |= after_cased;
    }
    return any;
}

bool tpl_str_is_space(struct tpl *t, const struct str *s)
{
    unsigned n;
    tpl_step(t, s->bytes / 16);
    for (size_t at = 0; at < s->bytes; at += n)
        if (!tpl_uni_is_space(uni_at(s->p + at, &n)))
            return false;
    return s->bytes;
}

bool tpl_str_is_identifier(struct tpl *t, const struct str *s)
{
    unsigned n, need = UNI_ID_START;
    tpl_step(t, s->bytes / 16);
    for (size_t at = 0; at < s->bytes; at += n, need = UNI_ID_CONTINUE)
        if (!(tpl_uni_flags(uni_at(s->p + at, &n)) & need))
            return false;
    return s->bytes;
}
