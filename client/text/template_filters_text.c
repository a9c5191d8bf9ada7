/* template_filters_text.c - filters that make text of text. */
#include "template_internal.h"

static struct value like(struct tpl *t, const struct str *in, const struct str *out)
{
    return tpl_str_markup(t, out, in->markup);
}

/* ---- case ---- */

#define MAPPING(name, map)                                                                         \
    static struct value f_##name(struct tpl *t, struct value in, const struct value *v)            \
    {                                                                                              \
        (void)v;                                                                                   \
        const struct str *s = tpl_value_soft(t, in);                                               \
        return like(t, s, map(t, s));                                                              \
    }
MAPPING(upper, tpl_str_upper)
MAPPING(lower, tpl_str_lower)
MAPPING(capitalize, tpl_str_capitalize)

static bool separates_words(uint32_t cp)
{
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || tpl_uni_is_space(cp);
}

/* A word is what stands between white space, hyphens and opening brackets. */
static struct value f_title(struct tpl *t, struct value in, const struct value *v)
{
    const struct str *s = tpl_value_soft(t, in);
    struct sb b;
    unsigned n;
    (void)v;
    tpl_sb_init(&b, t);
    for (size_t at = 0; at < s->bytes;) {
        uint32_t first[3], cp = uni_at(s->p + at, &n);
        bool separator = separates_words(cp);
        unsigned count = tpl_uni_upper(cp, first);
        for (unsigned i = 0; i < count; i++)
            tpl_sb_cp(&b, first[i]);
        size_t from = at += n;
        while (at < s->bytes && separates_words(uni_at(s->p + at, &n)) == separator)
            at += n;
        tpl_sb_str(&b, tpl_str_lower(t, tpl_str_sub(t, s, from, at)));
    }
    return tpl_sb_value(&b);
}

/* ---- trimming, replacing, padding ---- */

static struct value f_trim(struct tpl *t, struct value in, const struct value *v)
{
    const struct str *s = tpl_value_soft(t, in);
    return like(t, s, tpl_str_strip(t, s, v[0], true, true).u.s);
}

static struct value f_replace(struct tpl *t, struct value in, const struct value *v)
{
    int64_t count = ABSENT(v[2]) ? -1 : tpl_value_index(t, v[2]);
    if (!t->autoescape)
        return tpl_str_replace(t, tpl_value_str(t, in), tpl_value_str(t, v[0]),
                               tpl_value_str(t, v[1]), count);
    const struct str *s = tpl_value_soft(t, in), *old = tpl_value_soft(t, v[0]);
    const struct str *by = tpl_value_soft(t, v[1]);
    if (old->markup || (by->markup && !s->markup))
        s = tpl_escape(t, STR(s));
    if (s->markup)
        by = tpl_escape(t, STR(by));
    return like(t, s, tpl_str_replace(t, s, old, by, count).u.s);
}

static struct value f_center(struct tpl *t, struct value in, const struct value *v)
{
    const struct str *s = tpl_value_soft(t, in);
    struct sb b;
    tpl_sb_init(&b, t);
    tpl_pad_to(&b, s, GIVEN(v[0]) ? tpl_value_index(t, v[0]) : 80, tpl_str_text(t, " "), 'c');
    return like(t, s, tpl_sb_done(&b));
}

static const struct str *indentation(struct tpl *t, struct value width)
{
    struct sb b;
    if (width.kind == V_STR)
        return width.u.s;
    tpl_sb_init(&b, t);
    int64_t n = GIVEN(width) ? tpl_value_index(t, width) : 4;
    tpl_sb_fill(&b, " ", 1, n < 0 ? 0 : (uint64_t)n);
    return tpl_sb_done(&b);
}

static struct value f_indent(struct tpl *t, struct value in, const struct value *v)
{
    bool first = GIVEN(v[1]) && tpl_value_true(t, v[1]),
         blank = GIVEN(v[2]) && tpl_value_true(t, v[2]);
    const struct str *by = indentation(t, v[0]);
    if (in.kind == V_UNDEFINED)
        tpl_undefined_fail(t, in);
    const struct str *s = tpl_value_need_str(t, in, "the text to indent");
    const struct list *lines =
        tpl_str_lines(t, tpl_str_concat(t, s, tpl_str_text(t, "\n")), false).u.l;
    struct sb b;
    tpl_sb_init(&b, t);
    if (first)
        tpl_sb_str(&b, by);
    for (uint32_t i = 0; i < lines->n; i++) {
        if (i)
            tpl_sb_char(&b, '\n');
        if (i && (blank || lines->v[i].u.s->bytes))
            tpl_sb_str(&b, by);
        tpl_sb_str(&b, lines->v[i].u.s);
    }
    return like(t, s, tpl_sb_done(&b));
}

