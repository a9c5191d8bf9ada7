/* vec_attention.h - the fast body of attention.h: the steps of attention_tile.h, many pairs at a
 * time. avx2_attention.c and avx512_attention.c include it after their vectors and after
 *
 *   BLOCK_PAIRS        pairs whose sums share the registers, at most ATTN_BLOCK_PAIRS
 *   TILES(pairs)       tiles of scores that so many pairs keep in registers
 *   VECTORS(pairs)     vectors of o
 *   TILES_MAX, VECTORS_MAX   the most of either: bounds that a compiler sees before it inlines, so
 *                      that loops unroll early and arrays of sums become registers (clang needs it)
 *   EACH_PAIRS(F, x)   F(1, x) .. F(BLOCK_PAIRS, x)
 *
 * A pair is one (row, query head) of the kv head; pairs are numbered row by row. A group of pairs
 * walks the keys span by span, so that a span's K and V stay in the cache for the whole group; in a
 * group, register blocks of a few pairs keep their sums in registers and share each load and
 * conversion of K and V. One decode row with its query heads is simply a small group. How pairs
 * fall into blocks changes nothing: every sum belongs to one pair and takes its own steps.
 *
 * Keys past the end of a sequence lie in lanes of the last tile of their own: such lanes are
 * computed with whatever the memory holds and then dropped by a mask, before anything adds across
 * lanes; their V is never read.
 *
 * What is outside the inner loops works on eight floats at a time: head_dim is a multiple of 8.
 */
#include "attention_tile.h"

enum { TILE_VECS = ATTN_TILE / VEC };
static_assert((int)BLOCK_PAIRS <= (int)ATTN_BLOCK_PAIRS, "the scratch is made for fewer");

struct task {
    const struct attn_shape *shape;
    const struct attn_rows *rows;
    uint32_t ratio; /* query heads of the kv head */
};

/* K (V follows) of the tiles of one span. */
struct span_keys {
    uint32_t start;
    size_t v_offset; /* bytes from a K tile to its V tile */
    size_t scales;   /* bytes from a tile to its scales, where it has them */
    const char *tile[ATTN_SPAN_TILES];
    const char *next[ATTN_SPAN_TILES]; /* of the next span; of this one where it has none */
};

/* One span's (m, l, o), or that of the spans so far. */
struct sum {
    float m, l;
    float *o; /* (head_dim) */
};

/* Consecutive pairs of a group that share registers. */
struct block {
    unsigned pairs;
    uint32_t head_dim;
    uint32_t pos[BLOCK_PAIRS]; /* of each pair's row */
    const float *q;            /* (pairs, ATTN_Q_STRIDE), scaled */
    struct sum sum[BLOCK_PAIRS];
};

/* What a block makes of a span, each pair's own. */
struct made {
    float *weights; /* (pairs, ATTN_SPAN) scores, then weights */
    struct sum sum[BLOCK_PAIRS];
};

/* ---- K and V ---- */

INLINE vec load(const void *p, size_t element, enum gpu_kv_type type)
{
    if (type == GPU_KV_F16)
        return vec_from_f16((const uint16_t *)p + element);
    if (type == GPU_KV_INT8)
        return vec_from_int8((const int8_t *)p + element);
    return vec_load((const float *)p + element);
}

INLINE __m256 load_eight(const void *p, size_t element, enum gpu_kv_type type)
{
    if (type == GPU_KV_F16)
        return avx2_from_f16((const uint16_t *)p + element);
    if (type == GPU_KV_INT8)
        return avx2_from_int8((const int8_t *)p + element);
    return _mm256_loadu_ps((const float *)p + element);
}

/* While K is read, its V is fetched; while V is read, the next span's K: tiles lie anywhere and are
 * too short for the hardware to run ahead. Into the second level: in the first they would push out
 * what a block still needs. */
