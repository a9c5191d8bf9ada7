/* template_parse_expr.c - expressions, from the loosest operator to the tightest.
 *
 *   condition  x if test else y
 *   or, and, not
 *   comparison < <= == != > >= in, not in (chained)
 *   + -
 *   ~
 *   * / // %
 *   **         (from the left)
 *   unary - +, then .name [item] (call), then |filter and `is` test
 *
 * A sign binds tighter than a filter: -1|abs is 1.
 */
#include "template_internal.h"

#define MAX_NESTING 200 /* of expressions in source */
#define MAX_HEIGHT  1000

struct node *tpl_node_new(struct parser *p, enum node_kind kind, uint32_t line)
{
    struct node *n = tpl_zalloc(p->t, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    n->height = 1;
    return n;
}

/* Keeps the height of trees within what recursion over them may take. */
void tpl_node_above(struct parser *p, struct node *n, const struct node *child)
{
    if (!child || child->height < n->height)
        return;
    if (child->height >= MAX_HEIGHT) {
        tpl_at(p->t, n->line, NULL, NULL);
        tpl_limit(p->t, "an expression of more than %d operations deep", MAX_HEIGHT);
    }
    n->height = (uint16_t)(child->height + 1);
}

void tpl_node_list_add(struct parser *p, struct nodes *list, uint32_t *room, struct node *n)
{
    list->v = tpl_room(p->t, list->v, list->n, room, sizeof *list->v);
    list->v[list->n++] = n;
}

static void enter(struct parser *p)
{
    if (++p->depth > MAX_NESTING) {
        tpl_at(p->t, p->at->line, NULL, NULL);
        tpl_limit(p->t, "an expression nested more than %d deep", MAX_NESTING);
    }
}

static struct node *constant(struct parser *p, uint32_t line, struct value v)
{
    struct node *n = tpl_node_new(p, N_CONST, line);
    n->u.constant = v;
    return n;
}

static struct node *binary(struct parser *p, enum node_kind kind, uint32_t line, struct node *left,
                           struct node *right)
{
    struct node *n = tpl_node_new(p, kind, line);
    n->u.pair.left = left;
    n->u.pair.right = right;
    tpl_node_above(p, n, left);
    tpl_node_above(p, n, right);
    return n;
}

static struct node *unary(struct parser *p, enum node_kind kind, uint32_t line, struct node *of)
{
    struct node *n = tpl_node_new(p, kind, line);
    n->u.operand = of;
    tpl_node_above(p, n, of);
    return n;
}

/* ---- literals and names ---- */

static struct node *parse_strings(struct parser *p)
{
    uint32_t line = p->at->line;
    const struct str *s = tpl_parse_next(p)->value.u.s;
    while (p->at->kind == T_STRING)
        s = tpl_str_concat(p->t, s, tpl_parse_next(p)->value.u.s);
    return constant(p, line, STR(s));
}

static struct node *parse_list(struct parser *p)
{
    struct node *n = tpl_node_new(p, N_LIST, p->at->line);
    uint32_t room = 0;
    tpl_parse_expect(p, T_LBRACKET);
    while (p->at->kind != T_RBRACKET) {
        if (n->u.items.n)
            tpl_parse_expect(p, T_COMMA);
        if (p->at->kind == T_RBRACKET)
            break;
        tpl_node_list_add(p, &n->u.items, &room, tpl_parse_expression(p, true));
        tpl_node_above(p, n, n->u.items.v[n->u.items.n - 1]);
    }
    tpl_parse_expect(p, T_RBRACKET);
    return n;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *n = tpl_node_new(p, N_DICT, p->at->line);
    uint32_t room = 0;
    tpl_parse_expect(p, T_LBRACE);
    while (p->at->kind != T_RBRACE) {
        if (n->u.items.n)
            tpl_parse_expect(p, T_COMMA);
        if (p->at->kind == T_RBRACE)
            break;
        struct node *key = tpl_parse_expression(p, true);
        tpl_parse_expect(p, T_COLON);
        struct node *value = tpl_parse_expression(p, true);
        tpl_node_list_add(p, &n->u.items, &room, key);
        tpl_node_list_add(p, &n->u.items, &room, value);
        tpl_node_above(p, n, key);
        tpl_node_above(p, n, value);
    }
    tpl_parse_expect(p, T_RBRACE);
    return n;
}

static struct node *parse_name(struct parser *p, bool with_namespace)
{
    struct token *token = tpl_parse_next(p);
    if (tpl_token_is_name(token, "true") || tpl_token_is_name(token, "True"))
        return constant(p, token->line, BOOL(true));
    if (tpl_token_is_name(token, "false") || tpl_token_is_name(token, "False"))
        return constant(p, token->line, BOOL(false));
    if (tpl_token_is_name(token, "none") || tpl_token_is_name(token, "None"))
        return constant(p, token->line, NONE);
    struct node *n = tpl_node_new(p, N_NAME, token->line);
    if (with_namespace && tpl_parse_skip(p, T_DOT)) {
        n->kind = N_NSREF;
        n->u.nsref.name = token->value.u.s;
        n->u.nsref.attr = tpl_parse_expect(p, T_NAME)->value.u.s;
        return n;
    }
    n->u.name.name = token->value.u.s;
    return n;
}

static struct node *parse_primary(struct parser *p, bool with_namespace)
{
    struct node *n;
    switch (p->at->kind) {
    case T_NAME:
        return parse_name(p, with_namespace);
    case T_STRING:
        return parse_strings(p);
    case T_INTEGER:
    case T_FLOAT:
        n = constant(p, p->at->line, p->at->value);
        tpl_parse_next(p);
        return n;
    case T_LPAREN:
        tpl_parse_next(p);
        n = tpl_parse_tuple(p, true, NULL, true);
        tpl_parse_expect(p, T_RPAREN);
        return n;
    case T_LBRACKET:
        return parse_list(p);
    case T_LBRACE:
        return parse_dict(p);
    default:
        tpl_parse_fail(p, p->at->line, "unexpected '%s'", tpl_token_text(p->t, p->at));
    }
}

/* ---- subscripts and calls ---- */

static bool subscript_ends(const struct parser *p)
{
    return p->at->kind == T_RBRACKET || p->at->kind == T_COMMA;
}

static struct node *parse_subscribed(struct parser *p)
{
    struct node *start = NULL, *stop = NULL, *step = NULL;
    uint32_t line = p->at->line;
    if (p->at->kind != T_COLON) {
        start = tpl_parse_expression(p, true);
        if (p->at->kind != T_COLON)
            return start;
    }
    tpl_parse_next(p);
    if (p->at->kind != T_COLON && !subscript_ends(p))
        stop = tpl_parse_expression(p, true);
    if (tpl_parse_skip(p, T_COLON) && !subscript_ends(p))
        step = tpl_parse_expression(p, true);
    struct node *n = tpl_node_new(p, N_SLICE, line);
    n->u.slice.start = start;
    n->u.slice.stop = stop;
    n->u.slice.step = step;
    tpl_node_above(p, n, start);
    tpl_node_above(p, n, stop);
    tpl_node_above(p, n, step);
    return n;
}

static struct node *parse_brackets(struct parser *p, uint32_t line)
{
    struct node *tuple = tpl_node_new(p, N_TUPLE, line);
    uint32_t room = 0;
    while (p->at->kind != T_RBRACKET) {
        if (tuple->u.items.n)
            tpl_parse_expect(p, T_COMMA);
        struct node *n = parse_subscribed(p);
        tpl_node_list_add(p, &tuple->u.items, &room, n);
        tpl_node_above(p, tuple, n);
    }
    tpl_parse_expect(p, T_RBRACKET);
    if (tuple->u.items.n == 1)
        return tuple->u.items.v[0];
    for (uint32_t i = 0; i < tuple->u.items.n; i++)
        if (tuple->u.items.v[i]->kind == N_SLICE)
            tpl_parse_fail(p, line, "a slice among several subscripts");
    return tuple;
}

static struct node *parse_subscript(struct parser *p, struct node *of)
{
    struct token *token = tpl_parse_next(p);
    struct node *n;
    if (token->kind == T_DOT && p->at->kind == T_NAME) {
        n = tpl_node_new(p, N_ATTR, token->line);
        n->u.attr.of = of;
        n->u.attr.name = tpl_parse_next(p)->value.u.s;
        tpl_node_above(p, n, of);
        return n;
    }
    if (token->kind == T_DOT && p->at->kind != T_INTEGER)
        tpl_parse_fail(p, p->at->line, "expected name or number");
    n = tpl_node_new(p, N_ITEM, token->line);
    n->u.item.of = of;
    n->u.item.key = token->kind == T_DOT ? constant(p, p->at->line, tpl_parse_next(p)->value)
                                         : parse_brackets(p, token->line);
    tpl_node_above(p, n, of);
    tpl_node_above(p, n, n->u.item.key);
    return n;
}

struct arg_parser {
    struct node_args *a;
    uint32_t room, kw_room, names_room;
    uint32_t line;
};

static void ensure(struct parser *p, const struct arg_parser *x, bool fits)
{
    if (!fits)
        tpl_parse_fail(p, x->line, "invalid syntax for function call expression");
}

static void parse_keyword(struct parser *p, struct arg_parser *x)
{
    struct node_args *a = x->a;
    ensure(p, x, !a->dyn_kwargs);
    const struct str *name = tpl_parse_next(p)->value.u.s;
    tpl_parse_next(p);
    for (uint32_t i = 0; i < a->kw.n; i++)
        if (tpl_str_eq(a->kw_names[i], name))
            tpl_parse_fail(p, x->line, "keyword argument repeated: %.*s", (int)name->bytes,
                           name->p);
    a->kw_names = tpl_room(p->t, a->kw_names, a->kw.n, &x->names_room, sizeof *a->kw_names);
    a->kw_names[a->kw.n] = name;
    tpl_node_list_add(p, &a->kw, &x->kw_room, tpl_parse_expression(p, true));
}

static void parse_argument(struct parser *p, struct arg_parser *x)
{
    struct node_args *a = x->a;
    if (tpl_parse_skip(p, T_MUL)) {
        ensure(p, x, !a->dyn_args && !a->dyn_kwargs);
        a->dyn_args = tpl_parse_expression(p, true);
    } else if (tpl_parse_skip(p, T_POW)) {
        ensure(p, x, !a->dyn_kwargs);
        a->dyn_kwargs = tpl_parse_expression(p, true);
    } else if (p->at->kind == T_NAME && p->at[1].kind == T_ASSIGN) {
        parse_keyword(p, x);
    } else {
        ensure(p, x, !a->dyn_args && !a->dyn_kwargs && !a->kw.n);
        tpl_node_list_add(p, &a->positional, &x->room, tpl_parse_expression(p, true));
    }
}

static struct node_args *parse_call_args(struct parser *p)
{
    struct arg_parser x = {.a = tpl_zalloc(p->t, sizeof *x.a), .line = p->at->line};
    bool more = false;
    tpl_parse_expect(p, T_LPAREN);
    while (p->at->kind != T_RPAREN) {
        if (more)
            tpl_parse_expect(p, T_COMMA);
        if (more && p->at->kind == T_RPAREN)
            break;
        parse_argument(p, &x);
        more = true;
    }
    tpl_parse_expect(p, T_RPAREN);
    return x.a;
}

static void node_above_args(struct parser *p, struct node *n, const struct node_args *a)
{
    if (!a)
        return;
    for (uint32_t i = 0; i < a->positional.n; i++)
        tpl_node_above(p, n, a->positional.v[i]);
    for (uint32_t i = 0; i < a->kw.n; i++)
        tpl_node_above(p, n, a->kw.v[i]);
    tpl_node_above(p, n, a->dyn_args);
    tpl_node_above(p, n, a->dyn_kwargs);
}

static struct node *parse_call(struct parser *p, struct node *of)
{
    struct node *n = tpl_node_new(p, N_CALL, p->at->line);
    n->u.call.of = of;
    n->u.call.args = parse_call_args(p);
    tpl_node_above(p, n, of);
    node_above_args(p, n, n->u.call.args);
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (;;) {
        if (p->at->kind == T_DOT || p->at->kind == T_LBRACKET)
            n = parse_subscript(p, n);
        else if (p->at->kind == T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
    }
}

/* ---- filters and tests ---- */

static const struct str *parse_dotted(struct parser *p)
{
    const struct str *name = tpl_parse_expect(p, T_NAME)->value.u.s;
    while (tpl_parse_skip(p, T_DOT)) {
        name = tpl_str_concat(p->t, name, tpl_str_text(p->t, "."));
        name = tpl_str_concat(p->t, name, tpl_parse_expect(p, T_NAME)->value.u.s);
    }
    return name;
}

static struct node *parse_filter(struct parser *p, struct node *of)
{
    struct node *n = tpl_node_new(p, N_FILTER, p->at->line);
    n->u.filter.of = of;
    n->u.filter.name = parse_dotted(p);
    n->u.filter.filter = tpl_filter_find(n->u.filter.name);
    n->u.filter.args =
        p->at->kind == T_LPAREN ? parse_call_args(p) : tpl_zalloc(p->t, sizeof(struct node_args));
    tpl_node_above(p, n, of);
    node_above_args(p, n, n->u.filter.args);
    return n;
}

struct node *tpl_parse_filters(struct parser *p, struct node *of, bool inline_start)
{
    while (inline_start || tpl_parse_skip(p, T_PIPE)) {
        of = parse_filter(p, of);
        inline_start = false;
    }
    return of;
}

/* Whether what follows a test's name is its argument, written without parentheses. */
static bool bare_argument(struct parser *p)
{
    switch (p->at->kind) {
    case T_NAME:
        if (tpl_token_is_name(p->at, "is"))
            tpl_parse_fail(p, p->at->line, "You cannot chain multiple tests with is");
        return !tpl_token_is_name(p->at, "else") && !tpl_token_is_name(p->at, "or") &&
               !tpl_token_is_name(p->at, "and");
    case T_STRING:
    case T_INTEGER:
    case T_FLOAT:
    case T_LBRACKET:
    case T_LBRACE:
        return true;
    default:
        return false;
    }
}

static struct node_args *parse_test_args(struct parser *p)
{
    if (p->at->kind == T_LPAREN)
        return parse_call_args(p);
    struct node_args *a = tpl_zalloc(p->t, sizeof *a);
    uint32_t room = 0;
    if (bare_argument(p))
        tpl_node_list_add(p, &a->positional, &room, parse_postfix(p, parse_primary(p, false)));
    return a;
}

static struct node *parse_test(struct parser *p, struct node *of)
{
    uint32_t line = tpl_parse_next(p)->line;
    bool negated = tpl_parse_skip_name(p, "not");
    struct node *n = tpl_node_new(p, N_TEST, line);
    n->u.test.of = of;
    n->u.test.name = parse_dotted(p);
    n->u.test.test = tpl_test_find(n->u.test.name);
    n->u.test.args = parse_test_args(p);
    tpl_node_above(p, n, of);
    node_above_args(p, n, n->u.test.args);
    return negated ? unary(p, N_NOT, line, n) : n;
}

static struct node *parse_filter_expr(struct parser *p, struct node *n)
{
    for (;;) {
        if (p->at->kind == T_PIPE)
            n = tpl_parse_filters(p, n, false);
        else if (tpl_token_is_name(p->at, "is"))
            n = parse_test(p, n);
        else if (p->at->kind == T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
    }
}

/* ---- operators ---- */

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    uint32_t line = p->at->line;
    struct node *n;
    enter(p);
    if (tpl_parse_skip(p, T_SUB))
        n = unary(p, N_NEG, line, parse_unary(p, false));
    else if (tpl_parse_skip(p, T_ADD))
        n = unary(p, N_POS, line, parse_unary(p, false));
    else
        n = parse_primary(p, false);
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_filter_expr(p, n);
    p->depth--;
    return n;
}

static struct node *parse_pow(struct parser *p)
{
    uint32_t line = p->at->line;
    struct node *left = parse_unary(p, true);
    while (tpl_parse_skip(p, T_POW))
        left = binary(p, N_POW, line, left, parse_unary(p, true));
    return left;
}

static struct node *parse_math2(struct parser *p)
{
    struct node *left = parse_pow(p);
    for (;;) {
        enum token_kind kind = p->at->kind;
        uint32_t line = p->at->line;
        if (kind != T_MUL && kind != T_DIV && kind != T_FLOORDIV && kind != T_MOD)
            return left;
        tpl_parse_next(p);
        left = binary(p,
                      kind == T_MUL        ? N_MUL
                      : kind == T_DIV      ? N_DIV
                      : kind == T_FLOORDIV ? N_FLOORDIV
                                           : N_MOD,
                      line, left, parse_pow(p));
    }
}

static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_math2(p), *n = NULL;
    uint32_t room = 0;
    while (p->at->kind == T_TILDE) {
        if (!n) {
            n = tpl_node_new(p, N_CONCAT, p->at->line);
            tpl_node_list_add(p, &n->u.items, &room, first);
            tpl_node_above(p, n, first);
        }
        tpl_parse_next(p);
        struct node *next = parse_math2(p);
        tpl_node_list_add(p, &n->u.items, &room, next);
        tpl_node_above(p, n, next);
    }
    return n ? n : first;
}

static struct node *parse_math1(struct parser *p)
{
    struct node *left = parse_concat(p);
    while (p->at->kind == T_ADD || p->at->kind == T_SUB) {
        struct token *token = tpl_parse_next(p);
        left = binary(p, token->kind == T_ADD ? N_ADD : N_SUB, token->line, left, parse_concat(p));
    }
    return left;
}

static bool parse_compare_op(struct parser *p, uint8_t *op)
{
    switch (p->at->kind) {
    case T_EQ:
        *op = CMP_EQ;
        break;
    case T_NE:
        *op = CMP_NE;
        break;
    case T_LT:
        *op = CMP_LT;
        break;
    case T_LE:
        *op = CMP_LE;
        break;
    case T_GT:
        *op = CMP_GT;
        break;
    case T_GE:
        *op = CMP_GE;
        break;
    case T_NAME:
        *op = CMP_IN;
        if (tpl_token_is_name(p->at, "in"))
            break;
        *op = CMP_NOT_IN;
        if (!tpl_token_is_name(p->at, "not") || !tpl_token_is_name(&p->at[1], "in"))
            return false;
        tpl_parse_next(p);
        break;
    default:
        return false;
    }
    tpl_parse_next(p);
    return true;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *first = parse_math1(p), *n = NULL;
    uint32_t room = 0, ops_room = 0, line = p->at->line;
    uint8_t op;
    while (parse_compare_op(p, &op)) {
        if (!n) {
            n = tpl_node_new(p, N_COMPARE, line);
            n->u.compare.first = first;
            tpl_node_above(p, n, first);
        }
        struct node *next = parse_math1(p);
        n->u.compare.ops = tpl_room(p->t, n->u.compare.ops, n->u.compare.rest.n, &ops_room, 1);
        n->u.compare.ops[n->u.compare.rest.n] = op;
        tpl_node_list_add(p, &n->u.compare.rest, &room, next);
        tpl_node_above(p, n, next);
    }
    return n ? n : first;
}

static struct node *parse_not(struct parser *p)
{
    uint32_t line = p->at->line;
    if (!tpl_parse_skip_name(p, "not"))
        return parse_compare(p);
    enter(p);
    struct node *n = unary(p, N_NOT, line, parse_not(p));
    p->depth--;
    return n;
}

static struct node *parse_and(struct parser *p)
{
    uint32_t line = p->at->line;
    struct node *left = parse_not(p);
    while (tpl_parse_skip_name(p, "and"))
        left = binary(p, N_AND, line, left, parse_not(p));
    return left;
}

static struct node *parse_or(struct parser *p)
{
    uint32_t line = p->at->line;
    struct node *left = parse_and(p);
    while (tpl_parse_skip_name(p, "or"))
        left = binary(p, N_OR, line, left, parse_and(p));
    return left;
}

static struct node *parse_condition(struct parser *p)
{
    uint32_t line = p->at->line;
    enter(p);
    struct node *yes = parse_or(p);
    while (tpl_parse_skip_name(p, "if")) {
        struct node *n = tpl_node_new(p, N_COND, line);
        n->u.cond.yes = yes;
        n->u.cond.test = parse_or(p);
        if (tpl_parse_skip_name(p, "else"))
            n->u.cond.no = parse_condition(p);
        tpl_node_above(p, n, n->u.cond.yes);
        tpl_node_above(p, n, n->u.cond.test);
        tpl_node_above(p, n, n->u.cond.no);
        yes = n;
        line = p->at->line;
    }
    p->depth--;
    return yes;
}

struct node *tpl_parse_expression(struct parser *p, bool with_condition)
{
    if (with_condition)
        return parse_condition(p);
    enter(p);
    struct node *n = parse_or(p);
    p->depth--;
    return n;
}

/* ---- tuples and targets ---- */

static bool tuple_ends(const struct parser *p, const char *end_name)
{
    switch (p->at->kind) {
    case T_VARIABLE_END:
    case T_BLOCK_END:
    case T_RPAREN:
        return true;
    default:
        return end_name && tpl_token_is_name(p->at, end_name);
    }
}

enum tuple_of_what { OF_EXPRESSIONS, OF_EXPRESSIONS_WITHOUT_CONDITION, OF_NAMES, OF_TARGETS };

static struct node *parse_tuple_item(struct parser *p, enum tuple_of_what what)
{
    if (what == OF_NAMES || what == OF_TARGETS)
        return parse_primary(p, what == OF_TARGETS);
    return tpl_parse_expression(p, what == OF_EXPRESSIONS);
}

static struct node *parse_tuple_of(struct parser *p, enum tuple_of_what what, const char *end_name,
                                   bool parentheses)
{
    struct node *tuple = tpl_node_new(p, N_TUPLE, p->at->line);
    struct nodes *items = &tuple->u.items;
    uint32_t room = 0;
    bool is_tuple = false;
    for (;;) {
        if (items->n)
            tpl_parse_expect(p, T_COMMA);
        if (tuple_ends(p, end_name))
            break;
        tpl_node_list_add(p, items, &room, parse_tuple_item(p, what));
        tpl_node_above(p, tuple, items->v[items->n - 1]);
        if (p->at->kind != T_COMMA)
            break;
        is_tuple = true;
    }
    if (!is_tuple && items->n)
        return items->v[0];
    if (!is_tuple && !parentheses)
        tpl_parse_fail(p, p->at->line, "Expected an expression, got '%s'",
                       tpl_token_text(p->t, p->at));
    return tuple;
}

struct node *tpl_parse_tuple(struct parser *p, bool with_condition, const char *end_name,
                             bool parentheses)
{
    return parse_tuple_of(p, with_condition ? OF_EXPRESSIONS : OF_EXPRESSIONS_WITHOUT_CONDITION,
                          end_name, parentheses);
}

static void make_target(struct parser *p, struct node *n)
{
    switch (n->kind) {
    case N_NAME:
        n->u.name.use = USE_STORE;
        p->loop_stores += tpl_str_is(n->u.name.name, "loop");
        break;
    case N_NSREF:
        break;
    case N_TUPLE:
        for (uint32_t i = 0; i < n->u.items.n; i++)
            make_target(p, n->u.items.v[i]);
        break;
    default:
        tpl_parse_fail(p, n->line, "can't assign to this expression");
    }
}

struct node *tpl_parse_target(struct parser *p, const char *end_name, bool with_namespace)
{
    struct node *n = parse_tuple_of(p, with_namespace ? OF_TARGETS : OF_NAMES, end_name, false);
    make_target(p, n);
    return n;
}

/* A single name. */
struct node *tpl_parse_target_name(struct parser *p)
{
    static const char *const words[] = {"true", "false", "none", "True", "False", "None"};
    struct token *token = tpl_parse_expect(p, T_NAME);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (tpl_token_is_name(token, words[i]))
            tpl_parse_fail(p, token->line, "can't assign to '%s'", words[i]);
    struct node *n = tpl_node_new(p, N_NAME, token->line);
    n->u.name.name = token->value.u.s;
    n->u.name.use = USE_PARAM;
    return n;
}
