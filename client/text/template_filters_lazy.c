/* template_filters_lazy.c - filters that are generators: map, select, reject, selectattr,
 * rejectattr, unique, batch, slice, items. What is wrong with their arguments shows when the first
 * element is asked for, as in Jinja2.
 */
#include "template_filter_attr.h"

struct lazy {
    const struct args *args; /* what the filter was called with */
    struct value v[3];       /* or these, bound */
    struct iter *source;
    bool attribute, negate; /* select and its kin */
    struct attr_path path;
    const struct filter *filter;
    const struct test *test;
    struct args rest; /* arguments of the filter or test */
    struct dict *seen;
    struct list *all, *open;
    int64_t at, count, each, extra, offset;
};

static struct lazy *lazy_new(struct tpl *t, const struct args *a)
{
    struct lazy *z = tpl_zalloc(t, sizeof *z);
    struct args *copy = tpl_alloc(t, sizeof *copy);
    *copy = *a;
    z->args = copy;
    return z;
}

static const struct value *keyword(const struct args *a, const char *name)
{
    for (uint32_t i = 0; i < a->n_kw; i++)
        if (tpl_str_is(a->kw[i].name, name))
            return &a->kw[i].value;
    return NULL;
}

static struct args rest_of(const struct args *a, uint32_t from)
{
    return (struct args){a->v + from, a->kw, a->n - from, a->n_kw};
}

static const struct str *callable_name(struct tpl *t, struct value v, const char *what)
{
    if (v.kind == V_STR)
        return v.u.s;
    if (v.kind == V_UNDEFINED)
        tpl_undefined_fail(t, v);
    const struct str *s = tpl_value_repr(t, v);
    tpl_error(t, "No %s named %.*s.", what, (int)s->bytes, s->p);
}

/* ---- map ---- */

static void start_map(struct tpl *t, struct lazy *z)
{
    const struct args *a = z->args;
    const struct value *attribute = keyword(a, "attribute"), *fallback = keyword(a, "default");
    if (!a->n && attribute) {
        if (a->n_kw > 1u + (fallback != NULL))
            tpl_error(t, "Unexpected keyword argument");
        z->path = tpl_attr_path(t, *attribute, fallback ? *fallback : MISSING, false);
        return;
    }
    if (!a->n)
        tpl_error(t, "map requires a filter argument");
    const struct str *name = callable_name(t, a->v[0], "filter");
    z->filter = tpl_filter_find(name);
    if (!z->filter)
        tpl_error(t, "No filter named '%.*s'.", (int)name->bytes, name->p);
    z->rest = rest_of(a, 1);
}

static bool next_map(struct tpl *t, struct iter *it, struct value *out)
{
    struct lazy *z = it->state;
    struct value v;
    if (!it->started) {
        it->started = true;
        if (!tpl_value_true(t, it->of))
            return false;
        start_map(t, z);
        z->source = tpl_iter_of(t, it->of);
    }
    if (!tpl_iter_next(t, z->source, &v))
        return false;
    *out =
        z->filter ? tpl_filter_apply(t, z->filter, v, &z->rest) : tpl_attr_follow(t, &z->path, v);
    return true;
}

static struct value f_map(struct tpl *t, struct value in, const struct args *a)
{
    return tpl_iter_generator(t, "generator", next_map, in, lazy_new(t, a));
}

/* ---- select and its kin ---- */

static void start_select(struct tpl *t, struct lazy *z)
{
    const struct args *a = z->args;
    uint32_t off = z->attribute;
    if (z->attribute && !a->n)
        tpl_error(t, "Missing parameter for attribute name");
    z->path = tpl_attr_path(t, z->attribute ? a->v[0] : MISSING, MISSING, false);
    if (a->n <= off)
        return;
    const struct str *name = callable_name(t, a->v[off], "test");
    z->test = tpl_test_find(name);
    if (!z->test)
        tpl_error(t, "No test named '%.*s'.", (int)name->bytes, name->p);
    z->rest = rest_of(a, off + 1);
}

static bool next_select(struct tpl *t, struct iter *it, struct value *out)
{
    struct lazy *z = it->state;
    if (!it->started) {
        it->started = true;
        if (!tpl_value_true(t, it->of))
            return false;
        start_select(t, z);
        z->source = tpl_iter_of(t, it->of);
    }
    while (tpl_iter_next(t, z->source, out)) {
        struct value v = tpl_attr_follow(t, &z->path, *out);
        bool holds = z->test ? tpl_test_apply(t, z->test, v, &z->rest) : tpl_value_true(t, v);
        if (holds != z->negate)
            return true;
    }
    return false;
}

static struct value select_of(struct tpl *t, struct value in, const struct args *a, bool attribute,
                              bool negate)
{
    struct lazy *z = lazy_new(t, a);
    z->attribute = attribute;
    z->negate = negate;
    return tpl_iter_generator(t, "generator", next_select, in, z);
}

static struct value f_select(struct tpl *t, struct value in, const struct args *a)
{
    return select_of(t, in, a, false, false);
}

static struct value f_reject(struct tpl *t, struct value in, const struct args *a)
{
    return select_of(t, in, a, false, true);
}

static struct value f_selectattr(struct tpl *t, struct value in, const struct args *a)
{
    return select_of(t, in, a, true, false);
}

static struct value f_rejectattr(struct tpl *t, struct value in, const struct args *a)
{
    return select_of(t, in, a, true, true);
}

/* ---- unique ---- */

