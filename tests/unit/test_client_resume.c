/* test_client_resume.c - llm_resume against an engine that the test plays: what is sent again, and
 * that the caller sees each stream whole, once. Each "death" closes the engine's sockets and throws
 * its memory away; the next one may have other limits, another version or other numerics.
 */
#include "../../client/llmclient.h"
#include "../../client/resume_state.h"

#include "fake_engine.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>

static const int32_t prompt[] = {3, 1, 4, 1, 5};

static struct llm_request request(void)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = 6, r.seed = 9, r.temperature = 0.5f;
    return r;
}

static struct llm_client *resuming_client(struct fake *f, uint32_t timeout_ms, unsigned flags)
{
    struct llm_client *c = fake_client(f);
    if (llm_resume(c, timeout_ms, flags))
        fail_msg("%s", llm_errmsg(c));
    return c;
}

static uint64_t submit(struct llm_client *c, const struct llm_request *r)
{
    uint64_t id = 0;
    if (llm_submit(c, r, &id))
        fail_msg("%s", llm_errmsg(c));
    return id;
}

static struct llm_event expect(struct llm_client *c, enum llm_event_type type, uint64_t id,
                               uint32_t choice)
{
    struct llm_event e;
    int rc = llm_poll(c, &e);
    if (rc != 1)
        fail_msg("llm_poll: %d (%s)", rc, llm_errmsg(c));
    assert_int_equal(e.type, type);
    assert_true(e.id == id);
    assert_int_equal(e.choice, choice);
    return e;
}

static void expect_token(struct llm_client *c, uint64_t id, uint32_t choice, uint32_t position,
                         int32_t token)
{
    struct llm_event e = expect(c, LLM_EVENT_TOKENS, id, choice);
    assert_int_equal(e.n_tokens, 1);
    assert_int_equal(e.position, position);
    assert_int_equal(e.tokens[0], token);
}

static void expect_nothing(struct llm_client *c)
{
    struct llm_event e;
    assert_int_equal(llm_poll(c, &e), 0);
}

/* A poller asks for the engine only from time to time: one that has armed asks at once. */
static void notice(struct llm_client *c)
{
    llm_arm(c);
}

/* Dies and comes back; the client has greeted, and been answered. */
static void come_back(struct fake *f, struct llm_client *c)
{
    fake_die(f);
    notice(c);
    expect_nothing(c); /* finds out, and knocks */
    fake_handshake(f);
    expect_nothing(c); /* reads the answer, sends again */
}

static bool readable(int fd, int timeout_ms)
{
    return poll(&(struct pollfd){fd, POLLIN, 0}, 1, timeout_ms) == 1;
}

static struct llm_sqe take(struct fake *f, const int32_t *tokens, uint32_t n)
{
    int32_t came[FAKE_ARENA / 4];
    struct llm_sqe e = fake_take(f, came);
    assert_int_equal(e.tokens_len, n);
    assert_memory_equal(came, tokens, n * sizeof *came);
    return e;
}

/* ---- streams ---- */

