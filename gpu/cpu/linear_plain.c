/* linear_plain.c - the reference of linear.h in plain C: the definition that the AVX2 kernels match
 * bit for bit. It reads panels through one general accessor and is slow.
 */
#include "linear.h"

#include <string.h>

#include "math.h"
#include "panel.h"

enum { PANEL = LINEAR_PANEL, BLOCK = LINEAR_BLOCK, GROUP = LINEAR_GROUP };

/* ---- activations ---- */

/* A NaN counts for nothing in the maximum and becomes -127; with an infinity d is infinite, every
 * finite element 0 and the infinite ones -127. What matters is |q| <= 127: the kernels' headroom
 * rests on it. */
static void quantize_block(const float *x, struct act *out)
{
    float max = 0;
    for (int i = 0; i < BLOCK; i++) {
        float a = __builtin_fabsf(x[i]);
        max = a > max ? a : max;
    }
    float inverse = max > 1e-30f ? 127.0f / max : 0.0f;
    int sum = 0, low = 0;
    for (int i = 0; i < BLOCK; i++) {
        float q = x[i] * inverse;
        q = q > -127.0f ? q : -127.0f; /* in this form NaN gives -127 */
        q = q < 127.0f ? q : 127.0f;
        out->q[i] = (int8_t)__builtin_lrintf(q);
        sum += out->q[i];
        low = i < BLOCK / 2 ? sum : low;
    }
    out->low = (float)low;
    out->d = max / 127.0f;
    out->sum = (float)sum;
    out->less8 = -8 * sum;
}

static void quantize(const float *x, uint32_t k, struct act *out)
{
    for (uint32_t i = 0; i < k; i += BLOCK, out += GROUP)
        quantize_block(x + i, out);
}

/* ---- products ---- */

/* The chain's next link for one output. */
static float add_block(struct panel_format format, const struct panel_row *w, const struct act *a,
                       float acc)
{
    int sum = 0;
    for (int i = 0; i < BLOCK; i++)
        sum += w->scale[i / 16] * (w->q[i] - format.zero) * a->q[i];
    if (!format.m_at)
        return __builtin_fmaf(w->d * a->d, (float)sum, acc);
    return __builtin_fmaf(a->d, __builtin_fmaf(w->d, (float)sum, w->m * a->sum), acc);
}

static float add_floats(const float *w, const float *x, uint32_t n, float acc)
{
    for (uint32_t i = 0; i < n; i++)
        acc = __builtin_fmaf(w[i], x[i], acc);
    return acc;
}

/* Row r of one panel against all input rows; y (n_rows, stride) is that output's column. */
static void multiply_row(const struct linear *l, const uint8_t *panel, uint32_t r,
                         const struct linear_input *in, uint32_t first, uint32_t n_rows, float *y,
                         size_t stride)
{
    struct panel_format format = panel_format(l->type);
    for (uint32_t t = 0; t < n_rows; t++)
        y[t * stride] = 0;
    for (uint32_t b = 0; b < l->blocks; b++) {
        struct panel_row w;
        float f[BLOCK];
        uint32_t k = b * BLOCK, n = l->k - k < BLOCK ? l->k - k : BLOCK;
        if (l->int8)
            panel_read(l->type, panel, b, r, &w);
        else
            panel_floats(l->type, panel, b, r, n, f);
        for (uint32_t t = 0; t < n_rows; t++) {
            float *acc = &y[t * stride];
            if (l->int8) {
                const struct act *a = linear_act((struct act *)in->acts, l->k, first + t);
                *acc = add_block(format, &w, a + (size_t)b * GROUP, *acc);
            } else {
                *acc = add_floats(f, in->f32 + (first + t) * in->stride + k, n, *acc);
            }
        }
    }
}

static void multiply(const struct linear *l, uint32_t p0, uint32_t p1,
                     const struct linear_input *in, uint32_t first, uint32_t n_rows, float *y,
                     size_t stride)
{
    for (uint32_t p = p0; p < p1; p++)
        for (uint32_t r = 0; r < PANEL; r++)
            multiply_row(l, l->panels_at + p * l->panel_bytes, r, in, first, n_rows,
                         y + (size_t)(p - p0) * PANEL + r, stride);
}

const struct linear_kernels linear_plain = {.quantize = quantize, .multiply = multiply};
