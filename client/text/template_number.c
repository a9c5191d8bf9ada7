/* template_number.c - numbers with Python's arithmetic: integers of any length, floats.
 *
 * Division and modulo round towards minus infinity; int / int is a correctly rounded float. Needs
 * the C locale (template_api.c sees to it) and a correctly rounding strtod and printf, as glibc's
 * are.
 */
#include "template_big.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_DIGITS 4300 /* as CPython's limit of conversions between decimal text and int */

struct value tpl_num_as_int(struct value v)
{
    return v.kind == V_BOOL ? INT(v.u.b) : v;
}

static bool is_int(struct value v)
{
    return v.kind == V_BOOL || v.kind == V_INT || v.kind == V_BIG;
}

bool tpl_num_is_zero(struct value v)
{
    v = tpl_num_as_int(v);
    return v.kind == V_FLOAT ? v.u.f == 0 : v.kind == V_INT && v.u.i == 0;
}

bool tpl_num_is_negative(struct value v)
{
    v = tpl_num_as_int(v);
    return v.kind == V_BIG ? v.u.big->negative : v.kind == V_FLOAT ? signbit(v.u.f) : v.u.i < 0;
}

unsigned tpl_num_bit_length(struct value v)
{
    v = tpl_num_as_int(v);
    if (v.kind == V_BIG)
        return tpl_big_bits(v.u.big);
    uint64_t m = v.u.i < 0 ? -(uint64_t)v.u.i : (uint64_t)v.u.i;
    return m ? 64 - (unsigned)__builtin_clzll(m) : 0;
}

double tpl_num_double(struct tpl *t, struct value v)
{
    v = tpl_num_as_int(v);
    if (v.kind == V_FLOAT)
        return v.u.f;
    if (v.kind == V_INT)
        return (double)v.u.i;
    double f = tpl_big_double(v.u.big, false);
    if (isinf(f))
        tpl_error(t, "int too large to convert to float");
    return f;
}

struct value tpl_num_from_double(struct tpl *t, double f)
{
    if (isnan(f))
        tpl_error(t, "cannot convert float NaN to integer");
    if (isinf(f))
        tpl_error(t, "cannot convert float infinity to integer");
    if (f >= -0x1p63 && f < 0x1p63)
        return INT((int64_t)f);
    int exponent;
    int64_t mantissa = (int64_t)ldexp(frexp(f, &exponent), 53);
    return tpl_big_value(
        tpl_big_shift_left(t, tpl_big_of(t, INT(mantissa)), (uint32_t)(exponent - 53)));
}

/* ---- comparing ---- */

static int order(double a, double b)
{
    return a < b ? -1 : a > b ? 1 : 0;
}

static int compare_int_double(int64_t i, double f)
{
    if (f >= 0x1p63)
        return -1;
    if (f < -0x1p63)
        return 1;
    int64_t whole = (int64_t)f;
    if (i != whole)
        return i < whole ? -1 : 1;
    return order((double)whole, f);
}

static int compare_big_double(const struct big *b, double f)
{
    int sign = b->negative ? -1 : 1, exponent;
    if (isinf(f))
        return f > 0 ? -1 : 1;
    if ((f < 0) != b->negative)
        return sign;
    uint64_t mantissa = (uint64_t)ldexp(frexp(fabs(f), &exponent), 53);
    int bits = (int)tpl_big_bits(b);
    if (bits != exponent)
        return bits < exponent ? -sign : sign;
    for (int at = bits - 1, m = 52; at >= 0; at--, m--) {
        unsigned bit = b->d[at / 32] >> at % 32 & 1;
        unsigned other = m < 0 ? 0 : (unsigned)(mantissa >> m & 1);
        if (bit != other)
            return bit < other ? -sign : sign;
    }
    return 0;
}

static int compare_with_double(struct value v, double f)
{
    return v.kind == V_BIG ? compare_big_double(v.u.big, f) : compare_int_double(v.u.i, f);
}

int tpl_num_compare(struct value a, struct value b)
{
    a = tpl_num_as_int(a);
    b = tpl_num_as_int(b);
    if ((a.kind == V_FLOAT && isnan(a.u.f)) || (b.kind == V_FLOAT && isnan(b.u.f)))
        return 2;
    if (a.kind == V_FLOAT && b.kind == V_FLOAT)
        return order(a.u.f, b.u.f);
    if (a.kind == V_FLOAT)
        return -compare_with_double(b, a.u.f);
    if (b.kind == V_FLOAT)
        return compare_with_double(a, b.u.f);
    if (a.kind == V_INT && b.kind == V_INT)
        return a.u.i < b.u.i ? -1 : a.u.i > b.u.i;
    if (a.kind == V_BIG && b.kind == V_BIG)
        return tpl_big_cmp(a.u.big, b.u.big);
    return a.kind == V_BIG ? (a.u.big->negative ? -1 : 1) : (b.u.big->negative ? 1 : -1);
}

