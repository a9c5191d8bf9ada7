/* How long a step may take: the length that is stated for all, what prompts get in any case, and that
 * the streams of a crowd wait a step for another client's first token, but not for ever. On the
 * rig's device a step takes 10 us and 1 us for each row. */
#include "../support/engine_rig.h"

#include <string.h>

enum { STEP_US = 10 };

struct watched {
    uint32_t n_rows, n_seqs, most_rows;
};

static void watch(void *context, const struct gpu_step *step)
{
    struct watched *w = context;
    w->n_rows = step->n_rows;
    w->n_seqs = step->n_seqs;
    w->most_rows = step->n_rows > w->most_rows ? step->n_rows : w->most_rows;
}

static void open_watched(struct rig *r, struct watched *w)
{
    *w = (struct watched){0};
    r->config.n_blocks = 2048;
    r->config.max_num_batched_tokens = 512;
    r->config.max_model_len = 2048;
    rig_open(r);
    r->gpu.watch = watch;
    r->gpu.watch_context = w;
}

static struct llm_sqe plain(uint64_t id, uint32_t n_prompt, uint32_t max_tokens)
{
    struct llm_sqe q = rig_generate(id, n_prompt, max_tokens);
    q.flags = LLM_SQE_IGNORE_EOS;
    return q;
}

/* Steps of many shapes, so that the engine knows what a row costs. */
static void teach(struct rig *r)
{
    for (uint64_t id = 900; id < 930; id++) {
        struct llm_sqe q = plain(id, 3 + (uint32_t)(id * 37 % 150), 5);
        rig_send(r, 7, &q);
        if (id % 3)
            rig_step(r);
    }
    rig_run(r);
}

static void prompts_keep_steps_within_the_stated_length(void **state)
{
    (void)state;
    struct rig r;
    struct watched w;
    struct llm_sqe q[4];
    rig_init(&r);
    r.config.max_step_us = 200;
    open_watched(&r, &w);
    teach(&r);
    w.most_rows = 0;
    for (uint64_t i = 0; i < 4; i++) {
        q[i] = plain(i + 1, 700, 30);
        rig_send(&r, (uint32_t)i % 2, &q[i]);
    }
    while (!rig_stream(&r, 1, 4, 0)->n) {
        rig_step(&r);
        assert_true(w.n_rows <= 205 - STEP_US + 32); /* a prompt's last rows may come with it */
    }
    assert_true(w.most_rows >= 195 - STEP_US);
    rig_run(&r);
    for (uint32_t i = 0; i < 4; i++)
        rig_expect_whole(&r, i % 2, &q[i]);
    rig_close(&r);
}

