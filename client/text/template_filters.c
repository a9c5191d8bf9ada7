/* template_filters.c - finding and applying filters; those of single values: numbers, defaults,
 * conversions.
 */
#include "template_internal.h"

#include <math.h>
#include <stdlib.h>

const struct filter *tpl_filter_find(const struct str *name)
{
    static const struct filter *const tables[] = {tpl_filters_value, tpl_filters_text,
                                                  tpl_filters_sequence, tpl_filters_lazy,
                                                  tpl_filters_markup};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct filter *f = tables[i]; f->name; f++)
            if (tpl_str_is(name, f->name))
                return f;
    return NULL;
}

struct value tpl_filter_apply(struct tpl *t, const struct filter *f, struct value in,
                              const struct args *a)
{
    struct value v[8];
    if (f->call_raw)
        return f->call_raw(t, in, a);
    tpl_args_bind(t, f->name, &f->signature, a, v);
    return f->call(t, in, v);
}

/* ---- defaults, attributes ---- */

static struct value f_default(struct tpl *t, struct value in, const struct value *v)
{
    bool boolean = GIVEN(v[1]) && tpl_value_true(t, v[1]);
    if (in.kind == V_UNDEFINED || (boolean && !tpl_value_true(t, in)))
        return GIVEN(v[0]) ? v[0] : STR(tpl_str_text(t, ""));
    return in;
}

/* getattr() only, without the items */
static struct value f_attr(struct tpl *t, struct value in, const struct value *v)
{
    const struct str *name = tpl_value_need_str(t, v[0], "attribute name");
    if (GIVEN(tpl_value_attr(t, in, name)))
        return tpl_value_getattr(t, in, name);
    return tpl_undefined_of(t, in, STR(name));
}

/* ---- numbers ---- */

static struct value f_abs(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    if (!tpl_value_number(in))
        tpl_error(t, "bad operand type for abs(): '%s'", tpl_type_name(in));
    if (in.kind == V_FLOAT)
        return FLOAT(fabs(in.u.f));
    return tpl_num_is_negative(in) ? tpl_num_neg(t, in) : tpl_num_as_int(in);
}

/* int(float(text)), or the default */
static struct value int_of_float(struct tpl *t, const struct str *s, struct value otherwise)
{
    double f;
    if (!tpl_num_parse_float(t, s->p, s->bytes, &f) || !isfinite(f))
        return otherwise;
    return tpl_num_from_double(t, f);
}

static struct value f_int(struct tpl *t, struct value in, const struct value *v)
{
    struct value otherwise = GIVEN(v[0]) ? v[0] : INT(0), out;
    if (in.kind == V_UNDEFINED)
        tpl_undefined_fail(t, in);
    if (in.kind == V_FLOAT)
        return isnan(in.u.f) ? otherwise : tpl_num_from_double(t, in.u.f);
    if (tpl_value_number(in))
        return tpl_num_as_int(in);
    if (in.kind != V_STR)
        return otherwise;
    int64_t base = GIVEN(v[1]) ? tpl_value_index(t, v[1]) : 10;
    if ((base == 0 || (base >= 2 && base <= 36)) &&
        tpl_num_parse_int(t, in.u.s->p, in.u.s->bytes, (int)base, &out))
        return out;
    return int_of_float(t, in.u.s, otherwise);
}

static struct value f_float(struct tpl *t, struct value in, const struct value *v)
{
    double f;
    if (in.kind == V_UNDEFINED)
        tpl_undefined_fail(t, in);
    if (tpl_value_number(in))
        return FLOAT(tpl_num_double(t, in));
    if (in.kind == V_STR && tpl_num_parse_float(t, in.u.s->p, in.u.s->bytes, &f))
        return FLOAT(f);
    return GIVEN(v[0]) ? v[0] : FLOAT(0);
}

