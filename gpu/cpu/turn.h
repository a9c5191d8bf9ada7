/* turn.h - a thread's view of the rows that it works on: what the files of a step (forward.c) share.
 *
 * Two ways to share out the work on a step's rows (forward.c says when which):
 *   by columns  every thread sees all rows and computes a part of each output: `part` of `parts`,
 *               with barriers in between
 *   by rows     a thread sees a chunk of rows and does everything with it: part 0 of 1, no barriers.
 *               What does not outlive the chunk lies in memory of the thread's own, which therefore
 *               stays in its cache.
 */
#ifndef LLMD_CPU_TURN_H
#define LLMD_CPU_TURN_H

#include "backend.h"

struct turn {
    struct gpu *g;
    const struct gpu_step *step;
    unsigned thread; /* of the pool's job: its private memory */
    unsigned part, parts;
    uint32_t first, n_rows; /* of the step's rows; first: 0 by columns */

    /* Of those rows; shapes as in struct cpu_workspace. */
    float *x, *q;
    const float *attn;
    size_t x_stride, q_stride, kv_stride, ffn_stride;
    /* likewise, and no longer than a chunk lasts */
    float *k, *v, *norm, *ffn;
    struct act *acts, *ffn_acts;
};

static inline void turn_barrier(const struct turn *t)
{
    if (t->parts > 1)
        pool_barrier(t->g->threads, t->thread);
}

static inline struct cpu_share turn_share(const struct turn *t, uint32_t n)
{
    return cpu_share(n, t->part, t->parts);
}

/* ---- layer.c ---- */

/* The input of a product: rows, normed if weight is not NULL, as the linears want them. Where other
 * threads prepare some of them, it returns when these are done. */
struct stage {
    const float *from; /* (n_rows, stride) */
    size_t stride;
    uint32_t k;
    const float *weight; /* (k) */
    bool int8, f32;      /* which of the two some linear wants */
};
struct linear_input turn_stage(const struct turn *t, const struct stage *s);
/* The same of the residual stream, for one linear. */
struct linear_input turn_norm(const struct turn *t, const float *weight, const struct linear *l);

void turn_embed(const struct turn *t);
/* Norm; q, k, v; k rotated, k and v into the pool. */
void turn_qkv(const struct turn *t, uint32_t layer);
/* From attention's sums to the end of the layer. */
void turn_rest_of_layer(const struct turn *t, uint32_t layer);

/* ---- attend.c ---- */

/* n heads side by side: from, rotated, to `to`, which may be the same. */
void turn_rotate(const struct gpu *g, const float *from, uint32_t n, uint32_t pos, float *to);
/* Items of the layer's attention, until none is left; then a barrier. */
void turn_attend(const struct turn *t, uint32_t layer);

/* ---- outputs.c ---- */

/* Goes on with the rows that outputs name alone; by columns. */
void turn_keep_wanted(struct turn *t);
/* Norm, head, sampling. */
void turn_outputs(const struct turn *t);

#endif
