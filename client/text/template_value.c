/* template_value.c - values as Python's: truth, equality, order, hashes.
 *
 * Lists, tuples, dicts and strings are never changed once a template can see them: the sandbox
 * refuses every mutating method. So values are shared freely, and only namespaces can be cyclic.
 */
#include "template_internal.h"

/* ---- lists ---- */

struct list *tpl_list_new(struct tpl *t, uint32_t room)
{
    struct list *l = tpl_alloc(t, sizeof *l);
    *l = (struct list){.room = room};
    if (room)
        l->v = tpl_alloc(t, (size_t)room * sizeof *l->v);
    return l;
}

void tpl_list_add(struct tpl *t, struct list *l, struct value v)
{
    tpl_step(t, 1);
    l->v = tpl_room(t, l->v, l->n, &l->room, sizeof *l->v);
    l->v[l->n++] = v;
}

struct value tpl_tuple_of(struct tpl *t, uint32_t n, const struct value *v)
{
    struct list *l = tpl_list_new(t, n);
    if (n)
        memcpy(l->v, v, n * sizeof *v);
    l->n = n;
    return TUPLE(l);
}

/* ---- undefined values ---- */

static struct value undefined_new(struct tpl *t, struct undefined u)
{
    struct undefined *copy = tpl_alloc(t, sizeof *copy);
    *copy = u;
    return (struct value){V_UNDEFINED, {.undefined = copy}};
}

struct value tpl_undefined_hint(struct tpl *t, const char *hint)
{
    return undefined_new(t, (struct undefined){.hint = hint, .obj = MISSING, .key = MISSING});
}

struct value tpl_undefined_name(struct tpl *t, const struct str *name)
{
    return undefined_new(t, (struct undefined){.name = name, .obj = MISSING, .key = MISSING});
}

struct value tpl_undefined_of(struct tpl *t, struct value obj, struct value key)
{
    struct undefined u = {.obj = obj, .key = key};
    if (key.kind == V_STR)
        u.name = key.u.s;
    return undefined_new(t, u);
}

static const char *object_name(struct value v)
{
    return v.kind == V_NONE ? "None" : tpl_type_name(v);
}

_Noreturn void tpl_undefined_fail(struct tpl *t, struct value v)
{
    const struct undefined *u = v.u.undefined;
    if (u->hint)
        tpl_error(t, "%s", u->hint);
    if (!GIVEN(u->obj))
        tpl_error(t, "'%.*s' is undefined", (int)u->name->bytes, u->name->p);
    const char *object = u->obj.kind == V_NONE ? "" : " object";
    if (u->name)
        tpl_error(t, "'%s%s' has no attribute '%.*s'", object_name(u->obj), object,
                  (int)u->name->bytes, u->name->p);
    const struct str *key = tpl_value_repr(t, u->key);
    tpl_error(t, "%s%s has no element %.*s", object_name(u->obj), object, (int)key->bytes, key->p);
}

/* ---- types ---- */

const char *tpl_type_name(struct value v)
{
    static const char *const names[] = {
        [V_MISSING] = "missing",
        [V_UNDEFINED] = "Undefined",
        [V_NONE] = "NoneType",
        [V_BOOL] = "bool",
        [V_INT] = "int",
        [V_BIG] = "int",
        [V_FLOAT] = "float",
        [V_STR] = "str",
        [V_LIST] = "list",
        [V_TUPLE] = "tuple",
        [V_DICT] = "dict",
        [V_RANGE] = "range",
        [V_VIEW] = "dict_keys",
        [V_ITER] = "generator",
        [V_NAMESPACE] = "Namespace",
        [V_MACRO] = "Macro",
        [V_LOOP] = "LoopContext",
        [V_CYCLER] = "Cycler",
        [V_JOINER] = "Joiner",
        [V_BOUND] = "method",
        [V_FUNCTION] = "function",
        [V_SELF] = "TemplateReference",
        [V_BLOCK] = "BlockReference",
    };
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    if (v.kind == V_VIEW)
        return views[v.u.view->kind];
    if (v.kind == V_ITER)
        return v.u.iter->type;
    if (v.kind == V_STR && v.u.s->markup)
        return "Markup";
    return names[v.kind];
}

bool tpl_value_number(struct value v)
{
    return v.kind == V_BOOL || v.kind == V_INT || v.kind == V_BIG || v.kind == V_FLOAT;
}

bool tpl_value_has_length(struct value v)
{
    switch (v.kind) {
    case V_UNDEFINED:
    case V_STR:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_RANGE:
    case V_VIEW:
    case V_LOOP:
        return true;
    default:
        return false;
    }
}

int64_t tpl_value_length(struct tpl *t, struct value v)
{
    switch (v.kind) {
    case V_UNDEFINED:
        return 0;
    case V_STR:
        return v.u.s->chars;
    case V_LIST:
    case V_TUPLE:
        return v.u.l->n;
    case V_DICT:
        return v.u.d->n;
    case V_RANGE:
        return v.u.range->length;
    case V_VIEW:
        return v.u.view->d->n;
    case V_LOOP:
        return tpl_loop_attr(t, v.u.loop, tpl_str_text(t, "length")).u.i;
    default:
        tpl_error(t, "object of type '%s' has no len()", tpl_type_name(v));
    }
}

