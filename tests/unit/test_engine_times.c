/* Deadlines, timeouts, idle sessions and the promised gap, under a clock that moves only with steps
 * and by the test's hand. */
#include "../support/engine_rig.h"

#include <string.h>

enum { KEY = 42 };

#define MS 1000000ull

static struct llm_sqe plain(uint64_t id, uint32_t n_prompt, uint32_t max_tokens)
{
    struct llm_sqe q = rig_generate(id, n_prompt, max_tokens);
    q.flags = LLM_SQE_IGNORE_EOS;
    return q;
}

/* Time passes; the engine looks. */
static void pass(struct rig *r, uint64_t ns)
{
    r->clock_ns += ns;
    engine_tick(r->engine, r->clock_ns);
    rig_audit(r);
}

/* Enough steps for the engine to know what one costs. */
static void learn(struct rig *r, uint64_t first_id)
{
    for (uint64_t id = first_id; id < first_id + 20; id++) {
        struct llm_sqe q = plain(id, 10 + (uint32_t)(id * 13 % 100), 6);
        rig_send(r, 7, &q);
        rig_run(r);
    }
}

static const struct llm_cqe *final_of(struct rig *r, uint32_t client, uint64_t id)
{
    const struct rig_stream *s = rig_stream(r, client, id, 0);
    assert_int_equal(s->finals, 1);
    return &s->final;
}

/* What cannot be in time is refused with the time that it would take, and taken with that. */
static void a_deadline_is_judged_at_the_door(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_seqs = 2;
    rig_open(&r);
    learn(&r, 1000);
    for (uint64_t id = 1; id <= 10; id++) {
        struct llm_sqe q = plain(id, 100, 10);
        rig_send(&r, 0, &q);
    }
    struct llm_sqe q = plain(20, 100, 3);
    q.deadline_us = 50;
    rig_send(&r, 0, &q);
    uint32_t estimate = final_of(&r, 0, 20)->position;
    rig_expect_refused(&r, 0, &q, LLM_EDEADLINE, estimate);
    assert_true(estimate > 50);
    assert_int_equal(rig_figure(&r.board->refused_for[LLM_REFUSED_DEADLINE]), 1);
    q.user_data = 21;
    q.deadline_us = estimate + 1;
    rig_send(&r, 0, &q);
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    const struct llm_result *t = &rig_stream(&r, 0, 21, 0)->result;
    assert_true(t->t_first - t->t_arrival <= (estimate + 1) * 1000ull);
    assert_int_equal(rig_figure(&r.board->deadline_misses), 0);
    rig_close(&r);
}

static void a_refused_turn_leaves_its_session(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_sessions = 2;
    r.config.max_num_batched_tokens = 16;
    rig_open(&r);
    learn(&r, 1000);
    struct llm_sqe q = rig_session_open(1, KEY, 100);
    rig_send(&r, 0, &q);
    rig_run(&r);
    q = rig_continue(2, KEY, 30, 200, 4);
    q.deadline_us = 1;
    uint64_t steps = r.gpu.steps;
    rig_send(&r, 0, &q);
    assert_int_equal(final_of(&r, 0, 2)->status, LLM_EDEADLINE);
    rig_audit(&r);
    q = rig_append(3, KEY, LLM_SESSION_ALL, 0);
    rig_send(&r, 0, &q);
    assert_int_equal(final_of(&r, 0, 3)->position, 100);
    q = rig_continue(4, KEY, LLM_SESSION_ALL, 0, 4); /* and can be met where little is to be done */
    q.deadline_us = 1000;
    q.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &q);
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    assert_int_equal(r.gpu.steps, steps + 4);
    rig_close(&r);
}

