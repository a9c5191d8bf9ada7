/* template_scope.c - which variable a name means, decided once for the whole template.
 *
 * Jinja2 compiles a template to Python functions; what a name means follows from that, and this
 * file computes the same (the rules: jinja2/idtracking.py and compiler.py of Jinja2 3.1):
 *
 * - The template, each macro, call block, block, recursive loop and loop filter is a function, with
 *   slots of its own; inner functions see the slots of outer ones, as they are when they look.
 * - for, with, filter, set blocks and autoescape are scopes within a function. A scope knows all
 *   the names in its own statements before it runs. On entry (of each iteration) a name that the
 *   scope assigns starts as what it was outside; one that no scope around knows is looked up in the
 *   context. `if` is no scope.
 * - A slot belongs to a (depth of scope, name): scopes side by side share it.
 *
 * Here the unknown filters and tests are found as well: an error at once, but where they stand in
 * an `if` or conditional expression, only if they are reached.
 */
#include "template_symbols.h"

/* Where the names of a statement are bound. */
struct frame {
    struct tpl *t;
    struct symbols *s;
    bool toplevel; /* assignments reach the context */
    bool soft;     /* in an `if`: unknown filters are errors only when reached */
};

/* ---- binding ---- */

static struct slot_ref ref(const struct frame *f, const struct str *name, uint32_t line)
{
    struct symbols *owner;
    struct symbol *x = tpl_symbol_find(f->t, f->s, name, &owner);
    if (!x) {
        tpl_at(f->t, line, "name", name);
        tpl_fail(f->t, LLM_TEMPLATE_ESYNTAX, "this name cannot be used here");
    }
    return (struct slot_ref){(uint16_t)(f->s->f->depth - owner->f->depth), x->slot};
}

/* The entry of a scope. */
static struct scope entry(const struct frame *f)
{
    struct symbols *s = f->s, *owner;
    struct scope scope = {tpl_alloc(f->t, s->n * sizeof *scope.loads), 0};
    for (uint32_t i = 0; i < s->n; i++) {
        const struct symbol *x = &s->v[i];
        struct load l = {.kind = x->load, .slot = x->slot, .name = x->name};
        if (x->load == LOAD_ALIAS) {
            struct symbol *outer = tpl_symbol_find(f->t, s->outer, x->name, &owner);
            l.from = (struct slot_ref){(uint16_t)(s->f->depth - owner->f->depth), outer->slot};
        }
        if (x->load != LOAD_PARAM)
            scope.loads[scope.n++] = l;
    }
    return scope;
}

static struct scope *new_entry(const struct frame *f)
{
    struct scope *s = tpl_alloc(f->t, sizeof *s);
    *s = entry(f);
    return s;
}

static struct frame inner(const struct frame *f, struct function_slots *function)
{
    struct function_slots *own_function = function ? function : f->s->f;
    return (struct frame){.t = f->t, .s = tpl_symbols_new(f->t, f->s, own_function)};
}

static void bind(const struct frame *f, struct node *n);

static void bind_all(const struct frame *f, const struct nodes *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        bind(f, list->v[i]);
}

static void check_known(const struct frame *f, const struct node *n, const char *what, bool known,
                        const struct str *name)
{
    if (known || f->soft)
        return;
    tpl_at(f->t, n->line, what, name);
    tpl_fail(f->t, LLM_TEMPLATE_ESYNTAX, "No %s named '%.*s'.", what, (int)name->bytes, name->p);
}

static void bind_for(const struct frame *f, struct node *n)
{
    struct for_def *d = n->u.loop;
    struct function_slots *own_function = d->recursive ? tpl_function_new(f->t, f->s->f) : NULL;
    struct frame loop = inner(f, own_function), no = inner(f, own_function);
    d->loop_slot = -1;
    if (d->recursive || tpl_uses(f->t, &d->body, "loop"))
        d->loop_slot = tpl_symbol_parameter(f->t, loop.s, tpl_str_text(f->t, "loop"));
    tpl_look_parameters(f->t, loop.s, d->target);
    tpl_look_all(f->t, loop.s, &d->body);
    tpl_look_all(f->t, no.s, &d->else_body);
    if (d->test) {
        struct frame test = inner(f, tpl_function_new(f->t, f->s->f));
        tpl_look_parameters(f->t, test.s, d->test_target);
        tpl_look(f->t, test.s, d->test);
        bind(&test, d->test_target);
        bind(&test, d->test);
        d->test_scope = entry(&test);
        d->n_test_slots = test.s->f->n;
    }
    bind(f, d->iter);
    bind(&loop, d->target);
    bind_all(&loop, &d->body);
    bind_all(&no, &d->else_body);
    d->scope = entry(&loop);
    d->else_scope = entry(&no);
    d->n_slots = loop.s->f->n;
}

