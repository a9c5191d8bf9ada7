/* tiny_model.c - see tiny_model.h. */
#include "tiny_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"
#undef fail /* cmocka's macro; ours is the function of gpu/fail.h */

struct tiny_config tiny_mixed(void)
{
    return (struct tiny_config){.vocab = 200,
                                .hidden = 64,
                                .n_layers = 2,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .ffn = 96,
                                .rope_dim = 16,
                                .rope = GPU_ROPE_PAIRS,
                                .embedding = GPU_Q8_0,
                                .q = GPU_Q4_0,
                                .k = GPU_Q5_1,
                                .v = GPU_F16,
                                .o = GPU_Q8_0,
                                .gate = GPU_Q4_1,
                                .up = GPU_Q5_0,
                                .down = GPU_Q4_1,
                                .norm = GPU_F32,
                                .tied = true,
                                .seed = 1};
}

struct tiny_config tiny_large_blocks(void)
{
    return (struct tiny_config){.vocab = 64,
                                .hidden = 256,
                                .n_layers = 1,
                                .heads = 16,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .ffn = 256,
                                .rope_dim = 16,
                                .rope = GPU_ROPE_PAIRS,
                                .embedding = GPU_Q6_K,
                                .q = GPU_Q4_K,
                                .k = GPU_Q5_K,
                                .v = GPU_Q6_K,
                                .o = GPU_Q5_K,
                                .gate = GPU_Q4_K,
                                .up = GPU_Q6_K,
                                .down = GPU_Q4_K,
                                .norm = GPU_F32,
                                .tied = true,
                                .seed = 3};
}

struct tiny_config tiny_odd(void)
{
    return (struct tiny_config){.vocab = 131,
                                .hidden = 75,
                                .n_layers = 3,
                                .heads = 3,
                                .kv_heads = 1,
                                .head_dim = 24,
                                .ffn = 101,
                                .rope_dim = 18,
                                .rope = GPU_ROPE_HALVES,
                                .embedding = GPU_BF16,
                                .output = GPU_F16,
                                .q = GPU_F32,
                                .k = GPU_F16,
                                .v = GPU_BF16,
                                .o = GPU_F16,
                                .gate = GPU_BF16,
                                .up = GPU_F32,
                                .down = GPU_F16,
                                .norm = GPU_F16,
                                .biases = true,
                                .seed = 2};
}

/* ---- any shape ---- */

static const enum gpu_type whole_numbers[] = {GPU_F32, GPU_F16, GPU_BF16};

/* A type that rows of k elements can have. */
static enum gpu_type any_type(struct rnd *r, uint32_t k)
{
    static const enum gpu_type blocks[] = {GPU_Q4_0, GPU_Q4_1, GPU_Q5_0, GPU_Q5_1, GPU_Q8_0};
    static const enum gpu_type large[] = {GPU_Q4_K, GPU_Q5_K, GPU_Q6_K};
    if (k % 256 == 0 && rnd_below(r, 2))
        return large[rnd_below(r, 3)];
    if (k % 32 == 0 && rnd_below(r, 4))
        return blocks[rnd_below(r, 5)];
    return whole_numbers[rnd_below(r, 3)];
}

static uint32_t any_width(struct rnd *r)
{
    static const uint32_t steps[] = {1, 16, 32, 32, 256};
    uint32_t step = steps[rnd_below(r, 5)], most = step == 256 ? 512 : 256;
    most = step == 1 && rnd_below(r, 2) ? 40 : most;
    return step * (1 + rnd_below(r, most / step));
}

static void any_heads(struct rnd *r, struct tiny_config *c)
{
    c->head_dim = 8 * (1 + rnd_below(r, rnd_below(r, 2) ? 32 : 8));
    uint32_t most = 1 + 512 / c->head_dim;
    c->kv_heads = 1 + rnd_below(r, most < 4 ? most : 4);
    c->heads = c->kv_heads * (1 + rnd_below(r, most / c->kv_heads + 1));
    if (rnd_below(r, 12) == 0) { /* more query heads of a kv head than an item has pairs */
        c->head_dim = 8;
        c->kv_heads = 1;
        c->heads = 90 + rnd_below(r, 30);
    }
    c->rope = (enum gpu_rope)rnd_below(r, 2);
    c->rope_dim = rnd_below(r, 3) ? c->head_dim : 2 * rnd_below(r, c->head_dim / 2 + 1);
}