INLINE void prefetch(const char *p, size_t element, enum gpu_kv_type type)
{
    _mm_prefetch(p + element * (type == GPU_KV_F16 ? 2 : type == GPU_KV_INT8 ? 1 : 4), _MM_HINT_T1);
}

/* x of the keys from `key` on, times their scales where there are such. */
INLINE vec scaled(vec x, const char *scales, unsigned key, enum gpu_kv_type type)
{
    if (type != GPU_KV_INT8)
        return x;
    return vec_mul(x, vec_load((const float *)(const void *)scales + key));
}

/* ---- scores; pairs, tiles and type are constants where this is inlined ---- */

INLINE void score(const struct block *b, const struct span_keys *keys, unsigned first,
                  float *weights, unsigned pairs, unsigned tiles, enum gpu_kv_type type)
{
    const char *const *tile = keys->tile + first;
    weights += first * ATTN_TILE;
    vec sum[BLOCK_PAIRS][TILES_MAX][TILE_VECS];
    UNROLL
    for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++) {
        UNROLL
        for (unsigned t = 0; t < TILES_MAX && t < tiles; t++) {
            UNROLL
            for (unsigned i = 0; i < TILE_VECS; i++)
                sum[p][t][i] = vec_zero();
        }
    }
    for (uint32_t d = 0; d < b->head_dim; d++) {
        UNROLL
        for (unsigned t = 0; t < TILES_MAX && t < tiles; t++) {
            vec key[TILE_VECS];
            if (type != GPU_KV_INT8 || d % 4 == 0) /* four elements of its keys are a line */
                prefetch(tile[t] + keys->v_offset, (size_t)d * ATTN_TILE, type);
            UNROLL
            for (unsigned i = 0; i < TILE_VECS; i++)
                key[i] = load(tile[t], (size_t)d * ATTN_TILE + i * VEC, type);
            UNROLL
            for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++) {
                vec q = vec_set(b->q[p * ATTN_Q_STRIDE + d]);
                UNROLL
                for (unsigned i = 0; i < TILE_VECS; i++)
                    sum[p][t][i] = vec_fma(q, key[i], sum[p][t][i]);
            }
        }
    }
    UNROLL
    for (unsigned t = 0; t < TILES_MAX && t < tiles; t++) {
        const char *scales = tile[t] + keys->scales;
        if (type == GPU_KV_INT8)
            _mm_prefetch(scales + keys->v_offset, _MM_HINT_T1);
        UNROLL
        for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++) {
            UNROLL
            for (unsigned i = 0; i < TILE_VECS; i++)
                vec_store(weights + p * ATTN_SPAN + t * ATTN_TILE + i * VEC,
                          scaled(sum[p][t][i], scales, i * VEC, type));
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

/* Of n floats, a multiple of VEC. */
INLINE float highest(const float *x, unsigned n)
{
    vec top[4]; /* so that one comparison need not wait for another */
    unsigned j = 0;
    UNROLL
    for (int i = 0; i < 4; i++)
        top[i] = vec_load(x);
    for (; n - j >= 4 * VEC; j += 4 * VEC) {
        UNROLL
        for (unsigned i = 0; i < 4; i++)
            top[i] = vec_max(top[i], vec_load(x + j + i * VEC));
    }
    for (; j < n; j += VEC)
        top[0] = vec_max(top[0], vec_load(x + j));
    return vec_highest(vec_max(vec_max(top[0], top[1]), vec_max(top[2], top[3])));
}

/* (span) scores in, of which the first n >= 1 are visible; weights out, 0 up to the next multiple
 * of VEC. */
static void soften(float *weights, unsigned n, float *m, float *l)
{
    const vec none = vec_set(math_from_bits(0xff800000u));
    unsigned full = n / VEC * VEC;
    if (n % VEC) {
        vec_store(weights + full, vec_first(n % VEC, vec_load(weights + full), none));
        full += VEC;
    }
    *m = highest(weights, full);
    const vec top = vec_set(*m);
    __m256 lanes = _mm256_setzero_ps();
    for (unsigned j = 0; j < full; j += VEC) {
        vec w = vec_exp(vec_sub(vec_load(weights + j), top));
        vec_store(weights + j, w);
        lanes = vec_add_to_eight(lanes, w);
    }
    *l = avx2_total(lanes);
}

/* What the stored integers of V are multiplied with: of n keys, weight * scale. */
static void scale_weights(const struct span_keys *keys, unsigned n, float *weights)
{
    for (unsigned j = 0; j < n; j += VEC) {
        const char *scales = keys->tile[j / ATTN_TILE] + keys->v_offset + keys->scales;
        vec w = vec_load(weights + j);
        vec_store(weights + j, scaled(w, scales, j % ATTN_TILE, GPU_KV_INT8));
    }
}

/* ---- weighted sum of V; pairs, vectors and type are constants where this is inlined ---- */

/* sum += weight * value, one key. Holds whichever are fewer in registers: the weights or the
 * values. eight: the vector is of eight elements alone. */
INLINE void add_key(const char *tile, size_t at, const float *weights, vec (*sum)[VECTORS_MAX],
                    unsigned pairs, unsigned vectors, enum gpu_kv_type type, bool eight)
{
    vec held[VECTORS_MAX];
    if (pairs < vectors) {
        UNROLL
        for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++)
            held[p] = vec_set(weights[p * ATTN_SPAN]);
        UNROLL
        for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++) {
            vec value = load(tile, at + v * VEC, type);
            UNROLL
            for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++)
                sum[p][v] = vec_fma(held[p], value, sum[p][v]);
        }
    } else {
        UNROLL
        for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++)
            held[v] =
                eight ? vec_widen(load_eight(tile, at, type)) : load(tile, at + v * VEC, type);
        UNROLL
        for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++) {
            vec weight = vec_set(weights[p * ATTN_SPAN]);
            UNROLL
            for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++)
                sum[p][v] = vec_fma(weight, held[v], sum[p][v]);
        }
    }
}