/* Whether an argument of that name is in the signature: its index, or -1. */
static int argument(const struct macro_def *d, const char *name)
{
    for (uint32_t i = 0; i < d->args.n; i++)
        if (tpl_str_is(d->args.v[i]->u.name.name, name))
            return (int)i;
    return -1;
}

static void look_macro(const struct frame *f, const struct macro_def *d)
{
    tpl_look_all(f->t, f->s, &d->args);
    tpl_look_all(f->t, f->s, &d->defaults);
    tpl_look_all(f->t, f->s, &d->body);
}

static int special(const struct frame *f, const char *name)
{
    return tpl_symbol_parameter(f->t, f->s, tpl_str_text(f->t, name));
}

static void bind_specials(const struct frame *f, struct macro_def *d, uint32_t line)
{
    int caller = argument(d, "caller");
    d->caller_slot = d->kwargs_slot = d->varargs_slot = -1;
    d->explicit_caller = caller >= 0;
    if (tpl_uses(f->t, &d->body, "caller")) {
        d->takes_caller = true;
        if (caller < 0)
            d->caller_slot = special(f, "caller");
        else if (d->defaults.n < d->args.n - (uint32_t)caller) {
            tpl_at(f->t, line, NULL, NULL);
            tpl_fail(f->t, LLM_TEMPLATE_ESYNTAX,
                     "When defining macros or call blocks the special \"caller\" argument must be "
                     "omitted or be given a default.");
        }
    }
    if (argument(d, "kwargs") < 0 && tpl_uses(f->t, &d->body, "kwargs"))
        d->kwargs_slot = special(f, "kwargs");
    if (argument(d, "varargs") < 0 && tpl_uses(f->t, &d->body, "varargs"))
        d->varargs_slot = special(f, "varargs");
}

static void bind_macro(const struct frame *outer, struct macro_def *d, uint32_t line)
{
    struct frame f = inner(outer, tpl_function_new(outer->t, outer->s->f));
    look_macro(&f, d);
    bind_specials(&f, d, line);
    look_macro(&f, d); /* again: arguments win over what their defaults look up */
    d->arg_slots = tpl_alloc(f.t, d->args.n * sizeof *d->arg_slots);
    for (uint32_t i = 0; i < d->args.n; i++)
        d->arg_slots[i] = ref(&f, d->args.v[i]->u.name.name, line).slot;
    bind_all(&f, &d->defaults);
    bind_all(&f, &d->body);
    d->scope = entry(&f);
    d->n_slots = f.s->f->n;
}

static void bind_if(const struct frame *f, struct node *n)
{
    struct frame soft = *f;
    soft.soft = true;
    for (uint32_t i = 0; i < n->u.branches.n; i++) {
        bind(&soft, n->u.branches.v[i].test);
        bind_all(&soft, &n->u.branches.v[i].body);
    }
}

static void bind_with(const struct frame *f, struct node *n)
{
    struct frame with = inner(f, NULL);
    for (uint32_t i = 0; i < n->u.with.targets.n; i++)
        tpl_look_parameters(f->t, with.s, n->u.with.targets.v[i]);
    tpl_look_all(f->t, with.s, &n->u.with.body);
    bind_all(&with, &n->u.with.targets);
    bind_all(f, &n->u.with.values);
    bind_all(&with, &n->u.with.body);
    n->u.with.scope = new_entry(&with);
}

/* What the scopes around a scoped block have assigned; the innermost wins. */
static void bind_block(const struct frame *f, struct block_def *d)
{
    uint32_t room = 0;
    if (!d->scoped)
        return;
    for (struct symbols *s = f->s; s; s = s->outer)
        for (uint32_t i = 0; i < s->n; i++) {
            if (!s->v[i].stored)
                continue;
            d->locals = tpl_room(f->t, d->locals, d->n_locals, &room, sizeof *d->locals);
            d->locals[d->n_locals++] = (struct named_slot){s->v[i].name, ref(f, s->v[i].name, 0)};
        }
}

static void bind_set_block(const struct frame *f, struct node *n)
{
    struct frame body = inner(f, NULL);
    tpl_look_all(f->t, body.s, &n->u.set_block.body);
    bind_all(&body, &n->u.set_block.body);
    bind(f, n->u.set_block.target);
    bind(&body, n->u.set_block.filter);
    n->u.set_block.scope = new_entry(&body);
}

