/* template_exec.c - statements, loops, macros.
 *
 * All text goes to one output buffer. What captures text (macros, set and filter blocks, recursive
 * loops) marks the end of the buffer, runs, and takes back what came behind the mark.
 */
#include "template_internal.h"

static enum flow exec_all(struct tpl *t, struct activation *a, const struct nodes *body);

struct activation *tpl_activation_new(struct tpl *t, struct activation *outer, uint32_t n_slots)
{
    struct activation *a = tpl_zalloc(t, sizeof *a + n_slots * sizeof *a->slot);
    a->outer = outer;
    return a;
}

static struct value *slot_at(struct activation *a, struct slot_ref ref)
{
    for (uint16_t i = 0; i < ref.hops; i++)
        a = a->outer;
    return &a->slot[ref.slot];
}

struct value tpl_context_get(struct tpl *t, const struct context *c, const struct str *name)
{
    const struct value *v = tpl_dict_get(t, c->vars, STR(name));
    if (!v)
        v = tpl_dict_get(t, c->parent, STR(name));
    if (!v)
        v = tpl_dict_get(t, c->globals, STR(name));
    return v ? *v : MISSING;
}

void tpl_scope_enter(struct tpl *t, struct activation *a, const struct scope *s)
{
    tpl_step(t, s->n);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct load *l = &s->loads[i];
        a->slot[l->slot] = l->kind == LOAD_ALIAS     ? *slot_at(a, l->from)
                           : l->kind == LOAD_RESOLVE ? tpl_context_get(t, t->context, l->name)
                                                     : MISSING;
    }
}

/* ---- output ---- */

static void put(struct tpl *t, struct value v)
{
    if (v.kind == V_UNDEFINED)
        return;
    const struct str *s = t->autoescape     ? tpl_escape(t, v)
                          : v.kind == V_STR ? v.u.s
                                            : tpl_value_repr(t, v);
    tpl_out(t, s->p, s->bytes);
}

/* What a statement writes must be a string, and is not escaped. */
static void put_text(struct tpl *t, struct value v)
{
    if (v.kind != V_STR)
        tpl_error(t, "expected str instance, %s found", tpl_type_name(v));
    tpl_out(t, v.u.s->p, v.u.s->bytes);
}

static void exec_output(struct tpl *t, struct activation *a, const struct node *n)
{
    for (uint32_t i = 0; i < n->u.items.n; i++) {
        const struct node *item = n->u.items.v[i];
        if (item->data) {
            tpl_step(t, 1);
            tpl_out(t, item->u.constant.u.s->p, item->u.constant.u.s->bytes);
            continue;
        }
        struct value v = tpl_eval(t, a, item);
        tpl_at(t, item->line, "output", NULL);
        put(t, v);
    }
}

static struct value captured(struct tpl *t, size_t mark)
{
    return tpl_str_markup(t, tpl_out_take(t, mark), t->autoescape);
}

/* ---- assignment ---- */

static void unpack(struct tpl *t, struct activation *a, const struct node *target, struct value v)
{
    uint32_t wanted = target->u.items.n, got = 0;
    struct value *parts = tpl_alloc(t, wanted * sizeof *parts), more;
    if (!tpl_value_iterable(v))
        tpl_error(t, "cannot unpack non-iterable %s object", tpl_type_name(v));
    struct iter *it = tpl_iter_of(t, v);
    while (got < wanted && tpl_iter_next(t, it, &parts[got]))
        got++;
    if (got < wanted)
        tpl_error(t, "not enough values to unpack (expected %u, got %u)", wanted, got);
    if (tpl_iter_next(t, it, &more))
        tpl_error(t, "too many values to unpack (expected %u)", wanted);
    for (uint32_t i = 0; i < wanted; i++)
        tpl_assign(t, a, target->u.items.v[i], parts[i]);
}

static struct dict *namespace_at(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value ns = *slot_at(a, n->u.nsref.ref);
    tpl_at(t, n->line, "assignment to", n->u.nsref.name);
    if (ns.kind != V_NAMESPACE)
        tpl_error(t, "cannot assign attribute on non-namespace object");
    return ns.u.ns;
}