static void a_deadline_missed_in_the_queue(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_seqs = 1;
    rig_open(&r);
    struct llm_sqe first = plain(1, 10, 50), late = plain(2, 10, 5), running = plain(3, 10, 50);
    rig_send(&r, 0, &first);
    rig_step(&r);
    late.deadline_us = 5000;
    late.choices = 3;
    rig_send(&r, 0, &late);
    pass(&r, 4 * MS);
    assert_int_equal(rig_stream(&r, 0, 2, 0)->finals, 0);
    pass(&r, 4 * MS);
    for (uint32_t i = 0; i < 3; i++) {
        const struct rig_stream *s = rig_stream(&r, 0, 2, i);
        assert_int_equal(s->final.status, LLM_EDEADLINE);
        assert_int_equal(s->final.finish, LLM_FINISH_DEADLINE);
        assert_int_equal(s->n, 0);
    }
    assert_int_equal(rig_figure(&r.board->deadline_misses), 3);
    rig_run(&r);
    rig_expect_whole(&r, 0, &first);
    /* it has its first token: later does not matter */
    running.deadline_us = 5000;
    rig_send(&r, 0, &running);
    rig_step(&r);
    pass(&r, 100 * MS);
    rig_run(&r);
    rig_expect_whole(&r, 0, &running);
    rig_close(&r);
}

static struct rig *slow_rig;

static void slow_step(void *context, const struct gpu_step *step)
{
    (void)context, (void)step;
    slow_rig->clock_ns += 8 * MS;
}

/* The step itself takes too long: a late token is not delivered, and the error says how late. */
static void a_first_token_that_comes_late(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    slow_rig = &r;
    r.gpu.watch = slow_step;
    struct llm_sqe late = plain(1, 10, 5), free_of_it = plain(2, 10, 5);
    late.deadline_us = 5000;
    rig_send(&r, 0, &late);
    rig_send(&r, 0, &free_of_it);
    rig_step(&r);
    const struct rig_stream *s = rig_stream(&r, 0, 1, 0);
    assert_int_equal(s->final.status, LLM_EDEADLINE);
    assert_int_equal(s->n, 0);
    assert_in_range(s->final.position, 8000, 8100);
    assert_int_equal(rig_figure(&r.board->deadline_misses), 1);
    rig_run(&r);
    rig_expect_whole(&r, 0, &free_of_it);
    rig_close(&r);
}

