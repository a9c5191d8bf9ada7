/* template_tests.c - what stands behind `is`, and in select() and its kin. */
#include "template_internal.h"

static bool remainder_is(struct tpl *t, struct value v, struct value by, int64_t rest)
{
    return tpl_value_eq(t, tpl_op_mod(t, v, by), INT(rest));
}

static bool is_odd(struct tpl *t, struct value v, struct value arg)
{
    (void)arg;
    return remainder_is(t, v, INT(2), 1);
}

static bool is_even(struct tpl *t, struct value v, struct value arg)
{
    (void)arg;
    return remainder_is(t, v, INT(2), 0);
}

static bool is_divisibleby(struct tpl *t, struct value v, struct value arg)
{
    return remainder_is(t, v, arg, 0);
}

#define TEST(name, expression)                                                                     \
    static bool is_##name(struct tpl *t, struct value v, struct value arg)                         \
    {                                                                                              \
        (void)t, (void)v, (void)arg;                                                               \
        return expression;                                                                         \
    }
TEST(defined, v.kind != V_UNDEFINED)
TEST(undefined, v.kind == V_UNDEFINED)
TEST(none, v.kind == V_NONE)
TEST(boolean, v.kind == V_BOOL)
TEST(true, v.kind == V_BOOL && v.u.b)
TEST(false, v.kind == V_BOOL && !v.u.b)
TEST(integer, v.kind == V_INT || v.kind == V_BIG)
TEST(float, v.kind == V_FLOAT)
TEST(number, tpl_value_number(v))
TEST(string, v.kind == V_STR)
TEST(mapping, v.kind == V_DICT)
TEST(sequence, tpl_value_has_length(v) && v.kind != V_VIEW && v.kind != V_LOOP)
TEST(iterable, tpl_value_iterable(v))
TEST(callable, tpl_value_callable(v))
TEST(escaped, v.kind == V_STR && v.u.s->markup)
TEST(lower, tpl_str_is_lower(t, tpl_value_str(t, v)))
TEST(upper, tpl_str_is_upper(t, tpl_value_str(t, v)))
TEST(sameas, v.kind == V_STR && arg.kind == V_STR
                 ? v.u.s->markup == arg.u.s->markup && tpl_value_eq(t, v, arg)
                 : tpl_value_same(v, arg))
TEST(in, tpl_value_in(t, v, arg))
TEST(eq, tpl_value_compare(t, CMP_EQ, v, arg))
TEST(ne, tpl_value_compare(t, CMP_NE, v, arg))
TEST(lt, tpl_value_compare(t, CMP_LT, v, arg))
TEST(le, tpl_value_compare(t, CMP_LE, v, arg))
TEST(gt, tpl_value_compare(t, CMP_GT, v, arg))
TEST(ge, tpl_value_compare(t, CMP_GE, v, arg))

static bool names(struct tpl *t, struct value v)
{
    if (v.kind == V_LIST || v.kind == V_DICT)
        tpl_value_hash(t, v); /* fails */
    return v.kind == V_STR;
}
TEST(filter, names(t, v) && tpl_filter_find(v.u.s))
TEST(test, names(t, v) && tpl_test_find(v.u.s))

static const struct test tests[] = {
    {"odd", 0, is_odd},
    {"even", 0, is_even},
    {"divisibleby", 1, is_divisibleby},
    {"defined", 0, is_defined},
    {"undefined", 0, is_undefined},
    {"filter", 0, is_filter},
    {"test", 0, is_test},
    {"none", 0, is_none},
    {"boolean", 0, is_boolean},
    {"false", 0, is_false},
    {"true", 0, is_true},
    {"integer", 0, is_integer},
    {"float", 0, is_float},
    {"lower", 0, is_lower},
    {"upper", 0, is_upper},
    {"string", 0, is_string},
    {"mapping", 0, is_mapping},
    {"number", 0, is_number},
    {"sequence", 0, is_sequence},
    {"iterable", 0, is_iterable},
    {"callable", 0, is_callable},
    {"sameas", 1, is_sameas},
    {"escaped", 0, is_escaped},
    {"in", 1, is_in},
    {"==", 1, is_eq},
    {"eq", 1, is_eq},
    {"equalto", 1, is_eq},
    {"!=", 1, is_ne},
    {"ne", 1, is_ne},
    {">", 1, is_gt},
    {"gt", 1, is_gt},
    {"greaterthan", 1, is_gt},
    {"ge", 1, is_ge},
    {">=", 1, is_ge},
    {"<", 1, is_lt},
    {"lt", 1, is_lt},
    {"lessthan", 1, is_lt},
    {"<=", 1, is_le},
    {"le", 1, is_le},
};

const struct test *tpl_test_find(const struct str *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (tpl_str_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}

/* The argument's names: divisibleby(num), sameas(other), in(seq). */
static bool names_argument(const struct test *f, const struct str *name)
{
    return (f->call == is_divisibleby && tpl_str_is(name, "num")) ||
           (f->call == is_sameas && tpl_str_is(name, "other")) ||
           (f->call == is_in && tpl_str_is(name, "seq"));
}

bool tpl_test_apply(struct tpl *t, const struct test *f, struct value v, const struct args *a)
{
    struct value arg = a->n ? a->v[0] : MISSING;
    uint32_t n = a->n + a->n_kw;
    if (a->n_kw == 1 && !a->n && names_argument(f, a->kw[0].name))
        arg = a->kw[0].value;
    else if (a->n_kw)
        tpl_error(t, "%s() got an unexpected keyword argument '%.*s'", f->name,
                  (int)a->kw[0].name->bytes, a->kw[0].name->p);
    if (n != f->n_args)
        tpl_error(t, "takes %u arguments (%u given)", f->n_args, n);
    return f->call(t, v, arg);
}
