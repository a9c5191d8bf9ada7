/* template_dict.c - dictionaries in order of insertion, keyed by equality as Python's are.
 *
 * Up to SMALL entries are searched one by one; more get an index of open addressing, at most half
 * full. Every probe is a step, so that keys made to collide cost the template that made them.
 */
#include "template_internal.h"

#define SMALL 8

struct dict *tpl_dict_new(struct tpl *t)
{
    return tpl_zalloc(t, sizeof(struct dict));
}

static bool keys_eq(struct tpl *t, const struct entry *e, struct value key, uint64_t hash)
{
    if (e->hash != hash)
        return false;
    if (e->key.kind == V_STR && key.kind == V_STR)
        return tpl_str_eq(e->key.u.s, key.u.s);
    return tpl_value_same(e->key, key) || tpl_value_eq(t, e->key, key);
}

/* Place of a key in the index: the one that holds it, or the free one where it belongs. */
static uint32_t *index_place(struct tpl *t, const struct dict *d, struct value key, uint64_t hash)
{
    uint32_t mask = d->index_size - 1;
    for (uint32_t i = (uint32_t)hash & mask, probes = 0;; i = (i + 1) & mask, probes++) {
        uint32_t *place = &d->index[i];
        if (!*place || keys_eq(t, &d->e[*place - 1], key, hash))
            return place;
        if (probes)
            tpl_step(t, 1);
    }
}

static struct entry *find(struct tpl *t, const struct dict *d, struct value key, uint64_t hash)
{
    if (d->index) {
        uint32_t *place = index_place(t, d, key, hash);
        return *place ? &d->e[*place - 1] : NULL;
    }
    for (uint32_t i = 0; i < d->n; i++)
        if (keys_eq(t, &d->e[i], key, hash))
            return &d->e[i];
    return NULL;
}

static void reindex(struct tpl *t, struct dict *d)
{
    uint32_t size = 32;
    while (size < d->n * 4)
        size *= 2;
    d->index = tpl_zalloc(t, size * sizeof *d->index);
    d->index_size = size;
    for (uint32_t i = 0; i < d->n; i++)
        *index_place(t, d, d->e[i].key, d->e[i].hash) = i + 1;
}

void tpl_dict_set(struct tpl *t, struct dict *d, struct value key, struct value v)
{
    tpl_step(t, 1);
    uint64_t hash = tpl_value_hash(t, key);
    struct entry *e = find(t, d, key, hash);
    if (e) {
        e->value = v;
        return;
    }
    d->e = tpl_room(t, d->e, d->n, &d->room, sizeof *d->e);
    d->e[d->n++] = (struct entry){key, v, hash};
    if (d->n <= SMALL)
        return;
    if (!d->index || d->n * 2 > d->index_size)
        reindex(t, d);
    else
        *index_place(t, d, key, hash) = d->n;
}

const struct value *tpl_dict_get(struct tpl *t, const struct dict *d, struct value key)
{
    struct entry *e = find(t, d, key, tpl_value_hash(t, key));
    return e ? &e->value : NULL;
}

/* For names that no value was made of; searches one by one. */
const struct value *tpl_dict_get_str(const struct dict *d, const char *name, size_t bytes)
{
    for (uint32_t i = 0; i < d->n; i++) {
        const struct value *key = &d->e[i].key;
        if (key->kind == V_STR && key->u.s->bytes == bytes && !memcmp(key->u.s->p, name, bytes))
            return &d->e[i].value;
    }
    return NULL;
}

struct dict *tpl_dict_copy(struct tpl *t, const struct dict *d)
{
    struct dict *copy = tpl_dict_new(t);
    for (uint32_t i = 0; i < d->n; i++)
        tpl_dict_set(t, copy, d->e[i].key, d->e[i].value);
    return copy;
}

static void add_pairs(struct tpl *t, struct dict *d, struct value pairs)
{
    struct iter *it = tpl_iter_of(t, pairs);
    struct value pair;
    for (uint32_t i = 0; tpl_iter_next(t, it, &pair); i++) {
        if (!tpl_value_iterable(pair))
            tpl_error(t, "cannot convert dictionary update sequence element #%u to a sequence", i);
        const struct list *l = tpl_list_of(t, pair);
        if (l->n != 2)
            tpl_error(t, "dictionary update sequence element #%u has length %u; 2 is required", i,
                      l->n);
        tpl_dict_set(t, d, l->v[0], l->v[1]);
    }
}

struct dict *tpl_dict_make(struct tpl *t, const struct args *a, const char *what)
{
    if (a->n > 1)
        tpl_error(t, "%s expected at most 1 argument, got %u", what, a->n);
    struct dict *d = tpl_dict_new(t);
    if (a->n && a->v[0].kind == V_UNDEFINED)
        tpl_undefined_fail(t, a->v[0]);
    if (a->n && a->v[0].kind == V_DICT)
        d = tpl_dict_copy(t, a->v[0].u.d);
    else if (a->n)
        add_pairs(t, d, a->v[0]);
    for (uint32_t i = 0; i < a->n_kw; i++)
        tpl_dict_set(t, d, STR(a->kw[i].name), a->kw[i].value);
    return d;
}