/* o from element d on, over the keys from .. end - 1 of the span. first: starts at 0, else goes on. */
INLINE void weigh(uint32_t head_dim, const struct span_keys *keys, unsigned from, unsigned end,
                  uint32_t d, const float *weights, float *o, unsigned pairs, unsigned vectors,
                  enum gpu_kv_type type, bool first, bool eight)
{
    vec sum[BLOCK_PAIRS][VECTORS_MAX];
    UNROLL
    for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++) {
        const float *at = o + (size_t)p * head_dim + d;
        UNROLL
        for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++)
            sum[p][v] = first   ? vec_zero()
                        : eight ? vec_widen(_mm256_loadu_ps(at))
                                : vec_load(at + v * VEC);
    }
    for (unsigned j = from; j < end;) {
        const char *tile = keys->tile[j / ATTN_TILE] + keys->v_offset;
        const char *next = keys->next[j / ATTN_TILE];
        unsigned stop = (j / ATTN_TILE + 1) * ATTN_TILE;
        stop = stop < end ? stop : end;
        for (; j < stop; j++) {
            size_t at = (size_t)(j % ATTN_TILE) * head_dim + d;
            prefetch(next, at, type);
            add_key(tile, at, weights + j, sum, pairs, vectors, type, eight);
        }
    }
    UNROLL
    for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++) {
        float *to = o + (size_t)p * head_dim + d;
        UNROLL
        for (unsigned v = 0; v < VECTORS_MAX && v < vectors; v++)
            if (eight)
                _mm256_storeu_ps(to, vec_low(sum[p][v]));
            else
                vec_store(to + v * VEC, sum[p][v]);
    }
}

