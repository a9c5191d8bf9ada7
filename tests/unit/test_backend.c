/* test_backend.c - pure logits of the CPU backend: a row's logits are the same bits however rows
 * are cut into steps, whatever else is in a step, wherever blocks lie, with any number of threads,
 * in plain C, AVX2 or AVX-512. On random models of all types. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/backend.h"
#include "../../gpu/cpu/sample.h"
#include "../support/gpu_rig.h"
#include "../support/no_syscalls.h"
#include "../support/tiny_model.h"
#include "../support/support.h"

enum {
    LEN = 75, /* of the sequence that is looked at: more than one chunk of rows, and of logits */
    OTHERS = 9,
    BLOCKS = 64,
    TABLE = 5, /* blocks of a sequence */
    VOCAB_MAX = 200
};

struct scene {
    struct tiny_model model;
    struct gpu_config config;
    int32_t ids[LEN];
    float *expected; /* (LEN, vocab): all at once, alone, one thread, blocks in order */
    float *got;
};

static void open_rig(struct scene *s, struct gpu_rig *r, const struct gpu_config *c)
{
    struct gpu_source source = tiny_source(&s->model);
    gpu_rig_open(r, c, &s->model.net, &source, BLOCKS);
}

static void make_scene(struct scene *s, const struct tiny_config *model,
                       enum gpu_activations activations, enum gpu_kv_type kv_type)
{
    struct rnd rnd = {model->seed + 99};
    tiny_make(&s->model, model);
    s->config = (struct gpu_config){.threads = 1,
                                    .max_rows = 128,
                                    .max_seqs = 16,
                                    .max_outputs = 128,
                                    .max_len = TABLE * GPU_KV_BLOCK,
                                    .activations = activations,
                                    .kv_type = kv_type};
    for (int i = 0; i < LEN; i++)
        s->ids[i] = (int32_t)rnd_below(&rnd, model->vocab);
    s->expected = calloc((size_t)LEN * model->vocab, sizeof(float));
    s->got = calloc((size_t)LEN * model->vocab, sizeof(float));
    assert_non_null(s->expected);
    assert_non_null(s->got);
    static const uint32_t in_order[TABLE] = {0, 1, 2, 3, 4};
    struct gpu_rig r;
    open_rig(s, &r, &s->config);
    gpu_rig_feed(&r, in_order, 0, s->ids, LEN, 0, s->expected);
    gpu_rig_close(&r);
    for (size_t i = 1; i < (size_t)LEN * model->vocab; i++) /* numbers that say something */
        assert_true(isfinite(s->expected[i]) && s->expected[i] != s->expected[i - 1]);
}

static void free_scene(struct scene *s)
{
    tiny_free(&s->model);
    free(s->expected);
    free(s->got);
}

static void assert_expected(const struct scene *s, const float *logits, uint32_t first, uint32_t n)
{
    uint32_t vocab = s->model.net.vocab;
    assert_memory_equal(logits, s->expected + (size_t)first * vocab, n * vocab * sizeof *logits);
}

/* Every model and mode that the scenarios below run on. */
static void for_each_scene(void (*check)(struct scene *s))
{
    const struct tiny_config mixed = tiny_mixed(), odd = tiny_odd(), large = tiny_large_blocks();
    const struct {
        const struct tiny_config *model;
        enum gpu_activations activations;
        enum gpu_kv_type kv_type;
    } scenes[] = {
        {&mixed, GPU_ACT_AUTO, GPU_KV_F16},  {&mixed, GPU_ACT_F32, GPU_KV_F32},
        {&mixed, GPU_ACT_AUTO, GPU_KV_INT8}, {&odd, GPU_ACT_AUTO, GPU_KV_F16},
        {&odd, GPU_ACT_F32, GPU_KV_F32},     {&odd, GPU_ACT_AUTO, GPU_KV_INT8},
        {&large, GPU_ACT_AUTO, GPU_KV_F16},
    };
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        struct scene s;
        make_scene(&s, scenes[i].model, scenes[i].activations, scenes[i].kv_type);
        check(&s);
        free_scene(&s);
    }
}

