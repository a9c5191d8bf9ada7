/* template_walk.c - the children of an expression, in the order in which Jinja2 visits them. */
#include "template_symbols.h"

void tpl_walk_all(const struct nodes *list, tpl_visit *visit, void *context)
{
    for (uint32_t i = 0; i < list->n; i++)
        visit(context, list->v[i]);
}

static void one(struct node *n, tpl_visit *visit, void *context)
{
    if (n)
        visit(context, n);
}

static void arguments(const struct node_args *a, tpl_visit *visit, void *context)
{
    tpl_walk_all(&a->positional, visit, context);
    tpl_walk_all(&a->kw, visit, context);
    one(a->dyn_args, visit, context);
    one(a->dyn_kwargs, visit, context);
}

/* False for names and statements, which have no children in this sense. */
bool tpl_walk_children(const struct node *n, tpl_visit *visit, void *context)
{
    switch (n->kind) {
    case N_CONST:
        return true;
    case N_TUPLE:
    case N_LIST:
    case N_DICT:
    case N_CONCAT:
    case N_OUTPUT:
        tpl_walk_all(&n->u.items, visit, context);
        return true;
    case N_ATTR:
        visit(context, n->u.attr.of);
        return true;
    case N_ITEM:
        visit(context, n->u.item.of);
        visit(context, n->u.item.key);
        return true;
    case N_SLICE:
        one(n->u.slice.start, visit, context);
        one(n->u.slice.stop, visit, context);
        one(n->u.slice.step, visit, context);
        return true;
    case N_CALL:
        visit(context, n->u.call.of);
        arguments(n->u.call.args, visit, context);
        return true;
    case N_FILTER:
        one(n->u.filter.of, visit, context);
        arguments(n->u.filter.args, visit, context);
        return true;
    case N_TEST:
        visit(context, n->u.test.of);
        arguments(n->u.test.args, visit, context);
        return true;
    case N_COND:
        visit(context, n->u.cond.test);
        visit(context, n->u.cond.yes);
        one(n->u.cond.no, visit, context);
        return true;
    case N_NOT:
    case N_NEG:
    case N_POS:
        visit(context, n->u.operand);
        return true;
    case N_COMPARE:
        visit(context, n->u.compare.first);
        tpl_walk_all(&n->u.compare.rest, visit, context);
        return true;
    case N_AND:
    case N_OR:
    case N_ADD:
    case N_SUB:
    case N_MUL:
    case N_DIV:
    case N_FLOORDIV:
    case N_MOD:
    case N_POW:
        visit(context, n->u.pair.left);
        visit(context, n->u.pair.right);
        return true;
    default:
        return false;
    }
}
