/* warmup.h - a few steps before the engine says that it serves, so that the first request finds
 * code, memory and threads as every later one does.
 */
#ifndef LLMD_WARMUP_H
#define LLMD_WARMUP_H

#include "../gpu/gpu.h"

struct warmup {
    uint32_t max_rows, max_len, n_blocks, vocab; /* what the backend was opened with */
};

/* Runs a short prompt and a few single tokens, as a first request would. Uses the blocks that the
 * engine hands out first (0, 1, ...), while nobody has any: what is written there is overwritten
 * before it is read. 0, or the backend's code. */
int warmup_run(const struct gpu_ops *ops, struct gpu *gpu, const struct warmup *w);

#endif
