/* avx2_attention.c - the fast body of attention.h: the steps of attention_tile.h, many pairs at a
 * time.
 *
 * A pair is one (row, query head) of the kv head; pairs are numbered row by row. A group of pairs
 * walks the keys span by span, so that a span's K and V stay in the cache for the whole group; in a
 * group, register blocks of up to six pairs keep their sums in registers and share each load and
 * conversion of K and V. One decode row with its query heads is simply a small group. How pairs
 * fall into blocks changes nothing: every sum belongs to one pair and takes its own steps.
 *
 * Keys past the end of a sequence lie in lanes of the last tile of their own: such lanes are
 * computed with whatever the memory holds and then dropped by a mask, before anything adds across
 * lanes; their V is never read.
 */
#include "attention_tile.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "avx2_math.h"

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

/* Bounds that a compiler sees before it inlines: loops up to them unroll early, so that arrays of
 * sums become registers (clang needs it). */
enum { TILES_MAX = 4, VECTORS_MAX = 8 };

/* Sums that fit in the registers: tiles of scores, vectors of o, for 1 .. ATTN_BLOCK_PAIRS pairs.
 */
#define TILES(pairs)   ((pairs) == 1 ? 4 : (pairs) <= 3 ? 2 : 1)
#define VECTORS(pairs) ((pairs) == 1 ? 8 : (pairs) <= 3 ? 4 : 2)

struct task {
    const struct attn_shape *shape;
    const char *layer_pool;
    const uint32_t *blocks;
    uint32_t kv_head, ratio, pos;
};

/* K (V follows) of the tiles of one span. */
struct span_keys {
    uint32_t start;
    size_t v_offset; /* bytes from a K tile to its V tile */
    size_t scales;   /* bytes from a tile to its scales, where it has them */
    const char *tile[ATTN_SPAN_TILES];
    const char *next[ATTN_SPAN_TILES]; /* of the next span; of this one where it has none */
};

/* Consecutive pairs of a group that share registers. */
struct block {
    unsigned pairs;
    uint32_t head_dim;
    uint32_t pos[ATTN_BLOCK_PAIRS]; /* of each pair's row */
    const float *q;                 /* (head_dim, pairs), scaled */
    float *m, *l;                   /* (pairs), over the spans so far */
    float *o;                       /* (pairs, head_dim) */
};

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

/* ---- scores ---- */

INLINE __m256 load8(const void *p, size_t element, enum gpu_kv_type type)
{
    if (type == GPU_KV_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)p + element)));
    if (type == GPU_KV_INT8)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
            _mm_loadl_epi64((const __m128i *)(const void *)((const int8_t *)p + element))));
    return _mm256_loadu_ps((const float *)p + element);
}

/* While K is read, its V is fetched; while V is read, the next span's K: tiles lie anywhere and are
 * too short for the hardware to run ahead. Into the second level: in the first they would push out
 * what a block still needs. */
INLINE void prefetch(const char *p, size_t element, enum gpu_kv_type type)
{
    _mm_prefetch(p + element * (type == GPU_KV_F16 ? 2 : type == GPU_KV_INT8 ? 1 : 4), _MM_HINT_T1);
}

/* x of eight keys, times their scales where there are such. */
INLINE __m256 scaled(__m256 x, const char *scales, unsigned key, enum gpu_kv_type type)
{
    if (type != GPU_KV_INT8)
        return x;
    return _mm256_mul_ps(x, _mm256_loadu_ps((const float *)(const void *)scales + key));
}