/* ---- cuts, threads, places ---- */

static void check_cuts(struct scene *s)
{
    static const uint32_t chunks[] = {1, 3, 7, 16, 0};
    static const uint32_t table[TABLE] = {17, 3, 60, 5, 0};
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct gpu_config c = s->config;
        struct gpu_rig r;
        c.threads = threads;
        open_rig(s, &r, &c);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            memset(s->got, 0xff, (size_t)LEN * r.vocab * sizeof *s->got);
            gpu_rig_feed(&r, table, 0, s->ids, LEN, chunks[i], s->got);
            assert_expected(s, s->got, 0, LEN);
        }
        gpu_rig_close(&r);
    }
}

static void chunks_threads_and_places_do_not_matter(void **state)
{
    (void)state;
    for_each_scene(check_cuts);
}

/* What the CPU has is what the expected ones were computed with. */
static void check_kernels(struct scene *s)
{
    static const uint32_t table[TABLE] = {1, 2, 3, 4, 5};
    for (int plain = 0; plain < 2; plain++) {
        struct gpu_config c = s->config;
        struct gpu_rig r;
        c.plain = plain;
        c.avx2 = !plain;
        c.threads = 2;
        open_rig(s, &r, &c);
        const char *numerics = r.ops->numerics(r.gpu), *kernels = r.ops->kernels(r.gpu);
        if (plain)
            assert_non_null(strstr(numerics, "plain"));
        assert_string_equal(kernels, strstr(numerics, "plain") ? "cpu-plain" : "cpu-avx2");
        gpu_rig_feed(&r, table, 0, s->ids, LEN, 20, s->got);
        assert_expected(s, s->got, 0, LEN);
        gpu_rig_close(&r);
    }
}

static void plain_c_and_avx2_give_the_same_bits(void **state)
{
    (void)state;
    for_each_scene(check_kernels);
}

/* ---- crews ---- */

/* The same step by other threads each time, as if others' work came and went. */
static void check_crews(struct scene *s)
{
    enum { THREADS = 4 };
    static const uint32_t table[TABLE] = {9, 8, 7, 6, 5};
    struct rnd rnd = {s->model.net.vocab};
    struct gpu_config c = s->config;
    struct gpu_rig r;
    c.threads = THREADS;
    open_rig(s, &r, &c);
    for (uint32_t at = 0, n; at < LEN; at += n) {
        struct crew *crew = &r.gpu->crew;
        n = 1 + rnd_below(&rnd, 9);
        n = n < LEN - at ? n : LEN - at;
        crew->size = 1;
        for (unsigned i = 1; i < THREADS; i++)
            crew->size += crew->in[i] = rnd_below(&rnd, 2);
        gpu_rig_feed(&r, table, at, s->ids + at, n, 0, s->got + (size_t)at * r.vocab);
    }
    assert_expected(s, s->got, 0, LEN);
    gpu_rig_close(&r);
}

static void who_computes_does_not_matter(void **state)
{
    (void)state;
    for_each_scene(check_crews);
}

/* ---- company ---- */

struct crowd {
    struct gpu_seq seqs[OTHERS + 1];
    uint32_t blocks[OTHERS + 1][TABLE];
    uint32_t pos[OTHERS + 1], place; /* our sequence is seqs[place] */
    int32_t tokens[128];
    struct gpu_output outputs[128];
    struct gpu_result results[128];
    struct rnd rnd;
};

static uint32_t add_rows(struct crowd *c, const struct scene *s, uint32_t i, uint32_t row)
{
    bool ours = i == c->place;
    uint32_t left = LEN - c->pos[i], n = rnd_below(&c->rnd, 3) ? 1 : 1 + rnd_below(&c->rnd, 11);
    n = n < left ? n : left;
    c->seqs[i] =
        (struct gpu_seq){.blocks = c->blocks[i], .pos = c->pos[i], .first_row = row, .n_rows = n};
    for (uint32_t k = 0; k < n; k++)
        c->tokens[row + k] =
            ours ? s->ids[c->pos[i] + k] : (int32_t)rnd_below(&c->rnd, s->model.net.vocab);
    return n;
}

