/* attn_pool.c - see attn_pool.h. */
#include "attn_pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/math.h"
#include "support.h"

static uint64_t lcg_state;

static uint32_t lcg(void)
{
    lcg_state = lcg_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(lcg_state >> 33);
}

uint32_t attn_random(uint32_t n)
{
    return lcg() % n;
}

static float uniform(float range)
{
    return ((float)(lcg() >> 7) / 0x1p+24f * 2.0f - 1.0f) * range;
}

void *attn_allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

static float *random_rows(size_t n, float range)
{
    float *x = attn_allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = uniform(range);
    return x;
}

struct attn_shape attn_shape_of(uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                                enum gpu_kv_type type)
{
    return (struct attn_shape){heads, kv_heads, head_dim, 1.0f / sqrtf((float)head_dim), type};
}

void attn_pool_shuffle(struct attn_pool *p)
{
    uint32_t n = p->n_blocks;
    for (uint32_t i = 0; i < n; i++)
        p->blocks[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = lcg() % (i + 1), t = p->blocks[i];
        p->blocks[i] = p->blocks[j];
        p->blocks[j] = t;
    }
}

void attn_pool_fill(struct attn_pool *p, const struct attn_kernels *kernels)
{
    memset(p->bytes, 0xff, p->n_blocks * attn_block_bytes(&p->shape));
    for (uint32_t i = 0; i < p->length; i++)
        kernels->store(&p->shape, p->bytes, p->blocks, i, p->k + i * p->kv_row,
                       p->v + i * p->kv_row);
}

void attn_pool_make(struct attn_pool *p, struct attn_shape shape, uint32_t length)
{
    lcg_state = length * 1000u + shape.head_dim * 10u + shape.heads;
    p->shape = shape;
    p->length = length;
    p->n_blocks = 2 * ((length + 15) / 16);
    p->blocks = attn_allocate(p->n_blocks * sizeof *p->blocks);
    p->bytes = attn_allocate(p->n_blocks * attn_block_bytes(&shape));
    p->q_row = (size_t)shape.heads * shape.head_dim;
    p->kv_row = (size_t)shape.kv_heads * shape.head_dim;
    p->q = random_rows(length * p->q_row, 4.0f);
    p->k = random_rows(length * p->kv_row, 2.0f);
    p->v = random_rows(length * p->kv_row, 1.0f);
    p->scratch = attn_allocate(attn_scratch_bytes(&shape));
    attn_pool_shuffle(p);
    attn_pool_fill(p, &attn_plain);
}

void attn_pool_free(struct attn_pool *p)
{
    free(p->blocks);
    free(p->bytes);
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->scratch);
}

struct attn_rows attn_pool_rows(const struct attn_pool *p, uint32_t pos, uint32_t n,
                                uint32_t kv_head, float *out)
{
    size_t heads = p->q_row / p->shape.kv_heads;
    return (struct attn_rows){.layer_pool = p->bytes,
                              .blocks = p->blocks,
                              .pos = pos,
                              .n_rows = n,
                              .kv_head = kv_head,
                              .q = p->q + pos * p->q_row + kv_head * heads,
                              .out = out + kv_head * heads,
                              .q_stride = p->q_row,
                              .out_stride = p->q_row};
}

void attn_pool_attend(struct attn_pool *p, const struct attn_kernels *kernels, uint32_t pos,
                      uint32_t n, float *out)
{
    memset(p->scratch, 0xff, attn_scratch_bytes(&p->shape));
    for (uint32_t h = 0; h < p->shape.kv_heads; h++) {
        struct attn_rows r = attn_pool_rows(p, pos, n, h, out);
        kernels->rows(&p->shape, &r, p->scratch);
    }
}

const struct attn_kernels *attn_fast(size_t i)
{
    const struct attn_kernels *have[3] = {0};
    size_t n = 0;
    if (test_avx2() && attn_avx2.rows)
        have[n++] = &attn_avx2;
    if (test_avx512() && attn_avx512.rows)
        have[n++] = &attn_avx512;
    return have[i];
}

void attn_same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (math_bits(a[i]) != math_bits(b[i]))
            fail_msg("element %zu: %a and %a", i, (double)a[i], (double)b[i]);
}