void tpl_assign(struct tpl *t, struct activation *a, const struct node *target, struct value v)
{
    switch (target->kind) {
    case N_NAME:
        *slot_at(a, target->u.name.ref) = v;
        if (target->u.name.export)
            tpl_dict_set(t, t->context->vars, STR(target->u.name.name), v);
        break;
    case N_NSREF:
        tpl_dict_set(t, namespace_at(t, a, target), STR(target->u.nsref.attr), v);
        break;
    default:
        tpl_enter(t);
        unpack(t, a, target, v);
        tpl_leave(t);
    }
}

/* Namespaces are checked before the value is computed. */
static void check_target(struct tpl *t, struct activation *a, const struct node *target)
{
    if (target->kind == N_NSREF)
        namespace_at(t, a, target);
    for (uint32_t i = 0; target->kind == N_TUPLE && i < target->u.items.n; i++)
        check_target(t, a, target->u.items.v[i]);
}

static void exec_set(struct tpl *t, struct activation *a, const struct node *n)
{
    check_target(t, a, n->u.set.target);
    struct value v = tpl_eval(t, a, n->u.set.value);
    tpl_at(t, n->line, "set", NULL);
    tpl_assign(t, a, n->u.set.target, v);
}

static enum flow exec_set_block(struct tpl *t, struct activation *a, const struct node *n)
{
    size_t mark = t->out_bytes;
    tpl_scope_enter(t, a, n->u.set_block.scope);
    enum flow flow = exec_all(t, a, &n->u.set_block.body);
    struct value v = captured(t, mark);
    if (flow != FLOW_NEXT)
        return flow;
    if (n->u.set_block.filter)
        v = tpl_eval_filter(t, a, n->u.set_block.filter, v);
    tpl_at(t, n->line, "set", NULL);
    tpl_assign(t, a, n->u.set_block.target, v);
    return FLOW_NEXT;
}

static enum flow exec_filter_block(struct tpl *t, struct activation *a, const struct node *n)
{
    size_t mark = t->out_bytes;
    tpl_scope_enter(t, a, n->u.filter_block.scope);
    enum flow flow = exec_all(t, a, &n->u.filter_block.body);
    struct value v = captured(t, mark);
    if (flow == FLOW_NEXT)
        put_text(t, tpl_eval_filter(t, a, n->u.filter_block.filter, v));
    return flow;
}

static enum flow exec_with(struct tpl *t, struct activation *a, const struct node *n)
{
    tpl_scope_enter(t, a, n->u.with.scope);
    for (uint32_t i = 0; i < n->u.with.targets.n; i++) {
        struct value v = tpl_eval(t, a, n->u.with.values.v[i]);
        tpl_at(t, n->line, "with", NULL);
        tpl_assign(t, a, n->u.with.targets.v[i], v);
    }
    return exec_all(t, a, &n->u.with.body);
}

static enum flow exec_if(struct tpl *t, struct activation *a, const struct node *n)
{
    for (uint32_t i = 0; i < n->u.branches.n; i++) {
        const struct branch *b = &n->u.branches.v[i];
        if (!b->test || tpl_value_true(t, tpl_eval(t, a, b->test)))
            return exec_all(t, a, &b->body);
    }
    return FLOW_NEXT;
}

/* ---- loops ---- */

struct filtered { /* the generator of a loop with `if` */
    const struct for_def *def;
    struct activation *a;
    struct iter *source;
};

static struct value target_value(struct tpl *t, struct activation *a, const struct node *target)
{
    if (target->kind == N_NAME)
        return *slot_at(a, target->u.name.ref);
    struct list *l = tpl_list_new(t, target->u.items.n);
    for (uint32_t i = 0; i < target->u.items.n; i++)
        tpl_list_add(t, l, target_value(t, a, target->u.items.v[i]));
    return TUPLE(l);
}

