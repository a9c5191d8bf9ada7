/* template_attr.c - attributes, subscripts and slices.
 *
 * `a.b` looks for an attribute first and then for an item, `a["b"]` the other way round; what is
 * not there is undefined. The sandbox hides private names, and methods that would change a list or
 * dict.
 */
#include "template_internal.h"

/* ---- attributes ---- */

static bool one_of(const struct str *name, const char *const *names)
{
    for (; *names; names++)
        if (tpl_str_is(name, *names))
            return true;
    return false;
}

static bool mutates(struct value of, const struct str *name)
{
    static const char *const list_names[] = {"append", "clear",  "pop",    "reverse", "insert",
                                             "sort",   "extend", "remove", NULL};
    static const char *const dict_names[] = {"clear",      "pop",    "popitem",
                                             "setdefault", "update", NULL};
    if (of.kind == V_LIST)
        return one_of(name, list_names);
    return of.kind == V_DICT && one_of(name, dict_names);
}

static struct value unsafe_undefined(struct tpl *t, struct value of, const struct str *name)
{
    struct sb b;
    tpl_sb_init(&b, t);
    tpl_sb_text(&b, "access to attribute ");
    tpl_str_repr_to(&b, name);
    tpl_sb_format(&b, " of '%s' object is unsafe.", tpl_type_name(of));
    tpl_sb_char(&b, '\0');
    return tpl_undefined_hint(t, b.p);
}

static struct value macro_attr(struct tpl *t, const struct macro_def *d, const struct str *name)
{
    if (tpl_str_is(name, "name"))
        return d->name ? STR(d->name) : NONE;
    if (tpl_str_is(name, "catch_kwargs"))
        return BOOL(d->kwargs_slot >= 0);
    if (tpl_str_is(name, "catch_varargs"))
        return BOOL(d->varargs_slot >= 0);
    if (tpl_str_is(name, "caller"))
        return BOOL(d->takes_caller);
    if (tpl_str_is(name, "explicit_caller"))
        return BOOL(d->explicit_caller);
    if (!tpl_str_is(name, "arguments"))
        return MISSING;
    struct list *l = tpl_list_new(t, d->args.n);
    for (uint32_t i = 0; i < d->args.n; i++)
        tpl_list_add(t, l, STR(d->args.v[i]->u.name.name));
    return TUPLE(l);
}

static struct value number_attr(struct value of, const struct str *name)
{
    if (tpl_str_is(name, "real"))
        return tpl_num_as_int(of);
    if (tpl_str_is(name, "imag"))
        return of.kind == V_FLOAT ? FLOAT(0) : INT(0);
    if (of.kind != V_FLOAT && tpl_str_is(name, "numerator"))
        return tpl_num_as_int(of);
    if (of.kind != V_FLOAT && tpl_str_is(name, "denominator"))
        return INT(1);
    return MISSING;
}

static struct value range_attr(const struct range *r, const struct str *name)
{
    if (tpl_str_is(name, "start"))
        return INT(r->start);
    if (tpl_str_is(name, "stop"))
        return INT(r->stop);
    return tpl_str_is(name, "step") ? INT(r->step) : MISSING;
}

static struct value group_attr(const struct list *l, const struct str *name)
{
    if (!l->group)
        return MISSING;
    if (tpl_str_is(name, "grouper"))
        return l->v[0];
    return tpl_str_is(name, "list") ? l->v[1] : MISSING;
}

static struct value cycler_attr(const struct cycler *c, const struct str *name)
{
    if (tpl_str_is(name, "pos"))
        return INT(c->at);
    if (tpl_str_is(name, "items"))
        return TUPLE(c->items);
    return tpl_str_is(name, "current") ? c->items->v[c->at] : MISSING;
}

static struct value joiner_attr(const struct joiner *j, const struct str *name)
{
    if (tpl_str_is(name, "sep"))
        return j->separator;
    return tpl_str_is(name, "used") ? BOOL(j->used) : MISSING;
}

static struct value plain_attr(struct tpl *t, struct value of, const struct str *name)
{
    const struct value *v;
    switch (of.kind) {
    case V_UNDEFINED:
        tpl_undefined_fail(t, of);
    case V_NAMESPACE:
        v = tpl_dict_get(t, of.u.ns, STR(name));
        return v ? *v : MISSING;
    case V_LOOP:
        return tpl_loop_attr(t, of.u.loop, name);
    case V_MACRO:
        return macro_attr(t, of.u.macro->def, name);
    case V_BOOL:
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        return number_attr(of, name);
    case V_TUPLE:
        return group_attr(of.u.l, name);
    case V_RANGE:
        return range_attr(of.u.range, name);
    case V_CYCLER:
        return cycler_attr(of.u.cycler, name);
    case V_JOINER:
        return joiner_attr(of.u.joiner, name);
    default:
        return MISSING;
    }
}

