/* attention.h - paged attention on the CPU: the KV pool's layout, the store, the product.
 *
 * KV pool layout, one layer, one block of 16 tokens, elements of f16, f32 or int8; for each kv head:
 *     K  [head_dim][16]   keys side by side: one load gives element d of 8 keys
 *        [16]             int8 only: f32 scales, one a key
 *     V  [16][head_dim]
 *        [16]             likewise
 * Block b of a layer lies at b * block_stride: blocks of several layers may lie side by side. Keys
 * past a sequence's end are never multiplied into a result.
 *
 * int8: x is stored as round(x * (127 / m)), ties to even, with scale m / 127, where m is the highest
 * magnitude among the head_dim elements of that token, kv head, and K or V; no other token takes
 * part. m below 127 * 2^-126: all 0, scale 0. An infinity or a NaN among them: all 0, scale NaN.
 *
 * Numerics (design: pure logits). K and V are read only as stored, the current rows' own included.
 * Keys go in tiles of 16 (= a block) at absolute positions; ATTN_SPAN keys make a span, whose
 * (m, l, o) is finished alone and merged in span order, also when one thread runs all. A masked key
 * contributes exactly 0. Nothing depends on the number of rows, threads or where blocks lie. exp is
 * ours (math.h). The very steps: attention_tile.h.
 */
#ifndef LLMD_CPU_ATTENTION_H
#define LLMD_CPU_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "../gpu.h"

enum { ATTN_TILE = GPU_KV_BLOCK, ATTN_SPAN = 256 };

struct attn_shape {
    uint32_t heads, kv_heads,
        head_dim; /* heads is a multiple of kv_heads; head_dim a multiple of 8, <= 256 */
    float scale;
    enum gpu_kv_type kv_type;
    size_t block_stride; /* bytes, a multiple of 64; 0: attn_block_bytes(), a layer by itself */
};

/* Bytes of one block of one layer (K and V, all kv heads). A multiple of 64. */
size_t attn_block_bytes(const struct attn_shape *s);

/* What attends to what: consecutive rows of one sequence, by the query heads of one kv head. Row r
 * sees positions 0 .. pos + r. */
struct attn_rows {
    const void *layer_pool; /* 64-byte aligned */
    const uint32_t *blocks; /* the sequence's block table */
    uint32_t pos, n_rows, kv_head;
    const float
        *q;     /* (n_rows, q_stride) f32, each row the kv head's query heads, rotated, unscaled */
    float *out; /* (n_rows, out_stride) likewise */
    size_t q_stride, out_stride;
};

struct attn_kernels {
    /* Stores k and v, each (kv_heads * head_dim) f32, already rotated, of the token at `pos` into
     * its block of `layer_pool` (64-byte aligned; block id from the table). Rounds to nearest even
     * where the elements are not f32. */
    void (*store)(const struct attn_shape *s, void *layer_pool, const uint32_t *blocks,
                  uint32_t pos, const float *k, const float *v);
    /* The rows, all spans. scratch: attn_scratch_bytes(), 64-byte aligned, of the calling thread. */
    void (*rows)(const struct attn_shape *s, const struct attn_rows *r, void *scratch);
    /* The same in parts, so that several threads may share the spans of one row: `spans` finishes
     * the spans from .. to - 1 alone, as far as rows see them, into
     *     parts (spans, n_rows, attn_part_floats()), 64-byte aligned, the first one span 0's;
     * once all are there, `merge` makes the rows' results of them. */
    void (*spans)(const struct attn_shape *s, const struct attn_rows *r, uint32_t from, uint32_t to,
                  float *parts, void *scratch);
    void (*merge)(const struct attn_shape *s, const struct attn_rows *r, const float *parts);
};

/* The plain C reference, the AVX2 and the AVX-512 body give the same bits. The latter two are all
 * NULL in builds for other machines. */
extern const struct attn_kernels attn_plain, attn_avx2, attn_avx512;

size_t attn_scratch_bytes(const struct attn_shape *s);

/* Spans that the row at `pos` sees. */
static inline uint32_t attn_spans(uint32_t pos)
{
    return pos / ATTN_SPAN + 1;
}

/* Of one row of one span: its query heads' m, l and o; a multiple of 16. */
size_t attn_part_floats(const struct attn_shape *s);

#endif