/* It was in time; that its client does not read is its own affair. */
static void a_first_token_that_nobody_fetches(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = plain(1, 10, 5), endless = plain(2, 10, 50);
    q.deadline_us = endless.deadline_us = 5000;
    endless.timeout_ms = 20;
    r.room[0] = 0;
    rig_send(&r, 0, &q);
    rig_send(&r, 0, &endless);
    for (int i = 0; i < 6; i++)
        rig_step(&r);
    pass(&r, 15 * MS);
    assert_int_equal(rig_stream(&r, 0, 2, 0)->finals, 0);
    pass(&r, 15 * MS); /* of the one that runs; the other one has ended */
    assert_int_equal(final_of(&r, 0, 2)->finish, LLM_FINISH_TIMEOUT);
    r.room[0] = RIG_ROOM_ENDLESS;
    engine_deliver(r.engine, 0);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

static void queue_timeouts(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_seqs = 1;
    r.config.queue_timeout_ms = 50;
    rig_open(&r);
    struct llm_sqe first = plain(1, 10, 100), own = plain(2, 10, 5), engines = plain(3, 10, 5);
    struct llm_sqe labels = rig_choose(4, 20, 3), last = plain(5, 10, 5);
    own.queue_timeout_ms = labels.queue_timeout_ms = 10;
    last.queue_timeout_ms = 1000;
    rig_send(&r, 0, &first);
    rig_step(&r);
    rig_send(&r, 0, &own);
    rig_send(&r, 0, &engines);
    rig_send(&r, 0, &labels);
    rig_send(&r, 0, &last);
    pass(&r, 11 * MS);
    assert_int_equal(final_of(&r, 0, 2)->status, LLM_EQUEUETIME);
    assert_int_equal(final_of(&r, 0, 2)->finish, LLM_FINISH_TIMEOUT);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(rig_stream(&r, 0, 4, i)->final.status, LLM_EQUEUETIME);
    assert_int_equal(rig_stream(&r, 0, 3, 0)->finals, 0);
    pass(&r, 40 * MS);
    assert_int_equal(final_of(&r, 0, 3)->status, LLM_EQUEUETIME);
    assert_int_equal(rig_figure(&r.board->queue_timeouts), 5);
    rig_run(&r); /* what runs has left the queue */
    rig_expect_whole(&r, 0, &first);
    rig_expect_whole(&r, 0, &last);
    rig_close(&r);
}

static void total_timeouts_keep_the_tokens(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.timeout_ms = 100;
    rig_open(&r);
    struct llm_sqe own = plain(1, 10, 100), engines = plain(2, 10, 100), score = rig_score(3, 300);
    own.timeout_ms = 20;
    rig_send(&r, 0, &own);
    rig_send(&r, 0, &engines);
    for (int i = 0; i < 7; i++)
        rig_step(&r);
    rig_send(&r, 0, &score);
    pass(&r, 21 * MS);
    assert_int_equal(final_of(&r, 0, 1)->finish, LLM_FINISH_TIMEOUT);
    assert_int_equal(final_of(&r, 0, 1)->status, 0);
    assert_int_equal(final_of(&r, 0, 1)->position, 7);
    rig_expect_prefix(&r, 0, &own);
    rig_step(&r);
    pass(&r, 100 * MS);
    assert_int_equal(final_of(&r, 0, 2)->position, 8);
    rig_expect_prefix(&r, 0, &engines);
    assert_int_equal(final_of(&r, 0, 3)->finish, LLM_FINISH_TIMEOUT);
    rig_expect_prefix(&r, 0, &score);
    assert_int_equal(rig_figure(&r.board->timeouts), 3);
    assert_int_equal(rig_figure(&r.board->kv_blocks_free), r.config.n_blocks);
    rig_close(&r);
}

/* Steps look too, not only the tick. */
static void a_busy_engine_looks_at_the_clock(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    r.gpu.step_ns = 3 * MS;
    struct llm_sqe q = plain(1, 10, 100);
    q.timeout_ms = 30;
    rig_send(&r, 0, &q);
    rig_run(&r);
    assert_int_equal(final_of(&r, 0, 1)->finish, LLM_FINISH_TIMEOUT);
    assert_in_range(final_of(&r, 0, 1)->position, 9, 11);
    rig_close(&r);
}

/* However long it was waited for or spoken, and whatever ended it. */
static void the_rest_begins_behind_the_answer(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct rig r;
        rig_init(&r);
        r.config.max_sessions = 4;
        r.config.session_idle_ms = 100;
        rig_open(&r);
        struct llm_sqe open = rig_session_open(1, 1, 40), stop = rig_cancel(3, 2);
        struct llm_sqe turn = rig_continue(2, 1, LLM_SESSION_ALL, 0, 50);
        turn.flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, 0, &open);
        rig_run(&r);
        rig_send(&r, 0, &turn);
        rig_step(&r);
        r.clock_ns += 90 * MS; /* nobody looks meanwhile */
        if (how == 0)
            rig_run(&r);
        else if (how == 1)
            rig_send(&r, 0, &stop);
        else
            rig_drop(&r, 0);
        pass(&r, 90 * MS);
        assert_int_equal(rig_figure(&r.board->sessions_expired), 0);
        pass(&r, 20 * MS);
        assert_int_equal(rig_figure(&r.board->sessions_expired), 1);
        rig_session(&r, 0, 1)->open = false;
        rig_close(&r);
    }
}

