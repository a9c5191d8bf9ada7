/* gpu_rig.h - a compute backend without an engine around it: open, feed a sequence, look at logits.
 */
#ifndef LLMD_TESTS_GPU_RIG_H
#define LLMD_TESTS_GPU_RIG_H

#include "../../gpu/gpu.h"

struct gpu_rig {
    const struct gpu_ops *ops;
    struct gpu *gpu;
    struct gpu_config config;
    uint32_t vocab;
};

/* Opens the CPU backend, loads, makes a pool; fails the test if one of them fails. */
void gpu_rig_open(struct gpu_rig *r, const struct gpu_config *config, const struct gpu_model *m,
                  const struct gpu_source *source, uint32_t n_blocks);
void gpu_rig_close(struct gpu_rig *r);

/* Runs a step, which must succeed. */
void gpu_rig_step(struct gpu_rig *r, const struct gpu_step *step);

/* Feeds ids (n) as the tokens at positions pos .. of one sequence, `chunk` at a time (0: as many as
 * a step takes). logits: NULL, or (n, vocab), those after each token. */
void gpu_rig_feed(struct gpu_rig *r, const uint32_t *blocks, uint32_t pos, const int32_t *ids,
                  uint32_t n, uint32_t chunk, float *logits);

#endif
