/* kv_pool.h - who holds which KV block. The bytes belong to the backend; here are only the numbers:
 * a reference count a block and a stack of the free ones.
 *
 * Invariants
 *   1. A block is on the free stack exactly when its count is 0.
 *   2. The block that was given back last is handed out first: it is the one still in the caches.
 *   3. A block with more than one reference is never written (kv_pool_writable).
 */
#ifndef LLMD_KV_POOL_H
#define LLMD_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "../gpu/fail.h"
#include "../gpu/gpu.h"

#define KV_NO_BLOCK UINT32_MAX

struct kv_pool {
    uint32_t n_blocks, n_free;
    uint32_t *free_stack; /* (n_blocks) ids; the first n_free are free, the last of them is next */
    uint32_t *refs;       /* (n_blocks) */
};

/* 0; -EINVAL for no blocks, -ENOMEM. */
int kv_pool_create(struct kv_pool *p, uint32_t n_blocks, struct fail *f);
void kv_pool_destroy(struct kv_pool *p);

/* A block with one reference, or KV_NO_BLOCK where none is free. */
uint32_t kv_pool_alloc(struct kv_pool *p);
void kv_pool_ref(struct kv_pool *p, uint32_t block);
void kv_pool_unref(struct kv_pool *p, uint32_t block);

bool kv_pool_writable(const struct kv_pool *p, uint32_t block);

/* Blocks that hold `tokens` tokens. */
static inline uint32_t kv_blocks_for(uint32_t tokens)
{
    return tokens / GPU_KV_BLOCK + (tokens % GPU_KV_BLOCK != 0);
}

#endif
