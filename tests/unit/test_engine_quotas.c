/* What a user, the queue and the pins may hold: each refusal with its code and the number that would
 * have fitted; others are not touched by it; what ends gives its share back. */
#include "../support/engine_rig.h"

#include <string.h>

enum { KEY = 42 };

static struct llm_sqe plain(uint64_t id, uint32_t n_prompt, uint32_t max_tokens)
{
    struct llm_sqe q = rig_generate(id, n_prompt, max_tokens);
    q.flags = LLM_SQE_IGNORE_EOS;
    return q;
}

/* Clients 0 and 1 are one user, 2 and 3 another. */
static void init_two_users(struct rig *r)
{
    rig_init(r);
    r->domain[2] = r->domain[3] = 1;
    r->config.max_num_seqs = 2;
    r->config.max_sessions = 8;
}

static void send(struct rig *r, uint32_t client, struct llm_sqe q)
{
    rig_send(r, client, &q);
    rig_audit(r);
}

static void send_refused(struct rig *r, uint32_t client, struct llm_sqe q, int32_t code,
                         uint32_t fits)
{
    send(r, client, q);
    rig_expect_refused(r, client, &q, code, fits);
}

static bool was_refused(struct rig *r, uint32_t client, uint64_t id)
{
    return rig_stream(r, client, id, 0)->final.finish == LLM_FINISH_REFUSED;
}

static void run_audited(struct rig *r)
{
    while (engine_has_work(r->engine)) {
        rig_step(r);
        rig_audit(r);
    }
}

static void requests_of_a_user(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.quota.requests = 4;
    rig_open(&r);
    struct llm_sqe q = plain(3, 10, 5);
    send(&r, 0, plain(1, 10, 5));
    send(&r, 1, plain(2, 10, 5));
    q.choices = 3; /* each counts */
    send_refused(&r, 0, q, LLM_EQUOTA, 2);
    q.user_data = 4;
    q.choices = 2;
    send(&r, 0, q);
    send_refused(&r, 1, plain(5, 10, 5), LLM_EQUOTA, 0);
    send(&r, 2, plain(6, 10, 5));
    assert_false(was_refused(&r, 2, 6));
    assert_int_equal(rig_figure(&r.board->refused_for[LLM_REFUSED_QUOTA]), 2);
    run_audited(&r);
    send(&r, 1, plain(7, 10, 5));
    assert_false(was_refused(&r, 1, 7));
    run_audited(&r);
    rig_close(&r);
}

static void prompt_tokens_of_a_user(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.quota.prompt_tokens = 100;
    rig_open(&r);
    send(&r, 0, plain(1, 70, 5));
    send_refused(&r, 1, plain(2, 31, 5), LLM_EQUOTA, 30);
    send(&r, 1, plain(3, 30, 5));
    send_refused(&r, 0, plain(4, 1, 5), LLM_EQUOTA, 0);
    send(&r, 2, plain(5, 100, 5));
    assert_false(was_refused(&r, 2, 5));
    rig_step(&r); /* what is admitted is in the queue no more */
    send(&r, 0, plain(6, 70, 5));
    assert_false(was_refused(&r, 0, 6));
    run_audited(&r);
    rig_close(&r);
}

/* A turn counts what it brings, whatever the session has. */
static void a_turn_brings_what_is_new(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.quota.prompt_tokens = 100;
    r.config.prefix_cache = true;
    rig_open(&r);
    send(&r, 0, rig_session_open(1, KEY, 90));
    run_audited(&r);
    send(&r, 0, rig_append(2, KEY, LLM_SESSION_ALL, 90));
    run_audited(&r);
    struct llm_sqe turn = rig_continue(3, KEY, LLM_SESSION_ALL, 10, 20), gone;
    send(&r, 0, turn);
    send_refused(&r, 1, plain(4, 91, 5), LLM_EQUOTA, 90);
    send(&r, 1, plain(5, 90, 5));
    assert_false(was_refused(&r, 1, 5));
    run_audited(&r);
    rig_expect_whole(&r, 0, &turn);
    /* what ends before it began had nothing from the cache */
    turn.user_data = 6;
    gone = rig_cancel(7, 6);
    send(&r, 0, turn);
    send(&r, 0, gone);
    assert_int_equal(rig_stream(&r, 0, 6, 0)->result.cached_tokens, 0);
    rig_close(&r);
}

static void the_queue_has_an_end(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.max_waiting = 3;
    rig_open(&r);
    struct llm_sqe q = plain(3, 10, 5);
    send(&r, 0, plain(1, 10, 20));
    q.choices = 3;
    send_refused(&r, 2, q, LLM_EBUSY, 2);
    q.user_data = 4;
    q.choices = 2;
    send(&r, 2, q);
    send_refused(&r, 0, plain(5, 10, 5), LLM_EBUSY, 0);
    assert_int_equal(rig_figure(&r.board->refused_for[LLM_REFUSED_QUEUE]), 2);
    rig_step(&r);
    send(&r, 0, plain(6, 10, 5));
    assert_false(was_refused(&r, 0, 6));
    run_audited(&r);
    rig_close(&r);
}

