/* Rings with little or no room, clients that never read, clients that vanish: nothing is lost or
 * doubled, nobody else waits, and the blocks come back. */
#include <stdlib.h>
#include <string.h>

#include "../support/engine_rig.h"

static struct llm_sqe endless(uint64_t id, uint32_t n_prompt, uint32_t max_tokens)
{
    struct llm_sqe q = rig_generate(id, n_prompt, max_tokens);
    q.flags = LLM_SQE_IGNORE_EOS;
    return q;
}

static void tokens_wait_for_room_and_lose_nothing(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = endless(1, 20, 50);
    r.room[0] = 0;
    rig_send(&r, 0, &q);
    rig_run(&r);
    const struct rig_stream *s = rig_stream(&r, 0, 1, 0);
    assert_int_equal(s->puts, 0); /* no room: not even the final, its tokens come first */
    assert_true(engine_holds(r.engine, 0));
    assert_false(engine_has_work(r.engine));
    assert_int_equal(rig_figure(&r.board->kv_blocks_free), r.config.n_blocks);
    for (uint32_t n = 4; n <= 48; n += 4) {
        r.room[0] = 1;
        engine_deliver(r.engine, 0);
        assert_int_equal(s->n, n); /* waiting tokens go out four by four */
        assert_int_equal(s->finals, 0);
    }
    r.room[0] = 1;
    engine_deliver(r.engine, 0);
    assert_int_equal(s->n, 50);
    assert_false(engine_holds(r.engine, 0));
    rig_expect_whole(&r, 0, &q);
    r.room[0] = 5;
    engine_deliver(r.engine, 0); /* nothing more */
    assert_int_equal(r.room[0], 5);
    rig_close(&r);
}

static void a_full_ring_delays_nobody_else(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe deaf = endless(1, 20, 60), reader = endless(1, 20, 60);
    r.room[0] = 0;
    rig_send(&r, 0, &deaf);
    rig_send(&r, 1, &reader);
    for (uint32_t i = 1; i <= 60; i++) {
        rig_step(&r);
        assert_int_equal(rig_stream(&r, 1, 1, 0)->n, i);
    }
    rig_expect_whole(&r, 1, &reader);
    rig_expect_prefix(&r, 0, &deaf);
    r.room[0] = RIG_ROOM_ENDLESS;
    engine_deliver(r.engine, 0);
    rig_expect_whole(&r, 0, &deaf);
    rig_close(&r);
}

