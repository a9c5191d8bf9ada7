/* template_big.c - integers beyond 64 bits: sign and magnitude, 32 bits a limb, lowest first.
 *
 * Values that fit 64 bits are V_INT, always: V_BIG is only what does not. Multiplication and
 * division are the schoolbook ones (division: Knuth, The Art of Computer Programming 2, 4.3.1,
 * algorithm D); BIG_BITS bounds both.
 */
#include "template_big.h"

#include <math.h>

static struct big *big_new(struct tpl *t, uint32_t n)
{
    if (n > BIG_BITS / 32)
        tpl_limit(t, "an integer of more than %d bits", BIG_BITS);
    struct big *b = tpl_zalloc(t, sizeof *b + n * sizeof *b->d);
    b->n = n;
    return b;
}

static void trim(struct big *b)
{
    while (b->n && !b->d[b->n - 1])
        b->n--;
}

const struct big *tpl_big_of(struct tpl *t, struct value v)
{
    if (v.kind == V_BIG)
        return v.u.big;
    int64_t i = v.kind == V_BOOL ? v.u.b : v.u.i;
    uint64_t magnitude = i < 0 ? -(uint64_t)i : (uint64_t)i;
    struct big *b = big_new(t, 2);
    b->negative = i < 0;
    b->d[0] = (uint32_t)magnitude;
    b->d[1] = (uint32_t)(magnitude >> 32);
    trim(b);
    return b;
}

struct value tpl_big_value(struct big *b)
{
    trim(b);
    if (b->n <= 2) {
        uint64_t m = (b->n > 1 ? (uint64_t)b->d[1] << 32 : 0) | (b->n ? b->d[0] : 0);
        if (m <= INT64_MAX)
            return INT(b->negative ? -(int64_t)m : (int64_t)m);
        if (b->negative && m == (uint64_t)INT64_MAX + 1)
            return INT(INT64_MIN);
    }
    return (struct value){V_BIG, {.big = b}};
}

int tpl_big_cmp_magnitude(const struct big *a, const struct big *b)
{
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    for (uint32_t i = a->n; i-- > 0;)
        if (a->d[i] != b->d[i])
            return a->d[i] < b->d[i] ? -1 : 1;
    return 0;
}

int tpl_big_cmp(const struct big *a, const struct big *b)
{
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    int order = tpl_big_cmp_magnitude(a, b);
    return a->negative ? -order : order;
}

static struct big *add_magnitudes(struct tpl *t, const struct big *a, const struct big *b)
{
    uint32_t n = (a->n > b->n ? a->n : b->n) + 1;
    struct big *sum = big_new(t, n);
    uint64_t carry = 0;
    for (uint32_t i = 0; i < n; i++) {
        carry += (uint64_t)(i < a->n ? a->d[i] : 0) + (i < b->n ? b->d[i] : 0);
        sum->d[i] = (uint32_t)carry;
        carry >>= 32;
    }
    return sum;
}

/* |a| - |b|, where |a| >= |b|. */
static struct big *sub_magnitudes(struct tpl *t, const struct big *a, const struct big *b)
{
    struct big *rest = big_new(t, a->n);
    int64_t borrow = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        int64_t x = (int64_t)a->d[i] - (i < b->n ? b->d[i] : 0) + borrow;
        rest->d[i] = (uint32_t)x;
        borrow = x < 0 ? -1 : 0;
    }
    return rest;
}

struct big *tpl_big_add(struct tpl *t, const struct big *a, const struct big *b, bool subtract)
{
    bool b_negative = b->negative != subtract;
    struct big *r;
    if (a->negative == b_negative) {
        r = add_magnitudes(t, a, b);
        r->negative = a->negative;
    } else if (tpl_big_cmp_magnitude(a, b) >= 0) {
        r = sub_magnitudes(t, a, b);
        r->negative = a->negative;
    } else {
        r = sub_magnitudes(t, b, a);
        r->negative = b_negative;
    }
    trim(r);
    if (!r->n)
        r->negative = false;
    return r;
}