static bool next_filtered(struct tpl *t, struct iter *it, struct value *out)
{
    struct filtered *f = it->state;
    struct value v;
    if (!f->source) {
        tpl_scope_enter(t, f->a, &f->def->test_scope);
        f->source = tpl_iter_of(t, it->of);
    }
    while (tpl_iter_next(t, f->source, &v)) {
        tpl_assign(t, f->a, f->def->test_target, v);
        if (tpl_value_true(t, tpl_eval(t, f->a, f->def->test))) {
            *out = target_value(t, f->a, f->def->test_target);
            return true;
        }
    }
    return false;
}

static struct value filtered(struct tpl *t, struct activation *outer, const struct for_def *def,
                             struct value iterable)
{
    struct filtered *f = tpl_alloc(t, sizeof *f);
    *f = (struct filtered){def, tpl_activation_new(t, outer, def->n_test_slots), NULL};
    return tpl_iter_generator(t, "generator", next_filtered, iterable, f);
}

/* The element that comes next, without moving on. */
static struct value peek(struct tpl *t, struct loop *loop)
{
    if (!GIVEN(loop->after) && !tpl_iter_next(t, loop->it, &loop->after))
        loop->after = MISSING;
    return loop->after;
}

static bool loop_next(struct tpl *t, struct loop *loop, struct value *out)
{
    *out = loop->after;
    if (!GIVEN(*out) && !tpl_iter_next(t, loop->it, out))
        return false;
    loop->after = MISSING;
    loop->index0++;
    loop->before = loop->current;
    loop->current = *out;
    return true;
}

/* Of what cannot tell its length, all that is left is read. */
static int64_t loop_length(struct tpl *t, struct loop *loop)
{
    if (loop->length >= 0)
        return loop->length;
    if (tpl_value_has_length(loop->iterable))
        return loop->length = tpl_value_length(t, loop->iterable);
    struct list *rest = tpl_list_new(t, 0);
    struct value v;
    while (tpl_iter_next(t, loop->it, &v))
        tpl_list_add(t, rest, v);
    loop->it = tpl_iter_of(t, LIST(rest));
    return loop->length = rest->n + loop->index0 + 1 + GIVEN(loop->after);
}

struct value tpl_loop_attr(struct tpl *t, struct loop *loop, const struct str *name)
{
    if (tpl_str_is(name, "index"))
        return INT(loop->index0 + 1);
    if (tpl_str_is(name, "index0"))
        return INT(loop->index0);
    if (tpl_str_is(name, "first"))
        return BOOL(loop->index0 == 0);
    if (tpl_str_is(name, "last"))
        return BOOL(!GIVEN(peek(t, loop)));
    if (tpl_str_is(name, "length"))
        return INT(loop_length(t, loop));
    if (tpl_str_is(name, "revindex"))
        return INT(loop_length(t, loop) - loop->index0);
    if (tpl_str_is(name, "revindex0"))
        return INT(loop_length(t, loop) - loop->index0 - 1);
    if (tpl_str_is(name, "depth"))
        return INT(loop->depth0 + 1);
    if (tpl_str_is(name, "depth0"))
        return INT(loop->depth0);
    if (tpl_str_is(name, "previtem"))
        return loop->index0 ? loop->before : tpl_undefined_hint(t, "there is no previous item");
    if (!tpl_str_is(name, "nextitem"))
        return MISSING;
    struct value next = peek(t, loop);
    return GIVEN(next) ? next : tpl_undefined_hint(t, "there is no next item");
}

static struct loop *loop_new(struct tpl *t, const struct node *n, struct activation *outer,
                             struct value iterable, uint32_t depth0)
{
    struct loop *loop = tpl_zalloc(t, sizeof *loop);
    loop->it = tpl_iter_of(t, iterable);
    loop->iterable = iterable;
    loop->index0 = -1;
    loop->length = -1;
    loop->depth0 = depth0;
    loop->recursive = n->u.loop->recursive ? n : NULL;
    loop->outer = outer;
    return loop;
}

/* Runs a loop in its function's activation `a`; `outer` is that of the function around a recursive
 * loop, else `a`. The else branch runs if no iteration came to its end. */