static void room_that_comes_late_is_used_by_the_next_step(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = endless(1, 20, 30);
    r.room[0] = 0;
    rig_send(&r, 0, &q);
    for (uint32_t i = 0; i < 9; i++)
        rig_step(&r);
    r.room[0] = RIG_ROOM_ENDLESS;
    rig_step(&r);
    assert_int_equal(rig_stream(&r, 0, 1, 0)->n, 10);
    assert_int_equal(rig_stream(&r, 0, 1, 0)->puts, 3);
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

/* Room for one entry at a time: a client's sequences get it in turn. */
static void sequences_of_a_client_take_turns(void **state)
{
    (void)state;
    enum { N = 5 };
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q[N];
    r.room[0] = 0;
    for (uint32_t i = 0; i < N; i++) {
        q[i] = endless(i + 1, 10, 40);
        rig_send(&r, 0, &q[i]);
    }
    rig_run(&r);
    for (uint32_t round = 0; round < 10; round++) {
        uint32_t seen = 0;
        for (uint32_t i = 0; i < N; i++) {
            r.room[0] = 1;
            engine_deliver(r.engine, 0);
            seen |= 1u << r.last_put_of[0];
        }
        assert_int_equal(seen, ((1u << N) - 1) << 1);
    }
    for (uint32_t i = 0; i < N; i++)
        rig_expect_whole(&r, 0, &q[i]);
    rig_close(&r);
}

/* The same while steps go on and the ring has room for fewer entries than there are sequences. */
static void turns_hold_while_steps_go_on(void **state)
{
    (void)state;
    enum { N = 6 };
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q[N];
    for (uint32_t i = 0; i < N; i++) {
        q[i] = endless(i + 1, 4, 400);
        rig_send(&r, 0, &q[i]);
    }
    for (uint32_t step = 0; step < 300; step++) {
        r.room[0] = 2;
        rig_step(&r);
    }
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t n = rig_stream(&r, 0, i + 1, 0)->n;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    assert_true(least >= 280 && most - least <= 8);
    r.room[0] = RIG_ROOM_ENDLESS;
    rig_run(&r);
    for (uint32_t i = 0; i < N; i++)
        rig_expect_whole(&r, 0, &q[i]);
    rig_close(&r);
}

static void finals_need_no_room(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = endless(1, 20, 30), bad = rig_generate(2, 0, 1), cancel = rig_cancel(3, 1);
    r.room[0] = 0;
    rig_send(&r, 0, &q);
    rig_step(&r);
    rig_step(&r);
    rig_send(&r, 0, &bad);
    rig_expect_refused(&r, 0, &bad, LLM_EPARAM, 0);
    rig_send(&r, 0, &cancel);
    const struct rig_stream *s = rig_stream(&r, 0, 1, 0);
    assert_int_equal(s->finals, 1); /* two tokens found no room: the final counts none */
    assert_int_equal(s->final.finish, LLM_FINISH_CANCELLED);
    assert_int_equal(s->final.position, 0);
    assert_int_equal(rig_stream(&r, 0, 3, 0)->final.type, LLM_CQE_DONE);
    assert_false(engine_holds(r.engine, 0));
    rig_close(&r);
}

static void a_cancel_puts_what_fits(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = endless(1, 20, 30), cancel = rig_cancel(3, 1);
    r.room[0] = 0;
    rig_send(&r, 0, &q);
    for (uint32_t i = 0; i < 10; i++)
        rig_step(&r);
    r.room[0] = 2;
    rig_send(&r, 0, &cancel);
    assert_int_equal(rig_stream(&r, 0, 1, 0)->n, 8);
    assert_int_equal(rig_stream(&r, 0, 1, 0)->final.position, 8);
    rig_expect_prefix(&r, 0, &q);
    rig_close(&r);
}

/* Finished, but its tokens wait: a cancel ends that too and frees the slot. */
static void a_cancel_ends_what_waits_for_room(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_requests = 1;
    rig_open(&r);
    struct llm_sqe q = endless(1, 20, 10), cancel = rig_cancel(3, 1);
    r.room[0] = 1;
    rig_send(&r, 0, &q);
    rig_run(&r);
    assert_false(engine_can_take(r.engine, &q));
    rig_send(&r, 0, &cancel);
    assert_true(engine_can_take(r.engine, &q));
    assert_int_equal(rig_stream(&r, 0, 1, 0)->n, 1);
    assert_int_equal(rig_stream(&r, 0, 1, 0)->final.finish, LLM_FINISH_CANCELLED);
    rig_close(&r);
}

static void scores_wait_for_room_too(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.prefill_chunk = 16;
    rig_open(&r);
    struct llm_sqe q = rig_score(1, 100);
    r.room[0] = 3;
    rig_send(&r, 0, &q);
    rig_run(&r);
    assert_int_equal(rig_stream(&r, 0, 1, 0)->n, 12);
    r.room[0] = RIG_ROOM_ENDLESS;
    engine_deliver(r.engine, 0);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

static void a_preempted_sequence_still_delivers(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 6;
    rig_open(&r);
    struct llm_sqe a = endless(1, 40, 50), b = endless(2, 30, 30);
    r.room[1] = 0;
    rig_send(&r, 0, &a);
    rig_send(&r, 1, &b);
    while (!rig_figure(&r.board->preemptions))
        rig_step(&r);
    assert_int_equal(engine_waiting(r.engine), 1);
    assert_true(engine_holds(r.engine, 1));
    r.room[1] = RIG_ROOM_ENDLESS;
    engine_deliver(r.engine, 1);
    assert_true(rig_stream(&r, 1, 2, 0)->n > 0);
    assert_false(engine_holds(r.engine, 1));
    rig_run(&r);
    rig_expect_whole(&r, 0, &a);
    rig_expect_whole(&r, 1, &b);
    rig_close(&r);
}

static void a_dropped_client_leaves_nothing(void **state)
{
    (void)state;
    for (uint32_t steps = 0; steps < 16; steps++) {
        struct rig r;
        rig_init(&r);
        r.config.prefill_chunk = 9;
        r.config.max_num_seqs = 6;
        r.config.max_requests = 16;
        rig_open(&r);
        struct llm_sqe stays = endless(1, 25, 30), choices = endless(2, 30, 20);
        struct llm_sqe ends = endless(3, 3, 2), score = rig_score(4, 60);
        choices.choices = 5;
        choices.temperature = 1.0f;
        r.room[0] = steps % 3;
        rig_send(&r, 0, &ends);
        rig_send(&r, 0, &choices);
        rig_send(&r, 1, &stays);
        rig_send(&r, 0, &score);
        for (uint32_t i = 0; i < steps; i++)
            rig_step(&r);
        rig_drop(&r, 0);
        assert_int_equal(engine_running(r.engine) + engine_waiting(r.engine), 1);
        rig_run(&r);
        rig_expect_whole(&r, 1, &stays);
        struct llm_sqe all = endless(5, 5, 5);
        all.choices = 16; /* every slot is free again */
        all.temperature = 1.0f;
        rig_send(&r, 2, &all);
        rig_run(&r);
        rig_expect_whole(&r, 2, &all);
        rig_close(&r);
    }
}

static void times_say_when_tokens_were_published(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = endless(1, 20, 6), later = endless(2, 20, 6);
    r.room[0] = 0;
    rig_send(&r, 0, &q);
    rig_run(&r);
    rig_send(&r, 1, &later); /* its whole life lies between q's last step and q's first token */
    rig_run(&r);
    r.room[0] = RIG_ROOM_ENDLESS;
    engine_deliver(r.engine, 0);
    assert_true(rig_stream(&r, 0, 1, 0)->result.t_first >= rig_stream(&r, 1, 2, 0)->result.t_last);
    assert_true(rig_stream(&r, 0, 1, 0)->result.t_admit <=
                rig_stream(&r, 1, 2, 0)->result.t_arrival);
    assert_true(rig_stream(&r, 1, 2, 0)->result.t_first < rig_stream(&r, 1, 2, 0)->result.t_last);
    assert_int_equal(rig_figure(&r.board->itl.count), 10);
    assert_int_equal(rig_figure(&r.board->ttft.count), 2);
    rig_close(&r);
}

/* Every choice that was accepted ends for one reason, and those that were not cancelled have taken
 * their time: from the arrival to the end, so never less than to the first token. */
static void ends_are_counted_by_reason(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe whole = endless(1, 20, 6), two = endless(2, 20, 60), wrong = endless(3, 20, 0);
    whole.choices = 3;
    struct llm_sqe cancel = rig_cancel(4, two.user_data), score = rig_score(5, 20);
    rig_send(&r, 0, &whole);
    rig_send(&r, 0, &two);
    rig_send(&r, 0, &wrong);
    rig_send(&r, 0, &score);
    for (uint32_t i = 0; i < 4; i++)
        rig_step(&r);
    rig_send(&r, 0, &cancel);
    rig_run(&r);
    const order_u64 *ends = r.board->finished_for;
    assert_int_equal(rig_figure(&ends[LLM_FINISH_LENGTH]) + rig_figure(&ends[LLM_FINISH_STOP]), 4);
    assert_int_equal(rig_figure(&ends[LLM_FINISH_CANCELLED]), 1);
    assert_int_equal(rig_figure(&ends[LLM_FINISH_ERROR]), 0);
    assert_int_equal(rig_figure(&r.board->e2e.count), 3); /* not the score, not the cancelled one */
    assert_true(rig_figure(&r.board->e2e.sum_ns) > 3 * rig_figure(&r.board->ttft.sum_ns) / 4);
    rig_close(&r);
}

/* Few slots, many clients: they share the places of the client table and do not meet in them. */
static void clients_do_not_meet(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_requests = 2;
    rig_open(&r);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t one = i % RIG_CLIENTS, other = (i + 1 + i / RIG_CLIENTS) % RIG_CLIENTS;
        struct llm_sqe a = endless(2 * i + 1, 10, 10), b = endless(2 * i + 2, 10, 10);
        struct llm_sqe cancel = rig_cancel(1000 + i, a.user_data);
        r.room[one] = r.room[other] = 0;
        rig_send(&r, one, &a);
        rig_send(&r, other, &b);
        rig_run(&r);
        assert_true(engine_holds(r.engine, one) && engine_holds(r.engine, other));
        assert_false(engine_holds(r.engine, (one + 5) % RIG_CLIENTS == other
                                                ? (one + 6) % RIG_CLIENTS
                                                : (one + 5) % RIG_CLIENTS));
        rig_send(&r, other, &cancel); /* not its own */
        r.room[one] = RIG_ROOM_ENDLESS;
        engine_deliver(r.engine, one);
        rig_expect_whole(&r, one, &a);
        assert_int_equal(rig_stream(&r, other, b.user_data, 0)->puts, 0);
        r.room[other] = RIG_ROOM_ENDLESS;
        engine_deliver(r.engine, other);
        rig_expect_whole(&r, other, &b);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_wait_for_room_and_lose_nothing),
        cmocka_unit_test(a_full_ring_delays_nobody_else),
        cmocka_unit_test(room_that_comes_late_is_used_by_the_next_step),
        cmocka_unit_test(sequences_of_a_client_take_turns),
        cmocka_unit_test(turns_hold_while_steps_go_on),
        cmocka_unit_test(finals_need_no_room),
        cmocka_unit_test(a_cancel_puts_what_fits),
        cmocka_unit_test(a_cancel_ends_what_waits_for_room),
        cmocka_unit_test(scores_wait_for_room_too),
        cmocka_unit_test(a_preempted_sequence_still_delivers),
        cmocka_unit_test(a_dropped_client_leaves_nothing),
        cmocka_unit_test(clients_do_not_meet),
        cmocka_unit_test(times_say_when_tokens_were_published),
        cmocka_unit_test(ends_are_counted_by_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
