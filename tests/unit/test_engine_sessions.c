/* Sessions: what each operation makes of the history, what it costs in rows, who may use it, and that
 * a session is as good as its history whatever happens to its blocks. */
#include "../support/engine_rig.h"

#include <string.h>

enum { KEY = 42, OTHER = 43, BLOCK = GPU_KV_BLOCK };

static void open_rig(struct rig *r)
{
    rig_init(r);
    r->config.max_sessions = 8;
    rig_open(r);
}

static uint64_t rows(const struct rig *r)
{
    return rig_figure(&r->board->rows);
}

/* Sends and runs until nothing is to be done; returns the rows that it cost. */
static uint64_t run(struct rig *r, uint32_t client, struct llm_sqe q)
{
    uint64_t before = rows(r);
    rig_send(r, client, &q);
    rig_audit(r);
    while (engine_has_work(r->engine)) {
        rig_step(r);
        rig_audit(r);
    }
    if (q.op == LLM_OP_GENERATE)
        rig_expect_whole(r, client, &q);
    else
        rig_expect_done(r, client, &q);
    return rows(r) - before;
}

/* A turn of `n` tokens whatever they are. */
static struct llm_sqe turn(uint64_t id, uint64_t keep, uint32_t n_tokens, uint32_t n)
{
    struct llm_sqe q = rig_continue(id, KEY, keep, n_tokens, n);
    q.flags = LLM_SQE_IGNORE_EOS;
    return q;
}

static void words_while_the_caller_speaks(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    assert_int_equal(run(&r, 0, rig_session_open(1, KEY, 50)), 49);
    for (uint64_t id = 2; id < 20; id++)
        assert_int_equal(run(&r, 0, rig_append(id, KEY, LLM_SESSION_ALL, 3)), 3);
    /* one row for each of the 5 tokens, and none before the first */
    assert_int_equal(run(&r, 0, turn(30, LLM_SESSION_ALL, 0, 5)), 5);
    assert_int_equal(rig_session(&r, 0, KEY)->n, 50 + 18 * 3 + 5);
    /* the answer is history: the next turn costs its own words and the last token that was drawn */
    assert_int_equal(run(&r, 0, turn(31, LLM_SESSION_ALL, 4, 2)), 1 + 4 + 1);
    rig_close(&r);
}

static void replace_costs_what_it_changes(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    run(&r, 0, rig_session_open(1, KEY, 203));
    for (uint64_t id = 2; id < 40; id++) { /* the last 5 tokens, at all offsets in a block */
        uint32_t n = rig_session(&r, 0, KEY)->n;
        assert_true(run(&r, 0, rig_append(id, KEY, n - 5, 5)) <= 5 + BLOCK);
        assert_int_equal(run(&r, 0, rig_append(id + 100, KEY, LLM_SESSION_ALL, 1)), 1);
    }
    assert_int_equal(run(&r, 0, turn(300, LLM_SESSION_ALL, 0, 1)), 1);
    assert_int_equal(rig_figure(&r.board->recomputed_tokens), 0); /* changed, not lost */
    rig_close(&r);
}

static void the_same_words_again_cost_nothing(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[100];
    open_rig(&r);
    struct llm_sqe q = rig_session_open(1, KEY, 100);
    rig_prompt(&r, 1, tokens, 100);
    run(&r, 0, q);
    uint64_t before = rows(&r);
    q = rig_append(2, KEY, 60, 40);
    assert_true(rig_submit(&r, 0, &q, tokens + 60));
    rig_run(&r);
    assert_int_equal(rows(&r), before);
    tokens[80] = (tokens[80] + 1) % 97; /* from here on it is another one */
    q = rig_append(3, KEY, 60, 40);
    assert_true(rig_submit(&r, 0, &q, tokens + 60));
    rig_run(&r);
    assert_int_equal(rows(&r) - before, 99 - 80);
    assert_int_equal(run(&r, 0, turn(4, LLM_SESSION_ALL, 0, 3)), 3);
    rig_close(&r);
}

