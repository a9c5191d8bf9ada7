/* test_backend_shapes.c - models of any shape and mix of types: AVX2, AVX-512 and any number of
 * threads give the bits of the plain reference with one thread, whatever the sizes are no multiple
 * of; also where weights are infinities or no numbers. The shapes follow from a seed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../support/gpu_rig.h"
#include "../support/tiny_model.h"
#include "../support/support.h"

enum { LEN_MAX = 90, TABLE = (LEN_MAX + GPU_KV_BLOCK - 1) / GPU_KV_BLOCK, BLOCKS = 2 * TABLE };
_Static_assert(BLOCKS % 5 != 0, "run() walks the blocks in steps of 5");

/* A block of some tensor begins with a number that a damaged file may hold: a weight, or the scale
 * of a block. */
static void spoil(struct rnd *r, struct tiny_model *t)
{
    static const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00, 0x7d01, 0x7bff, 0x0001, 0x8000};
    uint32_t i = rnd_below(r, t->n_tensors);
    const struct gpu_type_info *info = gpu_type_info(t->tensors[i].type);
    uint32_t block = rnd_below(r, (uint32_t)(t->tensors[i].bytes / info->block_bytes));
    uint8_t *at = t->bytes[i] + (size_t)block * info->block_bytes;
    at += t->tensors[i].type == GPU_F32 ? 2 : t->tensors[i].type == GPU_Q6_K ? 208 : 0;
    memcpy(at, &halves[rnd_below(r, 7)], 2);
}

/* NaNs may differ in what they carry. */
static void same_logits(const float *want, const float *got, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&want[i], &got[i], sizeof *got) && !(isnan(want[i]) && isnan(got[i])))
            fail_msg("seed %u, number %zu: %a, the reference has %a", seed, i, (double)got[i],
                     (double)want[i]);
}

struct scene {
    struct rnd r;
    struct tiny_model model;
    uint32_t len;
    int32_t ids[LEN_MAX];
};

static void run(struct scene *s, const struct gpu_config *c, float *logits)
{
    struct gpu_source source = tiny_source(&s->model);
    struct gpu_rig rig;
    uint32_t table[TABLE], first = rnd_below(&s->r, BLOCKS);
    for (uint32_t i = 0; i < TABLE; i++) /* 5 shares no factor with BLOCKS: each block once */
        table[i] = (first + i * 5) % BLOCKS;
    gpu_rig_open(&rig, c, &s->model.net, &source, BLOCKS);
    gpu_rig_feed(&rig, table, 0, s->ids, s->len, c->threads == 1 ? 0 : 1 + rnd_below(&s->r, 40),
                 logits);
    gpu_rig_close(&rig);
}

static void check_model(uint32_t seed, bool spoilt)
{
    struct scene s = {.r = {seed}};
    struct tiny_config m = tiny_any(&s.r);
    s.len = 1 + rnd_below(&s.r, LEN_MAX);
    tiny_make(&s.model, &m);
    for (uint32_t i = 0; i < s.len; i++)
        s.ids[i] = (int32_t)rnd_below(&s.r, m.vocab);
    for (uint32_t n = spoilt ? 1 + rnd_below(&s.r, 3) : 0; n > 0; n--)
        spoil(&s.r, &s.model);
    struct gpu_config c = {.threads = 1,
                           .max_rows = s.len,
                           .max_seqs = 1,
                           .max_outputs = s.len,
                           .max_len = TABLE * GPU_KV_BLOCK,
                           .activations = (enum gpu_activations)rnd_below(&s.r, 3),
                           .kv_type = (enum gpu_kv_type)rnd_below(&s.r, GPU_KV_TYPES),
                           .plain = true};
    size_t n = (size_t)s.len * m.vocab;
    float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    assert_true(want && got);
    run(&s, &c, want);
    c.plain = false;
    for (int avx2 = 0; avx2 < 2; avx2++) {
        c.avx2 = avx2;
        c.threads = 2 + rnd_below(&s.r, 4);
        memset(got, 0x5a, n * sizeof *got);
        run(&s, &c, got);
        same_logits(want, got, n, seed);
    }
    free(want);
    free(got);
    tiny_free(&s.model);
}

static void any_shape(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= (test_exhaustive() ? 300 : 12); seed++)
        check_model(seed, false);
}

static void numbers_that_are_none(void **state)
{
    (void)state;
    for (uint32_t seed = 1001; seed <= (test_exhaustive() ? 1200 : 1008); seed++)
        check_model(seed, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_shape),
        cmocka_unit_test(numbers_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
