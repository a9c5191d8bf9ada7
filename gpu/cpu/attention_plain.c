/* attention_plain.c - the reference body of attention.h in plain C: one (row, query head) after
 * another, in the steps that attention_tile.h defines.
 */
#include "attention_tile.h"
#include "math.h"

/* ---- store ---- */

/* |x| <= 127 and a rounding error. */
static int8_t round_int8(float x)
{
    return (int8_t)(math_bits(x + MATH_ROUND) - math_bits(MATH_ROUND));
}

static float get(const struct attn_shape *s, const void *tile, size_t element)
{
    switch (s->kv_type) {
    case GPU_KV_F16:
        return math_from_f16(((const uint16_t *)tile)[element]);
    case GPU_KV_INT8:
        return ((const int8_t *)tile)[element];
    default:
        return ((const float *)tile)[element];
    }
}

/* What makes a product with stored elements one with the values: 1 where they are the values. */
static float scale_of(const struct attn_shape *s, const char *tile, uint32_t slot)
{
    if (s->kv_type != GPU_KV_INT8)
        return 1.0f;
    return ((const float *)(tile + attn_scales_offset(s)))[slot];
}

/* Element d of x goes to place + d * step of the tile. */
static void put_int8(const struct attn_shape *s, char *tile, uint32_t slot, size_t place,
                     size_t step, const float *x)
{
    uint32_t top = 0;
    for (uint32_t d = 0; d < s->head_dim; d++) {
        uint32_t magnitude = math_bits(x[d]) & 0x7fffffffu;
        top = magnitude > top ? magnitude : top;
    }
    struct attn_int8 i = attn_int8(top);
    for (uint32_t d = 0; d < s->head_dim; d++)
        ((int8_t *)tile)[place + d * step] = i.multiplier > 0 ? round_int8(x[d] * i.multiplier) : 0;
    ((float *)(tile + attn_scales_offset(s)))[slot] = i.scale;
}

static void put(const struct attn_shape *s, char *tile, uint32_t slot, size_t place, size_t step,
                const float *x)
{
    if (s->kv_type == GPU_KV_INT8) {
        put_int8(s, tile, slot, place, step, x);
        return;
    }
    for (uint32_t d = 0; d < s->head_dim; d++)
        if (s->kv_type == GPU_KV_F16)
            ((uint16_t *)tile)[place + d * step] = math_to_f16(x[d]);
        else
            ((float *)tile)[place + d * step] = x[d];
}

static void store(const struct attn_shape *s, void *layer_pool, const uint32_t *blocks,
                  uint32_t pos, const float *k, const float *v)
{
    attn_check(s);
    uint32_t slot = pos % ATTN_TILE;
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        char *k_tile = (char *)layer_pool + attn_tile_offset(s, blocks[pos / ATTN_TILE], h);
        char *v_tile = k_tile + attn_tile_bytes(s);
        put(s, k_tile, slot, slot, ATTN_TILE, k + (size_t)h * s->head_dim);
        put(s, v_tile, slot, (size_t)slot * s->head_dim, 1, v + (size_t)h * s->head_dim);
    }
}

/* ---- one span ---- */

struct span {
    float m, l;
    float *o;       /* (head_dim) */
    float *weights; /* (ATTN_SPAN) scores, then weights */
};

/* Where the keys of one sequence and kv head lie. */
struct keys {
    const struct attn_shape *shape;
    const char *layer_pool;
    const uint32_t *blocks;
    uint32_t kv_head;
};

static const char *tile_of(const struct keys *keys, uint32_t position)
{
    uint32_t block = keys->blocks[position / ATTN_TILE];
    return keys->layer_pool + attn_tile_offset(keys->shape, block, keys->kv_head);
}

static float score(const struct keys *keys, uint32_t position, const float *q)
{
    const char *tile = tile_of(keys, position);
    float sum = 0.0f;
    for (uint32_t d = 0; d < keys->shape->head_dim; d++)
        sum = __builtin_fmaf(
            q[d], get(keys->shape, tile, (size_t)d * ATTN_TILE + position % ATTN_TILE), sum);
    return sum * scale_of(keys->shape, tile, position % ATTN_TILE);
}

/* weights: n scores in, exp(score - m) out. */
static void soften(struct span *span, unsigned n)
{
    float lane[ATTN_LANES] = {0};
    span->m = span->weights[0];
    for (unsigned j = 1; j < n; j++)
        span->m = span->weights[j] > span->m ? span->weights[j] : span->m;
    for (unsigned j = 0; j < n; j++) {
        span->weights[j] = math_exp(span->weights[j] - span->m);
        lane[j % ATTN_LANES] += span->weights[j];
    }
    for (unsigned distance = ATTN_LANES / 2; distance; distance /= 2)
        for (unsigned i = 0; i < distance; i++)
            lane[i] += lane[i + distance];
    span->l = lane[0];
}

