/* tiny_model.h - a random decoder model in memory, for tests of a backend: any shape, a type of
 * choice for every matrix, weights of a size that keeps activations sane.
 */
#ifndef LLMD_TESTS_TINY_MODEL_H
#define LLMD_TESTS_TINY_MODEL_H

#include "../../gpu/gpu.h"

enum { TINY_LAYERS = 3, TINY_TENSORS = TINY_LAYERS * 13 + 3 };

struct tiny_config {
    uint32_t vocab, hidden, n_layers, heads, kv_heads, head_dim, ffn, rope_dim;
    enum gpu_rope rope;
    enum gpu_type embedding, output, q, k, v, o, gate, up, down, norm;
    bool tied, biases;
    uint32_t seed;
};

struct tiny_model {
    struct gpu_model net;
    struct gpu_layer layers[TINY_LAYERS];
    struct gpu_tensor tensors[TINY_TENSORS];
    uint8_t *bytes[TINY_TENSORS];
    uint32_t n_tensors;
    float freq[128];
    /* how fetch behaves */
    int fetch_error; /* != 0: what the fetch of number fetch_error_at returns */
    uint32_t fetch_error_at, n_fetches;
};

/* Every quantized type once, tied Q8_0 output, 4 heads of 16 over 2 kv heads, 2 layers. */
struct tiny_config tiny_mixed(void);
/* Types with blocks of 256 alone, 16 heads of 16 over 2 kv heads, 1 layer. */
struct tiny_config tiny_large_blocks(void);
/* Odd sizes in F32, F16 and BF16: no width is a multiple of 16. */
struct tiny_config tiny_odd(void);
/* Any sizes and any types that go with them. */
struct rnd;
struct tiny_config tiny_any(struct rnd *r);

void tiny_make(struct tiny_model *t, const struct tiny_config *c);
struct gpu_source tiny_source(struct tiny_model *t);
void tiny_free(struct tiny_model *t);

#endif
