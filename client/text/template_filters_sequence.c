/* template_filters_sequence.c - filters of sequences and dicts whose result is made at once. */
#include "template_filter_attr.h"

#include <time.h>

/* ---- attribute paths ---- */

static struct value path_part(struct tpl *t, const struct str *s)
{
    struct value v;
    if (tpl_str_all(t, s, UNI_DIGIT) && tpl_num_parse_int(t, s->p, s->bytes, 10, &v))
        return v;
    return STR(s);
}

static struct attr_path path_of(struct tpl *t, struct value attribute)
{
    struct attr_path path = {.parts = tpl_list_new(t, 1), .fallback = MISSING};
    if (ABSENT(attribute))
        return path;
    if (attribute.kind != V_STR) {
        tpl_list_add(t, path.parts, attribute);
        return path;
    }
    struct value names = tpl_str_split(t, attribute.u.s, STR(tpl_str_text(t, ".")), -1, false);
    for (uint32_t i = 0; i < names.u.l->n; i++)
        tpl_list_add(t, path.parts, path_part(t, names.u.l->v[i].u.s));
    return path;
}

struct attr_path tpl_attr_path(struct tpl *t, struct value attribute, struct value fallback,
                               bool ignore_case)
{
    struct attr_path path = path_of(t, attribute);
    path.fallback = ABSENT(fallback) ? MISSING : fallback;
    path.ignore_case = ignore_case;
    return path;
}

struct value tpl_attr_follow(struct tpl *t, const struct attr_path *path, struct value v)
{
    for (uint32_t i = 0; i < path->parts->n; i++) {
        v = tpl_value_getitem(t, v, path->parts->v[i]);
        if (GIVEN(path->fallback) && v.kind == V_UNDEFINED)
            v = path->fallback;
    }
    if (path->ignore_case && v.kind == V_STR)
        return STR(tpl_str_lower(t, v.u.s));
    return v;
}

/* sorted(reverse=): an integer */
static bool in_reverse(struct tpl *t, struct value v)
{
    return GIVEN(v) && tpl_value_index(t, v);
}

static bool truth(struct tpl *t, struct value v)
{
    return GIVEN(v) && tpl_value_true(t, v);
}

/* ---- sorting ---- */

struct pair {
    struct value key, value;
};

static bool before(struct tpl *t, const struct pair *a, const struct pair *b, bool reverse)
{
    return reverse ? tpl_value_compare(t, CMP_LT, b->key, a->key)
                   : tpl_value_compare(t, CMP_LT, a->key, b->key);
}

/* Merges two sorted runs: [from, middle) and [middle, to). */
static void merge(struct tpl *t, struct pair *v, struct pair *space, uint32_t from, uint32_t middle,
                  uint32_t to, bool reverse)
{
    uint32_t i = from, j = middle;
    for (uint32_t k = from; k < to; k++) {
        bool right = i == middle || (j < to && before(t, &v[j], &v[i], reverse));
        space[k] = right ? v[j++] : v[i++];
    }
    memcpy(v + from, space + from, (to - from) * sizeof *v);
}

void tpl_sort_values(struct tpl *t, struct value *values, struct value *keys, uint32_t n,
                     bool reverse)
{
    struct pair *v = tpl_alloc(t, n * sizeof *v), *space = tpl_alloc(t, n * sizeof *v);
    for (uint32_t i = 0; i < n; i++)
        v[i] = (struct pair){keys[i], values[i]};
    for (uint64_t width = 1; width < n; width *= 2)
        for (uint64_t from = 0; from + width < n; from += 2 * width) {
            uint64_t to = from + 2 * width < n ? from + 2 * width : n;
            merge(t, v, space, (uint32_t)from, (uint32_t)(from + width), (uint32_t)to, reverse);
        }
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = v[i].key;
        values[i] = v[i].value;
    }
}

/* "a,b.c": a key of several attributes. */
static struct attr_path *paths_of(struct tpl *t, struct value attribute, bool ignore_case,
                                  uint32_t *n)
{
    struct list *l = tpl_list_new(t, 1);
    if (attribute.kind == V_STR)
        l = (struct list *)tpl_str_split(t, attribute.u.s, STR(tpl_str_text(t, ",")), -1, false)
                .u.l;
    else
        tpl_list_add(t, l, attribute);
    struct attr_path *paths = tpl_alloc(t, l->n * sizeof *paths);
    for (uint32_t i = 0; i < l->n; i++)
        paths[i] = tpl_attr_path(t, l->v[i], MISSING, ignore_case);
    *n = l->n;
    return paths;
}

