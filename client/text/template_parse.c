/* template_parse.c - statements. */
#include "template_internal.h"

#include <stdarg.h>
#include <stdio.h>

#define MAX_STATEMENTS 100 /* nested in each other */

/* ---- tokens ---- */

struct token *tpl_parse_next(struct parser *p)
{
    struct token *token = p->at;
    if (token->kind != T_EOF)
        p->at++;
    return token;
}

bool tpl_token_is_name(const struct token *token, const char *name)
{
    return token->kind == T_NAME && tpl_str_is(token->value.u.s, name);
}

bool tpl_parse_skip(struct parser *p, enum token_kind kind)
{
    if (p->at->kind != kind)
        return false;
    tpl_parse_next(p);
    return true;
}

bool tpl_parse_skip_name(struct parser *p, const char *name)
{
    if (!tpl_token_is_name(p->at, name))
        return false;
    tpl_parse_next(p);
    return true;
}

_Noreturn void tpl_parse_fail(struct parser *p, uint32_t line, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tpl_at(p->t, line, p->open_tag ? "tag" : NULL, NULL);
    p->t->what_name = p->open_tag;
    p->t->what_bytes = p->open_tag ? strlen(p->open_tag) : 0;
    tpl_fail(p->t, LLM_TEMPLATE_ESYNTAX, "%s", text);
}

struct token *tpl_parse_expect(struct parser *p, enum token_kind kind)
{
    if (p->at->kind == kind)
        return tpl_parse_next(p);
    struct token wanted = {.kind = kind, .value = STR(tpl_str_text(p->t, "name"))};
    if (p->at->kind == T_EOF)
        tpl_parse_fail(p, p->at->line, "unexpected end of template, expected '%s'",
                       tpl_token_text(p->t, &wanted));
    tpl_parse_fail(p, p->at->line, "expected token '%s', got '%s'", tpl_token_text(p->t, &wanted),
                   tpl_token_text(p->t, p->at));
}

/* ---- bodies ---- */

static struct node *parse_statement(struct parser *p);

static bool at_one_of(const struct parser *p, const char *const *names)
{
    for (; names && *names; names++)
        if (tpl_token_is_name(p->at, *names))
            return true;
    return false;
}

struct body {
    struct nodes statements;
    uint32_t room;
    struct node *output; /* the open one: text and expressions between statements */
    uint32_t output_room;
};

static void add_output(struct parser *p, struct body *b, struct node *n)
{
    if (!b->output) {
        b->output = tpl_node_new(p, N_OUTPUT, n->line);
        b->output_room = 0;
        tpl_node_list_add(p, &b->statements, &b->room, b->output);
    }
    tpl_node_list_add(p, &b->output->u.items, &b->output_room, n);
}

static void parse_data(struct parser *p, struct body *b)
{
    struct node *n = tpl_node_new(p, N_CONST, p->at->line);
    n->u.constant = tpl_parse_next(p)->value;
    n->data = true;
    add_output(p, b, n);
}

static void parse_print_tag(struct parser *p, struct body *b)
{
    tpl_parse_next(p);
    add_output(p, b, tpl_parse_tuple(p, true, NULL, false));
    tpl_parse_expect(p, T_VARIABLE_END);
}

/* Up to one of the end tags, whose name is then the current token; or to the end of the template,
 * where there is none. */
static struct nodes parse_body(struct parser *p, const char *const *ends)
{
    struct body b = {.room = 0};
    for (;;) {
        switch (p->at->kind) {
        case T_DATA:
            parse_data(p, &b);
            break;
        case T_VARIABLE_BEGIN:
            parse_print_tag(p, &b);
            break;
        case T_BLOCK_BEGIN:
            b.output = NULL;
            tpl_parse_next(p);
            if (at_one_of(p, ends))
                return b.statements;
            tpl_node_list_add(p, &b.statements, &b.room, parse_statement(p));
            tpl_parse_expect(p, T_BLOCK_END);
            break;
        default:
            if (ends)
                tpl_parse_fail(p, p->at->line,
                               "unexpected end of template, looking for the tag '%s'", *ends);
            return b.statements;
        }
    }
}

static struct nodes parse_statements(struct parser *p, const char *const *ends)
{
    tpl_parse_skip(p, T_COLON);
    tpl_parse_expect(p, T_BLOCK_END);
    if (++p->statement_depth > MAX_STATEMENTS) {
        tpl_at(p->t, p->at->line, NULL, NULL);
        tpl_limit(p->t, "tags nested more than %d deep", MAX_STATEMENTS);
    }
    struct nodes body = parse_body(p, ends);
    p->statement_depth--;
    return body;
}

