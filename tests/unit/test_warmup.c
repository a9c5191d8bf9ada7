/* test_warmup.c - the steps before the first client's: within every limit, however small, and
 * without a trace in what comes later.
 */
#include "../../appliance/warmup.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/fake_gpu.h"
#include "../support/support.h"

#include <errno.h>
#include <string.h>

struct seen {
    uint32_t steps, rows, longest, singles;
};

static void watch(void *context, const struct gpu_step *step)
{
    struct seen *s = context;
    s->steps++;
    s->rows += step->n_rows;
    s->longest = step->n_rows > s->longest ? step->n_rows : s->longest;
    s->singles += step->n_rows == 1;
    assert_int_equal(step->n_seqs, 1);
    assert_int_equal(step->n_outputs, 1);
}

/* The fake backend aborts where a step breaks a limit. */
static struct seen warm(struct warmup w)
{
    struct seen s = {0};
    struct fake_gpu g;
    fake_gpu_open(&g, w.vocab, w.n_blocks, w.max_rows, 1, 1);
    g.watch = watch, g.watch_context = &s;
    assert_int_equal(warmup_run(fake_gpu_ops(), fake_gpu_handle(&g), &w), 0);
    assert_true(s.rows <= w.max_len);
    fake_gpu_close(&g);
    return s;
}

static void a_prompt_and_single_tokens(void **state)
{
    (void)state;
    struct seen s = warm((struct warmup){512, 8192, 100, 49152});
    assert_in_range(s.longest, 5, 64); /* more rows than the ways of few */
    assert_true(s.singles >= 1);
}

static void keeps_to_small_limits(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 2, 7, 512}, lens[] = {2, 3, 16, 17}, vocabs[] = {1, 5, 1000};
    for (int r = 0; r < 4; r++)
        for (int l = 0; l < 4; l++)
            for (uint32_t blocks = 1; blocks <= 3; blocks++)
                for (int v = 0; v < 3; v++) {
                    struct seen s = warm((struct warmup){rows[r], lens[l], blocks, vocabs[v]});
                    assert_true(s.steps >= 1);
                }
}

static void a_failure_is_told(void **state)
{
    (void)state;
    struct warmup w = {512, 8192, 100, 1000};
    struct fake_gpu g;
    fake_gpu_open(&g, w.vocab, w.n_blocks, w.max_rows, 1, 1);
    g.fail_submit_at = 1;
    assert_true(warmup_run(fake_gpu_ops(), fake_gpu_handle(&g), &w) < 0);
    fake_gpu_close(&g);
    fake_gpu_open(&g, w.vocab, w.n_blocks, w.max_rows, 1, 1);
    g.fail_wait_at = 2;
    assert_true(warmup_run(fake_gpu_ops(), fake_gpu_handle(&g), &w) < 0);
    fake_gpu_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_and_single_tokens),
        cmocka_unit_test(keeps_to_small_limits),
        cmocka_unit_test(a_failure_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
