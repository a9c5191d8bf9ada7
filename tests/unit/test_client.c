/* test_client.c - requests out and events in, against an engine that the test plays itself. */
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <linux/futex.h>

#include "fake_engine.h"

static const int32_t prompt[] = {7, 8, 9, 10, 11};

static struct llm_request request(void)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt;
    r.n_tokens = 5;
    return r;
}

static uint64_t submit(struct llm_client *c, const struct llm_request *r)
{
    uint64_t id = 0;
    if (llm_submit(c, r, &id))
        fail_msg("%s", llm_errmsg(c));
    assert_true(id);
    return id;
}

static uint64_t submit_nop(struct llm_client *c)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = LLM_OP_NOP;
    return submit(c, &r);
}

static struct llm_event expect(struct llm_client *c, uint32_t type, uint64_t id)
{
    struct llm_event e;
    assert_int_equal(llm_poll(c, &e), 1);
    assert_int_equal(e.type, type);
    assert_int_equal(e.id, id);
    return e;
}

static void expect_nothing(struct llm_client *c)
{
    struct llm_event e;
    assert_int_equal(llm_poll(c, &e), 0);
}

/* ---- requests ---- */

static void a_request_arrives_as_it_was_asked(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    int32_t tokens[FAKE_ARENA / 4];
    r.max_tokens = 3;
    r.choices = 2;
    r.flags = LLM_SQE_LOGPROBS;
    r.seed = 4;
    r.user_data = 5;
    r.temperature = 0.5f;
    r.top_p = 0.25f;
    r.min_p = 0.125f;
    r.top_k = 6;
    assert_int_equal(submit(c, &r), 5);
    struct llm_sqe e = fake_take(f, tokens);
    struct llm_sqe expected = {.user_data = 5,
                               .op = LLM_OP_GENERATE,
                               .flags = LLM_SQE_LOGPROBS,
                               .tokens_off = e.tokens_off,
                               .tokens_len = 5,
                               .max_tokens = 3,
                               .choices = 2,
                               .top_k = 6,
                               .seed = 4,
                               .temperature = 0.5f,
                               .top_p = 0.25f,
                               .min_p = 0.125f,
                               .repetition = 1};
    assert_memory_equal(&e, &expected, sizeof e);
    assert_memory_equal(tokens, prompt, sizeof prompt);
    llm_close(c);
}

static void scores_and_nops_carry_only_what_they_need(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    r.op = LLM_OP_SCORE;
    uint64_t id = submit(c, &r), nop = submit_nop(c);
    struct llm_sqe e = fake_take_quietly(f);
    struct llm_sqe score = {
        .user_data = id, .op = LLM_OP_SCORE, .tokens_len = 5, .top_p = 1, .repetition = 1};
    assert_memory_equal(&e, &score, sizeof e);
    e = fake_take_quietly(f);
    struct llm_sqe expected = {
        .user_data = nop, .seq = 1, .op = LLM_OP_NOP, .top_p = 1, .repetition = 1};
    assert_memory_equal(&e, &expected, sizeof e);
    llm_close(c);
}

static void a_stream_ends_with_its_result(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    assert_int_equal(llm_inflight(c), 1);
    fake_take_quietly(f);
    expect_nothing(c);
    struct llm_cqe cqe = {.user_data = id,
                          .type = LLM_CQE_TOKENS,
                          .flags = LLM_CQE_HAS_LOGPROBS,
                          .count = 3,
                          .tokens = {1, 2, 3, 99},
                          .logprobs = {-1, -2, -3, -99}};
    ring_put(&f->ring, &cqe, NULL);
    fake_token(f, id, 0, 3, 4);
    fake_done(f, id, 0, LLM_FINISH_LENGTH);
    fake_publish(f);
    struct llm_event e = expect(c, LLM_EVENT_TOKENS, id);
    assert_int_equal(e.n_tokens, 3);
    assert_int_equal(e.position, 0);
    assert_memory_equal(e.tokens, (&(int32_t[]){1, 2, 3, 0}), 16);
    assert_memory_equal(e.logprobs, (&(float[]){-1, -2, -3, 0}), 16);
    e = expect(c, LLM_EVENT_TOKENS, id);
    assert_int_equal(e.position, 3);
    assert_int_equal(e.tokens[0], 4);
    assert_true(e.logprobs[0] == 0);
    e = expect(c, LLM_EVENT_DONE, id);
    assert_int_equal(e.finish, LLM_FINISH_LENGTH);
    assert_int_equal(e.result.t_last, id);
    assert_int_equal(e.n_tokens, 0);
    assert_int_equal(llm_inflight(c), 0);
    expect_nothing(c);
    llm_close(c);
}