static bool next_unique(struct tpl *t, struct iter *it, struct value *out)
{
    struct lazy *z = it->state;
    if (!z->source) {
        bool sensitive = GIVEN(z->v[0]) && tpl_value_true(t, z->v[0]);
        z->path = tpl_attr_path(t, z->v[1], MISSING, !sensitive);
        z->source = tpl_iter_of(t, it->of);
        z->seen = tpl_dict_new(t);
    }
    while (tpl_iter_next(t, z->source, out)) {
        struct value key = tpl_attr_follow(t, &z->path, *out);
        if (tpl_dict_get(t, z->seen, key))
            continue;
        tpl_dict_set(t, z->seen, key, NONE);
        return true;
    }
    return false;
}

static struct value bound(struct tpl *t, struct value in, const struct value *v, uint32_t n,
                          bool (*next)(struct tpl *, struct iter *, struct value *))
{
    struct lazy *z = tpl_zalloc(t, sizeof *z);
    memcpy(z->v, v, n * sizeof *v);
    return tpl_iter_generator(t, "generator", next, in, z);
}

static struct value f_unique(struct tpl *t, struct value in, const struct value *v)
{
    return bound(t, in, v, 2, next_unique);
}

/* ---- batch, slice ---- */

static void fill_up(struct tpl *t, struct list *l, struct value size, struct value with)
{
    if (ABSENT(with) || !tpl_value_compare(t, CMP_LT, INT(l->n), size))
        return;
    int64_t n = tpl_value_index(t, size);
    if (n > UINT32_MAX / 4)
        tpl_limit(t, "a list of more than %u elements", UINT32_MAX / 4);
    while (l->n < n)
        tpl_list_add(t, l, with);
}

static bool next_batch(struct tpl *t, struct iter *it, struct value *out)
{
    struct lazy *z = it->state;
    struct value v;
    if (!z->source) {
        z->source = tpl_iter_of(t, it->of);
        z->open = tpl_list_new(t, 0);
    }
    while (tpl_iter_next(t, z->source, &v)) {
        struct list *full = tpl_value_eq(t, INT(z->open->n), z->v[0]) ? z->open : NULL;
        if (full)
            z->open = tpl_list_new(t, 0);
        tpl_list_add(t, z->open, v);
        if (full) {
            *out = LIST(full);
            return true;
        }
    }
    if (!z->open->n)
        return false;
    fill_up(t, z->open, z->v[0], z->v[1]);
    *out = LIST(z->open);
    z->open = tpl_list_new(t, 0);
    return true;
}

static struct value f_batch(struct tpl *t, struct value in, const struct value *v)
{
    return bound(t, in, v, 2, next_batch);
}

static void start_slice(struct tpl *t, struct lazy *z, struct value in)
{
    z->all = tpl_list_of(t, in);
    z->each = tpl_value_index(t, tpl_op_binary(t, N_FLOORDIV, INT(z->all->n), z->v[0]));
    z->extra = tpl_value_index(t, tpl_op_mod(t, INT(z->all->n), z->v[0]));
    z->count = tpl_value_index(t, z->v[0]);
}

static bool next_slice(struct tpl *t, struct iter *it, struct value *out)
{
    struct lazy *z = it->state;
    if (!it->started) {
        it->started = true;
        start_slice(t, z, it->of);
    }
    if (z->at >= z->count)
        return false;
    int64_t start = z->offset + z->at * z->each;
    z->offset += z->at < z->extra;
    int64_t end = z->offset + (z->at + 1) * z->each;
    struct list *l = tpl_list_new(t, 0);
    for (int64_t i = start; i < end && i < z->all->n; i++)
        tpl_list_add(t, l, z->all->v[i]);
    if (!ABSENT(z->v[1]) && z->at >= z->extra)
        tpl_list_add(t, l, z->v[1]);
    z->at++;
    *out = LIST(l);
    return true;
}

static struct value f_slice(struct tpl *t, struct value in, const struct value *v)
{
    return bound(t, in, v, 2, next_slice);
}

/* ---- items ---- */

static bool next_pair(struct tpl *t, struct iter *it, struct value *out)
{
    if (it->of.kind == V_UNDEFINED)
        return false;
    if (it->of.kind != V_DICT)
        tpl_error(t, "Can only get item pairs from a mapping.");
    const struct dict *d = it->of.u.d;
    if (it->at >= d->n)
        return false;
    struct value pair[] = {d->e[it->at].key, d->e[it->at].value};
    it->at++;
    *out = tpl_tuple_of(t, 2, pair);
    return true;
}

static struct value f_items(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    return tpl_iter_generator(t, "generator", next_pair, in, NULL);
}

const struct filter tpl_filters_lazy[] = {
    {"batch", {{"linecount", "fill_with"}, 1, false}, f_batch, NULL},
    {"items", {{0}, 0, false}, f_items, NULL},
    {"map", {{0}, 0, false}, NULL, f_map},
    {"reject", {{0}, 0, false}, NULL, f_reject},
    {"rejectattr", {{0}, 0, false}, NULL, f_rejectattr},
    {"select", {{0}, 0, false}, NULL, f_select},
    {"selectattr", {{0}, 0, false}, NULL, f_selectattr},
    {"slice", {{"slices", "fill_with"}, 1, false}, f_slice, NULL},
    {"unique", {{"case_sensitive", "attribute"}, 0, false}, f_unique, NULL},
    {NULL, {{0}, 0, false}, NULL, NULL},
};