static void rewind_costs_nothing(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    run(&r, 0, rig_session_open(1, KEY, 120));
    for (uint32_t keep = 119; keep > 0; keep -= 7) {
        assert_int_equal(run(&r, 0, rig_append(1000 + keep, KEY, keep, 0)), 0);
        assert_int_equal(run(&r, 0, turn(2000 + keep, LLM_SESSION_ALL, 0, 1)), 1);
    }
    assert_int_equal(run(&r, 0, rig_append(3000, KEY, 0, 0)), 0);
    assert_int_equal(rig_figure(&r.board->kv_blocks_free), r.config.n_blocks);
    assert_int_equal(run(&r, 0, turn(3001, LLM_SESSION_ALL, 10, 2)), 11);
    rig_close(&r);
}

static void forks_share_and_part(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    run(&r, 0, rig_session_open(1, KEY, 70));
    uint64_t n_free = rig_figure(&r.board->kv_blocks_free);
    assert_int_equal(run(&r, 0, rig_fork(2, KEY, OTHER)), 0);
    assert_int_equal(rig_figure(&r.board->kv_blocks_free), n_free);
    struct llm_sqe a = turn(3, LLM_SESSION_ALL, 2, 20), b = turn(4, LLM_SESSION_ALL, 2, 20);
    b.session = OTHER;
    rig_send(&r, 0, &a);
    rig_send(&r, 1, &b);
    rig_run(&r);
    rig_expect_whole(&r, 0, &a);
    rig_expect_whole(&r, 1, &b);
    assert_int_equal(r.gpu.copies,
                     1); /* whoever writes first copies; then it is the other's alone */
    assert_int_equal(rows(&r), 69 + 2 * (1 + 2 + 19));
    run(&r, 0, rig_session_close(5, KEY));
    assert_int_equal(run(&r, 0, rig_append(6, OTHER, 70, 0)), 0);
    b = turn(7, LLM_SESSION_ALL, 0, 4);
    b.session = OTHER;
    assert_int_equal(run(&r, 0, b), 4);
    rig_close(&r);
}

/* Many forks of one history, each written to at its own place. */
static void a_fork_of_every_length(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    run(&r, 0, rig_session_open(1, KEY, 64));
    for (uint32_t keep = 1; keep <= 64; keep++) {
        run(&r, 0, rig_fork(1000 + keep, KEY, OTHER));
        struct llm_sqe q = turn(2000 + keep, keep, 1, 3);
        q.session = OTHER;
        assert_true(run(&r, 0, q) <= 2 + 3);
        run(&r, 0, rig_session_close(3000 + keep, OTHER));
    }
    assert_int_equal(run(&r, 0, turn(5000, LLM_SESSION_ALL, 0, 3)), 3);
    rig_close(&r);
}

static void a_fork_does_not_stop_an_append(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    struct llm_sqe open = rig_session_open(1, KEY, 300), fork = rig_fork(2, KEY, OTHER);
    struct llm_sqe bad = rig_append(3, KEY, 400, 0);
    rig_send(&r, 0, &open);
    rig_step(&r); /* 64 rows of 299 */
    rig_send(&r, 0, &fork);
    rig_step(&r);
    rig_send(&r, 0, &bad);
    rig_expect_refused(&r, 0, &bad, LLM_EPARAM, 300);
    rig_run(&r);
    rig_audit(&r);
    assert_int_equal(run(&r, 0, turn(4, LLM_SESSION_ALL, 0, 3)), 3);
    rig_close(&r);
}

