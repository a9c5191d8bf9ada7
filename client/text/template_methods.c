/* template_methods.c - the methods of dict, list, tuple, range, numbers, loops and cyclers.
 *
 * Methods that would change a list or dict are not here: template_attr.c refuses them by name.
 */
#include "template_internal.h"

#include <math.h>

static void no_arguments(struct tpl *t, const char *who, const struct args *a)
{
    if (a->n || a->n_kw)
        tpl_error(t, "%s() takes no arguments (%u given)", who, a->n + a->n_kw);
}

/* ---- dict ---- */

static struct value d_get(struct tpl *t, struct value self, const struct args *a)
{
    static const struct signature signature = {{"key", "default"}, 1, true};
    struct value v[2];
    tpl_args_bind(t, "get", &signature, a, v);
    const struct value *found = tpl_dict_get(t, self.u.d, v[0]);
    return found ? *found : GIVEN(v[1]) ? v[1] : NONE;
}

static struct value view(struct tpl *t, struct value self, const struct args *a, const char *who,
                         enum view_kind kind)
{
    no_arguments(t, who, a);
    struct view *view = tpl_alloc(t, sizeof *view);
    *view = (struct view){kind, self.u.d};
    return (struct value){V_VIEW, {.view = view}};
}

static struct value d_keys(struct tpl *t, struct value self, const struct args *a)
{
    return view(t, self, a, "keys", VIEW_KEYS);
}

static struct value d_values(struct tpl *t, struct value self, const struct args *a)
{
    return view(t, self, a, "values", VIEW_VALUES);
}

static struct value d_items(struct tpl *t, struct value self, const struct args *a)
{
    return view(t, self, a, "items", VIEW_ITEMS);
}

static struct value d_copy(struct tpl *t, struct value self, const struct args *a)
{
    no_arguments(t, "copy", a);
    return DICT(tpl_dict_copy(t, self.u.d));
}

static struct value d_fromkeys(struct tpl *t, struct value self, const struct args *a)
{
    static const struct signature signature = {{"iterable", "value"}, 1, true};
    struct value v[2], key;
    (void)self;
    tpl_args_bind(t, "fromkeys", &signature, a, v);
    struct dict *d = tpl_dict_new(t);
    struct iter *it = tpl_iter_of(t, v[0]);
    while (tpl_iter_next(t, it, &key))
        tpl_dict_set(t, d, key, GIVEN(v[1]) ? v[1] : NONE);
    return DICT(d);
}

static const struct method dict_methods[] = {
    {"get", d_get},   {"keys", d_keys},         {"values", d_values}, {"items", d_items},
    {"copy", d_copy}, {"fromkeys", d_fromkeys}, {NULL, NULL},
};

/* ---- list, tuple, range ---- */

static struct value l_count(struct tpl *t, struct value self, const struct args *a)
{
    static const struct signature signature = {{"value"}, 1, true};
    struct value wanted, v;
    int64_t n = 0;
    tpl_args_bind(t, "count", &signature, a, &wanted);
    struct iter *it = tpl_iter_of(t, self);
    while (tpl_iter_next(t, it, &v))
        n += tpl_value_same(v, wanted) || tpl_value_eq(t, v, wanted);
    return INT(n);
}

static int64_t position(int64_t i, int64_t n)
{
    return i >= 0 ? i : i + n < 0 ? 0 : i + n;
}

static struct value l_index(struct tpl *t, struct value self, const struct args *a)
{
    static const struct signature signature = {{"value", "start", "stop"}, 1, true};
    struct value v[3];
    tpl_args_bind(t, "index", &signature, a, v);
    int64_t n = tpl_value_length(t, self);
    int64_t start = GIVEN(v[1]) ? position(tpl_value_index(t, v[1]), n) : 0;
    int64_t stop = GIVEN(v[2]) ? position(tpl_value_index(t, v[2]), n) : n;
    for (int64_t i = start; i < stop && i < n; i++) {
        struct value item = tpl_value_getitem(t, self, INT(i));
        if (tpl_value_same(item, v[0]) || tpl_value_eq(t, item, v[0]))
            return INT(i);
    }
    tpl_error(t, "the value is not in the %s", tpl_type_name(self));
}

static struct value l_copy(struct tpl *t, struct value self, const struct args *a)
{
    no_arguments(t, "copy", a);
    return LIST(tpl_list_of(t, self));
}

static const struct method list_methods[] = {
    {"count", l_count}, {"index", l_index}, {"copy", l_copy}, {NULL, NULL}};
static const struct method tuple_methods[] = {{"count", l_count}, {"index", l_index}, {NULL, NULL}};

