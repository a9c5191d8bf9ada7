/* kv_pool.c - see kv_pool.h */
#include "kv_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int kv_pool_create(struct kv_pool *p, uint32_t n_blocks, struct fail *f)
{
    *p = (struct kv_pool){0};
    if (!n_blocks || n_blocks == KV_NO_BLOCK)
        return fail(f, -EINVAL, "a KV pool of %u blocks cannot be made: at least 1 is needed",
                    n_blocks);
    p->free_stack = calloc(n_blocks, sizeof *p->free_stack);
    p->refs = calloc(n_blocks, sizeof *p->refs);
    if (!p->free_stack || !p->refs) {
        kv_pool_destroy(p);
        return fail(f, -ENOMEM, "no memory for the book of %u KV blocks", n_blocks);
    }
    p->n_blocks = p->n_free = n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++)
        p->free_stack[i] = n_blocks - 1 - i;
    return 0;
}

void kv_pool_destroy(struct kv_pool *p)
{
    free(p->free_stack);
    free(p->refs);
    *p = (struct kv_pool){0};
}

uint32_t kv_pool_alloc(struct kv_pool *p)
{
    if (!p->n_free)
        return KV_NO_BLOCK;
    uint32_t block = p->free_stack[--p->n_free];
    assert(block < p->n_blocks && p->refs[block] == 0);
    p->refs[block] = 1;
    return block;
}

void kv_pool_ref(struct kv_pool *p, uint32_t block)
{
    assert(block < p->n_blocks && p->refs[block] > 0 && p->refs[block] < UINT32_MAX);
    p->refs[block]++;
}

void kv_pool_unref(struct kv_pool *p, uint32_t block)
{
    assert(block < p->n_blocks && p->refs[block] > 0);
    if (--p->refs[block])
        return;
    assert(p->n_free < p->n_blocks);
    p->free_stack[p->n_free++] = block;
}

bool kv_pool_writable(const struct kv_pool *p, uint32_t block)
{
    return block < p->n_blocks && p->refs[block] == 1;
}
