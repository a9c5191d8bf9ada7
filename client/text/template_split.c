/* template_split.c - stripping, splitting, replacing, padding: what string methods and filters
 * share. Results are plain strings; who needs Markup marks them.
 */
#include "template_internal.h"

/* ---- stripping ---- */

/* Whether the character is one to strip: of `set`, or white space. */
static bool stripped(struct tpl *t, uint32_t cp, const struct str *set)
{
    unsigned n;
    if (!set)
        return tpl_uni_is_space(cp);
    tpl_step(t, 1 + set->bytes / 16);
    for (size_t i = 0; i < set->bytes; i += n)
        if (uni_at(set->p + i, &n) == cp)
            return true;
    return false;
}

struct value tpl_str_strip(struct tpl *t, const struct str *s, struct value chars, bool left,
                           bool right)
{
    const struct str *set = NULL;
    unsigned n;
    if (!ABSENT(chars)) {
        if (chars.kind != V_STR)
            tpl_error(t, "strip arg must be None or str");
        set = chars.u.s;
    }
    const char *begin = s->p, *end = s->p + s->bytes;
    while (left && begin < end && stripped(t, uni_at(begin, &n), set))
        begin += n;
    while (right && begin < end && stripped(t, uni_before(begin, end, &n), set))
        end -= n;
    tpl_step(t, (s->bytes - (size_t)(end - begin)) / 64);
    if (begin == s->p && end == s->p + s->bytes)
        return tpl_str_markup(t, s, false);
    return STR(tpl_str_ref(t, begin, (size_t)(end - begin)));
}

/* ---- splitting ---- */

static void add_part(struct tpl *t, struct list *l, const char *from, const char *to)
{
    tpl_list_add(t, l, STR(tpl_str_ref(t, from, (size_t)(to - from))));
}

static const char *skip(const char *p, const char *end, bool space)
{
    unsigned n;
    while (p < end && tpl_uni_is_space(uni_at(p, &n)) == space)
        p += n;
    return p;
}

static const char *skip_back(const char *begin, const char *end, bool space)
{
    unsigned n;
    while (end > begin && tpl_uni_is_space(uni_before(begin, end, &n)) == space)
        end -= n;
    return end;
}

static void reverse(struct list *l)
{
    for (uint32_t i = 0, j = l->n; i + 1 < j; i++) {
        struct value v = l->v[i];
        l->v[i] = l->v[--j];
        l->v[j] = v;
    }
}

/* By white space; max < 0: all. */
struct value tpl_str_words(struct tpl *t, const struct str *s, int64_t max)
{
    struct list *l = tpl_list_new(t, 0);
    const char *end = s->p + s->bytes, *p = skip(s->p, end, true);
    tpl_step(t, s->bytes / 64);
    while (p < end) {
        const char *to = max == 0 ? end : skip(p, end, false);
        max--;
        add_part(t, l, p, to);
        p = skip(to, end, true);
    }
    return LIST(l);
}

static struct value words_from_right(struct tpl *t, const struct str *s, int64_t max)
{
    struct list *l = tpl_list_new(t, 0);
    const char *end = skip_back(s->p, s->p + s->bytes, true);
    tpl_step(t, s->bytes / 64);
    while (end > s->p) {
        const char *from = max == 0 ? s->p : skip_back(s->p, end, false);
        max--;
        add_part(t, l, from, end);
        end = skip_back(s->p, from, true);
    }
    reverse(l);
    return LIST(l);
}

/* The last place of a needle that is not empty, or NULL. */
const char *tpl_str_find_last(struct tpl *t, const char *p, size_t bytes, const struct str *needle)
{
    char last = needle->p[needle->bytes - 1];
    tpl_step(t, bytes / 64);
    for (size_t i = bytes; i >= needle->bytes; i--) {
        if (p[i - 1] != last)
            continue;
        tpl_step(t, 1 + needle->bytes / 64);
        if (!memcmp(p + i - needle->bytes, needle->p, needle->bytes))
            return p + i - needle->bytes;
    }
    return NULL;
}

static struct value split_by(struct tpl *t, const struct str *s, const struct str *by, int64_t max)
{
    struct list *l = tpl_list_new(t, 0);
    const char *p = s->p, *end = s->p + s->bytes, *at;
    tpl_step(t, s->bytes / 64);
    while (max-- != 0 && (at = tpl_mem_find(p, (size_t)(end - p), by->p, by->bytes))) {
        add_part(t, l, p, at);
        p = at + by->bytes;
    }
    add_part(t, l, p, end);
    return LIST(l);
}