bool tpl_value_true(struct tpl *t, struct value v)
{
    switch (v.kind) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.u.b;
    case V_INT:
        return v.u.i != 0;
    case V_FLOAT:
        return v.u.f != 0;
    default:
        return !tpl_value_has_length(v) || tpl_value_length(t, v) != 0;
    }
}

/* ---- equality ---- */

bool tpl_value_same(struct value a, struct value b)
{
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case V_NONE:
        return true;
    case V_BOOL:
        return a.u.b == b.u.b;
    case V_INT:
        return a.u.i == b.u.i;
    case V_FLOAT:
        return !memcmp(&a.u.f, &b.u.f, sizeof a.u.f);
    default:
        return a.u.d == b.u.d; /* any of the pointers */
    }
}

static bool lists_eq(struct tpl *t, const struct list *a, const struct list *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (!tpl_value_same(a->v[i], b->v[i]) && !tpl_value_eq(t, a->v[i], b->v[i]))
            return false;
    return true;
}

static bool dicts_eq(struct tpl *t, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct value *other = tpl_dict_get(t, b, a->e[i].key);
        if (!other || !tpl_value_eq(t, a->e[i].value, *other))
            return false;
    }
    return true;
}

static bool ranges_eq(const struct range *a, const struct range *b)
{
    return a->length == b->length &&
           (!a->length || (a->start == b->start && (a->length == 1 || a->step == b->step)));
}

static bool views_eq(struct tpl *t, const struct view *a, const struct view *b)
{
    if (a->kind != b->kind || a->kind == VIEW_VALUES || a->d->n != b->d->n)
        return a == b;
    for (uint32_t i = 0; i < a->d->n; i++) {
        const struct value *other = tpl_dict_get(t, b->d, a->d->e[i].key);
        if (!other || (a->kind == VIEW_ITEMS && !tpl_value_eq(t, a->d->e[i].value, *other)))
            return false;
    }
    return true;
}

static bool containers_eq(struct tpl *t, struct value a, struct value b)
{
    switch (a.kind) {
    case V_LIST:
    case V_TUPLE:
        return lists_eq(t, a.u.l, b.u.l);
    case V_DICT:
        return dicts_eq(t, a.u.d, b.u.d);
    case V_RANGE:
        return ranges_eq(a.u.range, b.u.range);
    case V_VIEW:
        return views_eq(t, a.u.view, b.u.view);
    default:
        return tpl_value_same(a, b);
    }
}

/* What comparing numbers or strings costs. */
static void charge(struct tpl *t, struct value a, struct value b)
{
    uint64_t steps = 1;
    if (a.kind == V_STR && b.kind == V_STR)
        steps += (a.u.s->bytes < b.u.s->bytes ? a.u.s->bytes : b.u.s->bytes) / 256;
    else if (a.kind == V_BIG && b.kind == V_BIG)
        steps += 8;
    tpl_step(t, steps);
}

bool tpl_value_eq(struct tpl *t, struct value a, struct value b)
{
    charge(t, a, b);
    if (tpl_value_number(a) && tpl_value_number(b))
        return tpl_num_compare(a, b) == 0;
    if (a.kind != b.kind)
        return false;
    if (a.kind == V_UNDEFINED || a.kind == V_NONE)
        return true;
    if (a.kind == V_STR)
        return tpl_str_eq(a.u.s, b.u.s);
    tpl_enter(t);
    bool eq = containers_eq(t, a, b);
    tpl_leave(t);
    return eq;
}

/* ---- order ---- */

static const char *const compare_signs[] = {
    [CMP_EQ] = "==", [CMP_NE] = "!=", [CMP_LT] = "<",  [CMP_LE] = "<=",
    [CMP_GT] = ">",  [CMP_GE] = ">=", [CMP_IN] = "in", [CMP_NOT_IN] = "not in",
};

static bool holds(enum compare_op op, int order)
{
    switch (op) {
    case CMP_LT:
        return order == -1;
    case CMP_LE:
        return order == -1 || order == 0;
    case CMP_GT:
        return order == 1;
    default:
        return order == 1 || order == 0;
    }
}

static bool lists_compare(struct tpl *t, enum compare_op op, const struct list *a,
                          const struct list *b)
{
    for (uint32_t i = 0; i < a->n && i < b->n; i++)
        if (!tpl_value_same(a->v[i], b->v[i]) && !tpl_value_eq(t, a->v[i], b->v[i]))
            return tpl_value_compare(t, op, a->v[i], b->v[i]);
    return holds(op, a->n < b->n ? -1 : a->n > b->n);
}

