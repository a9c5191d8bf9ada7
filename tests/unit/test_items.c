/* test_items.c - how attention is shared out: every row, kv head and span in exactly one item, cuts
 * whose pieces and sums fit together, and parts of the whole that threads can take evenly. */
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/backend.h"
#include "../support/gpu_rig.h"
#include "../support/support.h"
#include "../support/tiny_model.h"

enum { MAX_ROWS = 96, MAX_SEQS = 12, MAX_LEN = 3000, SPANS = MAX_LEN / ATTN_SPAN + 1, HEADS = 2 };

struct scene {
    struct gpu_rig rig;
    struct tiny_model model;
    struct gpu_seq seqs[MAX_SEQS];
    struct gpu_step step;
    uint8_t seen[MAX_ROWS][HEADS][SPANS];
};

static void open_scene(struct scene *s, uint32_t threads)
{
    struct tiny_config c = tiny_mixed();
    struct gpu_config config = {.threads = threads,
                                .max_rows = MAX_ROWS,
                                .max_seqs = MAX_SEQS,
                                .max_outputs = 1,
                                .max_len = MAX_LEN};
    memset(s, 0, sizeof *s);
    tiny_make(&s->model, &c);
    assert_int_equal(c.kv_heads, HEADS);
    struct gpu_source source = tiny_source(&s->model);
    gpu_rig_open(&s->rig, &config, &s->model.net, &source, 1);
}

static void close_scene(struct scene *s)
{
    gpu_rig_close(&s->rig);
    tiny_free(&s->model);
}

static void add_seq(struct scene *s, uint32_t pos, uint32_t n_rows)
{
    s->seqs[s->step.n_seqs++] =
        (struct gpu_seq){.pos = pos, .first_row = s->step.n_rows, .n_rows = n_rows};
    s->step.n_rows += n_rows;
}

static void list(struct scene *s)
{
    s->step.seqs = s->seqs;
    s->rig.gpu->step = &s->step;
    cpu_list_items(s->rig.gpu);
    s->rig.gpu->step = NULL;
}

static void clear(struct scene *s)
{
    s->step = (struct gpu_step){0};
}

/* ---- what items are ---- */

static uint32_t spans_of(const struct scene *s, const struct cpu_attn_item *item)
{
    return attn_spans(s->seqs[item->seq].pos + item->first + item->n_rows - 1);
}

static void see_item(struct scene *s, const struct cpu_attn_item *item)
{
    const struct gpu_seq *q = &s->seqs[item->seq];
    uint32_t spans = spans_of(s, item);
    assert_true(item->seq < s->step.n_seqs && item->kv_head < HEADS);
    assert_true(item->n_rows > 0 && item->first + item->n_rows <= q->n_rows);
    assert_true(item->from < item->to && item->to <= spans);
    assert_true(item->cut || (item->from == 0 && item->to == spans));
    for (uint32_t r = 0; r < item->n_rows; r++)
        for (uint32_t i = item->from; i < item->to; i++)
            s->seen[q->first_row + item->first + r][item->kv_head][i]++;
}

/* A cut's pieces are of the same rows; their sums have floats of their own. */
static void check_cut(const struct scene *s, const struct cpu_attn_cut *cut)
{
    const struct gpu *g = s->rig.gpu;
    const struct cpu_attn_item *one = NULL;
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < g->w.items.n; i++) {
        const struct cpu_attn_item *item = &g->w.items.list[i];
        if (item->cut != cut)
            continue;
        one = one ? one : item;
        assert_true(item->seq == one->seq && item->first == one->first &&
                    item->n_rows == one->n_rows && item->kv_head == one->kv_head);
        pieces++;
    }
    if (!one)
        return;
    size_t floats = spans_of(s, one) * one->n_rows * attn_part_floats(&g->shape);
    assert_int_equal(pieces, cut->pieces);
    assert_int_equal(pieces, cut->left);
    assert_true(pieces > 1 && one->n_rows <= CPU_CUT_ROWS);
    assert_true(cut->parts >= g->w.items.parts &&
                cut->parts + floats <= g->w.items.parts + g->w.items.parts_room);
    for (uint32_t i = 0; i < g->w.items.n; i++) {
        const struct cpu_attn_cut *other = g->w.items.list[i].cut;
        assert_true(!other || other == cut || other->parts >= cut->parts + floats ||
                    other->parts < cut->parts);
    }
}