static void every_choice_has_its_own_end(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    r.choices = 3;
    uint64_t id = submit(c, &r);
    fake_take_quietly(f);
    assert_int_equal(llm_inflight(c), 3);
    fake_done(f, id, 2, LLM_FINISH_STOP);
    fake_token(f, id, 1, 0, 1);
    fake_done(f, id, 1, LLM_FINISH_STOP);
    fake_publish(f);
    assert_int_equal(expect(c, LLM_EVENT_DONE, id).choice, 2);
    assert_int_equal(expect(c, LLM_EVENT_TOKENS, id).choice, 1);
    assert_int_equal(expect(c, LLM_EVENT_DONE, id).choice, 1);
    assert_int_equal(llm_inflight(c), 1);
    struct llm_request again = request();
    again.user_data = id; /* one choice is still in flight */
    assert_int_equal(llm_submit(c, &again, NULL), -EINVAL);
    fake_done(f, id, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, id);
    submit(c, &again);
    llm_close(c);
}

static void a_refusal_carries_code_and_number(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    fake_take_quietly(f);
    fake_error(f, id, LLM_EBUSY, 42);
    fake_publish(f);
    struct llm_event e = expect(c, LLM_EVENT_ERROR, id);
    assert_int_equal(e.status, LLM_EBUSY);
    assert_int_equal(e.position, 42);
    assert_int_equal(llm_inflight(c), 0);
    llm_close(c);
}

/* Each wrong request is refused here, with its code, and nothing goes out. */
static void wrong_requests_never_leave(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    static const int32_t negative[] = {1, -1}, beyond[] = {1, FAKE_VOCAB};
    struct llm_request r[32];
    int code[32], n = 0;
#define WRONG(error, ...)                                                                          \
    do {                                                                                           \
        r[n] = request();                                                                          \
        struct llm_request *q = &r[n];                                                             \
        __VA_ARGS__;                                                                               \
        code[n++] = error;                                                                         \
    } while (0)
    WRONG(-EINVAL, q->size = 0);
    WRONG(-EINVAL, q->op = LLM_OP_CANCEL);
    WRONG(-EINVAL, q->op = 1000);
    WRONG(-EINVAL, q->flags = LLM_SQE_FLAGS + 1);
    WRONG(-EINVAL, q->flags = 256);
    WRONG(-EINVAL, q->tokens = NULL);
    WRONG(-EINVAL, q->tokens = (const int32_t *)((const char *)prompt + 1));
    WRONG(-EINVAL, q->op = LLM_OP_NOP);
    WRONG(LLM_EPARAM, q->n_tokens = 0);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SCORE; q->n_tokens = 0);
    WRONG(LLM_EPARAM, q->max_tokens = 0);
    WRONG(LLM_EPARAM, q->choices = 0);
    WRONG(LLM_EPARAM, q->choices = LLM_CHOICES_MAX + 1);
    WRONG(LLM_EPARAM, q->choices = FAKE_INFLIGHT + 1);
    WRONG(LLM_EPARAM, q->temperature = -0.5f);
    WRONG(LLM_EPARAM, q->temperature = NAN);
    WRONG(LLM_EPARAM, q->temperature = INFINITY);
    WRONG(LLM_EPARAM, q->top_p = 0);
    WRONG(LLM_EPARAM, q->top_p = 1.5f);
    WRONG(LLM_EPARAM, q->top_p = NAN);
    WRONG(LLM_EPARAM, q->min_p = -0.1f);
    WRONG(LLM_EPARAM, q->min_p = 1.1f);
    WRONG(LLM_EPARAM, q->min_p = NAN);
    WRONG(LLM_ETOOLONG, q->max_tokens = FAKE_MAX_LEN - 4);
    WRONG(LLM_ETOOLONG, q->max_tokens = UINT32_MAX);
    WRONG(LLM_ETOOLONG, q->n_tokens = UINT32_MAX);
    WRONG(LLM_ETOOLONG, q->op = LLM_OP_SCORE; q->n_tokens = FAKE_MAX_LEN + 1);
    WRONG(LLM_ETOKEN, q->tokens = negative; q->n_tokens = 2);
    WRONG(LLM_ETOKEN, q->tokens = beyond; q->n_tokens = 2);
    for (int i = 0; i < n; i++) {
        int rc = llm_submit(c, &r[i], NULL);
        if (rc != code[i] || llm_errcode(c) != rc || !*llm_errmsg(c))
            fail_msg("request %d: %d (%s), expected %d", i, rc, llm_errmsg(c), code[i]);
    }
    assert_true(fake_nothing_came(f));
    assert_int_equal(llm_inflight(c), 0);
    r[0] = request();
    r[0].max_tokens = FAKE_MAX_LEN - 5;
    submit(c, &r[0]);
    llm_close(c);
}