static void barge_in_is_one_call(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    run(&r, 0, rig_session_open(1, KEY, 40));
    struct llm_sqe answer = turn(2, LLM_SESSION_ALL, 0, 100);
    rig_send(&r, 0, &answer);
    for (int i = 0; i < 30; i++)
        rig_step(&r);
    struct llm_sqe word = rig_append(3, KEY, 40 + 12, 3); /* 12 of the tokens were spoken */
    rig_send(&r, 1, &word);
    rig_expect_refused(&r, 1, &word, LLM_ESESSION, 0);
    word.user_data = 4;
    word.flags = LLM_SQE_INTERRUPT;
    rig_send(&r, 1, &word);
    const struct rig_stream *s = rig_stream(&r, 0, 2, 0);
    assert_int_equal(s->final.finish, LLM_FINISH_CANCELLED);
    assert_int_equal(s->n, 30);
    rig_expect_prefix(&r, 0, &answer);
    assert_int_equal(rig_session(&r, 0, KEY)->n, 55);
    uint64_t before = rows(&r);
    rig_run(&r);
    assert_true(rows(&r) - before <= 3 + BLOCK);
    assert_int_equal(run(&r, 0, turn(5, LLM_SESSION_ALL, 0, 2)), 2);
    rig_close(&r);
}

/* Whatever is wrong with what would have interrupted it. */
static void a_refused_interruption_interrupts_nothing(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_sessions = 8;
    r.config.max_num_seqs = 1;
    rig_open(&r);
    run(&r, 0, rig_session_open(1, KEY, 40));
    run(&r, 0, rig_session_open(2, OTHER, 1));
    struct llm_sqe answer = turn(3, LLM_SESSION_ALL, 0, 100);
    struct llm_sqe bad[] = {rig_append(10, KEY, 71, 0), rig_append(11, KEY, LLM_SESSION_ALL, 443),
                            rig_fork(12, KEY, OTHER),
                            rig_continue(13, KEY, LLM_SESSION_ALL, 0, 450),
                            rig_continue(14, KEY, LLM_SESSION_ALL, 1, 2)};
    bad[4].deadline_us = 1;
    rig_send(&r, 0, &answer);
    for (int i = 0; i < 30; i++)
        rig_step(&r);
    r.room[0] = 0;
    for (int i = 0; i < 30; i++) /* these tokens are not put */
        rig_step(&r);
    static const int32_t codes[] = {LLM_EPARAM, LLM_ETOOLONG, LLM_ESESSION, LLM_ETOOLONG,
                                    LLM_EDEADLINE};
    static const uint32_t fits[] = {70, 442, 0, 0, 0};
    for (uint32_t i = 0; i < 5; i++) {
        bad[i].flags |= LLM_SQE_INTERRUPT;
        rig_send(&r, 1, &bad[i]);
        const struct llm_cqe *final = &rig_stream(&r, 1, 10 + i, 0)->final;
        assert_int_equal(final->status, codes[i]);
        assert_true(i == 4 || final->position == fits[i]);
        assert_int_equal(rig_stream(&r, 0, 3, 0)->finals, 0);
        rig_audit(&r);
    }
    r.room[0] = RIG_ROOM_ENDLESS;
    rig_run(&r);
    rig_expect_whole(&r, 0, &answer);
    run(&r, 0, turn(20, LLM_SESSION_ALL, 1, 3));
    rig_close(&r);
}

/* The one place is that of the generation which it interrupts. */
static void an_interruption_waits_for_nobody_but_itself(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_sessions = 8;
    r.config.max_num_seqs = 1;
    rig_open(&r);
    run(&r, 0, rig_session_open(1, KEY, 40));
    for (uint64_t id = 2; id < 6; id++) /* steps enough to believe the estimate */
        run(&r, 0, turn(id, 40, 0, 40));
    struct llm_sqe answer = turn(10, 40, 0, 400), next = turn(11, 45, 2, 3);
    rig_send(&r, 0, &answer);
    for (int i = 0; i < 10; i++)
        rig_step(&r);
    next.flags |= LLM_SQE_INTERRUPT;
    uint64_t step_ns = rig_figure(&r.board->step_predicted_ns);
    assert_true(step_ns > 0);
    next.deadline_us = (uint32_t)(20 * step_ns / 1000 + 1);
    rig_send(&r, 0, &next);
    assert_int_equal(rig_stream(&r, 0, 10, 0)->final.finish, LLM_FINISH_CANCELLED);
    rig_run(&r);
    rig_expect_whole(&r, 0, &next);
    rig_close(&r);
}

/* A deadline that holds only where the tokens that are replaced by themselves are known for the
 * same: one row, not one for each. */
