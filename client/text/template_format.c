/* template_format.c - "..." % values and "...".format(...), as Python's.
 *
 * On a Markup format both escape what they put in, and give a Markup.
 */
#include "template_internal.h"

#include <math.h>
#include <stdlib.h>

/* ---- % ---- */

struct percent {
    struct tpl *t;
    struct sb b;
    const struct str *format;
    const char *p, *end;
    const struct value *args; /* (n) not taken yet */
    uint32_t n;
    struct value mapping; /* V_MISSING: the right side is none */
};

struct conversion {
    bool left, plus, space, alternate, zero;
    int64_t width, precision; /* -1: not given */
    char type;
};

static struct value next_arg(struct percent *x)
{
    if (!x->n)
        tpl_error(x->t, "not enough arguments for format string");
    x->n--;
    return *x->args++;
}

static void take_key(struct percent *x, struct value *value)
{
    const char *from = x->p + 1;
    int depth = 1;
    for (x->p++; x->p < x->end && depth; x->p++)
        depth += *x->p == '(' ? 1 : *x->p == ')' ? -1 : 0;
    if (depth)
        tpl_error(x->t, "incomplete format key");
    if (!GIVEN(x->mapping))
        tpl_error(x->t, "format requires a mapping");
    const struct str *key = tpl_str_ref(x->t, from, (size_t)(x->p - 1 - from));
    const struct value *found =
        x->mapping.kind == V_DICT ? tpl_dict_get(x->t, x->mapping.u.d, STR(key)) : NULL;
    if (x->mapping.kind == V_UNDEFINED)
        tpl_undefined_fail(x->t, x->mapping);
    if (!found)
        tpl_error(x->t, "'%.*s'", (int)key->bytes, key->p);
    *value = *found;
    x->args = value;
    x->n = 1;
}

static bool take_flag(struct conversion *c, char f)
{
    switch (f) {
    case '-':
        return c->left = true;
    case '+':
        return c->plus = true;
    case ' ':
        return c->space = true;
    case '#':
        return c->alternate = true;
    case '0':
        return c->zero = true;
    default:
        return false;
    }
}

/* A number or *, or -1. */
static int64_t take_number(struct percent *x)
{
    int64_t n = -1;
    if (x->p < x->end && *x->p == '*') {
        struct value v = next_arg(x);
        x->p++;
        if (v.kind != V_INT && v.kind != V_BOOL)
            tpl_error(x->t, "* wants int");
        return tpl_value_index(x->t, v);
    }
    for (; x->p < x->end && *x->p >= '0' && *x->p <= '9'; x->p++) {
        n = (n < 0 ? 0 : n) * 10 + (*x->p - '0');
        if (n > INT32_MAX)
            tpl_error(x->t, "width or precision too big");
    }
    return n;
}

static struct conversion take_conversion(struct percent *x)
{
    struct conversion c = {.width = -1, .precision = -1};
    while (x->p < x->end && take_flag(&c, *x->p))
        x->p++;
    c.width = take_number(x);
    if (c.width < -1) {
        c.left = true;
        c.width = c.width == INT64_MIN ? INT64_MAX : -c.width;
    }
    if (x->p < x->end && *x->p == '.') {
        x->p++;
        c.precision = take_number(x);
        if (c.precision < 0)
            c.precision = 0;
    }
    if (x->p < x->end && (*x->p == 'h' || *x->p == 'l' || *x->p == 'L'))
        x->p++;
    if (x->p == x->end)
        tpl_error(x->t, "incomplete format");
    c.type = *x->p++;
    return c;
}

/* sign, then digits that zeros may go before */
static void put_padded(struct percent *x, const struct conversion *c, const char *sign,
                       const struct str *digits)
{
    struct sb all;
    int64_t used = (int64_t)strlen(sign) + digits->chars;
    tpl_sb_init(&all, x->t);
    tpl_sb_text(&all, sign);
    if (c->zero && !c->left && c->width > used)
        tpl_sb_fill(&all, "0", 1, (uint64_t)(c->width - used));
    tpl_sb_str(&all, digits);
    tpl_pad_to(&x->b, tpl_sb_done(&all), c->width, tpl_str_text(x->t, " "), c->left ? '<' : '>');
}

static const char *sign_of(const struct conversion *c, bool negative)
{
    return negative ? "-" : c->plus ? "+" : c->space ? " " : "";
}