static struct value f_sort(struct tpl *t, struct value in, const struct value *v)
{
    uint32_t n_paths;
    struct attr_path *paths = paths_of(t, v[2], !truth(t, v[1]), &n_paths);
    struct list *l = tpl_list_of(t, in);
    struct value *keys = tpl_alloc(t, l->n * sizeof *keys);
    for (uint32_t i = 0; i < l->n; i++) {
        struct list *key = tpl_list_new(t, n_paths);
        for (uint32_t j = 0; j < n_paths; j++)
            tpl_list_add(t, key, tpl_attr_follow(t, &paths[j], l->v[i]));
        keys[i] = LIST(key);
    }
    tpl_sort_values(t, l->v, keys, l->n, in_reverse(t, v[0]));
    return LIST(l);
}

static struct value f_dictsort(struct tpl *t, struct value in, const struct value *v)
{
    bool by_value = GIVEN(v[1]) && v[1].kind == V_STR && tpl_str_is(v[1].u.s, "value");
    if (GIVEN(v[1]) && !by_value && (v[1].kind != V_STR || !tpl_str_is(v[1].u.s, "key")))
        tpl_error(t, "You can only sort by either \"key\" or \"value\"");
    if (in.kind == V_UNDEFINED)
        tpl_undefined_fail(t, in);
    if (in.kind != V_DICT)
        tpl_error(t, "'%s' object has no attribute 'items'", tpl_type_name(in));
    struct attr_path plain = tpl_attr_path(t, MISSING, MISSING, !truth(t, v[0]));
    struct list *l = tpl_list_new(t, in.u.d->n);
    struct value *keys = tpl_alloc(t, in.u.d->n * sizeof *keys);
    for (uint32_t i = 0; i < in.u.d->n; i++) {
        struct value pair[] = {in.u.d->e[i].key, in.u.d->e[i].value};
        tpl_list_add(t, l, tpl_tuple_of(t, 2, pair));
        keys[i] = tpl_attr_follow(t, &plain, pair[by_value]);
    }
    tpl_sort_values(t, l->v, keys, l->n, in_reverse(t, v[2]));
    return LIST(l);
}

static struct value group_of(struct tpl *t, struct value grouper, struct list *members)
{
    struct value pair[] = {grouper, LIST(members)};
    struct list *l = (struct list *)tpl_tuple_of(t, 2, pair).u.l;
    l->group = true;
    return TUPLE(l);
}

static struct value f_groupby(struct tpl *t, struct value in, const struct value *v)
{
    bool case_sensitive = truth(t, v[2]);
    struct attr_path path = tpl_attr_path(t, v[0], v[1], !case_sensitive);
    struct attr_path real = tpl_attr_path(t, v[0], v[1], false);
    struct list *l = tpl_list_of(t, in), *groups = tpl_list_new(t, 0), *members = NULL;
    struct value *keys = tpl_alloc(t, l->n * sizeof *keys);
    for (uint32_t i = 0; i < l->n; i++)
        keys[i] = tpl_attr_follow(t, &path, l->v[i]);
    tpl_sort_values(t, l->v, keys, l->n, false);
    for (uint32_t i = 0; i < l->n; i++) {
        if (!i || !tpl_value_eq(t, keys[i - 1], keys[i])) {
            members = tpl_list_new(t, 0);
            tpl_list_add(t, groups, group_of(t, tpl_attr_follow(t, &real, l->v[i]), members));
        }
        tpl_list_add(t, members, l->v[i]);
    }
    return LIST(groups);
}

/* ---- one of them ---- */

static struct value least(struct tpl *t, struct value in, const struct value *v,
                          enum compare_op better)
{
    struct attr_path path = tpl_attr_path(t, v[1], MISSING, !truth(t, v[0]));
    struct iter *it = tpl_iter_of(t, in);
    struct value best, item;
    if (!tpl_iter_next(t, it, &best))
        return tpl_undefined_hint(t, "No aggregated item, sequence was empty.");
    struct value best_key = tpl_attr_follow(t, &path, best);
    while (tpl_iter_next(t, it, &item)) {
        struct value key = tpl_attr_follow(t, &path, item);
        if (tpl_value_compare(t, better, key, best_key)) {
            best = item;
            best_key = key;
        }
    }
    return best;
}

static struct value f_min(struct tpl *t, struct value in, const struct value *v)
{
    return least(t, in, v, CMP_LT);
}

static struct value f_max(struct tpl *t, struct value in, const struct value *v)
{
    return least(t, in, v, CMP_GT);
}

static struct value f_first(struct tpl *t, struct value in, const struct value *v)
{
    struct value first;
    (void)v;
    if (tpl_iter_next(t, tpl_iter_of(t, in), &first))
        return first;
    return tpl_undefined_hint(t, "No first item, sequence was empty.");
}

