/* ops.h - the small operations between the products: norm, residual, SwiGLU, RoPE.
 *
 * All work on one row of f32. Every op is defined by the plain C version; the AVX2 and
 * the AVX-512 one give the same bits. None uses libm in a step; exp is math.h's. Order of operations:
 *
 *   rms_norm   s[i mod 32] = fma(x, x, s) for i in order; the 32 sums halve 32, 16, .. 1 (i + i +
 *              half); scale = 1 / sqrt(s / n + eps); y = (x * scale) * weight
 *   add        x = x + y;  add_bias  x = x + (y + bias)
 *   swiglu     y = (gate / (1 + exp(-gate))) * up
 *   rope       (a, b) -> (fma(a, cos, -(b * sin)), fma(b, cos, a * sin))
 */
#ifndef LLMD_CPU_OPS_H
#define LLMD_CPU_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "../gpu.h"

struct ops_kernels {
    /* x, weight, y: (n); y may be x */
    void (*rms_norm)(const float *x, const float *weight, float eps, uint32_t n, float *y);
    /* x (n) += y (n), or += y + bias; bias NULL: none */
    void (*add)(float *x, const float *y, const float *bias, uint32_t n);
    /* y (n) = silu(gate) * up; y may be gate or up */
    void (*swiglu)(const float *gate, const float *up, uint32_t n, float *y);
    /* y = x rotated, the first rope_dim elements of one head; y may be x; table: rope_row(). */
    void (*rope)(enum gpu_rope kind, const float *x, uint32_t rope_dim, const float *table,
                 float *y);
};
/* ops_avx2 and ops_avx512 are all NULL in builds for other machines. */
extern const struct ops_kernels ops_plain, ops_avx2, ops_avx512;

/* RoPE table: for each position cos[rope_dim / 2], then sin[rope_dim / 2], both times magnitude.
 * Angles are freq * position in double; sine and cosine are ours, so that they do not depend on
 * the C library. Fills rows first .. last - 1 of table (max_len, rope_dim). */
void rope_fill(float *table, uint32_t first, uint32_t last, const float *freq, uint32_t rope_dim,
               float magnitude);

static inline const float *rope_row(const float *table, uint32_t rope_dim, uint32_t pos)
{
    return table + (size_t)pos * rope_dim;
}

#endif