static void random_seeds_differ_and_given_ones_stay(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    submit(c, &r);
    submit(c, &r);
    r.seed = 0;
    submit(c, &r);
    uint64_t a = fake_take_quietly(f).seed, b = fake_take_quietly(f).seed;
    assert_int_not_equal(a, b);
    assert_int_not_equal(a >> 32, b >> 32);
    assert_int_not_equal((uint32_t)a, (uint32_t)b);
    assert_int_equal(fake_take_quietly(f).seed, 0);
    llm_close(c);
}

static void ids_are_unique_among_those_in_flight(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    uint64_t chosen = submit(c, &r);
    r.user_data = chosen + 1; /* what the library would choose next */
    assert_int_equal(submit(c, &r), chosen + 1);
    assert_int_equal(llm_submit(c, &r, NULL), -EINVAL);
    r.user_data = 0;
    assert_int_equal(submit(c, &r), chosen + 2);
    llm_close(c);
}

/* ---- limits ---- */

static void max_inflight_says_again(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    r.n_tokens = 1;
    r.choices = 3;
    uint64_t first = submit(c, &r);
    submit(c, &r);
    assert_int_equal(llm_submit(c, &r, NULL), -EAGAIN);
    assert_non_null(strstr(llm_errmsg(c), "max_inflight"));
    assert_int_equal(llm_cancel(c, first), -EAGAIN);
    fake_take_quietly(f);
    fake_take_quietly(f);
    for (uint32_t i = 0; i < 3; i++)
        fake_done(f, first, i, LLM_FINISH_STOP);
    fake_publish(f);
    for (int i = 0; i < 3; i++)
        expect(c, LLM_EVENT_DONE, first);
    submit(c, &r);
    llm_close(c);
}

static void a_full_arena_says_again(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    int32_t tokens[60] = {0};
    struct llm_request r = request();
    r.tokens = tokens;
    r.n_tokens = 60; /* 240 of 400 bytes */
    submit(c, &r);
    assert_int_equal(llm_submit(c, &r, NULL), -EAGAIN);
    assert_non_null(strstr(llm_errmsg(c), "arena"));
    assert_null(llm_reserve(c, 60));
    assert_int_equal(llm_errcode(c), -EAGAIN);
    assert_int_equal(llm_inflight(c), 1);
    fake_take_quietly(f);
    submit(c, &r);
    fake_take_quietly(f);
    llm_close(c);
}

/* max_inflight is smaller than the ring: only an engine that answers before it says that it took
 * the entries can let the ring fill up. */