struct tiny_config tiny_any(struct rnd *r)
{
    struct tiny_config c = {.hidden = any_width(r),
                            .ffn = any_width(r),
                            .vocab = 1 + rnd_below(r, rnd_below(r, 3) ? 300 : 5000),
                            .n_layers = 1 + rnd_below(r, 2),
                            .norm = whole_numbers[rnd_below(r, 3)],
                            .tied = rnd_below(r, 2),
                            .biases = rnd_below(r, 2),
                            .seed = 1 + rnd_below(r, 1 << 30)};
    any_heads(r, &c);
    enum gpu_type *of_hidden[] = {&c.embedding, &c.output, &c.q, &c.k, &c.v, &c.gate, &c.up};
    for (size_t i = 0; i < sizeof of_hidden / sizeof *of_hidden; i++)
        *of_hidden[i] = any_type(r, c.hidden);
    c.o = any_type(r, c.heads * c.head_dim);
    c.down = any_type(r, c.ffn);
    return c;
}

/* ---- weights ---- */

static uint16_t to_half(float x) /* of a normal number in f16's range */
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return (uint16_t)((b >> 16 & 0x8000) | ((b & 0x7fffffff) - (112u << 23)) >> 13);
}

static void put_half(uint8_t *at, float x)
{
    uint16_t h = to_half(x);
    memcpy(at, &h, 2);
}

/* One block of weights of about +-0.2, or of 1 +- 0.2 */
static void put_block(struct rnd *r, enum gpu_type type, float middle, uint8_t *at)
{
    static const float steps[] = {
        [GPU_Q4_0] = 0.02f,   [GPU_Q4_1] = 0.02f,   [GPU_Q5_0] = 0.01f,   [GPU_Q5_1] = 0.01f,
        [GPU_Q8_0] = 0.0015f, [GPU_Q4_K] = 0.0008f, [GPU_Q5_K] = 0.0008f, [GPU_Q6_K] = 0.0008f};
    float x = middle + rnd_float(r) * 0.2f;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (type == GPU_F32) {
        memcpy(at, &x, 4);
    } else if (type == GPU_BF16) {
        memcpy(at, (uint8_t *)&bits + 2, 2);
    } else if (type == GPU_F16) {
        put_half(at, fabsf(x) < 1e-3f ? 1e-3f : x);
    } else {
        for (uint32_t i = 0; i < gpu_type_info(type)->block_bytes; i++)
            at[i] = (uint8_t)rnd_u32(r);
        if (type == GPU_Q6_K) {
            for (uint32_t i = 192; i < 208; i++) /* scales of -15 .. 15 */
                at[i] = (uint8_t)(rnd_below(r, 31) - 15);
            put_half(at + 208, steps[type] * (1.1f + rnd_float(r)));
            return;
        }
        put_half(at, steps[type] * (1.1f + rnd_float(r)));
        if (type == GPU_Q4_K || type == GPU_Q5_K)
            put_half(at + 2, 0.006f * (1.1f + rnd_float(r)));
        if (type == GPU_Q4_1 || type == GPU_Q5_1)
            put_half(at + 2, -0.16f * (1.1f + 0.3f * rnd_float(r)));
    }
}

static const struct gpu_tensor *add_tensor(struct tiny_model *t, struct rnd *r, enum gpu_type type,
                                           uint32_t ne0, uint32_t ne1, float middle)
{
    const struct gpu_type_info *info = gpu_type_info(type);
    assert_true(t->n_tensors < TINY_TENSORS && ne0 % info->block == 0);
    struct gpu_tensor *tensor = &t->tensors[t->n_tensors];
    *tensor = (struct gpu_tensor){
        .type = type, .n_dims = ne1 > 1 ? 2 : 1, .ne = {ne0, ne1, 1, 1}, .offset = t->n_tensors};
    snprintf(tensor->name, sizeof tensor->name, "tensor %u", t->n_tensors);
    tensor->bytes = gpu_row_bytes(type, ne0) * ne1;
    uint8_t *bytes = malloc(tensor->bytes);
    assert_non_null(bytes);
    for (uint64_t at = 0; at < tensor->bytes; at += info->block_bytes)
        put_block(r, type, middle, bytes + at);
    t->bytes[t->n_tensors++] = bytes;
    return tensor;
}