/* ---- numbers ---- */

static struct value n_bit_length(struct tpl *t, struct value self, const struct args *a)
{
    no_arguments(t, "bit_length", a);
    return INT(tpl_num_bit_length(self));
}

static struct value n_bit_count(struct tpl *t, struct value self, const struct args *a)
{
    int64_t n = 0;
    no_arguments(t, "bit_count", a);
    const struct str *bits = tpl_num_digits(t, self, 2, false);
    for (uint32_t i = 0; i < bits->bytes; i++)
        n += bits->p[i] == '1';
    return INT(n);
}

static struct value n_conjugate(struct tpl *t, struct value self, const struct args *a)
{
    no_arguments(t, "conjugate", a);
    return tpl_num_as_int(self);
}

static struct value n_is_integer(struct tpl *t, struct value self, const struct args *a)
{
    no_arguments(t, "is_integer", a);
    return BOOL(isfinite(self.u.f) && self.u.f == floor(self.u.f));
}

static struct value n_as_integer_ratio(struct tpl *t, struct value self, const struct args *a)
{
    no_arguments(t, "as_integer_ratio", a);
    struct value pair[] = {tpl_num_as_int(self), INT(1)};
    if (self.kind != V_FLOAT)
        return tpl_tuple_of(t, 2, pair);
    double f = self.u.f;
    while (isfinite(f) && f != floor(f)) {
        f *= 2;
        pair[1] = tpl_num_arith(t, N_MUL, pair[1], INT(2));
    }
    pair[0] = tpl_num_from_double(t, f);
    return tpl_tuple_of(t, 2, pair);
}

static const struct method int_methods[] = {
    {"bit_length", n_bit_length},
    {"bit_count", n_bit_count},
    {"conjugate", n_conjugate},
    {"as_integer_ratio", n_as_integer_ratio},
    {NULL, NULL},
};
static const struct method float_methods[] = {
    {"is_integer", n_is_integer},
    {"conjugate", n_conjugate},
    {"as_integer_ratio", n_as_integer_ratio},
    {NULL, NULL},
};

/* ---- loops, cyclers ---- */

static struct value loop_cycle(struct tpl *t, struct value self, const struct args *a)
{
    if (a->n_kw)
        tpl_error(t, "cycle() takes no keyword arguments");
    if (!a->n)
        tpl_error(t, "no items for cycling given");
    return a->v[self.u.loop->index0 % a->n];
}

static struct value loop_changed(struct tpl *t, struct value self, const struct args *a)
{
    if (a->n_kw)
        tpl_error(t, "changed() takes no keyword arguments");
    struct loop *loop = self.u.loop;
    struct value v = tpl_tuple_of(t, a->n, a->v);
    if (GIVEN(loop->last_changed) && tpl_value_eq(t, loop->last_changed, v))
        return BOOL(false);
    loop->last_changed = v;
    return BOOL(true);
}

static const struct method loop_methods[] = {
    {"cycle", loop_cycle}, {"changed", loop_changed}, {NULL, NULL}};

static struct value cycler_next(struct tpl *t, struct value self, const struct args *a)
{
    struct cycler *c = self.u.cycler;
    no_arguments(t, "next", a);
    struct value v = c->items->v[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}

static struct value cycler_reset(struct tpl *t, struct value self, const struct args *a)
{
    no_arguments(t, "reset", a);
    self.u.cycler->at = 0;
    return NONE;
}

static const struct method cycler_methods[] = {
    {"next", cycler_next}, {"reset", cycler_reset}, {NULL, NULL}};

/* ---- all of them ---- */

const struct method *tpl_method_find(struct value self, const struct str *name)
{
    static const struct method *const of_kind[] = {
        [V_BOOL] = int_methods,    [V_INT] = int_methods,       [V_BIG] = int_methods,
        [V_FLOAT] = float_methods, [V_STR] = tpl_str_methods,   [V_LIST] = list_methods,
        [V_TUPLE] = tuple_methods, [V_DICT] = dict_methods,     [V_RANGE] = tuple_methods,
        [V_LOOP] = loop_methods,   [V_CYCLER] = cycler_methods, [V_BLOCK] = NULL,
    };
    const struct method *m = of_kind[self.kind];
    for (; m && m->name; m++)
        if (tpl_str_is(name, m->name))
            return m;
    if (self.kind != V_STR || !self.u.s->markup)
        return NULL;
    for (m = tpl_markup_methods; m->name; m++)
        if (tpl_str_is(name, m->name))
            return m;
    return NULL;
}