/* One step with rows of every sequence; logits of all of our rows, results of some of the others'.
 */
static void crowd_step(struct crowd *c, struct scene *s, struct gpu_rig *r)
{
    uint32_t rows = 0, outputs = 0, ours = c->pos[c->place];
    for (uint32_t i = 0; i <= OTHERS; i++) {
        uint32_t n = add_rows(c, s, i, rows);
        for (uint32_t k = 0; k < n; k++)
            if (i == c->place || rnd_below(&c->rnd, 4) == 0)
                c->outputs[outputs++] = (struct gpu_output){
                    .row = rows + k,
                    .target = -1,
                    .logits = i == c->place ? s->got + (ours + k) * (size_t)r->vocab : NULL};
        rows += n;
        c->pos[i] =
            c->pos[i] + n < LEN || i == c->place ? c->pos[i] + n : 0; /* others start again */
    }
    struct gpu_step step = {.n_rows = rows,
                            .n_seqs = OTHERS + 1,
                            .n_outputs = outputs,
                            .tokens = c->tokens,
                            .seqs = c->seqs,
                            .outputs = c->outputs,
                            .results = c->results};
    gpu_rig_step(r, &step);
}

static void check_company(struct scene *s)
{
    struct gpu_config config = s->config;
    struct gpu_rig r;
    config.threads = 2;
    open_rig(s, &r, &config);
    for (uint32_t round = 0; round < 4; round++) {
        struct crowd c = {.place = round * 3, .rnd = {round + 5}};
        for (uint32_t i = 0; i <= OTHERS; i++)
            for (uint32_t b = 0; b < TABLE; b++)
                c.blocks[i][b] = (b * (OTHERS + 1) + i + 7 * round) % BLOCKS;
        memset(s->got, 0xff, (size_t)LEN * r.vocab * sizeof *s->got);
        while (c.pos[c.place] < LEN)
            crowd_step(&c, s, &r);
        assert_expected(s, s->got, 0, LEN);
    }
    gpu_rig_close(&r);
}

static void company_does_not_matter(void **state)
{
    (void)state;
    for_each_scene(check_company);
}

/* ---- blocks ---- */

static void check_copies(struct scene *s)
{
    static const uint32_t first[TABLE] = {4, 9, 30, 31, 32};
    static const uint32_t second[TABLE] = {4, 50, 51, 63, 0}; /* shares the full block 4 */
    struct gpu_rig r;
    open_rig(s, &r, &s->config);
    uint32_t half = 20, vocab = r.vocab;
    gpu_rig_feed(&r, first, 0, s->ids, half, 0, NULL);
    assert_int_equal(r.ops->copy_blocks(r.gpu, (uint32_t[]){50, 12}, (uint32_t[]){9, 9}, 2), 0);
    int32_t other[8] = {1, 2, 3, 4, 5, 6, 7, 8}; /* the first goes another way, over block 9 */
    gpu_rig_feed(&r, first, half, other, 8, 0, s->got);
    gpu_rig_feed(&r, second, half, s->ids + half, LEN - half, 0, s->got);
    assert_expected(s, s->got, half, LEN - half);
    /* what is left of a block's former owner is never read */
    gpu_rig_feed(&r, first, 0, s->ids, LEN, 9, s->got);
    assert_expected(s, s->got, 0, LEN);
    gpu_rig_feed(&r, first, half, s->ids + half, LEN - half, 0, s->got + half * (size_t)vocab);
    assert_expected(s, s->got, 0, LEN);
    gpu_rig_close(&r);
}

static void blocks_can_be_shared_and_copied(void **state)
{
    (void)state;
    for_each_scene(check_copies);
}

/* ---- outputs ---- */