uint64_t tpl_num_hash(struct value v)
{
    v = tpl_num_as_int(v);
    if (v.kind == V_INT)
        return (uint64_t)v.u.i;
    double f = v.kind == V_BIG ? tpl_big_double(v.u.big, false) : v.u.f;
    if (f >= -0x1p63 && f < 0x1p63 && f == floor(f))
        return (uint64_t)(int64_t)f;
    uint64_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* ---- arithmetic ---- */

static struct value int_divmod(struct tpl *t, enum node_kind op, struct value a, struct value b)
{
    if (tpl_num_is_zero(b))
        tpl_error(t, "%s by zero", op == N_MOD ? "integer modulo" : "integer division or modulo");
    if (a.kind == V_INT && b.kind == V_INT && b.u.i != -1) {
        int64_t q = a.u.i / b.u.i, r = a.u.i % b.u.i;
        if (r && (r < 0) != (b.u.i < 0)) {
            q--;
            r += b.u.i;
        }
        return INT(op == N_MOD ? r : q);
    }
    struct big *q, *r;
    tpl_big_divmod(t, tpl_big_of(t, a), tpl_big_of(t, b), &q, &r);
    return tpl_big_value(op == N_MOD ? r : q);
}

static struct value int_true_div(struct tpl *t, struct value a, struct value b)
{
    const int64_t exact = (int64_t)1 << 53;
    if (tpl_num_is_zero(b))
        tpl_error(t, "division by zero");
    if (a.kind == V_INT && b.kind == V_INT && a.u.i <= exact && a.u.i >= -exact && b.u.i <= exact &&
        b.u.i >= -exact)
        return FLOAT((double)a.u.i / (double)b.u.i);
    double f = tpl_big_true_div(t, tpl_big_of(t, a), tpl_big_of(t, b));
    if (isinf(f))
        tpl_error(t, "integer division result too large for a float");
    return FLOAT(f);
}

static struct value float_pow(struct tpl *t, double a, double b)
{
    if (a == 0 && b < 0)
        tpl_error(t, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        tpl_error(t, "a negative number to a fractional power is complex, which is not supported");
    double f = pow(a, b);
    if (isinf(f) && isfinite(a) && isfinite(b))
        tpl_error(t, "(34, 'Numerical result out of range')");
    return FLOAT(f);
}

static struct value int_mul(struct tpl *t, struct value a, struct value b)
{
    int64_t product;
    if (a.kind == V_INT && b.kind == V_INT && !__builtin_mul_overflow(a.u.i, b.u.i, &product))
        return INT(product);
    return tpl_big_value(tpl_big_mul(t, tpl_big_of(t, a), tpl_big_of(t, b)));
}

static struct value int_pow(struct tpl *t, struct value a, struct value b)
{
    if (tpl_num_is_negative(b))
        return float_pow(t, tpl_num_double(t, a), tpl_num_double(t, b));
    unsigned bits = tpl_num_bit_length(a);
    if (b.kind != V_INT || (bits > 1 && (uint64_t)b.u.i > BIG_BITS))
        if (bits > 1)
            tpl_limit(t, "an integer of more than %d bits", BIG_BITS);
    if (bits > 1 && (uint64_t)(bits - 1) * (uint64_t)b.u.i > BIG_BITS)
        tpl_limit(t, "an integer of more than %d bits", BIG_BITS);
    if (b.kind != V_INT) /* 0, 1 or -1 */
        return tpl_num_is_negative(a) && !(b.u.big->d[0] & 1) ? INT(1) : a;
    struct value result = INT(1);
    for (uint64_t e = (uint64_t)b.u.i; e; e >>= 1) {
        if (e & 1)
            result = int_mul(t, result, a);
        if (e > 1)
            a = int_mul(t, a, a);
    }
    return result;
}

static struct value int_arith(struct tpl *t, enum node_kind op, struct value a, struct value b)
{
    int64_t r;
    bool small = a.kind == V_INT && b.kind == V_INT;
    switch (op) {
    case N_ADD:
        if (small && !__builtin_add_overflow(a.u.i, b.u.i, &r))
            return INT(r);
        return tpl_big_value(tpl_big_add(t, tpl_big_of(t, a), tpl_big_of(t, b), false));
    case N_SUB:
        if (small && !__builtin_sub_overflow(a.u.i, b.u.i, &r))
            return INT(r);
        return tpl_big_value(tpl_big_add(t, tpl_big_of(t, a), tpl_big_of(t, b), true));
    case N_MUL:
        return int_mul(t, a, b);
    case N_DIV:
        return int_true_div(t, a, b);
    case N_POW:
        return int_pow(t, a, b);
    default:
        return int_divmod(t, op, a, b);
    }
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m == 0)
        return copysign(0, b);
    return (b < 0) != (m < 0) ? m + b : m;
}

/* As CPython's: from an exact remainder, so that it agrees with float_mod. */
static double float_floordiv(double a, double b)
{
    double m = fmod(a, b), quotient = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0))
        quotient -= 1;
    if (quotient == 0)
        return copysign(0, a / b);
    double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