static void the_queue_has_so_many_tokens(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.max_waiting_tokens = 150;
    rig_open(&r);
    send(&r, 0, plain(1, 100, 5));
    send_refused(&r, 2, plain(2, 51, 5), LLM_EBUSY, 50);
    send(&r, 2, plain(3, 50, 5));
    send_refused(&r, 0, plain(4, 1, 5), LLM_EBUSY, 0);
    run_audited(&r);
    rig_close(&r);
}

/* What ends a request needs no room for it. */
static void barging_in_and_closing_at_the_limit(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.quota.requests = 1;
    r.config.max_waiting = 1;
    r.config.max_num_seqs = 1;
    rig_open(&r);
    send(&r, 0, rig_session_open(1, KEY, 20));
    run_audited(&r);
    send(&r, 0, rig_continue(2, KEY, LLM_SESSION_ALL, 0, 50));
    send_refused(&r, 0, plain(3, 10, 5), LLM_EBUSY, 0); /* it waits */
    rig_step(&r);
    send_refused(&r, 0, plain(4, 10, 5), LLM_EQUOTA, 0);
    struct llm_sqe word = rig_append(5, KEY, 20, 40);
    word.flags = LLM_SQE_INTERRUPT;
    send(&r, 0, word);
    assert_int_equal(rig_stream(&r, 0, 2, 0)->final.finish, LLM_FINISH_CANCELLED);
    rig_expect_done(&r, 0, &word);
    send(&r, 2, plain(6, 10, 50)); /* the queue is full of the append */
    assert_true(was_refused(&r, 2, 6));
    struct llm_sqe fork = rig_fork(7, KEY, KEY + 1), close = rig_session_close(8, KEY);
    send(&r, 0, fork);
    rig_expect_done(&r, 0, &fork);
    send(&r, 0, close);
    rig_expect_done(&r, 0, &close);
    assert_false(engine_has_work(r.engine));
    rig_close(&r);
}

static void sessions_of_a_user(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.quota.sessions = 2;
    r.config.max_sessions = 3;
    rig_open(&r);
    send(&r, 0, rig_session_open(1, 1, 20));
    send(&r, 1, rig_session_open(2, 2, 20));
    send_refused(&r, 0, rig_session_open(3, 3, 20), LLM_EQUOTA, 0);
    send_refused(&r, 0, rig_fork(4, 1, 3), LLM_EQUOTA, 0);
    send(&r, 2, rig_session_open(5, 1, 20));
    assert_false(was_refused(&r, 2, 5));
    send_refused(&r, 3, rig_session_open(6, 2, 20), LLM_EBUSY, 0);
    send(&r, 0, rig_session_close(7, 2));
    send(&r, 0, rig_fork(8, 1, 3));
    assert_false(was_refused(&r, 0, 8));
    run_audited(&r);
    rig_close(&r);
}

