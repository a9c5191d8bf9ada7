/* test_client_end.c - the engine dies, evicts the client, or breaks the protocol: what was
 * published comes first, then every outstanding final ends with the reason, then the reason itself.
 */
#include "fake_engine.h"

static uint64_t submit(struct llm_client *c, uint64_t id, uint32_t choices)
{
    static const int32_t prompt[] = {1, 2};
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt;
    r.n_tokens = 2;
    r.choices = choices;
    r.user_data = id;
    if (llm_submit(c, &r, &id))
        fail_msg("%s", llm_errmsg(c));
    return id;
}

/* Takes the ERROR events of all that is owed: each choice of ids 1 .. 3 once. Then only the code.
 */
static void expect_all_ended(struct llm_client *c, const uint32_t choices[4], int code)
{
    uint64_t seen[4] = {0};
    uint32_t owed = choices[1] + choices[2] + choices[3];
    struct llm_event e;
    for (; owed; owed--) {
        assert_int_equal(llm_inflight(c), owed);
        assert_int_equal(llm_wait(c, &e, -1), 1);
        assert_int_equal(e.type, LLM_EVENT_ERROR);
        assert_int_equal(e.status, code);
        assert_in_range(e.id, 1, 3);
        assert_true(e.choice < choices[e.id]);
        assert_false(seen[e.id] >> e.choice & 1);
        seen[e.id] |= 1ull << e.choice;
    }
    for (int again = 0; again < 2; again++) {
        assert_int_equal(llm_wait(c, &e, -1), code);
        assert_int_equal(llm_poll(c, &e), code);
        assert_int_equal(llm_inflight(c), 0);
        assert_int_equal(llm_errcode(c), code);
    }
}

/* Whatever is called afterwards gives the reason, with its sentence. */
static void expect_over(struct llm_client *c, int code, const char *text)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = LLM_OP_NOP;
    assert_int_equal(llm_submit(c, &r, NULL), code);
    assert_non_null(strstr(llm_errmsg(c), text));
    assert_int_equal(llm_cancel(c, 1), code);
    assert_null(llm_reserve(c, 1));
    assert_int_equal(llm_errcode(c), code);
    assert_non_null(strstr(llm_errmsg(c), text));
}

/* Three requests in different states: one with tokens, one just taken, one not even read. */
static struct llm_client *three_requests(struct fake *f)
{
    struct llm_client *c = fake_client(f);
    struct llm_event e;
    submit(c, 1, 2);
    submit(c, 2, 1);
    fake_take_quietly(f);
    fake_take_quietly(f);
    submit(c, 3, 1);
    fake_token(f, 1, 0, 0, 42);
    fake_publish(f);
    assert_int_equal(llm_wait(c, &e, -1), 1);
    assert_int_equal(e.type, LLM_EVENT_TOKENS);
    return c;
}

static void a_dead_engine_ends_everything(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    fake_die(f);
    expect_all_ended(c, (uint32_t[]){0, 2, 1, 1}, LLM_EOWNERDEAD);
    expect_over(c, LLM_EOWNERDEAD, "died");
    llm_close(c);
}

static void what_it_published_before_comes_first(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    struct llm_event e;
    fake_token(f, 1, 1, 0, 43);
    fake_done(f, 1, 0, LLM_FINISH_STOP);
    fake_done(f, 2, 0, LLM_FINISH_LENGTH);
    fake_publish(f);
    fake_done(f, 1, 1, LLM_FINISH_STOP); /* put, but not published: it never was */
    fake_die(f);
    assert_int_equal(llm_wait(c, &e, -1), 1);
    assert_int_equal(e.tokens[0], 43);
    assert_int_equal(llm_wait(c, &e, -1), 1);
    assert_int_equal(e.type, LLM_EVENT_DONE);
    assert_int_equal(llm_wait(c, &e, -1), 1);
    assert_int_equal(e.finish, LLM_FINISH_LENGTH);
    assert_int_equal(llm_wait(c, &e, -1), 1);
    assert_int_equal(e.type, LLM_EVENT_ERROR);
    assert_int_equal(e.id == 1 ? e.choice : 0, e.id == 1 ? 1 : 0);
    assert_int_equal(llm_wait(c, &e, -1), 1);
    assert_int_equal(e.status, LLM_EOWNERDEAD);
    assert_int_equal(llm_wait(c, &e, -1), LLM_EOWNERDEAD);
    llm_close(c);
}