static struct value float_arith(struct tpl *t, enum node_kind op, double a, double b)
{
    if (b == 0 && (op == N_DIV || op == N_FLOORDIV || op == N_MOD))
        tpl_error(t, "%s",
                  op == N_DIV        ? "float division by zero"
                  : op == N_FLOORDIV ? "float floor division by zero"
                                     : "float modulo");
    switch (op) {
    case N_ADD:
        return FLOAT(a + b);
    case N_SUB:
        return FLOAT(a - b);
    case N_MUL:
        return FLOAT(a * b);
    case N_DIV:
        return FLOAT(a / b);
    case N_POW:
        return float_pow(t, a, b);
    case N_MOD:
        return FLOAT(float_mod(a, b));
    default:
        return FLOAT(float_floordiv(a, b));
    }
}

struct value tpl_num_arith(struct tpl *t, enum node_kind op, struct value a, struct value b)
{
    if (is_int(a) && is_int(b))
        return int_arith(t, op, tpl_num_as_int(a), tpl_num_as_int(b));
    return float_arith(t, op, tpl_num_double(t, a), tpl_num_double(t, b));
}

struct value tpl_num_neg(struct tpl *t, struct value v)
{
    if (v.kind == V_FLOAT)
        return FLOAT(-v.u.f);
    return int_arith(t, N_SUB, INT(0), tpl_num_as_int(v));
}

/* ---- rounding ---- */

static struct value round_int(struct tpl *t, struct value v, int64_t digits)
{
    if (digits >= 0)
        return v;
    if (digits < -(int64_t)(tpl_num_bit_length(v) / 3 + 2))
        return INT(0);
    struct value unit = int_pow(t, INT(10), INT(-digits));
    struct value down = int_arith(t, N_MUL, int_divmod(t, N_FLOORDIV, v, unit), unit);
    struct value up = int_arith(t, N_ADD, down, unit);
    int c = tpl_num_compare(int_arith(t, N_SUB, v, down), int_arith(t, N_SUB, up, v));
    struct value odd = int_divmod(t, N_MOD, int_divmod(t, N_FLOORDIV, v, unit), INT(2));
    return c > 0 || (c == 0 && odd.u.i) ? up : down;
}

/* To a multiple of 10^-digits above 1, half to even. */
static double round_to_tens(double f, int64_t digits)
{
    char text[64];
    snprintf(text, sizeof text, "%.20e", f);
    int keep = atoi(strchr(text, 'e') + 1) + (int)digits;
    if (keep < -1)
        return copysign(0, f);
    if (keep == -1)
        return copysign(fabs(f) > 5 * pow(10, (double)(-digits - 1)) ? pow(10, (double)-digits) : 0,
                        f);
    char long_text[400];
    snprintf(long_text, sizeof long_text, "%.*e", keep, f);
    return strtod(long_text, NULL);
}

static double round_float(struct tpl *t, double f, int64_t digits)
{
    char text[800];
    if (!isfinite(f) || digits > 323 || f == 0)
        return f;
    if (digits < -308)
        return copysign(0, f);
    if (digits < 0)
        f = round_to_tens(f, digits);
    else {
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        f = strtod(text, NULL);
    }
    if (isinf(f))
        tpl_error(t, "rounded value too large to represent");
    return f;
}

/* round(v, digits) */
struct value tpl_num_round(struct tpl *t, struct value v, int64_t digits)
{
    if (v.kind == V_FLOAT)
        return FLOAT(round_float(t, v.u.f, digits));
    return round_int(t, tpl_num_as_int(v), digits);
}

/* ---- reading ---- */

