/* template_eval.c - expressions.
 *
 * The value of a node is computed depth first, as Python would. Before an operation that can fail,
 * tpl_at notes the line and the construct for the message.
 */
#include "template_internal.h"

static struct value slot_value(const struct activation *a, struct slot_ref ref)
{
    for (uint16_t i = 0; i < ref.hops; i++)
        a = a->outer;
    return a->slot[ref.slot];
}

static struct value eval_name(struct tpl *t, const struct activation *a, const struct node *n)
{
    struct value v = slot_value(a, n->u.name.ref);
    return GIVEN(v) ? v : tpl_undefined_name(t, n->u.name.name);
}

/* ---- operators ---- */

static const char *operator_sign(enum node_kind op)
{
    switch (op) {
    case N_ADD:
        return "+";
    case N_SUB:
        return "-";
    case N_MUL:
        return "*";
    case N_DIV:
        return "/";
    case N_FLOORDIV:
        return "//";
    case N_MOD:
        return "%";
    default:
        return "** or pow()";
    }
}

static _Noreturn void unsupported(struct tpl *t, enum node_kind op, struct value a, struct value b)
{
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED)
        tpl_undefined_fail(t, a.kind == V_UNDEFINED ? a : b);
    tpl_error(t, "unsupported operand type(s) for %s: '%s' and '%s'", operator_sign(op),
              tpl_type_name(a), tpl_type_name(b));
}

/* If one of them is Markup, the other is escaped and so is the sum. */
static struct value add_strings(struct tpl *t, const struct str *a, const struct str *b)
{
    bool markup = a->markup || b->markup;
    if (markup && !a->markup)
        a = tpl_escape(t, STR(a));
    if (markup && !b->markup)
        b = tpl_escape(t, STR(b));
    return tpl_str_markup(t, tpl_str_concat(t, a, b), markup);
}

static struct value add_lists(struct tpl *t, struct value a, struct value b)
{
    struct list *l = tpl_list_new(t, a.u.l->n + b.u.l->n);
    tpl_step(t, (a.u.l->n + b.u.l->n) / 16);
    l->n = l->room;
    if (a.u.l->n)
        memcpy(l->v, a.u.l->v, a.u.l->n * sizeof *l->v);
    if (b.u.l->n)
        memcpy(l->v + a.u.l->n, b.u.l->v, b.u.l->n * sizeof *l->v);
    return a.kind == V_LIST ? LIST(l) : TUPLE(l);
}

struct value tpl_op_add(struct tpl *t, struct value a, struct value b)
{
    if (tpl_value_number(a) && tpl_value_number(b))
        return tpl_num_arith(t, N_ADD, a, b);
    if (a.kind == V_STR && b.kind == V_STR)
        return add_strings(t, a.u.s, b.u.s);
    if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE))
        return add_lists(t, a, b);
    if (b.kind != V_UNDEFINED && (a.kind == V_STR || a.kind == V_LIST || a.kind == V_TUPLE))
        tpl_error(t, "can only concatenate %s (not \"%s\") to %s", tpl_type_name(a),
                  tpl_type_name(b), tpl_type_name(a));
    unsupported(t, N_ADD, a, b);
}

static struct value repeat_list(struct tpl *t, struct value v, int64_t times)
{
    const struct list *l = v.u.l;
    uint64_t n;
    if (times < 0)
        times = 0;
    if (__builtin_mul_overflow((uint64_t)l->n, (uint64_t)times, &n) || n > UINT32_MAX / 4)
        tpl_limit(t, "a list of more than %u elements", UINT32_MAX / 4);
    tpl_step(t, n / 16);
    struct list *out = tpl_list_new(t, (uint32_t)n);
    for (out->n = 0; out->n < n; out->n += l->n)
        memcpy(out->v + out->n, l->v, l->n * sizeof *l->v);
    return v.kind == V_LIST ? LIST(out) : TUPLE(out);
}

static struct value repeat(struct tpl *t, struct value v, int64_t times)
{
    struct sb b;
    if (v.kind != V_STR)
        return repeat_list(t, v, times);
    tpl_sb_init(&b, t);
    tpl_sb_fill(&b, v.u.s->p, v.u.s->bytes, times < 0 ? 0 : (uint64_t)times);
    return tpl_str_markup(t, tpl_sb_done(&b), v.u.s->markup);
}

