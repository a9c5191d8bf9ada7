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
#include "template_internal.h"

struct function_slots {
    struct function_slots *outer;
    uint16_t depth;
    struct slot_name {
        uint32_t level;
        const struct str *name;
    } * v; /* (n) */
    uint32_t n, room;
};

struct symbol {
    const struct str *name;
    uint16_t slot;
    uint8_t load; /* enum load_kind */
    bool stored;
};

struct symbols {
    struct symbols *outer;
    uint32_t level;
    struct function_slots *f;
    struct symbol *v; /* (n) */
    uint32_t n, room;
};

/* Where the names of a statement are bound. */
struct frame {
    struct tpl *t;
    struct symbols *s;
    bool toplevel; /* assignments reach the context */
    bool soft;     /* in an `if`: unknown filters are errors only when reached */
};

/* ---- symbols ---- */

static struct symbols *symbols_new(struct tpl *t, struct symbols *outer, struct function_slots *f)
{
    struct symbols *s = tpl_zalloc(t, sizeof *s);
    s->outer = outer;
    s->level = outer ? outer->level + 1 : 0;
    s->f = f;
    return s;
}

static struct function_slots *function_new(struct tpl *t, struct function_slots *outer)
{
    struct function_slots *f = tpl_zalloc(t, sizeof *f);
    f->outer = outer;
    f->depth = outer ? (uint16_t)(outer->depth + 1) : 0;
    return f;
}

static uint16_t slot_of(struct tpl *t, struct function_slots *f, uint32_t level,
                        const struct str *name)
{
    tpl_step(t, 1 + f->n / 8);
    for (uint32_t i = 0; i < f->n; i++)
        if (f->v[i].level == level && tpl_str_eq(f->v[i].name, name))
            return (uint16_t)i;
    if (f->n == UINT16_MAX)
        tpl_limit(t, "more than %d variables", UINT16_MAX);
    f->v = tpl_room(t, f->v, f->n, &f->room, sizeof *f->v);
    f->v[f->n] = (struct slot_name){level, name};
    return (uint16_t)f->n++;
}

static struct symbol *own(struct tpl *t, const struct symbols *s, const struct str *name)
{
    tpl_step(t, 1 + s->n / 8);
    for (uint32_t i = 0; i < s->n; i++)
        if (tpl_str_eq(s->v[i].name, name))
            return &s->v[i];
    return NULL;
}

/* The symbol that a name means in s, and whose it is. */
static struct symbol *find(struct tpl *t, struct symbols *s, const struct str *name,
                           struct symbols **owner)
{
    for (; s; s = s->outer) {
        struct symbol *x = own(t, s, name);
        if (x) {
            *owner = s;
            return x;
        }
    }
    return NULL;
}

static struct symbol *define(struct tpl *t, struct symbols *s, const struct str *name,
                             enum load_kind load)
{
    struct symbol *x = own(t, s, name);
    if (!x) {
        s->v = tpl_room(t, s->v, s->n, &s->room, sizeof *s->v);
        x = &s->v[s->n++];
        *x = (struct symbol){.name = name, .slot = slot_of(t, s->f, s->level, name)};
    }
    x->load = (uint8_t)load;
    return x;
}

static uint16_t declare_parameter(struct tpl *t, struct symbols *s, const struct str *name)
{
    struct symbol *x = define(t, s, name, LOAD_PARAM);
    x->stored = true;
    return x->slot;
}

static void store(struct tpl *t, struct symbols *s, const struct str *name)
{
    struct symbols *owner;
    struct symbol *x = own(t, s, name);
    if (!x)
        x = define(t, s, name,
                   s->outer && find(t, s->outer, name, &owner) ? LOAD_ALIAS : LOAD_UNDEFINED);
    x->stored = true;
}

static void load(struct tpl *t, struct symbols *s, const struct str *name)
{
    struct symbols *owner;
    if (!find(t, s, name, &owner))
        define(t, s, name, LOAD_RESOLVE);
}

static struct symbols *copy(struct tpl *t, const struct symbols *s)
{
    struct symbols *c = tpl_alloc(t, sizeof *c);
    *c = *s;
    c->room = s->n;
    c->v = tpl_alloc(t, s->n * sizeof *s->v);
    if (s->n)
        memcpy(c->v, s->v, s->n * sizeof *s->v);
    return c;
}