/* rig_audit looks at every user's blocks against the quota. */
static void blocks_of_a_user(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.quota.kv_blocks = 9;
    r.config.quota.pinned_blocks = 1; /* so much of it is kept for pins */
    r.config.max_num_seqs = 8;
    r.config.prefix_cache = true;
    rig_open(&r);
    send_refused(&r, 0, plain(1, 60, 70), LLM_ETOOLONG, 69);
    send_refused(&r, 0, plain(2, 200, 1), LLM_ETOOLONG, 128);
    send(&r, 0, plain(3, 60, 69));
    send(&r, 1, plain(4, 60, 20));
    struct llm_sqe q = plain(5, 40, 20);
    q.choices = 6;
    send(&r, 0, q);
    send(&r, 2, plain(6, 60, 20));
    send(&r, 1, rig_session_open(7, KEY, 70));
    send(&r, 1, rig_fork(8, KEY, KEY + 1));
    rig_step(&r);
    rig_step(&r);
    assert_true(rig_stream(&r, 2, 6, 0)->n > 0); /* the other user does not wait */
    run_audited(&r);
    rig_expect_stream(&r, rig_stream(&r, 0, 3, 0), true);
    rig_expect_stream(&r, rig_stream(&r, 1, 4, 0), true);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

/* Where nothing is stated for pins they get what the longest request leaves of the quota. */
static void blocks_of_a_user_without_a_quota_of_pins(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.quota.kv_blocks = 9;
    rig_open(&r);
    struct llm_sqe pin = rig_session_open(1, KEY, 10), q = plain(3, 60, 85);
    pin.flags = LLM_SQE_PIN;
    send_refused(&r, 0, pin, LLM_EQUOTA, 0);
    send_refused(&r, 0, plain(2, 60, 86), LLM_ETOOLONG, 85);
    send(&r, 0, q);
    run_audited(&r);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
    init_two_users(&r);
    r.config.quota.kv_blocks = 9;
    r.config.max_model_len = 100;
    rig_open(&r);
    pin.tokens_len = 33;
    send_refused(&r, 0, pin, LLM_EQUOTA, 32);
    pin.user_data = 2;
    pin.tokens_len = 32;
    send(&r, 0, pin);
    q = plain(3, 60, 40);
    send(&r, 0, q);
    run_audited(&r);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

static uint64_t rows(const struct rig *r)
{
    return rig_figure(&r->board->rows);
}

static void pins_stay_and_have_a_quota(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[RIG_TOKENS];
    init_two_users(&r);
    r.config.n_blocks = 24;
    r.config.max_model_len = 200;
    r.config.quota.pinned_blocks = 8;
    r.config.prefix_cache = true;
    rig_open(&r);
    struct llm_sqe pin = rig_session_open(1, KEY, 100), more = rig_session_open(2, 2, 20), q;
    pin.flags = more.flags = LLM_SQE_PIN;
    send(&r, 0, pin);
    send_refused(&r, 1, more, LLM_EQUOTA, 16); /* one block is left */
    send_refused(&r, 0, rig_append(3, KEY, LLM_SESSION_ALL, 29), LLM_EQUOTA, 128);
    send(&r, 0, rig_append(4, KEY, LLM_SESSION_ALL, 28));
    assert_int_equal(rig_figure(&r.board->pinned_blocks), 8);
    run_audited(&r);
    /* the other user's pins leave room for one request of full length: 24 - 13 - 8 blocks */
    more.user_data = 5;
    more.tokens_len = 49;
    send_refused(&r, 2, more, LLM_EQUOTA, 48);
    send_refused(&r, 0, rig_continue(6, KEY, LLM_SESSION_ALL, 0, 1), LLM_EPARAM, 0);
    /* pressure does not take them */
    for (uint64_t id = 10; id < 20; id++) {
        q = plain(id, 150, 50);
        send(&r, 2, q);
        run_audited(&r);
        rig_expect_whole(&r, 2, &q);
    }
    uint64_t before = rows(&r);
    memcpy(tokens, rig_session(&r, 0, KEY)->tokens, 128 * sizeof *tokens);
    rig_prompt(&r, 99, tokens + 128, 5);
    q = plain(30, 133, 1);
    assert_true(rig_submit(&r, 1, &q, tokens));
    run_audited(&r);
    rig_expect_whole(&r, 1, &q);
    assert_true(rows(&r) - before <= 5 + GPU_KV_BLOCK);
    send(&r, 0, rig_session_close(31, KEY));
    assert_int_equal(rig_figure(&r.board->pinned_blocks), 0);
    more.user_data = 32;
    send(&r, 2, more);
    assert_false(was_refused(&r, 2, 32));
    run_audited(&r);
    rig_close(&r);
}

static void what_nobody_reads_ends(void **state)
{
    (void)state;
    struct rig r;
    init_two_users(&r);
    r.config.max_unread = 20;
    rig_open(&r);
    struct llm_sqe q = plain(1, 10, 100), other = plain(2, 10, 100);
    r.room[0] = 5;
    rig_send(&r, 0, &q);
    rig_send(&r, 1, &other);
    run_audited(&r);
    const struct rig_stream *s = rig_stream(&r, 0, 1, 0);
    assert_int_equal(s->final.status, LLM_EUNREAD);
    assert_int_equal(s->n, 5);
    rig_expect_prefix(&r, 0, &q);
    rig_expect_whole(&r, 1, &other);
    assert_int_equal(rig_figure(&r.board->unread_cancels), 1);
    assert_false(engine_holds(r.engine, 0));
    rig_close(&r);
}

static void what_can_never_fit_is_refused_at_once(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 10;
    rig_open(&r);
    send_refused(&r, 0, plain(1, 100, 62), LLM_ETOOLONG, 61);
    send_refused(&r, 0, plain(2, 170, 5), LLM_ETOOLONG, 156);
    send_refused(&r, 0, rig_score(3, 162), LLM_ETOOLONG, 161);
    assert_int_equal(rig_figure(&r.board->refused_for[LLM_REFUSED_LENGTH]), 3);
    struct llm_sqe q = plain(4, 100, 61);
    send(&r, 0, q);
    run_audited(&r);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_a_user),
        cmocka_unit_test(prompt_tokens_of_a_user),
        cmocka_unit_test(a_turn_brings_what_is_new),
        cmocka_unit_test(the_queue_has_an_end),
        cmocka_unit_test(the_queue_has_so_many_tokens),
        cmocka_unit_test(barging_in_and_closing_at_the_limit),
        cmocka_unit_test(sessions_of_a_user),
        cmocka_unit_test(blocks_of_a_user),
        cmocka_unit_test(blocks_of_a_user_without_a_quota_of_pins),
        cmocka_unit_test(pins_stay_and_have_a_quota),
        cmocka_unit_test(what_nobody_reads_ends),
        cmocka_unit_test(what_can_never_fit_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