static void idle_sessions_expire(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_sessions = 4;
    r.config.session_idle_ms = 100;
    r.config.timeout_ms = 0;
    rig_open(&r);
    struct llm_sqe q[3] = {rig_session_open(1, 1, 40), rig_session_open(2, 2, 40),
                           rig_session_open(3, 3, 40)};
    q[2].flags = LLM_SQE_PIN;
    for (int i = 0; i < 3; i++)
        rig_send(&r, 0, &q[i]);
    rig_run(&r);
    pass(&r, 60 * MS);
    struct llm_sqe turn = rig_continue(4, 2, LLM_SESSION_ALL, 0, 50), late;
    turn.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &turn);
    rig_step(&r);
    pass(&r, 60 * MS); /* 1: 120 ms idle; 2 generates; 3 is pinned */
    assert_int_equal(rig_figure(&r.board->sessions_expired), 1);
    rig_session(&r, 0, 1)->open = false;
    late = rig_append(5, 1, LLM_SESSION_ALL, 1);
    rig_send(&r, 0, &late);
    rig_expect_refused(&r, 0, &late, LLM_ENOSESSION, 0);
    pass(&r, 90 * MS); /* a long answer is no idle time */
    rig_run(&r);
    rig_expect_whole(&r, 0, &turn);
    pass(&r, 90 * MS);
    assert_int_equal(rig_figure(&r.board->sessions_expired), 1);
    pass(&r, 110 * MS);
    assert_int_equal(rig_figure(&r.board->sessions_expired), 2);
    rig_session(&r, 0, 2)->open = false;
    assert_int_equal(rig_figure(&r.board->sessions), 1);
    assert_int_equal(rig_figure(&r.board->sessions_idle), 1);
    rig_close(&r);
}

struct gaps {
    struct rig *r;
    uint64_t started_ns, longest_ns;
    uint32_t prefill_rows, steps;
};

/* One step, and how long it took. */
static void measure(struct gaps *g)
{
    uint64_t before_ns = g->r->clock_ns, before = rig_figure(&g->r->board->prefill_rows);
    rig_step(g->r);
    uint64_t ns = g->r->clock_ns - before_ns;
    if (ns > g->longest_ns)
        g->longest_ns = ns;
    g->prefill_rows += (uint32_t)(rig_figure(&g->r->board->prefill_rows) - before);
    g->steps++;
}

/* Streams run, a long prompt comes: how long are the steps until it is computed? */
static struct gaps beside_streams(struct rig *r, uint64_t first_id, uint32_t max_itl_us)
{
    struct gaps g = {.r = r};
    for (uint64_t id = first_id; id < first_id + 4; id++) {
        struct llm_sqe q = plain(id, 10, 300);
        q.max_itl_us = max_itl_us;
        rig_send(r, 0, &q);
    }
    for (int i = 0; i < 5; i++)
        rig_step(r);
    struct llm_sqe prompt = plain(first_id, 400, 1);
    rig_send(r, 1, &prompt);
    while (!rig_stream(r, 1, first_id, 0)->finals)
        measure(&g);
    assert_int_equal(g.prefill_rows, 400);
    for (uint64_t id = first_id; id < first_id + 4; id++) {
        struct llm_sqe q = rig_cancel(100 + id, id);
        rig_send(r, 0, &q);
    }
    return g;
}

static void steps_keep_the_promised_gap(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_batched_tokens = 300;
    rig_open(&r);
    learn(&r, 1000);
    struct gaps free_run = beside_streams(&r, 10, 0);
    assert_true(free_run.longest_ns > 200000); /* 300 rows of 1 us */
    struct gaps kept = beside_streams(&r, 20, 60);
    assert_true(kept.longest_ns <= 60000);
    assert_true(kept.steps <= 400 / 30); /* and the promise is used: 36 rows would fit */
    struct gaps hopeless =
        beside_streams(&r, 30, 5); /* a step takes more: the prompt goes on slowly */
    assert_true(hopeless.longest_ns <= 10000 + 20 * 1000);
    assert_true(hopeless.steps <= 400 / 16 * 6);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_is_judged_at_the_door),
        cmocka_unit_test(a_refused_turn_leaves_its_session),
        cmocka_unit_test(a_deadline_missed_in_the_queue),
        cmocka_unit_test(a_first_token_that_comes_late),
        cmocka_unit_test(a_first_token_that_nobody_fetches),
        cmocka_unit_test(queue_timeouts),
        cmocka_unit_test(total_timeouts_keep_the_tokens),
        cmocka_unit_test(a_busy_engine_looks_at_the_clock),
        cmocka_unit_test(idle_sessions_expire),
        cmocka_unit_test(the_rest_begins_behind_the_answer),
        cmocka_unit_test(steps_keep_the_promised_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