static struct value f_round(struct tpl *t, struct value in, const struct value *v)
{
    const struct str *how = GIVEN(v[1]) && v[1].kind == V_STR ? v[1].u.s : NULL;
    bool common = !GIVEN(v[1]) || (how && tpl_str_is(how, "common"));
    if (!common && (!how || (!tpl_str_is(how, "ceil") && !tpl_str_is(how, "floor"))))
        tpl_error(t, "method must be common, ceil or floor");
    struct value digits = GIVEN(v[0]) ? v[0] : INT(0);
    if (!tpl_value_number(in))
        tpl_error(t, "type %s doesn't define __round__ method", tpl_type_name(in));
    if (common && digits.kind == V_NONE && in.kind == V_FLOAT)
        return tpl_num_from_double(t, tpl_num_round(t, in, 0).u.f);
    if (common && digits.kind == V_NONE)
        return tpl_num_as_int(in);
    if (common)
        return tpl_num_round(t, in, tpl_value_index(t, digits));
    struct value factor = tpl_op_binary(t, N_POW, INT(10), digits);
    double scaled = tpl_num_double(t, tpl_op_binary(t, N_MUL, in, factor));
    struct value whole =
        tpl_num_from_double(t, tpl_str_is(how, "ceil") ? ceil(scaled) : floor(scaled));
    return tpl_op_binary(t, N_DIV, whole, factor);
}

static struct value f_filesizeformat(struct tpl *t, struct value in, const struct value *v)
{
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool two = GIVEN(v[0]) && tpl_value_true(t, v[0]);
    double base = two ? 1024 : 1000, bytes = 0, unit = base;
    struct sb b;
    tpl_sb_init(&b, t);
    if (tpl_value_number(in))
        bytes = tpl_num_double(t, in);
    else if (in.kind != V_STR || !tpl_num_parse_float(t, in.u.s->p, in.u.s->bytes, &bytes))
        tpl_error(t, "could not convert %s to float", tpl_type_name(in));
    if (bytes == 1)
        return STR(tpl_str_text(t, "1 Byte"));
    if (bytes < base) {
        tpl_num_repr_to(&b, tpl_num_from_double(t, bytes));
        tpl_sb_text(&b, " Bytes");
        return tpl_sb_value(&b);
    }
    int i = 0;
    for (; i < 7 && bytes >= unit * base; i++)
        unit *= base;
    tpl_format_float(&b, base * bytes / (unit * base), 'f', 1, false);
    tpl_sb_format(&b, " %s", two ? binary[i] : decimal[i]);
    return tpl_sb_value(&b);
}

/* ---- conversions ---- */

static struct value f_string(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    return STR(tpl_value_soft(t, in));
}

static struct value f_length(struct tpl *t, struct value in, const struct value *v)
{
    (void)v;
    return INT(tpl_value_length(t, in));
}

static struct value f_tojson(struct tpl *t, struct value in, const struct value *v)
{
    return tpl_json_dumps(t, in, v);
}

const struct filter tpl_filters_value[] = {
    {"abs", {{0}, 0, true}, f_abs, NULL},
    {"attr", {{"name"}, 1, false}, f_attr, NULL},
    {"count", {{0}, 0, true}, f_length, NULL},
    {"d", {{"default_value", "boolean"}, 0, false}, f_default, NULL},
    {"default", {{"default_value", "boolean"}, 0, false}, f_default, NULL},
    {"filesizeformat", {{"binary"}, 0, false}, f_filesizeformat, NULL},
    {"float", {{"default"}, 0, false}, f_float, NULL},
    {"int", {{"default", "base"}, 0, false}, f_int, NULL},
    {"length", {{0}, 0, true}, f_length, NULL},
    {"round", {{"precision", "method"}, 0, false}, f_round, NULL},
    {"string", {{0}, 0, false}, f_string, NULL},
    {"tojson", {{"ensure_ascii", "indent", "separators", "sort_keys"}, 0, false}, f_tojson, NULL},
    {NULL, {{0}, 0, false}, NULL, NULL},
};