static void check_outputs(struct scene *s)
{
    static const uint32_t table[TABLE] = {0, 1, 2, 3, 4};
    uint32_t vocab = s->model.net.vocab;
    float copies[4][VOCAB_MAX];
    struct gpu_output outputs[] = {
        {.row = 0, .target = 17},
        {.row = 7, .target = -1, .logits = copies[0]},
        {.row = 7, .target = 3, .logits = copies[1]},
        {.row = 7, .target = -1, .position = 9, .sampling = {.temperature = 1, .seed = 5}},
        {.row = 7, .target = -1, .position = 9, .sampling = {.temperature = 1, .seed = 6}},
        {.row = LEN - 1, .target = -1, .logits = copies[2]},
    };
    enum { N = sizeof outputs / sizeof *outputs };
    struct gpu_result results[N];
    struct gpu_seq seq = {.blocks = table, .n_rows = LEN};
    struct gpu_step step = {.n_rows = LEN,
                            .n_seqs = 1,
                            .n_outputs = N,
                            .tokens = s->ids,
                            .seqs = &seq,
                            .outputs = outputs,
                            .results = results};
    struct gpu_config c = s->config;
    struct gpu_rig r;
    c.threads = 3;
    open_rig(s, &r, &c);
    gpu_rig_step(&r, &step);
    assert_expected(s, copies[0], 7, 1);
    assert_expected(s, copies[1], 7, 1);
    assert_expected(s, copies[2], LEN - 1, 1);
    void *scratch = aligned_alloc(64, (sample_scratch_bytes(vocab) + 63) / 64 * 64);
    for (int i = 0; i < N; i++) {
        struct gpu_result want = sample_plain.row(s->expected + outputs[i].row * (size_t)vocab,
                                                  NULL, vocab, &outputs[i], scratch);
        assert_int_equal(results[i].token, want.token);
        assert_memory_equal(&results[i].logprob, &want.logprob, sizeof want.logprob);
    }
    free(scratch);
    gpu_rig_close(&r);
}

static void several_outputs_of_a_row(void **state)
{
    (void)state;
    for_each_scene(check_outputs);
}

/* ---- quiet ---- */

struct quiet {
    struct scene *scene;
    uint32_t threads;
};

static bool run_quietly(void *context)
{
    struct quiet *q = context;
    struct scene *s = q->scene;
    static const uint32_t table[TABLE] = {3, 2, 1, 0, 7};
    struct gpu_config c = s->config;
    struct gpu_rig r;
    c.threads = q->threads;
    open_rig(s, &r, &c);
    struct gpu_result results[LEN];
    struct gpu_output outputs[LEN];
    for (uint32_t i = 0; i < LEN; i++)
        outputs[i] =
            (struct gpu_output){.row = i, .target = -1, .logits = s->got + i * (size_t)r.vocab};
    struct gpu_seq seq = {.blocks = table, .n_rows = LEN};
    struct gpu_step step = {.n_rows = LEN,
                            .n_seqs = 1,
                            .n_outputs = LEN,
                            .tokens = s->ids,
                            .seqs = &seq,
                            .outputs = outputs,
                            .results = results};
    no_syscalls(q->threads > 1);
    for (int i = 0; i < 20; i++) {
        if (r.ops->submit(r.gpu, &step) || r.ops->wait(r.gpu))
            return false;
        r.ops->copy_blocks(r.gpu, (uint32_t[]){9}, (uint32_t[]){3}, 1);
        r.ops->rest(r.gpu);
    }
    return memcmp(s->got, s->expected, (size_t)LEN * r.vocab * sizeof *s->got) == 0;
}

static void check_quiet(struct scene *s)
{
    for (uint32_t threads = 1; threads <= 2; threads++)
        assert_true(without_syscalls(run_quietly, &(struct quiet){s, threads}));
}

static void steps_make_no_system_call(void **state)
{
    (void)state;
    if (test_sanitized() || !no_syscalls_works())
        skip();
    for_each_scene(check_quiet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_threads_and_places_do_not_matter),
        cmocka_unit_test(plain_c_and_avx2_give_the_same_bits),
        cmocka_unit_test(who_computes_does_not_matter),
        cmocka_unit_test(company_does_not_matter),
        cmocka_unit_test(blocks_can_be_shared_and_copied),
        cmocka_unit_test(several_outputs_of_a_row),
        cmocka_unit_test(steps_make_no_system_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
