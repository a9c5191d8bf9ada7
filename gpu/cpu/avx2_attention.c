/* avx2_attention.c - attention on AVX2: vec_attention.h with vectors of eight, and the store, which
 * also serves AVX-512.
 */
#include "attention_tile.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "vec_avx2.h"

/* ---- store ---- */

INLINE __m128i to_f16(const float *x)
{
    return _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static void store_f16(uint32_t head_dim, uint32_t slot, uint16_t *k_tile, uint16_t *v_tile,
                      const float *k, const float *v)
{
    for (uint32_t d = 0; d < head_dim; d += 8) {
        uint16_t column[8];
        _mm_storeu_si128((__m128i *)column, to_f16(k + d));
        for (uint32_t i = 0; i < 8; i++)
            k_tile[(d + i) * ATTN_TILE + slot] = column[i];
        _mm_storeu_si128((__m128i *)(v_tile + slot * head_dim + d), to_f16(v + d));
    }
}

static void store_f32(uint32_t head_dim, uint32_t slot, float *k_tile, float *v_tile,
                      const float *k, const float *v)
{
    for (uint32_t d = 0; d < head_dim; d++)
        k_tile[d * ATTN_TILE + slot] = k[d];
    memcpy(v_tile + slot * head_dim, v, head_dim * sizeof *v);
}

/* The highest magnitude's bits. */
static uint32_t top_bits(uint32_t n, const float *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (uint32_t d = 0; d < n; d += 8) {
        __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(x + d));
        top = _mm256_max_epi32(top, _mm256_and_si256(bits, magnitude));
    }
    __m128i t = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    t = _mm_max_epi32(t, _mm_unpackhi_epi64(t, t));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 1));
    return (uint32_t)_mm_cvtsi128_si32(t);
}

/* Eight elements in the low bytes. A multiplier of 0 gives 0, whatever x is. */
INLINE __m128i to_int8(const float *x, float multiplier)
{
    __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(multiplier));
    __m256i whole = _mm256_cvtps_epi32(multiplier > 0 ? scaled : _mm256_setzero_ps());
    __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    return _mm_packs_epi16(words, words);
}

static void store_int8(uint32_t head_dim, uint32_t slot, int8_t *k_tile, int8_t *v_tile,
                       const float *k, const float *v)
{
    struct attn_int8 ki = attn_int8(top_bits(head_dim, k));
    struct attn_int8 vi = attn_int8(top_bits(head_dim, v));
    for (uint32_t d = 0; d < head_dim; d += 8) {
        int8_t column[8];
        _mm_storel_epi64((__m128i *)(void *)column, to_int8(k + d, ki.multiplier));
        for (uint32_t i = 0; i < 8; i++)
            k_tile[(d + i) * ATTN_TILE + slot] = column[i];
        _mm_storel_epi64((__m128i *)(void *)(v_tile + slot * head_dim + d),
                         to_int8(v + d, vi.multiplier));
    }
    ((float *)(void *)(k_tile + (size_t)head_dim * ATTN_TILE))[slot] = ki.scale;
    ((float *)(void *)(v_tile + (size_t)head_dim * ATTN_TILE))[slot] = vi.scale;
}

static void store(const struct attn_shape *s, void *layer_pool, const uint32_t *blocks,
                  uint32_t pos, const float *k, const float *v)
{
    attn_check(s);
    uint32_t slot = pos % ATTN_TILE;
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        char *tile = (char *)layer_pool + attn_tile_offset(s, blocks[pos / ATTN_TILE], h);
        void *k_tile = tile, *v_tile = tile + attn_tile_bytes(s);
        if (s->kv_type == GPU_KV_F16)
            store_f16(s->head_dim, slot, k_tile, v_tile, k, v);
        else if (s->kv_type == GPU_KV_INT8)
            store_int8(s->head_dim, slot, k_tile, v_tile, k, v);
        else
            store_f32(s->head_dim, slot, k_tile, v_tile, k, v);
        k += s->head_dim;
        v += s->head_dim;
    }
}

/* ---- rows ---- */

/* 16 registers: at most 12 sums, a key or value or two, and a broadcast. */
enum { BLOCK_PAIRS = 6, TILES_MAX = 4, VECTORS_MAX = 8 };
#define TILES(pairs)     ((pairs) == 1 ? 4 : (pairs) <= 3 ? 2 : 1)
#define VECTORS(pairs)   ((pairs) == 1 ? 8 : (pairs) <= 3 ? 4 : 2)
#define EACH_PAIRS(F, x) F(1, x) F(2, x) F(3, x) F(4, x) F(5, x) F(6, x)
#include "vec_attention.h"

const struct attn_kernels attn_avx2 = {
    .store = store, .rows = attend, .spans = attend_spans, .merge = merge_parts};

#else

const struct attn_kernels attn_avx2 = {0};

#endif