static struct value f_last(struct tpl *t, struct value in, const struct value *v)
{
    struct value last;
    (void)v;
    if (!tpl_value_reversible(in))
        tpl_error(t, "'%s' object is not reversible", tpl_type_name(in));
    if (in.kind == V_STR)
        last = tpl_value_getitem(t, in, INT(-1));
    else if (!tpl_iter_next(t, tpl_iter_reversed(t, in), &last))
        last = MISSING;
    if (GIVEN(last) && last.kind != V_UNDEFINED)
        return last;
    return in.kind != V_STR && GIVEN(last)
               ? last
               : tpl_undefined_hint(t, "No last item, sequence was empty.");
}

static struct value f_random(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    int64_t n = tpl_value_length(t, in);
    if (!n)
        return tpl_undefined_hint(t, "No random item, sequence was empty.");
    if (in.kind == V_DICT)
        tpl_error(t, "a dict has no random item");
    uint64_t seed = (uint64_t)time(NULL) * 0x9e3779b97f4a7c15u ^ (t->steps * 0xd6e8feb86659fd93u);
    return tpl_value_getitem(t, in, INT((int64_t)(seed >> 33) % n));
}

/* ---- all of them ---- */

static struct value f_list(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    return LIST(tpl_list_of(t, in));
}

static struct value f_join(struct tpl *t, struct value in, const struct value *v)
{
    struct attr_path path = tpl_attr_path(t, v[1], MISSING, false);
    struct iter *it = tpl_iter_of(t, in);
    struct list *l = tpl_list_new(t, 0);
    struct value item, by = GIVEN(v[0]) ? v[0] : STR(tpl_str_text(t, ""));
    bool markup = t->autoescape && by.kind == V_STR && by.u.s->markup;
    while (tpl_iter_next(t, it, &item)) {
        tpl_list_add(t, l, tpl_attr_follow(t, &path, item));
        item = l->v[l->n - 1];
        markup |= t->autoescape && item.kind == V_STR && item.u.s->markup;
    }
    struct sb b;
    tpl_sb_init(&b, t);
    const struct str *between = markup ? tpl_escape(t, by) : tpl_value_str(t, by);
    for (uint32_t i = 0; i < l->n; i++) {
        if (i)
            tpl_sb_str(&b, between);
        if (markup)
            tpl_sb_str(&b, tpl_escape(t, l->v[i]));
        else
            tpl_value_str_to(&b, l->v[i]);
    }
    return tpl_str_markup(t, tpl_sb_done(&b), markup);
}

static struct value f_sum(struct tpl *t, struct value in, const struct value *v)
{
    struct attr_path path = tpl_attr_path(t, v[0], MISSING, false);
    struct iter *it = tpl_iter_of(t, in);
    struct value sum = GIVEN(v[1]) ? v[1] : INT(0), item;
    if (sum.kind == V_STR)
        tpl_error(t, "sum() can't sum strings [use ''.join(seq) instead]");
    while (tpl_iter_next(t, it, &item))
        sum = tpl_op_add(t, sum, tpl_attr_follow(t, &path, item));
    return sum;
}

static struct value f_reverse(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    if (in.kind == V_STR)
        return tpl_str_markup(t, tpl_str_reverse(t, in.u.s), in.u.s->markup);
    if (tpl_value_reversible(in))
        return ITER(tpl_iter_reversed(t, in));
    if (!tpl_value_iterable(in))
        tpl_error(t, "argument must be iterable");
    struct list *l = tpl_list_of(t, in), *out = tpl_list_new(t, l->n);
    for (uint32_t i = l->n; i-- > 0;)
        tpl_list_add(t, out, l->v[i]);
    return LIST(out);
}

const struct filter tpl_filters_sequence[] = {
    {"dictsort", {{"case_sensitive", "by", "reverse"}, 0, false}, f_dictsort, NULL},
    {"first", {{0}, 0, false}, f_first, NULL},
    {"groupby", {{"attribute", "default", "case_sensitive"}, 1, false}, f_groupby, NULL},
    {"join", {{"d", "attribute"}, 0, false}, f_join, NULL},
    {"last", {{0}, 0, false}, f_last, NULL},
    {"list", {{0}, 0, false}, f_list, NULL},
    {"max", {{"case_sensitive", "attribute"}, 0, false}, f_max, NULL},
    {"min", {{"case_sensitive", "attribute"}, 0, false}, f_min, NULL},
    {"random", {{0}, 0, false}, f_random, NULL},
    {"reverse", {{0}, 0, false}, f_reverse, NULL},
    {"sort", {{"reverse", "case_sensitive", "attribute"}, 0, false}, f_sort, NULL},
    {"sum", {{"attribute", "start"}, 0, false}, f_sum, NULL},
    {NULL, {{0}, 0, false}, NULL, NULL},
};