INLINE void weigh_heads(uint32_t head_dim, const struct span_keys *keys, unsigned from,
                        unsigned end, const float *weights, float *o, unsigned pairs,
                        enum gpu_kv_type type, bool first)
{
    uint32_t d = 0, step = VEC * VECTORS(pairs);
    for (; d + step <= head_dim; d += step)
        weigh(head_dim, keys, from, end, d, weights, o, pairs, VECTORS(pairs), type, first, false);
    for (; d + VEC <= head_dim; d += VEC)
        weigh(head_dim, keys, from, end, d, weights, o, pairs, 1, type, first, false);
    if (VEC > 8 && d < head_dim)
        weigh(head_dim, keys, from, end, d, weights, o, pairs, 1, type, first, true);
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

INLINE void span_of_block(const struct block *b, const struct span_keys *keys, struct made *made,
                          unsigned pairs, enum gpu_kv_type type)
{
    float *weights = made->weights, *o = made->sum[0].o;
    unsigned n[BLOCK_PAIRS], common = ATTN_SPAN;
    for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++) {
        n[p] = attn_visible(b->pos[p], keys->start);
        common = n[p] < common ? n[p] : common;
    }
    score_span(b, keys, (n[pairs - 1] + ATTN_TILE - 1) / ATTN_TILE, weights, pairs, type);
    for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++) {
        if (n[p])
            soften(weights + p * ATTN_SPAN, n[p], &made->sum[p].m, &made->sum[p].l);
        if (type == GPU_KV_INT8)
            scale_weights(keys, n[p], weights + p * ATTN_SPAN);
    }
    weigh_heads(b->head_dim, keys, 0, common, weights, o, pairs, type, true);
    for (unsigned p = 0; p < BLOCK_PAIRS && p < pairs; p++)
        if (n[p] > common)
            weigh_rest[type](b->head_dim, keys, common, n[p], weights + p * ATTN_SPAN,
                             o + (size_t)p * b->head_dim);
}

/* One function for each count of pairs and each format: with both constant, the sums live in
 * registers. */
#define SPAN(pairs, type)                                                                          \
    static void span_##pairs##_##type(const struct block *b, const struct span_keys *keys,         \
                                      struct made *made)                                           \
    {                                                                                              \
        span_of_block(b, keys, made, pairs, type);                                                 \
    }
#define SPAN_NAME(pairs, type) span_##pairs##_##type,
EACH_PAIRS(SPAN, GPU_KV_F16)
EACH_PAIRS(SPAN, GPU_KV_F32)
EACH_PAIRS(SPAN, GPU_KV_INT8)

static void (*const spans_of[GPU_KV_TYPES][BLOCK_PAIRS])(const struct block *,
                                                         const struct span_keys *,
                                                         struct made *) = {
    [GPU_KV_F16] = {EACH_PAIRS(SPAN_NAME, GPU_KV_F16)},
    [GPU_KV_F32] = {EACH_PAIRS(SPAN_NAME, GPU_KV_F32)},
    [GPU_KV_INT8] = {EACH_PAIRS(SPAN_NAME, GPU_KV_INT8)}};

/* ---- spans together ---- */

static void merge(uint32_t head_dim, struct sum *sum, const struct sum *span, bool first)
{
    if (first) {
        sum->m = span->m;
        sum->l = span->l;
        memcpy(sum->o, span->o, head_dim * sizeof *span->o);
        return;
    }
    float top = span->m > sum->m ? span->m : sum->m;
    float a = math_exp(sum->m - top), w = math_exp(span->m - top);
    __m256 a8 = _mm256_set1_ps(a), w8 = _mm256_set1_ps(w);
    sum->m = top;
    sum->l = __builtin_fmaf(sum->l, a, span->l * w);
    for (uint32_t d = 0; d < head_dim; d += 8) {
        __m256 part = _mm256_mul_ps(_mm256_loadu_ps(span->o + d), w8);
        _mm256_storeu_ps(sum->o + d, _mm256_fmadd_ps(_mm256_loadu_ps(sum->o + d), a8, part));
    }
}