struct big *tpl_big_mul(struct tpl *t, const struct big *a, const struct big *b)
{
    struct big *r = big_new(t, a->n + b->n);
    tpl_step(t, (uint64_t)a->n * b->n / 64);
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (uint32_t j = 0; j < b->n; j++) {
            carry += (uint64_t)a->d[i] * b->d[j] + r->d[i + j];
            r->d[i + j] = (uint32_t)carry;
            carry >>= 32;
        }
        r->d[i + b->n] = (uint32_t)carry;
    }
    r->negative = a->negative != b->negative;
    trim(r);
    return r;
}

struct big *tpl_big_mul_small(struct tpl *t, const struct big *a, uint32_t factor, uint32_t plus)
{
    struct big *r = big_new(t, a->n + 1);
    uint64_t carry = plus;
    for (uint32_t i = 0; i < a->n; i++) {
        carry += (uint64_t)a->d[i] * factor;
        r->d[i] = (uint32_t)carry;
        carry >>= 32;
    }
    r->d[a->n] = (uint32_t)carry;
    trim(r);
    return r;
}

/* Divides in place; the remainder. */
uint32_t tpl_big_div_small(struct big *a, uint32_t by)
{
    uint64_t rest = 0;
    for (uint32_t i = a->n; i-- > 0;) {
        rest = rest << 32 | a->d[i];
        a->d[i] = (uint32_t)(rest / by);
        rest %= by;
    }
    trim(a);
    return (uint32_t)rest;
}

struct big *tpl_big_shift_left(struct tpl *t, const struct big *a, uint32_t bits)
{
    uint32_t limbs = bits / 32, rest = bits % 32;
    struct big *r = big_new(t, a->n + limbs + 1);
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t x = (uint64_t)a->d[i] << rest;
        r->d[i + limbs] |= (uint32_t)x;
        r->d[i + limbs + 1] |= (uint32_t)(x >> 32);
    }
    r->negative = a->negative;
    trim(r);
    return r;
}

static struct big *shift_right(struct tpl *t, const struct big *a, uint32_t bits)
{
    struct big *r = big_new(t, a->n);
    for (uint32_t i = 0; i < a->n; i++)
        r->d[i] = (uint32_t)(((uint64_t)(i + 1 < a->n ? a->d[i + 1] : 0) << 32 | a->d[i]) >> bits);
    trim(r);
    return r;
}

/* One step of algorithm D: the digit at j of u / v, and u less digit times v. */
static uint32_t quotient_digit(struct big *u, const struct big *v, uint32_t j)
{
    uint32_t n = v->n;
    uint64_t top = (uint64_t)u->d[j + n] << 32 | u->d[j + n - 1];
    uint64_t digit = top / v->d[n - 1], rest = top % v->d[n - 1];
    while (digit >> 32 || digit * v->d[n - 2] > (rest << 32 | u->d[j + n - 2])) {
        digit--;
        rest += v->d[n - 1];
        if (rest >> 32)
            break;
    }
    int64_t borrow = 0;
    uint64_t carry = 0;
    for (uint32_t i = 0; i < n; i++) {
        carry += digit * v->d[i];
        int64_t x = (int64_t)u->d[i + j] - (uint32_t)carry + borrow;
        u->d[i + j] = (uint32_t)x;
        borrow = x < 0 ? -1 : 0;
        carry >>= 32;
    }
    int64_t x = (int64_t)u->d[j + n] - (int64_t)carry + borrow;
    u->d[j + n] = (uint32_t)x;
    if (x >= 0)
        return (uint32_t)digit;
    carry = 0; /* one too many: add v back */
    for (uint32_t i = 0; i < n; i++) {
        carry += (uint64_t)u->d[i + j] + v->d[i];
        u->d[i + j] = (uint32_t)carry;
        carry >>= 32;
    }
    u->d[j + n] += (uint32_t)carry;
    return (uint32_t)digit - 1;
}

