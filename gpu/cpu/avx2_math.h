/* avx2_math.h - math.h's exp and log for eight lanes: the same steps, the same bits; and what
 * eight lanes are together.
 *
 * Only for sources that the Makefile compiles with AVX2, FMA and F16C (avx2_*.c, avx512_*.c).
 */
#ifndef LLMD_CPU_AVX2_MATH_H
#define LLMD_CPU_AVX2_MATH_H

#include <immintrin.h>

#include "math.h"

static inline __m256 avx2_bits(uint32_t b)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)b));
}

static inline __m256 avx2_pow2(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* math_exp of each lane */
static inline __m256 avx2_exp(__m256 x)
{
    const __m256 round = _mm256_set1_ps(MATH_ROUND);
    __m256 c = _mm256_min_ps(x, _mm256_set1_ps(MATH_EXP_MAX)); /* a NaN lane becomes a number */
    c = _mm256_max_ps(c, _mm256_set1_ps(MATH_EXP_MIN));

    __m256 shifted = _mm256_fmadd_ps(c, _mm256_set1_ps(MATH_LOG2E), round);
    __m256 n = _mm256_sub_ps(shifted, round);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MATH_LN2_HI), c);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-MATH_LN2_LO), r);

    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(MATH_EXP_5), r, _mm256_set1_ps(MATH_EXP_4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_0));
    p = _mm256_add_ps(_mm256_set1_ps(1.0f), _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r));

    __m256i whole = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(round));
    __m256i half = _mm256_srai_epi32(whole, 1);
    p = _mm256_mul_ps(p, avx2_pow2(half));
    p = _mm256_mul_ps(p, avx2_pow2(_mm256_sub_epi32(whole, half)));
    return _mm256_blendv_ps(p, avx2_bits(0x7fc00000u), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* math_log of each lane */
static inline __m256 avx2_log(__m256 x)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(0x1p-126f), _CMP_LT_OQ);
    __m256 denormal = _mm256_and_ps(tiny, _mm256_set1_ps(1.0f));
    __m256i bits =
        _mm256_castps_si256(_mm256_blendv_ps(x, _mm256_mul_ps(x, _mm256_set1_ps(0x1p+23f)), tiny));
    __m256i exponent =
        _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(MATH_SQRT_HALF)), 23);
    __m256 m = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(exponent, 23)));
    __m256 f = _mm256_sub_ps(m, _mm256_set1_ps(1.0f));
    __m256 e = _mm256_fmadd_ps(denormal, _mm256_set1_ps(-23.0f), _mm256_cvtepi32_ps(exponent));

    __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(MATH_LOG_8), f, _mm256_set1_ps(MATH_LOG_7));
    q = _mm256_fmadd_ps(q, f, _mm256_set1_ps(MATH_LOG_6));
    q = _mm256_fmadd_ps(q, f, _mm256_set1_ps(MATH_LOG_5));
    q = _mm256_fmadd_ps(q, f, _mm256_set1_ps(MATH_LOG_4));
    q = _mm256_fmadd_ps(q, f, _mm256_set1_ps(MATH_LOG_3));
    q = _mm256_fmadd_ps(q, f, _mm256_set1_ps(MATH_LOG_2));
    q = _mm256_fmadd_ps(q, f, _mm256_set1_ps(MATH_LOG_1));
    q = _mm256_fmadd_ps(q, f, _mm256_set1_ps(MATH_LOG_0));

    __m256 f2 = _mm256_mul_ps(f, f);
    __m256 t =
        _mm256_fmadd_ps(_mm256_mul_ps(f2, f), q, _mm256_mul_ps(e, _mm256_set1_ps(MATH_LN2_LO)));
    t = _mm256_fmadd_ps(_mm256_set1_ps(-0.5f), f2, t);
    __m256 y = _mm256_fmadd_ps(e, _mm256_set1_ps(MATH_LN2_HI), _mm256_add_ps(f, t));

    const __m256 infinity = avx2_bits(0x7f800000u);
    y = _mm256_blendv_ps(y, infinity, _mm256_cmp_ps(x, infinity, _CMP_EQ_OQ));
    y = _mm256_blendv_ps(y, avx2_bits(0xff800000u), _mm256_cmp_ps(x, zero, _CMP_EQ_OQ));
    return _mm256_blendv_ps(y, avx2_bits(0x7fc00000u), _mm256_cmp_ps(x, zero, _CMP_NGE_UQ));
}

/* ---- eight of other formats ---- */

static inline __m256 avx2_from_f16(const uint16_t *x)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)x));
}

static inline __m256 avx2_from_int8(const int8_t *x)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)x);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

/* ---- across lanes ---- */

/* Lanes added pairwise at distances 4, 2, 1. */
static inline float avx2_total(__m256 x)
{
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

static inline float avx2_highest(__m256 x)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

#endif