/* What the branches of an `if` did: a name that any of them assigns may be unassigned behind it. */
static void merge(struct tpl *t, struct symbols *s, struct symbols *const *branches, size_t n)
{
    struct symbols *before = copy(t, s), *owner;
    for (size_t b = 0; b < n; b++)
        for (uint32_t i = 0; i < branches[b]->n; i++) {
            const struct symbol *x = &branches[b]->v[i];
            struct symbol *mine = define(t, s, x->name, x->load);
            mine->stored |= x->stored;
        }
    for (uint32_t i = 0; i < s->n; i++) {
        struct symbol *x = &s->v[i], *was = own(t, before, x->name);
        if (!x->stored || (was && was->stored))
            continue;
        x->load = s->outer && find(t, s->outer, x->name, &owner) ? LOAD_ALIAS : LOAD_RESOLVE;
    }
}

/* ---- looking at a scope's own statements ---- */

static void look(struct tpl *t, struct symbols *s, const struct node *n);

static void look_all(struct tpl *t, struct symbols *s, const struct nodes *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        look(t, s, list->v[i]);
}

static void look_args(struct tpl *t, struct symbols *s, const struct node_args *a)
{
    look_all(t, s, &a->positional);
    look_all(t, s, &a->kw);
    look(t, s, a->dyn_args);
    look(t, s, a->dyn_kwargs);
}

static void look_if(struct tpl *t, struct symbols *s, const struct node *n)
{
    const struct branch *b = n->u.branches.v, *end = b + n->u.branches.n;
    look(t, s, b->test);
    struct symbols *yes = copy(t, s), *elifs = copy(t, s), *no = copy(t, s);
    look_all(t, yes, &b->body);
    for (b++; b < end; b++) {
        if (!b->test) {
            look_all(t, no, &b->body);
            continue;
        }
        look(t, elifs, b->test);
        struct symbols *body = copy(t, elifs);
        look_all(t, body, &b->body);
        merge(t, elifs, &body, 1);
    }
    merge(t, s, (struct symbols *[]){yes, elifs, no}, 3);
}

static void look_statement(struct tpl *t, struct symbols *s, const struct node *n)
{
    switch (n->kind) {
    case N_FOR:
        look(t, s, n->u.loop->iter);
        break;
    case N_IF:
        look_if(t, s, n);
        break;
    case N_SET:
        look(t, s, n->u.set.value);
        look(t, s, n->u.set.target);
        break;
    case N_SET_BLOCK:
        look(t, s, n->u.set_block.target);
        break;
    case N_MACRO:
        store(t, s, n->u.macro.def->name);
        break;
    case N_CALL_BLOCK:
        look(t, s, n->u.call_block.call);
        break;
    case N_FILTER_BLOCK:
        look(t, s, n->u.filter_block.filter);
        break;
    case N_WITH:
        look_all(t, s, &n->u.with.values);
        break;
    default:
        break;
    }
}

static void look_name(struct tpl *t, struct symbols *s, const struct node *n)
{
    if (n->u.name.use == USE_LOAD)
        load(t, s, n->u.name.name);
    else if (n->u.name.use == USE_STORE)
        store(t, s, n->u.name.name);
    else
        declare_parameter(t, s, n->u.name.name);
}

static void look(struct tpl *t, struct symbols *s, const struct node *n)
{
    if (!n)
        return;
    switch (n->kind) {
    case N_CONST:
        break;
    case N_NAME:
        look_name(t, s, n);
        break;
    case N_NSREF:
        load(t, s, n->u.nsref.name);
        break;
    case N_TUPLE:
    case N_LIST:
    case N_DICT:
    case N_CONCAT:
    case N_OUTPUT:
        look_all(t, s, &n->u.items);
        break;
    case N_ATTR:
        look(t, s, n->u.attr.of);
        break;
    case N_ITEM:
        look(t, s, n->u.item.of);
        look(t, s, n->u.item.key);
        break;
    case N_SLICE:
        look(t, s, n->u.slice.start);
        look(t, s, n->u.slice.stop);
        look(t, s, n->u.slice.step);
        break;
    case N_CALL:
        look(t, s, n->u.call.of);
        look_args(t, s, n->u.call.args);
        break;
    case N_FILTER:
        look(t, s, n->u.filter.of);
        look_args(t, s, n->u.filter.args);
        break;
    case N_TEST:
        look(t, s, n->u.test.of);
        look_args(t, s, n->u.test.args);
        break;
    case N_COND:
        look(t, s, n->u.cond.test);
        look(t, s, n->u.cond.yes);
        look(t, s, n->u.cond.no);
        break;
    case N_NOT:
    case N_NEG:
    case N_POS:
        look(t, s, n->u.operand);
        break;
    case N_COMPARE:
        look(t, s, n->u.compare.first);
        look_all(t, s, &n->u.compare.rest);
        break;
    case N_AND:
    case N_OR:
    case N_ADD:
    case N_SUB:
    case N_MUL:
    case N_DIV:
    case N_FLOORDIV:
    case N_MOD:
    case N_POW:
        look(t, s, n->u.pair.left);
        look(t, s, n->u.pair.right);
        break;
    default:
        look_statement(t, s, n);
    }
}