/* Scores of `tiles` tiles for `pairs` pairs; both constants where this is inlined. */
INLINE void score(const struct block *b, const struct span_keys *keys, unsigned first,
                  float *weights, unsigned pairs, unsigned tiles, enum gpu_kv_type type)
{
    const char *const *tile = keys->tile + first;
    weights += first * ATTN_TILE;
    __m256 sum[ATTN_BLOCK_PAIRS][TILES_MAX][2];
    UNROLL
    for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++) {
        UNROLL
        for (unsigned t = 0; t < TILES_MAX && t < tiles; t++)
            sum[p][t][0] = sum[p][t][1] = _mm256_setzero_ps();
    }
    for (uint32_t d = 0; d < b->head_dim; d++) {
        UNROLL
        for (unsigned t = 0; t < TILES_MAX && t < tiles; t++) {
            if (type != GPU_KV_INT8 || d % 4 == 0) /* four elements of its keys are a line */
                prefetch(tile[t] + keys->v_offset, (size_t)d * ATTN_TILE, type);
            __m256 low = load8(tile[t], (size_t)d * ATTN_TILE, type);
            __m256 high = load8(tile[t], (size_t)d * ATTN_TILE + 8, type);
            UNROLL
            for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++) {
                __m256 q = _mm256_broadcast_ss(b->q + (size_t)d * pairs + p);
                sum[p][t][0] = _mm256_fmadd_ps(q, low, sum[p][t][0]);
                sum[p][t][1] = _mm256_fmadd_ps(q, high, sum[p][t][1]);
            }
        }
    }
    UNROLL
    for (unsigned t = 0; t < TILES_MAX && t < tiles; t++) {
        if (type == GPU_KV_INT8)
            _mm_prefetch(tile[t] + keys->v_offset + keys->scales, _MM_HINT_T1);
        UNROLL
        for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++) {
            float *to = weights + p * ATTN_SPAN + t * ATTN_TILE;
            _mm256_storeu_ps(to, scaled(sum[p][t][0], tile[t] + keys->scales, 0, type));
            _mm256_storeu_ps(to + 8, scaled(sum[p][t][1], tile[t] + keys->scales, 8, type));
        }
    }
}

INLINE void score_span(const struct block *b, const struct span_keys *keys, unsigned n_tiles,
                       float *weights, unsigned pairs, enum gpu_kv_type type)
{
    unsigned t = 0;
    for (; t + TILES(pairs) <= n_tiles; t += TILES(pairs))
        score(b, keys, t, weights, pairs, TILES(pairs), type);
    for (; t < n_tiles; t++)
        score(b, keys, t, weights, pairs, 1, type);
}

/* ---- weights ---- */

INLINE float highest(__m256 x)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

/* Lanes added pairwise at distances 4, 2, 1. */
INLINE float total(__m256 x)
{
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

/* (span) scores in, of which the first n >= 1 are visible; weights out, 0 up to the next multiple
 * of 8. */
static void soften(float *weights, unsigned n, float *m, float *l)
{
    const __m256 none = avx2_bits(0xff800000u);
    unsigned full = n / 8 * 8;
    if (n % 8) {
        __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        __m256 seen =
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)(n % 8)), lane));
        __m256 last = _mm256_blendv_ps(none, _mm256_loadu_ps(weights + full), seen);
        _mm256_storeu_ps(weights + full, last);
        full += 8;
    }
    __m256 top = none, sum = _mm256_setzero_ps();
    for (unsigned j = 0; j < full; j += 8)
        top = _mm256_max_ps(top, _mm256_loadu_ps(weights + j));
    *m = highest(top);
    top = _mm256_set1_ps(*m);
    for (unsigned j = 0; j < full; j += 8) {
        __m256 w = avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(weights + j), top));
        _mm256_storeu_ps(weights + j, w);
        sum = _mm256_add_ps(sum, w);
    }
    *l = total(sum);
}

/* What the stored integers of V are multiplied with: of n keys, weight * scale. */
static void scale_weights(const struct span_keys *keys, unsigned n, float *weights)
{
    for (unsigned j = 0; j < n; j += 8) {
        const char *scales = keys->tile[j / ATTN_TILE] + keys->v_offset + keys->scales;
        __m256 w = _mm256_loadu_ps(weights + j);
        _mm256_storeu_ps(weights + j, scaled(w, scales, j % ATTN_TILE, GPU_KV_INT8));
    }
}

/* ---- weighted sum of V ---- */

/* sum += weight * value, one key. Holds whichever are fewer in registers: the weights or the
 * values.
 */
INLINE void add_key(const char *tile, size_t at, const float *weights, __m256 (*sum)[VECTORS_MAX],
                    unsigned pairs, unsigned vectors, enum gpu_kv_type type)
{
    __m256 held[VECTORS_MAX];
    if (pairs < vectors) {
        UNROLL
        for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++)
            held[p] = _mm256_broadcast_ss(weights + p * ATTN_SPAN);
        UNROLL
        for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++) {
            __m256 value = load8(tile, at + v * 8, type);
            UNROLL
            for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++)
                sum[p][v] = _mm256_fmadd_ps(held[p], value, sum[p][v]);
        }
    } else {
        UNROLL
        for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++)
            held[v] = load8(tile, at + v * 8, type);
        UNROLL
        for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++) {
            __m256 weight = _mm256_broadcast_ss(weights + p * ATTN_SPAN);
            UNROLL
            for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++)
                sum[p][v] = _mm256_fmadd_ps(weight, held[v], sum[p][v]);
        }
    }
}

