/* test_attention_parts.c - attention whose spans are finished alone, in any pieces and any order,
 * gives the same bits as the rows at once, in every body. */
#include <stdlib.h>
#include <string.h>

#include "../support/attn_pool.h"
#include "../support/support.h"

enum { SPANS_MAX = 6 };

/* Cuts the spans 0 .. n - 1 into pieces at random and finishes these in random order. */
static void finish_pieces(const struct attn_pool *p, const struct attn_kernels *kernels,
                          const struct attn_rows *r, uint32_t n, float *parts)
{
    uint32_t from[SPANS_MAX], to[SPANS_MAX], pieces = 0;
    for (uint32_t at = 0; at < n; pieces++) {
        from[pieces] = at;
        at += 1 + attn_random(n - at);
        to[pieces] = at;
    }
    while (pieces) {
        uint32_t i = attn_random(pieces--);
        memset(p->scratch, 0xff, attn_scratch_bytes(&p->shape));
        kernels->spans(&p->shape, r, from[i], to[i], parts, p->scratch);
        from[i] = from[pieces];
        to[i] = to[pieces];
    }
}

static void attend_in_parts(const struct attn_pool *p, const struct attn_kernels *kernels,
                            uint32_t pos, uint32_t n, float *out)
{
    uint32_t spans = attn_spans(pos + n - 1);
    size_t bytes = spans * n * attn_part_floats(&p->shape) * sizeof(float);
    assert_true(spans <= SPANS_MAX && bytes % 64 == 0);
    for (uint32_t h = 0; h < p->shape.kv_heads; h++) {
        struct attn_rows r = attn_pool_rows(p, pos, n, h, out);
        float *parts = attn_allocate(bytes);
        memset(parts, 0xff, bytes);
        finish_pieces(p, kernels, &r, spans, parts);
        kernels->merge(&p->shape, &r, parts);
        free(parts);
    }
}

static void check_kernels(struct attn_pool *p, const struct attn_kernels *kernels, uint32_t pos,
                          uint32_t n, const float *plain)
{
    float *got = attn_allocate(n * p->q_row * sizeof *got);
    for (int round = 0; round < 3; round++) {
        memset(got, 0xff, n * p->q_row * sizeof *got);
        attend_in_parts(p, kernels, pos, n, got);
        attn_same(plain, got, n * p->q_row);
    }
    free(got);
}

static void check_rows(struct attn_pool *p, uint32_t pos, uint32_t n)
{
    float *plain = attn_allocate(n * p->q_row * sizeof *plain);
    attn_pool_attend(p, &attn_plain, pos, n, plain);
    check_kernels(p, &attn_plain, pos, n, plain);
    for (size_t k = 0; attn_fast(k); k++)
        check_kernels(p, attn_fast(k), pos, n, plain);
    free(plain);
}

/* Also rows of which some see a span more than others, and more pairs than go through the keys
 * together. */
static void parts_are_the_whole(void **state)
{
    (void)state;
    static const struct {
        uint32_t heads, kv_heads, head_dim;
    } shapes[] = {{9, 3, 64}, {4, 1, 256}, {8, 2, 80}, {3, 3, 24}, {32, 1, 16}};
    static const uint32_t at[][2] = {{0, 1},   {255, 1}, {256, 1}, {511, 2}, {250, 8},
                                     {760, 5}, {767, 3}, {900, 1}, {1020, 8}};
    for (int i = 0; i < 5 * GPU_KV_TYPES; i++) {
        struct attn_pool p;
        attn_pool_make(
            &p,
            attn_shape_of(shapes[i / GPU_KV_TYPES].heads, shapes[i / GPU_KV_TYPES].kv_heads,
                          shapes[i / GPU_KV_TYPES].head_dim, (enum gpu_kv_type)(i % GPU_KV_TYPES)),
            1030);
        for (size_t j = 0; j < sizeof at / sizeof *at; j++)
            check_rows(&p, at[j][0], at[j][1]);
        attn_pool_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
