/* attention_tile.h - what the attention bodies share: where a tile lies, and what they compute.
 *
 * Definition, for one row at position p and one query head (both bodies take these very steps):
 *   q' = q * scale.
 *   For each span of ATTN_SPAN keys, its first n = min(ATTN_SPAN, p + 1 - start) keys visible:
 *     score of a key: one fma chain over the head's elements in order, from 0
 *     m = the highest score; weight of a key = exp(score - m)
 *     l = ATTN_LANES lane sums (key j in lane j % ATTN_LANES, in order), added pairwise at
 *         distances 4, 2, 1
 *     o[d] = one fma chain over the visible keys in order, from 0
 *   Spans merge in order: with M' = max(M, m), a = exp(M - M'), b = exp(m - M'):
 *     L = fma(L, a, l * b), O[d] = fma(O[d], a, o[d] * b); the first span is taken as it is.
 *   out[d] = O[d] * (1 / L).
 * Nothing here depends on other rows, on the cut into steps or on block ids.
 */
#ifndef LLMD_CPU_ATTENTION_TILE_H
#define LLMD_CPU_ATTENTION_TILE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention.h"

enum {
    ATTN_LANES = 8,
    ATTN_HEAD_DIM_MAX = 256,
    ATTN_SPAN_TILES = ATTN_SPAN / ATTN_TILE,
    ATTN_BLOCK_PAIRS = 6,  /* (row, query head) pairs whose sums a body may hold in registers */
    ATTN_GROUP_PAIRS = 96, /* pairs that go through the keys together */
};

static inline size_t attn_element_bytes(const struct attn_shape *s)
{
    return s->kv_type == GPU_KV_F16 ? 2 : 4;
}

/* Bytes of K (or V) of one tile of one kv head. */
static inline size_t attn_tile_bytes(const struct attn_shape *s)
{
    return (size_t)ATTN_TILE * s->head_dim * attn_element_bytes(s);
}

/* Byte offset in the layer's pool of the K tile of a kv head; its V tile follows. */
static inline size_t attn_tile_offset(const struct attn_shape *s, uint32_t block, uint32_t kv_head)
{
    size_t stride = s->block_stride ? s->block_stride : attn_block_bytes(s);
    return block * stride + (size_t)kv_head * 2 * attn_tile_bytes(s);
}

/* How many keys of the span that starts at `start` the row at `pos` sees. */
static inline unsigned attn_visible(uint32_t pos, uint32_t start)
{
    if (pos < start)
        return 0;
    return pos - start < ATTN_SPAN ? pos - start + 1 : ATTN_SPAN;
}

static inline void attn_check(const struct attn_shape *s)
{
    assert(s->kv_heads > 0 && s->heads % s->kv_heads == 0);
    assert(s->head_dim > 0 && s->head_dim % 8 == 0 && s->head_dim <= ATTN_HEAD_DIM_MAX);
}

#endif
