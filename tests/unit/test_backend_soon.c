/* The CPU backend says when a step is nearly over (gpu.h, soon): from the caller's thread, counting
 * down to the last output that it samples there, whatever the number of threads. */
#include "../support/gpu_rig.h"
#include "../support/support.h"
#include "../support/tiny_model.h"

#include <pthread.h>

enum { ROWS = 75, BLOCKS = 8 };

struct calls {
    pthread_t thread;
    uint32_t n, first, last;
};

static void soon(void *context, uint32_t left)
{
    struct calls *c = context;
    assert_true(pthread_equal(c->thread, pthread_self()));
    assert_true(left > 0);
    if (c->n)
        assert_int_equal(left, c->last - 1);
    else
        c->first = left;
    c->last = left;
    c->n++;
}

/* One step of ROWS rows whose last n_outputs have an output. */
static struct calls step_of(struct tiny_model *model, uint32_t threads, uint32_t n_outputs)
{
    static const uint32_t table[BLOCKS] = {0, 1, 2, 3, 4};
    static int32_t ids[ROWS];
    struct gpu_output outputs[ROWS];
    struct gpu_result results[ROWS];
    struct calls calls = {.thread = pthread_self()};
    struct gpu_source source = tiny_source(model);
    struct gpu_rig r;
    const struct gpu_config config = {.threads = threads,
                                      .max_rows = ROWS,
                                      .max_seqs = 1,
                                      .max_outputs = ROWS,
                                      .max_len = BLOCKS * GPU_KV_BLOCK};
    gpu_rig_open(&r, &config, &model->net, &source, BLOCKS);
    for (uint32_t i = 0; i < n_outputs; i++)
        outputs[i] = (struct gpu_output){.row = ROWS - n_outputs + i, .target = -1};
    struct gpu_seq seq = {.blocks = table, .n_rows = ROWS};
    gpu_rig_step(&r, &(struct gpu_step){.n_rows = ROWS,
                                        .n_seqs = 1,
                                        .n_outputs = n_outputs,
                                        .tokens = ids,
                                        .seqs = &seq,
                                        .outputs = outputs,
                                        .results = results,
                                        .soon = soon,
                                        .soon_context = &calls});
    gpu_rig_close(&r);
    return calls;
}

static void counts_down_to_the_last_output(void **state)
{
    (void)state;
    static const uint32_t outputs[] = {1, 2, 5, 31, 64, ROWS};
    struct tiny_model model;
    struct tiny_config config = tiny_mixed();
    tiny_make(&model, &config);
    for (uint32_t threads = 1; threads <= 3; threads++)
        for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
            struct calls c = step_of(&model, threads, outputs[i]);
            assert_true(c.n > 0 && c.n == c.first && c.last == 1);
            assert_true(c.n <= (outputs[i] + threads - 1) / threads);
        }
    assert_int_equal(step_of(&model, 2, 0).n, 0);
    tiny_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_down_to_the_last_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