static struct value integer_of(struct percent *x, char type, struct value v)
{
    bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (v.kind == V_UNDEFINED)
        tpl_undefined_fail(x->t, v);
    if (!tpl_value_number(v))
        tpl_error(x->t, "%%%c format: %s is required, not %s", type,
                  decimal ? "a real number" : "an integer", tpl_type_name(v));
    if (v.kind == V_FLOAT && !decimal)
        tpl_error(x->t, "%%%c format: an integer is required, not float", type);
    return v.kind == V_FLOAT ? tpl_num_from_double(x->t, v.u.f) : tpl_num_as_int(v);
}

static void put_integer(struct percent *x, const struct conversion *c, struct value v)
{
    char sign[4] = "";
    v = integer_of(x, c->type, v);
    unsigned base = c->type == 'o' ? 8 : (c->type | 0x20) == 'x' ? 16 : 10;
    const struct str *digits = tpl_num_digits(x->t, v, base, c->type == 'X');
    struct sb b;
    tpl_sb_init(&b, x->t);
    if (c->precision > (int64_t)digits->bytes)
        tpl_sb_fill(&b, "0", 1, (uint64_t)(c->precision - digits->bytes));
    tpl_sb_str(&b, digits);
    strcpy(sign, sign_of(c, tpl_num_is_negative(v)));
    if (c->alternate && base != 10)
        strcat(sign, base == 8 ? "0o" : c->type == 'X' ? "0X" : "0x");
    put_padded(x, c, sign, tpl_sb_done(&b));
}

/* float(v) */
static double float_of(struct percent *x, struct value v)
{
    if (v.kind == V_UNDEFINED)
        tpl_undefined_fail(x->t, v);
    if (!tpl_value_number(v))
        tpl_error(x->t, "must be real number, not %s", tpl_type_name(v));
    return tpl_num_double(x->t, v);
}

static void put_real(struct percent *x, const struct conversion *c, struct value v)
{
    double f = float_of(x, v);
    struct sb b;
    tpl_sb_init(&b, x->t);
    int precision = c->precision < 0 ? 6 : c->precision > INT32_MAX ? INT32_MAX : (int)c->precision;
    tpl_format_float(&b, fabs(f), c->type, precision, c->alternate);
    put_padded(x, c, sign_of(c, signbit(f) && !isnan(f)), tpl_sb_done(&b));
}

static void put_character(struct percent *x, const struct conversion *c, struct value v)
{
    char utf8[4];
    const struct str *s = v.kind == V_STR ? v.u.s : NULL;
    if (v.kind == V_INT && v.u.i >= 0 && v.u.i <= 0x10ffff)
        s = tpl_str_new(x->t, utf8, tpl_uni_put(utf8, (uint32_t)v.u.i));
    if (!s || s->chars != 1)
        tpl_error(x->t, "%%c requires int or char");
    tpl_pad_to(&x->b, s, c->width, tpl_str_text(x->t, " "), c->left ? '<' : '>');
}