/* A target whose names are parameters of the scope. */
static void look_parameters(struct tpl *t, struct symbols *s, const struct node *n)
{
    if (n->kind == N_NAME)
        declare_parameter(t, s, n->u.name.name);
    for (uint32_t i = 0; n->kind == N_TUPLE && i < n->u.items.n; i++)
        look_parameters(t, s, n->u.items.v[i]);
}

/* ---- whether a body uses a name before it assigns it ---- */

enum use { NOT_SEEN, USED, ASSIGNED };

struct search {
    struct tpl *t;
    const char *name;
    enum use seen;
};

static void search(struct search *x, const struct node *n);

static void search_all(struct search *x, const struct nodes *list)
{
    for (uint32_t i = 0; i < list->n && x->seen == NOT_SEEN; i++)
        search(x, list->v[i]);
}

static void search_args(struct search *x, const struct node_args *a)
{
    search_all(x, &a->positional);
    search_all(x, &a->kw);
    search(x, a->dyn_args);
    search(x, a->dyn_kwargs);
}

static void search_macro(struct search *x, const struct macro_def *d)
{
    search_all(x, &d->args);
    search_all(x, &d->defaults);
    search_all(x, &d->body);
}

static void search_for(struct search *x, const struct for_def *f)
{
    search(x, f->target);
    search(x, f->iter);
    search_all(x, &f->body);
    search_all(x, &f->else_body);
    search(x, f->test);
}

static void search_statement(struct search *x, const struct node *n)
{
    switch (n->kind) {
    case N_FOR:
        search_for(x, n->u.loop);
        break;
    case N_IF:
        for (uint32_t i = 0; i < n->u.branches.n; i++) {
            search(x, n->u.branches.v[i].test);
            search_all(x, &n->u.branches.v[i].body);
        }
        break;
    case N_SET:
        search(x, n->u.set.target);
        search(x, n->u.set.value);
        break;
    case N_SET_BLOCK:
        search(x, n->u.set_block.target);
        search(x, n->u.set_block.filter);
        search_all(x, &n->u.set_block.body);
        break;
    case N_MACRO:
        search_macro(x, n->u.macro.def);
        break;
    case N_CALL_BLOCK:
    case N_GENERATION:
        search(x, n->u.call_block.call);
        search_macro(x, n->u.call_block.def);
        break;
    case N_FILTER_BLOCK:
        search_all(x, &n->u.filter_block.body);
        search(x, n->u.filter_block.filter);
        break;
    case N_WITH:
        search_all(x, &n->u.with.targets);
        search_all(x, &n->u.with.values);
        search_all(x, &n->u.with.body);
        break;
    case N_AUTOESCAPE:
        search(x, n->u.autoescape.value);
        search_all(x, &n->u.autoescape.body);
        break;
    case N_BLOCK: /* a scoped one sees the loop around it */
        if (n->u.block->scoped && !strcmp(x->name, "loop"))
            x->seen = USED;
        break;
    default:
        break;
    }
}

