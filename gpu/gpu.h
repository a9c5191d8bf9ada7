/* gpu.h - the compute backend: what a model needs computed, as plain data.
 *
 * A backend owns the device memory: weights, the paged KV pool, workspace. It knows of models,
 * tokens, positions and block tables; it knows nothing of requests, clients or queues. The engine
 * drives it:
 *
 *     const struct gpu_ops *ops = gpu_cpu_ops();
 *     struct gpu *g;
 *     ops->open(&g, &config, &f);
 *     ops->load(g, &model, &source, &f);              // weights come through source->fetch
 *     ops->memory(g, &mem);                           // now the pool can be sized
 *     ops->pool(g, n_blocks, &f);
 *     ops->submit(g, &step);  ops->wait(g);           // results are in step.results
 *     ops->close(g);
 *
 * Threads: every call comes from one thread, the one that called open. One step may be in flight
 * between submit and wait; everything the step points to stays valid and unchanged until wait
 * returns. After pool() returned, submit, wait and copy_blocks neither allocate nor log.
 *
 * The promise (pure logits): a row's logits are the same bits whatever other rows are in the step,
 * however the sequence's rows were cut into steps, wherever its blocks lie, whatever the thread
 * count. ARCHITECTURE.md, "Numerics", lists the rules.
 */
#ifndef LLMD_GPU_GPU_H
#define LLMD_GPU_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fail.h"
#include "tensor.h"

enum {
    GPU_KV_BLOCK = 16,        /* tokens in a KV block */
    GPU_TOP_LOGPROBS_MAX = 20 /* candidates that one output row may ask for */
};

/* ---- the model, as a backend sees it ---- */

enum gpu_rope {
    GPU_ROPE_PAIRS, /* rotates elements (2i, 2i + 1): GGUF's `llama`, whose Q and K rows are
                       permuted for it */
    GPU_ROPE_HALVES /* rotates elements (i, i + rope_dim / 2): NeoX style */
};

/* One decoder layer. Absent tensors are NULL. */
struct gpu_layer {
    const struct gpu_tensor *attn_norm; /* (hidden) */
    const struct gpu_tensor *q, *k, *v; /* in hidden, out heads * head_dim / kv_heads * head_dim */
    const struct gpu_tensor *q_bias, *k_bias, *v_bias, *o_bias; /* or NULL */
    const struct gpu_tensor *o;         /* in heads * head_dim, out hidden */
    const struct gpu_tensor *ffn_norm;  /* (hidden) */
    const struct gpu_tensor *gate, *up; /* in hidden, out ffn */
    const struct gpu_tensor *down;      /* in ffn, out hidden */
};

/* Owned by the caller of load, unchanged while the backend is open. */
struct gpu_model {
    uint32_t vocab, hidden, n_layers, heads, kv_heads, head_dim, ffn;
    uint32_t context; /* the longest sequence that the model is made for, tokens */
    float rms_eps;
    float attn_scale; /* of q . k; 1 / sqrt(head_dim) for llama */
    enum gpu_rope rope;
    uint32_t rope_dim; /* even, <= head_dim; elements past it are not rotated */
    const float
        *rope_freq; /* (rope_dim / 2) radians per position, all scaling kinds already applied */
    float rope_magnitude; /* cos and sin are multiplied by it: 1, or YaRN's attention factor */
    const struct gpu_tensor *embedding;   /* in hidden, vocab rows */
    const struct gpu_tensor *output_norm; /* (hidden) */
    const struct gpu_tensor *output; /* in hidden, out vocab; == embedding where they are tied */
    struct gpu_layer *layers;        /* (n_layers) */
};

/* Where a model's bytes come from. fetch writes t->bytes bytes to dst (64-byte aligned, owned by
 * the backend) and returns 0 or a negative code with the sentence in f. */
struct gpu_source {
    int (*fetch)(void *context, const struct gpu_tensor *t, void *dst, struct fail *f);
    void *context;
};

/* ---- opening ---- */

