/* The prefix cache as requests see it: what is computed, what is found, by whom, and for how long. */
#include "../support/engine_rig.h"

#include <string.h>

enum { SHARED = 2000, NEW = 16, BLOCK = GPU_KV_BLOCK };

static void open_big(struct rig *r)
{
    rig_init(r);
    r->config.max_model_len = 2200;
    r->config.max_num_batched_tokens = 512;
    r->config.n_blocks = 512;
    r->config.prefix_cache = true;
    rig_open(r);
}

static void open_small(struct rig *r, uint32_t n_blocks)
{
    rig_init(r);
    r->config.n_blocks = n_blocks;
    r->config.prefix_cache = true;
    rig_open(r);
}

static uint64_t rows(const struct rig *r)
{
    return rig_figure(&r->board->rows);
}

/* A prompt of n tokens, the first `shared` of them from the family. Runs it; returns the rows that
 * it cost up to and with its first token. */
static uint64_t run_prompt(struct rig *r, uint32_t client, struct llm_sqe q, uint64_t family,
                           uint32_t shared)
{
    int32_t tokens[RIG_TOKENS];
    uint64_t before = rows(r), cost = 0;
    rig_prompt(r, 500 + q.user_data, tokens, q.tokens_len);
    rig_prompt(r, family, tokens, shared);
    assert_true(rig_submit(r, client, &q, tokens));
    while (engine_has_work(r->engine)) {
        rig_step(r);
        rig_audit(r);
        if (!cost && rig_stream(r, client, q.user_data, 0)->n)
            cost = rows(r) - before;
    }
    rig_expect_whole(r, client, &q);
    return cost;
}

static uint32_t cached(struct rig *r, uint32_t client, uint64_t id)
{
    return rig_stream(r, client, id, 0)->result.cached_tokens;
}

static void only_what_is_new_is_computed(void **state)
{
    (void)state;
    struct rig r;
    open_big(&r);
    assert_int_equal(run_prompt(&r, 0, rig_generate(1, SHARED + NEW, 3), 7, SHARED), SHARED + NEW);
    assert_int_equal(cached(&r, 0, 1), 0);
    assert_true(run_prompt(&r, 0, rig_generate(2, SHARED + NEW, 3), 7, SHARED) <= NEW + BLOCK);
    assert_int_equal(cached(&r, 0, 2), SHARED / BLOCK * BLOCK);
    /* the very same: all but what brings the first token */
    assert_true(run_prompt(&r, 0, rig_generate(3, SHARED + NEW, 3), 7, SHARED + NEW) <=
                NEW + BLOCK);
    assert_true(run_prompt(&r, 0, rig_generate(4, SHARED + NEW, 3), 7, SHARED + NEW) <= BLOCK);
    assert_int_equal(rig_figure(&r.board->prefix_hits),
                     cached(&r, 0, 2) + cached(&r, 0, 3) + cached(&r, 0, 4));
    assert_int_equal(rig_figure(&r.board->prefix_queries), 4 * (SHARED + NEW));
    rig_close(&r);
}

static void a_history_that_branches_is_found_up_to_there(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 1024);
    run_prompt(&r, 0, rig_generate(1, 100, 2), 7, 100);
    for (uint32_t shared = 0; shared <= 100; shared++) {
        run_prompt(&r, 0, rig_generate(10 + shared, 100, 2), 7, shared);
        /* a random token may be the right one by chance; blocks of 16 are not */
        uint32_t whole = shared / BLOCK * BLOCK, most = (shared + 3) / BLOCK * BLOCK;
        assert_in_range(cached(&r, 0, 10 + shared), whole, most < 96 ? most : 96);
    }
    rig_close(&r);
}

static void the_answer_is_found_too(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 256);
    struct llm_sqe q = rig_generate(1, 30, 60);
    q.flags = LLM_SQE_IGNORE_EOS;
    run_prompt(&r, 0, q, 7, 30);
    int32_t tokens[RIG_TOKENS];
    const struct rig_stream *s = rig_stream(&r, 0, 1, 0);
    memcpy(tokens, s->known, 30 * sizeof *tokens);
    memcpy(tokens + 30, s->tokens, 60 * sizeof *tokens);
    q = rig_generate(2, 90, 5);
    assert_true(rig_submit(&r, 0, &q, tokens));
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    assert_int_equal(cached(&r, 0, 2), 80);
    rig_close(&r);
}

