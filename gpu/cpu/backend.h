/* backend.h - inside the CPU backend: what backend.c (life and limits), load.c (weights),
 * workspace.c (the memory of steps), items.c (attention's share-out) and forward.c (a step; turn.h
 * has what its parts share) share.
 */
#ifndef LLMD_CPU_BACKEND_H
#define LLMD_CPU_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../gpu.h"
#include "attention.h"
#include "crew.h"
#include "linear.h"
#include "ops.h"
#include "pages.h"
#include "pool.h"
#include "sample.h"
#include "touch.h"

enum {
    CPU_CHUNK = 64,       /* rows that pass over a thread's share of the weights at a time */
    CPU_CHUNK_LEAST = 16, /* where a step's rows come in more chunks than there are threads */
    CPU_ROWS_EACH = 4,    /* times the threads squared: from so many rows on, a step goes by rows */
    CPU_TILE = 8192,      /* outputs that a thread works on at a time */
    CPU_PRIVATE_ROWS = 4, /* up to so many rows, every thread prepares the inputs for itself */
    CPU_OUTPUT_ROWS = 32, /* rows of logits that exist at a time */
    CPU_ATTN_PAIRS = 96,  /* (row, query head) pairs of an attention item, at most */
    CPU_GRAINS = 8,       /* of attention, that a thread's part comes in (items.c) */
    CPU_CUT_ROWS = 8,     /* rows of an item whose spans may be divided, at most */
};

/* Part `index` of `parts` nearly equal parts of 0 .. n - 1. */
struct cpu_share {
    uint32_t from, to;
};
static inline struct cpu_share cpu_share(uint32_t n, unsigned index, unsigned parts)
{
    return (struct cpu_share){(uint32_t)((uint64_t)n * index / parts),
                              (uint32_t)((uint64_t)n * (index + 1) / parts)};
}

/* Weights of a decoder layer. Vectors are f32, padded with zeros to 16 elements. */
struct cpu_layer {
    float *attn_norm, *ffn_norm;              /* (hidden) */
    struct linear q, k, v, o, gate, up, down; /* gpu_layer's shapes */
    float *q_bias, *k_bias, *v_bias, *o_bias; /* or NULL */
};

/* Rows whose spans several items share. Each of them gives its spans' sums; the one that comes last
 * merges them. */
struct cpu_attn_cut {
    _Alignas(64) _Atomic uint32_t left; /* items that are not done; again `pieces` for each layer */
    uint32_t pieces;
    float *parts; /* attention.h */
};

/* A part of attention that one thread does: some rows of one sequence, one kv head. */
struct cpu_attn_item {
    uint32_t seq, first, n_rows, kv_head; /* first: counted from the sequence's first row */
    uint32_t from, to;                    /* spans */
    struct cpu_attn_cut *cut;             /* NULL: they are all of them */
};

/* How a step's attention is shared out, and what there is room for. */
struct cpu_items {
    uint32_t n;
    struct cpu_attn_item *list; /* (room) */
    struct cpu_attn_cut *cuts;  /* (cuts_room) */
    float *parts;               /* (parts_room) sums of the spans of cuts */
    size_t room, cuts_room, parts_room;
};

/* What a thread has for itself. */
struct cpu_private {
    float *norm;      /* (CPU_PRIVATE_ROWS, hidden) */
    struct act *acts; /* of CPU_PRIVATE_ROWS rows, the longer of hidden and heads * head_dim */
    float *q;      /* of an attention item: (n_rows, query heads of a kv head, head_dim), rotated */
    float *tile;   /* (2, CPU_TILE) */
    void *scratch; /* attention's and sampling's */
};

/* Attention items of a layer that were taken, and chunks of rows before that. */
struct cpu_counter {
    _Alignas(64) _Atomic uint32_t next, chunk;
};

/* Memory of a step. Rows lie linear_stride() of their length apart; rows_room: cpu_rows_room(). */
struct cpu_workspace {
    float *x;                     /* (max_rows, hidden) the residual stream */
    float *norm;                  /* (rows_room, hidden) */
    float *q, *attn;              /* (max_rows, heads * head_dim) */
    float *last_x, *last_attn;    /* the same of wanted rows alone, as many as there can be */
    float *k, *v;                 /* (rows_room, kv_heads * head_dim) */
    float *ffn;                   /* (rows_room, ffn); NULL if every down projection takes int8 */
    struct act *acts;             /* of rows_room rows of hidden or heads * head_dim */
    struct act *ffn_acts;         /* of rows_room rows of ffn */
    float *logits;                /* (CPU_OUTPUT_ROWS, vocab) */
    struct sample_slice *slices;  /* (CPU_OUTPUT_ROWS, sample_slices(vocab)) of the logits */
    uint32_t *wanted;             /* (max_outputs) rows that outputs name, ascending, each once */
    uint32_t *wanted_of;          /* (max_outputs) each output's index in wanted */
    struct cpu_share *chunks;     /* (cpu_chunks_most) of rows, the largest first */
    uint32_t n_chunks;            /* 0: the step goes by columns */
    struct cpu_items items;       /* of attention */
    struct cpu_counter *counters; /* (n_layers) */
    float *rope;                  /* (max_len, rope_dim): rope_row() */
    struct cpu_private *threads;  /* (threads) */
};