/* Up to one end tag, which is taken. */
static struct nodes parse_until(struct parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct nodes body = parse_statements(p, ends);
    tpl_parse_next(p);
    return body;
}

/* The same for a body that is a function of its own: `break` cannot leave it. */
static struct nodes parse_function(struct parser *p, const char *end)
{
    uint32_t loops = p->loops;
    p->loops = 0;
    struct nodes body = parse_until(p, end);
    p->loops = loops;
    return body;
}

/* ---- for, if ---- */

static struct node *clone_target(struct parser *p, const struct node *n)
{
    struct node *copy = tpl_node_new(p, n->kind, n->line);
    *copy = *n;
    if (n->kind == N_TUPLE) {
        copy->u.items.v = tpl_alloc(p->t, n->u.items.n * sizeof *n->u.items.v);
        for (uint32_t i = 0; i < n->u.items.n; i++)
            copy->u.items.v[i] = clone_target(p, n->u.items.v[i]);
    }
    return copy;
}

static void parse_for_bodies(struct parser *p, struct for_def *f)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    uint32_t loops = p->loops;
    p->loops = loops + 1;
    f->body = parse_statements(p, ends);
    p->loops = f->recursive ? 0 : loops;
    if (tpl_token_is_name(tpl_parse_next(p), "else"))
        f->else_body = parse_until(p, "endfor");
    p->loops = loops;
}

static struct node *parse_for(struct parser *p, uint32_t line)
{
    struct node *n = tpl_node_new(p, N_FOR, line);
    struct for_def *f = n->u.loop = tpl_zalloc(p->t, sizeof *f);
    uint32_t stores = p->loop_stores;
    f->target = tpl_parse_target(p, "in", false);
    if (!tpl_parse_skip_name(p, "in"))
        tpl_parse_fail(p, p->at->line, "expected token 'in', got '%s'",
                       tpl_token_text(p->t, p->at));
    f->iter = tpl_parse_tuple(p, false, "recursive", false);
    if (tpl_parse_skip_name(p, "if")) {
        f->test = tpl_parse_expression(p, true);
        f->test_target = clone_target(p, f->target);
    }
    f->recursive = tpl_parse_skip_name(p, "recursive");
    parse_for_bodies(p, f);
    if (p->loop_stores != stores)
        tpl_parse_fail(p, line, "Can't assign to special loop variable in for-loop target");
    return n;
}

static struct node *parse_if(struct parser *p, uint32_t line)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = tpl_node_new(p, N_IF, line);
    uint32_t room = 0;
    bool more = true;
    while (more) {
        struct branch b = {.test = tpl_parse_tuple(p, false, NULL, false)};
        b.body = parse_statements(p, ends);
        n->u.branches.v =
            tpl_room(p->t, n->u.branches.v, n->u.branches.n, &room, sizeof *n->u.branches.v);
        n->u.branches.v[n->u.branches.n++] = b;
        struct token *end = tpl_parse_next(p);
        more = tpl_token_is_name(end, "elif");
        if (tpl_token_is_name(end, "else")) {
            struct branch last = {.body = parse_until(p, "endif")};
            n->u.branches.v =
                tpl_room(p->t, n->u.branches.v, n->u.branches.n, &room, sizeof *n->u.branches.v);
            n->u.branches.v[n->u.branches.n++] = last;
        }
    }
    return n;
}

/* ---- set, with ---- */

static struct node *parse_set(struct parser *p, uint32_t line)
{
    struct node *target = tpl_parse_target(p, NULL, true);
    struct node *n;
    if (tpl_parse_skip(p, T_ASSIGN)) {
        n = tpl_node_new(p, N_SET, line);
        n->u.set.target = target;
        n->u.set.value = tpl_parse_tuple(p, true, NULL, false);
        return n;
    }
    n = tpl_node_new(p, N_SET_BLOCK, line);
    n->u.set_block.target = target;
    n->u.set_block.filter = tpl_parse_filters(p, NULL, false);
    n->u.set_block.body = parse_until(p, "endset");
    return n;
}