enum gpu_activations {
    GPU_ACT_AUTO,
    GPU_ACT_INT8,
    GPU_ACT_F32
}; /* AUTO: int8 for quantized weights, else f32 */
enum gpu_kv_type {
    GPU_KV_F16,
    GPU_KV_F32,
    GPU_KV_INT8, /* with one f32 scale for each token, kv head, and K or V */
    GPU_KV_TYPES
};

/* Where weights, KV pool and workspace lie in the host's memory. */
enum gpu_huge_pages {
    GPU_HUGE_PAGES_AUTO,    /* like HUGETLB */
    GPU_HUGE_PAGES_HUGETLB, /* on hugetlbfs pages as far as they are free, else like THP */
    GPU_HUGE_PAGES_THP,     /* on transparent huge pages where the kernel gives some */
    GPU_HUGE_PAGES_OFF
};

struct gpu_config {
    uint32_t threads;     /* 0: one for each CPU that this process may run on */
    const uint32_t *cpus; /* (threads) thread i computes on CPU cpus[i]; thread 0 is the caller.
                             NULL: thread 0 anywhere, i on the i-th CPU that the process may use */
    uint32_t max_rows;    /* of a step, prefill and decode together */
    uint32_t max_seqs;    /* of a step */
    uint32_t max_outputs; /* of a step */
    uint32_t max_len;     /* longest sequence, tokens: sizes RoPE tables and scratch */
    enum gpu_activations activations;
    enum gpu_kv_type kv_type;
    enum gpu_huge_pages huge_pages;
    bool plain; /* use the plain C reference even where the CPU has AVX2 (tests, --backend
                   cpu-plain) */
    bool avx2;  /* use AVX2 even where the CPU has AVX-512 (tests, --backend cpu-avx2) */
};

struct gpu_memory {
    uint64_t weights_bytes, workspace_bytes;
    uint64_t block_bytes;      /* of one KV block of GPU_KV_BLOCK tokens, all layers, K and V */
    uint64_t pool_bytes;       /* 0 before pool() */
    uint64_t available_bytes;  /* free for a pool right now (machine or memory cgroup, whichever is
                                 less) */
    const char *weights_pages; /* what the weights lie on: "hugetlb-1g", "hugetlb", "thp", "small".
                                    NULL: nothing of the host's */
    uint64_t weights_huge_bytes; /* of them on huge pages when they were loaded */
};

/* How the device is doing. */
struct gpu_figures {
    uint32_t threads_in_use; /* host threads that compute the next step; fewer than the config's
                                while others' work holds some up. 0: none do */
};

/* ---- a step ---- */

/* Rows of one sequence: consecutive rows first_row .. first_row + n_rows - 1 at consecutive
 * positions pos .. pos + n_rows - 1. Block i of the table holds positions 16 i .. 16 i + 15; the
 * table covers every position up to pos + n_rows - 1, and positions below pos were written by
 * earlier steps (or share blocks that were). A sequence has at most one entry a step. */
struct gpu_seq {
    const uint32_t *blocks; /* block table */
    uint32_t pos;
    uint32_t first_row, n_rows;
    uint32_t adapter;  /* 0: the base model */
    uint32_t rope_len; /* declared length, for RoPE that depends on it; ignored by llama */
};

/* Added to the token's logit. */
struct gpu_bias {
    int32_t token;
    float bias; /* finite */
};

/* How a token is drawn. The order: biases, repetition, presence and frequency (0 = off, each;
 * repetition 1 as well), temperature (0 = greedy: the highest logit, ties to the lowest id), then
 * top_k (0 = off), top_p (1 = off), min_p (0 = off), each on the renormalized rest. The draw takes
 * one uniform number from a counter generator keyed by (seed, position, choice): gpu/cpu/rng.h.
 *
 * Penalties of a token that stands in the history (struct gpu_output), n times of that in the
 * output:
 *     x = x > 0 ? x / repetition : x * repetition
 *     x = x - n * frequency - (n > 0 ? presence : 0) */
struct gpu_sampling {
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint64_t seed;
    uint32_t choice;
    float repetition, presence, frequency;
    const struct gpu_bias *biases; /* (n_biases) each token once */
    uint32_t n_biases;
};

