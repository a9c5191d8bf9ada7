/* test_client_sessions.c - sessions through the library and a whole engine: what is generated on one
 * is what the same history gives in one request, however the history came about; and what the calls
 * say of lengths and of what is not there.
 */
#include "../../client/llmclient.h"
#include "../support/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { LONGEST = 200, TOKENS = 10, LONG_ANSWER = 100 };

struct history {
    int32_t tokens[LONGEST];
    uint32_t n;
};

static struct engine_process engine;
static struct llm_client *c;

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--max-sessions", "6", NULL);
    if (llm_connect(&c, engine.instance, NULL))
        fail_msg("%s", llm_connect_error());
    return 0;
}

static int finish(void **state)
{
    (void)state;
    llm_close(c);
    return engine_stop(&engine);
}

/* ---- requests and their ends ---- */

static struct llm_event wait_event(void)
{
    struct llm_event e;
    int rc = llm_wait(c, &e, 60000);
    if (rc != 1)
        fail_msg("%d: %s", rc, llm_errmsg(c));
    return e;
}

static struct llm_event final_of(uint64_t id)
{
    struct llm_event e;
    do
        e = wait_event();
    while (e.id != id || e.type == LLM_EVENT_TOKENS);
    return e;
}

/* The length that a session's call ended with; fails where it was refused. */
static uint32_t length(int rc, const uint64_t *id)
{
    if (rc)
        fail_msg("%s", llm_errmsg(c));
    struct llm_event e = final_of(*id);
    if (e.type == LLM_EVENT_ERROR)
        fail_msg("%s", llm_strerror(e.status));
    return e.position;
}

static int code(int rc, const uint64_t *id)
{
    if (rc)
        fail_msg("%s", llm_errmsg(c));
    return final_of(*id).status;
}

static void words(struct history *h, uint32_t seed, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        h->tokens[h->n++] = (int32_t)((seed * 53 + i * 17) % 250 + 1);
}

static void generate(uint64_t session, const struct history *prompt, struct history *out)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.session = session, r.max_tokens = TOKENS, r.flags = LLM_SQE_IGNORE_EOS;
    r.tokens = prompt->tokens, r.n_tokens = prompt->n;
    r.temperature = 0.7f, r.seed = 3;
    out->n = 0;
    if (llm_submit(c, &r, NULL))
        fail_msg("%s", llm_errmsg(c));
    struct llm_event e;
    while ((e = wait_event()).type == LLM_EVENT_TOKENS)
        for (uint32_t i = 0; i < e.n_tokens; i++)
            out->tokens[out->n++] = e.tokens[i];
    if (e.type == LLM_EVENT_ERROR)
        fail_msg("%s", llm_strerror(e.status));
    assert_int_equal(out->n, TOKENS);
}

/* The session goes on as its history does alone; both have the answer then. */
static void expect_history(uint64_t session, struct history *h)
{
    struct history none = {0}, alone, on_it;
    generate(0, h, &alone);
    generate(session, &none, &on_it);
    assert_memory_equal(alone.tokens, on_it.tokens, TOKENS * sizeof *alone.tokens);
    memcpy(h->tokens + h->n, alone.tokens, TOKENS * sizeof *alone.tokens);
    h->n += TOKENS;
}

/* ---- histories ---- */

static void a_history_is_what_was_made_of_it(void **state)
{
    (void)state;
    struct history h = {0};
    uint64_t key = llm_session_key("call"), id;
    words(&h, 1, 20);
    assert_int_equal(length(llm_session_open(c, key, h.tokens, 20, 0, &id), &id), 20);
    words(&h, 2, 3);
    assert_int_equal(length(llm_session_append(c, key, h.tokens + 20, 3, &id), &id), 23);
    expect_history(key, &h);
    h.n = 21, words(&h, 3, 9); /* into the answer, and beyond it */
    assert_int_equal(length(llm_session_replace(c, key, 21, h.tokens + 21, 9, &id), &id), 30);
    expect_history(key, &h);
    h.n = 33; /* three tokens of the answer were spoken */
    assert_int_equal(length(llm_session_rewind(c, key, 33, &id), &id), 33);
    expect_history(key, &h);
    h.n = 0, words(&h, 4, 5);
    assert_int_equal(length(llm_session_replace(c, key, 0, h.tokens, 5, &id), &id), 5);
    expect_history(key, &h);
    assert_int_equal(length(llm_session_close(c, key, &id), &id), 5 + TOKENS);
}

static void a_fork_goes_its_own_way(void **state)
{
    (void)state;
    struct history one = {0}, two;
    uint64_t a = llm_session_key("a"), b = llm_session_key("b"), id;
    words(&one, 5, 40);
    length(llm_session_open(c, a, one.tokens, 40, 0, &id), &id);
    assert_int_equal(length(llm_session_fork(c, a, b, &id), &id), 40);
    two = one;
    words(&one, 6, 4), words(&two, 7, 6);
    length(llm_session_append(c, a, one.tokens + 40, 4, &id), &id);
    length(llm_session_append(c, b, two.tokens + 40, 6, &id), &id);
    expect_history(b, &two);
    expect_history(a, &one);
    length(llm_session_close(c, a, &id), &id);
    expect_history(b, &two);
    length(llm_session_close(c, b, &id), &id);
}

