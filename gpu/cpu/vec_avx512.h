/* vec_avx512.h - vectors of 16 floats, under the names that vec_avx2.h explains. */
#ifndef LLMD_CPU_VEC_AVX512_H
#define LLMD_CPU_VEC_AVX512_H

#include <immintrin.h>

#include "avx2_math.h"
#include "avx512_math.h"
#include "inline.h"

enum { VEC = 16 };
typedef __m512 vec;

INLINE __mmask16 vec_lanes(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}

INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vec vec_set(float x)
{
    return _mm512_set1_ps(x);
}
INLINE vec vec_load(const float *x)
{
    return _mm512_loadu_ps(x);
}
INLINE void vec_store(float *y, vec v)
{
    _mm512_storeu_ps(y, v);
}
INLINE vec vec_some(const float *x, uint32_t n)
{
    return _mm512_maskz_loadu_ps(vec_lanes(n), x);
}
INLINE void vec_store_some(float *y, vec v, uint32_t n)
{
    _mm512_mask_storeu_ps(y, vec_lanes(n), v);
}
INLINE vec vec_from_f16(const uint16_t *x)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)x));
}
INLINE vec vec_from_int8(const int8_t *x)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)x);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

INLINE vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
INLINE vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
INLINE vec vec_negative(vec x)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), sign));
}
INLINE vec vec_exp(vec x)
{
    return avx512_exp(x);
}

INLINE vec vec_first(uint32_t n, vec a, vec b)
{
    return _mm512_mask_mov_ps(b, vec_lanes(n), a);
}
INLINE vec vec_widen(__m256 x)
{
    return _mm512_zextps256_ps512(x);
}
INLINE __m256 vec_low(vec v)
{
    return _mm512_castps512_ps256(v);
}
INLINE __m256 vec_high(vec v)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
}
INLINE __m256 vec_add_to_eight(__m256 sums, vec v)
{
    return _mm256_add_ps(_mm256_add_ps(sums, vec_low(v)), vec_high(v));
}
INLINE float vec_highest(vec v)
{
    return avx2_highest(_mm256_max_ps(vec_low(v), vec_high(v)));
}

/* ---- RoPE ---- */

INLINE vec vec_fmsub(vec a, vec b, vec c)
{
    return _mm512_fmsub_ps(a, b, c);
}
INLINE vec vec_fmaddsub(vec a, vec b, vec c)
{
    return _mm512_fmaddsub_ps(a, b, c);
}
INLINE vec vec_swap(vec x)
{
    return _mm512_permute_ps(x, 0xb1);
}
INLINE vec vec_twice(const float *x)
{
    const __m512i from = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(from, _mm512_castps256_ps512(_mm256_loadu_ps(x)));
}

/* ---- norm ---- */

INLINE __m256 vec_fold(const vec sums[2])
{
    vec s = _mm512_add_ps(sums[0], sums[1]);
    return _mm256_add_ps(vec_low(s), vec_high(s));
}

#endif
