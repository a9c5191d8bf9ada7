/* template_markup.c - text for HTML and URLs: escaping, Markup, and the filters about them.
 *
 * tpl_escape() gives a Markup: a string that counts as safe, and that escapes what is joined to it.
 */
#include "template_internal.h"

/* ---- escaping ---- */

static const char *entity(char c)
{
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&#34;";
    case '\'':
        return "&#39;";
    default:
        return NULL;
    }
}

void tpl_escape_to(struct sb *b, const struct str *s)
{
    size_t from = 0;
    for (size_t i = 0; i < s->bytes; i++) {
        const char *text = entity(s->p[i]);
        if (!text)
            continue;
        tpl_sb_put(b, s->p + from, i - from);
        tpl_sb_text(b, text);
        from = i + 1;
    }
    tpl_sb_put(b, s->p + from, s->bytes - from);
}

const struct str *tpl_escape(struct tpl *t, struct value v)
{
    struct sb b;
    if (v.kind == V_STR && v.u.s->markup)
        return v.u.s;
    tpl_sb_init(&b, t);
    tpl_escape_to(&b, tpl_value_soft(t, v));
    return tpl_str_markup(t, tpl_sb_done(&b), true).u.s;
}

static struct value f_escape(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    return STR(tpl_escape(t, in));
}

static struct value f_forceescape(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    return STR(tpl_escape(t, STR(tpl_value_str(t, in))));
}

static struct value f_safe(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    return tpl_str_markup(t, tpl_value_soft(t, in), true);
}

/* ---- taking markup away ---- */

static const struct {
    const char *name, *text;
} entities[] = {
    {"amp", "&"},         {"lt", "<"},         {"gt", ">"},          {"quot", "\""},
    {"apos", "'"},        {"nbsp", "\u00a0"},  {"copy", "\u00a9"},   {"reg", "\u00ae"},
    {"laquo", "\u00ab"},  {"raquo", "\u00bb"}, {"middot", "\u00b7"}, {"times", "\u00d7"},
    {"euro", "\u20ac"},   {"ndash", "\u2013"}, {"mdash", "\u2014"},  {"lsquo", "\u2018"},
    {"rsquo", "\u2019"},  {"ldquo", "\u201c"}, {"rdquo", "\u201d"},  {"bull", "\u2022"},
    {"hellip", "\u2026"}, {"trade", "\u2122"}, {"deg", "\u00b0"},    {"sect", "\u00a7"},
    {"para", "\u00b6"},
};

static int digit_value(char c, int base)
{
    int v = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' ? (c | 0x20) - 'a' + 10 : 99;
    return v < base ? v : -1;
}

/* `&#10;` or `&#xa;` at p: behind it, or NULL. */
static const char *numeric_entity(struct sb *b, const char *p, const char *end)
{
    int base = 10;
    uint32_t cp = 0;
    p += 2;
    if (p < end && (*p | 0x20) == 'x') {
        base = 16;
        p++;
    }
    const char *from = p;
    for (; p < end && digit_value(*p, base) >= 0; p++)
        cp = cp > 0x110000 ? cp : cp * (uint32_t)base + (uint32_t)digit_value(*p, base);
    if (p == from)
        return NULL;
    bool valid = cp && cp <= 0x10ffff && (cp < 0xd800 || cp > 0xdfff);
    tpl_sb_cp(b, valid ? cp : 0xfffd);
    return p < end && *p == ';' ? p + 1 : p;
}

static const char *named_entity(struct sb *b, const char *p, const char *end)
{
    for (size_t i = 0; i < sizeof entities / sizeof *entities; i++) {
        size_t n = strlen(entities[i].name);
        if ((size_t)(end - p) < n + 2 || memcmp(p + 1, entities[i].name, n) || p[n + 1] != ';')
            continue;
        tpl_sb_text(b, entities[i].text);
        return p + n + 2;
    }
    return NULL;
}

/* Numeric entities and the common named ones. */
static const struct str *unescape(struct tpl *t, const struct str *s)
{
    struct sb b;
    const char *p = s->p, *end = s->p + s->bytes;
    tpl_sb_init(&b, t);
    while (p < end) {
        const char *at = memchr(p, '&', (size_t)(end - p)), *after;
        at = at ? at : end;
        tpl_sb_put(&b, p, (size_t)(at - p));
        p = at;
        if (p == end)
            break;
        after = end - p > 2 && p[1] == '#' ? numeric_entity(&b, p, end) : named_entity(&b, p, end);
        if (!after)
            tpl_sb_char(&b, *p);
        p = after ? after : p + 1;
    }
    return tpl_sb_done(&b);
}

/* Behind the tag or comment at p, or NULL if it does not end. */
static const char *tag_behind(const char *p, const char *end)
{
    size_t left = (size_t)(end - p);
    if (left >= 4 && !memcmp(p, "<!--", 4)) {
        const char *close = tpl_mem_find(p + 4, left - 4, "-->", 3);
        return close ? close + 3 : NULL;
    }
    const char *close = memchr(p, '>', left);
    return close ? close + 1 : NULL;
}

