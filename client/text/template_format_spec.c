/* template_format_spec.c - format(value, spec), Python's format specification mini-language:
 *
 *   [[fill]align][sign][z][#][0][width][grouping][.precision][type]
 */
#include "template_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_PRECISION 10000 /* digits of a float */

struct spec {
    const struct str *fill;
    char align; /* 0: not given */
    char sign;  /* '-' if not given */
    char grouping;
    char type; /* 0: not given */
    bool no_negative_zero, alternate, zero;
    int64_t width, precision; /* -1: not given */
};

/* ---- reading a specification ---- */

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '=' || c == '^';
}

static int64_t read_number(struct tpl *t, const char **p, const char *end)
{
    int64_t n = -1;
    for (; *p < end && **p >= '0' && **p <= '9'; (*p)++) {
        n = (n < 0 ? 0 : n) * 10 + (**p - '0');
        if (n > INT32_MAX)
            tpl_error(t, "Too many decimal digits in format string");
    }
    return n;
}

static const char *read_fill(struct tpl *t, const struct str *text, struct spec *s)
{
    const char *p = text->p, *end = p + text->bytes;
    unsigned n;
    s->fill = tpl_str_text(t, " ");
    if (p == end)
        return p;
    uni_at(p, &n);
    if (p + n < end && is_align(p[n])) {
        s->fill = tpl_str_ref(t, p, n);
        s->align = p[n];
        return p + n + 1;
    }
    if (is_align(*p))
        s->align = *p++;
    return p;
}

static bool flag(const char **p, const char *end, char c)
{
    if (*p == end || **p != c)
        return false;
    (*p)++;
    return true;
}

static struct spec read_spec(struct tpl *t, struct value v, const struct str *text)
{
    struct spec s = {.sign = '-', .width = -1, .precision = -1};
    const char *p = read_fill(t, text, &s), *end = text->p + text->bytes;
    bool filled = p > text->p + 1;
    if (p < end && (*p == '+' || *p == '-' || *p == ' '))
        s.sign = *p++;
    s.no_negative_zero = flag(&p, end, 'z');
    s.alternate = flag(&p, end, '#');
    s.zero = flag(&p, end, '0');
    if (s.zero && !filled) {
        s.fill = tpl_str_text(t, "0");
        if (!s.align && v.kind != V_STR)
            s.align = '=';
    }
    s.width = read_number(t, &p, end);
    if (p < end && (*p == ',' || *p == '_'))
        s.grouping = *p++;
    if (flag(&p, end, '.')) {
        s.precision = read_number(t, &p, end);
        if (s.precision < 0)
            tpl_error(t, "Format specifier missing precision");
    }
    if (p < end)
        s.type = *p++;
    if (p < end)
        tpl_error(t, "Invalid format specifier '%.*s' for object of type '%s'", (int)text->bytes,
                  text->p, tpl_type_name(v));
    return s;
}

static _Noreturn void unknown_code(struct tpl *t, const struct spec *s, struct value v)
{
    tpl_error(t, "Unknown format code '%c' for object of type '%s'", s->type, tpl_type_name(v));
}

/* ---- writing ---- */

/* A number of sign, prefix and digits; between the latter two and before, the padding goes. */
static void put_number(struct sb *b, const struct spec *s, const char *sign, const char *prefix,
                       const struct str *digits)
{
    struct sb all;
    int64_t used = (int64_t)(strlen(sign) + strlen(prefix)) + digits->chars;
    tpl_sb_init(&all, b->t);
    tpl_sb_text(&all, sign);
    tpl_sb_text(&all, prefix);
    if (s->align == '=' && s->width > used)
        tpl_sb_fill(&all, s->fill->p, s->fill->bytes, (uint64_t)(s->width - used));
    tpl_sb_str(&all, digits);
    tpl_pad_to(b, tpl_sb_done(&all), s->width, s->fill, s->align ? s->align : '>');
}

