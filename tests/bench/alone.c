/* alone.c - see alone.h. */
#include "alone.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "roof.h"

enum { ROWS = 64 };

struct alone {
    const struct gpu_ops *ops;
    struct gpu *gpu;
    uint32_t max_len, pos; /* the next row's position */
    uint32_t n_prompt;
    int32_t *history; /* (max_len) prompt and what was drawn; known up to the next row's token */
    uint32_t *blocks;
};

struct alone *alone_open(struct model *m, unsigned threads, uint32_t max_len)
{
    struct fail f = {0};
    struct alone *a = calloc(1, sizeof *a);
    uint32_t n_blocks = (max_len + GPU_KV_BLOCK - 1) / GPU_KV_BLOCK;
    struct gpu_config config = {
        .threads = threads, .max_rows = ROWS, .max_seqs = 1, .max_outputs = 1, .max_len = max_len};
    struct gpu_source source = model_source(m);
    if (!a || !(a->blocks = calloc(n_blocks, sizeof *a->blocks)) ||
        !(a->history = calloc(max_len + 1, sizeof *a->history)))
        bench_die("no memory for a sequence of %u tokens", max_len);
    for (uint32_t i = 0; i < n_blocks; i++)
        a->blocks[i] = i;
    a->max_len = max_len;
    a->ops = gpu_cpu_ops();
    if (a->ops->open(&a->gpu, &config, &f) || a->ops->load(a->gpu, &m->net, &source, &f) ||
        a->ops->pool(a->gpu, n_blocks, &f))
        bench_die("the backend alone: %s", f.text);
    return a;
}

void alone_close(struct alone *a)
{
    a->ops->close(a->gpu);
    free(a->blocks);
    free(a->history);
    free(a);
}

/* The next n rows; with `result` the token behind them is drawn. */
static void step(struct alone *a, uint32_t n, struct gpu_result *result)
{
    struct gpu_seq seq = {.blocks = a->blocks, .pos = a->pos, .n_rows = n};
    struct gpu_output output = {.row = n - 1,
                                .target = -1,
                                .position = a->pos + n,
                                .sampling = {.top_p = 1, .repetition = 1},
                                .history = a->history,
                                .n_prompt = a->n_prompt,
                                .n_history = a->pos + n};
    struct gpu_step whole = {.n_rows = n,
                             .n_seqs = 1,
                             .n_outputs = result ? 1 : 0,
                             .tokens = a->history + a->pos,
                             .seqs = &seq,
                             .outputs = &output,
                             .results = result};
    assert(a->pos + n <= a->max_len);
    if (a->ops->submit(a->gpu, &whole) || a->ops->wait(a->gpu))
        bench_die("the backend alone: a step failed");
    a->pos += n;
}

void alone_begin(struct alone *a, const int32_t *ids, uint32_t n)
{
    assert(n >= 1 && n <= a->max_len);
    memcpy(a->history, ids, n * sizeof *ids);
    a->n_prompt = n;
    a->pos = 0;
    while (a->pos < n - 1) {
        uint32_t rows = n - 1 - a->pos;
        step(a, rows < ROWS ? rows : ROWS, NULL);
    }
}

uint64_t alone_step_ns(struct alone *a)
{
    struct gpu_result result;
    uint64_t start = bench_now_ns();
    step(a, 1, &result);
    uint64_t ns = bench_now_ns() - start;
    a->history[a->pos] = result.token;
    return ns;
}

void alone_rest(struct alone *a)
{
    a->ops->rest(a->gpu);
}