static bool repeatable(struct value v)
{
    return v.kind == V_STR || v.kind == V_LIST || v.kind == V_TUPLE;
}

static bool whole(struct value v)
{
    return v.kind == V_INT || v.kind == V_BOOL || v.kind == V_BIG;
}

static struct value op_mul(struct tpl *t, struct value a, struct value b)
{
    if (repeatable(a) && whole(b))
        return repeat(t, a, tpl_value_index(t, b));
    if (whole(a) && repeatable(b))
        return repeat(t, b, tpl_value_index(t, a));
    if (a.kind != V_UNDEFINED && b.kind != V_UNDEFINED && (repeatable(a) || repeatable(b)))
        tpl_error(t, "can't multiply sequence by non-int of type '%s'",
                  tpl_type_name(repeatable(a) ? b : a));
    unsupported(t, N_MUL, a, b);
}

struct value tpl_op_mod(struct tpl *t, struct value a, struct value b)
{
    if (tpl_value_number(a) && tpl_value_number(b))
        return tpl_num_arith(t, N_MOD, a, b);
    if (a.kind == V_STR)
        return tpl_format_percent(t, a.u.s, b);
    unsupported(t, N_MOD, a, b);
}

struct value tpl_op_binary(struct tpl *t, enum node_kind op, struct value a, struct value b)
{
    if (op == N_ADD)
        return tpl_op_add(t, a, b);
    if (op == N_MOD)
        return tpl_op_mod(t, a, b);
    if (tpl_value_number(a) && tpl_value_number(b))
        return tpl_num_arith(t, op, a, b);
    if (op == N_MUL)
        return op_mul(t, a, b);
    unsupported(t, op, a, b);
}

static struct value eval_binary(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value left = tpl_eval(t, a, n->u.pair.left);
    struct value right = tpl_eval(t, a, n->u.pair.right);
    tpl_at(t, n->line, "operator", NULL);
    t->what_name = operator_sign(n->kind);
    t->what_bytes = n->kind == N_POW ? 2 : strlen(t->what_name);
    return tpl_op_binary(t, n->kind, left, right);
}

static struct value eval_sign(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value v = tpl_eval(t, a, n->u.operand);
    tpl_at(t, n->line, "sign", NULL);
    if (v.kind == V_UNDEFINED)
        tpl_undefined_fail(t, v);
    if (!tpl_value_number(v))
        tpl_error(t, "bad operand type for unary %c: '%s'", n->kind == N_NEG ? '-' : '+',
                  tpl_type_name(v));
    return n->kind == N_NEG ? tpl_num_neg(t, v) : tpl_num_as_int(v);
}

static struct value eval_compare(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value left = tpl_eval(t, a, n->u.compare.first);
    for (uint32_t i = 0; i < n->u.compare.rest.n; i++) {
        struct value right = tpl_eval(t, a, n->u.compare.rest.v[i]);
        tpl_at(t, n->line, "comparison", NULL);
        if (!tpl_value_compare(t, n->u.compare.ops[i], left, right))
            return BOOL(false);
        left = right;
    }
    return BOOL(true);
}

static void concat_one(struct tpl *t, struct sb *b, struct value v, bool markup)
{
    if (markup)
        tpl_sb_str(b, tpl_escape(t, v));
    else
        tpl_value_str_to(b, v);
}

/* ~: with autoescape on, Markup if any operand is. */
static struct value eval_concat(struct tpl *t, struct activation *a, const struct node *n)
{
    struct list *l = tpl_list_new(t, n->u.items.n);
    bool markup = false;
    for (uint32_t i = 0; i < n->u.items.n; i++) {
        struct value v = tpl_eval(t, a, n->u.items.v[i]);
        markup |= t->autoescape && v.kind == V_STR && v.u.s->markup;
        tpl_list_add(t, l, v);
    }
    tpl_at(t, n->line, "operator", NULL);
    const struct str *text = l->v[0].kind == V_STR ? l->v[0].u.s : NULL;
    if (l->n == 2 && text && !markup)
        return tpl_str_markup(t, tpl_str_concat(t, text, tpl_value_str(t, l->v[1])), false);
    struct sb b;
    tpl_sb_init(&b, t);
    for (uint32_t i = 0; i < l->n; i++)
        concat_one(t, &b, l->v[i], markup);
    return tpl_str_markup(t, tpl_sb_done(&b), markup);
}