static enum flow run_loop(struct tpl *t, const struct node *n, struct activation *a,
                          struct activation *outer, struct value iterable, uint32_t depth0)
{
    const struct for_def *def = n->u.loop;
    bool none = true;
    struct value v;
    tpl_at(t, n->line, "for", NULL);
    if (def->test)
        iterable = filtered(t, outer, def, iterable);
    struct loop *loop = loop_new(t, n, outer, iterable, depth0);
    if (def->loop_slot >= 0)
        a->slot[def->loop_slot] = (struct value){V_LOOP, {.loop = loop}};
    while (loop_next(t, loop, &v)) {
        tpl_step(t, 1);
        tpl_at(t, n->line, "for", NULL);
        tpl_assign(t, a, def->target, v);
        tpl_scope_enter(t, a, &def->scope);
        enum flow flow = exec_all(t, a, &def->body);
        if (flow == FLOW_BREAK)
            break;
        none &= flow == FLOW_CONTINUE;
        tpl_at(t, n->line, "for", NULL);
    }
    if (!none || !def->else_body.n)
        return FLOW_NEXT;
    tpl_scope_enter(t, a, &def->else_scope);
    return exec_all(t, a, &def->else_body);
}

static enum flow exec_for(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value iterable = tpl_eval(t, a, n->u.loop->iter);
    if (!n->u.loop->recursive)
        return run_loop(t, n, a, a, iterable, 0);
    run_loop(t, n, tpl_activation_new(t, a, n->u.loop->n_slots), a, iterable, 0);
    return FLOW_NEXT;
}

/* loop(children) in a recursive loop. */
struct value tpl_call_loop(struct tpl *t, struct loop *loop, const struct args *a)
{
    static const struct signature signature = {{"iterable"}, 1, false};
    struct value iterable;
    tpl_args_bind(t, "loop", &signature, a, &iterable);
    if (!loop->recursive)
        tpl_error(t, "The loop must have the 'recursive' marker to be called recursively.");
    size_t mark = t->out_bytes;
    tpl_enter(t);
    struct activation *own = tpl_activation_new(t, loop->outer, loop->recursive->u.loop->n_slots);
    run_loop(t, loop->recursive, own, loop->outer, iterable, loop->depth0 + 1);
    tpl_leave(t);
    return captured(t, mark);
}

/* ---- macros ---- */

static struct value take_keyword(struct args *a, const char *name)
{
    for (uint32_t i = 0; i < a->n_kw; i++)
        if (tpl_str_is(a->kw[i].name, name)) {
            struct value v = a->kw[i].value;
            memmove(&a->kw[i], &a->kw[i + 1], (a->n_kw - i - 1) * sizeof *a->kw);
            a->n_kw--;
            return v;
        }
    return MISSING;
}

static struct args copy_args(struct tpl *t, const struct args *a)
{
    struct args copy = *a;
    copy.kw = tpl_alloc(t, a->n_kw * sizeof *a->kw);
    if (a->n_kw)
        memcpy(copy.kw, a->kw, a->n_kw * sizeof *a->kw);
    return copy;
}

static const char *c_text(struct tpl *t, const struct str *s)
{
    struct sb b;
    tpl_sb_init(&b, t);
    tpl_sb_str(&b, s);
    tpl_sb_char(&b, '\0');
    return b.p;
}

/* Arguments by position, then by name; true if `caller` was among the latter. */
static bool bind_arguments(struct tpl *t, const struct macro_def *d, struct activation *a,
                           struct args *args)
{
    bool found_caller = args->n >= d->args.n && d->explicit_caller;
    for (uint32_t i = 0; i < d->args.n; i++) {
        const struct str *name = d->args.v[i]->u.name.name;
        if (i < args->n) {
            a->slot[d->arg_slots[i]] = args->v[i];
            continue;
        }
        found_caller |= tpl_str_is(name, "caller");
        a->slot[d->arg_slots[i]] = take_keyword(args, c_text(t, name));
    }
    return found_caller;
}