static void search(struct search *x, const struct node *n)
{
    if (!n || x->seen != NOT_SEEN)
        return;
    tpl_step(x->t, 1);
    switch (n->kind) {
    case N_CONST:
    case N_NSREF:
        break;
    case N_NAME:
        if (tpl_str_is(n->u.name.name, x->name))
            x->seen = n->u.name.use == USE_LOAD ? USED : ASSIGNED;
        break;
    case N_TUPLE:
    case N_LIST:
    case N_DICT:
    case N_CONCAT:
    case N_OUTPUT:
        search_all(x, &n->u.items);
        break;
    case N_ATTR:
        search(x, n->u.attr.of);
        break;
    case N_ITEM:
        search(x, n->u.item.of);
        search(x, n->u.item.key);
        break;
    case N_SLICE:
        search(x, n->u.slice.start);
        search(x, n->u.slice.stop);
        search(x, n->u.slice.step);
        break;
    case N_CALL:
        search(x, n->u.call.of);
        search_args(x, n->u.call.args);
        break;
    case N_FILTER:
        search(x, n->u.filter.of);
        search_args(x, n->u.filter.args);
        break;
    case N_TEST:
        search(x, n->u.test.of);
        search_args(x, n->u.test.args);
        break;
    case N_COND:
        search(x, n->u.cond.test);
        search(x, n->u.cond.yes);
        search(x, n->u.cond.no);
        break;
    case N_NOT:
    case N_NEG:
    case N_POS:
        search(x, n->u.operand);
        break;
    case N_COMPARE:
        search(x, n->u.compare.first);
        search_all(x, &n->u.compare.rest);
        break;
    case N_AND:
    case N_OR:
    case N_ADD:
    case N_SUB:
    case N_MUL:
    case N_DIV:
    case N_FLOORDIV:
    case N_MOD:
    case N_POW:
        search(x, n->u.pair.left);
        search(x, n->u.pair.right);
        break;
    default:
        search_statement(x, n);
    }
}

static bool uses(struct tpl *t, const struct nodes *body, const char *name)
{
    struct search x = {t, name, NOT_SEEN};
    search_all(&x, body);
    return x.seen == USED;
}

/* ---- binding ---- */

static struct slot_ref ref(const struct frame *f, const struct str *name, uint32_t line)
{
    struct symbols *owner;
    struct symbol *x = find(f->t, f->s, name, &owner);
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
            struct symbol *outer = find(f->t, s->outer, x->name, &owner);
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
    return (struct frame){.t = f->t, .s = symbols_new(f->t, f->s, own_function)};
}

static void bind(const struct frame *f, struct node *n);

static void bind_all(const struct frame *f, const struct nodes *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        bind(f, list->v[i]);
}

