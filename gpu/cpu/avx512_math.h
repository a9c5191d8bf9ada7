/* avx512_math.h - math.h's exp for sixteen lanes: the same steps, the same bits.
 *
 * Only for sources that the Makefile compiles with AVX-512 (avx512_*.c).
 */
#ifndef LLMD_CPU_AVX512_MATH_H
#define LLMD_CPU_AVX512_MATH_H

#include <immintrin.h>

#include "math.h"

/* math_exp of each lane */
static inline __m512 avx512_exp(__m512 x)
{
    const __m512 round = _mm512_set1_ps(MATH_ROUND);
    __m512 c = _mm512_min_ps(x, _mm512_set1_ps(MATH_EXP_MAX)); /* a NaN lane becomes a number */
    c = _mm512_max_ps(c, _mm512_set1_ps(MATH_EXP_MIN));

    __m512 n = _mm512_fmadd_ps(c, _mm512_set1_ps(MATH_LOG2E), round);
    n = _mm512_sub_ps(n, round);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-MATH_LN2_HI), c);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-MATH_LN2_LO), r);

    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(MATH_EXP_5), r, _mm512_set1_ps(MATH_EXP_4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_0));
    p = _mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r));

    /* p 2^n, rounded once, as math_exp's two factors do it: the first product is exact */
    p = _mm512_scalef_ps(p, n);
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

#endif
