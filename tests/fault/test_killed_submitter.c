/* test_killed_submitter.c - failure test (2): a client is killed at each step of a submit (arena,
 * entry, tail, wake) and of taking what came, under a sleeping and under a busy engine. Nobody else
 * notices, and nothing of it stays.
 */
#include "../../client/llmclient.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 16, TOKENS = 150 };

enum step {
    CONNECTED,
    ARENA_HALF,
    ARENA,
    ENTRY_HALF,
    ENTRY,      /* committed, the tail unpublished */
    TAIL,       /* published, nobody woken */
    WAKE,       /* its request runs */
    COMPLETION, /* taken, the head unpublished */
    HEAD,       /* published */
    STEPS
};

static struct engine_process engine;
static const struct llm_board *board;
static struct llm_client *neighbour;
static int32_t expected[TOKENS];
static uint64_t all_blocks;

/* ---- the neighbour ---- */

static void ask(void)
{
    static const int32_t prompt[5] = {1, 2, 3, 4, 5};
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = TOKENS, r.flags = LLM_SQE_IGNORE_EOS;
    assert_int_equal(llm_submit(neighbour, &r, NULL), 0);
}

static void hear(int32_t tokens[TOKENS])
{
    struct llm_event e;
    uint32_t n = 0;
    for (;;) {
        assert_int_equal(llm_wait(neighbour, &e, 60000), 1);
        if (e.type != LLM_EVENT_TOKENS)
            break;
        assert_true(n + e.n_tokens <= TOKENS);
        memcpy(tokens + n, e.tokens, e.n_tokens * sizeof *tokens);
        n += e.n_tokens;
    }
    assert_int_equal(e.type, LLM_EVENT_DONE);
    assert_int_equal(n, TOKENS);
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--max-clients", "2", NULL);
    board = hand_board(engine.instance);
    assert_non_null(board);
    all_blocks = order_read64(&board->kv_blocks_free);
    assert_int_equal(llm_connect(&neighbour, engine.instance, NULL), 0);
    ask();
    hear(expected);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    llm_close(neighbour);
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    assert_int_equal(order_read64(&board->evictions), 0);
    return engine_stop(&engine);
}

/* ---- who is killed ---- */

static void at(enum step now, enum step last)
{
    if (now == last)
        raise(SIGKILL);
}

static void fill_arena(int32_t *tokens, enum step last)
{
    for (int i = 0; i < PROMPT; i++) {
        if (i == PROMPT / 2)
            at(ARENA_HALF, last);
        tokens[i] = 10 + i;
    }
    at(ARENA, last);
}

static void fill_entry(struct hand *h, const int32_t *tokens, enum step last)
{
    struct llm_sqe *q = ring_next(&h->ring, 1);
    q->user_data = 1;
    q->op = LLM_OP_GENERATE;
    q->flags = LLM_SQE_IGNORE_EOS;
    at(ENTRY_HALF, last);
    q->tokens_off = (uint32_t)((const uint8_t *)tokens - h->ring.arena);
    q->tokens_len = PROMPT;
    q->max_tokens = 200;
    q->choices = 1;
    q->top_p = q->repetition = 1;
    ring_commit(&h->ring, 1);
    at(ENTRY, last);
}

static void die_at(enum step last)
{
    struct hand h;
    struct llm_cqe c;
    struct llm_result r;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!hand_open(&h, engine.instance, NULL))
        _exit(1);
    at(CONNECTED, last);
    int32_t *tokens = ring_reserve(&h.ring, PROMPT);
    fill_arena(tokens, last);
    fill_entry(&h, tokens, last);
    bool sleeps = ring_submit(&h.ring);
    at(TAIL, last);
    if (sleeps)
        hand_wake(&h.up->sq_tail);
    at(WAKE, last);
    for (int i = 0; i < 3; i++)
        while (!ring_poll(&h.ring, &c, &r))
            ;
    at(COMPLETION, last);
    ring_drained(&h.ring);
    at(HEAD, last);
    _exit(2);
}

static void kill_at(enum step last)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        die_at(last);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* The place is free for the next one, and nothing is missing. */
static void nothing_stays(void)
{
    struct hand h;
    assert_true(hand_until(&board->clients, 1));
    while (!hand_open(&h, engine.instance, NULL)) /* until the kernel has let go of the slot */
        assert_int_equal(h.reject.code, LLM_EBUSY);
    assert_true(hand_nop(&h));
    hand_close(&h);
    assert_true(hand_until(&board->clients, 1));
    assert_int_equal(order_read64(&board->waiting), 0);
    assert_int_equal(order_read64(&board->running), 0);
    assert_int_equal(order_read64(&board->kv_blocks_free), all_blocks);
}

static void under_a_sleeping_engine(void **state)
{
    (void)state;
    int32_t got[TOKENS];
    for (enum step last = CONNECTED; last < STEPS; last++) {
        kill_at(last);
        nothing_stays();
        ask();
        hear(got);
        assert_memory_equal(got, expected, sizeof got);
    }
}

static void under_a_busy_engine(void **state)
{
    (void)state;
    int32_t got[TOKENS];
    for (enum step last = CONNECTED; last < STEPS; last++) {
        ask();
        kill_at(last);
        hear(got);
        assert_memory_equal(got, expected, sizeof got);
        nothing_stays();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(under_a_sleeping_engine),
                                       cmocka_unit_test(under_a_busy_engine)};
    return cmocka_run_group_tests(tests, start, finish);
}
