/* test_backend_rows.c - pure logits where each thread takes chunks of rows through a layer: the same
 * bits as a few rows at a time by columns; and the chunks are what forward.c says of them. */
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/backend.h"
#include "../support/gpu_rig.h"
#include "../support/support.h"
#include "../support/tiny_model.h"

enum { LEN = 300, TABLE = (LEN + GPU_KV_BLOCK - 1) / GPU_KV_BLOCK };

struct scene {
    struct tiny_model model;
    struct gpu_config config;
    int32_t ids[LEN];
    uint32_t blocks[TABLE];
    float *expected, *got; /* (LEN, vocab) */
};

static void open_rig(struct scene *s, struct gpu_rig *r, uint32_t threads, uint32_t max_rows)
{
    struct gpu_source source = tiny_source(&s->model);
    s->config.threads = threads;
    s->config.max_rows = s->config.max_outputs = max_rows;
    gpu_rig_open(r, &s->config, &s->model.net, &source, TABLE);
}

static void make_scene(struct scene *s, const struct tiny_config *model, enum gpu_activations act)
{
    enum { COLUMNS = CPU_ROWS_EACH - 1 };
    struct rnd rnd = {model->seed};
    struct gpu_rig r;
    memset(s, 0, sizeof *s);
    tiny_make(&s->model, model);
    s->config = (struct gpu_config){.max_seqs = 1, .max_len = LEN, .activations = act};
    for (uint32_t i = 0; i < LEN; i++)
        s->ids[i] = (int32_t)rnd_below(&rnd, model->vocab);
    for (uint32_t i = 0; i < TABLE; i++)
        s->blocks[i] = (i * 7 + 3) % TABLE;
    s->expected = calloc((size_t)LEN * model->vocab, sizeof *s->expected);
    s->got = calloc((size_t)LEN * model->vocab, sizeof *s->got);
    assert_non_null(s->expected);
    assert_non_null(s->got);
    open_rig(s, &r, 1, COLUMNS);
    gpu_rig_feed(&r, s->blocks, 0, s->ids, LEN, 0, s->expected);
    assert_int_equal(r.gpu->w.n_chunks, 0);
    gpu_rig_close(&r);
}

static void free_scene(struct scene *s)
{
    tiny_free(&s->model);
    free(s->expected);
    free(s->got);
}

/* Every row once, in whole groups, the largest chunk first; enough of them for all threads, and
 * where there are more, none takes long at the end. */
static void check_chunks(const struct gpu *g, uint32_t rows, uint32_t threads)
{
    const struct cpu_workspace *w = &g->w;
    uint32_t next = 0;
    for (uint32_t i = 0; i < w->n_chunks; i++) {
        uint32_t n = w->chunks[i].to - w->chunks[i].from;
        assert_int_equal(w->chunks[i].from, next);
        assert_true(n > 0 && n <= CPU_CHUNK && n <= w->chunks[0].to);
        assert_true(n % LINEAR_GROUP == 0 || i + 1 == w->n_chunks);
        next = w->chunks[i].to;
    }
    assert_int_equal(next, rows);
    assert_true(w->n_chunks <= cpu_chunks_most(&g->config));
    if (rows < threads * CPU_CHUNK)
        assert_true(w->n_chunks <= threads && w->chunks[0].to < rows / threads + 2 * LINEAR_GROUP);
    else
        assert_true(w->n_chunks >= threads + 1 || threads == 1);
}

/* Steps of up to max_rows rows. */
static void check_steps(struct scene *s, uint32_t threads, uint32_t max_rows)
{
    struct gpu_rig r;
    open_rig(s, &r, threads, max_rows);
    memset(s->got, 0xff, (size_t)LEN * r.vocab * sizeof *s->got);
    for (uint32_t at = 0, n; at < LEN; at += n) {
        n = LEN - at < max_rows ? LEN - at : max_rows;
        uint32_t crew = crew_size(&r.gpu->crew); /* less than all where others' work holds one up */
        gpu_rig_feed(&r, s->blocks, at, s->ids + at, n, 0, s->got + (size_t)at * r.vocab);
        if (r.gpu->w.n_chunks)
            check_chunks(r.gpu, n, crew);
        assert_int_equal(r.gpu->w.n_chunks > 0, n >= crew * crew * CPU_ROWS_EACH);
    }
    assert_memory_equal(s->got, s->expected, (size_t)LEN * r.vocab * sizeof *s->got);
    gpu_rig_close(&r);
}

static void rows_and_columns_give_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t max_rows[] = {300, 150, 131, 66, 18, 17};
    const struct tiny_config models[] = {tiny_mixed(), tiny_odd(), tiny_large_blocks()};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct scene s;
        make_scene(&s, &models[i], i == 1 ? GPU_ACT_F32 : GPU_ACT_AUTO);
        for (uint32_t threads = 1; threads <= 4; threads++)
            for (size_t m = 0; m < sizeof max_rows / sizeof *max_rows; m++)
                check_steps(&s, threads, max_rows[m]);
        free_scene(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_columns_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
