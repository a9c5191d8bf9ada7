/* template_methods_str.c - the methods of str.
 *
 * A Markup has the same ones: what they return is Markup again, and what they put in is escaped.
 */
#include "template_internal.h"

/* Binds the arguments of a method to v; who: its name for messages. */
#define BIND(who, required, positional, ...)                                                       \
    static const struct signature signature = {{__VA_ARGS__}, required, positional};               \
    struct value v[8];                                                                             \
    tpl_args_bind(t, who, &signature, a, v)

static void no_arguments(struct tpl *t, const char *who, const struct args *a)
{
    if (a->n || a->n_kw)
        tpl_error(t, "str.%s() takes no arguments (%u given)", who, a->n + a->n_kw);
}

/* The result of a method of `self`. */
static struct value like(struct tpl *t, struct value self, const struct str *s)
{
    return tpl_str_markup(t, s, self.u.s->markup);
}

static struct value all_like(struct tpl *t, struct value self, struct value list)
{
    const struct list *l = list.u.l;
    for (uint32_t i = 0; self.u.s->markup && i < l->n; i++)
        l->v[i] = tpl_str_markup(t, l->v[i].u.s, true);
    return list;
}

static const struct str *fitting(struct tpl *t, struct value self, struct value v)
{
    return self.u.s->markup ? tpl_escape(t, v) : v.u.s;
}

/* ---- case ---- */