/* out may be sum's o. */
static void finish(uint32_t head_dim, const struct sum *sum, float *out)
{
    __m256 inverse = _mm256_set1_ps(1.0f / sum->l);
    for (uint32_t d = 0; d < head_dim; d += 8)
        _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(sum->o + d), inverse));
}

/* ---- a group of pairs ---- */

struct group {
    size_t first; /* pair */
    unsigned n_blocks;
    uint32_t last_pos; /* the highest position of a row */
    struct block block[(ATTN_GROUP_PAIRS + BLOCK_PAIRS - 1) / BLOCK_PAIRS];
    struct made made; /* of one block at a time */
};

/* Where a pair's head lies in q or out. */
static size_t pair_at(const struct task *t, size_t pair, size_t stride)
{
    return pair / t->ratio * stride + pair % t->ratio * t->shape->head_dim;
}

static void fill_block(const struct task *t, struct block *b, size_t first_pair, float *q, float *o)
{
    const __m256 scale = _mm256_set1_ps(t->shape->scale);
    b->q = q;
    b->head_dim = t->shape->head_dim;
    for (unsigned p = 0; p < b->pairs; p++, q += ATTN_Q_STRIDE) {
        const float *from = t->rows->q + pair_at(t, first_pair + p, t->rows->q_stride);
        b->pos[p] = t->rows->pos + (uint32_t)((first_pair + p) / t->ratio);
        b->sum[p].o = o + (size_t)p * b->head_dim;
        for (uint32_t d = 0; d < b->head_dim; d += 8)
            _mm256_storeu_ps(q + d, _mm256_mul_ps(_mm256_loadu_ps(from + d), scale));
    }
}

/* Cuts pairs first .. first + pairs - 1 into blocks of equal size, or one less. scratch:
 * attn_scratch_bytes. */
static void fill_group(const struct task *t, struct group *g, size_t first, unsigned pairs,
                       float *scratch)
{
    size_t head_dim = t->shape->head_dim;
    float *q = scratch, *o = q + ATTN_GROUP_PAIRS * ATTN_Q_STRIDE;
    size_t pair = first;
    g->made.weights = o + ATTN_GROUP_PAIRS * head_dim;
    for (unsigned p = 0; p < BLOCK_PAIRS; p++)
        g->made.sum[p].o = g->made.weights + BLOCK_PAIRS * ATTN_SPAN + p * head_dim;
    g->first = first;
    g->last_pos = t->rows->pos + (uint32_t)((first + pairs - 1) / t->ratio);
    g->n_blocks = (pairs + BLOCK_PAIRS - 1) / BLOCK_PAIRS;
    for (unsigned i = 0; i < g->n_blocks; i++) {
        struct block *b = &g->block[i];
        b->pairs = pairs / g->n_blocks + (i < pairs % g->n_blocks);
        fill_block(t, b, pair, q, o);
        pair += b->pairs;
        q += b->pairs * ATTN_Q_STRIDE;
        o += b->pairs * head_dim;
    }
}

/* K tiles of the span at `start`, as far as the group sees it. */
static void find_tiles(const struct task *t, const struct group *g, uint32_t start,
                       const char **tile)
{
    const struct attn_rows *r = t->rows;
    unsigned n = (attn_visible(g->last_pos, start) + ATTN_TILE - 1) / ATTN_TILE;
    for (unsigned i = 0; i < n; i++)
        tile[i] = (const char *)r->layer_pool +
                  attn_tile_offset(t->shape, r->blocks[start / ATTN_TILE + i], r->kv_head);
}

/* Puts a span's sum of a pair among the parts. */
static void keep(const struct task *t, const struct sum *sum, size_t pair, uint32_t span,
                 float *parts)
{
    struct attn_part part = attn_part(t->shape, t->rows, parts, span, (uint32_t)(pair / t->ratio));
    size_t head = pair % t->ratio;
    part.m[head] = sum->m;
    part.l[head] = sum->l;
    memcpy(part.o + head * t->shape->head_dim, sum->o, t->shape->head_dim * sizeof *sum->o);
}

