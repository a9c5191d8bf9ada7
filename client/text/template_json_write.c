/* template_json_write.c - the filter tojson: Python's json.dumps, with ensure_ascii off. */
#include "template_internal.h"

#include <math.h>

struct writer {
    struct sb b;
    bool ascii, sort, multiline;
    const struct str *indent, *item_separator, *key_separator;
    uint32_t level;
};

static void write_value(struct writer *w, struct value v);

static void write_escape(struct writer *w, uint32_t cp)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *known = cp < 0x80 ? memchr(from, (int)cp, sizeof from - 1) : NULL;
    if (known)
        tpl_sb_format(&w->b, "\\%c", to[known - from]);
    else if (cp < 0x10000)
        tpl_sb_format(&w->b, "\\u%04x", cp);
    else
        tpl_sb_format(&w->b, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                      0xdc00 + ((cp - 0x10000) & 0x3ff));
}

static void write_string(struct writer *w, const struct str *s)
{
    unsigned n;
    tpl_sb_char(&w->b, '"');
    for (size_t i = 0; i < s->bytes; i += n) {
        uint32_t cp = uni_at(s->p + i, &n);
        if (cp < 0x20 || cp == '"' || cp == '\\' || (w->ascii && cp >= 0x7f))
            write_escape(w, cp);
        else
            tpl_sb_put(&w->b, s->p + i, n);
    }
    tpl_sb_char(&w->b, '"');
}

static void write_float(struct sb *b, double f)
{
    if (isnan(f))
        tpl_sb_text(b, "NaN");
    else if (isinf(f))
        tpl_sb_text(b, f < 0 ? "-Infinity" : "Infinity");
    else
        tpl_num_repr_to(b, FLOAT(f));
}

static void new_line(struct writer *w)
{
    if (!w->multiline)
        return;
    tpl_sb_char(&w->b, '\n');
    tpl_sb_fill(&w->b, w->indent->p, w->indent->bytes, w->level);
}

static void write_list(struct writer *w, const struct list *l)
{
    if (!l->n) {
        tpl_sb_text(&w->b, "[]");
        return;
    }
    tpl_sb_char(&w->b, '[');
    w->level++;
    for (uint32_t i = 0; i < l->n; i++) {
        if (i)
            tpl_sb_str(&w->b, w->item_separator);
        new_line(w);
        write_value(w, l->v[i]);
    }
    w->level--;
    new_line(w);
    tpl_sb_char(&w->b, ']');
}

static void write_key(struct writer *w, struct value key)
{
    switch (key.kind) {
    case V_STR:
        write_string(w, key.u.s);
        return;
    case V_NONE:
    case V_BOOL:
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        tpl_sb_char(&w->b, '"');
        write_value(w, key);
        tpl_sb_char(&w->b, '"');
        return;
    default:
        tpl_error(w->b.t, "keys must be str, int, float, bool or None, not %s", tpl_type_name(key));
    }
}

static const struct entry *sorted(struct tpl *t, const struct dict *d)
{
    struct value *keys = tpl_alloc(t, d->n * sizeof *keys);
    struct value *at = tpl_alloc(t, d->n * sizeof *at);
    struct entry *e = tpl_alloc(t, d->n * sizeof *e);
    for (uint32_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        at[i] = INT(i);
    }
    tpl_sort_values(t, at, keys, d->n, false);
    for (uint32_t i = 0; i < d->n; i++)
        e[i] = d->e[at[i].u.i];
    return e;
}

static void write_dict(struct writer *w, const struct dict *d)
{
    if (!d->n) {
        tpl_sb_text(&w->b, "{}");
        return;
    }
    const struct entry *e = w->sort ? sorted(w->b.t, d) : d->e;
    tpl_sb_char(&w->b, '{');
    w->level++;
    for (uint32_t i = 0; i < d->n; i++) {
        if (i)
            tpl_sb_str(&w->b, w->item_separator);
        new_line(w);
        write_key(w, e[i].key);
        tpl_sb_str(&w->b, w->key_separator);
        write_value(w, e[i].value);
    }
    w->level--;
    new_line(w);
    tpl_sb_char(&w->b, '}');
}

static void write_value(struct writer *w, struct value v)
{
    tpl_step(w->b.t, 1);
    switch (v.kind) {
    case V_NONE:
        tpl_sb_text(&w->b, "null");
        break;
    case V_BOOL:
        tpl_sb_text(&w->b, v.u.b ? "true" : "false");
        break;
    case V_INT:
    case V_BIG:
        tpl_num_repr_to(&w->b, v);
        break;
    case V_FLOAT:
        write_float(&w->b, v.u.f);
        break;
    case V_STR:
        write_string(w, v.u.s);
        break;
    case V_LIST:
    case V_TUPLE:
        tpl_enter(w->b.t);
        write_list(w, v.u.l);
        tpl_leave(w->b.t);
        break;
    case V_DICT:
        tpl_enter(w->b.t);
        write_dict(w, v.u.d);
        tpl_leave(w->b.t);
        break;
    default:
        tpl_error(w->b.t, "Object of type %s is not JSON serializable", tpl_type_name(v));
    }
}

/* ---- arguments ---- */

static void take_indent(struct writer *w, struct value v)
{
    struct sb b;
    if (ABSENT(v))
        return;
    w->multiline = true;
    if (v.kind == V_STR) {
        w->indent = v.u.s;
        return;
    }
    if (v.kind == V_UNDEFINED)
        tpl_undefined_fail(w->b.t, v);
    int64_t n = tpl_value_index(w->b.t, v);
    tpl_sb_init(&b, w->b.t);
    tpl_sb_fill(&b, " ", 1, n < 0 ? 0 : (uint64_t)n);
    w->indent = tpl_sb_done(&b);
}

static void take_separators(struct writer *w, struct value v)
{
    struct tpl *t = w->b.t;
    w->item_separator = tpl_str_text(t, w->multiline ? "," : ", ");
    w->key_separator = tpl_str_text(t, ": ");
    if (ABSENT(v))
        return;
    const struct list *l = tpl_list_of(t, v);
    if (l->n != 2)
        tpl_error(t, "separators must be a pair of strings");
    w->item_separator = tpl_value_need_str(t, l->v[0], "a separator");
    w->key_separator = tpl_value_need_str(t, l->v[1], "a separator");
}

/* a: ensure_ascii, indent, separators, sort_keys */
struct value tpl_json_dumps(struct tpl *t, struct value v, const struct value *a)
{
    struct writer w = {.ascii = GIVEN(a[0]) && tpl_value_true(t, a[0]),
                       .sort = GIVEN(a[3]) && tpl_value_true(t, a[3])};
    tpl_sb_init(&w.b, t);
    if (v.kind != V_STR) /* which has no lines */
        take_indent(&w, a[1]);
    take_separators(&w, a[2]);
    write_value(&w, v);
    return tpl_sb_value(&w.b);
}