/* A stream's blocks are published in turns: each at most 16 steps after it was full. */
static void what_a_running_stream_said_is_found(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 256);
    for (uint32_t said = 60; said < 76; said++) {
        uint32_t id = 2 * said;
        int32_t tokens[RIG_TOKENS];
        struct llm_sqe q = rig_generate(id, 30, 200), next = rig_generate(id + 1, 91, 5);
        q.flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, 0, &q);
        const struct rig_stream *s = rig_stream(&r, 0, id, 0);
        while (s->n < said)
            rig_step(&r);
        memcpy(tokens, s->known, 30 * sizeof *tokens);
        memcpy(tokens + 30, s->tokens, 61 * sizeof *tokens);
        assert_true(rig_submit(&r, 1, &next, tokens));
        rig_run(&r);
        uint32_t whole = (30 + said - 1 - BLOCK) / BLOCK * BLOCK; /* when it was asked for */
        assert_true(cached(&r, 1, id + 1) >= (whole < 80 ? whole : 80));
        rig_expect_whole(&r, 0, &q);
        rig_expect_whole(&r, 1, &next);
    }
    rig_close(&r);
}

static void users_do_not_find_what_others_left(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 256);
    r.domain[2] = 1;
    assert_int_equal(run_prompt(&r, 0, rig_generate(1, 100, 2), 7, 100), 100);
    assert_int_equal(run_prompt(&r, 2, rig_generate(2, 100, 2), 7, 100), 100);
    assert_int_equal(cached(&r, 2, 2), 0);
    assert_int_equal(run_prompt(&r, 1, rig_generate(3, 100, 2), 7, 100), 4);
    assert_int_equal(cached(&r, 1, 3), 96);
    rig_close(&r);
}

static void who_wants_none_takes_and_leaves_none(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 256);
    struct llm_sqe q = rig_generate(1, 100, 2);
    q.flags = LLM_SQE_NO_CACHE;
    run_prompt(&r, 0, q, 7, 100);
    assert_int_equal(rig_figure(&r.board->kv_blocks_cached), 0);
    assert_int_equal(run_prompt(&r, 0, rig_generate(2, 100, 2), 7, 100), 100);
    q.user_data = 3;
    assert_int_equal(run_prompt(&r, 0, q, 7, 100), 100);
    assert_int_equal(cached(&r, 0, 3), 0);
    rig_close(&r);
}

static void without_the_cache_nothing_is_found(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    for (uint64_t id = 1; id < 4; id++)
        assert_int_equal(run_prompt(&r, 0, rig_generate(id, 100, 2), 7, 100), 100);
    assert_int_equal(rig_figure(&r.board->kv_blocks_cached), 0);
    assert_int_equal(rig_figure(&r.board->prefix_queries), 0);
    rig_close(&r);
}

static void a_score_computes_every_row(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 256);
    run_prompt(&r, 0, rig_generate(1, 100, 2), 7, 100);
    uint64_t before = rows(&r);
    run_prompt(&r, 0, rig_score(2, 100), 7, 100);
    assert_int_equal(rows(&r) - before, 99);
    assert_int_equal(cached(&r, 0, 2), 0);
    rig_close(&r);
}

/* Both prompts run at the same time: the second takes over what the first has computed so far. */
static void what_still_runs_is_found(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 256);
    int32_t tokens[RIG_TOKENS];
    rig_prompt(&r, 7, tokens, 300);
    struct llm_sqe a = rig_generate(1, 300, 5), b = rig_generate(2, 300, 5);
    assert_true(rig_submit(&r, 0, &a, tokens));
    rig_step(&r);
    rig_step(&r);
    assert_true(rig_submit(&r, 0, &b, tokens));
    rig_run(&r);
    rig_expect_whole(&r, 0, &a);
    rig_expect_whole(&r, 0, &b);
    assert_true(cached(&r, 0, 2) >= 128);
    rig_close(&r);
}

/* Shared blocks are there once: they do not keep others from being admitted. */
static void who_shares_a_prefix_runs_beside_it(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[RIG_TOKENS];
    rig_init(&r);
    r.config.max_model_len = 800;
    r.config.n_blocks = 70;
    r.config.prefix_cache = true;
    rig_open(&r);
    struct llm_sqe q[8];
    for (uint32_t i = 0; i < 8; i++) {
        q[i] = rig_generate(i + 1, 610, 30);
        q[i].flags = LLM_SQE_IGNORE_EOS;
        rig_prompt(&r, 100 + i, tokens, 610);
        rig_prompt(&r, 7, tokens, 600);
        assert_true(rig_submit(&r, 0, &q[i], tokens));
        for (uint32_t k = 0; !i && k < 10; k++)
            rig_step(&r);
    }
    rig_step(&r);
    rig_step(&r);
    rig_audit(&r);
    assert_int_equal(engine_running(r.engine), 8); /* 39 blocks, and 7 times 3 more */
    rig_run(&r);
    for (uint32_t i = 0; i < 8; i++)
        rig_expect_whole(&r, 0, &q[i]);
    assert_int_equal(rig_figure(&r.board->preemptions), 0);
    rig_close(&r);
}