/* The span of all blocks, merged into their sums, or into the parts where there are such. */
static void take_span(const struct task *t, struct group *g, const struct span_keys *keys,
                      float *parts)
{
    size_t pair = g->first;
    for (unsigned i = 0; i < g->n_blocks; i++) {
        struct block *b = &g->block[i];
        if (b->pos[b->pairs - 1] >= keys->start)
            spans_of[t->shape->kv_type][b->pairs - 1](b, keys, &g->made);
        for (unsigned p = 0; p < b->pairs; p++, pair++)
            if (b->pos[p] < keys->start)
                continue;
            else if (parts)
                keep(t, &g->made.sum[p], pair, keys->start / ATTN_SPAN, parts);
            else
                merge(b->head_dim, &b->sum[p], &g->made.sum[p], keys->start == 0);
    }
}

/* Spans from .. to - 1, as far as the group sees them. */
static void walk_spans(const struct task *t, struct group *g, uint32_t from, uint32_t to,
                       float *parts)
{
    struct span_keys keys = {.start = from * ATTN_SPAN,
                             .v_offset = attn_tile_bytes(t->shape),
                             .scales = attn_scales_offset(t->shape)};
    uint32_t seen = attn_spans(g->last_pos);
    find_tiles(t, g, keys.start, keys.next);
    for (to = to < seen ? to : seen; from < to; from++, keys.start += ATTN_SPAN) {
        memcpy(keys.tile, keys.next, sizeof keys.tile);
        if (from + 1 < to)
            find_tiles(t, g, keys.start + ATTN_SPAN, keys.next);
        take_span(t, g, &keys, parts);
    }
}

/* ---- the kernels ---- */

static void finish_group(const struct task *t, const struct group *g)
{
    size_t pair = g->first;
    for (unsigned i = 0; i < g->n_blocks; i++)
        for (unsigned p = 0; p < g->block[i].pairs; p++, pair++)
            finish(t->shape->head_dim, &g->block[i].sum[p],
                   t->rows->out + pair_at(t, pair, t->rows->out_stride));
}

static struct task task_of(const struct attn_shape *s, const struct attn_rows *r)
{
    attn_check(s);
    return (struct task){s, r, s->heads / s->kv_heads};
}

static void attend_spans(const struct attn_shape *s, const struct attn_rows *r, uint32_t from,
                         uint32_t to, float *parts, void *scratch)
{
    struct task t = task_of(s, r);
    size_t n_pairs = (size_t)r->n_rows * t.ratio;
    for (size_t first = 0; first < n_pairs; first += ATTN_GROUP_PAIRS) {
        size_t left = n_pairs - first;
        struct group g;
        fill_group(&t, &g, first, (unsigned)(left < ATTN_GROUP_PAIRS ? left : ATTN_GROUP_PAIRS),
                   scratch);
        walk_spans(&t, &g, from, to, parts);
        if (!parts)
            finish_group(&t, &g);
    }
}

static void attend(const struct attn_shape *s, const struct attn_rows *r, void *scratch)
{
    attend_spans(s, r, 0, UINT32_MAX, NULL, scratch);
}

static void merge_parts(const struct attn_shape *s, const struct attn_rows *r, const float *parts)
{
    struct task t = task_of(s, r);
    for (uint32_t pair = 0; pair < r->n_rows * t.ratio; pair++) {
        uint32_t row = pair / t.ratio, head = pair % t.ratio;
        struct sum sum = {.o = r->out + pair_at(&t, pair, r->out_stride)};
        for (uint32_t i = 0; i < attn_spans(r->pos + row); i++) {
            struct attn_part part = attn_part(s, r, (float *)parts, i, row);
            struct sum span = {part.m[head], part.l[head], part.o + (size_t)head * s->head_dim};
            merge(s->head_dim, &sum, &span, i == 0);
        }
        finish(s->head_dim, &sum, sum.o);
    }
}
