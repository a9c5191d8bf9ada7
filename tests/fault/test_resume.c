/* test_resume.c - the engine is killed again and again under streams of clients that asked for
 * llm_resume: every stream ends with the tokens and log-probabilities of an undisturbed run, each
 * once and in order, whether the client waits in the library or in a loop of its own.
 *
 * A kill comes when so many tokens have been taken; the completion ring is small, so that the engine
 * can never be far ahead of that.
 */
#include "../../client/llmclient.h"
#include "../support/support.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 16, TOKENS = 120, PROMPT = 12, RING = 64, KILLS = 20, KILLS_SANITIZED = 5 };

struct stream {
    uint64_t id; /* of choice 0; two streams are the choices of one request */
    uint32_t n, finish;
    bool ended;
    int32_t tokens[TOKENS];
    float logprobs[TOKENS];
};

struct run {
    struct llm_client *c;
    struct stream streams[STREAMS];
    uint32_t taken, ended;
};

static struct engine_process engine;

/* ---- the engine ---- */

static const char *model(void)
{
    return golden_path("tiny_gguf/llama.Q4_0.gguf");
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, model(), "--threads", "1", NULL);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    return engine_stop(&engine);
}

/* A new one starts at once; nobody waits here until it is ready. */
static void kill_and_restart(void)
{
    static const char *const arguments[] = {"--threads", "1", NULL};
    struct engine_process next = {0};
    assert_int_equal(engine_kill(&engine), 128 + SIGKILL);
    snprintf(next.instance, sizeof next.instance, "%s", engine.instance);
    engine_spawn(&next, model(), arguments);
    engine = next;
}

/* ---- the streams ---- */

/* Streams 2 i and 2 i + 1 are the choices of request i. */
static void submit_all(struct run *run)
{
    for (uint32_t i = 0; i < STREAMS / 2; i++) {
        int32_t prompt[PROMPT];
        for (uint32_t k = 0; k < PROMPT; k++)
            prompt[k] = (int32_t)((i * 37 + k * 11) % 250 + 1);
        struct llm_request r = LLM_REQUEST_INIT;
        r.tokens = prompt, r.n_tokens = PROMPT - i % 3, r.max_tokens = TOKENS - 7 * i;
        r.choices = 2, r.seed = 1000 + i, r.temperature = i % 4 ? 0.9f : 0, r.top_p = 0.95f;
        r.flags = LLM_SQE_LOGPROBS | (i % 2 ? LLM_SQE_IGNORE_EOS : 0);
        r.user_data = i + 1;
        if (llm_submit(run->c, &r, NULL))
            fail_msg("%s", llm_errmsg(run->c));
    }
}

static void note(struct run *run, const struct llm_event *e)
{
    assert_in_range(e->id, 1, STREAMS / 2);
    assert_in_range(e->choice, 0, 1);
    struct stream *s = &run->streams[2 * (e->id - 1) + e->choice];
    assert_false(s->ended);
    if (e->type == LLM_EVENT_ERROR)
        fail_msg("stream %u of request %u: %s", e->choice, (unsigned)e->id,
                 llm_strerror(e->status));
    if (e->type == LLM_EVENT_DONE) {
        assert_int_equal(e->position, s->n);
        s->ended = true;
        s->finish = e->finish;
        run->ended++;
        return;
    }
    assert_int_equal(e->position, s->n);
    assert_true(s->n + e->n_tokens <= TOKENS);
    memcpy(s->tokens + s->n, e->tokens, e->n_tokens * sizeof *e->tokens);
    memcpy(s->logprobs + s->n, e->logprobs, e->n_tokens * sizeof *e->logprobs);
    s->n += e->n_tokens;
    run->taken += e->n_tokens;
}

static void open_run(struct run *run, bool resume)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    o.cq_entries = RING, o.max_inflight = STREAMS;
    if (llm_connect(&run->c, engine.instance, &o))
        fail_msg("%s", llm_connect_error());
    if (resume && llm_resume(run->c, 120000, 0))
        fail_msg("%s", llm_errmsg(run->c));
}

static int next_by_waiting(struct llm_client *c, struct llm_event *e)
{
    return llm_wait(c, e, 120000);
}

static int next_by_polling(struct llm_client *c, struct llm_event *e)
{
    int rc;
    while ((rc = llm_poll(c, e)) == 0) {
        struct pollfd p = {llm_fd(c), POLLIN, 0};
        if (!llm_arm(c) && poll(&p, 1, 120000) != 1)
            return 0;
    }
    return rc;
}

/* Kills after each `between` tokens, `kills` times. */
static void take_all(struct run *run, int (*next)(struct llm_client *, struct llm_event *),
                     uint32_t kills, uint32_t between)
{
    uint32_t killed = 0;
    while (run->ended < STREAMS) {
        struct llm_event e;
        int rc = next(run->c, &e);
        if (rc != 1)
            fail_msg("%d: %s", rc, rc ? llm_errmsg(run->c) : "no event came");
        note(run, &e);
        if (killed < kills && run->taken >= (killed + 1) * between) {
            kill_and_restart();
            killed++;
        }
    }
    assert_int_equal(killed, kills);
    assert_int_equal(llm_inflight(run->c), 0);
}