/* ascii(): repr() with every other character escaped. */
static const struct str *ascii(struct tpl *t, struct value v)
{
    const struct str *s = tpl_value_repr(t, v);
    struct sb b;
    unsigned n;
    tpl_sb_init(&b, t);
    for (size_t i = 0; i < s->bytes; i += n) {
        uint32_t cp = uni_at(s->p + i, &n);
        if (cp < 0x80)
            tpl_sb_char(&b, (char)cp);
        else
            tpl_sb_format(&b, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    }
    return tpl_sb_done(&b);
}

static const struct str *converted(struct tpl *t, char how, struct value v)
{
    return how == 's' ? tpl_value_soft(t, v) : how == 'r' ? tpl_value_repr(t, v) : ascii(t, v);
}

static void put_text(struct percent *x, const struct conversion *c, struct value v)
{
    const struct str *s = converted(x->t, c->type, v);
    if (x->format->markup)
        s = tpl_escape(x->t, STR(s));
    if (c->precision >= 0 && c->precision < (int64_t)s->chars)
        s = tpl_str_sub(x->t, s, 0, tpl_str_offset(x->t, s, (uint32_t)c->precision));
    tpl_pad_to(&x->b, s, c->width, tpl_str_text(x->t, " "), c->left ? '<' : '>');
}

static void put_conversion(struct percent *x)
{
    struct value keyed;
    if (x->p < x->end && *x->p == '%') {
        tpl_sb_char(&x->b, '%');
        x->p++;
        return;
    }
    if (x->p < x->end && *x->p == '(')
        take_key(x, &keyed);
    struct conversion c = take_conversion(x);
    struct value v = next_arg(x);
    if (!c.type)
        tpl_error(x->t, "unsupported format character");
    if (strchr("diuoxX", c.type))
        put_integer(x, &c, v);
    else if (strchr("eEfFgG", c.type))
        put_real(x, &c, v);
    else if (c.type == 'c')
        put_character(x, &c, v);
    else if (strchr("sra", c.type))
        put_text(x, &c, v);
    else
        tpl_error(x->t, "unsupported format character '%c' (0x%x) at index %ld", c.type,
                  (unsigned char)c.type, (long)(x->p - 1 - x->format->p));
}

/* What has subscripts counts as a mapping, and then need not be used up. */
static bool maps(struct value v)
{
    return v.kind == V_DICT || v.kind == V_LIST || v.kind == V_RANGE || v.kind == V_UNDEFINED;
}

struct value tpl_format_percent(struct tpl *t, const struct str *format, struct value args)
{
    struct percent x = {.t = t,
                        .format = format,
                        .p = format->p,
                        .end = format->p + format->bytes,
                        .args = args.kind == V_TUPLE ? args.u.l->v : &args,
                        .n = args.kind == V_TUPLE ? args.u.l->n : 1,
                        .mapping = maps(args) ? args : MISSING};
    tpl_sb_init(&x.b, t);
    while (x.p < x.end) {
        const char *percent = memchr(x.p, '%', (size_t)(x.end - x.p));
        const char *to = percent ? percent : x.end;
        tpl_step(t, 1);
        tpl_sb_put(&x.b, x.p, (size_t)(to - x.p));
        x.p = to;
        if (percent) {
            x.p++;
            put_conversion(&x);
        }
    }
    if (x.n && !GIVEN(x.mapping))
        tpl_error(t, "not all arguments converted during string formatting");
    return tpl_str_markup(t, tpl_sb_done(&x.b), format->markup);
}

/* ---- format() ---- */

struct braces {
    struct tpl *t;
    const struct args *a;
    const struct value *mapping; /* or NULL: keywords */
    bool markup, manual, automatic;
    uint32_t next;
};

static struct value positional(struct braces *x, uint64_t index)
{
    if (index >= x->a->n)
        tpl_error(x->t, "Replacement index %llu out of range for positional args tuple",
                  (unsigned long long)index);
    return x->a->v[index];
}

static struct value keyword(struct braces *x, const struct str *name)
{
    for (uint32_t i = 0; i < x->a->n_kw; i++)
        if (tpl_str_eq(x->a->kw[i].name, name))
            return x->a->kw[i].value;
    if (x->mapping) {
        struct value v = tpl_value_getitem(x->t, *x->mapping, STR(name));
        if (v.kind != V_UNDEFINED)
            return v;
    }
    tpl_error(x->t, "'%.*s'", (int)name->bytes, name->p);
}

static bool is_number(const char *p, const char *end, uint64_t *n)
{
    *n = 0;
    for (const char *c = p; c < end; c++) {
        if (*c < '0' || *c > '9' || *n > UINT32_MAX)
            return false;
        *n = *n * 10 + (uint64_t)(*c - '0');
    }
    return end > p;
}

static struct value first_of(struct braces *x, const char *p, const char *end)
{
    uint64_t index;
    bool number = is_number(p, end, &index);
    if (p == end) {
        x->automatic = true;
        index = x->next++;
    } else if (number)
        x->manual = true;
    if (x->manual && x->automatic)
        tpl_error(x->t, "cannot switch between manual field specification and automatic field "
                        "numbering");
    if (p == end || number)
        return positional(x, index);
    return keyword(x, tpl_str_ref(x->t, p, (size_t)(end - p)));
}

static struct value field(struct braces *x, const char *p, const char *end)
{
    const char *to = p;
    while (to < end && *to != '.' && *to != '[')
        to++;
    struct value v = first_of(x, p, to);
    while (to < end) {
        bool item = *to == '[';
        p = ++to;
        while (to < end && (item ? *to != ']' : *to != '.' && *to != '['))
            to++;
        if (p == to)
            tpl_error(x->t, "Empty attribute in format string");
        const struct str *name = tpl_str_ref(x->t, p, (size_t)(to - p));
        uint64_t index;
        if (!item)
            v = tpl_value_getattr(x->t, v, name);
        else if (is_number(p, to, &index))
            v = tpl_value_getitem(x->t, v, INT((int64_t)index));
        else
            v = tpl_value_getitem(x->t, v, STR(name));
        if (item && to++ == end)
            tpl_error(x->t, "Missing ']' in format string");
        if (item && to < end && *to != '.' && *to != '[')
            tpl_error(x->t, "Only '.' or '[' may follow ']' in format field specifier");
    }
    return v;
}

static void format_into(struct braces *x, struct sb *b, const char *p, const char *end, int depth);

static void put_field(struct braces *x, struct sb *b, struct value v, const struct str *spec)
{
    if (!x->markup) {
        tpl_format_value(b, v, spec);
        return;
    }
    if (v.kind == V_STR && v.u.s->markup) {
        if (spec->bytes)
            tpl_error(x->t, "Unsupported format specification for Markup.");
        tpl_sb_str(b, v.u.s);
        return;
    }
    struct sb text;
    tpl_sb_init(&text, x->t);
    tpl_format_value(&text, v, spec);
    tpl_escape_to(b, tpl_sb_done(&text));
}

/* From behind a `{` to behind its `}`. */
static const char *format_field(struct braces *x, struct sb *b, const char *p, const char *end,
                                int depth)
{
    const char *name = p, *spec_from, *spec_to;
    bool bracket = false;
    char how = 0;
    while (p < end && (bracket || (*p != '}' && *p != ':' && *p != '!'))) {
        if (*p == '{')
            tpl_error(x->t, "unexpected '{' in field name");
        bracket = *p == '[' || (bracket && *p != ']');
        p++;
    }
    const char *name_end = p;
    if (p < end && *p == '!') {
        if (end - p < 3)
            tpl_error(x->t, "unmatched '{' in format spec");
        how = p[1];
        p += 2;
        if (*p != ':' && *p != '}')
            tpl_error(x->t, "expected ':' after conversion specifier");
    }
    if (p == end)
        tpl_error(x->t, "expected '}' before end of string");
    spec_from = *p == ':' ? p + 1 : p;
    int open = 1;
    for (spec_to = spec_from; spec_to < end; spec_to++) {
        open += *spec_to == '{' ? 1 : *spec_to == '}' ? -1 : 0;
        if (!open)
            break;
    }
    if (spec_to == end)
        tpl_error(x->t, "expected '}' before end of string");
    struct value v = field(x, name, name_end);
    if (how && how != 's' && how != 'r' && how != 'a')
        tpl_error(x->t, "Unknown conversion specifier '%c'", how);
    if (how)
        v = STR(how == 's' ? tpl_value_str(x->t, v) : converted(x->t, how, v));
    struct sb spec;
    tpl_sb_init(&spec, x->t);
    format_into(x, &spec, spec_from, spec_to, depth + 1);
    put_field(x, b, v, tpl_sb_done(&spec));
    return spec_to + 1;
}

static void format_into(struct braces *x, struct sb *b, const char *p, const char *end, int depth)
{
    if (depth > 2 && p < end)
        tpl_error(x->t, "Max string recursion exceeded");
    while (p < end) {
        const char *to = p;
        while (to < end && *to != '{' && *to != '}')
            to++;
        tpl_sb_put(b, p, (size_t)(to - p));
        tpl_step(x->t, 1);
        if (to == end)
            return;
        if (to + 1 < end && to[1] == *to) {
            tpl_sb_char(b, *to);
            p = to + 2;
        } else if (*to == '}' || to + 1 == end)
            tpl_error(x->t, "Single '%c' encountered in format string", *to);
        else
            p = format_field(x, b, to + 1, end, depth);
    }
}

struct value tpl_format_braces(struct tpl *t, const struct str *format, const struct args *a,
                               const struct value *mapping)
{
    struct braces x = {.t = t, .a = a, .mapping = mapping, .markup = format->markup};
    struct sb b;
    tpl_sb_init(&b, t);
    format_into(&x, &b, format->p, format->p + format->bytes, 0);
    return tpl_str_markup(t, tpl_sb_done(&b), format->markup);
}