/* Digits with a separator each `size`, with zeros before them up to `width` characters. */
static const struct str *group(struct tpl *t, const struct str *digits, char separator, int size,
                               int64_t width)
{
    struct sb b;
    int64_t n = digits->bytes, all = width * size / (size + 1) - 1;
    if (all < n)
        all = n;
    while (all + (all - 1) / size < width)
        all++;
    int64_t zeros = all - n;
    tpl_sb_init(&b, t);
    tpl_step(t, (uint64_t)(n + zeros));
    for (int64_t left = n + zeros; left > 0; left--) {
        tpl_sb_char(&b, left > n ? '0' : digits->p[n - left]);
        if (left > 1 && (left - 1) % size == 0)
            tpl_sb_char(&b, separator);
    }
    return tpl_sb_done(&b);
}

static int64_t zero_width(const struct spec *s, size_t used)
{
    bool zeros = s->align == '=' && tpl_str_is(s->fill, "0");
    return zeros && s->width > (int64_t)used ? s->width - (int64_t)used : 0;
}

static const char *sign_text(const struct spec *s, bool negative)
{
    return negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
}

static void put_char(struct sb *b, const struct spec *s, struct value v)
{
    char c[4];
    if (s->sign != '-')
        tpl_error(b->t, "Sign not allowed with integer format specifier 'c'");
    int64_t cp = tpl_value_index(b->t, v);
    if (cp < 0 || cp > 0x10ffff)
        tpl_error(b->t, "%%c arg not in range(0x110000)");
    tpl_pad_to(b, tpl_str_new(b->t, c, tpl_uni_put(c, (uint32_t)cp)), s->width, s->fill,
               s->align && s->align != '=' ? s->align : '<');
}

static void put_int(struct sb *b, const struct spec *s, struct value v)
{
    unsigned base = s->type == 'b' ? 2 : s->type == 'o' ? 8 : (s->type | 0x20) == 'x' ? 16 : 10;
    const char *sign = sign_text(s, tpl_num_is_negative(v)), *prefix = "";
    if (s->precision >= 0)
        tpl_error(b->t, "Precision not allowed in integer format specifier");
    if (s->no_negative_zero)
        tpl_error(b->t, "Negative zero coercion (z) not allowed in format specifier with integer "
                        "format code");
    if (s->type == 'c') {
        put_char(b, s, v);
        return;
    }
    if (s->alternate)
        prefix = base == 2        ? "0b"
                 : base == 8      ? "0o"
                 : base == 10     ? ""
                 : s->type == 'X' ? "0X"
                                  : "0x";
    if (s->grouping == ',' && base != 10)
        tpl_error(b->t, "Cannot specify ',' with '%c'.", s->type);
    const struct str *digits = tpl_num_digits(b->t, v, base, s->type == 'X');
    if (s->grouping)
        digits = group(b->t, digits, s->grouping, base == 10 ? 3 : 4,
                       zero_width(s, strlen(sign) + strlen(prefix)));
    put_number(b, s, sign, prefix, digits);
}