struct value tpl_value_attr(struct tpl *t, struct value of, const struct str *name)
{
    struct value v = plain_attr(t, of, name);
    if (GIVEN(v) || of.kind == V_NAMESPACE)
        return v;
    const struct method *m = tpl_method_find(of, name);
    if (!m)
        return MISSING;
    struct bound *b = tpl_alloc(t, sizeof *b);
    *b = (struct bound){of, m};
    return (struct value){V_BOUND, {.bound = b}};
}

static bool dunder(const struct str *name)
{
    return name->bytes > 4 && !memcmp(name->p, "__", 2) &&
           !memcmp(name->p + name->bytes - 2, "__", 2);
}

static struct value safe_attr(struct tpl *t, struct value of, const struct str *name)
{
    if (mutates(of, name) || (of.kind == V_UNDEFINED && dunder(name)))
        return unsafe_undefined(t, of, name);
    struct value v = tpl_value_attr(t, of, name);
    if (GIVEN(v) && name->bytes && name->p[0] == '_')
        return unsafe_undefined(t, of, name);
    return v;
}

static struct value block_named(struct tpl *t, const struct str *name)
{
    for (uint32_t i = 0; i < t->source->n_blocks; i++)
        if (tpl_str_eq(t->source->blocks[i]->name, name)) {
            struct block_ref *ref = tpl_alloc(t, sizeof *ref);
            ref->def = t->source->blocks[i];
            return (struct value){V_BLOCK, {.block = ref}};
        }
    return MISSING;
}

struct value tpl_value_getattr(struct tpl *t, struct value of, const struct str *name)
{
    struct value v = safe_attr(t, of, name);
    if (GIVEN(v))
        return v;
    if (of.kind == V_DICT) {
        const struct value *item = tpl_dict_get(t, of.u.d, STR(name));
        if (item)
            return *item;
    }
    if (of.kind == V_SELF && GIVEN(v = block_named(t, name)))
        return v;
    return tpl_undefined_of(t, of, STR(name));
}

/* ---- subscripts ---- */

static struct value char_at(struct tpl *t, const struct str *s, uint32_t index)
{
    size_t at = tpl_str_offset(t, s, index);
    unsigned bytes;
    uni_at(s->p + at, &bytes);
    return tpl_str_markup(t, tpl_str_ref(t, s->p + at, bytes), s->markup);
}

static struct value sequence_item(struct tpl *t, struct value of, int64_t index)
{
    int64_t n = tpl_value_length(t, of);
    if (index < 0)
        index += n;
    if (index < 0 || index >= n)
        return MISSING;
    if (of.kind == V_STR)
        return char_at(t, of.u.s, (uint32_t)index);
    if (of.kind == V_RANGE)
        return INT(of.u.range->start + index * of.u.range->step);
    return of.u.l->v[index];
}

static bool hashable(struct value v)
{
    if (v.kind == V_TUPLE)
        for (uint32_t i = 0; i < v.u.l->n; i++)
            if (!hashable(v.u.l->v[i]))
                return false;
    return v.kind != V_LIST && v.kind != V_DICT;
}

static struct value item_of(struct tpl *t, struct value of, struct value key)
{
    switch (of.kind) {
    case V_UNDEFINED:
        tpl_undefined_fail(t, of);
    case V_DICT: {
        const struct value *item = hashable(key) ? tpl_dict_get(t, of.u.d, key) : NULL;
        return item ? *item : MISSING;
    }
    case V_LIST:
    case V_TUPLE:
    case V_STR:
    case V_RANGE:
        if (key.kind == V_INT || key.kind == V_BOOL)
            return sequence_item(t, of, tpl_value_index(t, key));
        return MISSING;
    case V_SELF:
        return key.kind == V_STR ? block_named(t, key.u.s) : MISSING;
    default:
        return MISSING;
    }
}

struct value tpl_value_getitem(struct tpl *t, struct value of, struct value key)
{
    struct value v = item_of(t, of, key);
    if (!GIVEN(v) && key.kind == V_STR)
        v = safe_attr(t, of, key.u.s);
    return GIVEN(v) ? v : tpl_undefined_of(t, of, key);
}

/* ---- slices ---- */