static void bind_rest(struct tpl *t, const struct macro_def *d, struct activation *a,
                      const struct args *args)
{
    const char *name = d->name ? c_text(t, d->name) : "caller";
    if (d->kwargs_slot >= 0) {
        struct dict *kw = tpl_dict_new(t);
        for (uint32_t i = 0; i < args->n_kw; i++)
            tpl_dict_set(t, kw, STR(args->kw[i].name), args->kw[i].value);
        a->slot[d->kwargs_slot] = DICT(kw);
    } else if (args->n_kw)
        tpl_error(t, "macro '%s' takes no keyword argument '%.*s'", name,
                  (int)args->kw[0].name->bytes, args->kw[0].name->p);
    uint32_t extra = args->n > d->args.n ? args->n - d->args.n : 0;
    if (d->varargs_slot >= 0)
        a->slot[d->varargs_slot] = tpl_tuple_of(t, extra, args->v + (extra ? d->args.n : 0));
    else if (extra)
        tpl_error(t, "macro '%s' takes not more than %u argument(s)", name, d->args.n);
}

static void bind_defaults(struct tpl *t, const struct macro_def *d, struct activation *a)
{
    uint32_t required = d->args.n - d->defaults.n;
    for (uint32_t i = 0; i < d->args.n; i++) {
        struct value *slot = &a->slot[d->arg_slots[i]];
        if (GIVEN(*slot))
            continue;
        if (i >= required) {
            *slot = tpl_eval(t, a, d->defaults.v[i - required]);
            continue;
        }
        struct sb b;
        tpl_sb_init(&b, t);
        tpl_sb_text(&b, "parameter ");
        tpl_str_repr_to(&b, d->args.v[i]->u.name.name);
        tpl_sb_text(&b, " was not provided");
        tpl_sb_char(&b, '\0');
        *slot = tpl_undefined_hint(t, b.p);
    }
}

struct value tpl_call_macro(struct tpl *t, const struct macro *m, const struct args *args)
{
    const struct macro_def *d = m->def;
    struct activation *a = tpl_activation_new(t, m->outer, d->n_slots);
    struct args rest = copy_args(t, args);
    struct context *around = t->context;
    tpl_enter(t);
    t->context = m->context;
    bool found_caller = bind_arguments(t, d, a, &rest);
    if (d->caller_slot >= 0 && !found_caller) {
        struct value caller = take_keyword(&rest, "caller");
        a->slot[d->caller_slot] =
            ABSENT(caller) ? tpl_undefined_hint(t, "No caller defined") : caller;
    }
    bind_rest(t, d, a, &rest);
    tpl_scope_enter(t, a, &d->scope);
    bind_defaults(t, d, a);
    size_t mark = t->out_bytes;
    exec_all(t, a, &d->body);
    t->context = around;
    tpl_leave(t);
    return captured(t, mark);
}

static struct value macro_value(struct tpl *t, struct activation *a, const struct macro_def *def)
{
    struct macro *m = tpl_alloc(t, sizeof *m);
    *m = (struct macro){def, a, t->context};
    return (struct value){V_MACRO, {.macro = m}};
}

static void exec_macro(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value m = macro_value(t, a, n->u.macro.def);
    *slot_at(a, n->u.macro.ref) = m;
    if (n->u.macro.export)
        tpl_dict_set(t, t->context->vars, STR(n->u.macro.def->name), m);
}

static void exec_call_block(struct tpl *t, struct activation *a, const struct node *n)
{
    struct value caller = macro_value(t, a, n->u.call_block.def);
    put_text(t, tpl_eval_call_with(t, a, n->u.call_block.call, &caller));
}

static void exec_generation(struct tpl *t, struct activation *a, const struct node *n)
{
    struct args none = {.n = 0};
    struct macro m = {n->u.call_block.def, a, t->context};
    put_text(t, tpl_call_macro(t, &m, &none));
}

/* ---- blocks ---- */

struct value tpl_call_block(struct tpl *t, const struct block_def *def, struct context *context)
{
    struct activation *a = tpl_activation_new(t, NULL, def->n_slots);
    struct context *around = t->context;
    size_t mark = t->out_bytes;
    tpl_enter(t);
    t->context = context;
    if (def->self_slot >= 0)
        a->slot[def->self_slot] = (struct value){.kind = V_SELF};
    if (def->super_slot >= 0)
        a->slot[def->super_slot] = tpl_undefined_hint(t, "there is no parent block");
    tpl_scope_enter(t, a, &def->scope);
    exec_all(t, a, &def->body);
    t->context = around;
    tpl_leave(t);
    return captured(t, mark);
}