struct gpu {
    struct gpu_config config; /* threads resolved */
    struct gpu_model model;
    const struct linear_kernels *linear;
    const struct ops_kernels *ops;
    const struct attn_kernels *attn;
    const struct sample_kernels *sample;
    struct pool *threads;
    struct crew crew;  /* those of them that compute steps */
    uint64_t *held_ns; /* (threads) of the last step: pool_held */
    float *cpu_share;  /* (threads) of the last probe: pool_probed */
    struct attn_shape shape;
    char numerics[64];

    uint8_t *weights; /* NULL before load */
    uint64_t weights_bytes, weights_huge_bytes;
    struct pages weights_pages, kv_pages, work_pages; /* where they lie */
    struct cpu_layer *layers;                         /* (n_layers) */
    struct linear embedding, head;                    /* the same panels where they are tied */
    float *output_norm;
    bool int8;                              /* some weight takes int8 activations */
    bool ffn_f32;                           /* some down projection takes f32 */
    double row_macs, output_macs, key_macs; /* products for a row, for a row that outputs name
                                               besides, for a key that a row reads */

    uint8_t *work; /* NULL before pool */
    uint64_t work_bytes;
    struct cpu_workspace w;

    uint8_t *kv; /* (n_blocks, n_layers) of layer_block_bytes: a block's layers lie side by side, so
                    that the blocks that are used first take little memory */
    uint64_t kv_bytes;
    size_t layer_block_bytes, block_bytes; /* of one layer, of all */
    uint32_t n_blocks;
    struct touch touch; /* of the pool */

    const struct gpu_step *step; /* between submit and wait */
    uint32_t n_wanted;
};

/* ---- memory planned twice: once to learn the size, once to take the addresses ---- */

struct cpu_plan {
    uint8_t *base; /* NULL: only count */
    uint64_t used;
};

static inline void *cpu_take(struct cpu_plan *p, uint64_t bytes)
{
    void *at = p->base ? p->base + p->used : NULL;
    p->used += (bytes + 63) / 64 * 64;
    return at;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t round_up(uint32_t n, uint32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Rows of what a step's rows go through: as a chunk in whole groups for each thread of any crew. */
static inline uint32_t cpu_rows_room(const struct gpu_config *c)
{
    return c->max_rows + c->threads * LINEAR_GROUP;
}
/* Chunks of a step: one for each thread at most, or only the last one below CPU_CHUNK_LEAST. */
static inline uint32_t cpu_chunks_most(const struct gpu_config *c)
{
    return c->max_rows / CPU_CHUNK_LEAST + c->threads;
}
/* Elements of the longest row in `acts`, the input of all products but down. */
static inline uint32_t cpu_acts_width(const struct gpu_model *m)
{
    uint32_t q = m->heads * m->head_dim;
    return m->hidden > q ? m->hidden : q;
}

/* ---- mapping.c ---- */

/* Zeroed memory on the best pages that can be had; false: the kernel refuses. `settle`, if not NULL,
 * says on which nodes they shall lie, before any of them is there; it may be called more than once,
 * the last mapping counts. NULL: spread over those of the threads. Not during a job. */
bool cpu_map(struct gpu *g, struct pages *p, uint64_t bytes,
             void (*settle)(struct gpu *g, const struct pages *p, void *context), void *context);
/* Whether there is memory for a mapping, and beside it for `beside` bytes on transparent or small
 * pages. */
bool cpu_fits(const struct gpu *g, uint64_t bytes, uint64_t beside);
/* How many bytes any one mapping may have. */
uint64_t cpu_memory_left(const struct gpu *g);

/* ---- load.c ---- */

/* Checks the model against its tensors and this backend's limits, then fetches and packs. After a
 * failure nothing is loaded. */
int cpu_load(struct gpu *g, const struct gpu_model *m, const struct gpu_source *source,
             struct fail *f);
void cpu_unload(struct gpu *g);

/* ---- workspace.c ---- */

uint64_t cpu_workspace_bytes(struct gpu *g);
int cpu_pool(struct gpu *g, uint32_t n_blocks, struct fail *f);
void cpu_pool_free(struct gpu *g);

/* The layer's pool, for attention.h. */
static inline uint8_t *cpu_layer_kv(const struct gpu *g, uint32_t layer)
{
    return g->kv + layer * g->layer_block_bytes;
}

/* ---- items.c ---- */

/* Of g->step, into g->w.items. */
void cpu_list_items(struct gpu *g);

/* ---- step_crew.c ---- */

/* Runs a job with the gpu as its context, by the threads that are not held up. */
void cpu_run_step(struct gpu *g, void (*job)(void *context, unsigned thread, unsigned n_threads));

/* ---- forward.c ---- */

/* Computes g->step. */
void cpu_forward(struct gpu *g);

#endif
