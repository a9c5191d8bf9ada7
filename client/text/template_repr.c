/* template_repr.c - str() and repr() of values, as Python writes them.
 *
 * Where Python would print an address there is none to tell: such texts differ from run to run.
 */
#include "template_internal.h"

static void escape_char(struct sb *b, uint32_t cp)
{
    if (cp == '\n')
        tpl_sb_text(b, "\\n");
    else if (cp == '\r')
        tpl_sb_text(b, "\\r");
    else if (cp == '\t')
        tpl_sb_text(b, "\\t");
    else if (cp < 0x100)
        tpl_sb_format(b, "\\x%02x", cp);
    else if (cp < 0x10000)
        tpl_sb_format(b, "\\u%04x", cp);
    else
        tpl_sb_format(b, "\\U%08x", cp);
}

/* In single quotes, unless that would escape some and double ones would not. */
void tpl_str_repr_to(struct sb *b, const struct str *s)
{
    bool has_single = memchr(s->p, '\'', s->bytes), has_double = memchr(s->p, '"', s->bytes);
    char quote = has_single && !has_double ? '"' : '\'';
    tpl_sb_char(b, quote);
    for (size_t i = 0; i < s->bytes;) {
        unsigned bytes;
        uint32_t cp = uni_at(s->p + i, &bytes);
        if (cp == '\\' || cp == (unsigned char)quote)
            tpl_sb_char(b, '\\');
        if (cp >= ' ' && cp < 0x7f)
            tpl_sb_char(b, (char)cp);
        else if (cp >= 0x80 && tpl_uni_flags(cp) & UNI_PRINTABLE)
            tpl_sb_put(b, s->p + i, bytes);
        else
            escape_char(b, cp);
        i += bytes;
    }
    tpl_sb_char(b, quote);
}

static void list_repr(struct sb *b, const struct list *l, bool tuple)
{
    tpl_sb_char(b, tuple ? '(' : '[');
    for (uint32_t i = 0; i < l->n; i++) {
        if (i)
            tpl_sb_text(b, ", ");
        tpl_value_repr_to(b, l->v[i]);
    }
    tpl_sb_text(b, tuple ? (l->n == 1 ? ",)" : ")") : "]");
}

static void dict_repr(struct sb *b, const struct dict *d)
{
    tpl_sb_char(b, '{');
    for (uint32_t i = 0; i < d->n; i++) {
        if (i)
            tpl_sb_text(b, ", ");
        tpl_value_repr_to(b, d->e[i].key);
        tpl_sb_text(b, ": ");
        tpl_value_repr_to(b, d->e[i].value);
    }
    tpl_sb_char(b, '}');
}

static void view_repr(struct sb *b, struct value v)
{
    const struct dict *d = v.u.view->d;
    tpl_sb_format(b, "%s([", tpl_type_name(v));
    for (uint32_t i = 0; i < d->n; i++) {
        struct value pair[] = {d->e[i].key, d->e[i].value};
        if (i)
            tpl_sb_text(b, ", ");
        if (v.u.view->kind == VIEW_ITEMS)
            tpl_value_repr_to(b, tpl_tuple_of(b->t, 2, pair));
        else
            tpl_value_repr_to(b, pair[v.u.view->kind == VIEW_VALUES]);
    }
    tpl_sb_text(b, "])");
}

static void range_repr(struct sb *b, const struct range *r)
{
    tpl_sb_format(b, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
    if (r->step != 1)
        tpl_sb_format(b, ", %lld", (long long)r->step);
    tpl_sb_char(b, ')');
}

static void loop_repr(struct sb *b, struct loop *loop)
{
    struct value v = {V_LOOP, {.loop = loop}};
    tpl_sb_format(b, "<LoopContext %lld/%lld>", (long long)loop->index0 + 1,
                  (long long)tpl_value_length(b->t, v));
}

static void macro_repr(struct sb *b, const struct macro_def *d)
{
    tpl_sb_text(b, "<Macro ");
    if (d->name)
        tpl_str_repr_to(b, d->name);
    else
        tpl_sb_text(b, "anonymous");
    tpl_sb_char(b, '>');
}

static void object_repr(struct sb *b, struct value v)
{
    switch (v.kind) {
    case V_FUNCTION:
        tpl_sb_format(b, v.u.function->is_class ? "<class '%s'>" : "<function %s>",
                      v.u.function->python_name);
        break;
    case V_BOUND:
        tpl_sb_format(b, "<built-in method %s of %s object>", v.u.bound->method->name,
                      tpl_type_name(v.u.bound->self));
        break;
    case V_SELF:
        tpl_sb_text(b, "<TemplateReference None>");
        break;
    default:
        tpl_sb_format(b, "<%s object>", tpl_type_name(v));
    }
}

static void compound_repr(struct sb *b, struct value v)
{
    switch (v.kind) {
    case V_LIST:
    case V_TUPLE:
        list_repr(b, v.u.l, v.kind == V_TUPLE);
        break;
    case V_DICT:
        dict_repr(b, v.u.d);
        break;
    case V_VIEW:
        view_repr(b, v);
        break;
    case V_NAMESPACE:
        tpl_sb_text(b, "<Namespace ");
        dict_repr(b, v.u.ns);
        tpl_sb_char(b, '>');
        break;
    case V_RANGE:
        range_repr(b, v.u.range);
        break;
    case V_MACRO:
        macro_repr(b, v.u.macro->def);
        break;
    case V_LOOP:
        loop_repr(b, v.u.loop);
        break;
    default:
        object_repr(b, v);
    }
}

void tpl_value_repr_to(struct sb *b, struct value v)
{
    tpl_step(b->t, 1);
    switch (v.kind) {
    case V_MISSING:
    case V_UNDEFINED:
        tpl_sb_text(b, "Undefined");
        break;
    case V_NONE:
        tpl_sb_text(b, "None");
        break;
    case V_BOOL:
        tpl_sb_text(b, v.u.b ? "True" : "False");
        break;
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        tpl_num_repr_to(b, v);
        break;
    case V_STR:
        tpl_sb_text(b, v.u.s->markup ? "Markup(" : "");
        tpl_str_repr_to(b, v.u.s);
        tpl_sb_text(b, v.u.s->markup ? ")" : "");
        break;
    default:
        tpl_enter(b->t);
        compound_repr(b, v);
        tpl_leave(b->t);
    }
}

void tpl_value_str_to(struct sb *b, struct value v)
{
    if (v.kind == V_STR)
        tpl_sb_str(b, v.u.s);
    else if (v.kind != V_UNDEFINED)
        tpl_value_repr_to(b, v);
}

const struct str *tpl_value_repr(struct tpl *t, struct value v)
{
    struct sb b;
    tpl_sb_init(&b, t);
    tpl_value_repr_to(&b, v);
    return tpl_sb_done(&b);
}

const struct str *tpl_value_soft(struct tpl *t, struct value v)
{
    if (v.kind == V_STR)
        return v.u.s;
    if (v.kind == V_UNDEFINED)
        return tpl_str_text(t, "");
    return tpl_value_repr(t, v);
}

const struct str *tpl_value_str(struct tpl *t, struct value v)
{
    return tpl_str_markup(t, tpl_value_soft(t, v), false).u.s;
}