void tpl_format_float(struct sb *b, double f, char type, int precision, bool alternate)
{
    char pattern[8], small[64];
    if (precision > MAX_PRECISION)
        tpl_limit(b->t, "a float of more than %d digits", MAX_PRECISION);
    snprintf(pattern, sizeof pattern, "%%%s.*%c", alternate ? "#" : "", type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(small, sizeof small, pattern, precision, f);
    if (n < (int)sizeof small) {
        tpl_sb_put(b, small, (size_t)n);
        return;
    }
    char *text = tpl_alloc(b->t, (size_t)n + 1);
    snprintf(text, (size_t)n + 1, pattern, precision, f);
#pragma GCC diagnostic pop
    tpl_sb_put(b, text, (size_t)n);
}

/* Without a type: as repr, or as `g` that keeps a digit behind the point. */
static void float_digits(struct sb *b, const struct spec *s, double f)
{
    char text[FLOAT_TEXT];
    if (s->type || !isfinite(f)) {
        char type = s->type == 'n' || !s->type ? 'g' : s->type == '%' ? 'f' : s->type;
        tpl_format_float(b, f, type, s->precision < 0 ? 6 : (int)s->precision, s->alternate);
        return;
    }
    if (s->precision < 0) {
        tpl_num_float_repr(text, f);
        tpl_sb_text(b, text);
        return;
    }
    int precision = s->precision ? (int)s->precision : 1;
    struct sb e;
    tpl_sb_init(&e, b->t);
    tpl_format_float(&e, f, 'e', precision - 1, false);
    tpl_sb_char(&e, '\0');
    int exponent = atoi(strchr(e.p, 'e') + 1);
    if (exponent >= precision - 1 && exponent < precision && f != 0) {
        /* `g` would write all digits without a point: here that is the exponent's turn */
        char *at = strchr(e.p, 'e'), *end = at;
        while (strchr(e.p, '.') && end > e.p && end[-1] == '0')
            end--;
        if (end > e.p && end[-1] == '.')
            end--;
        tpl_sb_put(b, e.p, (size_t)(end - e.p));
        tpl_sb_text(b, at);
        return;
    }
    size_t from = b->n;
    tpl_format_float(b, f, 'g', precision, s->alternate);
    if (!memchr(b->p + from, '.', b->n - from) && !memchr(b->p + from, 'e', b->n - from))
        tpl_sb_text(b, ".0");
}

static bool only_zeros(const struct str *s)
{
    for (uint32_t i = 0; i < s->bytes && (s->p[i] | 0x20) != 'e'; i++)
        if (s->p[i] != '0' && s->p[i] != '.')
            return false;
    return true;
}

static const struct str *group_float(struct tpl *t, const struct spec *s, const struct str *digits,
                                     size_t sign)
{
    size_t whole = 0;
    while (whole < digits->bytes && digits->p[whole] >= '0' && digits->p[whole] <= '9')
        whole++;
    size_t rest = digits->bytes - whole;
    const struct str *left =
        group(t, tpl_str_sub(t, digits, 0, whole), s->grouping, 3, zero_width(s, sign + rest));
    return tpl_str_concat(t, left, tpl_str_sub(t, digits, whole, digits->bytes));
}

static void put_float(struct sb *b, const struct spec *s, double f)
{
    struct sb digits;
    bool negative = signbit(f) && !isnan(f);
    tpl_sb_init(&digits, b->t);
    float_digits(&digits, s, fabs(s->type == '%' ? f * 100 : f));
    if (s->type == '%')
        tpl_sb_char(&digits, '%');
    const struct str *text = tpl_sb_done(&digits);
    if (s->no_negative_zero && negative && only_zeros(text))
        negative = false;
    const char *sign = sign_text(s, negative);
    if (s->grouping && isfinite(f))
        text = group_float(b->t, s, text, strlen(sign));
    put_number(b, s, sign, "", text);
}

static void put_str(struct sb *b, const struct spec *s, struct value v)
{
    const struct str *text = v.u.s;
    if (s->type && s->type != 's')
        unknown_code(b->t, s, v);
    if (s->sign != '-')
        tpl_error(b->t, "Sign not allowed in string format specifier");
    if (s->alternate)
        tpl_error(b->t, "Alternate form (#) not allowed in string format specifier");
    if (s->grouping)
        tpl_error(b->t, "Cannot specify '%c' with 's'.", s->grouping);
    if (s->align == '=')
        tpl_error(b->t, "'=' alignment not allowed in string format specifier");
    if (s->precision >= 0 && s->precision < (int64_t)text->chars)
        text = tpl_str_sub(b->t, text, 0, tpl_str_offset(b->t, text, (uint32_t)s->precision));
    tpl_pad_to(b, text, s->width, s->fill, s->align ? s->align : '<');
}

static void put_numeric(struct sb *b, const struct spec *s, struct value v)
{
    bool float_type = s->type && strchr("eEfFgG%", s->type);
    bool int_type = !s->type || strchr("bcdoxXn", s->type);
    if (v.kind == V_FLOAT && (float_type || !s->type || s->type == 'n'))
        put_float(b, s, v.u.f);
    else if (v.kind != V_FLOAT && float_type)
        put_float(b, s, tpl_num_double(b->t, v));
    else if (v.kind != V_FLOAT && int_type)
        put_int(b, s, v);
    else
        unknown_code(b->t, s, v);
}

void tpl_format_value(struct sb *b, struct value v, const struct str *spec)
{
    if (!spec->bytes) {
        tpl_value_str_to(b, v);
        return;
    }
    if (v.kind != V_STR && !tpl_value_number(v))
        tpl_error(b->t, "unsupported format string passed to %s.__format__", tpl_type_name(v));
    struct spec s = read_spec(b->t, v, spec);
    if (v.kind == V_STR)
        put_str(b, &s, v);
    else
        put_numeric(b, &s, v);
}