/* The context of a scoped block: it sees what the scopes around it hold. */
static struct context *derived(struct tpl *t, struct activation *a, const struct block_def *def)
{
    struct context *c = tpl_alloc(t, sizeof *c);
    struct dict *parent = tpl_dict_copy(t, t->context->parent);
    for (uint32_t i = 0; i < t->context->vars->n; i++)
        tpl_dict_set(t, parent, t->context->vars->e[i].key, t->context->vars->e[i].value);
    for (uint32_t i = 0; i < def->n_locals; i++) {
        struct value v = *slot_at(a, def->locals[i].ref);
        if (GIVEN(v))
            tpl_dict_set(t, parent, STR(def->locals[i].name), v);
    }
    *c = (struct context){tpl_dict_new(t), parent, t->context->globals};
    return c;
}

static void exec_block(struct tpl *t, struct activation *a, const struct node *n)
{
    const struct block_def *def = n->u.block;
    tpl_at(t, n->line, "block", def->name);
    if (def->required)
        tpl_error(t, "Required block '%.*s' not found", (int)def->name->bytes, def->name->p);
    put_text(t, tpl_call_block(t, def, def->scoped ? derived(t, a, def) : t->context));
}

/* ---- all of them ---- */

static enum flow exec_autoescape(struct tpl *t, struct activation *a, const struct node *n)
{
    bool around = t->autoescape;
    tpl_scope_enter(t, a, n->u.autoescape.scope);
    t->autoescape = tpl_value_true(t, tpl_eval(t, a, n->u.autoescape.value));
    enum flow flow = exec_all(t, a, &n->u.autoescape.body);
    t->autoescape = around;
    return flow;
}

static enum flow exec_scoped(struct tpl *t, struct activation *a, const struct node *n)
{
    switch (n->kind) {
    case N_FOR:
        return exec_for(t, a, n);
    case N_IF:
        return exec_if(t, a, n);
    case N_SET_BLOCK:
        return exec_set_block(t, a, n);
    case N_FILTER_BLOCK:
        return exec_filter_block(t, a, n);
    case N_WITH:
        return exec_with(t, a, n);
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        return exec_autoescape(t, a, n);
    }
}

static enum flow exec(struct tpl *t, struct activation *a, const struct node *n)
{
    switch (n->kind) {
    case N_OUTPUT:
        exec_output(t, a, n);
        return FLOW_NEXT;
    case N_SET:
        exec_set(t, a, n);
        return FLOW_NEXT;
    case N_MACRO:
        exec_macro(t, a, n);
        return FLOW_NEXT;
    case N_CALL_BLOCK:
        exec_call_block(t, a, n);
        return FLOW_NEXT;
    case N_GENERATION:
        exec_generation(t, a, n);
        return FLOW_NEXT;
    case N_BLOCK:
        exec_block(t, a, n);
        return FLOW_NEXT;
    case N_EXTERNAL:
        tpl_at(t, n->line, n->u.external, NULL);
        tpl_error(t, "there are no other templates to %s", n->u.external);
    default:
        return exec_scoped(t, a, n);
    }
}

static enum flow exec_all(struct tpl *t, struct activation *a, const struct nodes *body)
{
    enum flow flow = FLOW_NEXT;
    tpl_enter(t);
    for (uint32_t i = 0; i < body->n && flow == FLOW_NEXT; i++) {
        tpl_step(t, 1);
        flow = exec(t, a, body->v[i]);
    }
    tpl_leave(t);
    return flow;
}

void tpl_exec_template(struct tpl *t, const struct llm_template *source)
{
    struct activation *a = tpl_activation_new(t, NULL, source->n_slots);
    if (source->self_slot >= 0)
        a->slot[source->self_slot] = (struct value){.kind = V_SELF};
    tpl_scope_enter(t, a, &source->scope);
    exec_all(t, a, &source->body);
}
