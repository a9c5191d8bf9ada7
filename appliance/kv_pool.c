/* kv_pool.c - see kv_pool.h. Hash: XXH3 with 128 bits (xxhash.h). */
#define XXH_INLINE_ALL
#include "kv_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

struct kv_block {
    struct kv_hash hash; /* while findable */
    uint32_t refs;
    uint32_t chain;        /* next in its bucket, or KV_NO_BLOCK */
    uint32_t older, newer; /* while CACHED: neighbours in the LRU list, or KV_NO_BLOCK */
    bool findable;
};

int kv_pool_create(struct kv_pool *p, uint32_t n_blocks, struct fail *f)
{
    *p = (struct kv_pool){.oldest = KV_NO_BLOCK, .newest = KV_NO_BLOCK, .n_buckets = 1};
    if (!n_blocks || n_blocks >= 1u << 31)
        return fail(f, -EINVAL, "a KV pool of %u blocks cannot be made: 1 to %u are possible",
                    n_blocks, (1u << 31) - 1);
    while (p->n_buckets < n_blocks)
        p->n_buckets *= 2;
    p->free_stack = malloc(n_blocks * sizeof *p->free_stack);
    p->blocks = malloc(n_blocks * sizeof *p->blocks);
    p->buckets = malloc((size_t)p->n_buckets * sizeof *p->buckets);
    if (!p->free_stack || !p->blocks || !p->buckets) {
        kv_pool_destroy(p);
        return fail(f, -ENOMEM, "no memory for the book of %u KV blocks", n_blocks);
    }
    if (getrandom(p->key, sizeof p->key, 0) != sizeof p->key) {
        kv_pool_destroy(p);
        return fail(f, -EIO, "the kernel gave no random bytes for the prefix cache");
    }
    memset(p->buckets, 0xff, (size_t)p->n_buckets * sizeof *p->buckets);
    memset(p->blocks, 0, (size_t)n_blocks * sizeof *p->blocks); /* no page is missing later */
    p->n_blocks = p->n_free = n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++)
        p->free_stack[i] = n_blocks - 1 - i;
    return 0;
}

void kv_pool_destroy(struct kv_pool *p)
{
    free(p->free_stack);
    free(p->blocks);
    free(p->buckets);
    *p = (struct kv_pool){0};
}

/* ---- the LRU list ---- */

static void lru_append(struct kv_pool *p, uint32_t block)
{
    p->blocks[block].older = p->newest;
    p->blocks[block].newer = KV_NO_BLOCK;
    if (p->newest == KV_NO_BLOCK)
        p->oldest = block;
    else
        p->blocks[p->newest].newer = block;
    p->newest = block;
    p->n_cached++;
}

static void lru_remove(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    if (b->older == KV_NO_BLOCK)
        p->oldest = b->newer;
    else
        p->blocks[b->older].newer = b->newer;
    if (b->newer == KV_NO_BLOCK)
        p->newest = b->older;
    else
        p->blocks[b->newer].older = b->older;
    p->n_cached--;
}

/* ---- the index ---- */

static uint32_t *bucket_of(const struct kv_pool *p, struct kv_hash hash)
{
    return &p->buckets[hash.low & (p->n_buckets - 1)];
}

static void index_remove(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    uint32_t *at = bucket_of(p, b->hash);
    while (*at != block)
        at = &p->blocks[*at].chain;
    *at = b->chain;
    b->findable = false;
}

uint32_t kv_pool_find(const struct kv_pool *p, struct kv_hash hash)
{
    uint32_t at = *bucket_of(p, hash);
    while (at != KV_NO_BLOCK &&
           (p->blocks[at].hash.low != hash.low || p->blocks[at].hash.high != hash.high))
        at = p->blocks[at].chain;
    return at;
}

bool kv_pool_publish(struct kv_pool *p, uint32_t block, struct kv_hash hash)
{
    struct kv_block *b = &p->blocks[block];
    assert(block < p->n_blocks && b->refs > 0);
    if (b->findable)
        return true;
    if (kv_pool_find(p, hash) != KV_NO_BLOCK)
        return false;
    uint32_t *bucket = bucket_of(p, hash);
    b->hash = hash;
    b->chain = *bucket;
    b->findable = true;
    *bucket = block;
    return true;
}

void kv_pool_forget(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    assert(block < p->n_blocks);
    if (!b->findable)
        return;
    index_remove(p, block);
    if (b->refs)
        return;
    lru_remove(p, block);
    p->free_stack[p->n_free - p->n_cached - 1] = block;
}

void kv_pool_evict_ahead(struct kv_pool *p, uint32_t n, uint32_t most)
{
    for (; most && p->n_cached && p->n_free - p->n_cached < n; most--) {
        kv_pool_forget(p, p->oldest);
        p->evictions++;
    }
}

/* ---- counts ---- */

uint32_t kv_pool_alloc(struct kv_pool *p)
{
    if (!p->n_free)
        return KV_NO_BLOCK;
    uint32_t block = p->oldest;
    if (p->n_free > p->n_cached)
        block = p->free_stack[p->n_free - p->n_cached - 1];
    else {
        lru_remove(p, block);
        index_remove(p, block);
        p->evictions++;
    }
    assert(block < p->n_blocks && p->blocks[block].refs == 0 && !p->blocks[block].findable);
    p->blocks[block].refs = 1;
    p->n_free--;
    return block;
}

void kv_pool_ref(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    assert(block < p->n_blocks && (b->refs > 0 || b->findable) && b->refs < UINT32_MAX);
    if (!b->refs) {
        lru_remove(p, block);
        p->n_free--;
    }
    b->refs++;
}

void kv_pool_unref(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    assert(block < p->n_blocks && b->refs > 0);
    if (--b->refs)
        return;
    assert(p->n_free < p->n_blocks);
    if (b->findable)
        lru_append(p, block);
    else
        p->free_stack[p->n_free - p->n_cached] = block;
    p->n_free++;
}

uint32_t kv_pool_refs(const struct kv_pool *p, uint32_t block)
{
    assert(block < p->n_blocks);
    return p->blocks[block].refs;
}

void kv_pool_fetch(const struct kv_pool *p, uint32_t block)
{
    __builtin_prefetch(&p->blocks[block], 1);
}

void kv_pool_fetch_free(const struct kv_pool *p, uint32_t n)
{
    uint32_t n_free = p->n_free - p->n_cached;
    if (n < n_free)
        kv_pool_fetch(p, p->free_stack[n_free - 1 - n]);
}

bool kv_pool_writable(const struct kv_pool *p, uint32_t block)
{
    return block < p->n_blocks && p->blocks[block].refs == 1 && !p->blocks[block].findable;
}

/* ---- hashes ---- */

static struct kv_hash hash_of(const struct kv_pool *p, const void *data, size_t bytes)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(data, bytes, p->key[0]);
    return (struct kv_hash){h.low64 ^ p->key[1], h.high64 ^ p->key[2]};
}

struct kv_hash kv_pool_root(const struct kv_pool *p, uint64_t domain, uint64_t adapter,
                            uint32_t rope_class)
{
    const uint64_t parts[4] = {p->key[3], domain, adapter, rope_class};
    return hash_of(p, parts, sizeof parts);
}

struct kv_hash kv_pool_chain(const struct kv_pool *p, struct kv_hash parent, const int32_t *tokens)
{
    struct {
        struct kv_hash parent;
        int32_t tokens[GPU_KV_BLOCK];
    } parts = {.parent = parent};
    memcpy(parts.tokens, tokens, sizeof parts.tokens);
    return hash_of(p, &parts, sizeof parts);
}
