/* vec_ops.h - the operations of ops.h on vectors, the same operations in the same order, VEC at a
 * time: the body of avx2_ops.c and avx512_ops.c, which include their vectors before it. Tails go
 * through the very same code on vectors filled up with zeros, so that no second definition exists.
 */
#include "ops.h"

/* How many elements from i on go into one vector. */
INLINE uint32_t some(uint32_t i, uint32_t n)
{
    return n - i < VEC ? n - i : VEC;
}

/* ---- norm ---- */

enum { SUMS = 32 / VEC };

/* Sums of squares in the 32 lanes of ops.h; what is past n adds an exact 0. */
INLINE void square_sums(const float *x, uint32_t n, vec sum[SUMS])
{
    uint32_t i = 0;
    for (int j = 0; j < SUMS; j++)
        sum[j] = vec_zero();
    for (; n - i >= 32; i += 32)
        for (int j = 0; j < SUMS; j++) {
            vec v = vec_load(x + i + j * VEC);
            sum[j] = vec_fma(v, v, sum[j]);
        }
    for (int j = 0; i < n; i += some(i, n), j++) {
        vec v = vec_some(x + i, some(i, n));
        sum[j] = vec_fma(v, v, sum[j]);
    }
}

static void rms_norm(const float *x, const float *weight, float eps, uint32_t n, float *y)
{
    vec sum[SUMS];
    square_sums(x, n, sum);
    vec s = vec_set(1.0f / __builtin_sqrtf(avx2_total(vec_fold(sum)) / (float)n + eps));
    uint32_t i = 0;
    for (; n - i >= VEC; i += VEC)
        vec_store(y + i, vec_mul(vec_mul(vec_load(x + i), s), vec_load(weight + i)));
    if (i < n) {
        vec v = vec_mul(vec_some(x + i, n - i), s);
        vec_store_some(y + i, vec_mul(v, vec_some(weight + i, n - i)), n - i);
    }
}

/* ---- residual ---- */

static void add(float *x, const float *y, const float *bias, uint32_t n)
{
    uint32_t i = 0;
    for (; n - i >= VEC; i += VEC) {
        vec v = vec_load(y + i);
        if (bias)
            v = vec_add(v, vec_load(bias + i));
        vec_store(x + i, vec_add(vec_load(x + i), v));
    }
    if (i < n) {
        vec v = vec_some(y + i, n - i);
        if (bias)
            v = vec_add(v, vec_some(bias + i, n - i));
        vec_store_some(x + i, vec_add(vec_some(x + i, n - i), v), n - i);
    }
}

/* ---- SwiGLU ---- */

INLINE vec gated(vec gate, vec up)
{
    vec e = vec_exp(vec_negative(gate));
    return vec_mul(vec_div(gate, vec_add(vec_set(1.0f), e)), up);
}

static void swiglu(const float *gate, const float *up, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; n - i >= VEC; i += VEC)
        vec_store(y + i, gated(vec_load(gate + i), vec_load(up + i)));
    if (i < n)
        vec_store_some(y + i, gated(vec_some(gate + i, n - i), vec_some(up + i, n - i)), n - i);
}

/* ---- RoPE ---- */

struct rotated {
    vec a, b;
};
INLINE struct rotated rotate(vec a, vec b, vec cosine, vec sine)
{
    return (struct rotated){vec_fmsub(a, cosine, vec_mul(b, sine)),
                            vec_fma(b, cosine, vec_mul(a, sine))};
}

static void rope_halves(const float *x, uint32_t half, const float *cosine, const float *sine,
                        float *y)
{
    const float *b = x + half;
    uint32_t i = 0;
    for (; half - i >= VEC; i += VEC) {
        struct rotated r =
            rotate(vec_load(x + i), vec_load(b + i), vec_load(cosine + i), vec_load(sine + i));
        vec_store(y + i, r.a);
        vec_store(y + half + i, r.b);
    }
    if (i < half) {
        uint32_t n = half - i;
        struct rotated r = rotate(vec_some(x + i, n), vec_some(b + i, n), vec_some(cosine + i, n),
                                  vec_some(sine + i, n));
        vec_store_some(y + i, r.a, n);
        vec_store_some(y + half + i, r.b, n);
    }
}

/* VEC / 2 pairs side by side */
static void rope_pairs(const float *x, uint32_t half, const float *cosine, const float *sine,
                       float *y)
{
    uint32_t i = 0;
    for (; half - i >= VEC / 2; i += VEC / 2) {
        vec v = vec_load(x + (size_t)2 * i), c = vec_twice(cosine + i), s = vec_twice(sine + i);
        vec_store(y + (size_t)2 * i, vec_fmaddsub(v, c, vec_mul(vec_swap(v), s)));
    }
    for (; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = __builtin_fmaf(a, cosine[i], -(b * sine[i]));
        y[2 * i + 1] = __builtin_fmaf(b, cosine[i], a * sine[i]);
    }
}

static void rope(enum gpu_rope kind, const float *x, uint32_t rope_dim, const float *table,
                 float *y)
{
    uint32_t half = rope_dim / 2;
    if (kind == GPU_ROPE_PAIRS)
        rope_pairs(x, half, table, table + half, y);
    else
        rope_halves(x, half, table, table + half, y);
}