static void what_is_being_said_is_known_at_the_door(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[RIG_TOKENS];
    rig_init(&r);
    r.config.max_sessions = 8;
    rig_open(&r);
    run(&r, 0, rig_session_open(1, KEY, 40));
    for (uint64_t id = 2; id < 12; id++) /* steps enough to believe the estimate */
        run(&r, 0, turn(id, 40, (uint32_t)id % 4, 40));
    for (uint64_t id = 100; id < 132; id += 2) {
        uint32_t said = 17 + (uint32_t)(id - 100) / 2;
        struct llm_sqe answer = turn(id, 40, 0, 100), next = turn(id + 1, 41, said - 1, 3);
        rig_send(&r, 0, &answer);
        const struct rig_stream *s = rig_stream(&r, 0, id, 0);
        while (s->n < said)
            rig_step(&r);
        memcpy(tokens, s->tokens + 1, (said - 1) * sizeof *tokens);
        next.flags |= LLM_SQE_INTERRUPT;
        next.deadline_us = 15; /* of 10 us a step, 1 us a row */
        assert_true(rig_submit(&r, 0, &next, tokens));
        rig_run(&r);
        assert_int_equal(rig_stream(&r, 0, id + 1, 0)->final.status, 0);
    }
    rig_close(&r);
}

/* What the ring had no room for is no part of the history. */
static void dropped_tokens_were_never_said(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    run(&r, 0, rig_session_open(1, KEY, 40));
    struct llm_sqe answer = turn(2, LLM_SESSION_ALL, 0, 100);
    r.room[0] = 3;
    rig_send(&r, 0, &answer);
    for (int i = 0; i < 30; i++)
        rig_step(&r);
    struct llm_sqe stop = rig_append(3, KEY, LLM_SESSION_ALL, 0);
    stop.flags = LLM_SQE_INTERRUPT;
    rig_send(&r, 1, &stop);
    rig_expect_done(&r, 1, &stop);
    assert_int_equal(rig_stream(&r, 1, 3, 0)->final.position, 43);
    r.room[0] = RIG_ROOM_ENDLESS;
    rig_audit(&r);
    assert_int_equal(run(&r, 0, turn(4, LLM_SESSION_ALL, 2, 6)), 1 + 2 + 5);
    /* the same where the client is gone */
    answer = turn(5, LLM_SESSION_ALL, 0, 100);
    r.room[0] = 2;
    rig_send(&r, 0, &answer);
    for (int i = 0; i < 30; i++)
        rig_step(&r);
    rig_drop(&r, 0);
    rig_audit(&r);
    run(&r, 1, turn(6, LLM_SESSION_ALL, 1, 3));
    rig_close(&r);
}

static void refusals(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_sessions = 2;
    rig_open(&r);
    run(&r, 0, rig_session_open(1, KEY, 500));
    struct llm_sqe q = rig_append(2, OTHER, LLM_SESSION_ALL, 1);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_ENOSESSION, 0);
    q = turn(12, LLM_SESSION_ALL, 1, 3);
    q.session = OTHER;
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_ENOSESSION, 0);
    assert_int_equal(rig_figure(&r.board->refused),
                     0); /* so far it was asked whether it is there */
    q = rig_append(13, OTHER, 0, 1);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_ENOSESSION, 0);
    q = rig_session_open(3, KEY, 1);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_ESESSION, 0);
    q = rig_append(4, KEY, 501, 0);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_EPARAM, 500);
    q = rig_append(5, KEY, LLM_SESSION_ALL, 13);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_ETOOLONG, 12);
    q = turn(6, LLM_SESSION_ALL, 3, 10);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_ETOOLONG, 2);
    q = rig_fork(7, KEY, KEY);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_ESESSION, 0);
    run(&r, 0, rig_fork(8, KEY, OTHER));
    q = rig_session_open(9, 7, 1);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_EBUSY, 0);
    run(&r, 0, rig_append(10, KEY, 0, 0));
    q = turn(11, LLM_SESSION_ALL, 0, 1); /* nothing to go on from */
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_EPARAM, 0);
    assert_int_equal(rig_figure(&r.board->refused_for[LLM_REFUSED_SESSION]), 3);
    assert_int_equal(rig_figure(&r.board->sessions), 2);
    rig_close(&r);
}

