/* template_symbols.c - which names a scope has: the analysis before names are bound to slots.
 *
 * A symbol's load says how its slot starts: as a parameter, as the variable of the same name
 * outside, from the context, or without a value. An `if` is analysed branch by branch: a name that
 * only some of them assign may still be the outer one behind it. (The rules: jinja2/idtracking.py.)
 */
#include "template_symbols.h"

/* ---- symbols ---- */

struct symbols *tpl_symbols_new(struct tpl *t, struct symbols *outer, struct function_slots *f)
{
    struct symbols *s = tpl_zalloc(t, sizeof *s);
    s->outer = outer;
    s->level = outer ? outer->level + 1 : 0;
    s->f = f;
    return s;
}

struct function_slots *tpl_function_new(struct tpl *t, struct function_slots *outer)
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

struct symbol *tpl_symbol_find(struct tpl *t, struct symbols *s, const struct str *name,
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

uint16_t tpl_symbol_parameter(struct tpl *t, struct symbols *s, const struct str *name)
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
                   s->outer && tpl_symbol_find(t, s->outer, name, &owner) ? LOAD_ALIAS
                                                                          : LOAD_UNDEFINED);
    x->stored = true;
}

static void load(struct tpl *t, struct symbols *s, const struct str *name)
{
    struct symbols *owner;
    if (!tpl_symbol_find(t, s, name, &owner))
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
        x->load =
            s->outer && tpl_symbol_find(t, s->outer, x->name, &owner) ? LOAD_ALIAS : LOAD_RESOLVE;
    }
}

/* ---- looking at a scope's own statements ---- */

void tpl_look_all(struct tpl *t, struct symbols *s, const struct nodes *list)
{
    for (uint32_t i = 0; i < list->n; i++)
        tpl_look(t, s, list->v[i]);
}

static void look_if(struct tpl *t, struct symbols *s, const struct node *n)
{
    const struct branch *b = n->u.branches.v, *end = b + n->u.branches.n;
    tpl_look(t, s, b->test);
    struct symbols *yes = copy(t, s), *elifs = copy(t, s), *no = copy(t, s);
    tpl_look_all(t, yes, &b->body);
    for (b++; b < end; b++) {
        if (!b->test) {
            tpl_look_all(t, no, &b->body);
            continue;
        }
        tpl_look(t, elifs, b->test);
        struct symbols *body = copy(t, elifs);
        tpl_look_all(t, body, &b->body);
        merge(t, elifs, &body, 1);
    }
    merge(t, s, (struct symbols *[]){yes, elifs, no}, 3);
}

static void look_statement(struct tpl *t, struct symbols *s, const struct node *n)
{
    switch (n->kind) {
    case N_FOR:
        tpl_look(t, s, n->u.loop->iter);
        break;
    case N_IF:
        look_if(t, s, n);
        break;
    case N_SET:
        tpl_look(t, s, n->u.set.value);
        tpl_look(t, s, n->u.set.target);
        break;
    case N_SET_BLOCK:
        tpl_look(t, s, n->u.set_block.target);
        break;
    case N_MACRO:
        store(t, s, n->u.macro.def->name);
        break;
    case N_CALL_BLOCK:
        tpl_look(t, s, n->u.call_block.call);
        break;
    case N_FILTER_BLOCK:
        tpl_look(t, s, n->u.filter_block.filter);
        break;
    case N_WITH:
        tpl_look_all(t, s, &n->u.with.values);
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
        tpl_symbol_parameter(t, s, n->u.name.name);
}

struct looker {
    struct tpl *t;
    struct symbols *s;
};

static void look_child(void *context, struct node *n)
{
    const struct looker *x = context;
    tpl_look(x->t, x->s, n);
}

void tpl_look(struct tpl *t, struct symbols *s, const struct node *n)
{
    struct looker x = {t, s};
    if (!n)
        return;
    if (n->kind == N_NAME)
        look_name(t, s, n);
    else if (n->kind == N_NSREF)
        load(t, s, n->u.nsref.name);
    else if (!tpl_walk_children(n, look_child, &x))
        look_statement(t, s, n);
}

void tpl_look_parameters(struct tpl *t, struct symbols *s, const struct node *n)
{
    if (n->kind == N_NAME)
        tpl_symbol_parameter(t, s, n->u.name.name);
    for (uint32_t i = 0; n->kind == N_TUPLE && i < n->u.items.n; i++)
        tpl_look_parameters(t, s, n->u.items.v[i]);
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

static void search_child(void *context, struct node *n)
{
    search(context, n);
}

static void search(struct search *x, const struct node *n)
{
    if (!n || x->seen != NOT_SEEN)
        return;
    tpl_step(x->t, 1);
    if (n->kind == N_NAME && tpl_str_is(n->u.name.name, x->name))
        x->seen = n->u.name.use == USE_LOAD ? USED : ASSIGNED;
    else if (n->kind != N_NAME && n->kind != N_NSREF && !tpl_walk_children(n, search_child, x))
        search_statement(x, n);
}

bool tpl_uses(struct tpl *t, const struct nodes *body, const char *name)
{
    struct search x = {t, name, NOT_SEEN};
    search_all(&x, body);
    return x.seen == USED;
}