static void a_stream_goes_on(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    take(f, prompt, 5);
    fake_token(f, id, 0, 0, 20);
    fake_publish(f);
    expect_token(c, id, 0, 0, 20);
    fake_token(f, id, 0, 1, 21);
    fake_publish(f); /* not taken yet when it dies: handed out first */
    fake_die(f);
    notice(c);
    expect_token(c, id, 0, 1, 21);
    expect_nothing(c);
    fake_handshake(f);
    expect_nothing(c);

    static const int32_t whole[] = {3, 1, 4, 1, 5, 20, 21};
    struct llm_sqe e = take(f, whole, 7);
    assert_int_equal(e.op, LLM_OP_GENERATE);
    assert_int_equal(e.output_from, 5);
    assert_int_equal(e.choices, 1);
    assert_int_equal(e.first_choice, 0);
    assert_int_equal(e.max_tokens, 6);
    assert_true(e.seed == 9 && e.temperature == 0.5f && e.user_data != id);
    fake_token(f, e.user_data, 0, 2, 22);
    fake_publish(f);
    expect_token(c, id, 0, 2, 22);

    come_back(f, c); /* and again */
    static const int32_t more[] = {3, 1, 4, 1, 5, 20, 21, 22};
    e = take(f, more, 8);
    assert_int_equal(e.output_from, 5);
    fake_token(f, e.user_data, 0, 3, 23);
    fake_done(f, e.user_data, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect_token(c, id, 0, 3, 23);
    assert_int_equal(expect(c, LLM_EVENT_DONE, id, 0).finish, LLM_FINISH_STOP);
    assert_int_equal(llm_inflight(c), 0);
    submit(c, &r);
    llm_close(c);
}

/* Nothing was delivered of it: it is sent as it was. */
static void what_has_not_begun_goes_whole(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    r.choices = 3, r.first_choice = 2, r.seed = LLM_SEED_RANDOM;
    uint64_t id = submit(c, &r), seed = take(f, prompt, 5).seed;
    come_back(f, c);
    struct llm_sqe e = take(f, prompt, 5);
    assert_true(e.seed == seed);
    assert_int_equal(e.choices, 3);
    assert_int_equal(e.first_choice, 2);
    assert_int_equal(e.output_from, 0);
    for (uint32_t choice = 2; choice < 5; choice++)
        fake_done(f, e.user_data, choice, LLM_FINISH_STOP);
    fake_publish(f);
    for (uint32_t choice = 2; choice < 5; choice++)
        expect(c, LLM_EVENT_DONE, id, choice);
    assert_int_equal(llm_inflight(c), 0);
    llm_close(c);
}

static void each_choice_goes_on_by_itself(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    r.choices = 4;
    uint64_t id = submit(c, &r);
    take(f, prompt, 5);
    fake_token(f, id, 1, 0, 30);
    fake_token(f, id, 3, 0, 31);
    fake_done(f, id, 2, LLM_FINISH_STOP);
    fake_publish(f);
    expect_token(c, id, 1, 0, 30);
    expect_token(c, id, 3, 0, 31);
    expect(c, LLM_EVENT_DONE, id, 2);
    come_back(f, c);

    static const int32_t one[] = {3, 1, 4, 1, 5, 30}, three[] = {3, 1, 4, 1, 5, 31};
    const struct {
        const int32_t *tokens;
        uint32_t n, choice;
    } expected[] = {{prompt, 5, 0}, {one, 6, 1}, {three, 6, 3}};
    struct llm_sqe e[3];
    for (int i = 0; i < 3; i++) {
        e[i] = take(f, expected[i].tokens, expected[i].n);
        assert_int_equal(e[i].choices, 1);
        assert_int_equal(e[i].first_choice, expected[i].choice);
        assert_int_equal(e[i].output_from, expected[i].n > 5 ? 5 : 0);
    }
    assert_true(e[0].user_data != e[1].user_data && e[1].user_data != e[2].user_data);
    fake_token(f, e[2].user_data, 3, 1, 41);
    fake_done(f, e[0].user_data, 0, LLM_FINISH_LENGTH);
    fake_done(f, e[2].user_data, 3, LLM_FINISH_STOP);
    fake_done(f, e[1].user_data, 1, LLM_FINISH_STOP);
    fake_publish(f);
    expect_token(c, id, 3, 1, 41);
    expect(c, LLM_EVENT_DONE, id, 0);
    expect(c, LLM_EVENT_DONE, id, 3);
    expect(c, LLM_EVENT_DONE, id, 1);
    assert_int_equal(llm_inflight(c), 0);
    llm_close(c);
}

/* A request that is itself a continuation: its own boundary stays, and positions are its own. */
static void a_continuation_goes_on(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    r.output_from = 3;
    uint64_t id = submit(c, &r);
    take(f, prompt, 5);
    fake_token(f, id, 0, 2, 20);
    fake_publish(f);
    expect_token(c, id, 0, 2, 20);
    come_back(f, c);
    static const int32_t whole[] = {3, 1, 4, 1, 5, 20};
    struct llm_sqe e = take(f, whole, 6);
    assert_int_equal(e.output_from, 3);
    for (uint32_t i = 3; i < 6; i++)
        fake_token(f, e.user_data, 0, i, (int32_t)i);
    fake_publish(f);
    for (uint32_t i = 3; i < 6; i++)
        expect_token(c, id, 0, i, (int32_t)i);
    fake_die(f); /* the final is lost, but 2 + 4 tokens are all 6 */
    notice(c);
    struct llm_event done = expect(c, LLM_EVENT_DONE, id, 0);
    assert_int_equal(done.finish, LLM_FINISH_LENGTH);
    assert_int_equal(done.position, 6);
    llm_close(c);
}

/* ---- ends without the engine ---- */

static void a_lost_final_behind_the_last_token(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    r.max_tokens = 2;
    uint64_t id = submit(c, &r);
    take(f, prompt, 5);
    fake_token(f, id, 0, 0, 1);
    fake_token(f, id, 0, 1, 2);
    fake_publish(f);
    expect_token(c, id, 0, 0, 1);
    expect_token(c, id, 0, 1, 2);
    fake_die(f);
    notice(c);
    struct llm_event e = expect(c, LLM_EVENT_DONE, id, 0); /* before an engine is back */
    assert_int_equal(e.finish, LLM_FINISH_LENGTH);
    assert_int_equal(e.position, 2);
    assert_int_equal(e.result.output_tokens, 2);
    assert_int_equal(llm_inflight(c), 0);
    fake_handshake(f);
    expect_nothing(c);
    assert_true(fake_nothing_came(f));
    llm_close(c);
}

/* Of a stop string only an engine knows how much of the text does not belong to the answer. */
static void a_lost_final_of_a_stop_string(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    static const struct llm_stop stop = {"b", 1};
    struct llm_request r = request();
    r.max_tokens = 2, r.stops = &stop, r.n_stops = 1;
    uint64_t id = submit(c, &r);
    take(f, prompt, 5);
    fake_token(f, id, 0, 0, 1);
    fake_token(f, id, 0, 1, 2);
    fake_publish(f);
    expect_token(c, id, 0, 0, 1);
    expect_token(c, id, 0, 1, 2);
    come_back(f, c);
    static const int32_t whole[] = {3, 1, 4, 1, 5, 1, 2};
    struct llm_sqe e = take(f, whole, 7);
    assert_int_equal(e.output_from, 5);
    struct llm_cqe done = {
        .user_data = e.user_data, .type = LLM_CQE_DONE, .finish = LLM_FINISH_STOP, .position = 2};
    ring_put(&f->ring, &done, &(struct llm_result){.stop = 1, .stop_cut = 1});
    fake_publish(f);
    struct llm_event told = expect(c, LLM_EVENT_DONE, id, 0);
    assert_int_equal(told.finish, LLM_FINISH_STOP);
    assert_int_equal(told.result.stop_cut, 1);
    assert_int_equal(llm_inflight(c), 0);
    llm_close(c);
}

static void a_cancelled_request_is_not_sent_again(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    uint64_t before = submit(c, &r), away = submit(c, &r), after = submit(c, &r);
    for (int i = 0; i < 3; i++)
        take(f, prompt, 5);
    fake_token(f, before, 0, 0, 50);
    fake_publish(f);
    expect_token(c, before, 0, 0, 50);
    assert_int_equal(llm_cancel(c, before), 0);
    fake_die(f);
    notice(c);
    struct llm_event e = expect(c, LLM_EVENT_DONE, before, 0);
    assert_int_equal(e.finish, LLM_FINISH_CANCELLED);
    assert_int_equal(e.position, 1);
    expect_nothing(c);
    assert_int_equal(llm_cancel(c, away), 0); /* ends at once */
    assert_int_equal(expect(c, LLM_EVENT_DONE, away, 0).finish, LLM_FINISH_CANCELLED);
    fake_handshake(f);
    expect_nothing(c);
    struct llm_sqe sent = take(f, prompt, 5);
    assert_int_equal(llm_cancel(c, after), 0); /* under the id that the engine knows */
    assert_int_equal(llm_cancel(c, after), 0);
    struct llm_sqe cancel = fake_take_quietly(f);
    assert_int_equal(cancel.op, LLM_OP_CANCEL);
    assert_true(cancel.target == sent.user_data);
    assert_true(fake_nothing_came(f));
    fake_done(f, sent.user_data, 0, LLM_FINISH_CANCELLED);
    fake_done(f, cancel.user_data, 0, LLM_FINISH_NONE);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, after, 0);
    expect_nothing(c);
    assert_int_equal(llm_inflight(c), 0);
    llm_close(c);
}