static struct node *parse_with(struct parser *p, uint32_t line)
{
    struct node *n = tpl_node_new(p, N_WITH, line);
    uint32_t targets_room = 0, values_room = 0;
    while (p->at->kind != T_BLOCK_END) {
        if (n->u.with.targets.n)
            tpl_parse_expect(p, T_COMMA);
        uint32_t stores = p->loop_stores;
        struct node *target = tpl_parse_target(p, NULL, false);
        p->loop_stores = stores; /* these are parameters */
        tpl_node_list_add(p, &n->u.with.targets, &targets_room, target);
        tpl_parse_expect(p, T_ASSIGN);
        tpl_node_list_add(p, &n->u.with.values, &values_room, tpl_parse_expression(p, true));
    }
    n->u.with.body = parse_until(p, "endwith");
    return n;
}

/* ---- macros, call and filter blocks ---- */

static void check_duplicate(struct parser *p, const struct nodes *args, const struct node *arg)
{
    for (uint32_t i = 0; i < args->n; i++)
        if (tpl_str_eq(args->v[i]->u.name.name, arg->u.name.name))
            tpl_parse_fail(p, arg->line, "duplicate argument '%.*s' in a macro's definition",
                           (int)arg->u.name.name->bytes, arg->u.name.name->p);
}

void tpl_parse_signature(struct parser *p, struct macro_def *def)
{
    uint32_t room = 0, defaults_room = 0;
    tpl_parse_expect(p, T_LPAREN);
    while (p->at->kind != T_RPAREN) {
        if (def->args.n)
            tpl_parse_expect(p, T_COMMA);
        struct node *arg = tpl_parse_target_name(p);
        check_duplicate(p, &def->args, arg);
        if (tpl_parse_skip(p, T_ASSIGN))
            tpl_node_list_add(p, &def->defaults, &defaults_room, tpl_parse_expression(p, true));
        else if (def->defaults.n)
            tpl_parse_fail(p, p->at->line, "non-default argument follows default argument");
        tpl_node_list_add(p, &def->args, &room, arg);
    }
    tpl_parse_expect(p, T_RPAREN);
}

static struct node *parse_macro(struct parser *p, uint32_t line)
{
    struct node *n = tpl_node_new(p, N_MACRO, line);
    struct macro_def *def = n->u.macro.def = tpl_zalloc(p->t, sizeof *def);
    def->name = tpl_parse_target_name(p)->u.name.name;
    tpl_parse_signature(p, def);
    def->body = parse_function(p, "endmacro");
    return n;
}

static struct node *parse_call_block(struct parser *p, uint32_t line)
{
    struct node *n = tpl_node_new(p, N_CALL_BLOCK, line);
    struct macro_def *def = n->u.call_block.def = tpl_zalloc(p->t, sizeof *def);
    if (p->at->kind == T_LPAREN)
        tpl_parse_signature(p, def);
    n->u.call_block.call = tpl_parse_expression(p, true);
    if (n->u.call_block.call->kind != N_CALL)
        tpl_parse_fail(p, line, "expected call");
    def->body = parse_function(p, "endcall");
    return n;
}

static struct node *parse_generation(struct parser *p, uint32_t line)
{
    struct node *n = tpl_node_new(p, N_GENERATION, line);
    struct macro_def *def = n->u.call_block.def = tpl_zalloc(p->t, sizeof *def);
    def->body = parse_function(p, "endgeneration");
    return n;
}

static struct node *parse_filter_block(struct parser *p, uint32_t line)
{
    struct node *n = tpl_node_new(p, N_FILTER_BLOCK, line);
    n->u.filter_block.filter = tpl_parse_filters(p, NULL, true);
    n->u.filter_block.body = parse_until(p, "endfilter");
    return n;
}

/* ---- the others ---- */

static struct node *parse_print(struct parser *p, uint32_t line)
{
    struct node *n = tpl_node_new(p, N_OUTPUT, line);
    uint32_t room = 0;
    while (p->at->kind != T_BLOCK_END) {
        if (n->u.items.n)
            tpl_parse_expect(p, T_COMMA);
        tpl_node_list_add(p, &n->u.items, &room, tpl_parse_expression(p, true));
    }
    return n;
}

static struct node *parse_autoescape(struct parser *p, uint32_t line)
{
    struct node *n = tpl_node_new(p, N_AUTOESCAPE, line);
    n->u.autoescape.value = tpl_parse_expression(p, true);
    n->u.autoescape.body = parse_until(p, "endautoescape");
    return n;
}

