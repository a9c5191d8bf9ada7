/* template_iter.c - iteration.
 *
 * What Python makes a generator of is one here too: it computes an element when that is asked for,
 * and is used up once. An iterator over values that cannot change just holds its place.
 */
#include "template_internal.h"

static struct iter *iter_new(struct tpl *t, const char *type, struct value of,
                             bool (*next)(struct tpl *, struct iter *, struct value *))
{
    struct iter *it = tpl_zalloc(t, sizeof *it);
    it->next = next;
    it->type = type;
    it->of = of;
    return it;
}

bool tpl_iter_next(struct tpl *t, struct iter *it, struct value *out)
{
    tpl_step(t, 1);
    if (it->done)
        return false;
    it->done = true; /* also while it runs: a generator cannot ask itself */
    if (!it->next(t, it, out))
        return false;
    it->done = false;
    return true;
}

struct value tpl_iter_generator(struct tpl *t, const char *type,
                                bool (*next)(struct tpl *, struct iter *, struct value *),
                                struct value of, void *state)
{
    struct iter *it = iter_new(t, type, of, next);
    it->state = state;
    return ITER(it);
}

/* ---- over values ---- */

static bool next_none(struct tpl *t, struct iter *it, struct value *out)
{
    (void)t, (void)it, (void)out;
    return false;
}

static bool next_item(struct tpl *t, struct iter *it, struct value *out)
{
    (void)t;
    if (it->at >= it->of.u.l->n)
        return false;
    *out = it->of.u.l->v[it->at++];
    return true;
}

static bool next_char(struct tpl *t, struct iter *it, struct value *out)
{
    const struct str *s = it->of.u.s;
    unsigned bytes;
    if (it->byte >= s->bytes)
        return false;
    uni_at(s->p + it->byte, &bytes);
    *out = STR(tpl_str_ref(t, s->p + it->byte, bytes));
    it->byte += bytes;
    return true;
}

static bool next_in_range(struct tpl *t, struct iter *it, struct value *out)
{
    (void)t;
    const struct range *r = it->of.u.range;
    if (it->at >= r->length)
        return false;
    *out = INT(r->start + it->at++ * r->step);
    return true;
}

static struct value view_item(struct tpl *t, enum view_kind kind, const struct entry *e)
{
    struct value pair[] = {e->key, e->value};
    return kind == VIEW_ITEMS ? tpl_tuple_of(t, 2, pair) : pair[kind == VIEW_VALUES];
}

static bool next_key(struct tpl *t, struct iter *it, struct value *out)
{
    (void)t;
    if (it->at >= it->of.u.d->n)
        return false;
    *out = it->of.u.d->e[it->at++].key;
    return true;
}

static bool next_in_view(struct tpl *t, struct iter *it, struct value *out)
{
    const struct view *view = it->of.u.view;
    if (it->at >= view->d->n)
        return false;
    *out = view_item(t, view->kind, &view->d->e[it->at++]);
    return true;
}

bool tpl_value_iterable(struct value v)
{
    switch (v.kind) {
    case V_UNDEFINED:
    case V_STR:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_RANGE:
    case V_VIEW:
    case V_ITER:
    case V_LOOP:
        return true;
    default:
        return false;
    }
}

/* A loop that is iterated gives its rest, as pairs of element and loop; here the rest alone. */
static bool next_of_loop(struct tpl *t, struct iter *it, struct value *out)
{
    struct loop *loop = it->of.u.loop;
    *out = loop->after;
    loop->after = MISSING;
    return GIVEN(*out) || tpl_iter_next(t, loop->it, out);
}

struct iter *tpl_iter_of(struct tpl *t, struct value v)
{
    switch (v.kind) {
    case V_UNDEFINED:
        return iter_new(t, "generator", v, next_none);
    case V_STR:
        return iter_new(t, "str_iterator", v, next_char);
    case V_LIST:
    case V_TUPLE:
        return iter_new(t, "list_iterator", v, next_item);
    case V_DICT:
        return iter_new(t, "dict_keyiterator", v, next_key);
    case V_RANGE:
        return iter_new(t, "range_iterator", v, next_in_range);
    case V_VIEW:
        return iter_new(t, "dict_itemiterator", v, next_in_view);
    case V_ITER:
        return v.u.iter;
    case V_LOOP:
        return iter_new(t, "LoopContext", v, next_of_loop);
    default:
        tpl_error(t, "'%s' object is not iterable", tpl_type_name(v));
    }
}

/* ---- reversed() ---- */

bool tpl_value_reversible(struct value v)
{
    switch (v.kind) {
    case V_UNDEFINED:
    case V_STR:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_RANGE:
    case V_VIEW:
        return true;
    default:
        return false;
    }
}

static bool next_back(struct tpl *t, struct iter *it, struct value *out)
{
    if (!it->started) {
        it->started = true;
        it->at = tpl_value_length(t, it->of);
    }
    if (it->at <= 0)
        return false;
    it->at--;
    if (it->of.kind == V_DICT)
        *out = it->of.u.d->e[it->at].key;
    else if (it->of.kind == V_VIEW)
        *out = view_item(t, it->of.u.view->kind, &it->of.u.view->d->e[it->at]);
    else
        *out = tpl_value_getitem(t, it->of, INT(it->at));
    return true;
}

struct iter *tpl_iter_reversed(struct tpl *t, struct value v)
{
    if (v.kind == V_STR)
        v = STR(tpl_str_reverse(t, v.u.s));
    if (v.kind == V_STR)
        return iter_new(t, "reversed", v, next_char);
    return iter_new(t, v.kind == V_LIST ? "list_reverseiterator" : "reversed", v, next_back);
}

/* ---- list() ---- */

struct list *tpl_list_of(struct tpl *t, struct value v)
{
    struct list *l = tpl_list_new(
        t, tpl_value_has_length(v) && v.kind != V_LOOP ? (uint32_t)tpl_value_length(t, v) : 0);
    struct iter *it = tpl_iter_of(t, v);
    struct value item;
    while (tpl_iter_next(t, it, &item))
        tpl_list_add(t, l, item);
    return l;
}
