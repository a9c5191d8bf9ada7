/* The scheduling core refuses what it cannot serve: each fault with its code and the number that
 * would have fitted. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "../support/engine_rig.h"

static void refuse_one(struct llm_sqe q, int32_t code, uint32_t fits)
{
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, code, fits);
    assert_false(engine_has_work(r.engine));
    assert_int_equal(rig_figure(&r.board->refused), 1);
    assert_int_equal(rig_figure(&r.board->requests), 0);
    rig_close(&r);
}

/* A good entry of 10 + 10 tokens with that change. */
#define REFUSE(change, code, fits)                                                                 \
    do {                                                                                           \
        struct llm_sqe q = rig_generate(1, 10, 10);                                                \
        change;                                                                                    \
        refuse_one(q, (code), (fits));                                                             \
    } while (0)

static void what_this_version_does_not_know(void **state)
{
    (void)state;
    REFUSE(q.op = LLM_OP_LAST + 1, -EINVAL, 0);
    REFUSE(q.op = 255, -EINVAL, 0);
    REFUSE(q.flags = LLM_SQE_FLAGS + 1, -EINVAL, 0);
    REFUSE(q.flags = 0x83, -EINVAL, 0);
    REFUSE(q.flags = LLM_SQE_PIN, -EINVAL, 0);
    REFUSE(q.flags = LLM_SQE_INTERRUPT, -EINVAL, 0);
    REFUSE(q.priority = LLM_PRIORITY_LOW + 1, -EINVAL, 0);
    REFUSE(q.adapter = 1, -EINVAL, 0);
    REFUSE(q.options_off = 4, -EINVAL, 0);
    REFUSE(q.rope_len = 512, -EINVAL, 0);
    REFUSE(q.target = 1, -EINVAL, 0);
    REFUSE(q.reserved2 = 1, -EINVAL, 0);
    REFUSE(q = rig_cancel(1, 2); q.reserved2 = 1, -EINVAL, 0);
    REFUSE(q = rig_cancel(1, 2); q.deadline_us = 1, -EINVAL, 0);
    REFUSE(q = rig_score(1, 10); q.session = 1, -EINVAL, 0);
    REFUSE(q = rig_score(1, 10); q.options_len = 1, -EINVAL, 0);
    REFUSE(q = rig_score(1, 10); q.output_from = 1, -EINVAL, 0);
    REFUSE(q = rig_score(1, 10); q.first_choice = 1, -EINVAL, 0);
    REFUSE(q = rig_score(1, 10); q.max_itl_us = 1, -EINVAL, 0);
}

static void values_out_of_range(void **state)
{
    (void)state;
    REFUSE(q.temperature = -0.1f, LLM_EPARAM, 0);
    REFUSE(q.temperature = INFINITY, LLM_EPARAM, 0);
    REFUSE(q.top_p = 0.0f, LLM_EPARAM, 0);
    REFUSE(q.top_p = 1.0001f, LLM_EPARAM, 0);
    REFUSE(q.top_p = -1.0f, LLM_EPARAM, 0);
    REFUSE(q.min_p = -0.1f, LLM_EPARAM, 0);
    REFUSE(q.min_p = 1.1f, LLM_EPARAM, 0);
    REFUSE(q.repetition = 0.0f, LLM_EPARAM, 0);
    REFUSE(q.repetition = -1.0f, LLM_EPARAM, 0);
    REFUSE(q.presence = 2.1f, LLM_EPARAM, 0);
    REFUSE(q.presence = -2.1f, LLM_EPARAM, 0);
    REFUSE(q.frequency = 2.1f, LLM_EPARAM, 0);
    REFUSE(q.frequency = -2.1f, LLM_EPARAM, 0);
    REFUSE(q.options_len = LLM_OPTIONS_MAX + 1, LLM_EPARAM, 0);
    REFUSE(q.options_len = 1, LLM_EPARAM, 0);
    REFUSE(q.max_tokens = 0, LLM_EPARAM, 0);
    REFUSE(q.tokens_len = 0, LLM_EPARAM, 0);
    REFUSE(q.choices = 0, LLM_EPARAM, 0);
    REFUSE(q.choices = 65, LLM_EPARAM, 64);
    REFUSE(q.first_choice = 64, LLM_EPARAM, 0);
    REFUSE(q.choices = 2; q.first_choice = 63, LLM_EPARAM, 0);
    REFUSE(q.output_from = q.tokens_len + 1, LLM_EPARAM, 0);
    REFUSE(q.output_from = 1; q.max_tokens = q.tokens_len - 2, LLM_EPARAM, 0);
    REFUSE(q.session = 1ull << 63, LLM_ENOSESSION, 0);
    REFUSE(q.op = LLM_OP_SESSION_OPEN; q.session = 1, LLM_EQUOTA, 0);
    REFUSE(q = rig_score(1, 1), LLM_EPARAM, 0);
    REFUSE(q = rig_score(1, 0), LLM_EPARAM, 0);
    REFUSE(q = rig_score(1, 10); q.choices = 2, LLM_EPARAM, 1);
    REFUSE(q = rig_cancel(1, 2); q.choices = 2, LLM_EPARAM, 1);
}