/* Without spaces around, and with digits of all scripts as ASCII. false if something else is in it.
 */
static bool plain_digits(struct tpl *t, const char *p, size_t bytes, struct sb *out)
{
    unsigned n;
    while (bytes && tpl_uni_is_space(uni_at(p, &n)))
        p += n, bytes -= n;
    while (bytes && tpl_uni_is_space(uni_before(p, p + bytes, &n)))
        bytes -= n;
    tpl_sb_init(out, t);
    for (size_t i = 0; i < bytes; i += n) {
        uint32_t cp = uni_at(p + i, &n);
        int digit = tpl_uni_decimal(cp);
        if (digit < 0 && cp >= 0x80)
            return false;
        tpl_sb_char(out, digit < 0 ? (char)cp : (char)('0' + digit));
    }
    return out->n > 0;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

static int prefix_base(const char *p, size_t n)
{
    if (n < 2 || p[0] != '0')
        return 0;
    char c = (char)(p[1] | 0x20);
    return c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
}

/* value * factor + plus */
static struct value scale(struct tpl *t, struct value v, uint32_t factor, uint32_t plus)
{
    int64_t next;
    if (v.kind == V_INT && !__builtin_mul_overflow(v.u.i, (int64_t)factor, &next) &&
        !__builtin_add_overflow(next, (int64_t)plus, &next))
        return INT(next);
    tpl_step(t, 1 + tpl_num_bit_length(v) / 64);
    return tpl_big_value(tpl_big_mul_small(t, tpl_big_of(t, v), factor, plus));
}

static bool read_digits(struct tpl *t, const char *p, size_t n, int base, bool negative,
                        struct value *out)
{
    struct value v = INT(0);
    bool after_digit = false;
    uint32_t factor = 1, part = 0; /* digits not in v yet */
    if (n > MAX_DIGITS && (base & (base - 1)))
        return false;
    for (size_t i = 0; i < n; i++) {
        int digit = p[i] == '_' && after_digit ? -1 : digit_of(p[i]);
        if (digit >= base || (digit < 0 && i + 1 == n))
            return false;
        after_digit = digit >= 0;
        if (digit < 0)
            continue;
        part = part * (uint32_t)base + (uint32_t)digit;
        factor *= (uint32_t)base;
        if (factor > UINT32_MAX / 64) {
            v = scale(t, v, factor, part);
            factor = 1;
            part = 0;
        }
    }
    v = scale(t, v, factor, part);
    *out = negative ? tpl_num_neg(t, v) : v;
    return true;
}

bool tpl_num_parse_int(struct tpl *t, const char *p, size_t bytes, int base, struct value *out)
{
    struct sb b;
    if (!plain_digits(t, p, bytes, &b))
        return false;
    const char *at = b.p, *end = b.p + b.n;
    bool negative = *at == '-';
    if (*at == '-' || *at == '+')
        at++;
    int prefix = prefix_base(at, (size_t)(end - at));
    if (prefix && (base == 0 || base == prefix)) {
        base = prefix;
        at += 2;
        if (at < end && *at == '_')
            at++;
    } else if (base == 0) {
        base = 10;
        if (end - at > 1 && *at == '0')
            for (const char *c = at; c < end; c++)
                if (*c != '0' && *c != '_')
                    return false;
    }
    return at < end && read_digits(t, at, (size_t)(end - at), base, negative, out);
}

/* Takes single underscores out that stand between digits. */
static bool drop_underscores(struct sb *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) {
        bool between =
            i && i + 1 < b->n && digit_of(b->p[i - 1]) < 10 && digit_of(b->p[i + 1]) < 10;
        if (b->p[i] != '_')
            b->p[n++] = b->p[i];
        else if (!between)
            return false;
    }
    b->n = n;
    return true;
}

static bool float_shape(const char *p, const char *end)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    if (p < end && (*p == '-' || *p == '+'))
        p++;
    for (size_t i = 0; i < 3; i++)
        if ((size_t)(end - p) == strlen(words[i]) && !strncasecmp(p, words[i], strlen(words[i])))
            return true;
    const char *digits = p;
    bool any = false;
    while (p < end && *p >= '0' && *p <= '9')
        p++, any = true;
    if (p < end && *p == '.')
        p++;
    while (p < end && *p >= '0' && *p <= '9')
        p++, any = true;
    if (!any || digits == end)
        return false;
    if (p < end && (*p | 0x20) == 'e') {
        p++;
        if (p < end && (*p == '-' || *p == '+'))
            p++;
        if (p == end)
            return false;
        while (p < end && *p >= '0' && *p <= '9')
            p++;
    }
    return p == end;
}

