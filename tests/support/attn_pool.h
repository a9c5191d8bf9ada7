/* attn_pool.h - the KV pool of one sequence with random q, K and V, for tests of the attention
 * kernels, and which kernels there are.
 */
#ifndef LLMD_TESTS_ATTN_POOL_H
#define LLMD_TESTS_ATTN_POOL_H

#include "../../gpu/cpu/attention.h"

struct attn_pool {
    struct attn_shape shape;
    uint32_t length; /* tokens stored */
    uint32_t n_blocks;
    uint32_t *blocks; /* a permutation: block i lies at blocks[i] */
    void *bytes;
    float *q, *k, *v; /* (length, heads or kv_heads, head_dim) */
    size_t q_row, kv_row;
    void *scratch;
};

/* A shape whose scale is 1 / sqrt(head_dim). */
struct attn_shape attn_shape_of(uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                                enum gpu_kv_type type);

void attn_pool_make(struct attn_pool *p, struct attn_shape shape, uint32_t length);
void attn_pool_free(struct attn_pool *p);
/* Stores K and V anew. Every slot that is not stored holds all-ones bits: a NaN, or -1 with a NaN
 * for a scale. */
void attn_pool_fill(struct attn_pool *p, const struct attn_kernels *kernels);
/* A permutation of twice as many ids as there are blocks, so that holes lie between them. */
void attn_pool_shuffle(struct attn_pool *p);

/* Rows pos .. pos + n - 1 of a kv head; out: (n, q_row) */
struct attn_rows attn_pool_rows(const struct attn_pool *p, uint32_t pos, uint32_t n,
                                uint32_t kv_head, float *out);
/* All query heads of these rows. */
void attn_pool_attend(struct attn_pool *p, const struct attn_kernels *kernels, uint32_t pos,
                      uint32_t n, float *out);

/* The kernels beside the plain ones that this machine runs: NULL past the last. */
const struct attn_kernels *attn_fast(size_t i);

/* A generator that attn_pool_make seeds anew. */
uint32_t attn_random(uint32_t n);
/* 64-byte aligned; fails the test where there is none. */
void *attn_allocate(size_t bytes);
void attn_same(const float *a, const float *b, size_t n);

#endif
