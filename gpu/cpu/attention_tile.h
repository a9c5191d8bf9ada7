/* attention_tile.h - what the attention bodies share: where a tile lies, and what they compute.
 *
 * Definition, for one row at position p and one query head (all bodies take these very steps):
 *   q' = q * scale.
 *   For each span of ATTN_SPAN keys, its first n = min(ATTN_SPAN, p + 1 - start) keys visible:
 *     score of a key: one fma chain over the head's elements in order, from 0; int8: of the stored
 *         integers, and the sum * the key's scale
 *     m = the highest score; weight of a key = exp(score - m)
 *     l = ATTN_LANES lane sums (key j in lane j % ATTN_LANES, in order), added pairwise at
 *         distances 4, 2, 1
 *     o[d] = one fma chain over the visible keys in order, from 0; int8: of the stored integers by
 *         (weight * the key's scale)
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
#include "math.h"

enum {
    ATTN_LANES = 8,
    ATTN_HEAD_DIM_MAX = 256,
    ATTN_Q_STRIDE = ATTN_HEAD_DIM_MAX + 16, /* 17 lines: over all sets of the cache */
    ATTN_SPAN_TILES = ATTN_SPAN / ATTN_TILE,
    ATTN_BLOCK_PAIRS =
        6, /* (row, query head) pairs whose sums a body holds in registers, at most */
    ATTN_GROUP_PAIRS = 96, /* pairs that go through the keys together */
    ATTN_INT8_MAX = 127,   /* symmetric: -128 is not used */
};

static inline size_t attn_element_bytes(const struct attn_shape *s)
{
    static const uint8_t bytes[GPU_KV_TYPES] = {
        [GPU_KV_F16] = 2, [GPU_KV_F32] = 4, [GPU_KV_INT8] = 1};
    return bytes[s->kv_type];
}

/* Byte offset in a tile of its scales. */
static inline size_t attn_scales_offset(const struct attn_shape *s)
{
    return (size_t)ATTN_TILE * s->head_dim * attn_element_bytes(s);
}

/* Bytes of K (or V) of one tile of one kv head, with its scales. */
static inline size_t attn_tile_bytes(const struct attn_shape *s)
{
    return attn_scales_offset(s) + (s->kv_type == GPU_KV_INT8 ? ATTN_TILE * sizeof(float) : 0);
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

/* A row's query heads of one span, where it lies among the parts of attention.h. */
struct attn_part {
    float *m, *l; /* (ratio) */
    float *o;     /* (ratio, head_dim) */
};
static inline struct attn_part attn_part(const struct attn_shape *s, const struct attn_rows *r,
                                         float *parts, uint32_t span, uint32_t row)
{
    uint32_t ratio = s->heads / s->kv_heads;
    float *at = parts + ((size_t)span * r->n_rows + row) * attn_part_floats(s);
    return (struct attn_part){at, at + ratio, at + 2 * ratio};
}

/* How a vector is stored as int8: what its elements are multiplied with before they are rounded, and
 * the scale of the result. top: the bits of its highest magnitude (for them, the order of magnitudes
 * is the order of integers, and a NaN is above all). */
struct attn_int8 {
    float multiplier, scale;
};
static inline struct attn_int8 attn_int8(uint32_t top)
{
    const uint32_t infinity = 0x7f800000u;
    float m = math_from_bits(top), least = ATTN_INT8_MAX * 0x1p-126f;
    if (top >= infinity)
        return (struct attn_int8){0, math_from_bits(0x7fc00000u)};
    if (m < least)
        return (struct attn_int8){0, 0};
    return (struct attn_int8){ATTN_INT8_MAX / m, m / ATTN_INT8_MAX};
}

static inline void attn_check(const struct attn_shape *s)
{
    assert(s->kv_heads > 0 && s->heads % s->kv_heads == 0);
    assert(s->head_dim > 0 && s->head_dim % 8 == 0 && s->head_dim <= ATTN_HEAD_DIM_MAX);
}

#endif