static struct big *copy_with_room(struct tpl *t, const struct big *a, uint32_t room)
{
    struct big *copy = big_new(t, room);
    memcpy(copy->d, a->d, a->n * sizeof *a->d);
    copy->negative = a->negative;
    return copy;
}

/* |a| / |b| truncated; *rest gets what is left over. b is not zero. */
static struct big *div_magnitudes(struct tpl *t, const struct big *a, const struct big *b,
                                  struct big **rest)
{
    struct big *q = copy_with_room(t, a, a->n);
    q->negative = false;
    trim(q);
    if (b->n == 1) {
        *rest = big_new(t, 1);
        (*rest)->d[0] = tpl_big_div_small(q, b->d[0]);
        trim(*rest);
        return q;
    }
    if (tpl_big_cmp_magnitude(a, b) < 0) {
        *rest = q;
        return big_new(t, 0);
    }
    uint32_t shift = (uint32_t)__builtin_clz(b->d[b->n - 1]);
    const struct big *v = tpl_big_shift_left(t, b, shift);
    const struct big *shifted = tpl_big_shift_left(t, a, shift);
    struct big *u = copy_with_room(t, shifted, a->n + 1);
    q = big_new(t, a->n - v->n + 1);
    tpl_step(t, (uint64_t)q->n * v->n / 64);
    for (uint32_t j = q->n; j-- > 0;)
        q->d[j] = quotient_digit(u, v, j);
    trim(q);
    trim(u);
    *rest = shift_right(t, u, shift);
    return q;
}

/* Python's // and %: the quotient rounds down, the remainder has the sign of b. */
void tpl_big_divmod(struct tpl *t, const struct big *a, const struct big *b, struct big **quotient,
                    struct big **modulus)
{
    struct big *rest, *q = div_magnitudes(t, a, b, &rest);
    q->negative = a->negative != b->negative && q->n;
    rest->negative = a->negative && rest->n;
    if (rest->n && a->negative != b->negative) {
        q = tpl_big_add(t, q, tpl_big_of(t, INT(1)), true);
        rest = tpl_big_add(t, rest, b, false);
    }
    *quotient = q;
    *modulus = rest;
}

unsigned tpl_big_bits(const struct big *b)
{
    return b->n ? b->n * 32 - (unsigned)__builtin_clz(b->d[b->n - 1]) : 0;
}

/* Correctly rounded; infinite where it does not fit. `sticky`: the true value is a little larger.
 */
double tpl_big_double(const struct big *b, bool sticky)
{
    unsigned bits = tpl_big_bits(b);
    if (bits > 1024)
        return b->negative ? -HUGE_VAL : HUGE_VAL;
    uint64_t top = 0;
    unsigned shift = bits > 64 ? bits - 64 : 0;
    for (unsigned i = 0; i < 64 && i < bits; i++) {
        unsigned at = shift + i;
        top |= (uint64_t)(b->d[at / 32] >> at % 32 & 1) << i;
    }
    for (unsigned at = 0; at < shift && !sticky; at++)
        sticky = b->d[at / 32] >> at % 32 & 1;
    if (bits > 54 && sticky)
        top |= 1; /* below the rounding bit: decides ties, changes nothing else */
    double f = ldexp((double)top, (int)shift);
    return b->negative ? -f : f;
}

/* a / b, correctly rounded: a quotient of at least 66 bits and whether it was exact. */
double tpl_big_true_div(struct tpl *t, const struct big *a, const struct big *b)
{
    int shift = 66 + (int)tpl_big_bits(b) - (int)tpl_big_bits(a);
    if (shift < 0)
        shift = 0;
    struct big *rest, *q = div_magnitudes(t, tpl_big_shift_left(t, a, (uint32_t)shift), b, &rest);
    double f = ldexp(tpl_big_double(q, rest->n != 0), -shift);
    return a->negative != b->negative ? -f : f;
}