static void sessions_die_with_their_engine(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    r.session = 7;
    uint64_t on_it = submit(c, &r), append;
    assert_int_equal(llm_session_append(c, 7, prompt, 2, &append), 0);
    fake_die(f);
    notice(c);
    assert_int_equal(expect(c, LLM_EVENT_ERROR, on_it, 0).status, LLM_EOWNERDEAD);
    assert_int_equal(expect(c, LLM_EVENT_ERROR, append, 0).status, LLM_EOWNERDEAD);
    uint64_t open; /* what comes while the engine is away is for the next one */
    assert_int_equal(llm_session_open(c, 7, prompt, 5, 0, &open), 0);
    expect_nothing(c);
    fake_handshake(f);
    expect_nothing(c);
    struct llm_sqe e = take(f, prompt, 5);
    assert_true(e.op == LLM_OP_SESSION_OPEN && e.session == 7);
    fake_done(f, e.user_data, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, open, 0);
    llm_close(c);
}

/* ---- from the start ---- */

static void put_scores(struct fake *f, uint64_t id, uint32_t choice, uint32_t position,
                       uint16_t count)
{
    struct llm_cqe cqe = {.user_data = id,
                          .type = LLM_CQE_TOKENS,
                          .flags = LLM_CQE_HAS_LOGPROBS,
                          .count = count,
                          .choice = choice,
                          .position = position};
    for (uint32_t i = 0; i < count; i++) {
        cqe.tokens[i] = (int32_t)(10 * choice + position + i);
        cqe.logprobs[i] = -(float)(position + i);
    }
    ring_put(&f->ring, &cqe, NULL);
}