static void check_items(struct scene *s)
{
    const struct gpu *g = s->rig.gpu;
    memset(s->seen, 0, sizeof s->seen);
    assert_true(g->w.items.n <= g->w.items.room);
    for (uint32_t i = 0; i < g->w.items.n; i++)
        see_item(s, &g->w.items.list[i]);
    for (uint32_t i = 0; i < s->step.n_seqs; i++)
        for (uint32_t r = 0; r < s->seqs[i].n_rows; r++)
            for (uint32_t h = 0; h < HEADS; h++)
                for (uint32_t span = 0; span < attn_spans(s->seqs[i].pos + r); span++)
                    assert_int_equal(s->seen[s->seqs[i].first_row + r][h][span], 1);
    for (size_t i = 0; i < g->w.items.cuts_room; i++)
        check_cut(s, &g->w.items.cuts[i]);
}

static void random_step(struct scene *s, struct rnd *rnd)
{
    uint32_t n = 1 + rnd_below(rnd, MAX_SEQS);
    clear(s);
    for (uint32_t i = 0; i < n && s->step.n_rows < MAX_ROWS; i++) {
        uint32_t left = MAX_ROWS - s->step.n_rows;
        uint32_t rows = rnd_below(rnd, 3) ? 1 : 1 + rnd_below(rnd, rnd_below(rnd, 2) ? 12 : 96);
        uint32_t longest = rnd_below(rnd, 2) ? MAX_LEN : 300;
        rows = rows < left ? rows : left;
        add_seq(s, rnd_below(rnd, longest - rows + 1), rows);
    }
}

static void everything_once(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 2, 3, 5, 16};
    struct rnd rnd = {7};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct scene *s = malloc(sizeof *s);
        assert_non_null(s);
        open_scene(s, threads[t]);
        for (int round = 0; round < 400; round++) {
            random_step(s, &rnd);
            list(s);
            check_items(s);
        }
        close_scene(s);
        free(s);
    }
}

/* ---- whether threads can share them evenly ---- */

/* Row spans that the busiest of the threads computes, each taking the next item when it is free. */
static uint64_t busiest(const struct scene *s, uint32_t threads, uint64_t *all)
{
    uint64_t busy[16] = {0}, most = 0;
    *all = 0;
    for (uint32_t i = 0; i < s->rig.gpu->w.items.n; i++) {
        const struct cpu_attn_item *item = &s->rig.gpu->w.items.list[i];
        uint32_t next = 0;
        for (uint32_t t = 1; t < threads; t++)
            next = busy[t] < busy[next] ? t : next;
        uint64_t cost = (uint64_t)(item->to - item->from) * item->n_rows;
        busy[next] += cost;
        *all += cost;
        most = busy[next] > most ? busy[next] : most;
    }
    return most;
}

static void check_even(struct scene *s, uint32_t threads)
{
    uint64_t all, most, ideal;
    list(s);
    check_items(s);
    most = busiest(s, threads, &all);
    ideal = (all + threads - 1) / threads;
    assert_true(most <= ideal + ideal / 8 + 1);
    clear(s);
}

static void long_rows_are_shared_evenly(void **state)
{
    (void)state;
    static const uint32_t threads[] = {2, 3, 4};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct scene *s = malloc(sizeof *s);
        assert_non_null(s);
        open_scene(s, threads[t]);
        for (uint32_t pos = 2100; pos < MAX_LEN; pos += 100) {
            add_seq(s, pos, 1); /* alone */
            check_even(s, threads[t]);
            add_seq(s, pos, 1); /* beside short ones */
            for (uint32_t i = 1; i < 8; i++)
                add_seq(s, 30 * i, 1);
            check_even(s, threads[t]);
            add_seq(s, pos - 40, 40); /* rows are divided, too */
            check_even(s, threads[t]);
        }
        close_scene(s);
        free(s);
    }
}

/* One thread alone gains nothing from cuts. */
static void one_thread_cuts_nothing(void **state)
{
    (void)state;
    struct scene *s = malloc(sizeof *s);
    assert_non_null(s);
    open_scene(s, 1);
    add_seq(s, 2900, 1);
    list(s);
    check_items(s);
    assert_int_equal(s->rig.gpu->w.items.n, HEADS);
    close_scene(s);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_once),
        cmocka_unit_test(long_rows_are_shared_evenly),
        cmocka_unit_test(one_thread_cuts_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