/* o[d .. d + 8 * vectors - 1] over keys from .. end - 1 of the span. first: starts at 0, else goes
 * on. */
INLINE void weigh(uint32_t head_dim, const struct span_keys *keys, unsigned from, unsigned end,
                  uint32_t d, const float *weights, float *o, unsigned pairs, unsigned vectors,
                  enum gpu_kv_type type, bool first)
{
    __m256 sum[ATTN_BLOCK_PAIRS][VECTORS_MAX];
    UNROLL
    for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++) {
        UNROLL
        for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++)
            sum[p][v] =
                first ? _mm256_setzero_ps() : _mm256_loadu_ps(o + (size_t)p * head_dim + d + v * 8);
    }
    for (unsigned j = from; j < end;) {
        const char *tile = keys->tile[j / ATTN_TILE] + keys->v_offset;
        const char *next = keys->next[j / ATTN_TILE];
        unsigned stop = (j / ATTN_TILE + 1) * ATTN_TILE;
        stop = stop < end ? stop : end;
        for (; j < stop; j++) {
            size_t at = (size_t)(j % ATTN_TILE) * head_dim + d;
            prefetch(next, at, type);
            add_key(tile, at, weights + j, sum, pairs, vectors, type);
        }
    }
    UNROLL
    for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++) {
        UNROLL
        for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++)
            _mm256_storeu_ps(o + (size_t)p * head_dim + d + v * 8, sum[p][v]);
    }
}

INLINE void weigh_heads(uint32_t head_dim, const struct span_keys *keys, unsigned from,
                        unsigned end, const float *weights, float *o, unsigned pairs,
                        enum gpu_kv_type type, bool first)
{
    uint32_t d = 0;
    for (; d + 8 * VECTORS(pairs) <= head_dim; d += 8 * VECTORS(pairs))
        weigh(head_dim, keys, from, end, d, weights, o, pairs, VECTORS(pairs), type, first);
    for (; d < head_dim; d += 8)
        weigh(head_dim, keys, from, end, d, weights, o, pairs, 1, type, first);
}

/* One pair goes on alone: keys that others of its block do not see. */
#define WEIGH_REST(type)                                                                           \
    static void weigh_rest_##type(uint32_t head_dim, const struct span_keys *keys, unsigned from,  \
                                  unsigned end, const float *weights, float *o)                    \
    {                                                                                              \
        weigh_heads(head_dim, keys, from, end, weights, o, 1, type, false);                        \
    }
WEIGH_REST(GPU_KV_F16)
WEIGH_REST(GPU_KV_F32)
WEIGH_REST(GPU_KV_INT8)

static void (*const weigh_rest[GPU_KV_TYPES])(uint32_t, const struct span_keys *, unsigned,
                                              unsigned, const float *,
                                              float *) = {[GPU_KV_F16] = weigh_rest_GPU_KV_F16,
                                                          [GPU_KV_F32] = weigh_rest_GPU_KV_F32,
                                                          [GPU_KV_INT8] = weigh_rest_GPU_KV_INT8};

/* ---- one span of one block ---- */

static void merge(struct block *b, unsigned p, float m, float l, const float *o, bool first)
{
    float *sum = b->o + (size_t)p * b->head_dim;
    if (first) {
        b->m[p] = m;
        b->l[p] = l;
        memcpy(sum, o, b->head_dim * sizeof *o);
        return;
    }
    float top = m > b->m[p] ? m : b->m[p];
    float a = math_exp(b->m[p] - top), w = math_exp(m - top);
    __m256 a8 = _mm256_set1_ps(a), w8 = _mm256_set1_ps(w);
    b->m[p] = top;
    b->l[p] = __builtin_fmaf(b->l[p], a, l * w);
    for (uint32_t d = 0; d < b->head_dim; d += 8) {
        __m256 part = _mm256_mul_ps(_mm256_loadu_ps(o + d), w8);
        _mm256_storeu_ps(sum + d, _mm256_fmadd_ps(_mm256_loadu_ps(sum + d), a8, part));
    }
}