static void the_least_recently_used_goes_first(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 30);
    for (uint64_t family = 1; family <= 3; family++) /* 7 blocks each, 6 of them findable */
        run_prompt(&r, 0, rig_generate(family, 100, 2), family, 100);
    assert_int_equal(rig_figure(&r.board->kv_blocks_cached), 18);
    run_prompt(&r, 0, rig_generate(11, 100, 2), 1, 100); /* used again */
    assert_int_equal(cached(&r, 0, 11), 96);
    run_prompt(&r, 0, rig_generate(12, 280, 2), 9,
               280); /* takes 18: the 12 free, then the oldest */
    assert_int_equal(rig_figure(&r.board->kv_blocks_free), 30);
    run_prompt(&r, 0, rig_generate(13, 100, 2), 1, 100);
    assert_int_equal(cached(&r, 0, 13), 96);
    run_prompt(&r, 0, rig_generate(14, 100, 2), 2, 100);
    assert_true(cached(&r, 0, 14) < 96);
    rig_close(&r);
}

/* Of one history the end goes before the beginning: what is left can still be found. */
static void beginnings_live_longest(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 30);
    run_prompt(&r, 0, rig_generate(1, 320, 2), 1, 320); /* 20 findable */
    run_prompt(&r, 0, rig_generate(2, 250, 2), 2, 250); /* 16 blocks: 10 free, 6 from the other */
    run_prompt(&r, 0, rig_generate(3, 320, 2), 1, 320);
    assert_int_equal(cached(&r, 0, 3), 14 * BLOCK);
    rig_close(&r);
}

static void a_failed_step_leaves_nothing(void **state)
{
    (void)state;
    struct rig r;
    open_small(&r, 256);
    struct llm_sqe q = rig_generate(1, 60, 2);
    r.gpu.fail_wait_at = 1;
    rig_send(&r, 0, &q);
    assert_true(engine_step(r.engine) < 0);
    assert_int_equal(rig_stream(&r, 0, 1, 0)->final.status, LLM_EENGINE);
    assert_int_equal(rig_figure(&r.board->kv_blocks_cached), 0);
    int32_t tokens[RIG_TOKENS];
    rig_prompt(&r, 1, tokens, 60);
    q.user_data = 2;
    assert_true(rig_submit(&r, 0, &q, tokens));
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    assert_int_equal(cached(&r, 0, 2), 0);
    rig_close(&r);
}

/* The choices of a prompt had blocks of their own in it. */
static void a_failed_step_with_forks_gives_all_back(void **state)
{
    (void)state;
    for (uint32_t n_prompt = 15; n_prompt <= 33; n_prompt++) {
        struct rig r;
        open_small(&r, 64);
        struct llm_sqe q = rig_generate(1, n_prompt, 5);
        q.choices = 5;
        r.gpu.fail_wait_at = 1;
        rig_send(&r, 0, &q);
        assert_true(engine_step(r.engine) < 0);
        rig_audit(&r);
        assert_false(engine_has_work(r.engine));
        assert_int_equal(rig_figure(&r.board->kv_blocks_free), 64);
        for (uint32_t i = 0; i < 5; i++)
            assert_int_equal(rig_stream(&r, 0, 1, i)->final.status, LLM_EENGINE);
        rig_close(&r);
    }
}

/* Preempted sequences find their own blocks again where nobody took them. */
static void a_preemption_costs_what_was_taken(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 16;
    r.config.prefix_cache = true;
    rig_open(&r);
    struct llm_sqe q[4];
    for (uint32_t i = 0; i < 4; i++) {
        q[i] = rig_generate(i + 1, 40, 60);
        q[i].flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, i, &q[i]);
    }
    while (engine_has_work(r.engine)) {
        rig_step(&r);
        rig_audit(&r);
    }
    uint32_t preemptions = 0;
    for (uint32_t i = 0; i < 4; i++) {
        rig_expect_whole(&r, i, &q[i]);
        preemptions += rig_stream(&r, i, q[i].user_data, 0)->result.preemptions;
    }
    assert_true(preemptions);
    assert_int_equal(rig_figure(&r.board->preemptions), preemptions);
    /* every row more than one run of each needs was counted as computed again */
    assert_int_equal(rows(&r), 4 * 99 + rig_figure(&r.board->recomputed_tokens));
    assert_true(rig_figure(&r.board->recomputed_tokens) > 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_new_is_computed),
        cmocka_unit_test(a_history_that_branches_is_found_up_to_there),
        cmocka_unit_test(the_answer_is_found_too),
        cmocka_unit_test(what_a_running_stream_said_is_found),
        cmocka_unit_test(users_do_not_find_what_others_left),
        cmocka_unit_test(who_wants_none_takes_and_leaves_none),
        cmocka_unit_test(without_the_cache_nothing_is_found),
        cmocka_unit_test(a_score_computes_every_row),
        cmocka_unit_test(what_still_runs_is_found),
        cmocka_unit_test(who_shares_a_prefix_runs_beside_it),
        cmocka_unit_test(the_least_recently_used_goes_first),
        cmocka_unit_test(beginnings_live_longest),
        cmocka_unit_test(a_failed_step_leaves_nothing),
        cmocka_unit_test(a_failed_step_with_forks_gives_all_back),
        cmocka_unit_test(a_preemption_costs_what_was_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
