/* test_backend_spans.c - pure logits where threads share the spans of a few rows of long sequences:
 * the same bits as on one thread, which shares nothing, alone and in company. */
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/backend.h"
#include "../support/gpu_rig.h"
#include "../support/support.h"
#include "../support/tiny_model.h"

enum { LEN = 1300, TABLE = (LEN + GPU_KV_BLOCK - 1) / GPU_KV_BLOCK, OTHERS = 3, MAX_ROWS = 128 };

struct scene {
    struct tiny_model model;
    struct gpu_config config;
    int32_t ids[LEN];
    uint32_t blocks[1 + OTHERS][TABLE];
    float *expected; /* (LEN, vocab): on one thread, many rows at once */
};

static void open_rig(struct scene *s, struct gpu_rig *r, uint32_t threads)
{
    struct gpu_source source = tiny_source(&s->model);
    s->config.threads = threads;
    gpu_rig_open(r, &s->config, &s->model.net, &source, (1 + OTHERS) * TABLE);
}

static void make_scene(struct scene *s, enum gpu_kv_type kv_type)
{
    struct tiny_config c = tiny_mixed();
    struct rnd rnd = {3};
    struct gpu_rig r;
    memset(s, 0, sizeof *s);
    tiny_make(&s->model, &c);
    s->config = (struct gpu_config){.max_rows = MAX_ROWS,
                                    .max_seqs = 1 + OTHERS,
                                    .max_outputs = MAX_ROWS,
                                    .max_len = LEN,
                                    .kv_type = kv_type};
    for (int i = 0; i < LEN; i++)
        s->ids[i] = (int32_t)rnd_below(&rnd, c.vocab);
    for (uint32_t i = 0; i < (1 + OTHERS) * TABLE; i++)
        s->blocks[i % (1 + OTHERS)][i / (1 + OTHERS)] = i;
    s->expected = calloc((size_t)LEN * c.vocab, sizeof *s->expected);
    assert_non_null(s->expected);
    open_rig(s, &r, 1);
    gpu_rig_feed(&r, s->blocks[0], 0, s->ids, LEN, 0, s->expected);
    gpu_rig_close(&r);
}

static void free_scene(struct scene *s)
{
    tiny_free(&s->model);
    free(s->expected);
}

/* n rows of sequence 0 at pos, alone (others: 0) or after a row each of other sequences at `others`,
 * in one step. */
static void check_rows(struct scene *s, struct gpu_rig *r, uint32_t pos, uint32_t n,
                       uint32_t others)
{
    uint32_t vocab = r->vocab, rows = 0;
    struct gpu_seq seqs[1 + OTHERS];
    struct gpu_output outputs[16];
    struct gpu_result results[16];
    int32_t tokens[16 + OTHERS];
    float *got = calloc((size_t)n * vocab, sizeof *got);
    struct gpu_step step = {
        .tokens = tokens, .seqs = seqs, .outputs = outputs, .results = results, .n_outputs = n};
    for (uint32_t i = 1; i <= OTHERS && others; i++) {
        tokens[rows] = s->ids[others];
        seqs[step.n_seqs++] = (struct gpu_seq){
            .blocks = s->blocks[i], .pos = others, .first_row = rows++, .n_rows = 1};
    }
    seqs[step.n_seqs++] =
        (struct gpu_seq){.blocks = s->blocks[0], .pos = pos, .first_row = rows, .n_rows = n};
    for (uint32_t i = 0; i < n; i++, rows++) {
        tokens[rows] = s->ids[pos + i];
        outputs[i] =
            (struct gpu_output){.row = rows, .target = -1, .logits = got + (size_t)i * vocab};
    }
    step.n_rows = rows;
    gpu_rig_step(r, &step);
    assert_memory_equal(got, s->expected + (size_t)pos * vocab, (size_t)n * vocab * sizeof *got);
    free(got);
}

static uint32_t cut_items(const struct gpu_rig *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->gpu->w.items.n; i++)
        n += r->gpu->w.items.list[i].cut != NULL;
    return n;
}

static void check_threads(struct scene *s, uint32_t threads)
{
    static const uint32_t at[][2] = {{300, 1},  {511, 1},  {512, 1}, {1023, 1}, {1024, 1},
                                     {1299, 1}, {1020, 8}, {509, 5}, {1280, 16}};
    struct gpu_rig r;
    open_rig(s, &r, threads);
    for (uint32_t i = 0; i <= OTHERS; i++)
        gpu_rig_feed(&r, s->blocks[i], 0, s->ids, LEN, 0, NULL);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        check_rows(s, &r, at[i][0], at[i][1], 0);
        assert_true(cut_items(&r) > 1 || at[i][1] > CPU_CUT_ROWS);
        check_rows(s, &r, at[i][0], at[i][1], 40);
        check_rows(s, &r, at[i][0], at[i][1], 1200);
    }
    gpu_rig_close(&r);
}

static void shared_spans_change_nothing(void **state)
{
    (void)state;
    static struct scene s;
    for (int type = 0; type < GPU_KV_TYPES; type++) {
        make_scene(&s, (enum gpu_kv_type)type);
        for (uint32_t threads = 2; threads <= 4; threads++)
            check_threads(&s, threads);
        free_scene(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_spans_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
