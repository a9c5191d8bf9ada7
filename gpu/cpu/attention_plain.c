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

static void one(const struct keys *keys, uint32_t pos, const float *q, float *out, float *scratch)
{
    uint32_t head_dim = keys->shape->head_dim;
    float *scaled = scratch;
    struct span span = {.o = scaled + head_dim, .weights = scaled + 3 * head_dim};
    struct total total = {.o = scaled + 2 * head_dim};

    for (uint32_t d = 0; d < head_dim; d++)
        scaled[d] = q[d] * keys->shape->scale;
    for (uint32_t start = 0; start <= pos; start += ATTN_SPAN) {
        unsigned n = attn_visible(pos, start);
        for (unsigned j = 0; j < n; j++)
            span.weights[j] = score(keys, start + j, scaled);
        soften(&span, n);
        weigh(keys, start, n, &span);
        merge(&total, &span, head_dim, start == 0);
    }
    float inverse = 1.0f / total.l;
    for (uint32_t d = 0; d < head_dim; d++)
        out[d] = total.o[d] * inverse;
}

static void rows(const struct attn_shape *s, const void *layer_pool, const uint32_t *blocks,
                 uint32_t pos, uint32_t n_rows, uint32_t kv_head, const float *q, size_t q_stride,
                 float *out, size_t out_stride, void *scratch)
{
    attn_check(s);
    struct keys keys = {s, layer_pool, blocks, kv_head};
    uint32_t ratio = s->heads / s->kv_heads;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < ratio; i++) {
            size_t head = (size_t)(kv_head * ratio + i) * s->head_dim;
            one(&keys, pos + r, q + r * q_stride + head, out + r * out_stride + head, scratch);
        }
}

const struct attn_kernels attn_plain = {.store = store, .rows = rows};