static void expect_scores(struct llm_client *c, uint64_t id, uint32_t choice, uint32_t position,
                          uint32_t count)
{
    struct llm_event e = expect(c, LLM_EVENT_TOKENS, id, choice);
    assert_int_equal(e.position, position);
    assert_int_equal(e.n_tokens, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(e.tokens[i], 10 * choice + position + i);
        assert_true(e.logprobs[i] == -(float)(position + i));
    }
}

/* The new engine sends them in other portions. */
static void scores_begin_again_without_duplicates(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    r.op = LLM_OP_SCORE;
    uint64_t id = submit(c, &r);
    take(f, prompt, 5);
    put_scores(f, id, 0, 1, 2);
    fake_publish(f);
    expect_scores(c, id, 0, 1, 2);
    come_back(f, c);
    struct llm_sqe e = take(f, prompt, 5);
    assert_int_equal(e.op, LLM_OP_SCORE);
    assert_int_equal(e.output_from, 0);
    put_scores(f, e.user_data, 0, 1, 1); /* known */
    put_scores(f, e.user_data, 0, 2, 3); /* its first is known */
    fake_done(f, e.user_data, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect_scores(c, id, 0, 3, 2);
    expect(c, LLM_EVENT_DONE, id, 0);
    assert_int_equal(llm_inflight(c), 0);
    llm_close(c);
}

static void labels_that_are_known_are_not_told_again(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    static const int32_t words[] = {7, 8, 9};
    struct llm_label labels[] = {{words, 2}, {words, 3}};
    int32_t tokens[FAKE_ARENA / 4];
    uint8_t before[FAKE_ARENA], again[FAKE_ARENA];
    uint64_t id;
    assert_int_equal(llm_choose(c, prompt, 5, labels, 2, &id), 0);
    uint32_t bytes = fake_take_all(f, tokens, before).options_len;
    put_scores(f, id, 1, 0, 3);
    fake_done(f, id, 1, LLM_FINISH_STOP);
    put_scores(f, id, 0, 0, 1);
    fake_publish(f);
    expect_scores(c, id, 1, 0, 3);
    expect(c, LLM_EVENT_DONE, id, 1);
    expect_scores(c, id, 0, 0, 1);
    come_back(f, c);
    struct llm_sqe e = fake_take_all(f, tokens, again);
    assert_int_equal(e.op, LLM_OP_CHOOSE);
    assert_int_equal(e.choices, 2);
    assert_int_equal(e.options_len, bytes);
    assert_memory_equal(before, again, bytes);
    put_scores(f, e.user_data, 0, 0, 2);
    fake_done(f, e.user_data, 0, LLM_FINISH_STOP);
    put_scores(f, e.user_data, 1, 0, 3);
    fake_publish(f);
    expect_scores(c, id, 0, 1, 1);
    expect(c, LLM_EVENT_DONE, id, 0);
    assert_int_equal(llm_inflight(c), 0);
    struct llm_request r = request(); /* the id is free, though the engine still owes a label */
    r.user_data = id;
    submit(c, &r);
    take(f, prompt, 5);
    fake_done(f, e.user_data, 1, LLM_FINISH_STOP);
    fake_done(f, id, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, id, 0);
    assert_int_equal(c->ring.inflight, 0);
    llm_close(c);
}

static void a_nop_comes_again(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request nop = LLM_REQUEST_INIT;
    nop.op = LLM_OP_NOP;
    uint64_t id = submit(c, &nop);
    come_back(f, c);
    struct llm_sqe e = fake_take_quietly(f);
    assert_int_equal(e.op, LLM_OP_NOP);
    fake_done(f, e.user_data, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, id, 0);
    llm_close(c);
}

/* ---- room, limits and times ---- */

/* Six streams of 25 tokens do not fit into the arena of 100 at once: they go as the engine takes. */
static void what_finds_no_room_follows(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    static int32_t tokens[25];
    struct llm_request r = request();
    r.tokens = tokens, r.n_tokens = 25;
    uint64_t id[FAKE_INFLIGHT];
    for (int i = 0; i < FAKE_INFLIGHT; i++) {
        tokens[0] = i;
        id[i] = submit(c, &r);
        take(f, tokens, 25);
    }
    come_back(f, c);
    assert_null(llm_reserve(c, 1)); /* the arena is spoken for */
    assert_int_equal(llm_errcode(c), -EAGAIN);
    for (int i = 0; i < FAKE_INFLIGHT; i++) {
        tokens[0] = i;
        struct llm_sqe e = take(f, tokens, 25);
        fake_token(f, e.user_data, 0, 0, i);
        fake_publish(f);
        expect_token(c, id[i], 0, 0, i);
        expect_nothing(c); /* sends what has room now */
    }
    assert_true(fake_nothing_came(f));
    assert_non_null(llm_reserve(c, 1));
    llm_close(c);
}

static void submitted_while_the_engine_is_away(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    fake_die(f);
    notice(c);
    expect_nothing(c);
    uint64_t id[FAKE_INFLIGHT];
    for (int i = 0; i < FAKE_INFLIGHT; i++)
        id[i] = submit(c, &r);
    assert_int_equal(llm_submit(c, &r, NULL), -EAGAIN);
    assert_null(llm_reserve(c, 4));
    assert_int_equal(llm_errcode(c), -EAGAIN);
    fake_handshake(f);
    expect_nothing(c);
    for (int i = 0; i < FAKE_INFLIGHT; i++) {
        struct llm_sqe e = take(f, prompt, 5);
        fake_done(f, e.user_data, 0, LLM_FINISH_STOP);
        fake_publish(f);
        expect(c, LLM_EVENT_DONE, id[i], 0);
    }
    llm_close(c);
}

/* The pointer of an llm_reserve outlives the engine that it came from. */
static void a_reserve_outlives_the_engine(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    int32_t *at = llm_reserve(c, 5);
    assert_non_null(at);
    come_back(f, c);
    memcpy(at, prompt, sizeof prompt);
    struct llm_request r = request();
    r.tokens = at;
    submit(c, &r);
    take(f, prompt, 5);
    assert_non_null(llm_reserve(c, 5));
    llm_close(c);
}

/* A map behind a prompt that was written in place moves both: what is kept is what was sent. */
static void a_reserve_that_moves_is_kept_whole(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    static const int32_t before[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, words[] = {7, 8, 9, 7, 8, 9};
    struct llm_label labels[] = {{words, 6}, {words, 5}, {words, 4}};
    struct llm_request first = request();
    uint64_t id;
    first.tokens = before, first.n_tokens = 10;
    submit(c, &first);
    int32_t *at = llm_reserve(c, 5); /* behind the first one's tokens */
    assert_non_null(at);
    memcpy(at, prompt, sizeof prompt);
    take(f, before, 10); /* the arena is empty: it begins anew */
    assert_int_equal(llm_choose(c, at, 5, labels, 3, &id), 0);
    take(f, prompt, 5);
    come_back(f, c);
    take(f, before, 10);
    take(f, prompt, 5);
    llm_close(c);
}

static void times_go_on_counting(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    r.deadline_us = 1, r.timeout_ms = 1000000, r.queue_timeout_ms = 1000000;
    uint64_t id = submit(c, &r);
    take(f, prompt, 5);
    come_back(f, c);
    struct llm_sqe e = take(f, prompt, 5);
    assert_int_equal(e.deadline_us, 1); /* over, and so it is the engine that says so */
    assert_in_range(e.timeout_ms, 1, 1000000);
    assert_in_range(e.queue_timeout_ms, 1, 1000000);
    fake_token(f, e.user_data, 0, 0, 4);
    fake_publish(f);
    expect_token(c, id, 0, 0, 4);
    come_back(f, c);
    static const int32_t whole[] = {3, 1, 4, 1, 5, 4};
    e = take(f, whole, 6);
    assert_int_equal(e.deadline_us, 0); /* the first token has come */
    assert_int_equal(e.queue_timeout_ms, 0);
    assert_in_range(e.timeout_ms, 1, 1000000);
    llm_close(c);
}

static void the_next_engine_may_grant_more(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    struct llm_limits l;
    uint64_t id[FAKE_INFLIGHT + 4];
    r.n_tokens = 1;
    for (int i = 0; i < FAKE_INFLIGHT; i++)
        id[i] = submit(c, &r);
    f->more_inflight = 4;
    come_back(f, c);
    llm_get_limits(c, &l);
    assert_int_equal(l.max_inflight, FAKE_INFLIGHT + 4);
    for (int i = FAKE_INFLIGHT; i < FAKE_INFLIGHT + 2; i++)
        id[i] = submit(c, &r); /* the ring has 8 entries */
    for (int i = 0; i < FAKE_INFLIGHT + 2; i++) {
        struct llm_sqe e = take(f, prompt, 1);
        fake_done(f, e.user_data, 0, LLM_FINISH_STOP);
        fake_publish(f);
        expect(c, LLM_EVENT_DONE, id[i], 0);
    }
    llm_close(c);
}

/* ---- refusals ---- */

static void expect_end(struct llm_client *c, uint64_t id, int code, const char *text)
{
    assert_int_equal(expect(c, LLM_EVENT_ERROR, id, 0).status, code);
    struct llm_event e;
    struct llm_request r = request();
    assert_int_equal(llm_poll(c, &e), code);
    assert_int_equal(llm_submit(c, &r, NULL), code);
    assert_int_equal(llm_arm(c), 1);
    if (!strstr(llm_errmsg(c), text))
        fail_msg("'%s' is not in: %s", text, llm_errmsg(c));
    assert_int_equal(llm_inflight(c), 0);
}

static void other_bits_are_refused(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    f->other_bits = true;
    fake_die(f);
    notice(c);
    expect_nothing(c);
    fake_handshake(f);
    expect_end(c, id, LLM_ENUMERICS, "other bits");
    llm_close(c);
}

static void other_bits_may_be_asked_for(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, LLM_RESUME_ANY_NUMERICS);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    f->other_bits = true;
    come_back(f, c);
    take(f, prompt, 5);
    f->other_vocabulary = true; /* but no other meaning of the ids */
    fake_die(f);
    notice(c);
    expect_nothing(c);
    fake_handshake(f);
    expect_end(c, id, LLM_ENUMERICS, "vocabulary");
    llm_close(c);
}

static void an_older_engine_is_refused(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    f->older = 1;
    fake_die(f);
    notice(c);
    expect_nothing(c);
    fake_handshake(f);
    expect_end(c, id, LLM_EPROTO, "1.0");
    llm_close(c);
}

static void no_engine_comes_back_in_time(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 40, 0);
    struct llm_request r = request();
    struct llm_event e;
    uint64_t id = submit(c, &r);
    unlink(f->path);
    fake_die(f);
    int rc = llm_wait(c, &e, 60000); /* sleeps from try to try */
    assert_int_equal(rc, 1);
    assert_true(e.type == LLM_EVENT_ERROR && e.id == id && e.status == LLM_EOWNERDEAD);
    assert_int_equal(llm_wait(c, &e, -1), LLM_EOWNERDEAD);
    assert_non_null(strstr(llm_errmsg(c), "none came back within 0.040 s"));
    assert_non_null(strstr(llm_errmsg(c), "no engine 'fake' is running"));
    llm_close(c);
}