static void a_full_submission_ring_says_again(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    uint64_t id[FAKE_SQ + 1];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 4; i++)
            id[i] = submit_nop(c);
        const char *why = "";
        struct llm_sqe e;
        assert_int_equal(ring_sweep(&f->ring, &why), 4);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(ring_take(&f->ring, &e, &why), 0);
            assert_int_equal(ring_taken(&f->ring, 1, &why), 0);
            fake_done(f, id[i], 0, LLM_FINISH_STOP);
        }
        order_set(&f->ring.down->sq_head, 0); /* an engine that is slow to say what it took */
        fake_publish(f);
        for (int i = 0; i < 4; i++)
            expect(c, LLM_EVENT_DONE, id[i]);
    }
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = LLM_OP_NOP;
    assert_int_equal(llm_submit(c, &r, NULL), -EAGAIN);
    assert_non_null(strstr(llm_errmsg(c), "submission ring"));
    order_release(&f->ring.down->sq_head, FAKE_SQ);
    submit_nop(c);
    llm_close(c);
}

/* ---- in place ---- */

static void a_reserved_prompt_is_not_copied(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    for (int round = 0; round < 50; round++) { /* round the arena several times */
        uint32_t n = 20 + (uint32_t)round % 7;
        int32_t *tokens = llm_reserve(c, n), taken[FAKE_ARENA / 4];
        assert_non_null(tokens);
        for (uint32_t i = 0; i < n; i++)
            tokens[i] = round;
        struct llm_request r = request();
        r.tokens = tokens;
        r.n_tokens = n - 1; /* fewer than were reserved */
        uint64_t id = submit(c, &r);
        struct llm_sqe e = fake_take(f, taken);
        assert_int_equal(e.tokens_len, n - 1);
        assert_int_equal(taken[0], round);
        assert_int_equal(taken[n - 2], round);
        const uint8_t *theirs = f->ring.arena + e.tokens_off;
        ((int32_t *)(void *)tokens)[0] = 99; /* the very memory that the engine reads */
        assert_int_equal(*(const int32_t *)(const void *)theirs, 99);
        fake_done(f, id, 0, LLM_FINISH_STOP);
        fake_publish(f);
        expect(c, LLM_EVENT_DONE, id);
    }
    llm_close(c);
}

static void a_reserve_has_its_limits(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    assert_null(llm_reserve(c, FAKE_ARENA / 4 + 1));
    assert_int_equal(llm_errcode(c), -E2BIG);
    assert_null(llm_reserve(c, UINT32_MAX));
    assert_int_equal(llm_errcode(c), -E2BIG);
    assert_null(llm_reserve(c, 0));
    assert_int_equal(llm_errcode(c), -EINVAL);
    int32_t *tokens = llm_reserve(c, 8);
    assert_non_null(tokens);
    memset(tokens, 0, 32);
    struct llm_request r = request();
    r.tokens = tokens + 1; /* not what was given */
    assert_int_equal(llm_submit(c, &r, NULL), -EINVAL);
    r.tokens = tokens;
    r.n_tokens = 9; /* more than was given */
    assert_int_equal(llm_submit(c, &r, NULL), -EINVAL);
    r.n_tokens = 8;
    submit(c, &r);
    assert_int_equal(llm_submit(c, &r, NULL), -EINVAL); /* given only once */
    llm_close(c);
}

static void a_reserve_survives_a_refused_submit(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    r.choices = FAKE_INFLIGHT;
    uint64_t id = submit(c, &r);
    int32_t *tokens = llm_reserve(c, 3), taken[FAKE_ARENA / 4];
    tokens[0] = tokens[1] = tokens[2] = 55;
    struct llm_request late = request();
    late.tokens = tokens;
    late.n_tokens = 3;
    assert_int_equal(llm_submit(c, &late, NULL), -EAGAIN);
    fake_take_quietly(f);
    for (uint32_t i = 0; i < FAKE_INFLIGHT; i++)
        fake_done(f, id, i, LLM_FINISH_STOP);
    fake_publish(f);
    for (uint32_t i = 0; i < FAKE_INFLIGHT; i++)
        expect(c, LLM_EVENT_DONE, id);
    submit(c, &late);
    fake_take(f, taken);
    assert_int_equal(taken[0], 55);
    assert_int_equal(taken[2], 55);
    llm_close(c);
}