static const struct str *striptags(struct tpl *t, const struct str *s)
{
    struct sb b, joined;
    const char *p = s->p, *end = s->p + s->bytes;
    tpl_sb_init(&b, t);
    for (;;) {
        const char *tag = memchr(p, '<', (size_t)(end - p));
        const char *after = tag ? tag_behind(tag, end) : NULL;
        if (!after)
            break;
        tpl_sb_put(&b, p, (size_t)(tag - p));
        p = after;
    }
    tpl_sb_put(&b, p, (size_t)(end - p));
    struct value words = tpl_str_words(t, tpl_sb_done(&b), -1);
    tpl_sb_init(&joined, t);
    for (uint32_t i = 0; i < words.u.l->n; i++) {
        tpl_sb_text(&joined, i ? " " : "");
        tpl_sb_str(&joined, words.u.l->v[i].u.s);
    }
    return unescape(t, tpl_sb_done(&joined));
}

static struct value f_striptags(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    return STR(striptags(t, tpl_value_str(t, in)));
}

static struct value m_striptags(struct tpl *t, struct value self, const struct args *a)
{
    if (a->n || a->n_kw)
        tpl_error(t, "striptags() takes no arguments");
    return STR(striptags(t, self.u.s));
}

static struct value m_unescape(struct tpl *t, struct value self, const struct args *a)
{
    if (a->n || a->n_kw)
        tpl_error(t, "unescape() takes no arguments");
    return STR(unescape(t, self.u.s));
}

const struct method tpl_markup_methods[] = {
    {"striptags", m_striptags}, {"unescape", m_unescape}, {NULL, NULL}};

/* ---- attributes ---- */

static void xml_attribute(struct sb *b, const struct entry *e, const char *before)
{
    const struct str *key = tpl_value_need_str(b->t, e->key, "an attribute name");
    for (uint32_t i = 0; i < key->bytes; i++)
        if (strchr(" \t\n\r\f\v/>=", key->p[i]) && key->p[i])
            tpl_error(b->t, "Invalid character in attribute name: '%.*s'", (int)key->bytes, key->p);
    tpl_sb_text(b, before);
    tpl_sb_str(b, tpl_escape(b->t, e->key));
    tpl_sb_text(b, "=\"");
    tpl_sb_str(b, tpl_escape(b->t, e->value));
    tpl_sb_char(b, '"');
}

static struct value f_xmlattr(struct tpl *t, struct value in, const struct value *v)
{
    bool autospace = !GIVEN(v[0]) || tpl_value_true(t, v[0]);
    struct sb b;
    if (in.kind == V_UNDEFINED)
        tpl_undefined_fail(t, in);
    if (in.kind != V_DICT)
        tpl_error(t, "'%s' object has no attribute 'items'", tpl_type_name(in));
    tpl_sb_init(&b, t);
    for (uint32_t i = 0; i < in.u.d->n; i++) {
        const struct entry *e = &in.u.d->e[i];
        if (e->value.kind != V_NONE && e->value.kind != V_UNDEFINED)
            xml_attribute(&b, e, b.n || autospace ? " " : "");
    }
    return tpl_str_markup(t, tpl_sb_done(&b), t->autoescape);
}

/* ---- URLs ---- */

static void url_quote(struct sb *b, struct value v, bool query)
{
    const struct str *s = tpl_value_soft(b->t, v);
    for (uint32_t i = 0; i < s->bytes; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query);
        if (plain)
            tpl_sb_char(b, (char)c);
        else if (c == ' ' && query)
            tpl_sb_char(b, '+');
        else
            tpl_sb_format(b, "%%%02X", c);
    }
}

static struct value f_urlencode(struct tpl *t, struct value in, const struct value *v)
{
    struct sb b;
    struct value item;
    (void)v;
    tpl_sb_init(&b, t);
    if (in.kind == V_STR || !tpl_value_iterable(in)) {
        url_quote(&b, in, false);
        return tpl_sb_value(&b);
    }
    struct view *view = tpl_alloc(t, sizeof *view);
    *view = (struct view){VIEW_ITEMS, in.u.d};
    struct iter *it =
        tpl_iter_of(t, in.kind == V_DICT ? (struct value){V_VIEW, {.view = view}} : in);
    for (bool first = true; tpl_iter_next(t, it, &item); first = false) {
        const struct list *pair = tpl_list_of(t, item);
        if (pair->n != 2)
            tpl_error(t, "expected pairs of a key and a value");
        tpl_sb_text(&b, first ? "" : "&");
        url_quote(&b, pair->v[0], true);
        tpl_sb_char(&b, '=');
        url_quote(&b, pair->v[1], true);
    }
    return tpl_sb_value(&b);
}

const struct filter tpl_filters_markup[] = {
    {"e", {{0}, 0, true}, f_escape, NULL},
    {"escape", {{0}, 0, true}, f_escape, NULL},
    {"forceescape", {{0}, 0, false}, f_forceescape, NULL},
    {"pprint", {{0}, 0, false}, tpl_pretty_print, NULL},
    {"safe", {{0}, 0, false}, f_safe, NULL},
    {"striptags", {{0}, 0, false}, f_striptags, NULL},
    {"urlencode", {{0}, 0, false}, f_urlencode, NULL},
    {"urlize",
     {{"trim_url_limit", "nofollow", "target", "rel", "extra_schemes"}, 0, false},
     tpl_urlize,
     NULL},
    {"xmlattr", {{"autospace"}, 0, false}, f_xmlattr, NULL},
    {NULL, {{0}, 0, false}, NULL, NULL},
};