/* Who only polls learns it too, although no call asks the kernel each time. */
static void a_poller_learns_of_the_death(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    struct llm_event e;
    int rc;
    fake_die(f);
    while ((rc = llm_poll(c, &e)) == 0)
        ;
    assert_int_equal(rc, 1);
    assert_int_equal(e.status, LLM_EOWNERDEAD);
    llm_close(c);
}

static void a_spinner_learns_of_the_death(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    llm_set_spin_us(c, UINT32_MAX);
    fake_die(f);
    expect_all_ended(c, (uint32_t[]){0, 2, 1, 1}, LLM_EOWNERDEAD);
    llm_close(c);
}

static void an_engine_that_was_stopped_did_not_die(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    order_release(&f->p->state, LLM_STATE_STOPPED);
    fake_die(f);
    expect_all_ended(c, (uint32_t[]){0, 2, 1, 1}, LLM_EOWNERDEAD);
    expect_over(c, LLM_EOWNERDEAD, "was stopped");
    llm_close(c);
}

static void with_nothing_in_flight_the_death_is_the_answer(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_event e;
    int rc;
    fake_die(f);
    while ((rc = llm_poll(c, &e)) == 0)
        ;
    assert_int_equal(rc, LLM_EOWNERDEAD);
    assert_int_equal(llm_wait(c, &e, -1), LLM_EOWNERDEAD);
    expect_over(c, LLM_EOWNERDEAD, "died");
    llm_close(c);
}

/* A cancel in flight has no event of its own, also not at the end. */
static void open_cancels_end_silently(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    submit(c, 1, 2);
    assert_int_equal(llm_cancel(c, 1), 0);
    fake_die(f);
    expect_all_ended(c, (uint32_t[]){0, 2, 0, 0}, LLM_EOWNERDEAD);
    llm_close(c);
}

static void an_eviction_gives_its_reason(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    struct llm_event e;
    fake_token(f, 1, 1, 0, 43);
    fake_publish(f);
    ring_evict(&f->ring, LLM_EPROTO, "sq_tail jumped\nbeyond the ring");
    assert_int_equal(llm_submit(c, &(struct llm_request)LLM_REQUEST_INIT, NULL), LLM_EEVICTED);
    assert_int_equal(llm_poll(c, &e), 1); /* what was published before */
    assert_int_equal(e.tokens[0], 43);
    expect_all_ended(c, (uint32_t[]){0, 2, 1, 1}, LLM_EEVICTED);
    expect_over(c, LLM_EEVICTED, "sq_tail jumped?beyond the ring");
    llm_close(c);
}

/* The engine closes the socket behind an eviction: the reason is the eviction. */
static void an_eviction_is_no_death(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    ring_evict(&f->ring, LLM_EPROTO, "too many in flight");
    fake_die(f);
    expect_all_ended(c, (uint32_t[]){0, 2, 1, 1}, LLM_EEVICTED);
    expect_over(c, LLM_EEVICTED, "too many in flight");
    llm_close(c);
}

/* The same while the client sleeps and nobody wakes it: it finds the closed socket first. */
static void *evict_when_asleep(void *arg)
{
    struct fake *f = arg;
    while (!ring_wants_wake(&f->ring))
        ;
    ring_evict(&f->ring, LLM_EPROTO, "while asleep");
    close(f->socket);
    f->socket = -1;
    return NULL;
}

static void an_eviction_in_sleep_is_no_death(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, evict_when_asleep, f), 0);
    expect_all_ended(c, (uint32_t[]){0, 2, 1, 1}, LLM_EEVICTED);
    pthread_join(thread, NULL);
    expect_over(c, LLM_EEVICTED, "while asleep");
    llm_close(c);
}

/* The end may come right after a publish, between the client's two looks. */
static void *finish_and_evict(void *arg)
{
    struct fake *f = arg;
    fake_done(f, 1, 0, LLM_FINISH_STOP);
    ring_publish(&f->ring);
    ring_evict(&f->ring, LLM_EPROTO, "at once");
    return NULL;
}

static void no_end_overtakes_what_was_published(void **state)
{
    struct fake *f = *state;
    for (int round = 0; round < 300; round++) {
        struct llm_client *c = fake_client(f);
        struct llm_event e;
        pthread_t thread;
        submit(c, 1, 1);
        fake_take_quietly(f);
        assert_int_equal(pthread_create(&thread, NULL, finish_and_evict, f), 0);
        int rc;
        while ((rc = llm_poll(c, &e)) == 0)
            ;
        pthread_join(thread, NULL);
        assert_int_equal(rc, 1);
        assert_int_equal(e.type, LLM_EVENT_DONE);
        assert_int_equal(llm_poll(c, &e), LLM_EEVICTED);
        llm_close(c);
        fake_die(f);
    }
}