bool tpl_num_parse_float(struct tpl *t, const char *p, size_t bytes, double *out)
{
    struct sb b;
    if (!plain_digits(t, p, bytes, &b) || !drop_underscores(&b) || !float_shape(b.p, b.p + b.n))
        return false;
    tpl_sb_char(&b, '\0');
    *out = strtod(b.p, NULL);
    return true;
}

/* ---- writing ---- */

static const struct str *decimal(struct tpl *t, const struct big *b)
{
    unsigned bits = tpl_big_bits(b);
    if (bits > MAX_DIGITS * 10 / 3)
        tpl_error(t, "Exceeds the limit (%d digits) for integer string conversion", MAX_DIGITS);
    struct big *rest = tpl_big_add(t, b, tpl_big_of(t, INT(0)), false);
    size_t room = bits / 3 + 12, at = room;
    char *text = tpl_alloc(t, room);
    tpl_step(t, (uint64_t)b->n * b->n / 64);
    while (rest->n) {
        uint32_t nine = tpl_big_div_small(rest, 1000000000);
        for (int i = 0; i < 9 && (rest->n || nine); i++, nine /= 10)
            text[--at] = (char)('0' + nine % 10);
    }
    return tpl_str_ref(t, text + at, room - at);
}

const struct str *tpl_num_digits(struct tpl *t, struct value v, unsigned base, bool upper)
{
    v = tpl_num_as_int(v);
    if (v.kind == V_BIG && base == 10)
        return decimal(t, v.u.big);
    const char *digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    char *text = tpl_alloc(t, tpl_num_bit_length(v) + 24);
    size_t end = tpl_num_bit_length(v) + 24, at = end;
    if (v.kind == V_INT) {
        uint64_t m = v.u.i < 0 ? -(uint64_t)v.u.i : (uint64_t)v.u.i;
        do
            text[--at] = digits[m % base];
        while (m /= base);
        return tpl_str_ref(t, text + at, end - at);
    }
    struct big *rest = tpl_big_add(t, v.u.big, tpl_big_of(t, INT(0)), false);
    tpl_step(t, (uint64_t)rest->n * rest->n / 8);
    while (rest->n)
        text[--at] = digits[tpl_big_div_small(rest, base)];
    return tpl_str_ref(t, text + at, end - at);
}

/* Shortest digits that give f back; *exponent is that of the first. Where 15 digits do, they are
 * the shortest but for zeros at the end; a subnormal number has fewer. */
static int shortest(double f, char digits[20], int *exponent)
{
    char text[40];
    for (int n = f < 0x1p-1022 ? 1 : 15; n <= 17; n++) {
        snprintf(text, sizeof text, "%.*e", n - 1, f);
        if (strtod(text, NULL) == f)
            break;
    }
    char *e = strchr(text, 'e');
    *exponent = atoi(e + 1);
    int n = 0;
    for (const char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    return n;
}

static void write_fixed(char *out, const char *digits, int n, int exponent)
{
    char *at = out;
    if (exponent < 0) {
        *at++ = '0';
        *at++ = '.';
        for (int i = -1; i > exponent; i--)
            *at++ = '0';
    }
    for (int i = 0; i < n || i <= exponent; i++) {
        *at++ = i < n ? digits[i] : '0';
        if (i == exponent)
            *at++ = '.';
    }
    if (at[-1] == '.')
        *at++ = '0';
    *at = '\0';
}

void tpl_num_float_repr(char out[FLOAT_TEXT], double f)
{
    char digits[20];
    int exponent;
    if (!isfinite(f)) {
        strcpy(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    if (signbit(f))
        *out++ = '-';
    int n = shortest(fabs(f), digits, &exponent);
    if (exponent >= -4 && exponent < 16) {
        write_fixed(out, digits, n, exponent);
        return;
    }
    snprintf(out, FLOAT_TEXT - 1, "%c%s%.*se%c%02d", digits[0], n > 1 ? "." : "", n - 1, digits + 1,
             exponent < 0 ? '-' : '+', abs(exponent));
}

void tpl_num_repr_to(struct sb *b, struct value v)
{
    if (v.kind == V_FLOAT) {
        char text[FLOAT_TEXT];
        tpl_num_float_repr(text, v.u.f);
        tpl_sb_text(b, text);
        return;
    }
    if (tpl_num_is_negative(v))
        tpl_sb_char(b, '-');
    tpl_sb_str(b, tpl_num_digits(b->t, v, 10, false));
}