static struct value split_from_right(struct tpl *t, const struct str *s, const struct str *by,
                                     int64_t max)
{
    struct list *l = tpl_list_new(t, 0);
    const char *end = s->p + s->bytes, *at;
    tpl_step(t, s->bytes / 16);
    while (max-- != 0 && (at = tpl_str_find_last(t, s->p, (size_t)(end - s->p), by))) {
        add_part(t, l, at + by->bytes, end);
        end = at;
    }
    add_part(t, l, s->p, end);
    reverse(l);
    return LIST(l);
}

/* split() and rsplit() */
struct value tpl_str_split(struct tpl *t, const struct str *s, struct value by, int64_t max,
                           bool right)
{
    if (ABSENT(by))
        return right ? words_from_right(t, s, max) : tpl_str_words(t, s, max);
    if (by.kind != V_STR)
        tpl_error(t, "must be str or None, not %s", tpl_type_name(by));
    if (!by.u.s->bytes)
        tpl_error(t, "empty separator");
    return right ? split_from_right(t, s, by.u.s, max) : split_by(t, s, by.u.s, max);
}

static bool ends_line(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

struct value tpl_str_lines(struct tpl *t, const struct str *s, bool keep_ends)
{
    struct list *l = tpl_list_new(t, 0);
    const char *p = s->p, *end = s->p + s->bytes;
    tpl_step(t, s->bytes / 64);
    while (p < end) {
        const char *to = p;
        unsigned n = 0;
        while (to < end && !ends_line(uni_at(to, &n)))
            to += n;
        const char *next = to < end ? to + n : to;
        if (next < end && *to == '\r' && *next == '\n')
            next++;
        add_part(t, l, p, keep_ends ? next : to);
        p = next;
    }
    return LIST(l);
}

/* (before, separator, after), at the first or last place; the whole on one side if there is none */
struct value tpl_str_partition(struct tpl *t, const struct str *s, const struct str *by, bool right)
{
    if (!by->bytes)
        tpl_error(t, "empty separator");
    tpl_step(t, s->bytes / 64);
    const char *at = right ? tpl_str_find_last(t, s->p, s->bytes, by)
                           : tpl_mem_find(s->p, s->bytes, by->p, by->bytes);
    struct value parts[3] = {STR(tpl_str_text(t, "")), STR(tpl_str_text(t, "")),
                             STR(tpl_str_text(t, ""))};
    if (!at) {
        parts[right ? 2 : 0] = tpl_str_markup(t, s, false);
        return tpl_tuple_of(t, 3, parts);
    }
    size_t from = (size_t)(at - s->p);
    parts[0] = STR(tpl_str_sub(t, s, 0, from));
    parts[1] = STR(by);
    parts[2] = STR(tpl_str_sub(t, s, from + by->bytes, s->bytes));
    return tpl_tuple_of(t, 3, parts);
}

/* ---- replacing ---- */

/* An empty text is found before each character and at the end. */
static struct value insert_between(struct tpl *t, const struct str *s, const struct str *by,
                                   int64_t count)
{
    struct sb b;
    unsigned n;
    tpl_sb_init(&b, t);
    size_t at = 0;
    for (; at < s->bytes && count != 0; at += n, count--) {
        tpl_step(t, 1);
        tpl_sb_str(&b, by);
        uni_at(s->p + at, &n);
        tpl_sb_put(&b, s->p + at, n);
    }
    tpl_sb_put(&b, s->p + at, s->bytes - at);
    if (count != 0)
        tpl_sb_str(&b, by);
    return tpl_sb_value(&b);
}

/* count < 0: all */
struct value tpl_str_replace(struct tpl *t, const struct str *s, const struct str *old,
                             const struct str *by, int64_t count)
{
    struct sb b;
    if (!old->bytes)
        return insert_between(t, s, by, count);
    tpl_sb_init(&b, t);
    tpl_step(t, s->bytes / 64);
    const char *p = s->p, *end = s->p + s->bytes, *at;
    while (count-- != 0 && (at = tpl_mem_find(p, (size_t)(end - p), old->p, old->bytes))) {
        tpl_step(t, 1);
        tpl_sb_put(&b, p, (size_t)(at - p));
        tpl_sb_str(&b, by);
        p = at + old->bytes;
    }
    if (p == s->p)
        return tpl_str_markup(t, s, false);
    tpl_sb_put(&b, p, (size_t)(end - p));
    return tpl_sb_value(&b);
}

/* ---- padding ---- */

void tpl_pad_to(struct sb *b, const struct str *s, int64_t width, const struct str *fill,
                char align)
{
    int64_t pad = width > (int64_t)s->chars ? width - (int64_t)s->chars : 0, left = 0;
    if (align == '>')
        left = pad;
    else if (align == '^')
        left = pad / 2;
    else if (align == 'c')
        left = pad / 2 + (pad & width & 1);
    tpl_sb_fill(b, fill->p, fill->bytes, (uint64_t)left);
    tpl_sb_str(b, s);
    tpl_sb_fill(b, fill->p, fill->bytes, (uint64_t)(pad - left));
}