static void add_layer(struct tiny_model *t, struct rnd *r, const struct tiny_config *c,
                      struct gpu_layer *l)
{
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    l->attn_norm = add_tensor(t, r, c->norm, c->hidden, 1, 1);
    l->q = add_tensor(t, r, c->q, c->hidden, q, 0);
    l->k = add_tensor(t, r, c->k, c->hidden, kv, 0);
    l->v = add_tensor(t, r, c->v, c->hidden, kv, 0);
    l->o = add_tensor(t, r, c->o, q, c->hidden, 0);
    if (c->biases) {
        l->q_bias = add_tensor(t, r, GPU_F32, q, 1, 0);
        l->k_bias = add_tensor(t, r, GPU_F16, kv, 1, 0);
        l->v_bias = add_tensor(t, r, GPU_F32, kv, 1, 0);
        l->o_bias = add_tensor(t, r, GPU_BF16, c->hidden, 1, 0);
    }
    l->ffn_norm = add_tensor(t, r, c->norm, c->hidden, 1, 1);
    l->gate = add_tensor(t, r, c->gate, c->hidden, c->ffn, 0);
    l->up = add_tensor(t, r, c->up, c->hidden, c->ffn, 0);
    l->down = add_tensor(t, r, c->down, c->ffn, c->hidden, 0);
}

void tiny_make(struct tiny_model *t, const struct tiny_config *c)
{
    struct rnd r = {c->seed * 7919ull + 1};
    memset(t, 0, sizeof *t);
    assert_true(c->n_layers <= TINY_LAYERS && c->rope_dim / 2 <= 128);
    for (uint32_t i = 0; i < c->rope_dim / 2; i++)
        t->freq[i] = powf(10000, -2.0f * (float)i / (float)c->rope_dim);
    t->net = (struct gpu_model){.vocab = c->vocab,
                                .hidden = c->hidden,
                                .n_layers = c->n_layers,
                                .heads = c->heads,
                                .kv_heads = c->kv_heads,
                                .head_dim = c->head_dim,
                                .ffn = c->ffn,
                                .context = 4096,
                                .rms_eps = 1e-5f,
                                .attn_scale = 1 / sqrtf((float)c->head_dim),
                                .rope = c->rope,
                                .rope_dim = c->rope_dim,
                                .rope_freq = t->freq,
                                .rope_magnitude = 1,
                                .layers = t->layers};
    t->net.embedding = add_tensor(t, &r, c->embedding, c->hidden, c->vocab, 0);
    for (uint32_t i = 0; i < c->n_layers; i++)
        add_layer(t, &r, c, &t->layers[i]);
    t->net.output_norm = add_tensor(t, &r, c->norm, c->hidden, 1, 1);
    t->net.output =
        c->tied ? t->net.embedding : add_tensor(t, &r, c->output, c->hidden, c->vocab, 0);
}

static int fetch(void *context, const struct gpu_tensor *tensor, void *dst, struct fail *f)
{
    struct tiny_model *t = context;
    if (t->fetch_error && t->n_fetches++ == t->fetch_error_at)
        return fail(f, t->fetch_error, "the tape tore at %s", tensor->name);
    assert_int_equal((uintptr_t)dst % 64, 0);
    memcpy(dst, t->bytes[tensor->offset], tensor->bytes);
    return 0;
}

struct gpu_source tiny_source(struct tiny_model *t)
{
    return (struct gpu_source){.fetch = fetch, .context = t};
}

void tiny_free(struct tiny_model *t)
{
    for (uint32_t i = 0; i < t->n_tensors; i++)
        free(t->bytes[i]);
}