static bool compare_order(struct tpl *t, enum compare_op op, struct value a, struct value b)
{
    if (tpl_value_number(a) && tpl_value_number(b))
        return holds(op, tpl_num_compare(a, b));
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED)
        tpl_undefined_fail(t, a.kind == V_UNDEFINED ? a : b);
    if (a.kind == V_STR && b.kind == V_STR)
        return holds(op, tpl_str_cmp(a.u.s, b.u.s));
    if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE)) {
        tpl_enter(t);
        bool result = lists_compare(t, op, a.u.l, b.u.l);
        tpl_leave(t);
        return result;
    }
    tpl_error(t, "'%s' not supported between instances of '%s' and '%s'", compare_signs[op],
              tpl_type_name(a), tpl_type_name(b));
}

bool tpl_value_compare(struct tpl *t, enum compare_op op, struct value a, struct value b)
{
    charge(t, a, b);
    switch (op) {
    case CMP_EQ:
        return tpl_value_eq(t, a, b);
    case CMP_NE:
        return !tpl_value_eq(t, a, b);
    case CMP_IN:
        return tpl_value_in(t, a, b);
    case CMP_NOT_IN:
        return !tpl_value_in(t, a, b);
    default:
        return compare_order(t, op, a, b);
    }
}

/* ---- membership ---- */

static bool in_list(struct tpl *t, struct value needle, const struct list *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (tpl_value_same(needle, l->v[i]) || tpl_value_eq(t, needle, l->v[i]))
            return true;
    return false;
}

static bool in_any(struct tpl *t, struct value needle, struct value hay)
{
    if (!tpl_value_iterable(hay))
        tpl_error(t, "argument of type '%s' is not iterable", tpl_type_name(hay));
    struct iter *it = tpl_iter_of(t, hay);
    struct value v;
    while (tpl_iter_next(t, it, &v))
        if (tpl_value_same(needle, v) || tpl_value_eq(t, needle, v))
            return true;
    return false;
}

bool tpl_value_in(struct tpl *t, struct value needle, struct value hay)
{
    switch (hay.kind) {
    case V_STR:
        if (needle.kind != V_STR)
            tpl_error(t, "'in <string>' requires string as left operand, not %s",
                      tpl_type_name(needle));
        tpl_step(t, hay.u.s->bytes / 64);
        return tpl_mem_find(hay.u.s->p, hay.u.s->bytes, needle.u.s->p, needle.u.s->bytes);
    case V_LIST:
    case V_TUPLE:
        return in_list(t, needle, hay.u.l);
    case V_DICT:
        return tpl_dict_get(t, hay.u.d, needle);
    case V_VIEW:
        if (hay.u.view->kind == VIEW_KEYS)
            return tpl_dict_get(t, hay.u.view->d, needle);
        return in_any(t, needle, hay);
    default:
        return in_any(t, needle, hay);
    }
}

/* ---- hashes ---- */

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    return h * 0xd6e8feb86659fd93u;
}

static uint64_t hash_bytes(const char *p, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325u ^ bytes, word = 0;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        memcpy(&word, p, 8);
        h = mix(h ^ word);
    }
    word = 0;
    memcpy(&word, p, bytes);
    return mix(h ^ word ^ (uint64_t)bytes << 56);
}

static uint64_t hash_tuple(struct tpl *t, const struct list *l)
{
    uint64_t h = l->n;
    tpl_step(t, 1 + l->n);
    tpl_enter(t);
    for (uint32_t i = 0; i < l->n; i++)
        h = mix(h * 31 + tpl_value_hash(t, l->v[i]));
    tpl_leave(t);
    return h;
}

/* Equal values have equal hashes. */
uint64_t tpl_value_hash(struct tpl *t, struct value v)
{
    switch (v.kind) {
    case V_STR:
        tpl_step(t, v.u.s->bytes / 256);
        return hash_bytes(v.u.s->p, v.u.s->bytes);
    case V_BOOL:
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        return mix(tpl_num_hash(v));
    case V_TUPLE:
        return hash_tuple(t, v.u.l);
    case V_LIST:
    case V_DICT:
        tpl_error(t, "unhashable type: '%s'", tpl_type_name(v));
    case V_NONE:
    case V_UNDEFINED:
        return mix(v.kind);
    case V_RANGE:
        return mix((uint64_t)v.u.range->length);
    case V_VIEW:
        if (v.u.view->kind != VIEW_VALUES)
            tpl_error(t, "unhashable type: '%s'", tpl_type_name(v));
        return mix((uintptr_t)v.u.view);
    default:
        return mix((uintptr_t)v.u.d);
    }
}

/* ---- arguments ---- */

int64_t tpl_value_index(struct tpl *t, struct value v)
{
    if (v.kind == V_INT)
        return v.u.i;
    if (v.kind == V_BOOL)
        return v.u.b;
    if (v.kind == V_BIG)
        return tpl_num_is_negative(v) ? INT64_MIN : INT64_MAX;
    tpl_error(t, "'%s' object cannot be interpreted as an integer", tpl_type_name(v));
}

const struct str *tpl_value_need_str(struct tpl *t, struct value v, const char *what)
{
    if (v.kind != V_STR)
        tpl_error(t, "%s must be str, not %s", what, tpl_type_name(v));
    return v.u.s;
}