static void bind_args(const struct frame *f, const struct node_args *a)
{
    bind_all(f, &a->positional);
    bind_all(f, &a->kw);
    bind(f, a->dyn_args);
    bind(f, a->dyn_kwargs);
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
    struct function_slots *own_function = d->recursive ? function_new(f->t, f->s->f) : NULL;
    struct frame loop = inner(f, own_function), no = inner(f, own_function);
    d->loop_slot = -1;
    if (d->recursive || uses(f->t, &d->body, "loop"))
        d->loop_slot = declare_parameter(f->t, loop.s, tpl_str_text(f->t, "loop"));
    look_parameters(f->t, loop.s, d->target);
    look_all(f->t, loop.s, &d->body);
    look_all(f->t, no.s, &d->else_body);
    if (d->test) {
        struct frame test = inner(f, function_new(f->t, f->s->f));
        look_parameters(f->t, test.s, d->test_target);
        look(f->t, test.s, d->test);
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
    look_all(f->t, f->s, &d->args);
    look_all(f->t, f->s, &d->defaults);
    look_all(f->t, f->s, &d->body);
}

static int special(const struct frame *f, const char *name)
{
    return declare_parameter(f->t, f->s, tpl_str_text(f->t, name));
}

static void bind_specials(const struct frame *f, struct macro_def *d, uint32_t line)
{
    int caller = argument(d, "caller");
    d->caller_slot = d->kwargs_slot = d->varargs_slot = -1;
    d->explicit_caller = caller >= 0;
    if (uses(f->t, &d->body, "caller")) {
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
    if (argument(d, "kwargs") < 0 && uses(f->t, &d->body, "kwargs"))
        d->kwargs_slot = special(f, "kwargs");
    if (argument(d, "varargs") < 0 && uses(f->t, &d->body, "varargs"))
        d->varargs_slot = special(f, "varargs");
}

static void bind_macro(const struct frame *outer, struct macro_def *d, uint32_t line)
{
    struct frame f = inner(outer, function_new(outer->t, outer->s->f));
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
        look_parameters(f->t, with.s, n->u.with.targets.v[i]);
    look_all(f->t, with.s, &n->u.with.body);
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
    look_all(f->t, body.s, &n->u.set_block.body);
    bind_all(&body, &n->u.set_block.body);
    bind(f, n->u.set_block.target);
    bind(&body, n->u.set_block.filter);
    n->u.set_block.scope = new_entry(&body);
}

static void bind_filter_block(const struct frame *f, struct node *n)
{
    struct frame body = inner(f, NULL);
    look_all(f->t, body.s, &n->u.filter_block.body);
    look(f->t, body.s, n->u.filter_block.filter);
    bind_all(&body, &n->u.filter_block.body);
    bind(&body, n->u.filter_block.filter);
    n->u.filter_block.scope = new_entry(&body);
}

static void bind_autoescape(const struct frame *f, struct node *n)
{
    struct frame body = inner(f, NULL);
    look(f->t, body.s, n->u.autoescape.value);
    look_all(f->t, body.s, &n->u.autoescape.body);
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

static void bind_condition(const struct frame *f, struct node *n)
{
    struct frame soft = *f;
    soft.soft = true;
    bind(&soft, n->u.cond.test);
    bind(&soft, n->u.cond.yes);
    bind(&soft, n->u.cond.no);
}

static void bind(const struct frame *f, struct node *n)
{
    if (!n)
        return;
    switch (n->kind) {
    case N_CONST:
        break;
    case N_NAME:
        n->u.name.ref = ref(f, n->u.name.name, n->line);
        n->u.name.export = f->toplevel && n->u.name.use == USE_STORE;
        break;
    case N_NSREF:
        n->u.nsref.ref = ref(f, n->u.nsref.name, n->line);
        break;
    case N_TUPLE:
    case N_LIST:
    case N_DICT:
    case N_CONCAT:
    case N_OUTPUT:
        bind_all(f, &n->u.items);
        break;
    case N_ATTR:
        bind(f, n->u.attr.of);
        break;
    case N_ITEM:
        bind(f, n->u.item.of);
        bind(f, n->u.item.key);
        break;
    case N_SLICE:
        bind(f, n->u.slice.start);
        bind(f, n->u.slice.stop);
        bind(f, n->u.slice.step);
        break;
    case N_CALL:
        bind(f, n->u.call.of);
        bind_args(f, n->u.call.args);
        break;
    case N_FILTER:
        check_known(f, n, "filter", n->u.filter.filter, n->u.filter.name);
        bind(f, n->u.filter.of);
        bind_args(f, n->u.filter.args);
        break;
    case N_TEST:
        check_known(f, n, "test", n->u.test.test, n->u.test.name);
        bind(f, n->u.test.of);
        bind_args(f, n->u.test.args);
        break;
    case N_COND:
        bind_condition(f, n);
        break;
    case N_NOT:
    case N_NEG:
    case N_POS:
        bind(f, n->u.operand);
        break;
    case N_COMPARE:
        bind(f, n->u.compare.first);
        bind_all(f, &n->u.compare.rest);
        break;
    case N_AND:
    case N_OR:
    case N_ADD:
    case N_SUB:
    case N_MUL:
    case N_DIV:
    case N_FLOORDIV:
    case N_MOD:
    case N_POW:
        bind(f, n->u.pair.left);
        bind(f, n->u.pair.right);
        break;
    default:
        bind_statement(f, n);
    }
}

/* ---- the template and its blocks ---- */

static void resolve_block(struct tpl *t, struct block_def *d)
{
    struct frame f = {.t = t, .s = symbols_new(t, NULL, function_new(t, NULL))};
    d->self_slot = uses(t, &d->body, "self") ? special(&f, "self") : -1;
    d->super_slot = uses(t, &d->body, "super") ? special(&f, "super") : -1;
    look_all(t, f.s, &d->body);
    bind_all(&f, &d->body);
    d->scope = entry(&f);
    d->n_slots = f.s->f->n;
}

void tpl_scope_resolve(struct tpl *t, struct llm_template *out, struct nodes blocks)
{
    struct frame f = {.t = t, .s = symbols_new(t, NULL, function_new(t, NULL)), .toplevel = true};
    out->self_slot = uses(t, &out->body, "self") ? special(&f, "self") : -1;
    look_all(t, f.s, &out->body);
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