/* Quiet, negative and signalling NaNs, and infinity. */
static void numbers_that_are_none(void **state)
{
    (void)state;
    static const size_t floats[] = {
        offsetof(struct llm_sqe, temperature), offsetof(struct llm_sqe, top_p),
        offsetof(struct llm_sqe, min_p),       offsetof(struct llm_sqe, repetition),
        offsetof(struct llm_sqe, presence),    offsetof(struct llm_sqe, frequency)};
    static const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff, 0x7f800000};
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t k = 0; k < 5; k++) {
            REFUSE(memcpy((char *)&q + floats[i], &nans[k], 4), LLM_EPARAM, 0);
            REFUSE(q = rig_score(1, 9); memcpy((char *)&q + floats[i], &nans[k], 4), LLM_EPARAM, 0);
        }
}

static void the_edges_of_the_ranges_are_accepted(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    for (uint32_t i = 1; i <= 8; i++) {
        struct llm_sqe q = rig_generate(i, 10, 10);
        q.temperature = i & 1 ? 1e30f : 0.0f;
        q.top_p = i & 2 ? 1e-30f : 1.0f;
        q.min_p = i & 4 ? 1.0f : -0.0f;
        q.top_k = UINT32_MAX;
        rig_send(&r, 0, &q);
        rig_run(&r);
        rig_expect_whole(&r, 0, &q);
    }
    rig_close(&r);
}

static void what_is_too_long(void **state)
{
    (void)state;
    REFUSE(q.max_tokens = 503, LLM_ETOOLONG, 502);
    REFUSE(q.max_tokens = UINT32_MAX, LLM_ETOOLONG, 502);
    REFUSE(q.tokens_len = 511; q.max_tokens = 2, LLM_ETOOLONG, 1);
    REFUSE(q.tokens_len = 512; q.max_tokens = 1, LLM_ETOOLONG, 511);
    REFUSE(q.tokens_len = 512; q.max_tokens = 100, LLM_ETOOLONG, 412);
    REFUSE(q.tokens_len = 512; q.max_tokens = 600, LLM_ETOOLONG, 511);
    REFUSE(q.tokens_len = UINT32_MAX; q.max_tokens = UINT32_MAX, LLM_ETOOLONG, 511);
    REFUSE(q.tokens_len = 600; q.choices = 3, LLM_ETOOLONG, 502);
    REFUSE(q = rig_score(1, 513), LLM_ETOOLONG, 512);
    REFUSE(q = rig_score(1, UINT32_MAX), LLM_ETOOLONG, 512);
}

/* The pool is smaller than the model's length: what could never run alone is refused at once. */
static void what_the_pool_can_never_hold(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 4;
    rig_open(&r);
    struct llm_sqe fits = rig_generate(1, 60, 5), over = rig_generate(2, 60, 6);
    struct llm_sqe prompt = rig_generate(3, 65, 5), score = rig_score(4, 65);
    struct llm_sqe long_score = rig_score(5, 66);
    rig_send(&r, 0, &fits);
    rig_send(&r, 0, &over);
    rig_send(&r, 0, &prompt);
    rig_send(&r, 0, &score);
    rig_send(&r, 0, &long_score);
    rig_run(&r);
    rig_expect_whole(&r, 0, &fits);
    rig_expect_refused(&r, 0, &over, LLM_ETOOLONG, 5);
    rig_expect_refused(&r, 0, &prompt, LLM_ETOOLONG, 60);
    rig_expect_whole(&r, 0, &score);
    rig_expect_refused(&r, 0, &long_score, LLM_ETOOLONG, 65);
    rig_close(&r);
}

static void tokens_outside_the_vocabulary(void **state)
{
    (void)state;
    static const int32_t bad[] = {-1, 97, INT32_MIN, INT32_MAX}, good[] = {0, 96};
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    for (uint32_t i = 0; i < 12; i++) {
        struct llm_sqe q = i % 2 ? rig_generate(i, 40, 4) : rig_score(i, 40);
        int32_t tokens[40];
        rig_prompt(&r, i, tokens, 40);
        tokens[i * 39 / 11] = bad[i % 4];
        assert_true(rig_submit(&r, 0, &q, tokens));
        rig_expect_refused(&r, 0, &q, LLM_ETOKEN, 0);
    }
    struct llm_sqe q = rig_generate(50, 2, 1);
    assert_true(rig_submit(&r, 0, &q, good));
    assert_true(engine_has_work(r.engine));
    rig_run(&r);
    assert_int_equal(rig_stream(&r, 0, 50, 0)->final.type, LLM_CQE_DONE);
    rig_close(&r);
}

static void every_choice_of_it(void **state)
{
    (void)state;
    REFUSE(q.choices = 7; q.top_p = NAN, LLM_EPARAM, 0);
    REFUSE(q.choices = 64; q.max_tokens = 0, LLM_EPARAM, 0);
}

static void more_choices_than_there_are_slots(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_requests = 6;
    rig_open(&r);
    struct llm_sqe q = rig_generate(1, 5, 5), fits = rig_generate(2, 5, 5);
    q.choices = 7;
    fits.choices = 6;
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_EPARAM, 6);
    rig_send(&r, 0, &fits);
    rig_run(&r);
    rig_expect_whole(&r, 0, &fits);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_this_version_does_not_know),
        cmocka_unit_test(values_out_of_range),
        cmocka_unit_test(numbers_that_are_none),
        cmocka_unit_test(the_edges_of_the_ranges_are_accepted),
        cmocka_unit_test(what_is_too_long),
        cmocka_unit_test(what_the_pool_can_never_hold),
        cmocka_unit_test(tokens_outside_the_vocabulary),
        cmocka_unit_test(every_choice_of_it),
        cmocka_unit_test(more_choices_than_there_are_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