static struct value eval_and_or(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value left = tpl_eval(t, a, n->u.pair.left);
    if (tpl_value_true(t, left) == (n->kind == N_OR))
        return left;
    return tpl_eval(t, a, n->u.pair.right);
}

static struct value eval_condition(struct tpl *t, struct activation *a, const struct node *n)
{
    if (tpl_value_true(t, tpl_eval(t, a, n->u.cond.test)))
        return tpl_eval(t, a, n->u.cond.yes);
    if (n->u.cond.no)
        return tpl_eval(t, a, n->u.cond.no);
    return tpl_undefined_hint(t,
                              "the inline if-expression evaluated to false and no else section was "
                              "defined.");
}

/* ---- literals ---- */

static struct value eval_list(struct tpl *t, struct activation *a, const struct node *n)
{
    struct list *l = tpl_list_new(t, n->u.items.n);
    for (uint32_t i = 0; i < n->u.items.n; i++)
        tpl_list_add(t, l, tpl_eval(t, a, n->u.items.v[i]));
    return n->kind == N_LIST ? LIST(l) : TUPLE(l);
}

static struct value eval_dict(struct tpl *t, struct activation *a, const struct node *n)
{
    struct dict *d = tpl_dict_new(t);
    for (uint32_t i = 0; i < n->u.items.n; i += 2) {
        struct value key = tpl_eval(t, a, n->u.items.v[i]);
        struct value v = tpl_eval(t, a, n->u.items.v[i + 1]);
        tpl_at(t, n->line, "dict", NULL);
        tpl_dict_set(t, d, key, v);
    }
    return DICT(d);
}

/* ---- subscripts ---- */

static struct value eval_or_missing(struct tpl *t, struct activation *a, const struct node *n)
{
    return n ? tpl_eval(t, a, n) : MISSING;
}

static struct value eval_item(struct tpl *t, struct activation *a, const struct node *n)
{
    const struct node *key = n->u.item.key;
    struct value of = tpl_eval(t, a, n->u.item.of);
    if (key->kind != N_SLICE) {
        struct value k = tpl_eval(t, a, key);
        tpl_at(t, n->line, "subscript", NULL);
        return tpl_value_getitem(t, of, k);
    }
    struct value start = eval_or_missing(t, a, key->u.slice.start);
    struct value stop = eval_or_missing(t, a, key->u.slice.stop);
    struct value step = eval_or_missing(t, a, key->u.slice.step);
    tpl_at(t, n->line, "slice", NULL);
    return tpl_value_slice(t, of, start, stop, step);
}

static struct value eval_attr(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value of = tpl_eval(t, a, n->u.attr.of);
    tpl_at(t, n->line, "attribute", n->u.attr.name);
    return tpl_value_getattr(t, of, n->u.attr.name);
}

/* ---- calls ---- */

static void add_keyword(struct tpl *t, struct args *out, uint32_t *room, const struct str *name,
                        struct value v)
{
    for (uint32_t i = 0; i < out->n_kw; i++)
        if (tpl_str_eq(out->kw[i].name, name))
            tpl_error(t, "got multiple values for keyword argument '%.*s'", (int)name->bytes,
                      name->p);
    tpl_step(t, 1 + out->n_kw / 8);
    out->kw = tpl_room(t, out->kw, out->n_kw, room, sizeof *out->kw);
    out->kw[out->n_kw++] = (struct keyword){name, v};
}

static void add_dyn_kwargs(struct tpl *t, struct args *out, uint32_t *room, struct value v)
{
    if (v.kind != V_DICT)
        tpl_error(t, "argument after ** must be a mapping, not %s", tpl_type_name(v));
    for (uint32_t i = 0; i < v.u.d->n; i++) {
        if (v.u.d->e[i].key.kind != V_STR)
            tpl_error(t, "keywords must be strings");
        add_keyword(t, out, room, v.u.d->e[i].key.u.s, v.u.d->e[i].value);
    }
}