/* scratch: (pairs, ATTN_SPAN) weights, then (pairs, head_dim) o of the span. */
INLINE void span_of_block(struct block *b, const struct span_keys *keys, float *scratch,
                          unsigned pairs, enum gpu_kv_type type)
{
    float *weights = scratch, *o = scratch + ATTN_BLOCK_PAIRS * ATTN_SPAN;
    unsigned n[ATTN_BLOCK_PAIRS], common = ATTN_SPAN;
    float m[ATTN_BLOCK_PAIRS], l[ATTN_BLOCK_PAIRS];
    for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++) {
        n[p] = attn_visible(b->pos[p], keys->start);
        common = n[p] < common ? n[p] : common;
    }
    score_span(b, keys, (n[pairs - 1] + ATTN_TILE - 1) / ATTN_TILE, weights, pairs, type);
    for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++) {
        if (n[p])
            soften(weights + p * ATTN_SPAN, n[p], &m[p], &l[p]);
        if (type == GPU_KV_INT8)
            scale_weights(keys, n[p], weights + p * ATTN_SPAN);
    }
    weigh_heads(b->head_dim, keys, 0, common, weights, o, pairs, type, true);
    for (unsigned p = 0; p < ATTN_BLOCK_PAIRS && p < pairs; p++) {
        if (n[p] > common)
            weigh_rest[type](b->head_dim, keys, common, n[p], weights + p * ATTN_SPAN,
                             o + (size_t)p * b->head_dim);
        if (n[p])
            merge(b, p, m[p], l[p], o + (size_t)p * b->head_dim, keys->start == 0);
    }
}

/* One function for each count of pairs and each format: with both constant, the sums live in
 * registers. */
#define SPAN(pairs, type)                                                                          \
    static void span_##pairs##_##type(struct block *b, const struct span_keys *keys,               \
                                      float *scratch)                                              \
    {                                                                                              \
        span_of_block(b, keys, scratch, pairs, type);                                              \
    }
#define SPANS(type)                                                                                \
    SPAN(1, type) SPAN(2, type) SPAN(3, type) SPAN(4, type) SPAN(5, type) SPAN(6, type)
SPANS(GPU_KV_F16)
SPANS(GPU_KV_F32)
SPANS(GPU_KV_INT8)

#define SPAN_TABLE(type)                                                                           \
    {                                                                                              \
        span_1_##type, span_2_##type, span_3_##type, span_4_##type, span_5_##type, span_6_##type   \
    }
static void (*const spans[GPU_KV_TYPES][ATTN_BLOCK_PAIRS])(struct block *, const struct span_keys *,
                                                           float *) = {
    [GPU_KV_F16] = SPAN_TABLE(GPU_KV_F16),
    [GPU_KV_F32] = SPAN_TABLE(GPU_KV_F32),
    [GPU_KV_INT8] = SPAN_TABLE(GPU_KV_INT8)};

/* ---- a group of pairs ---- */

struct group {
    unsigned n_blocks;
    uint32_t last_pos; /* the highest position of a row */
    struct block block[ATTN_GROUP_PAIRS / ATTN_BLOCK_PAIRS];
    float *span; /* scratch of one block */
};

/* Where a pair's head lies in q or out. */
static size_t pair_at(const struct task *t, size_t pair, size_t stride)
{
    size_t head = (size_t)t->kv_head * t->ratio + pair % t->ratio;
    return pair / t->ratio * stride + head * t->shape->head_dim;
}

static void fill_block(const struct task *t, struct block *b, size_t first_pair, float *packed,
                       const float *q, size_t q_stride)
{
    b->q = packed;
    for (unsigned p = 0; p < b->pairs; p++) {
        const float *from = q + pair_at(t, first_pair + p, q_stride);
        b->pos[p] = t->pos + (uint32_t)((first_pair + p) / t->ratio);
        for (uint32_t d = 0; d < b->head_dim; d++)
            packed[(size_t)d * b->pairs + p] = from[d] * t->shape->scale;
    }
}

/* Cuts pairs first .. first + pairs - 1 into blocks of equal size, or one less. scratch:
 * attn_scratch_bytes. */
