/* avx512_attention.c - attention on AVX-512: vec_attention.h with vectors of 16. The store is
 * avx2_attention.c's: its elements go to places of their own.
 */
#include "attention_tile.h"

#ifdef __AVX512F__
#include "vec_avx512.h"

/* 32 registers: at most 24 sums, the keys or values they share, and a broadcast. */
enum { BLOCK_PAIRS = 6, TILES_MAX = 4, VECTORS_MAX = 4 };
#define TILES(pairs)     TILES_MAX
#define VECTORS(pairs)   VECTORS_MAX
#define EACH_PAIRS(F, x) F(1, x) F(2, x) F(3, x) F(4, x) F(5, x) F(6, x)
#include "vec_attention.h"

static void store(const struct attn_shape *s, void *layer_pool, const uint32_t *blocks,
                  uint32_t pos, const float *k, const float *v)
{
    attn_avx2.store(s, layer_pool, blocks, pos, k, v);
}

const struct attn_kernels attn_avx512 = {
    .store = store, .rows = attend, .spans = attend_spans, .merge = merge_parts};

#else

const struct attn_kernels attn_avx512 = {0};

#endif