static void malformed_entries(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    struct llm_sqe bad[] = {rig_session_open(1, 0, 1),
                            rig_fork(2, KEY, 0),
                            rig_append(3, 0, 0, 1),
                            rig_continue(4, KEY, LLM_SESSION_ALL, 1, 0),
                            rig_session_open(5, KEY, 1),
                            rig_session_close(6, KEY),
                            rig_continue(7, KEY, 0, 1, 1),
                            rig_continue(8, KEY, 0, 1, 1),
                            rig_append(9, KEY, LLM_SESSION_ALL, 1)};
    bad[4].target = 1;
    bad[5].target = 1;
    bad[6].choices = 2;
    bad[7].output_from = 1;
    bad[8].flags = LLM_SQE_PIN;
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rig_send(&r, 0, &bad[i]);
        const struct rig_stream *s = rig_stream(&r, 0, bad[i].user_data, 0);
        assert_int_equal(s->finals, 1);
        assert_true(s->final.status < 0);
    }
    assert_int_equal(rig_figure(&r.board->sessions), 0);
    rig_close(&r);
}

/* What the prefix cache has of that history, in tokens: a request of the same user asks for it. */
static uint32_t found(struct rig *r, uint64_t id, const int32_t *history, uint32_t n)
{
    int32_t tokens[RIG_TOKENS];
    struct llm_sqe q = rig_generate(id, n + 1, 1);
    memcpy(tokens, history, n * sizeof *tokens);
    rig_prompt(r, id, tokens + n, 1);
    assert_true(rig_submit(r, 1, &q, tokens));
    rig_run(r);
    return rig_stream(r, 1, id, 0)->result.cached_tokens;
}

/* Of one entry on a session that has a past and a future which may be found. */
static void what_was_private_stays_so(void **state)
{
    (void)state;
    for (int generates = 0; generates < 2; generates++) {
        struct rig r;
        rig_init(&r);
        r.config.max_sessions = 8;
        r.config.prefix_cache = true;
        rig_open(&r);
        run(&r, 0, rig_session_open(1, KEY, 40));
        struct llm_sqe secret =
            generates ? turn(2, LLM_SESSION_ALL, 30, 10) : rig_append(2, KEY, LLM_SESSION_ALL, 40);
        secret.flags |= LLM_SQE_NO_CACHE;
        run(&r, 0, secret);
        run(&r, 0, rig_fork(3, KEY, OTHER));
        run(&r, 0, rig_append(4, KEY, LLM_SESSION_ALL, 40));
        run(&r, 0, turn(5, LLM_SESSION_ALL, 3, 20));
        struct llm_sqe forked = turn(6, LLM_SESSION_ALL, 3, 20);
        forked.session = OTHER;
        run(&r, 0, forked);
        const struct rig_session *s = rig_session(&r, 0, KEY);
        assert_int_equal(found(&r, 7, s->tokens, s->n), 32);
        /* rewound to before it, the session is like any other */
        run(&r, 0, rig_append(8, KEY, 40, 40));
        run(&r, 0, rig_append(9, KEY, LLM_SESSION_ALL, 1));
        assert_int_equal(found(&r, 10, s->tokens, 80), 80);
        rig_close(&r);
    }
}

/* The same where an append that is still computed is stopped by an entry that is refused. */
static void a_private_append_goes_on_in_private(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_sessions = 8;
    r.config.prefix_cache = true;
    rig_open(&r);
    run(&r, 0, rig_session_open(1, KEY, 1));
    struct llm_sqe secret = rig_append(2, KEY, LLM_SESSION_ALL, 300),
                   bad = rig_append(3, KEY, 400, 0);
    secret.flags = LLM_SQE_NO_CACHE;
    rig_send(&r, 0, &secret);
    rig_step(&r);
    rig_send(&r, 0, &bad);
    rig_run(&r);
    const struct rig_session *s = rig_session(&r, 0, KEY);
    assert_int_equal(found(&r, 4, s->tokens, s->n), 0);
    rig_close(&r);
}

