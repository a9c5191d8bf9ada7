/* fake_gpu.h - a backend for tests of the scheduling core. Its "model" is a hash of the whole token
 * history, and the history is what the KV blocks hold. As keys and values of a real model do, the
 * cell of a position depends on everything before it: a wrong block table, a missing copy, a write
 * to a shared block, or a cached block that was found behind other tokens breaks the chain. The
 * backend checks that, and what gpu.h demands of a step, and aborts the test where it is broken. */
#ifndef LLMD_TESTS_FAKE_GPU_H
#define LLMD_TESTS_FAKE_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "../../gpu/gpu.h"

struct fake_cell { /* one position of one block */
    uint64_t hash; /* of the history up to here */
    int32_t token;
    uint32_t pos_plus_1; /* 0: never written */
};

struct fake_gpu {
    uint32_t vocab, n_blocks, max_rows, max_seqs, max_outputs;
    struct fake_cell (*blocks)[GPU_KV_BLOCK]; /* (n_blocks) */
    const struct gpu_step *in_flight;
    uint32_t *written_by; /* (n_blocks) entry of the step that wrote it, plus 1 */
    uint64_t steps, copies;
    uint32_t rows_last;
    uint64_t fail_wait_at, fail_submit_at, fail_copy_at; /* number of the step, from 1; 0: never */
    int32_t forced_token;                                /* >= 0: what every draw gives */
    /* if not NULL: what that draw gives, or -1: what the model says */
    int32_t (*draw)(void *context, const struct gpu_output *o);
    void *draw_context;
    /* called at the end of each wait, if not NULL */
    void (*watch)(void *context, const struct gpu_step *step);
    void *watch_context;
    /* virtual time, if `clock` is not NULL: each step takes step_ns and row_ns for every row */
    uint64_t *clock;
    uint64_t step_ns, row_ns;
};

void fake_gpu_open(struct fake_gpu *g, uint32_t vocab, uint32_t n_blocks, uint32_t max_rows,
                   uint32_t max_seqs, uint32_t max_outputs);
void fake_gpu_close(struct fake_gpu *g);
const struct gpu_ops *fake_gpu_ops(void);
static inline struct gpu *fake_gpu_handle(struct fake_gpu *g)
{
    return (struct gpu *)(void *)g;
}

/* The model itself: the token behind that history, and the log-probability of any token there. */
int32_t fake_model_next(const int32_t *history, uint32_t n, const struct gpu_sampling *sampling,
                        uint32_t vocab);
float fake_model_logprob(const int32_t *history, uint32_t n, int32_t token);

/* Penalties and biases, if any are on, make another hash of it to draw from. */
uint64_t fake_model_penalize(uint64_t hash, const struct gpu_sampling *s, uint32_t n_prompt);
/* The k-th candidate behind that history, from 0. */
struct gpu_candidate fake_model_candidate(uint64_t hash, uint32_t k, uint32_t vocab);

/* The same token by token: the hash of nothing is 0. */
uint64_t fake_model_add(uint64_t hash, int32_t token);
int32_t fake_model_draw(uint64_t hash, const struct gpu_sampling *s, uint32_t position,
                        uint32_t vocab);
float fake_model_logprob_of(uint64_t hash, int32_t token);

#endif