/* ---- cancel ---- */

static void a_cancel_is_silent_but_its_target_ends(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    fake_take_quietly(f);
    assert_int_equal(llm_cancel(c, id), 0);
    assert_int_equal(llm_cancel(c, id), 0); /* once is enough */
    struct llm_sqe e = fake_take_quietly(f);
    assert_int_equal(e.op, LLM_OP_CANCEL);
    assert_int_equal(e.target, id);
    assert_int_not_equal(e.user_data, id);
    assert_true(fake_nothing_came(f));
    assert_int_equal(llm_inflight(c), 1);
    fake_done(f, e.user_data, 0, LLM_FINISH_NONE);
    fake_token(f, id, 0, 0, 1);
    fake_done(f, id, 0, LLM_FINISH_CANCELLED);
    fake_publish(f);
    expect(c, LLM_EVENT_TOKENS, id);
    assert_int_equal(expect(c, LLM_EVENT_DONE, id).finish, LLM_FINISH_CANCELLED);
    expect_nothing(c);
    assert_int_equal(llm_cancel(c, id), 0); /* ended already */
    assert_int_equal(llm_cancel(c, 12345), 0);
    assert_int_equal(llm_cancel(c, 0), 0);
    assert_int_equal(llm_cancel(c, e.user_data), 0);
    assert_true(fake_nothing_came(f));
    llm_close(c);
}

/* The cancel may end after its target, and with an error: both are swallowed. */
static void a_late_cancel_keeps_nobody_waiting(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    struct llm_event event;
    uint64_t id = submit(c, &r);
    assert_int_equal(llm_cancel(c, id), 0);
    fake_take_quietly(f);
    struct llm_sqe e = fake_take_quietly(f);
    fake_done(f, id, 0, LLM_FINISH_CANCELLED);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, id);
    assert_int_equal(llm_inflight(c), 0);
    assert_int_equal(llm_wait(c, &event, -1), -ENOENT);
    fake_error(f, e.user_data, -ENOENT, 0);
    fake_publish(f);
    assert_int_equal(llm_wait(c, &event, -1), -ENOENT);
    r.choices = FAKE_INFLIGHT; /* the cancel's place is free again */
    submit(c, &r);
    llm_close(c);
}

/* ---- waiting ---- */

static void waiting_for_nothing_is_refused(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_event e;
    assert_int_equal(llm_wait(c, &e, -1), -ENOENT);
    assert_int_equal(llm_errcode(c), -ENOENT);
    submit_nop(c);
    assert_int_equal(llm_wait(c, &e, 0), 0);
    assert_int_equal(llm_wait(c, &e, 1), 0);
    llm_set_spin_us(c, 100);
    assert_int_equal(llm_wait(c, &e, 1), 0);
    llm_set_spin_us(c, UINT32_MAX);
    assert_int_equal(llm_wait(c, &e, 1), 0);
    llm_close(c);
}

/* What a thread of the test does while the client waits. */
struct helper {
    struct fake *f;
    pthread_t waiter;
    uint64_t id;
    atomic_bool woke, stop;
    int woken;
};

/* Publishes a final once the client sleeps, and wakes it. */
static void *wake_when_asleep(void *arg)
{
    struct helper *h = arg;
    while (!ring_wants_wake(&h->f->ring))
        ;
    fake_done(h->f, h->id, 0, LLM_FINISH_STOP);
    fake_wake(h->f, fake_publish(h->f));
    return NULL;
}

static void a_sleeping_client_wakes_for_its_event(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    for (int round = 0; round < 200; round++) {
        struct helper h = {.f = f, .id = submit_nop(c)};
        struct llm_event e;
        pthread_t thread;
        fake_take_quietly(f);
        assert_int_equal(pthread_create(&thread, NULL, wake_when_asleep, &h), 0);
        int rc = llm_wait(c, &e, -1);
        pthread_join(thread, NULL);
        assert_int_equal(rc, 1);
        assert_int_equal(e.id, h.id);
    }
    llm_close(c);
}

static void on_signal(int number)
{
    (void)number;
}