static void a_session_belongs_to_its_user(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    r.domain[2] = r.domain[3] = 1;
    run(&r, 0, rig_session_open(1, KEY, 40));
    struct llm_sqe q = rig_append(2, KEY, LLM_SESSION_ALL, 1);
    rig_send(&r, 2, &q);
    rig_expect_refused(&r, 2, &q, LLM_ENOSESSION, 0);
    run(&r, 2, rig_session_open(3, KEY, 20)); /* its own of the same key */
    rig_drop(&r, 0);
    assert_int_equal(run(&r, 1, turn(4, LLM_SESSION_ALL, 0, 3)), 3); /* the user's other client */
    assert_int_equal(run(&r, 3, turn(5, LLM_SESSION_ALL, 0, 3)), 3);
    assert_int_equal(rig_session(&r, 0, KEY)->n, 43);
    assert_int_equal(rig_session(&r, 1, KEY)->n, 23);
    rig_close(&r);
}

/* An idle session's blocks go to who needs them: then it costs its rows again and is right. */
static void blocks_are_lent(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_sessions = 4;
    r.config.n_blocks = 12;
    rig_open(&r);
    assert_int_equal(run(&r, 0, rig_session_open(1, KEY, 100)), 99);
    run(&r, 1, rig_generate(2, 150, 10));
    assert_int_equal(rig_figure(&r.board->session_evictions), 1);
    assert_int_equal(run(&r, 0, turn(3, LLM_SESSION_ALL, 0, 3)), 102);
    assert_int_equal(rig_figure(&r.board->recomputed_tokens), 99);
    assert_int_equal(rig_figure(&r.board->preemptions), 0);
    rig_close(&r);
}

/* They are not taken for what does not fit with them either: it waits for what runs. */
static void blocks_are_not_lent_in_vain(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_sessions = 4;
    r.config.n_blocks = 40;
    rig_open(&r);
    run(&r, 0, rig_session_open(1, KEY, 100));
    struct llm_sqe running = rig_generate(2, 300, 60), waits = rig_generate(3, 400, 2);
    running.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 1, &running);
    for (int i = 0; i < 8; i++)
        rig_step(&r);
    rig_send(&r, 2, &waits); /* 26 blocks and one to spare of 40 - 19 - 7 */
    for (int i = 0; i < 20; i++)
        rig_step(&r);
    rig_audit(&r);
    assert_int_equal(rig_figure(&r.board->session_evictions), 0);
    rig_run(&r);
    rig_expect_whole(&r, 2, &waits);
    assert_int_equal(rig_figure(&r.board->session_evictions), 0);
    assert_int_equal(run(&r, 0, turn(4, LLM_SESSION_ALL, 0, 3)), 3);
    rig_close(&r);
}

static void a_failed_step_takes_no_history(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    run(&r, 0, rig_session_open(1, KEY, 40));
    struct llm_sqe answer = turn(2, LLM_SESSION_ALL, 2, 20);
    rig_send(&r, 0, &answer);
    for (int i = 0; i < 5; i++)
        rig_step(&r);
    r.gpu.fail_wait_at = r.gpu.steps + 1;
    assert_true(engine_step(r.engine) < 0);
    rig_audit(&r);
    assert_int_equal(rig_stream(&r, 0, 2, 0)->final.status, LLM_EENGINE);
    assert_int_equal(rig_session(&r, 0, KEY)->n, 47);
    assert_int_equal(run(&r, 0, turn(3, LLM_SESSION_ALL, 0, 2)), 48);
    rig_close(&r);
}

