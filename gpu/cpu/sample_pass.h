/* sample_pass.h - the passes over a row of logits that exist in plain C and in AVX2; sample.c does
 * the rest.
 *
 * All take up to SAMPLE_SLICE logits and read them cleaned: NaN counts as -infinity, +infinity as
 * the largest float. Lanes: logit j of the slice belongs to lane j % SAMPLE_LANES; a lane is
 * worked through in order, lanes are added pairwise at distances 4, 2, 1.
 */
#ifndef LLMD_CPU_SAMPLE_PASS_H
#define LLMD_CPU_SAMPLE_PASS_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "sample.h"

struct sample_pass {
    /* The highest logit of each lane, -infinity where there is none. */
    void (*highest)(const float *x, uint32_t n, float lane[SAMPLE_LANES]);
    /* The sum of exp((x - top) / temperature), by lanes. top is finite, temperature > 0 and
     * finite. */
    float (*sum)(const float *x, uint32_t n, float top, float temperature);
    /* w[j] = exp((x[j] - top) / temperature) */
    void (*weigh)(const float *x, uint32_t n, float top, float temperature, float *w);
    /* Appends first_id + j of every x[j] >= cut (finite) to ids, in order; how many. */
    uint32_t (*collect)(const float *x, uint32_t n, float cut, uint32_t first_id, uint32_t *ids);
};

/* A logit as the passes read it. */
static inline float sample_clean(float x)
{
    if (x != x)
        return -INFINITY;
    return x < FLT_MAX ? x : FLT_MAX;
}

/* ---- penalty.c ---- */

bool penalty_needed(const struct gpu_output *out);
size_t penalty_scratch_bytes(uint32_t vocab);
/* Copies the logits to x (vocab), changed by biases and penalties. `seen` is penalty_scratch_bytes
 * large, its content does not matter. */
void penalty_apply(const struct gpu_output *out, const float *logits, uint32_t vocab, float *x,
                   void *seen);

/* sample.h's functions, on the given passes. */
void sample_slice(const struct sample_pass *pass, const float *logits, uint32_t n,
                  struct sample_slice *out);
struct gpu_result sample_row(const struct sample_pass *pass, const float *logits,
                             const struct sample_slice *slices, uint32_t vocab,
                             const struct gpu_output *out, void *scratch);

extern const struct sample_pass sample_pass_plain, sample_pass_avx2; /* same bits */

#endif
