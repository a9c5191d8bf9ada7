/* kv_pool.h - who holds which KV block, and which blocks can be found again by what they hold. The
 * bytes belong to the backend; here are only numbers.
 *
 *                 alloc                     publish
 *   FREE  ------------------->  HELD  <------------------>  HELD, findable
 *    ^      unref (last)         |          forget             |  ^
 *    +---------------------------+                  unref(last)|  | ref, find + ref
 *    ^                                                         v  |
 *    +------------------------------------------------------  CACHED  (in LRU order)
 *            alloc, where no block is FREE; evict_ahead, forget
 *
 * A full block is found by its chain hash: 128 bits over the hash of the block before it and the
 * block's own tokens; the first one's parent is a root that names everything else that decides its
 * bits and who may find it (adapter, RoPE class, domain). The hash is keyed with random bytes drawn
 * at start, so nobody can aim for a collision.
 *
 * Invariants
 *   1. A block is on the free stack exactly when its count is 0 and it is not findable; in the LRU
 *      list exactly when its count is 0 and it is findable.
 *   2. n_free counts both kinds: what alloc can hand out. n_cached: those of them in the LRU list.
 *   3. At most one block is findable by one hash.
 *   4. A block that is findable or has more than one reference is never written
 *      (kv_pool_writable).
 *   5. Nothing allocates after kv_pool_create; every call is O(1) on average.
 */
#ifndef LLMD_KV_POOL_H
#define LLMD_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "../gpu/fail.h"
#include "../gpu/gpu.h"

#define KV_NO_BLOCK UINT32_MAX

struct kv_hash {
    uint64_t low, high;
};

struct kv_block; /* kv_pool.c: count, hash, links */

struct kv_pool {
    uint32_t n_blocks, n_free, n_cached;
    uint32_t *free_stack; /* (n_blocks) ids; the last one is handed out next: it is the one still in
                             the caches */
    struct kv_block *blocks; /* (n_blocks) */
    uint32_t *buckets;       /* (n_buckets, a power of two) first block of each hash chain */
    uint32_t n_buckets;
    uint32_t oldest, newest; /* ends of the LRU list, or KV_NO_BLOCK */
    uint64_t key[4];         /* of the hash */
    uint64_t evictions;      /* cached blocks that alloc took, or that were evicted ahead of it */
};

/* 0; -EINVAL for no blocks, -ENOMEM, or the code of getrandom. */
int kv_pool_create(struct kv_pool *p, uint32_t n_blocks, struct fail *f);
void kv_pool_destroy(struct kv_pool *p);

/* A block with one reference, not findable; the least recently used cached one where none is free.
 * KV_NO_BLOCK where there is none either. */
uint32_t kv_pool_alloc(struct kv_pool *p);
/* Of a block that is held or cached. */
void kv_pool_ref(struct kv_pool *p, uint32_t block);
/* The last reference of a findable block makes it the newest in the LRU list: who gives a chain
 * back begins with its last block, so that beginnings live longest. */
void kv_pool_unref(struct kv_pool *p, uint32_t block);
uint32_t kv_pool_refs(const struct kv_pool *p, uint32_t block);

bool kv_pool_writable(const struct kv_pool *p, uint32_t block);

/* The parent of a first block. Equal arguments, equal root. */
struct kv_hash kv_pool_root(const struct kv_pool *p, uint64_t domain, uint64_t adapter,
                            uint32_t rope_class);
/* Hash of a full block: `tokens` has GPU_KV_BLOCK. */
struct kv_hash kv_pool_chain(const struct kv_pool *p, struct kv_hash parent, const int32_t *tokens);

/* Makes a held, fully computed block findable. False (and nothing changes) if another block is
 * findable by that hash; a block that is findable already is left as it is (true). */
bool kv_pool_publish(struct kv_pool *p, uint32_t block, struct kv_hash hash);
/* The block of that hash, or KV_NO_BLOCK. It may be evicted by the next alloc unless it is
 * referenced. */
uint32_t kv_pool_find(const struct kv_pool *p, struct kv_hash hash);
/* Findable no longer: a cached one becomes free. Harmless on others. */
void kv_pool_forget(struct kv_pool *p, uint32_t block);

/* Brings what the pool knows of a block, or of the n-th (from 0) that alloc will hand out, into the
 * caches. */
void kv_pool_fetch(const struct kv_pool *p, uint32_t block);
void kv_pool_fetch_free(const struct kv_pool *p, uint32_t n);
/* Evicts cached blocks, at most `most`, until n blocks are free that are not: what the next allocs
 * would do, before they come. */
void kv_pool_evict_ahead(struct kv_pool *p, uint32_t n, uint32_t most);

/* Blocks that hold `tokens` tokens. */
static inline uint32_t kv_blocks_for(uint32_t tokens)
{
    return tokens / GPU_KV_BLOCK + (tokens % GPU_KV_BLOCK != 0);
}

#endif
