/* ops.c - plain C references of ops.h, and the RoPE table.
 *
 * The table's sine and cosine: the angle is reduced by multiples of pi / 2 in three parts of 33, 33
 * and 53 bits (Cody and Waite); the first two products are exact for up to 2^20 quarter turns,
 * which 2^20 positions of at most one radian each stay below. Then Taylor series on [-pi/4, pi/4],
 * whose first dropped term is below 2^-60.
 */
#include "ops.h"

#include <stdbool.h>

#include "math.h"

/* ---- rows ---- */

enum { NORM_LANES = 32 };

static void rms_norm(const float *x, const float *weight, float eps, uint32_t n, float *y)
{
    float sum[NORM_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        sum[i % NORM_LANES] = __builtin_fmaf(x[i], x[i], sum[i % NORM_LANES]);
    for (int half = NORM_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sum[i] += sum[i + half];
    float scale = 1.0f / __builtin_sqrtf(sum[0] / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * weight[i];
}

static void add(float *x, const float *y, const float *bias, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += bias ? y[i] + bias[i] : y[i];
}

static void swiglu(const float *gate, const float *up, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + math_exp(-gate[i])) * up[i];
}

static void rope(enum gpu_rope kind, const float *x, uint32_t rope_dim, const float *table,
                 float *y)
{
    uint32_t half = rope_dim / 2;
    const float *cosine = table, *sine = table + half;
    for (uint32_t i = 0; i < half; i++) {
        uint32_t at = kind == GPU_ROPE_PAIRS ? 2 * i : i;
        uint32_t other = kind == GPU_ROPE_PAIRS ? at + 1 : at + half;
        float a = x[at], b = x[other];
        y[at] = __builtin_fmaf(a, cosine[i], -(b * sine[i]));
        y[other] = __builtin_fmaf(b, cosine[i], a * sine[i]);
    }
}

const struct ops_kernels ops_plain = {
    .rms_norm = rms_norm, .add = add, .swiglu = swiglu, .rope = rope};

/* ---- RoPE table ---- */

/* x - x^3 / 3! + .. and 1 - x^2 / 2! + .., |x| <= pi / 4 */
static double series(double x, bool odd)
{
    double x2 = x * x, sum = 0;
    for (int k = odd ? 21 : 20; k > 1; k -= 2)
        sum = x2 * (1.0 - sum) / (double)(k * (k - 1));
    return odd ? x * (1.0 - sum) : 1.0 - sum;
}

static void sine_cosine(double angle, double *sine, double *cosine)
{
    const double hi = 0x1.921fb544p+0, mid = 0x1.0b4611a6p-34, lo = 0x1.3198a2e037073p-69;
    double n = (double)(int64_t)(angle * 0x1.45f306dc9c883p-1 + (angle < 0 ? -0.5 : 0.5));
    double r = angle - n * hi - n * mid - n * lo;
    double s = series(r, true), c = series(r, false);
    switch ((int64_t)n & 3) {
    case 0:
        *sine = s;
        *cosine = c;
        break;
    case 1:
        *sine = c;
        *cosine = -s;
        break;
    case 2:
        *sine = -s;
        *cosine = -c;
        break;
    default:
        *sine = -c;
        *cosine = s;
    }
}

void rope_fill(float *table, uint32_t first, uint32_t last, const float *freq, uint32_t rope_dim,
               float magnitude)
{
    uint32_t half = rope_dim / 2;
    for (uint32_t pos = first; pos < last; pos++) {
        float *row = table + (size_t)pos * rope_dim;
        for (uint32_t i = 0; i < half; i++) {
            double sine, cosine;
            sine_cosine((double)pos * (double)freq[i], &sine, &cosine);
            row[i] = (float)(cosine * (double)magnitude);
            row[half + i] = (float)(sine * (double)magnitude);
        }
    }
}