static void expect_equal(const struct run *have, const struct run *want)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        const struct stream *h = &have->streams[i], *w = &want->streams[i];
        assert_int_equal(h->n, w->n);
        assert_int_equal(h->finish, w->finish);
        assert_memory_equal(h->tokens, w->tokens, sizeof h->tokens);
        assert_memory_equal(h->logprobs, w->logprobs, sizeof h->logprobs);
    }
}

static void disturbed(int (*next)(struct llm_client *, struct llm_event *), uint32_t kills)
{
    static struct run quiet, killed;
    memset(&quiet, 0, sizeof quiet);
    memset(&killed, 0, sizeof killed);
    open_run(&quiet, false);
    submit_all(&quiet);
    take_all(&quiet, next_by_waiting, 0, 0);
    llm_close(quiet.c);
    open_run(&killed, true);
    submit_all(&killed);
    take_all(&killed, next, kills, quiet.taken / (kills + 1));
    expect_equal(&killed, &quiet);
    llm_close(killed.c);
    assert_true(engine_wait_ready(&engine));
}

static void killed_under_waiters(void **state)
{
    (void)state;
    disturbed(next_by_waiting, test_sanitized() ? KILLS_SANITIZED : KILLS);
}

static void killed_under_a_loop_of_its_own(void **state)
{
    (void)state;
    disturbed(next_by_polling, 3);
}

static uint64_t submit_one(struct llm_client *c, uint32_t max_tokens)
{
    static const int32_t prompt[] = {5, 6, 7};
    struct llm_request r = LLM_REQUEST_INIT;
    uint64_t id = 0;
    r.tokens = prompt, r.n_tokens = 3, r.max_tokens = max_tokens, r.flags = LLM_SQE_IGNORE_EOS;
    if (llm_submit(c, &r, &id))
        fail_msg("%s", llm_errmsg(c));
    return id;
}

/* An engine that is stopped in order ends its requests itself; the handle goes on to the next one,
 * also with a request that is submitted while there is none. */
static void a_stop_ends_requests_but_not_the_handle(void **state)
{
    (void)state;
    static const char *const arguments[] = {"--threads", "1", NULL};
    struct run run = {0};
    struct llm_event e;
    open_run(&run, true);
    uint64_t id = submit_one(run.c, 200);
    assert_int_equal(llm_wait(run.c, &e, 120000), 1);
    assert_int_equal(e.type, LLM_EVENT_TOKENS);
    assert_int_equal(engine_stop(&engine), 0);
    while (e.type == LLM_EVENT_TOKENS)
        assert_int_equal(llm_wait(run.c, &e, 120000), 1);
    assert_true(e.id == id);
    assert_int_equal(llm_inflight(run.c), 0);
    while (llm_poll(run.c, &e) == 0 && llm_reserve(run.c, 1)) /* until it has noticed */
        llm_arm(run.c);
    assert_int_equal(llm_errcode(run.c), -EAGAIN);
    id = submit_one(run.c, 5);
    struct engine_process next = {0};
    snprintf(next.instance, sizeof next.instance, "%s", engine.instance);
    engine_spawn(&next, model(), arguments);
    engine = next;
    uint32_t n = 0;
    do {
        assert_int_equal(llm_wait(run.c, &e, 120000), 1);
        assert_true(e.id == id);
        n += e.n_tokens;
    } while (e.type == LLM_EVENT_TOKENS);
    assert_int_equal(e.type, LLM_EVENT_DONE);
    assert_int_equal(n, 5);
    llm_close(run.c);
    assert_true(engine_wait_ready(&engine));
}

/* A final that was lost behind an end token: what resumes there is told the end at once, and
 * generates nothing behind it. */
static void an_end_token_that_came_before_is_the_end(void **state)
{
    (void)state;
    struct llm_client *c;
    struct llm_event e;
    struct llm_request r = LLM_REQUEST_INIT;
    if (llm_connect(&c, engine.instance, NULL))
        fail_msg("%s", llm_connect_error());
    int32_t tokens[] = {5, 6, 7, 8, llm_special_token(c, LLM_EOS)};
    assert_true(tokens[4] >= 0);
    r.tokens = tokens, r.n_tokens = 5, r.output_from = 3, r.max_tokens = 10;
    for (int ignore = 0; ignore < 2; ignore++) {
        uint32_t n = 0;
        r.flags = ignore ? LLM_SQE_IGNORE_EOS : 0;
        assert_int_equal(llm_submit(c, &r, NULL), 0);
        do {
            assert_int_equal(llm_wait(c, &e, 120000), 1);
            n += e.n_tokens;
        } while (e.type == LLM_EVENT_TOKENS);
        assert_int_equal(e.type, LLM_EVENT_DONE);
        assert_int_equal(e.finish, ignore ? LLM_FINISH_LENGTH : LLM_FINISH_STOP);
        assert_int_equal(n, ignore ? 8 : 0);
        assert_int_equal(e.position, ignore ? 10 : 2);
    }
    llm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_under_waiters),
        cmocka_unit_test(killed_under_a_loop_of_its_own),
        cmocka_unit_test(a_stop_ends_requests_but_not_the_handle),
        cmocka_unit_test(an_end_token_that_came_before_is_the_end),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
