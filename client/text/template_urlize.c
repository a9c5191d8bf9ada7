/* template_urlize.c - the filter urlize: makes links of the URLs and mail addresses in a text, by
 * the rules of jinja2.utils.urlize. ASCII letters and digits stand for \w in host names.
 */
#include "template_internal.h"

struct word { /* of escaped text: brackets and marks around, and what may be a link */
    const char *head, *middle, *tail, *end;
};

struct links {
    struct tpl *t;
    struct sb *b;
    const struct str *attributes; /* rel="..." target="..." */
    const struct list *schemes;   /* or NULL */
    int64_t limit;                /* of the shown text, or -1 */
};

/* ---- what looks like a link ---- */

static bool starts(const char *p, const char *end, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(end - p) >= n && !strncasecmp(p, text, n);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static bool is_letter(char c)
{
    return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
}
static bool is_word(char c)
{
    return is_letter(c) || is_digit(c) || c == '_' || c & 0x80;
}
static bool is_label(char c)
{
    return is_word(c) || c == '%' || c == '-';
}

static const char *host_end(const char *p, const char *end)
{
    while (p < end && (is_label(*p) || *p == '.'))
        p++;
    return p;
}

/* An optional port, and then nothing or a path, query or fragment. */
static bool rest_fits(const char *p, const char *end)
{
    if (p < end && *p == ':') {
        const char *from = ++p;
        while (p < end && is_digit(*p))
            p++;
        if (p == from || p - from > 5)
            return false;
    }
    return p == end || *p == '/' || *p == '?' || *p == '#';
}

/* Labels of `least` characters or more up to the last dot; *last gets what is behind it. */
static bool labels_fit(const char *p, const char *end, int least, const char **last)
{
    const char *from = p;
    for (*last = p; p < end; p++) {
        if (*p != '.')
            continue;
        if (p - from < least)
            return false;
        *last = from = p + 1;
    }
    return true;
}

static bool top_level(const char *p, const char *end)
{
    if (starts(p, end, "xn--"))
        return end - p >= 6;
    if (end - p < 2 || end - p > 63)
        return false;
    while (p < end && is_letter(*p))
        p++;
    return p == end;
}

static bool common_domain(const char *p, const char *end)
{
    static const char *const names[] = {"com", "net", "int", "edu", "gov", "org", "info", "mil"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((size_t)(end - p) == strlen(names[i]) && starts(p, end, names[i]))
            return true;
    return false;
}

static const char *scheme_end(const char *p, const char *end)
{
    return starts(p, end, "https://") ? p + 8 : starts(p, end, "http://") ? p + 7 : NULL;
}

static const char *ipv4_end(const char *p, const char *end)
{
    for (int i = 0; i < 4; i++) {
        const char *from = p;
        while (p < end && is_digit(*p) && p - from < 3)
            p++;
        if (p == from || (i < 3 && (p == end || *p++ != '.')))
            return NULL;
    }
    return p;
}

static const char *ipv6_end(const char *p, const char *end)
{
    int colons = 0, group = 0;
    if (p == end || *p++ != '[')
        return NULL;
    for (; p < end && *p != ']'; p++) {
        bool hex = is_digit(*p) || ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'f');
        group = *p == ':' ? 0 : group + 1;
        colons += *p == ':';
        if ((!hex && *p != ':') || group > 4 || colons > 8)
            return NULL;
    }
    return p < end && colons >= 2 ? p + 1 : NULL;
}

static bool is_url(const char *p, const char *end)
{
    const char *host = scheme_end(p, end), *last, *to;
    if (!host && starts(p, end, "www."))
        host = p + 4;
    if (host) {
        to = host_end(host, end);
        if (labels_fit(host, to, 1, &last) && top_level(last, to) && rest_fits(to, end))
            return true;
    }
    to = host_end(p, end);
    if (labels_fit(p, to, 2, &last) && last > p && common_domain(last, to) && rest_fits(to, end))
        return true;
    host = scheme_end(p, end);
    if (!host)
        return false;
    to = ipv4_end(host, end);
    to = to ? to : ipv6_end(host, end);
    return to && rest_fits(to, end);
}

static bool is_mail(const char *p, const char *end)
{
    const char *at = memrchr(p, '@', (size_t)(end - p)), *dot;
    if (!at || at == p || at + 1 == end || !is_word(at[1]))
        return false;
    for (const char *c = at + 1; c < end; c++)
        if (!is_word(*c) && *c != '.' && *c != '-')
            return false;
    dot = memrchr(at, '.', (size_t)(end - at));
    if (!dot || dot == at + 1 || dot + 1 == end)
        return false;
    for (const char *c = dot + 1; c < end; c++)
        if (!is_word(*c))
            return false;
    return true;
}

/* ---- what stands around it ---- */

static size_t opening(const char *p, const char *end)
{
    if (p < end && (*p == '(' || *p == '<'))
        return 1;
    return starts(p, end, "&lt;") ? 4 : 0;
}

static size_t closing(const char *p, const char *end)
{
    if (end > p && strchr(")>.,\n", end[-1]))
        return 1;
    return end - p >= 4 && !memcmp(end - 4, "&gt;", 4) ? 4 : 0;
}

static int count(const char *p, const char *end, const char *text)
{
    int n = 0;
    size_t bytes = strlen(text);
    while ((p = tpl_mem_find(p, (size_t)(end - p), text, bytes))) {
        n++;
        p += bytes;
    }
    return n;
}

/* A closing bracket belongs to the link if its opening one does. */
static void balance(struct word *w, const char *open, const char *close)
{
    int opened = count(w->middle, w->tail, open), left;
    if (opened <= count(w->middle, w->tail, close))
        return;
    left = count(w->tail, w->end, close);
    for (int i = 0; i < opened && i < left; i++)
        w->tail =
            tpl_mem_find(w->tail, (size_t)(w->end - w->tail), close, strlen(close)) + strlen(close);
}

static struct word take_apart(const char *p, const char *end)
{
    struct word w = {p, p, end, end};
    size_t n;
    while ((n = opening(w.middle, w.end)))
        w.middle += n;
    while ((n = closing(w.middle, w.tail)))
        w.tail -= n;
    balance(&w, "(", ")");
    balance(&w, "<", ">");
    balance(&w, "&lt;", "&gt;");
    return w;
}

/* ---- writing ---- */

static void put_link(struct links *x, const char *before, const char *p, const char *end,
                     bool attributes, int64_t limit, const char *shown)
{
    tpl_sb_text(x->b, "<a href=\"");
    tpl_sb_text(x->b, before);
    tpl_sb_put(x->b, p, (size_t)(end - p));
    tpl_sb_char(x->b, '"');
    if (attributes)
        tpl_sb_str(x->b, x->attributes);
    tpl_sb_char(x->b, '>');
    const struct str *text = tpl_str_ref(x->t, shown, (size_t)(end - shown));
    bool cut = limit >= 0 && (int64_t)text->chars > limit;
    if (cut)
        text = tpl_str_sub(x->t, text, 0, tpl_str_offset(x->t, text, (uint32_t)limit));
    tpl_sb_str(x->b, text);
    tpl_sb_text(x->b, cut ? "..." : "");
    tpl_sb_text(x->b, "</a>");
}

static bool other_scheme(struct links *x, const char *p, const char *end)
{
    for (uint32_t i = 0; x->schemes && i < x->schemes->n; i++) {
        const struct str *s = tpl_value_need_str(x->t, x->schemes->v[i], "a scheme");
        if ((size_t)(end - p) > s->bytes && !memcmp(p, s->p, s->bytes))
            return true;
    }
    return false;
}

static void put_word(struct links *x, const char *p, const char *end)
{
    struct word w = take_apart(p, end);
    const char *m = w.middle, *to = w.tail;
    size_t bytes = (size_t)(to - m);
    tpl_sb_put(x->b, w.head, (size_t)(m - w.head));
    if (is_url(m, to))
        put_link(x, !strncmp(m, "http://", 7) || !strncmp(m, "https://", 8) ? "" : "https://", m,
                 to, true, x->limit, m);
    else if (bytes > 7 && !memcmp(m, "mailto:", 7) && is_mail(m + 7, to))
        put_link(x, "", m, to, false, -1, m + 7);
    else if (bytes && memchr(m, '@', bytes) && *m != '@' && !memchr(m, ':', bytes) &&
             !(bytes >= 4 && !memcmp(m, "www.", 4)) && is_mail(m, to))
        put_link(x, "mailto:", m, to, false, -1, m);
    else if (other_scheme(x, m, to))
        put_link(x, "", m, to, true, -1, m);
    else
        tpl_sb_put(x->b, m, bytes);
    tpl_sb_put(x->b, to, (size_t)(w.end - to));
}

/* rel="noopener" and what else was asked for, sorted and without repetition */
static const struct str *rel_words(struct tpl *t, struct value rel, bool nofollow)
{
    struct list *l = tpl_list_new(t, 2);
    struct sb b;
    if (!ABSENT(rel))
        l = (struct list *)tpl_str_words(t, tpl_value_need_str(t, rel, "rel"), -1).u.l;
    if (nofollow)
        tpl_list_add(t, l, STR(tpl_str_text(t, "nofollow")));
    tpl_list_add(t, l, STR(tpl_str_text(t, "noopener")));
    struct value *keys = tpl_alloc(t, l->n * sizeof *keys);
    memcpy(keys, l->v, l->n * sizeof *keys);
    tpl_sort_values(t, l->v, keys, l->n, false);
    tpl_sb_init(&b, t);
    for (uint32_t i = 0; i < l->n; i++) {
        if (i && tpl_str_eq(l->v[i].u.s, l->v[i - 1].u.s))
            continue;
        tpl_sb_text(&b, i ? " " : "");
        tpl_sb_str(&b, l->v[i].u.s);
    }
    return tpl_sb_done(&b);
}

static const struct str *link_attributes(struct tpl *t, const struct value *v)
{
    struct sb b;
    tpl_sb_init(&b, t);
    tpl_sb_text(&b, " rel=\"");
    tpl_escape_to(&b, rel_words(t, v[3], GIVEN(v[1]) && tpl_value_true(t, v[1])));
    tpl_sb_char(&b, '"');
    if (!ABSENT(v[2]) && tpl_value_true(t, v[2])) {
        tpl_sb_text(&b, " target=\"");
        tpl_sb_str(&b, tpl_escape(t, v[2]));
        tpl_sb_char(&b, '"');
    }
    return tpl_sb_done(&b);
}

/* v: trim_url_limit, nofollow, target, rel, extra_schemes */
struct value tpl_urlize(struct tpl *t, struct value in, const struct value *v)
{
    struct sb b;
    const struct str *s = tpl_escape(t, in);
    struct links x = {.t = t, .b = &b, .attributes = link_attributes(t, v)};
    x.limit = ABSENT(v[0]) ? -1 : tpl_value_index(t, v[0]);
    x.schemes = ABSENT(v[4]) ? NULL : tpl_list_of(t, v[4]);
    tpl_sb_init(&b, t);
    for (const char *p = s->p, *end = s->p + s->bytes; p < end;) {
        const char *to = p;
        unsigned n;
        bool space = tpl_uni_is_space(uni_at(p, &n));
        while (to < end && tpl_uni_is_space(uni_at(to, &n)) == space)
            to += n;
        tpl_step(t, 1 + (uint64_t)(to - p) / 16);
        if (space)
            tpl_sb_put(&b, p, (size_t)(to - p));
        else
            put_word(&x, p, to);
        p = to;
    }
    return tpl_str_markup(t, tpl_sb_done(&b), t->autoescape);
}