/* Barge-in: one request ends the answer and keeps what was heard of it. */
static void an_answer_is_interrupted(void **state)
{
    (void)state;
    struct history h = {0};
    uint64_t key = llm_session_key("call"), answer, interrupt, id;
    struct llm_request r = LLM_REQUEST_INIT;
    words(&h, 8, 12);
    length(llm_session_open(c, key, h.tokens, 12, 0, &id), &id);
    r.session = key, r.max_tokens = LONG_ANSWER, r.flags = LLM_SQE_IGNORE_EOS;
    assert_int_equal(llm_submit(c, &r, &answer), 0);
    while (h.n < 12 + 5) {
        struct llm_event e = wait_event();
        assert_true(e.type == LLM_EVENT_TOKENS && e.id == answer);
        for (uint32_t i = 0; i < e.n_tokens; i++)
            h.tokens[h.n++] = e.tokens[i];
    }
    h.n = 12 + 5;
    assert_int_equal(llm_session_interrupt(c, key, h.n, &interrupt), 0);
    struct llm_event cut = final_of(answer), done = final_of(interrupt);
    assert_true(cut.finish == LLM_FINISH_CANCELLED || cut.finish == LLM_FINISH_LENGTH);
    assert_int_equal(done.status, 0);
    assert_int_equal(done.position, 12 + 5);
    expect_history(key, &h);
    length(llm_session_close(c, key, &id), &id);
}

/* A pinned prefix is found by requests without a session. */
static void a_pinned_prefix_is_found(void **state)
{
    (void)state;
    struct history h = {0};
    uint64_t key = llm_session_key("prefix"), id;
    struct llm_request r = LLM_REQUEST_INIT;
    words(&h, 9, 64);
    assert_int_equal(length(llm_prefix_pin(c, key, h.tokens, 64, &id), &id), 64);
    words(&h, 10, 3);
    r.tokens = h.tokens, r.n_tokens = h.n, r.max_tokens = 1;
    r.flags =
        LLM_SQE_NO_CACHE; /* the prefix's rows are computed behind its answer: by then they are */
    for (int found = 0; found < 2; found++) {
        assert_int_equal(llm_submit(c, &r, &id), 0);
        struct llm_event e = final_of(id);
        assert_int_equal(e.type, LLM_EVENT_DONE);
        assert_int_equal(e.result.prompt_tokens, 67);
        assert_in_range(e.result.cached_tokens, found ? 48 : 0, found ? 64 : 0);
        r.flags = 0;
    }
    length(llm_prefix_unpin(c, key, &id), &id);
}

/* ---- what is refused ---- */

static void freeze(void)
{
    siginfo_t info;
    assert_int_equal(kill(engine.pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)engine.pid, &info, WSTOPPED), 0);
}

static void what_is_not_there_or_taken(void **state)
{
    (void)state;
    struct history h = {0}, none = {0};
    uint64_t key = llm_session_key("x"), id;
    words(&h, 11, 10);
    assert_int_equal(code(llm_session_append(c, key, h.tokens, 2, &id), &id), LLM_ENOSESSION);
    assert_int_equal(code(llm_session_close(c, key, &id), &id), LLM_ENOSESSION);
    assert_int_equal(code(llm_session_open(c, key, h.tokens, 10, 0, &id), &id), 0);
    assert_int_equal(code(llm_session_open(c, key, h.tokens, 10, 0, &id), &id), LLM_ESESSION);
    assert_int_equal(llm_session_rewind(c, key, 11, &id), 0);
    struct llm_event e = final_of(id);
    assert_int_equal(e.status, LLM_EPARAM);
    assert_int_equal(e.position, 10);
    for (uint64_t i = 1; i < 6; i++)
        assert_int_equal(code(llm_session_fork(c, key, key + i, &id), &id), 0);
    assert_int_equal(code(llm_session_fork(c, key, key + 6, &id), &id), LLM_EBUSY);

    struct llm_request r = LLM_REQUEST_INIT; /* in use */
    r.session = key, r.max_tokens = LONG_ANSWER, r.flags = LLM_SQE_IGNORE_EOS;
    uint64_t answer, append;
    freeze(); /* so that it finds both at once */
    assert_int_equal(llm_submit(c, &r, &answer), 0);
    assert_int_equal(llm_session_append(c, key, h.tokens, 1, &append), 0);
    kill(engine.pid, SIGCONT);
    assert_int_equal(final_of(append).status, LLM_ESESSION);
    assert_int_equal(llm_cancel(c, answer), 0);
    final_of(answer);
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(code(llm_session_close(c, key + i, &id), &id), 0);
    assert_int_equal(llm_session_append(c, key, none.tokens, 0, &id), 0);
    assert_int_equal(final_of(id).status, LLM_ENOSESSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_history_is_what_was_made_of_it),
        cmocka_unit_test(a_fork_goes_its_own_way),
        cmocka_unit_test(an_answer_is_interrupted),
        cmocka_unit_test(a_pinned_prefix_is_found),
        cmocka_unit_test(what_is_not_there_or_taken),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