struct args tpl_eval_args(struct tpl *t, struct activation *a, const struct node_args *args)
{
    struct list *l = tpl_list_new(t, args->positional.n);
    struct args out = {.n = 0};
    uint32_t room = 0;
    for (uint32_t i = 0; i < args->positional.n; i++)
        tpl_list_add(t, l, tpl_eval(t, a, args->positional.v[i]));
    if (args->dyn_args) {
        struct value more = tpl_eval(t, a, args->dyn_args), v;
        struct iter *it = tpl_iter_of(t, more);
        while (tpl_iter_next(t, it, &v))
            tpl_list_add(t, l, v);
    }
    for (uint32_t i = 0; i < args->kw.n; i++)
        add_keyword(t, &out, &room, args->kw_names[i], tpl_eval(t, a, args->kw.v[i]));
    if (args->dyn_kwargs)
        add_dyn_kwargs(t, &out, &room, tpl_eval(t, a, args->dyn_kwargs));
    out.v = l->v;
    out.n = l->n;
    return out;
}

static const struct str *callee_name(const struct node *of)
{
    return of->kind == N_NAME ? of->u.name.name : of->kind == N_ATTR ? of->u.attr.name : NULL;
}

/* `caller`: what a call block passes along, or NULL. */
struct value tpl_eval_call_with(struct tpl *t, struct activation *a, const struct node *n,
                                const struct value *caller)
{
    struct value f = tpl_eval(t, a, n->u.call.of);
    struct args args = tpl_eval_args(t, a, n->u.call.args);
    tpl_at(t, n->line, "call of", callee_name(n->u.call.of));
    if (caller) {
        uint32_t room = args.n_kw;
        add_keyword(t, &args, &room, tpl_str_text(t, "caller"), *caller);
    }
    return tpl_call_value(t, f, &args);
}

static struct value filter_value(struct tpl *t, struct activation *a, const struct node *n,
                                 struct value in)
{
    struct args args = tpl_eval_args(t, a, n->u.filter.args);
    tpl_at(t, n->line, "filter", n->u.filter.name);
    if (!n->u.filter.filter)
        tpl_error(t, "No filter named '%.*s' found.", (int)n->u.filter.name->bytes,
                  n->u.filter.name->p);
    return tpl_filter_apply(t, n->u.filter.filter, in, &args);
}

struct value tpl_eval_filter(struct tpl *t, struct activation *a, const struct node *n,
                             struct value input)
{
    tpl_enter(t);
    struct value in = n->u.filter.of ? tpl_eval_filter(t, a, n->u.filter.of, input) : input;
    struct value v = filter_value(t, a, n, in);
    tpl_leave(t);
    return v;
}

static struct value eval_test(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value v = tpl_eval(t, a, n->u.test.of);
    struct args args = tpl_eval_args(t, a, n->u.test.args);
    tpl_at(t, n->line, "test", n->u.test.name);
    if (!n->u.test.test)
        tpl_error(t, "No test named '%.*s' found.", (int)n->u.test.name->bytes, n->u.test.name->p);
    return BOOL(tpl_test_apply(t, n->u.test.test, v, &args));
}

/* ---- all of them ---- */

static struct value eval_deep(struct tpl *t, struct activation *a, const struct node *n)
{
    switch (n->kind) {
    case N_TUPLE:
    case N_LIST:
        return eval_list(t, a, n);
    case N_DICT:
        return eval_dict(t, a, n);
    case N_ATTR:
        return eval_attr(t, a, n);
    case N_ITEM:
        return eval_item(t, a, n);
    case N_CALL:
        return tpl_eval_call_with(t, a, n, NULL);
    case N_FILTER:
        return filter_value(t, a, n, tpl_eval(t, a, n->u.filter.of));
    case N_TEST:
        return eval_test(t, a, n);
    case N_COND:
        return eval_condition(t, a, n);
    case N_AND:
    case N_OR:
        return eval_and_or(t, a, n);
    case N_NOT:
        return BOOL(!tpl_value_true(t, tpl_eval(t, a, n->u.operand)));
    case N_NEG:
    case N_POS:
        return eval_sign(t, a, n);
    case N_CONCAT:
        return eval_concat(t, a, n);
    case N_COMPARE:
        return eval_compare(t, a, n);
    default:
        return eval_binary(t, a, n);
    }
}

struct value tpl_eval(struct tpl *t, struct activation *a, const struct node *n)
{
    tpl_step(t, 1);
    if (n->kind == N_CONST)
        return n->u.constant;
    if (n->kind == N_NAME)
        return eval_name(t, a, n);
    tpl_enter(t);
    struct value v = eval_deep(t, a, n);
    tpl_leave(t);
    return v;
}