struct span { /* start, start + step, ... (count) */
    int64_t start, step, count;
};

static int64_t slice_index(struct tpl *t, struct value v)
{
    if (v.kind != V_INT && v.kind != V_BOOL && v.kind != V_BIG)
        tpl_error(t, "slice indices must be integers or None or have an __index__ method");
    return tpl_value_index(t, v);
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

static struct span slice_span(struct tpl *t, int64_t n, struct value start, struct value stop,
                              struct value step)
{
    struct span s = {.step = ABSENT(step) ? 1 : slice_index(t, step)};
    if (!s.step)
        tpl_error(t, "slice step cannot be zero");
    if (s.step < -INT64_MAX)
        s.step = -INT64_MAX;
    bool down = s.step < 0;
    int64_t low = down ? -1 : 0, high = down ? n - 1 : n;
    s.start = ABSENT(start) ? (down ? high : low) : clamp(slice_index(t, start), n, low, high);
    int64_t end = ABSENT(stop) ? (down ? low : high) : clamp(slice_index(t, stop), n, low, high);
    if (down && s.start > end)
        s.count = (s.start - end - 1) / -s.step + 1;
    if (!down && s.start < end)
        s.count = (end - s.start - 1) / s.step + 1;
    return s;
}

/* n characters on from p, or back. */
static const char *walk(const struct str *s, const char *p, int64_t n)
{
    const char *end = s->p + s->bytes;
    unsigned bytes;
    for (; n > 0 && p < end; n--) {
        uni_at(p, &bytes);
        p += bytes;
    }
    for (; n < 0 && p > s->p; n++) {
        uni_before(s->p, p, &bytes);
        p -= bytes;
    }
    return p;
}

static const struct str *slice_stepped(struct tpl *t, const struct str *s, struct span x)
{
    struct sb b;
    const char *p = s->p + tpl_str_offset(t, s, (uint32_t)x.start);
    tpl_sb_init(&b, t);
    tpl_step(t, s->bytes / 64);
    for (int64_t i = 0; i < x.count; i++) {
        unsigned bytes;
        tpl_step(t, 1);
        uni_at(p, &bytes);
        tpl_sb_put(&b, p, bytes);
        p = walk(s, p, i + 1 < x.count ? x.step : 0);
    }
    return tpl_sb_done(&b);
}

static struct value slice_str(struct tpl *t, const struct str *s, struct span x)
{
    const struct str *out;
    if (!x.count)
        out = tpl_str_text(t, "");
    else if (x.step == 1)
        out = tpl_str_sub(t, s, tpl_str_offset(t, s, (uint32_t)x.start),
                          tpl_str_offset(t, s, (uint32_t)(x.start + x.count)));
    else
        out = slice_stepped(t, s, x);
    return tpl_str_markup(t, out, s->markup);
}

static struct value slice_list(struct tpl *t, const struct list *l, struct span x)
{
    struct list *out = tpl_list_new(t, (uint32_t)x.count);
    for (int64_t i = 0; i < x.count; i++)
        tpl_list_add(t, out, l->v[x.start + i * x.step]);
    return LIST(out);
}

static struct value slice_range(struct tpl *t, const struct range *r, struct span x)
{
    struct range *out = tpl_alloc(t, sizeof *out);
    int64_t step, way;
    if (__builtin_mul_overflow(r->step, x.step, &step) ||
        __builtin_mul_overflow(step, x.count, &way) ||
        __builtin_add_overflow(r->start + x.start * r->step, way, &way))
        tpl_limit(t, "a range beyond 64 bits");
    *out = (struct range){r->start + x.start * r->step, way, step, x.count};
    return (struct value){V_RANGE, {.range = out}};
}

struct value tpl_value_slice(struct tpl *t, struct value of, struct value start, struct value stop,
                             struct value step)
{
    if (of.kind == V_UNDEFINED)
        tpl_undefined_fail(t, of);
    if (of.kind == V_DICT)
        tpl_error(t, "unhashable type: 'slice'");
    if (of.kind != V_STR && of.kind != V_LIST && of.kind != V_TUPLE && of.kind != V_RANGE)
        tpl_error(t, "'%s' object is not subscriptable", tpl_type_name(of));
    struct span x = slice_span(t, tpl_value_length(t, of), start, stop, step);
    if (of.kind == V_STR)
        return slice_str(t, of.u.s, x);
    if (of.kind == V_RANGE)
        return slice_range(t, of.u.range, x);
    struct value v = slice_list(t, of.u.l, x);
    v.kind = of.kind;
    return v;
}