static void check_required(struct parser *p, const struct block_def *def)
{
    for (uint32_t i = 0; i < def->body.n; i++) {
        const struct node *n = def->body.v[i];
        for (uint32_t j = 0; n->kind == N_OUTPUT && j < n->u.items.n; j++) {
            const struct node *item = n->u.items.v[j];
            struct value v = item->kind == N_CONST ? item->u.constant : NONE;
            if (v.kind != V_STR || tpl_str_strip(p->t, v.u.s, MISSING, true, true).u.s->bytes)
                tpl_parse_fail(p, n->line,
                               "Required blocks can only contain comments or whitespace");
        }
        if (n->kind != N_OUTPUT)
            tpl_parse_fail(p, n->line, "Required blocks can only contain comments or whitespace");
    }
}

static struct node *parse_block(struct parser *p, uint32_t line)
{
    struct node *n = tpl_node_new(p, N_BLOCK, line);
    struct block_def *def = n->u.block = tpl_zalloc(p->t, sizeof *def);
    def->name = tpl_parse_expect(p, T_NAME)->value.u.s;
    def->scoped = tpl_parse_skip_name(p, "scoped");
    def->required = tpl_parse_skip_name(p, "required");
    for (uint32_t i = 0; i < p->blocks.n; i++)
        if (tpl_str_eq(p->blocks.v[i]->u.block->name, def->name))
            tpl_parse_fail(p, line, "block '%.*s' defined twice", (int)def->name->bytes,
                           def->name->p);
    tpl_node_list_add(p, &p->blocks, &p->blocks_room, n);
    def->body = parse_function(p, "endblock");
    if (def->required)
        check_required(p, def);
    if (p->at->kind == T_NAME && tpl_str_eq(p->at->value.u.s, def->name))
        tpl_parse_next(p);
    return n;
}

static struct node *parse_loop_control(struct parser *p, uint32_t line, enum node_kind kind)
{
    if (!p->loops)
        tpl_parse_fail(p, line, "outside of a loop");
    return tpl_node_new(p, kind, line);
}

/* include, import, from, extends: what they name is skipped, since reaching them is an error. */
static struct node *parse_external(struct parser *p, uint32_t line, const char *tag)
{
    struct node *n = tpl_node_new(p, N_EXTERNAL, line);
    n->u.external = tag;
    tpl_parse_expression(p, true);
    if (!strcmp(tag, "import") || !strcmp(tag, "from")) {
        if (!tpl_parse_skip_name(p, *tag == 'i' ? "as" : "import"))
            tpl_parse_fail(p, p->at->line, "expected token '%s'", *tag == 'i' ? "as" : "import");
        tpl_parse_expect(p, T_NAME);
    }
    while (p->at->kind != T_BLOCK_END && p->at->kind != T_EOF)
        tpl_parse_next(p);
    return n;
}

static struct node *parse_known(struct parser *p, const char *tag, uint32_t line)
{
    static const struct {
        const char *tag;
        struct node *(*parse)(struct parser *p, uint32_t line);
    } tags[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"generation", parse_generation},
        {"print", parse_print},
        {"block", parse_block},
        {"autoescape", parse_autoescape},
    };
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (!strcmp(tags[i].tag, tag))
            return tags[i].parse(p, line);
    if (!strcmp(tag, "break") || !strcmp(tag, "continue"))
        return parse_loop_control(p, line, *tag == 'b' ? N_BREAK : N_CONTINUE);
    return parse_external(p, line, tag);
}

static const char *known_tag(const struct token *token)
{
    static const char *const tags[] = {
        "if",      "for",        "set",   "macro",   "call",       "filter",
        "with",    "generation", "print", "block",   "autoescape", "continue",
        "include", "import",     "from",  "extends", "break",
    };
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (tpl_token_is_name(token, tags[i]))
            return tags[i];
    return NULL;
}

static struct node *parse_statement(struct parser *p)
{
    struct token *token = p->at;
    if (token->kind != T_NAME)
        tpl_parse_fail(p, token->line, "tag name expected");
    const char *tag = known_tag(token), *outer = p->open_tag;
    if (!tag)
        tpl_parse_fail(p, token->line, "Encountered unknown tag '%.*s'.",
                       (int)token->value.u.s->bytes, token->value.u.s->p);
    tpl_parse_next(p);
    p->open_tag = tag;
    struct node *n = parse_known(p, tag, token->line);
    p->open_tag = outer;
    return n;
}

struct nodes tpl_parse_template(struct parser *p)
{
    return parse_body(p, NULL);
}