static void an_append_that_is_all_cached(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[RIG_TOKENS];
    rig_init(&r);
    r.config.max_sessions = 4;
    r.config.prefix_cache = true;
    rig_open(&r);
    rig_prompt(&r, 9, tokens, 49);
    struct llm_sqe a = rig_generate(1, 49, 2), b = rig_session_open(2, KEY, 49);
    assert_true(rig_submit(&r, 0, &a, tokens));
    rig_run(&r);
    uint64_t before = rows(&r);
    assert_true(rig_submit(&r, 0, &b, tokens)); /* 48 of 49 are there, the last one waits */
    rig_run(&r);
    rig_audit(&r);
    assert_int_equal(rows(&r), before);
    assert_int_equal(run(&r, 0, turn(3, LLM_SESSION_ALL, 0, 3)), 3);
    rig_close(&r);
}

static void closing_ends_what_is_generated(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    run(&r, 0, rig_session_open(1, KEY, 40));
    struct llm_sqe answer = turn(2, LLM_SESSION_ALL, 2, 20), close = rig_session_close(3, KEY);
    rig_send(&r, 0, &answer);
    rig_step(&r);
    rig_send(&r, 0, &close);
    rig_expect_done(&r, 0, &close);
    assert_int_equal(rig_stream(&r, 0, 2, 0)->final.finish, LLM_FINISH_CANCELLED);
    rig_expect_prefix(&r, 0, &answer);
    assert_false(engine_has_work(r.engine));
    assert_int_equal(rig_figure(&r.board->kv_blocks_free), r.config.n_blocks);
    rig_close(&r);
}

static void shutdown_ends_what_uses_sessions(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    run(&r, 0, rig_session_open(1, KEY, 40));
    run(&r, 0, rig_session_open(2, OTHER, 40));
    struct llm_sqe answer = turn(3, LLM_SESSION_ALL, 2, 20);
    struct llm_sqe words = rig_append(4, OTHER, LLM_SESSION_ALL, 100);
    rig_send(&r, 0, &answer);
    rig_step(&r);
    rig_send(&r, 1, &words);
    engine_shutdown(r.engine);
    rig_audit(&r);
    assert_false(engine_has_work(r.engine));
    assert_int_equal(rig_stream(&r, 0, 3, 0)->final.finish, LLM_FINISH_CANCELLED);
    words.user_data = 5;
    rig_send(&r, 1, &words);
    rig_expect_refused(&r, 1, &words, LLM_ESHUTDOWN, 0);
    for (uint32_t i = 0; i < RIG_SESSIONS; i++)
        r.sessions[i].open = false; /* they go with the engine */
    r.config.n_blocks = (uint32_t)rig_figure(&r.board->kv_blocks_free);
    rig_close(&r);
}

static void without_sessions_none_opens(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = rig_session_open(1, KEY, 4);
    rig_send(&r, 0, &q);
    rig_expect_refused(&r, 0, &q, LLM_EQUOTA, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_while_the_caller_speaks),
        cmocka_unit_test(replace_costs_what_it_changes),
        cmocka_unit_test(the_same_words_again_cost_nothing),
        cmocka_unit_test(rewind_costs_nothing),
        cmocka_unit_test(forks_share_and_part),
        cmocka_unit_test(a_fork_of_every_length),
        cmocka_unit_test(a_fork_does_not_stop_an_append),
        cmocka_unit_test(barge_in_is_one_call),
        cmocka_unit_test(dropped_tokens_were_never_said),
        cmocka_unit_test(refusals),
        cmocka_unit_test(malformed_entries),
        cmocka_unit_test(a_refused_interruption_interrupts_nothing),
        cmocka_unit_test(an_interruption_waits_for_nobody_but_itself),
        cmocka_unit_test(what_is_being_said_is_known_at_the_door),
        cmocka_unit_test(what_was_private_stays_so),
        cmocka_unit_test(a_private_append_goes_on_in_private),
        cmocka_unit_test(a_session_belongs_to_its_user),
        cmocka_unit_test(blocks_are_lent),
        cmocka_unit_test(blocks_are_not_lent_in_vain),
        cmocka_unit_test(a_failed_step_takes_no_history),
        cmocka_unit_test(an_append_that_is_all_cached),
        cmocka_unit_test(closing_ends_what_is_generated),
        cmocka_unit_test(shutdown_ends_what_uses_sessions),
        cmocka_unit_test(without_sessions_none_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