/* Who looks again long after the time was over finds the engine that came back within it. */
static void who_looks_late_knocks_once_more(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 1, 0);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    close(f->listener);
    unlink(f->path);
    fake_die(f);
    notice(c);
    expect_nothing(c); /* nobody is there */
    f->listener = fake_listen(f->path);
    for (uint64_t end = client_now_ns() + 2000000; client_now_ns() < end;)
        ;
    expect_nothing(c); /* knocks */
    fake_handshake(f);
    expect_nothing(c);
    struct llm_sqe e = take(f, prompt, 5);
    fake_done(f, e.user_data, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, id, 0);
    llm_close(c);
}

/* Cancelled again and again while engines die, and hardly an event taken: no more is in flight than
 * max_inflight, told ones included. */
static void untold_ends_are_in_flight(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    struct llm_event e;
    for (int i = 0; i < 16; i++) {
        uint64_t ids[FAKE_INFLIGHT], id;
        int n = 0, rc;
        while (n < FAKE_INFLIGHT && (rc = llm_submit(c, &r, &id)) == 0)
            ids[n++] = id;
        assert_true(n == FAKE_INFLIGHT || rc == -EAGAIN);
        assert_true(llm_inflight(c) <= FAKE_INFLIGHT);
        fake_die(f);
        c->peer_looked_ns = 0;             /* with ends to be told, to arm does not ask */
        assert_true(llm_poll(c, &e) >= 0); /* finds out, and knocks */
        for (int k = 0; k < n; k++)
            llm_cancel(c, ids[k]);
        fake_handshake(f);
        assert_int_equal(llm_poll(c, &e), 1);
    }
    llm_close(c);
}

