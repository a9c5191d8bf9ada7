/* vec_avx2.h - vectors of 8 floats, in whose terms vec_attention.h and vec_ops.h are written;
 * vec_avx512.h has the same names for 16. A source includes one of the two.
 *
 *   VEC               floats of a vec
 *   vec_some, _store_some   the first n <= VEC floats alone; what is past them is 0, or stays as it is
 *   vec_first         lanes below n of a, the others of b
 *   vec_widen         8 floats, and zeros above them where VEC is more
 *   vec_low           the first 8 floats
 *   vec_add_to_eight  adds eights of v, in order, to 8 sums
 *   vec_highest       over all lanes
 *   vec_fmaddsub      a b + c in odd lanes, a b - c in even ones
 *   vec_swap          each even lane with the odd one above it
 *   vec_twice         VEC / 2 floats, each twice
 *   vec_fold          32 sums, halved to 16 and to 8: i + (i + half)
 * The rest is what its name says. Each is one IEEE operation a lane, so that bodies for other widths
 * give the same bits.
 */
#ifndef LLMD_CPU_VEC_AVX2_H
#define LLMD_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "avx2_math.h"
#include "inline.h"

enum { VEC = 8 };
typedef __m256 vec;

INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vec vec_set(float x)
{
    return _mm256_set1_ps(x);
}
INLINE vec vec_load(const float *x)
{
    return _mm256_loadu_ps(x);
}
INLINE void vec_store(float *y, vec v)
{
    _mm256_storeu_ps(y, v);
}
INLINE vec vec_some(const float *x, uint32_t n)
{
    _Alignas(32) float t[VEC] = {0};
    memcpy(t, x, n * sizeof *x);
    return _mm256_load_ps(t);
}
INLINE void vec_store_some(float *y, vec v, uint32_t n)
{
    _Alignas(32) float t[VEC];
    _mm256_store_ps(t, v);
    memcpy(y, t, n * sizeof *y);
}
INLINE vec vec_from_f16(const uint16_t *x)
{
    return avx2_from_f16(x);
}
INLINE vec vec_from_int8(const int8_t *x)
{
    return avx2_from_int8(x);
}

INLINE vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
INLINE vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
INLINE vec vec_negative(vec x)
{
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}
INLINE vec vec_exp(vec x)
{
    return avx2_exp(x);
}

INLINE vec vec_first(uint32_t n, vec a, vec b)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i chosen = _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), lane);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(chosen));
}
INLINE vec vec_widen(__m256 x)
{
    return x;
}
INLINE __m256 vec_low(vec v)
{
    return v;
}
INLINE __m256 vec_add_to_eight(__m256 sums, vec v)
{
    return _mm256_add_ps(sums, v);
}
INLINE float vec_highest(vec v)
{
    return avx2_highest(v);
}

/* ---- RoPE ---- */

INLINE vec vec_fmsub(vec a, vec b, vec c)
{
    return _mm256_fmsub_ps(a, b, c);
}
INLINE vec vec_fmaddsub(vec a, vec b, vec c)
{
    return _mm256_fmaddsub_ps(a, b, c);
}
INLINE vec vec_swap(vec x)
{
    return _mm256_permute_ps(x, 0xb1);
}
INLINE vec vec_twice(const float *x)
{
    const __m256i from = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), from);
}

/* ---- norm ---- */

INLINE __m256 vec_fold(const vec sums[4])
{
    return _mm256_add_ps(_mm256_add_ps(sums[0], sums[2]), _mm256_add_ps(sums[1], sums[3]));
}

#endif
