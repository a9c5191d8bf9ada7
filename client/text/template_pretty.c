/* template_pretty.c - the filter pprint: repr() over several lines where it is longer than 80
 * characters, dicts sorted by their keys, as Python's pprint.pformat lays it out.
 */
#include "template_internal.h"

#define WIDTH 80

static void pretty(struct sb *b, struct value v, int64_t indent, int64_t allowance, bool top);

/* ---- on one line ---- */

static bool sortable(const struct dict *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        struct value a = d->e[0].key, k = d->e[i].key;
        if (!(a.kind == V_STR && k.kind == V_STR) && !(tpl_value_number(a) && tpl_value_number(k)))
            return false;
    }
    return true;
}

/* A copy in order of its keys, where these can be compared. */
static struct dict *by_key(struct tpl *t, const struct dict *d)
{
    struct dict *copy = tpl_dict_new(t);
    struct value *keys = tpl_alloc(t, d->n * sizeof *keys);
    struct value *values = tpl_alloc(t, d->n * sizeof *values);
    for (uint32_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        values[i] = d->e[i].value;
    }
    if (sortable(d))
        tpl_sort_values(t, values, keys, d->n, false);
    for (uint32_t i = 0; i < d->n; i++)
        tpl_dict_set(t, copy, keys[i], values[i]);
    return copy;
}

/* The same value with every dict in it sorted. */
static struct value sorted(struct tpl *t, struct value v)
{
    tpl_enter(t);
    if (v.kind == V_LIST || v.kind == V_TUPLE) {
        struct list *l = tpl_list_new(t, v.u.l->n);
        for (uint32_t i = 0; i < v.u.l->n; i++)
            tpl_list_add(t, l, sorted(t, v.u.l->v[i]));
        v.u.l = l;
    } else if (v.kind == V_DICT) {
        struct dict *d = by_key(t, v.u.d);
        for (uint32_t i = 0; i < d->n; i++)
            d->e[i].value = sorted(t, d->e[i].value);
        v.u.d = d;
    }
    tpl_leave(t);
    return v;
}

/* ---- on several ---- */

static void next_line(struct sb *b, int64_t indent)
{
    tpl_sb_char(b, '\n');
    tpl_sb_fill(b, " ", 1, indent < 0 ? 0 : (uint64_t)indent);
}

static void pretty_list(struct sb *b, const struct list *l, bool tuple, int64_t indent,
                        int64_t allowance)
{
    const char *close = !tuple ? "]" : l->n == 1 ? ",)" : ")";
    allowance += (int64_t)strlen(close);
    tpl_sb_char(b, tuple ? '(' : '[');
    for (uint32_t i = 0; i < l->n; i++) {
        if (i) {
            tpl_sb_char(b, ',');
            next_line(b, indent + 1);
        }
        pretty(b, l->v[i], indent + 1, i + 1 == l->n ? allowance : 1, false);
    }
    tpl_sb_text(b, close);
}

static void pretty_dict(struct sb *b, const struct dict *d, int64_t indent, int64_t allowance)
{
    tpl_sb_char(b, '{');
    for (uint32_t i = 0; i < d->n; i++) {
        const struct str *key = tpl_value_repr(b->t, d->e[i].key);
        if (i) {
            tpl_sb_char(b, ',');
            next_line(b, indent + 1);
        }
        tpl_sb_str(b, key);
        tpl_sb_text(b, ": ");
        pretty(b, d->e[i].value, indent + 3 + key->chars, i + 1 == d->n ? allowance + 1 : 1, false);
    }
    tpl_sb_char(b, '}');
}

/* `\S*\s*` at p */
static const char *word_end(const char *p, const char *end)
{
    unsigned n;
    while (p < end && !tpl_uni_is_space(uni_at(p, &n)))
        p += n;
    while (p < end && tpl_uni_is_space(uni_at(p, &n)))
        p += n;
    return p;
}

struct pieces {
    struct tpl *t;
    struct list *l; /* reprs */
    int64_t width, allowance;
};

static const struct str *repr_of(struct tpl *t, const char *from, const char *to)
{
    return tpl_value_repr(t, STR(tpl_str_ref(t, from, (size_t)(to - from))));
}

/* A line that is too long, cut between words. */
static void cut_line(struct pieces *x, const struct str *line, bool last)
{
    const char *p = line->p, *end = line->p + line->bytes, *from = p;
    while (p < end) {
        const char *next = word_end(p, end);
        int64_t width = x->width - (last && next == end ? x->allowance : 0);
        if (repr_of(x->t, from, next)->chars > width && p > from) {
            tpl_list_add(x->t, x->l, STR(repr_of(x->t, from, p)));
            from = p;
        }
        p = next;
    }
    if (from < end)
        tpl_list_add(x->t, x->l, STR(repr_of(x->t, from, end)));
}

static void pretty_str(struct sb *b, const struct str *s, int64_t indent, int64_t allowance,
                       bool top)
{
    const struct list *lines = tpl_str_lines(b->t, s, true).u.l;
    indent += top;
    allowance += top;
    struct pieces x = {b->t, tpl_list_new(b->t, 0), WIDTH - indent, allowance};
    for (uint32_t i = 0; i < lines->n; i++) {
        bool last = i + 1 == lines->n;
        const struct str *whole = tpl_value_repr(b->t, lines->v[i]);
        if (whole->chars <= x.width - (last ? allowance : 0))
            tpl_list_add(b->t, x.l, STR(whole));
        else
            cut_line(&x, lines->v[i].u.s, last);
    }
    bool several = x.l->n > 1;
    tpl_sb_text(b, several && top ? "(" : "");
    for (uint32_t i = 0; i < x.l->n; i++) {
        if (i)
            next_line(b, indent);
        tpl_sb_str(b, x.l->v[i].u.s);
    }
    tpl_sb_text(b, several && top ? ")" : "");
}

static void pretty(struct sb *b, struct value v, int64_t indent, int64_t allowance, bool top)
{
    const struct str *line = tpl_value_repr(b->t, v);
    bool fits = line->chars <= WIDTH - indent - allowance;
    tpl_enter(b->t);
    if (!fits && (v.kind == V_LIST || v.kind == V_TUPLE))
        pretty_list(b, v.u.l, v.kind == V_TUPLE, indent, allowance);
    else if (!fits && v.kind == V_DICT)
        pretty_dict(b, v.u.d, indent, allowance);
    else if (!fits && v.kind == V_STR && v.u.s->bytes && !v.u.s->markup)
        pretty_str(b, v.u.s, indent, allowance, top);
    else
        tpl_sb_str(b, line);
    tpl_leave(b->t);
}

struct value tpl_pretty_print(struct tpl *t, struct value in, const struct value *v)
{
    struct sb b;
    (void)v;
    tpl_sb_init(&b, t);
    pretty(&b, sorted(t, in), 0, 0, true);
    return tpl_sb_value(&b);
}
