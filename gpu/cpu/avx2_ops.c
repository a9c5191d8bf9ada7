/* avx2_ops.c - the operations of ops.h on AVX2, the same operations in the same order, eight at a
 * time. Tails go through the very same code on a padded copy, so that no second definition exists.
 */
#include "ops.h"

#ifdef __AVX2__

#include <immintrin.h>
#include <string.h>

#include "avx2_math.h"

enum { LANES = 8 };

/* The last n < 8 elements, padded with zeros */
static inline __m256 load_some(const float *x, uint32_t n)
{
    _Alignas(32) float t[LANES] = {0};
    memcpy(t, x, n * sizeof *x);
    return _mm256_load_ps(t);
}

static inline void store_some(float *y, __m256 v, uint32_t n)
{
    _Alignas(32) float t[LANES];
    _mm256_store_ps(t, v);
    memcpy(y, t, n * sizeof *y);
}

/* ---- norm ---- */

/* Sums of squares in the 32 lanes of ops.h; what is past n adds an exact 0. */
static inline void square_sums(const float *x, uint32_t n, __m256 sum[4])
{
    uint32_t i = 0;
    for (int j = 0; j < 4; j++)
        sum[j] = _mm256_setzero_ps();
    for (; n - i >= 4 * LANES; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + j * LANES);
            sum[j] = _mm256_fmadd_ps(v, v, sum[j]);
        }
    for (int j = 0; i < n; j++) {
        uint32_t m = n - i < LANES ? n - i : LANES;
        __m256 v = load_some(x + i, m);
        sum[j] = _mm256_fmadd_ps(v, v, sum[j]);
        i += m;
    }
}

static inline float fold(const __m256 sum[4])
{
    __m256 s = _mm256_add_ps(_mm256_add_ps(sum[0], sum[2]), _mm256_add_ps(sum[1], sum[3]));
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}

static void rms_norm(const float *x, const float *weight, float eps, uint32_t n, float *y)
{
    __m256 sum[4];
    square_sums(x, n, sum);
    float scale = 1.0f / __builtin_sqrtf(fold(sum) / (float)n + eps);
    __m256 s = _mm256_set1_ps(scale);
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), s);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(weight + i)));
    }
    if (i < n) {
        __m256 v = _mm256_mul_ps(load_some(x + i, n - i), s);
        store_some(y + i, _mm256_mul_ps(v, load_some(weight + i, n - i)), n - i);
    }
}

/* ---- residual ---- */

static void add(float *x, const float *y, const float *bias, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        __m256 v = _mm256_loadu_ps(y + i);
        if (bias)
            v = _mm256_add_ps(v, _mm256_loadu_ps(bias + i));
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), v));
    }
    if (i < n) {
        __m256 v = load_some(y + i, n - i);
        if (bias)
            v = _mm256_add_ps(v, load_some(bias + i, n - i));
        store_some(x + i, _mm256_add_ps(load_some(x + i, n - i), v), n - i);
    }
}

/* ---- SwiGLU ---- */

static inline __m256 gated(__m256 gate, __m256 up)
{
    __m256 e = avx2_exp(_mm256_xor_ps(gate, _mm256_set1_ps(-0.0f)));
    __m256 silu = _mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
    return _mm256_mul_ps(silu, up);
}

static void swiglu(const float *gate, const float *up, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES)
        _mm256_storeu_ps(y + i, gated(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    if (i < n)
        store_some(y + i, gated(load_some(gate + i, n - i), load_some(up + i, n - i)), n - i);
}

/* ---- RoPE ---- */

static inline void rotate_halves(float *a, float *b, const float *cosine, const float *sine)
{
    __m256 x = _mm256_loadu_ps(a), y = _mm256_loadu_ps(b);
    __m256 c = _mm256_loadu_ps(cosine), s = _mm256_loadu_ps(sine);
    _mm256_storeu_ps(a, _mm256_fmsub_ps(x, c, _mm256_mul_ps(y, s)));
    _mm256_storeu_ps(b, _mm256_fmadd_ps(y, c, _mm256_mul_ps(x, s)));
}

/* Four pairs side by side */
static inline void rotate_pairs(float *at, const float *cosine, const float *sine)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    __m256 x = _mm256_loadu_ps(at), swapped = _mm256_permute_ps(x, 0xb1);
    __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cosine)), twice);
    __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sine)), twice);
    _mm256_storeu_ps(at, _mm256_fmaddsub_ps(x, c, _mm256_mul_ps(swapped, s)));
}

static inline void rotate_one(float *a, float *b, float cosine, float sine)
{
    float x = *a, y = *b;
    *a = __builtin_fmaf(x, cosine, -(y * sine));
    *b = __builtin_fmaf(y, cosine, x * sine);
}

static void rope(enum gpu_rope kind, float *head, uint32_t rope_dim, const float *table)
{
    uint32_t half = rope_dim / 2, i = 0;
    const float *cosine = table, *sine = table + half;
    if (kind == GPU_ROPE_PAIRS) {
        for (; half - i >= LANES / 2; i += LANES / 2)
            rotate_pairs(head + (size_t)2 * i, cosine + i, sine + i);
        for (; i < half; i++)
            rotate_one(&head[2 * i], &head[2 * i + 1], cosine[i], sine[i]);
        return;
    }
    for (; half - i >= LANES; i += LANES)
        rotate_halves(head + i, head + half + i, cosine + i, sine + i);
    for (; i < half; i++)
        rotate_one(&head[i], &head[half + i], cosine[i], sine[i]);
}

const struct ops_kernels ops_avx2 = {
    .rms_norm = rms_norm, .add = add, .swiglu = swiglu, .rope = rope};

#else

const struct ops_kernels ops_avx2 = {0};

#endif