static struct value f_truncate(struct tpl *t, struct value in, const struct value *v)
{
    int64_t length = GIVEN(v[0]) ? tpl_value_index(t, v[0]) : 255;
    bool kill = GIVEN(v[1]) && tpl_value_true(t, v[1]);
    struct value end = GIVEN(v[2]) ? v[2] : STR(tpl_str_text(t, "..."));
    int64_t leeway = ABSENT(v[3]) ? 5 : tpl_value_index(t, v[3]),
            end_length = tpl_value_length(t, end);
    if (length < end_length)
        tpl_error(t, "expected length >= %lld, got %lld", (long long)end_length, (long long)length);
    if (leeway < 0)
        tpl_error(t, "expected leeway >= 0, got %lld", (long long)leeway);
    if (tpl_value_length(t, in) - length <= leeway)
        return in;
    struct value cut = tpl_value_slice(t, in, MISSING, INT(length - end_length), MISSING);
    if (kill)
        return tpl_op_add(t, cut, end);
    const struct str *s = tpl_value_need_str(t, cut, "the text to truncate");
    struct value words = tpl_str_split(t, s, STR(tpl_str_text(t, " ")), 1, true);
    return tpl_op_add(t, tpl_str_markup(t, words.u.l->v[0].u.s, s->markup), end);
}

/* ---- words ---- */

static bool in_word(uint32_t cp)
{
    return cp == '_' || tpl_uni_flags(cp) & UNI_ALNUM;
}

static struct value f_wordcount(struct tpl *t, struct value in, const struct value *v)
{
    const struct str *s = tpl_value_soft(t, in);
    int64_t words = 0;
    bool inside = false;
    unsigned n;
    (void)v;
    tpl_step(t, s->bytes / 16);
    for (size_t i = 0; i < s->bytes; i += n) {
        bool now = in_word(uni_at(s->p + i, &n));
        words += now && !inside;
        inside = now;
    }
    return INT(words);
}

struct text {    /* a line as code points, with a blank before and behind it */
    uint32_t *c; /* c[-1] .. c[n] may be read */
    int64_t n;
};

static struct text decode(struct tpl *t, const struct str *s)
{
    struct text x = {tpl_alloc(t, (s->chars + 8ul) * sizeof *x.c), 0};
    unsigned n;
    for (int i = 0; i < 4; i++)
        *x.c++ = 0;
    for (size_t i = 0; i < s->bytes; i += n)
        x.c[x.n++] = uni_at(s->p + i, &n);
    for (int i = 0; i < 4; i++)
        x.c[x.n + i] = 0;
    return x;
}

static bool blank(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ';
}
static bool letter(uint32_t c)
{
    return in_word(c) && !(tpl_uni_flags(c) & UNI_DECIMAL);
}
static bool word_or_mark(uint32_t c)
{
    return in_word(c) || (c && c < 0x80 && strchr("!\"'&.,?", (int)c));
}

/* Whether two hyphens or more begin at p that a word follows; *end: behind them. */
static bool dash_at(const uint32_t *p, const uint32_t **end)
{
    const uint32_t *q = p;
    while (*q == '-')
        q++;
    *end = q;
    return q - p >= 2 && in_word(*q);
}

/* A hyphen at p within a word, behind which a line may break. */
static bool hyphen_at(const uint32_t *p)
{
    bool before =
        (letter(p[-1]) && letter(p[-2])) || (word_or_mark(p[-1]) && p[-2] == '-' && letter(p[-3]));
    return *p == '-' && before && letter(p[1]) && (letter(p[2]) || (p[2] == '-' && letter(p[3])));
}

/* End of the chunk at p that no line break may split (the rules of Python's textwrap). */
static const uint32_t *chunk_end(const uint32_t *p, const uint32_t *end, bool hyphens)
{
    const uint32_t *dash;
    if (blank(*p)) {
        while (p < end && blank(*p))
            p++;
        return p;
    }
    if (hyphens && word_or_mark(p[-1]) && dash_at(p, &dash))
        return dash;
    for (p++; p < end && !blank(*p); p++) {
        if (!hyphens)
            continue;
        if (hyphen_at(p))
            return p + 1;
        if (word_or_mark(p[-1]) && dash_at(p, &dash))
            return p;
    }
    return p;
}

struct wrap {
    struct tpl *t;
    struct sb *b;
    const struct str *newline;
    int64_t width;
    bool break_words, hyphens, any_line;
};

static void put_line(struct wrap *w, const uint32_t *from, const uint32_t *to)
{
    if (w->any_line)
        tpl_sb_str(w->b, w->newline);
    w->any_line = true;
    for (; from < to; from++)
        tpl_sb_cp(w->b, *from);
}

/* How much of a chunk that is longer than a line goes into the `room` left in this one. */
static int64_t long_part(const struct wrap *w, const uint32_t *p, int64_t room)
{
    if (!w->hyphens)
        return room;
    int64_t hyphen = room - 1;
    while (hyphen > 0 && p[hyphen] != '-')
        hyphen--;
    for (int64_t i = 0; i < hyphen; i++)
        if (p[i] != '-')
            return hyphen + 1;
    return room;
}

