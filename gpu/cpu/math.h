/* math.h - exp, log and f16 conversion of the step path, in plain C without libm.
 *
 * Invariants:
 * 1. The result is a pure function of the argument's bits: every step is one IEEE operation or one
 *    explicit fma, round to nearest even, denormals on. avx2_math.h and avx512_math.h take the
 *    very same steps, so lane by lane the bits are the same. Change all or none.
 * 2. Within 1 ulp of the true value; a NaN result is always 0x7fc00000.
 *
 * Method. exp: x = n ln2 + r (ln2 in two parts, Cody and Waite), e^r = 1 + r + r^2 P(r), scaled
 * by 2^n in two factors so that results below the normal range round once. log: x = m 2^e with m in
 * [sqrt(1/2), sqrt(2)), f = m - 1, log m = f - f^2 / 2 + f^3 Q(f). P and Q are our minimax fits to
 * the rest of the Taylor series, off by 0.001 and 0.013 ulp of the result. __builtin_fmaf may
 * become a call of fmaf, which is exact, hence the same bits.
 */
#ifndef LLMD_CPU_MATH_H
#define LLMD_CPU_MATH_H

#include <stdint.h>
#include <string.h>

#define MATH_LOG2E     0x1.715476p+0f
#define MATH_LN2_HI    0x1.62e430p-1f
#define MATH_LN2_LO    (-0x1.05c610p-29f)
#define MATH_ROUND     0x1.8p+23f /* adding it rounds to an integer, found in the low bits */
#define MATH_EXP_MAX   89.0f      /* e^x overflows from 88.73 on */
#define MATH_EXP_MIN   (-105.0f)  /* e^x rounds to 0 below -103.98 */
#define MATH_SQRT_HALF 0x3f3504f3u

/* P, lowest degree first */
#define MATH_EXP_0 0x1.000000p-1f
#define MATH_EXP_1 0x1.555554p-3f
#define MATH_EXP_2 0x1.55548cp-5f
#define MATH_EXP_3 0x1.111274p-7f
#define MATH_EXP_4 0x1.6d8eeep-10f
#define MATH_EXP_5 0x1.9f0716p-13f

/* Q, lowest degree first */
#define MATH_LOG_0 0x1.555548p-2f
#define MATH_LOG_1 -0x1.000006p-2f
#define MATH_LOG_2 0x1.99a4bcp-3f
#define MATH_LOG_3 -0x1.555c5ap-3f
#define MATH_LOG_4 0x1.2336e2p-3f
#define MATH_LOG_5 -0x1.fc1f6cp-4f
#define MATH_LOG_6 0x1.e6f608p-4f
#define MATH_LOG_7 -0x1.de4fa0p-4f
#define MATH_LOG_8 0x1.146310p-4f

static inline uint32_t math_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static inline float math_from_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

/* 2^n for -126 <= n <= 127 */
static inline float math_pow2(int32_t n)
{
    return math_from_bits((uint32_t)(n + 127) << 23);
}

/* e^x. exp(-inf) = 0, exp(inf) = inf, NaN stays NaN. */
static inline float math_exp(float x)
{
    if (x != x)
        return math_from_bits(0x7fc00000u);
    float c = x < MATH_EXP_MAX ? x : MATH_EXP_MAX;
    c = c > MATH_EXP_MIN ? c : MATH_EXP_MIN;

    float shifted = __builtin_fmaf(c, MATH_LOG2E, MATH_ROUND);
    float n = shifted - MATH_ROUND;
    float r = __builtin_fmaf(n, -MATH_LN2_HI, c);
    r = __builtin_fmaf(n, -MATH_LN2_LO, r);

    float p = __builtin_fmaf(MATH_EXP_5, r, MATH_EXP_4);
    p = __builtin_fmaf(p, r, MATH_EXP_3);
    p = __builtin_fmaf(p, r, MATH_EXP_2);
    p = __builtin_fmaf(p, r, MATH_EXP_1);
    p = __builtin_fmaf(p, r, MATH_EXP_0);
    p = 1.0f + __builtin_fmaf(r * r, p, r);

    int32_t whole = (int32_t)(math_bits(shifted) - math_bits(MATH_ROUND)); /* -152 .. 128 */
    int32_t half = whole >> 1;
    return p * math_pow2(half) * math_pow2(whole - half);
}

/* Natural logarithm. log(+-0) = -inf, log(inf) = inf, below 0 and NaN give NaN. */
static inline float math_log(float x)
{
    if (!(x >= 0.0f))
        return math_from_bits(0x7fc00000u);
    if (x == 0.0f)
        return math_from_bits(0xff800000u);
    if (math_bits(x) == 0x7f800000u)
        return x;

    float denormal = x < 0x1p-126f ? 1.0f : 0.0f;
    uint32_t bits = math_bits(denormal != 0.0f ? x * 0x1p+23f : x);
    int32_t exponent = (int32_t)(bits - MATH_SQRT_HALF) >> 23;
    float f = math_from_bits(bits - ((uint32_t)exponent << 23)) - 1.0f;
    float e = __builtin_fmaf(denormal, -23.0f, (float)exponent);

    float q = __builtin_fmaf(MATH_LOG_8, f, MATH_LOG_7);
    q = __builtin_fmaf(q, f, MATH_LOG_6);
    q = __builtin_fmaf(q, f, MATH_LOG_5);
    q = __builtin_fmaf(q, f, MATH_LOG_4);
    q = __builtin_fmaf(q, f, MATH_LOG_3);
    q = __builtin_fmaf(q, f, MATH_LOG_2);
    q = __builtin_fmaf(q, f, MATH_LOG_1);
    q = __builtin_fmaf(q, f, MATH_LOG_0);

    float f2 = f * f;
    float t = __builtin_fmaf(f2 * f, q, e * MATH_LN2_LO);
    t = __builtin_fmaf(-0.5f, f2, t);
    return __builtin_fmaf(e, MATH_LN2_HI, f + t);
}

/* f16 to f32: exact; a signalling NaN becomes quiet, its payload kept (as F16C does it). */
static inline float math_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = h & 0x7fffu;
    if (rest > 0x7c00u)
        return math_from_bits(sign | 0x7fc00000u | rest << 13);
    if (rest == 0x7c00u)
        return math_from_bits(sign | 0x7f800000u);
    if (rest < 0x0400u) /* zero and denormals: an integer times 2^-24 */
        return math_from_bits(sign | math_bits((float)rest * 0x1p-24f));
    return math_from_bits(sign | ((rest << 13) + (112u << 23)));
}

/* f32 to f16, round to nearest even; from 65520 on infinity; NaN as F16C does it. */
static inline uint16_t math_to_f16(float x)
{
    uint32_t b = math_bits(x), sign = b >> 16 & 0x8000u, rest = b & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u) /* 65520, half way to the next power */
        return (uint16_t)(sign | 0x7c00u);
    if (rest < 0x38800000u) { /* below 2^-14: adding 0.5 leaves units of 2^-24 in the low bits */
        float shifted = math_from_bits(rest) + 0.5f;
        return (uint16_t)(sign | (math_bits(shifted) - math_bits(0.5f)));
    }
    uint32_t odd = rest >> 13 & 1u;
    return (uint16_t)(sign | (rest - (112u << 23) + 0xfffu + odd) >> 13);
}

#endif