/* A refusal, a greeting that nobody answers, an engine that dies at its door: it is tried again. */
static void it_is_tried_again(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    struct llm_event e;
    uint64_t id = submit(c, &r);
    fake_die(f);
    notice(c);
    expect_nothing(c);
    f->fault = FAKE_REJECT;
    fake_handshake(f);
    expect_nothing(c); /* refused */
    static const enum fake_fault faults[] = {FAKE_HANG_UP, FAKE_FINE};
    for (int i = 0; i < 2; i++) {
        f->fault = faults[i];
        while (!readable(f->listener, 0))
            assert_int_equal(llm_wait(c, &e, 5), 0);
        fake_die(f);
        fake_handshake(f);
        expect_nothing(c);
    }
    struct llm_sqe sent = take(f, prompt, 5);
    fake_done(f, sent.user_data, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, id, 0);
    llm_close(c);
}

/* A process at its limit of files may have room again for the next try. */
static void without_descriptors_it_is_tried_again(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    struct llm_event e;
    struct rlimit was, none;
    uint64_t id = submit(c, &r);
    fake_die(f);
    notice(c);
    expect_nothing(c);
    fake_handshake(f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was, none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = llm_poll(c, &e);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(rc, 0);
    assert_non_null(strstr(c->resume->why, "no more files"));
    while (!readable(f->listener, 0))
        assert_int_equal(llm_wait(c, &e, 5), 0);
    fake_die(f);
    fake_handshake(f);
    expect_nothing(c);
    struct llm_sqe sent = take(f, prompt, 5);
    fake_done(f, sent.user_data, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, id, 0);
    llm_close(c);
}

static void nonsense_of_the_engine_ends_it(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    take(f, prompt, 5);
    fake_token(f, id, 0, 1, 4); /* the token at 0 is missing: the stream cannot be kept */
    fake_publish(f);
    expect_end(c, id, LLM_EPROTO, "out of their order");
    llm_close(c);
}

static void asked_for_at_the_wrong_time(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    assert_int_equal(llm_resume(c, 0, 8), -EINVAL);
    uint64_t id = submit(c, &r);
    assert_int_equal(llm_resume(c, 0, 0), -EBUSY);
    fake_take_quietly(f);
    fake_done(f, id, 0, LLM_FINISH_STOP);
    fake_publish(f);
    expect(c, LLM_EVENT_DONE, id, 0);
    assert_int_equal(llm_resume(c, 0, 0), 0);
    assert_int_equal(llm_resume(c, 0, 0), -EALREADY);
    llm_close(c);
}

/* ---- waiting in a loop of one's own ---- */

/* It would make the descriptor readable for nothing, later. */
static bool timer_runs(const struct llm_client *c)
{
    struct itimerspec t;
    REQUIRE(!timerfd_gettime(c->resume->timer, &t));
    return t.it_value.tv_sec || t.it_value.tv_nsec;
}

/* Waits as the loop of llmclient.h does, until llm_poll has an event; plays the engine's door. */
static struct llm_event loop_until_event(struct fake *f, struct llm_client *c, int fd, bool *door)
{
    struct llm_event e;
    int rc;
    while ((rc = llm_poll(c, &e)) == 0) {
        if (llm_arm(c))
            continue;
        if (*door && readable(f->listener, 0)) {
            fake_handshake(f);
            *door = false;
        }
        assert_true(readable(fd, 60000));
    }
    if (rc < 0)
        fail_msg("%s", llm_errmsg(c));
    return e;
}

static void the_descriptor_stays(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    int fd = llm_fd(c), fds = fake_open_fds();
    assert_true(fd >= 0);
    assert_int_equal(llm_resume(c, 0, 0), 0);
    assert_int_equal(fake_open_fds(), fds + 1); /* its timer */
    struct llm_request r = request();
    struct llm_event e;
    uint64_t id = submit(c, &r);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(llm_poll(c, &e), 0);
        assert_int_equal(llm_arm(c), 0);
        assert_false(readable(fd, 0));
        f->fault = round == 2 ? FAKE_HANG_UP : FAKE_FINE; /* once it has to knock twice */
        fake_die(f);
        assert_true(readable(fd, 0));
        while (llm_poll(c, &e) == 0 && !readable(f->listener, 0))
            if (!llm_arm(c))
                assert_true(readable(fd, 60000)); /* the timer */
        assert_int_equal(llm_arm(c), 0);
        assert_false(readable(fd, 0)); /* nothing to do before the answer */
        fake_handshake(f);
        assert_true(readable(fd, 0));
        if (f->fault == FAKE_HANG_UP) {
            f->fault = FAKE_FINE;
            while (llm_poll(c, &e) == 0 && !readable(f->listener, 0))
                if (!llm_arm(c))
                    assert_true(readable(fd, 60000));
            fake_handshake(f);
        }
        assert_true(timer_runs(c));
        assert_int_equal(llm_poll(c, &e), 0);
        assert_false(timer_runs(c));
        assert_int_equal(llm_fd(c), fd);
    }
    struct llm_sqe sent = take(f, prompt, 5);
    assert_int_equal(llm_arm(c), 0);
    fake_done(f, sent.user_data, 0, LLM_FINISH_STOP);
    fake_wake(f, fake_publish(f));
    bool door = false;
    e = loop_until_event(f, c, fd, &door);
    assert_true(e.type == LLM_EVENT_DONE && e.id == id);
    llm_close(c);
}