static void weigh(const struct keys *keys, uint32_t start, unsigned n, struct span *span)
{
    uint32_t head_dim = keys->shape->head_dim;
    for (uint32_t d = 0; d < head_dim; d++)
        span->o[d] = 0.0f;
    for (unsigned j = 0; j < n; j++) {
        const char *tile = tile_of(keys, start + j) + attn_tile_bytes(keys->shape);
        float weight = span->weights[j] * scale_of(keys->shape, tile, j % ATTN_TILE);
        for (uint32_t d = 0; d < head_dim; d++)
            span->o[d] = __builtin_fmaf(
                weight, get(keys->shape, tile, (size_t)(j % ATTN_TILE) * head_dim + d), span->o[d]);
    }
}

/* The span of the row at pos, q being scaled. */
static void finish_span(const struct keys *keys, uint32_t pos, uint32_t start, const float *q,
                        struct span *span)
{
    unsigned n = attn_visible(pos, start);
    for (unsigned j = 0; j < n; j++)
        span->weights[j] = score(keys, start + j, q);
    soften(span, n);
    weigh(keys, start, n, span);
}

/* ---- spans together ---- */

struct total {
    float m, l;
    float *o; /* (head_dim) */
};

static void merge(struct total *t, const struct span *span, uint32_t head_dim, bool first)
{
    float m = first || span->m > t->m ? span->m : t->m;
    float a = first ? 0.0f : math_exp(t->m - m);
    float b = first ? 1.0f : math_exp(span->m - m);
    t->m = m;
    t->l = first ? span->l : __builtin_fmaf(t->l, a, span->l * b);
    for (uint32_t d = 0; d < head_dim; d++)
        t->o[d] = first ? span->o[d] : __builtin_fmaf(t->o[d], a, span->o[d] * b);
}

static void divide(const struct total *t, uint32_t head_dim, float *out)
{
    float inverse = 1.0f / t->l;
    for (uint32_t d = 0; d < head_dim; d++)
        out[d] = t->o[d] * inverse;
}

/* ---- the kernels ---- */

/* One query head of one row. */
struct one {
    struct keys keys;
    uint32_t pos, row, head; /* head: among those of the kv head */
    float *scaled, *out;     /* (head_dim) */
    struct span span;
    struct total total;
};

static struct one one_of(const struct attn_shape *s, const struct attn_rows *r, uint32_t pair,
                         float *scratch)
{
    uint32_t ratio = s->heads / s->kv_heads, row = pair / ratio, head = pair % ratio;
    struct one one = {.keys = {s, r->layer_pool, r->blocks, r->kv_head},
                      .pos = r->pos + row,
                      .row = row,
                      .head = head,
                      .scaled = scratch,
                      .out = r->out + row * r->out_stride + (size_t)head * s->head_dim,
                      .span.o = scratch + s->head_dim,
                      .total.o = scratch + 2 * s->head_dim,
                      .span.weights = scratch + 3 * s->head_dim};
    const float *q = r->q + row * r->q_stride + (size_t)head * s->head_dim;
    for (uint32_t d = 0; d < s->head_dim; d++)
        one.scaled[d] = q[d] * s->scale;
    return one;
}

static uint32_t pairs(const struct attn_shape *s, const struct attn_rows *r)
{
    attn_check(s);
    return r->n_rows * (s->heads / s->kv_heads);
}

static void rows(const struct attn_shape *s, const struct attn_rows *r, void *scratch)
{
    for (uint32_t pair = 0; pair < pairs(s, r); pair++) {
        struct one o = one_of(s, r, pair, scratch);
        for (uint32_t i = 0; i < attn_spans(o.pos); i++) {
            finish_span(&o.keys, o.pos, i * ATTN_SPAN, o.scaled, &o.span);
            merge(&o.total, &o.span, s->head_dim, i == 0);
        }
        divide(&o.total, s->head_dim, o.out);
    }
}

static void spans(const struct attn_shape *s, const struct attn_rows *r, uint32_t from, uint32_t to,
                  float *parts, void *scratch)
{
    for (uint32_t pair = 0; pair < pairs(s, r); pair++) {
        struct one o = one_of(s, r, pair, scratch);
        for (uint32_t i = from; i < to && i < attn_spans(o.pos); i++) {
            struct attn_part part = attn_part(s, r, parts, i, o.row);
            o.span.o = part.o + (size_t)o.head * s->head_dim;
            finish_span(&o.keys, o.pos, i * ATTN_SPAN, o.scaled, &o.span);
            part.m[o.head] = o.span.m;
            part.l[o.head] = o.span.l;
        }
    }
}

static void merge_parts(const struct attn_shape *s, const struct attn_rows *r, const float *parts)
{
    uint32_t ratio = s->heads / s->kv_heads;
    for (uint32_t pair = 0; pair < pairs(s, r); pair++) {
        uint32_t row = pair / ratio, head = pair % ratio;
        struct total total = {.o = r->out + row * r->out_stride + (size_t)head * s->head_dim};
        for (uint32_t i = 0; i < attn_spans(r->pos + row); i++) {
            struct attn_part part = attn_part(s, r, (float *)parts, i, row);
            struct span span = {part.m[head], part.l[head], part.o + (size_t)head * s->head_dim,
                                NULL};
            merge(&total, &span, s->head_dim, i == 0);
        }
        divide(&total, s->head_dim, total.o);
    }
}

const struct attn_kernels attn_plain = {
    .store = store, .rows = rows, .spans = spans, .merge = merge_parts};