/* One of the likeliest tokens, under the unmodified distribution. */
struct gpu_candidate {
    int32_t token;
    float logprob;
};

/* One wanted result: of `row`, the next token and its log-probability under the unmodified
 * distribution (float32, natural logarithm). Several outputs may name the same row. */
struct gpu_output {
    uint32_t row;
    int32_t target;    /* >= 0: do not sample, report this token (scoring) */
    uint32_t position; /* of the token that is drawn, for the generator */
    struct gpu_sampling sampling;
    const int32_t *history; /* (n_history) for the penalties: prompt, then output; NULL: none */
    uint32_t n_prompt, n_history;
    struct gpu_candidate *top; /* (n_top) the likeliest first, ties to the lower id; NULL: none */
    uint32_t n_top;            /* at most GPU_TOP_LOGPROBS_MAX */
    float *logits; /* or NULL; else (vocab) f32, the row's logits are copied here (tests) */
};

struct gpu_result {
    int32_t token;
    float logprob;
    uint32_t n_top; /* candidates written: fewer than asked for where not so many have a logit */
};

struct gpu_step {
    uint32_t n_rows, n_seqs, n_outputs;
    const int32_t *tokens;      /* (n_rows) each in 0 .. vocab - 1 */
    const struct gpu_seq *seqs; /* (n_seqs), rows ascending, together covering every row once */
    const struct gpu_output *outputs; /* (n_outputs), rows ascending */
    struct gpu_result *results;       /* (n_outputs), written by the backend */
    /* NULL, or: a backend that computes on the caller's CPU calls it from the caller's thread, in
     * wait, before each of the last outputs that it samples there; `left` counts down to 1. The
     * caller may bring into the caches what it needs when the step is done, and change nothing. */
    void (*soon)(void *context, uint32_t left);
    void *soon_context;
};

struct gpu; /* one open backend */

struct gpu_ops {
    const char *name; /* "cpu" */

    /* Opens the device and starts its threads. -EINVAL for a config out of range, -ENOMEM. */
    int (*open)(struct gpu **out, const struct gpu_config *config, struct fail *f);

    /* Brings the weights in. Once. -ENOTSUP for a shape or format that this backend does not
     * compute. */
    int (*load)(struct gpu *g, const struct gpu_model *m, const struct gpu_source *source,
                struct fail *f);

    void (*memory)(struct gpu *g, struct gpu_memory *out);

    /* Allocates n_blocks KV blocks, ids 0 .. n_blocks - 1, and the workspace, and sees to it that
     * their pages are there when they are used, low ids first. Once, after load. */
    int (*pool)(struct gpu *g, uint32_t n_blocks, struct fail *f);

    /* Starts a step; wait ends it. 0, or negative if the device failed (results are then
     * undefined). The caller guarantees the limits of the config: they are asserted, not reported.
     */
    int (*submit)(struct gpu *g, const struct gpu_step *step);
    int (*wait)(struct gpu *g);

    /* Copies whole KV blocks, all layers: block dst[i] becomes block src[i]. Not while a step is in
     * flight. */
    int (*copy_blocks)(struct gpu *g, const uint32_t *dst, const uint32_t *src, uint32_t n);

    /* Lets the worker threads sleep until the next submit. Cheap to call when they sleep already.
     */
    void (*rest)(struct gpu *g);

    /* Cheap, at any time between wait and submit. NULL: the backend has none. */
    void (*figures)(const struct gpu *g, struct gpu_figures *out);

    /* What names the numerics besides the weights: instruction path, kernel version, activation
     * mode, KV type; e.g. "cpu-avx2-1/int8/f16". Static or owned by g. */
    const char *(*numerics)(const struct gpu *g);

    /* The body that computes, for people: several may have the numerics of one name. As --backend
     * calls it, e.g. "cpu-avx512". Static or owned by g. */
    const char *(*kernels)(const struct gpu *g);

    void (*close)(struct gpu *g); /* NULL is allowed */
};

const struct gpu_ops *gpu_cpu_ops(void);

#endif