/* Asked for only while the engine is away. */
static void a_descriptor_made_in_between(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = resuming_client(f, 0, 0);
    struct llm_request r = request();
    uint64_t id = submit(c, &r);
    fake_die(f);
    notice(c);
    expect_nothing(c); /* has knocked */
    int fd = llm_fd(c);
    assert_true(fd >= 0);
    bool door = true;
    assert_int_equal(llm_arm(c), 0);
    assert_false(readable(fd, 0));
    fake_handshake(f);
    assert_true(readable(fd, 0));
    expect_nothing(c);
    struct llm_sqe sent = take(f, prompt, 5);
    fake_done(f, sent.user_data, 0, LLM_FINISH_STOP);
    fake_publish(f);
    door = false;
    assert_true(loop_until_event(f, c, fd, &door).id == id);
    llm_close(c);
}

/* ---- nothing is left behind ---- */

static void closed_in_every_state(void **state)
{
    struct fake *f = *state;
    int fds = fake_open_fds();
    for (int stage = 0; stage < 5; stage++) {
        struct llm_client *c = resuming_client(f, 0, 0);
        struct llm_request r = request();
        r.choices = 2;
        uint64_t id = submit(c, &r);
        llm_reserve(c, 3);
        if (stage > 0) {
            fake_token(f, id, 1, 0, 3);
            fake_publish(f);
            expect_token(c, id, 1, 0, 3);
            fake_die(f);
            notice(c);
        }
        if (stage > 1)
            expect_nothing(c);
        if (stage > 2)
            fake_handshake(f);
        if (stage > 3)
            expect_nothing(c);
        llm_close(c);
        if (stage == 2) /* the knock is still in the backlog */
            close(accept4(f->listener, NULL, NULL, SOCK_CLOEXEC));
        fake_die(f);
        assert_int_equal(fake_open_fds(), fds);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAKE_TEST(a_stream_goes_on),
        FAKE_TEST(what_has_not_begun_goes_whole),
        FAKE_TEST(each_choice_goes_on_by_itself),
        FAKE_TEST(a_continuation_goes_on),
        FAKE_TEST(a_lost_final_behind_the_last_token),
        FAKE_TEST(a_lost_final_of_a_stop_string),
        FAKE_TEST(a_cancelled_request_is_not_sent_again),
        FAKE_TEST(sessions_die_with_their_engine),
        FAKE_TEST(scores_begin_again_without_duplicates),
        FAKE_TEST(labels_that_are_known_are_not_told_again),
        FAKE_TEST(a_nop_comes_again),
        FAKE_TEST(what_finds_no_room_follows),
        FAKE_TEST(submitted_while_the_engine_is_away),
        FAKE_TEST(a_reserve_outlives_the_engine),
        FAKE_TEST(a_reserve_that_moves_is_kept_whole),
        FAKE_TEST(times_go_on_counting),
        FAKE_TEST(the_next_engine_may_grant_more),
        FAKE_TEST(other_bits_are_refused),
        FAKE_TEST(other_bits_may_be_asked_for),
        FAKE_TEST(an_older_engine_is_refused),
        FAKE_TEST(no_engine_comes_back_in_time),
        FAKE_TEST(who_looks_late_knocks_once_more),
        FAKE_TEST(untold_ends_are_in_flight),
        FAKE_TEST(it_is_tried_again),
        FAKE_TEST(without_descriptors_it_is_tried_again),
        FAKE_TEST(nonsense_of_the_engine_ends_it),
        FAKE_TEST(asked_for_at_the_wrong_time),
        FAKE_TEST(the_descriptor_stays),
        FAKE_TEST(a_descriptor_made_in_between),
        FAKE_TEST(closed_in_every_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