/* A signal may hit before the sleep began: it is sent until the wait has returned. */
static void *signal_while_asleep(void *arg)
{
    struct helper *h = arg;
    while (!atomic_load(&h->stop))
        if (ring_wants_wake(&h->f->ring))
            pthread_kill(h->waiter, SIGUSR1);
    return NULL;
}

static void a_signal_interrupts_a_wait(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct helper h = {.f = f, .waiter = pthread_self()};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct llm_event e;
    pthread_t thread;
    submit_nop(c);
    sigaction(SIGUSR1, &action, NULL);
    assert_int_equal(pthread_create(&thread, NULL, signal_while_asleep, &h), 0);
    int rc = llm_wait(c, &e, -1);
    atomic_store(&h.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(rc, -EINTR);
    assert_int_equal(llm_errcode(c), -EINTR);
    llm_close(c);
}

/* The engine sleeps on a submission cursor: a submit must wake it. */
static void *sleep_on_submissions(void *arg)
{
    struct helper *h = arg;
    struct timespec long_time = {60, 0};
    ring_arm_all(h->f->p);
    ring_arm_fence();
    uint32_t expected = h->f->ring.sq_tail;
    atomic_store(&h->woke, true);
    h->woken = syscall(SYS_futex, &h->f->ring.up->sq_tail, FUTEX_WAIT, expected, &long_time, NULL,
                       0) == 0 ||
               errno == EAGAIN;
    return NULL;
}

static void a_sleeping_engine_wakes_for_a_submission(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    for (int round = 0; round < 100; round++) {
        struct helper h = {.f = f};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, sleep_on_submissions, &h), 0);
        while (!atomic_load(&h.woke))
            ;
        uint64_t id = submit_nop(c);
        pthread_join(thread, NULL);
        assert_true(h.woken);
        ring_disarm_all(f->p);
        fake_take_quietly(f);
        fake_done(f, id, 0, LLM_FINISH_STOP);
        fake_publish(f);
        expect(c, LLM_EVENT_DONE, id);
    }
    llm_close(c);
}

/* A client that takes events but never finds the ring empty gives room back all the same. */
static void room_is_given_back_while_events_are_taken(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    fake_take_quietly(f);
    for (uint32_t i = 0; i < FAKE_CQ - FAKE_INFLIGHT; i++)
        fake_token(f, id, 0, i, 1);
    fake_publish(f);
    for (uint32_t i = 0; i < 200; i++) {
        expect(c, LLM_EVENT_TOKENS, id);
        if (!ring_token_room(&f->ring))
            continue;
        while (ring_token_room(&f->ring))
            fake_token(f, id, 0, 0, 1);
        fake_publish(f);
    }
    llm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAKE_TEST(a_request_arrives_as_it_was_asked),
        FAKE_TEST(scores_and_nops_carry_only_what_they_need),
        FAKE_TEST(a_stream_ends_with_its_result),
        FAKE_TEST(every_choice_has_its_own_end),
        FAKE_TEST(a_refusal_carries_code_and_number),
        FAKE_TEST(wrong_requests_never_leave),
        FAKE_TEST(random_seeds_differ_and_given_ones_stay),
        FAKE_TEST(ids_are_unique_among_those_in_flight),
        FAKE_TEST(max_inflight_says_again),
        FAKE_TEST(a_full_arena_says_again),
        FAKE_TEST(a_full_submission_ring_says_again),
        FAKE_TEST(a_reserved_prompt_is_not_copied),
        FAKE_TEST(a_reserve_has_its_limits),
        FAKE_TEST(a_reserve_survives_a_refused_submit),
        FAKE_TEST(a_cancel_is_silent_but_its_target_ends),
        FAKE_TEST(a_late_cancel_keeps_nobody_waiting),
        FAKE_TEST(waiting_for_nothing_is_refused),
        FAKE_TEST(a_sleeping_client_wakes_for_its_event),
        FAKE_TEST(a_signal_interrupts_a_wait),
        FAKE_TEST(a_sleeping_engine_wakes_for_a_submission),
        FAKE_TEST(room_is_given_back_while_events_are_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
