/* sizing.c - see sizing.h for the rules. */
#include "sizing.h"

#include <errno.h>

static const uint64_t default_kv_bytes = 4ull << 30;

static uint64_t blocks_of(uint64_t tokens)
{
    return (tokens + GPU_KV_BLOCK - 1) / GPU_KV_BLOCK;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Blocks that fit into what is free: the workspace and what the engine is made of are taken from the
 * same memory. */
static uint64_t blocks_available(const struct sizing_wish *w, const struct gpu_memory *m)
{
    uint64_t others = least(m->workspace_bytes + w->own_bytes, m->available_bytes);
    return (m->available_bytes - others) / m->block_bytes;
}

static uint64_t blocks_default(const struct sizing_wish *w, const struct gpu_memory *m,
                               uint64_t one_request)
{
    uint64_t blocks = least(default_kv_bytes, m->available_bytes / 4) / m->block_bytes;
    blocks = least(blocks, one_request * w->max_num_seqs);
    return blocks < one_request ? one_request : blocks;
}

/* What the share leaves beside weights and workspace, of what can be had. */
static uint64_t blocks_of_share(const struct sizing_wish *w, const struct gpu_memory *m,
                                uint64_t one_request)
{
    double all = (double)m->weights_bytes + (double)m->available_bytes;
    double kv_bytes = all * w->utilization - (double)m->weights_bytes - (double)m->workspace_bytes;
    uint64_t blocks = kv_bytes > 0 ? (uint64_t)(kv_bytes / (double)m->block_bytes) : 0;
    uint64_t available = blocks_available(w, m);
    return available < one_request ? blocks : least(blocks, available);
}

static const char *what_sizes(const struct sizing_wish *w)
{
    return w->num_kv_blocks     ? "--num-kv-blocks"
           : w->utilization > 0 ? "--gpu-memory-utilization"
                                : "--kv-cache-memory";
}

static int too_small(const struct sizing_wish *w, const struct gpu_memory *m, uint64_t blocks,
                     uint64_t one_request, struct fail *f)
{
    char shorter[64] = "";
    if (blocks)
        snprintf(shorter, sizeof shorter, ", or pass --max-model-len %llu or less",
                 (unsigned long long)blocks * GPU_KV_BLOCK);
    return fail(f, -ERANGE,
                "a KV pool of %llu blocks (%.1f MiB) cannot hold one request of %u tokens, which "
                "needs %llu blocks (%.1f MiB): raise %s%s",
                (unsigned long long)blocks, mib(blocks * m->block_bytes), w->max_model_len,
                (unsigned long long)one_request, mib(one_request * m->block_bytes), what_sizes(w),
                shorter);
}

/* What would fit is named only where it is of use. */
static int too_large(const struct sizing_wish *w, const struct gpu_memory *m, uint64_t blocks,
                     uint64_t one_request, struct fail *f)
{
    uint64_t available = blocks_available(w, m), kib = available * m->block_bytes >> 10;
    char advice[160];
    if (available < one_request)
        snprintf(advice, sizeof advice,
                 "one request of %u tokens alone needs %.1f MiB of KV: free memory, raise the "
                 "limit of the control group (memory.max, MemoryMax=)",
                 w->max_model_len, mib(one_request * m->block_bytes));
    else
        snprintf(advice, sizeof advice, "pass --kv-cache-memory %llu%c or less",
                 (unsigned long long)(kib < 1024 ? kib : kib >> 10), kib < 1024 ? 'K' : 'M');
    return fail(f, -ENOMEM,
                "a KV pool of %.1f MiB (%llu tokens), a workspace of %.1f MiB and the engine's own "
                "%.1f MiB do not fit into the %.1f MiB of memory that are free: %s, or pass a "
                "smaller --max-model-len",
                mib(blocks * m->block_bytes), (unsigned long long)blocks * GPU_KV_BLOCK,
                mib(m->workspace_bytes), mib(w->own_bytes), mib(m->available_bytes), advice);
}

int sizing_plan(struct sizing *out, const struct sizing_wish *w, const struct gpu_memory *m,
                struct fail *f)
{
    uint64_t one_request = blocks_of(w->max_model_len);
    uint64_t available = blocks_available(w, m);
    uint64_t blocks = w->num_kv_blocks     ? w->num_kv_blocks
                      : w->kv_cache_memory ? w->kv_cache_memory / m->block_bytes
                      : w->utilization > 0 ? blocks_of_share(w, m, one_request)
                                           : blocks_default(w, m, one_request);

    if (blocks < one_request)
        return too_small(w, m, blocks, one_request, f);
    if (blocks > available)
        return too_large(w, m, blocks, one_request, f);
    if (blocks > UINT32_MAX / GPU_KV_BLOCK)
        return fail(f, -ERANGE,
                    "a KV pool of %llu blocks is more than this engine can number: pass "
                    "--num-kv-blocks %u or less",
                    (unsigned long long)blocks, UINT32_MAX / GPU_KV_BLOCK);

    out->n_blocks = (uint32_t)blocks;
    out->kv_bytes = blocks * m->block_bytes;
    out->tokens = blocks * GPU_KV_BLOCK;
    return 0;
}

uint64_t sizing_own_bytes(uint32_t vocab)
{
    enum { FIXED = 8 << 20, A_TOKEN = 128 };
    return FIXED + (uint64_t)vocab * A_TOKEN;
}

int sizing_length(uint32_t *out, uint32_t wished, uint32_t context, struct fail *f)
{
    *out = wished ? wished : context;
    if (wished > context || wished == 1)
        return fail(f, -EDOM, "--max-model-len %u is out of range: 2 to %u, the model's context",
                    wished, context);
    return 0;
}

void sizing_print(FILE *out, const struct sizing *s, const struct gpu_memory *m,
                  uint32_t max_model_len)
{
    uint64_t one_request = blocks_of(max_model_len);
    fprintf(out,
            "llmd: weights %.1f MiB, KV %.1f MiB, %llu tokens, %.2f concurrent requests of %u "
            "tokens\n",
            mib(m->weights_bytes), mib(s->kv_bytes), (unsigned long long)s->tokens,
            (double)s->n_blocks / (double)one_request, max_model_len);
    if (m->weights_pages)
        fprintf(out, "llmd: pages: weights on %s pages, %.1f MiB of them huge\n", m->weights_pages,
                mib(m->weights_huge_bytes));
    fprintf(out, "llmd: %u KV blocks of %d tokens, %.1f KiB each; workspace %.1f MiB\n",
            s->n_blocks, GPU_KV_BLOCK, (double)m->block_bytes / 1024, mib(m->workspace_bytes));
}