/* A length that nothing fits into: four blocks go, or a whole prompt that has a little more. */
static void prompts_get_four_blocks_whatever_it_takes(void **state)
{
    (void)state;
    struct rig r;
    struct watched w;
    rig_init(&r);
    r.config.max_step_us = 12;
    open_watched(&r, &w);
    teach(&r);
    struct llm_sqe q = plain(1, 640, 2);
    rig_send(&r, 0, &q);
    for (int i = 0; i < 10; i++) {
        rig_step(&r);
        assert_int_equal(w.n_rows, 64);
    }
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

/* Many streams: prompts get as long as they. */
static void prompts_get_as_much_time_as_the_streams(void **state)
{
    (void)state;
    enum { N = 100 };
    struct rig r;
    struct watched w;
    rig_init(&r);
    r.config.max_step_us = 50;
    r.config.max_num_seqs = 200;
    r.config.max_requests = 300;
    open_watched(&r, &w);
    teach(&r);
    for (uint64_t id = 1; id <= N; id++) {
        struct llm_sqe q = plain(id, 2, 200);
        rig_send(&r, 0, &q);
    }
    while (!rig_stream(&r, 0, N, 0)->n)
        rig_step(&r);
    struct llm_sqe q = plain(500, 900, 2);
    rig_send(&r, 0, &q);
    rig_step(&r);
    assert_in_range(w.n_rows, 2 * (N + STEP_US) - STEP_US - 8, 2 * (N + STEP_US) - STEP_US + 8);
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

static void first_come_first_served_fills_its_steps(void **state)
{
    (void)state;
    struct rig r;
    struct watched w;
    rig_init(&r);
    r.config.policy = ENGINE_FIRST_COME;
    r.config.max_step_us = 50;
    open_watched(&r, &w);
    struct llm_sqe q = plain(1, 900, 2);
    rig_send(&r, 0, &q);
    rig_step(&r);
    assert_int_equal(w.n_rows, 512);
    rig_run(&r);
    rig_close(&r);
}

/* ---- another's first token ---- */

enum { CROWD = 40, VISITORS = 12, PROMPT = 16 };

/* CROWD streams of client 0, of whose prompts nothing is left. */
static void open_crowd(struct rig *r, struct watched *w, uint32_t max_itl_us)
{
    rig_init(r);
    r->config.max_num_seqs = CROWD + VISITORS;
    r->config.max_requests = 100;
    r->config.max_step_us = 100;
    open_watched(r, w);
    teach(r);
    for (uint64_t id = 1; id <= CROWD; id++) {
        struct llm_sqe q = plain(id, 4, 300);
        q.max_itl_us = max_itl_us;
        rig_send(r, 0, &q);
    }
    while (!rig_stream(r, 0, CROWD, 0)->n)
        rig_step(r);
}

static void close_crowd(struct rig *r, uint32_t max_itl_us)
{
    rig_run(r);
    for (uint64_t id = 1; id <= CROWD; id++) {
        struct llm_sqe q = plain(id, 4, 300);
        q.max_itl_us = max_itl_us;
        rig_expect_whole(r, 0, &q);
    }
    rig_close(r);
}

static void a_crowd_waits_a_step_for_anothers_first_token(void **state)
{
    (void)state;
    struct rig r;
    struct watched w;
    open_crowd(&r, &w, 0);
    struct llm_sqe q = plain(1000, PROMPT, 10);
    rig_send(&r, 1, &q);
    rig_step(&r);
    assert_int_equal(rig_stream(&r, 1, 1000, 0)->n, 1);
    assert_in_range(w.n_rows, PROMPT + CROWD / 4, (PROMPT + STEP_US) * 3 / 2 - STEP_US + 1);
    rig_audit(&r);
    rig_step(&r);
    assert_int_equal(w.n_rows, CROWD + 1); /* nobody waits twice */
    close_crowd(&r, 0);
}

static void streams_with_a_promise_do_not_wait(void **state)
{
    (void)state;
    enum { PROMISE_US = 10000 };
    struct rig r;
    struct watched w;
    open_crowd(&r, &w, PROMISE_US);
    struct llm_sqe q = plain(1000, PROMPT, 10);
    rig_send(&r, 1, &q);
    rig_step(&r);
    assert_int_equal(rig_stream(&r, 1, 1000, 0)->n, 1);
    assert_int_equal(w.n_rows, CROWD + PROMPT);
    close_crowd(&r, PROMISE_US);
}

/* A first token in every step: the streams take turns, none stands still for more than three. */
static void a_crowd_does_not_wait_for_ever(void **state)
{
    (void)state;
    struct rig r;
    struct watched w;
    uint32_t before[CROWD], still[CROWD] = {0};
    open_crowd(&r, &w, 0);
    for (uint32_t i = 0; i < CROWD; i++)
        before[i] = rig_stream(&r, 0, i + 1, 0)->n;
    for (uint64_t id = 1000; id < 1100; id++) {
        struct llm_sqe q = plain(id, 1, 1);
        rig_send(&r, 1 + (uint32_t)id % 3, &q);
        rig_step(&r);
        for (uint32_t i = 0; i < CROWD; i++) {
            uint32_t n = rig_stream(&r, 0, i + 1, 0)->n;
            still[i] = n == before[i] ? still[i] + 1 : 0;
            before[i] = n;
            assert_true(still[i] <= 3);
        }
    }
    close_crowd(&r, 0);
}

/* The crowd also has long prompts that run: the oldest of them goes first now and then, but not
 * before a newcomer. */
static void the_oldest_prompt_lets_newcomers_pass(void **state)
{
    (void)state;
    enum { LONG = 60, VISITS = 30, OLD = 5 };
    struct rig r;
    struct watched w;
    open_crowd(&r, &w, 0);
    for (uint64_t id = 500; id < 500 + OLD; id++) {
        struct llm_sqe old = plain(id, 1900, 1);
        rig_send(&r, 0, &old);
    }
    for (uint64_t id = 1000; id < 1000 + VISITS; id++) {
        struct llm_sqe q = plain(id, LONG, 1);
        rig_step(&r);
        rig_step(&r);
        assert_int_equal(rig_stream(&r, 0, 500 + OLD - 1, 0)->n, 0);
        rig_send(&r, 1, &q);
        rig_step(&r);
        assert_int_equal(rig_stream(&r, 1, id, 0)->finals, 1);
    }
    close_crowd(&r, 0);
}

/* Where a newcomer is there in every step, it has its turn all the same. */
static void newcomers_do_not_stop_the_oldest_prompt(void **state)
{
    (void)state;
    struct rig r;
    struct watched w;
    open_crowd(&r, &w, 0);
    struct llm_sqe old = plain(500, 200, 1);
    rig_send(&r, 0, &old);
    for (uint64_t id = 2000; !rig_stream(&r, 0, 500, 0)->n; id++) {
        struct llm_sqe q = plain(id, 60, 1);
        rig_send(&r, 1 + (uint32_t)id % 6, &q); /* nobody has had as much as the crowd */
        rig_step(&r);
        assert_true(id < 2100);
    }
    close_crowd(&r, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_keep_steps_within_the_stated_length),
        cmocka_unit_test(prompts_get_four_blocks_whatever_it_takes),
        cmocka_unit_test(prompts_get_as_much_time_as_the_streams),
        cmocka_unit_test(first_come_first_served_fills_its_steps),
        cmocka_unit_test(a_crowd_waits_a_step_for_anothers_first_token),
        cmocka_unit_test(streams_with_a_promise_do_not_wait),
        cmocka_unit_test(a_crowd_does_not_wait_for_ever),
        cmocka_unit_test(the_oldest_prompt_lets_newcomers_pass),
        cmocka_unit_test(newcomers_do_not_stop_the_oldest_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