#define MAPPING(name, map)                                                                         \
    static struct value m_##name(struct tpl *t, struct value self, const struct args *a)           \
    {                                                                                              \
        no_arguments(t, #name, a);                                                                 \
        return like(t, self, map(t, self.u.s));                                                    \
    }
MAPPING(upper, tpl_str_upper)
MAPPING(lower, tpl_str_lower)
MAPPING(title, tpl_str_title)
MAPPING(capitalize, tpl_str_capitalize)
MAPPING(swapcase, tpl_str_swapcase)
MAPPING(casefold, tpl_str_casefold)

#define CLASS(name, test)                                                                          \
    static struct value m_##name(struct tpl *t, struct value self, const struct args *a)           \
    {                                                                                              \
        const struct str *s = self.u.s;                                                            \
        no_arguments(t, #name, a);                                                                 \
        return BOOL(test);                                                                         \
    }
CLASS(isalpha, tpl_str_all(t, s, UNI_ALPHA))
CLASS(isalnum, tpl_str_all(t, s, UNI_ALNUM))
CLASS(isdecimal, tpl_str_all(t, s, UNI_DECIMAL))
CLASS(isdigit, tpl_str_all(t, s, UNI_DIGIT))
CLASS(isnumeric, tpl_str_all(t, s, UNI_NUMERIC))
CLASS(isprintable, !s->bytes || tpl_str_all(t, s, UNI_PRINTABLE))
CLASS(isascii, s->bytes == s->chars)
CLASS(isspace, tpl_str_is_space(t, s))
CLASS(islower, tpl_str_is_lower(t, s))
CLASS(isupper, tpl_str_is_upper(t, s))
CLASS(istitle, tpl_str_is_title(t, s))
CLASS(isidentifier, tpl_str_is_identifier(t, s))

/* ---- stripping, splitting, joining ---- */

static struct value strip(struct tpl *t, const char *who, struct value self, const struct args *a,
                          bool left, bool right)
{
    BIND(who, 0, true, "chars");
    return like(t, self, tpl_str_strip(t, self.u.s, v[0], left, right).u.s);
}

static struct value m_strip(struct tpl *t, struct value self, const struct args *a)
{
    return strip(t, "strip", self, a, true, true);
}

static struct value m_lstrip(struct tpl *t, struct value self, const struct args *a)
{
    return strip(t, "lstrip", self, a, true, false);
}

static struct value m_rstrip(struct tpl *t, struct value self, const struct args *a)
{
    return strip(t, "rstrip", self, a, false, true);
}

static struct value split(struct tpl *t, const char *who, struct value self, const struct args *a,
                          bool right)
{
    BIND(who, 0, false, "sep", "maxsplit");
    int64_t max = GIVEN(v[1]) ? tpl_value_index(t, v[1]) : -1;
    return all_like(t, self, tpl_str_split(t, self.u.s, v[0], max, right));
}

static struct value m_split(struct tpl *t, struct value self, const struct args *a)
{
    return split(t, "split", self, a, false);
}

static struct value m_rsplit(struct tpl *t, struct value self, const struct args *a)
{
    return split(t, "rsplit", self, a, true);
}

static struct value m_splitlines(struct tpl *t, struct value self, const struct args *a)
{
    BIND("splitlines", 0, false, "keepends");
    return all_like(t, self, tpl_str_lines(t, self.u.s, GIVEN(v[0]) && tpl_value_true(t, v[0])));
}

static struct value partition(struct tpl *t, const char *who, struct value self,
                              const struct args *a, bool right)
{
    BIND(who, 1, true, "sep");
    return all_like(
        t, self,
        tpl_str_partition(t, self.u.s, tpl_value_need_str(t, v[0], "the separator"), right));
}

static struct value m_partition(struct tpl *t, struct value self, const struct args *a)
{
    return partition(t, "partition", self, a, false);
}

static struct value m_rpartition(struct tpl *t, struct value self, const struct args *a)
{
    return partition(t, "rpartition", self, a, true);
}

static struct value m_join(struct tpl *t, struct value self, const struct args *a)
{
    BIND("join", 1, true, "iterable");
    struct iter *it;
    struct value item;
    struct sb b;
    if (!tpl_value_iterable(v[0]))
        tpl_error(t, "can only join an iterable");
    tpl_sb_init(&b, t);
    it = tpl_iter_of(t, v[0]);
    for (uint32_t i = 0; tpl_iter_next(t, it, &item); i++) {
        if (!self.u.s->markup && item.kind != V_STR)
            tpl_error(t, "sequence item %u: expected str instance, %s found", i,
                      tpl_type_name(item));
        if (i)
            tpl_sb_str(&b, self.u.s);
        tpl_sb_str(&b, fitting(t, self, item));
    }
    return like(t, self, tpl_sb_done(&b));
}

static struct value m_replace(struct tpl *t, struct value self, const struct args *a)
{
    BIND("replace", 2, true, "old", "new", "count");
    const struct str *old = tpl_value_need_str(t, v[0], "replace() argument 1");
    if (!self.u.s->markup)
        tpl_value_need_str(t, v[1], "replace() argument 2");
    int64_t count = GIVEN(v[2]) ? tpl_value_index(t, v[2]) : -1;
    return like(t, self, tpl_str_replace(t, self.u.s, old, fitting(t, self, v[1]), count).u.s);
}

static bool begins(const struct str *s, size_t from, size_t to, const struct str *with, bool at_end)
{
    if (to < from || to - from < with->bytes)
        return false;
    return !memcmp(s->p + (at_end ? to - with->bytes : from), with->p, with->bytes);
}

static struct value m_removeprefix(struct tpl *t, struct value self, const struct args *a)
{
    BIND("removeprefix", 1, true, "prefix");
    const struct str *s = self.u.s, *with = tpl_value_need_str(t, v[0], "removeprefix() argument");
    size_t from = begins(s, 0, s->bytes, with, false) ? with->bytes : 0;
    return like(t, self, tpl_str_sub(t, s, from, s->bytes));
}

static struct value m_removesuffix(struct tpl *t, struct value self, const struct args *a)
{
    BIND("removesuffix", 1, true, "suffix");
    const struct str *s = self.u.s, *with = tpl_value_need_str(t, v[0], "removesuffix() argument");
    size_t less = begins(s, 0, s->bytes, with, true) ? with->bytes : 0;
    return like(t, self, tpl_str_sub(t, s, 0, s->bytes - less));
}

/* ---- searching ---- */

struct part { /* of a string, in bytes; `empty`: it starts behind its end */
    size_t from, to;
    uint32_t first; /* character at `from` */
    bool empty;
};

static struct part part_of(struct tpl *t, const struct str *s, struct value start, struct value end)
{
    int64_t n = s->chars;
    int64_t from = ABSENT(start) ? 0 : tpl_value_index(t, start);
    int64_t to = ABSENT(end) ? n : tpl_value_index(t, end);
    if (from < 0)
        from = from + n < 0 ? 0 : from + n;
    if (to < 0)
        to = to + n < 0 ? 0 : to + n;
    if (to > n)
        to = n;
    struct part p = {.empty = from > to};
    if (p.empty)
        return p;
    p.first = (uint32_t)from;
    p.from = tpl_str_offset(t, s, (uint32_t)from);
    p.to = tpl_str_offset(t, s, (uint32_t)to);
    return p;
}

static bool begins_with_any(struct tpl *t, const char *who, struct value self, const struct args *a,
                            bool at_end)
{
    BIND(who, 1, true, "prefix", "start", "end");
    struct part p = part_of(t, self.u.s, v[1], v[2]);
    uint32_t n = v[0].kind == V_TUPLE ? v[0].u.l->n : 1;
    const struct value *with = v[0].kind == V_TUPLE ? v[0].u.l->v : v;
    if (v[0].kind != V_TUPLE && v[0].kind != V_STR)
        tpl_error(t, "%s first arg must be str or a tuple of str, not %s", who,
                  tpl_type_name(v[0]));
    for (uint32_t i = 0; i < n; i++) {
        if (with[i].kind != V_STR)
            tpl_error(t, "tuple for %s must only contain str, not %s", who, tpl_type_name(with[i]));
        tpl_step(t, 1 + with[i].u.s->bytes / 256);
        if (!p.empty && begins(self.u.s, p.from, p.to, with[i].u.s, at_end))
            return true;
    }
    return false;
}

static struct value m_startswith(struct tpl *t, struct value self, const struct args *a)
{
    return BOOL(begins_with_any(t, "startswith", self, a, false));
}

static struct value m_endswith(struct tpl *t, struct value self, const struct args *a)
{
    return BOOL(begins_with_any(t, "endswith", self, a, true));
}

/* Index of a character, or -1. */
static int64_t find(struct tpl *t, const char *who, struct value self, const struct args *a,
                    bool last)
{
    BIND(who, 1, true, "sub", "start", "end");
    const struct str *s = self.u.s, *sub = tpl_value_need_str(t, v[0], "the text to find");
    struct part p = part_of(t, s, v[1], v[2]);
    const char *at;
    if (p.empty)
        return -1;
    tpl_step(t, (p.to - p.from) / 64);
    if (!last)
        at = tpl_mem_find(s->p + p.from, p.to - p.from, sub->p, sub->bytes);
    else
        at = sub->bytes ? tpl_str_find_last(t, s->p + p.from, p.to - p.from, sub) : s->p + p.to;
    if (!at)
        return -1;
    return p.first + tpl_str_sub(t, s, p.from, (size_t)(at - s->p))->chars;
}

static struct value m_find(struct tpl *t, struct value self, const struct args *a)
{
    return INT(find(t, "find", self, a, false));
}

static struct value m_rfind(struct tpl *t, struct value self, const struct args *a)
{
    return INT(find(t, "rfind", self, a, true));
}

static struct value found(struct tpl *t, int64_t at)
{
    if (at < 0)
        tpl_error(t, "substring not found");
    return INT(at);
}

static struct value m_index(struct tpl *t, struct value self, const struct args *a)
{
    return found(t, find(t, "index", self, a, false));
}

static struct value m_rindex(struct tpl *t, struct value self, const struct args *a)
{
    return found(t, find(t, "rindex", self, a, true));
}

static struct value m_count(struct tpl *t, struct value self, const struct args *a)
{
    BIND("count", 1, true, "sub", "start", "end");
    const struct str *s = self.u.s, *sub = tpl_value_need_str(t, v[0], "the text to count");
    struct part p = part_of(t, s, v[1], v[2]);
    if (p.empty)
        return INT(0);
    if (!sub->bytes)
        return INT(tpl_str_sub(t, s, p.from, p.to)->chars + 1);
    int64_t n = 0;
    tpl_step(t, (p.to - p.from) / 64);
    const char *at = s->p + p.from, *end = s->p + p.to;
    while ((at = tpl_mem_find(at, (size_t)(end - at), sub->p, sub->bytes))) {
        n++;
        at += sub->bytes;
    }
    return INT(n);
}

/* ---- padding ---- */

static struct value pad(struct tpl *t, const char *who, struct value self, const struct args *a,
                        char align)
{
    BIND(who, 1, true, "width", "fillchar");
    struct value fill = GIVEN(v[1]) ? v[1] : STR(tpl_str_text(t, " "));
    struct sb b;
    if (fill.kind != V_STR || fill.u.s->chars != 1)
        tpl_error(t, "The fill character must be exactly one character long");
    tpl_sb_init(&b, t);
    tpl_pad_to(&b, self.u.s, tpl_value_index(t, v[0]), fitting(t, self, fill), align);
    return like(t, self, tpl_sb_done(&b));
}

static struct value m_center(struct tpl *t, struct value self, const struct args *a)
{
    return pad(t, "center", self, a, 'c');
}

static struct value m_ljust(struct tpl *t, struct value self, const struct args *a)
{
    return pad(t, "ljust", self, a, '<');
}

static struct value m_rjust(struct tpl *t, struct value self, const struct args *a)
{
    return pad(t, "rjust", self, a, '>');
}

static struct value m_zfill(struct tpl *t, struct value self, const struct args *a)
{
    BIND("zfill", 1, true, "width");
    const struct str *s = self.u.s;
    int64_t width = tpl_value_index(t, v[0]);
    size_t sign = s->bytes && (*s->p == '-' || *s->p == '+');
    struct sb b;
    tpl_sb_init(&b, t);
    tpl_sb_put(&b, s->p, sign);
    if (width > (int64_t)s->chars)
        tpl_sb_fill(&b, "0", 1, (uint64_t)(width - s->chars));
    tpl_sb_put(&b, s->p + sign, s->bytes - sign);
    return like(t, self, tpl_sb_done(&b));
}

static struct value m_expandtabs(struct tpl *t, struct value self, const struct args *a)
{
    BIND("expandtabs", 0, false, "tabsize");
    int64_t size = GIVEN(v[0]) ? tpl_value_index(t, v[0]) : 8, column = 0;
    const struct str *s = self.u.s;
    struct sb b;
    unsigned n;
    tpl_sb_init(&b, t);
    for (size_t i = 0; i < s->bytes; i += n) {
        uint32_t cp = uni_at(s->p + i, &n);
        if (cp == '\t') {
            int64_t spaces = size > 0 ? size - column % size : 0;
            tpl_sb_fill(&b, " ", 1, (uint64_t)spaces);
            column += spaces;
            continue;
        }
        tpl_sb_put(&b, s->p + i, n);
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
    }
    return like(t, self, tpl_sb_done(&b));
}

/* ---- formatting, translating ---- */

static struct value m_format(struct tpl *t, struct value self, const struct args *a)
{
    return tpl_format_braces(t, self.u.s, a, NULL);
}

static struct value m_format_map(struct tpl *t, struct value self, const struct args *a)
{
    BIND("format_map", 1, true, "mapping");
    struct args none = {.n = 0};
    return tpl_format_braces(t, self.u.s, &none, &v[0]);
}

static void translate_one(struct tpl *t, struct sb *b, struct value table, uint32_t cp)
{
    struct value to = tpl_value_getitem(t, table, INT(cp));
    if (to.kind == V_UNDEFINED)
        tpl_sb_cp(b, cp);
    else if (to.kind == V_STR)
        tpl_sb_str(b, to.u.s);
    else if (to.kind == V_INT && to.u.i >= 0 && to.u.i <= 0x10ffff)
        tpl_sb_cp(b, (uint32_t)to.u.i);
    else if (to.kind != V_NONE)
        tpl_error(t, "character mapping must return integer, None or str");
}

static struct value m_translate(struct tpl *t, struct value self, const struct args *a)
{
    BIND("translate", 1, true, "table");
    const struct str *s = self.u.s;
    struct sb b;
    unsigned n;
    tpl_sb_init(&b, t);
    for (size_t i = 0; i < s->bytes; i += n) {
        tpl_step(t, 1);
        translate_one(t, &b, v[0], uni_at(s->p + i, &n));
    }
    return like(t, self, tpl_sb_done(&b));
}

static struct value m_encode(struct tpl *t, struct value self, const struct args *a)
{
    (void)self, (void)a;
    tpl_error(t, "bytes are not supported");
}

const struct method tpl_str_methods[] = {
    {"capitalize", m_capitalize},
    {"casefold", m_casefold},
    {"center", m_center},
    {"count", m_count},
    {"encode", m_encode},
    {"endswith", m_endswith},
    {"expandtabs", m_expandtabs},
    {"find", m_find},
    {"format", m_format},
    {"format_map", m_format_map},
    {"index", m_index},
    {"isalnum", m_isalnum},
    {"isalpha", m_isalpha},
    {"isascii", m_isascii},
    {"isdecimal", m_isdecimal},
    {"isdigit", m_isdigit},
    {"isidentifier", m_isidentifier},
    {"islower", m_islower},
    {"isnumeric", m_isnumeric},
    {"isprintable", m_isprintable},
    {"isspace", m_isspace},
    {"istitle", m_istitle},
    {"isupper", m_isupper},
    {"join", m_join},
    {"ljust", m_ljust},
    {"lower", m_lower},
    {"lstrip", m_lstrip},
    {"partition", m_partition},
    {"removeprefix", m_removeprefix},
    {"removesuffix", m_removesuffix},
    {"replace", m_replace},
    {"rfind", m_rfind},
    {"rindex", m_rindex},
    {"rjust", m_rjust},
    {"rpartition", m_rpartition},
    {"rsplit", m_rsplit},
    {"rstrip", m_rstrip},
    {"split", m_split},
    {"splitlines", m_splitlines},
    {"startswith", m_startswith},
    {"strip", m_strip},
    {"swapcase", m_swapcase},
    {"title", m_title},
    {"translate", m_translate},
    {"upper", m_upper},
    {"zfill", m_zfill},
    {NULL, NULL},
};
