/* warmup.c - see warmup.h. */
#include "warmup.h"

enum {
    PROMPT = 8, /* tokens: takes the ways of long ones; more would delay the start */
    SINGLE = 1, /* steps of one token after it */
    BLOCKS = (PROMPT + SINGLE + GPU_KV_BLOCK - 1) / GPU_KV_BLOCK
};

_Static_assert(BLOCKS == 1, "the table in run() names them");

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* n rows from position pos on, the last one sampled. */
static int run(const struct gpu_ops *ops, struct gpu *gpu, const struct warmup *w, uint32_t pos,
               uint32_t n)
{
    static const uint32_t blocks[BLOCKS] = {0};
    int32_t history[BLOCKS * GPU_KV_BLOCK];
    struct gpu_result result;
    for (uint32_t i = 0; i < pos + n; i++)
        history[i] = (int32_t)(i % w->vocab);
    struct gpu_seq seq = {.blocks = blocks, .pos = pos, .n_rows = n, .rope_len = w->max_len};
    struct gpu_output output = {.row = n - 1,
                                .target = -1,
                                .position = pos + n,
                                .sampling = {.temperature = pos ? 1 : 0,
                                             .top_p = 0.95f,
                                             .top_k = 40,
                                             .seed = 1,
                                             .repetition = 1},
                                .history = history,
                                .n_prompt = pos ? pos : n,
                                .n_history = pos + n};
    struct gpu_step step = {.n_rows = n,
                            .n_seqs = 1,
                            .n_outputs = 1,
                            .tokens = history + pos,
                            .seqs = &seq,
                            .outputs = &output,
                            .results = &result};
    int rc = ops->submit(gpu, &step);
    return rc ? rc : ops->wait(gpu);
}

int warmup_run(const struct gpu_ops *ops, struct gpu *gpu, const struct warmup *w)
{
    uint32_t room = least(w->max_len, least(w->n_blocks, BLOCKS) * GPU_KV_BLOCK);
    uint32_t prompt = least(least(PROMPT, w->max_rows), room), pos = prompt;
    int rc = run(ops, gpu, w, 0, prompt);
    for (; !rc && pos < room && pos < prompt + SINGLE; pos++)
        rc = run(ops, gpu, w, pos, 1);
    return rc;
}
