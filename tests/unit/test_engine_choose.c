/* CHOOSE: log-probabilities of labels behind one prompt, which is computed once. */
#include "../support/engine_rig.h"

#include <errno.h>
#include <string.h>

enum { BLOCK = GPU_KV_BLOCK };

static void run_audited(struct rig *r)
{
    while (engine_has_work(r->engine)) {
        rig_step(r);
        rig_audit(r);
    }
}

static void run_whole(struct rig *r, struct llm_sqe q)
{
    rig_send(r, 0, &q);
    run_audited(r);
    rig_expect_whole(r, 0, &q);
}

static void labels_of_all_lengths(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 15, 16, 17, 40};
    for (uint32_t l = 0; l < 6; l++)
        for (uint32_t n_prompt = 1; n_prompt < 50; n_prompt += 3) {
            struct rig r;
            rig_init(&r);
            r.label_tokens = lengths[l];
            rig_open(&r);
            run_whole(&r, rig_choose(1, n_prompt, 1 + n_prompt % 5));
            rig_close(&r);
        }
}

static void the_prompt_is_computed_once(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.label_tokens = 5;
    r.config.max_num_seqs = 64;
    rig_open(&r);
    run_whole(&r, rig_choose(1, 300, 50));
    /* each label: its tokens and what of the prompt is no whole block; never the last token */
    assert_true(rig_figure(&r.board->rows) <= 300 + 50 * (5 + BLOCK));
    rig_close(&r);
}

static void as_many_labels_as_there_can_be(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    run_whole(&r, rig_choose(1, 100, LLM_CHOICES_MAX));
    rig_close(&r);
}

static void a_cached_prompt_costs_its_labels(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[RIG_TOKENS];
    rig_init(&r);
    r.label_tokens = 3;
    r.config.prefix_cache = true;
    rig_open(&r);
    rig_prompt(&r, 5, tokens, 200);
    struct llm_sqe q = rig_generate(1, 200, 2);
    assert_true(rig_submit(&r, 0, &q, tokens));
    rig_run(&r);
    uint64_t before = rig_figure(&r.board->rows);
    q = rig_choose(2, 200, 4);
    assert_true(rig_submit(&r, 0, &q, tokens));
    run_audited(&r);
    rig_expect_whole(&r, 0, &q);
    assert_true(rig_figure(&r.board->rows) - before <= 4 * (3 + BLOCK));
    assert_int_equal(rig_stream(&r, 0, 2, 0)->result.cached_tokens, 192);
    rig_close(&r);
}

static void few_blocks_few_places_small_steps(void **state)
{
    (void)state;
    for (uint32_t budget = 1; budget < 40; budget += 6)
        for (uint32_t places = 1; places < 5; places++) {
            struct rig r;
            rig_init(&r);
            r.config.n_blocks = 7;
            r.config.max_num_seqs = places;
            r.config.max_num_batched_tokens = budget;
            rig_open(&r);
            struct llm_sqe q = rig_choose(1, 70, 6), other = rig_generate(2, 30, 40);
            rig_send(&r, 0, &q);
            rig_send(&r, 1, &other);
            run_audited(&r);
            rig_expect_whole(&r, 0, &q);
            rig_expect_whole(&r, 1, &other);
            rig_close(&r);
        }
}

static void a_cancel_ends_all_labels(void **state)
{
    (void)state;
    for (uint32_t steps = 0; steps < 8; steps++) {
        struct rig r;
        rig_init(&r);
        r.config.max_num_batched_tokens = 20;
        rig_open(&r);
        struct llm_sqe q = rig_choose(1, 50, 4), cancel = rig_cancel(2, 1);
        rig_send(&r, 0, &q);
        for (uint32_t i = 0; i < steps && engine_has_work(r.engine); i++)
            rig_step(&r);
        rig_send(&r, 0, &cancel);
        rig_audit(&r);
        assert_false(engine_has_work(r.engine));
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(rig_stream(&r, 0, 1, i)->finals, 1);
        rig_expect_prefix(&r, 0, &q);
        rig_close(&r);
    }
}

/* With a map of the test's own. */
static void send_map(struct rig *r, struct llm_sqe *q, const void *map, uint32_t bytes)
{
    memcpy(engine_option_buffer(r->engine), map, bytes);
    q->options_len = bytes;
    rig_send(r, 0, q);
}

static void refusals(void **state)
{
    (void)state;
    /* {"labels": [<2 tokens>, <1 token>]} */
    static const uint8_t good[] = {0x81, 0xa6, 'l', 'a', 'b', 'e', 'l',  's', 0x92, 0xc4, 8, 1, 0,
                                   0,    0,    2,   0,   0,   0,   0xc4, 4,   3,    0,    0, 0};
    uint8_t foreign[sizeof good];
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = rig_choose(1, 20, 3);
    send_map(&r, &q, good, sizeof good);
    rig_expect_refused(&r, 0, &q, LLM_EPARAM, 2);
    q = rig_choose(2, 511, 2);
    send_map(&r, &q, good, sizeof good);
    rig_expect_refused(&r, 0, &q, LLM_ETOOLONG, 510);
    q = rig_choose(3, 20, 2);
    memcpy(foreign, good, sizeof good);
    foreign[21] = 97;
    send_map(&r, &q, foreign, sizeof foreign);
    rig_expect_refused(&r, 0, &q, LLM_ETOKEN, 0);
    q = rig_choose(4, 20, 2);
    send_map(&r, &q, good, sizeof good - 1);
    rig_expect_refused(&r, 0, &q, LLM_EPARAM, 0);
    q = rig_choose(5, 0, 2);
    send_map(&r, &q, good, sizeof good);
    rig_expect_refused(&r, 0, &q, LLM_EPARAM, 0);
    q = rig_choose(6, 20, 2);
    q.options_len = 0;
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_EPARAM, 0);
    q = rig_generate(7, 20, 2);
    send_map(&r, &q, good, sizeof good);
    rig_expect_refused(&r, 0, &q, LLM_EPARAM, 0);
    rig_audit(&r);
    assert_false(engine_has_work(r.engine));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_of_all_lengths),
        cmocka_unit_test(the_prompt_is_computed_once),
        cmocka_unit_test(as_many_labels_as_there_can_be),
        cmocka_unit_test(a_cached_prompt_costs_its_labels),
        cmocka_unit_test(few_blocks_few_places_small_steps),
        cmocka_unit_test(a_cancel_ends_all_labels),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