/* Packets that this version does not know are no death. */
static void unknown_packets_are_dropped(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    struct llm_event e;
    int fds = fake_open_fds();
    for (int i = 0; i < 20; i++)
        assert_int_equal(control_send(f->socket, "hello?", 6, &f->socket, 1), 0);
    assert_int_equal(llm_wait(c, &e, 250), 0);
    assert_int_equal(fake_open_fds(), fds);
    fake_die(f);
    expect_all_ended(c, (uint32_t[]){0, 2, 1, 1}, LLM_EOWNERDEAD);
    llm_close(c);
}

/* ---- a broken engine ---- */

/* Writes one completion as it stands, past ring_put's own checks. */
static void forge(struct fake *f, struct llm_cqe cqe)
{
    struct ring_engine *r = &f->ring;
    cqe.seq += r->cq_tail;
    r->down->entries[r->cq_tail & (FAKE_CQ - 1)] = cqe;
    r->cq_tail++;
    fake_publish(f);
}

static void nonsense_ends_everything(void **state)
{
    static const struct llm_cqe wrong[] = {
        {.user_data = 9, .type = LLM_CQE_DONE},                  /* nobody asked for it */
        {.user_data = 0, .type = LLM_CQE_DONE},                  /* no id */
        {.user_data = 1, .type = LLM_CQE_DONE, .choice = 2},     /* of two choices */
        {.user_data = 1, .type = LLM_CQE_TOKENS, .count = 5},    /* more than fit */
        {.user_data = 9, .type = LLM_CQE_TOKENS, .count = 1},    /* nobody asked for it */
        {.user_data = 1, .type = LLM_CQE_ERROR, .status = 0},    /* an error of no kind */
        {.user_data = 1, .type = 77},                            /* unknown */
        {.user_data = 1, .type = LLM_CQE_DONE, .seq = 12345678}, /* not its turn */
    };
    struct fake *f = *state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct llm_client *c = three_requests(f);
        forge(f, wrong[i]);
        expect_all_ended(c, (uint32_t[]){0, 2, 1, 1}, LLM_EPROTO);
        expect_over(c, LLM_EPROTO, "engine");
        llm_close(c);
        fake_die(f);
    }
}

static void a_second_final_ends_everything(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = three_requests(f);
    struct llm_event e;
    fake_done(f, 2, 0, LLM_FINISH_STOP);
    forge(f, (struct llm_cqe){.user_data = 2, .type = LLM_CQE_DONE});
    assert_int_equal(llm_poll(c, &e), 1);
    expect_all_ended(c, (uint32_t[]){0, 2, 0, 1}, LLM_EPROTO);
    llm_close(c);
}

static void cursors_that_jump_end_everything(void **state)
{
    struct fake *f = *state;
    for (int i = 0; i < 3; i++) {
        struct llm_client *c = three_requests(f);
        if (i == 0)
            order_release(&f->ring.down->cq_tail, FAKE_CQ + 2);
        if (i == 1)
            order_release(&f->ring.down->cq_tail, 0);
        if (i == 2) {
            order_release(&f->ring.down->sq_head, 1000);
            assert_null(llm_reserve(c, 1));
            assert_int_equal(llm_errcode(c), LLM_EPROTO);
        }
        expect_all_ended(c, (uint32_t[]){0, 2, 1, 1}, LLM_EPROTO);
        llm_close(c);
        fake_die(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAKE_TEST(a_dead_engine_ends_everything),
        FAKE_TEST(what_it_published_before_comes_first),
        FAKE_TEST(a_poller_learns_of_the_death),
        FAKE_TEST(a_spinner_learns_of_the_death),
        FAKE_TEST(an_engine_that_was_stopped_did_not_die),
        FAKE_TEST(with_nothing_in_flight_the_death_is_the_answer),
        FAKE_TEST(open_cancels_end_silently),
        FAKE_TEST(an_eviction_gives_its_reason),
        FAKE_TEST(an_eviction_is_no_death),
        FAKE_TEST(an_eviction_in_sleep_is_no_death),
        FAKE_TEST(no_end_overtakes_what_was_published),
        FAKE_TEST(unknown_packets_are_dropped),
        FAKE_TEST(nonsense_ends_everything),
        FAKE_TEST(a_second_final_ends_everything),
        FAKE_TEST(cursors_that_jump_end_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