static void bind_filter_block(const struct frame *f, struct node *n)
{
    struct frame body = inner(f, NULL);
    tpl_look_all(f->t, body.s, &n->u.filter_block.body);
    tpl_look(f->t, body.s, n->u.filter_block.filter);
    bind_all(&body, &n->u.filter_block.body);
    bind(&body, n->u.filter_block.filter);
    n->u.filter_block.scope = new_entry(&body);
}

static void bind_autoescape(const struct frame *f, struct node *n)
{
    struct frame body = inner(f, NULL);
    tpl_look(f->t, body.s, n->u.autoescape.value);
    tpl_look_all(f->t, body.s, &n->u.autoescape.body);
    bind(&body, n->u.autoescape.value);
    bind_all(&body, &n->u.autoescape.body);
    n->u.autoescape.scope = new_entry(&body);
}

static void bind_statement(const struct frame *f, struct node *n)
{
    switch (n->kind) {
    case N_FOR:
        bind_for(f, n);
        break;
    case N_IF:
        bind_if(f, n);
        break;
    case N_SET:
        bind(f, n->u.set.target);
        bind(f, n->u.set.value);
        break;
    case N_SET_BLOCK:
        bind_set_block(f, n);
        break;
    case N_MACRO:
        bind_macro(f, n->u.macro.def, n->line);
        n->u.macro.ref = ref(f, n->u.macro.def->name, n->line);
        n->u.macro.export = f->toplevel;
        break;
    case N_CALL_BLOCK:
    case N_GENERATION:
        bind_macro(f, n->u.call_block.def, n->line);
        bind(f, n->u.call_block.call);
        break;
    case N_FILTER_BLOCK:
        bind_filter_block(f, n);
        break;
    case N_WITH:
        bind_with(f, n);
        break;
    case N_AUTOESCAPE:
        bind_autoescape(f, n);
        break;
    case N_BLOCK:
        bind_block(f, n->u.block);
        break;
    default:
        break;
    }
}

static void bind_name(const struct frame *f, struct node *n)
{
    n->u.name.ref = ref(f, n->u.name.name, n->line);
    n->u.name.export = f->toplevel && n->u.name.use == USE_STORE;
}

static void bind_child(void *context, struct node *n)
{
    bind(context, n);
}

static void bind(const struct frame *f, struct node *n)
{
    struct frame inside = *f;
    if (!n)
        return;
    if (n->kind == N_FILTER)
        check_known(f, n, "filter", n->u.filter.filter, n->u.filter.name);
    if (n->kind == N_TEST)
        check_known(f, n, "test", n->u.test.test, n->u.test.name);
    inside.soft |= n->kind == N_COND;
    if (n->kind == N_NAME)
        bind_name(f, n);
    else if (n->kind == N_NSREF)
        n->u.nsref.ref = ref(f, n->u.nsref.name, n->line);
    else if (!tpl_walk_children(n, bind_child, &inside))
        bind_statement(f, n);
}

/* ---- the template and its blocks ---- */

static void resolve_block(struct tpl *t, struct block_def *d)
{
    struct frame f = {.t = t, .s = tpl_symbols_new(t, NULL, tpl_function_new(t, NULL))};
    d->self_slot = tpl_uses(t, &d->body, "self") ? special(&f, "self") : -1;
    d->super_slot = tpl_uses(t, &d->body, "super") ? special(&f, "super") : -1;
    tpl_look_all(t, f.s, &d->body);
    bind_all(&f, &d->body);
    d->scope = entry(&f);
    d->n_slots = f.s->f->n;
}

void tpl_scope_resolve(struct tpl *t, struct llm_template *out, struct nodes blocks)
{
    struct frame f = {
        .t = t, .s = tpl_symbols_new(t, NULL, tpl_function_new(t, NULL)), .toplevel = true};
    out->self_slot = tpl_uses(t, &out->body, "self") ? special(&f, "self") : -1;
    tpl_look_all(t, f.s, &out->body);
    bind_all(&f, &out->body);
    out->scope = entry(&f);
    out->n_slots = f.s->f->n;
    out->blocks = tpl_alloc(t, blocks.n * sizeof *out->blocks);
    for (uint32_t i = 0; i < blocks.n; i++) {
        out->blocks[i] = blocks.v[i]->u.block;
        resolve_block(t, out->blocks[i]);
    }
    out->n_blocks = blocks.n;
}