static bool all_blank(const uint32_t *p, const uint32_t *end)
{
    while (p < end && tpl_uni_is_space(*p))
        p++;
    return p == end;
}

struct chunk_range {
    const uint32_t *from, *to;
};

/* Takes as many chunks as fit, drops white space at the ends of lines, and cuts what is longer than
 * a line. */
static void wrap_chunks(struct wrap *w, struct chunk_range *c, const struct chunk_range *end)
{
    bool lines = false;
    while (c < end) {
        if (lines && all_blank(c->from, c->to) && ++c == end)
            return;
        const uint32_t *from = c->from, *to = from;
        struct chunk_range last = {from, from};
        for (; c < end && c->to - from <= w->width; c++) {
            last = *c;
            to = c->to;
        }
        if (c < end && c->to - c->from > w->width && (w->break_words || to == from)) {
            last = *c;
            if (w->break_words)
                last.to = c->from += long_part(w, c->from, w->width - (to - from));
            else
                c++;
            to = last.to;
        }
        if (all_blank(last.from, last.to))
            to = last.from;
        if (from < to) {
            put_line(w, from, to);
            lines = true;
        }
    }
}

/* One line of source, which may become several, or stay an empty one. */
static void wrap_line(struct wrap *w, const struct str *s)
{
    struct text x = decode(w->t, s);
    struct chunk_range *chunks = tpl_alloc(w->t, (size_t)(x.n + 1) * sizeof *chunks);
    size_t n = 0, before = w->b->n;
    bool any = w->any_line;
    tpl_step(w->t, s->bytes / 8);
    for (const uint32_t *p = x.c, *end = x.c + x.n; p < end; p = chunks[n++].to)
        chunks[n] = (struct chunk_range){p, chunk_end(p, end, w->hyphens)};
    wrap_chunks(w, chunks, chunks + n);
    if (w->b->n == before && w->any_line == any)
        put_line(w, x.c, x.c);
}

static struct value f_wordwrap(struct tpl *t, struct value in, const struct value *v)
{
    if (in.kind == V_UNDEFINED)
        tpl_undefined_fail(t, in);
    const struct str *s = tpl_value_need_str(t, in, "the text to wrap");
    const struct list *l = tpl_str_lines(t, s, false).u.l;
    struct sb b;
    tpl_sb_init(&b, t);
    struct wrap w = {.t = t,
                     .b = &b,
                     .newline = ABSENT(v[2]) ? tpl_str_text(t, "\n")
                                             : tpl_value_need_str(t, v[2], "wrapstring"),
                     .width = GIVEN(v[0]) ? tpl_value_index(t, v[0]) : 79,
                     .break_words = !GIVEN(v[1]) || tpl_value_true(t, v[1]),
                     .hyphens = !GIVEN(v[3]) || tpl_value_true(t, v[3])};
    if (w.width <= 0 && l->n)
        tpl_error(t, "invalid width %lld (must be > 0)", (long long)w.width);
    for (uint32_t i = 0; i < l->n; i++)
        wrap_line(&w, l->v[i].u.s);
    return tpl_sb_value(&b);
}

/* ---- format ---- */

static struct value f_format(struct tpl *t, struct value in, const struct args *a)
{
    const struct str *format = tpl_value_soft(t, in);
    if (a->n && a->n_kw)
        tpl_error(t, "can't handle positional and keyword arguments at the same time");
    if (!a->n_kw)
        return tpl_format_percent(t, format, tpl_tuple_of(t, a->n, a->v));
    struct dict *d = tpl_dict_new(t);
    for (uint32_t i = 0; i < a->n_kw; i++)
        tpl_dict_set(t, d, STR(a->kw[i].name), a->kw[i].value);
    return tpl_format_percent(t, format, DICT(d));
}

const struct filter tpl_filters_text[] = {
    {"capitalize", {{0}, 0, false}, f_capitalize, NULL},
    {"center", {{"width"}, 0, false}, f_center, NULL},
    {"format", {{0}, 0, false}, NULL, f_format},
    {"indent", {{"width", "first", "blank"}, 0, false}, f_indent, NULL},
    {"lower", {{0}, 0, false}, f_lower, NULL},
    {"replace", {{"old", "new", "count"}, 2, false}, f_replace, NULL},
    {"title", {{0}, 0, false}, f_title, NULL},
    {"trim", {{"chars"}, 0, false}, f_trim, NULL},
    {"truncate", {{"length", "killwords", "end", "leeway"}, 0, false}, f_truncate, NULL},
    {"upper", {{0}, 0, false}, f_upper, NULL},
    {"wordcount", {{0}, 0, false}, f_wordcount, NULL},
    {"wordwrap",
     {{"width", "break_long_words", "wrapstring", "break_on_hyphens"}, 0, false},
     f_wordwrap,
     NULL},
    {NULL, {{0}, 0, false}, NULL, NULL},
};