static void fill_group(const struct task *t, struct group *g, size_t first, unsigned pairs,
                       const float *q, size_t q_stride, float *scratch)
{
    uint32_t head_dim = t->shape->head_dim;
    float *packed = scratch, *o = packed + (size_t)pairs * head_dim;
    float *m = o + (size_t)pairs * head_dim, *l = m + pairs;
    unsigned done = 0;
    g->span = scratch + (size_t)ATTN_GROUP_PAIRS * (2 * head_dim + 2);
    g->last_pos = t->pos + (uint32_t)((first + pairs - 1) / t->ratio);
    g->n_blocks = (pairs + ATTN_BLOCK_PAIRS - 1) / ATTN_BLOCK_PAIRS;
    for (unsigned i = 0; i < g->n_blocks; i++) {
        struct block *b = &g->block[i];
        b->pairs = pairs / g->n_blocks + (i < pairs % g->n_blocks);
        b->head_dim = head_dim;
        b->o = o + (size_t)done * head_dim;
        b->m = m + done;
        b->l = l + done;
        fill_block(t, b, first + done, packed + (size_t)done * head_dim, q, q_stride);
        done += b->pairs;
    }
}

/* K tiles of the span at `start`, as far as the group sees it. */
static void find_tiles(const struct task *t, const struct group *g, uint32_t start,
                       const char **tile)
{
    unsigned n = (attn_visible(g->last_pos, start) + ATTN_TILE - 1) / ATTN_TILE;
    for (unsigned i = 0; i < n; i++)
        tile[i] = t->layer_pool +
                  attn_tile_offset(t->shape, t->blocks[start / ATTN_TILE + i], t->kv_head);
}

static void walk_spans(const struct task *t, struct group *g)
{
    struct span_keys keys = {.v_offset = attn_tile_bytes(t->shape),
                             .scales = attn_scales_offset(t->shape)};
    find_tiles(t, g, 0, keys.next);
    for (uint32_t n = g->last_pos / ATTN_SPAN + 1; n; n--, keys.start += ATTN_SPAN) {
        memcpy(keys.tile, keys.next, sizeof keys.tile);
        if (n > 1)
            find_tiles(t, g, keys.start + ATTN_SPAN, keys.next);
        for (unsigned i = 0; i < g->n_blocks; i++) {
            struct block *b = &g->block[i];
            if (b->pos[b->pairs - 1] >= keys.start)
                spans[t->shape->kv_type][b->pairs - 1](b, &keys, g->span);
        }
    }
}

static void finish(const struct task *t, const struct group *g, size_t pair, float *out,
                   size_t out_stride)
{
    for (unsigned i = 0; i < g->n_blocks; i++) {
        const struct block *b = &g->block[i];
        for (unsigned p = 0; p < b->pairs; p++, pair++) {
            float *to = out + pair_at(t, pair, out_stride);
            __m256 inverse = _mm256_set1_ps(1.0f / b->l[p]);
            const float *o = b->o + (size_t)p * b->head_dim;
            for (uint32_t d = 0; d < b->head_dim; d += 8)
                _mm256_storeu_ps(to + d, _mm256_mul_ps(_mm256_loadu_ps(o + d), inverse));
        }
    }
}

static void rows(const struct attn_shape *s, const void *layer_pool, const uint32_t *blocks,
                 uint32_t pos, uint32_t n_rows, uint32_t kv_head, const float *q, size_t q_stride,
                 float *out, size_t out_stride, void *scratch)
{
    attn_check(s);
    struct task t = {s, layer_pool, blocks, kv_head, s->heads / s->kv_heads, pos};
    size_t n_pairs = (size_t)n_rows * t.ratio;
    for (size_t first = 0; first < n_pairs; first += ATTN_GROUP_PAIRS) {
        size_t left = n_pairs - first;
        struct group g;
        fill_group(&t, &g, first, (unsigned)(left < ATTN_GROUP_PAIRS ? left : ATTN_GROUP_PAIRS), q,
                   q_stride, scratch);
        walk_spans(&t, &g);
        finish(&t, &g, first, out, out_stride);
    }
}

const struct attn_kernels attn_avx2 = {.store = store, .rows = rows};

#else

const struct attn_kernels attn_avx2 = {0};

#endif
