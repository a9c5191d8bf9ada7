/* sample.h - from a row of logits to a token and its log-probability.
 *
 * Sums over the vocabulary run in fixed slices of SAMPLE_SLICE logits merged in order (pure logits,
 * rule 7), so the result is a pure function of (logits, output). Definition of the draw: gpu.h,
 * struct gpu_sampling; the order of biases, penalties and filters is that of the project's
 * `sampling` reference data (tests/golden/sampling/meta.json). Never fails: NaN logits count as
 * -infinity; if nothing is left, token 0 with the lowest log-probability.
 */
#ifndef LLMD_CPU_SAMPLE_H
#define LLMD_CPU_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "../gpu.h"

enum { SAMPLE_SLICE = 1024, SAMPLE_LANES = 8 };

static inline uint32_t sample_slices(uint32_t vocab)
{
    return vocab / SAMPLE_SLICE + (vocab % SAMPLE_SLICE != 0);
}

/* What is collected of a slice of a row's logits: by whoever has just computed them, while they lie
 * in its cache. */
struct sample_slice {
    float lane[SAMPLE_LANES]; /* the highest logit of each lane, -infinity where there is none */
    float sum;                /* of exp(logit - the highest of all lanes); undefined if that is
                                 -infinity */
};

size_t sample_scratch_bytes(uint32_t vocab);

struct sample_kernels {
    /* logits: the n <= SAMPLE_SLICE of one slice */
    void (*slice)(const float *logits, uint32_t n, struct sample_slice *out);
    /* slices: (sample_slices(vocab)), of these logits; NULL: row() looks for itself */
    struct gpu_result (*row)(const float *logits, const struct sample_slice *slices, uint32_t vocab,
                             const struct gpu_output *out, void *scratch);
};
extern const struct sample_kernels sample_plain, sample_avx2; /* same bits */

/* For tests: the whole distribution from which `out` is drawn: probs (vocab) f32, 0 for what was
 * cut. */
void sample_distribution(const float *logits, uint32_t vocab, const struct gpu_output *out,
                         float *probs, void *scratch);

#endif
