/* test_unread.c - failure test (9): a client never takes a completion. Its ring fills, then its
 * tokens wait, then its requests end with a code; nobody else waits for it, and what lies in the
 * ring is whole when it reads at last.
 */
#include "../../client/llmclient.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <string.h>

enum { REQUESTS = 8, TOKENS = 200, CQ = 64 };

static struct engine_process engine;
static const struct llm_board *board;

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--max-unread-tokens", "100", NULL);
    board = hand_board(engine.instance);
    assert_non_null(board);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    assert_int_equal(order_read64(&board->evictions), 0);
    return engine_stop(&engine);
}

static struct llm_client *join(uint32_t cq_entries)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    o.cq_entries = cq_entries, o.max_inflight = REQUESTS;
    assert_int_equal(llm_connect(&c, engine.instance, &o), 0);
    return c;
}

static void submit(struct llm_client *c, uint64_t id, uint32_t max_tokens)
{
    const int32_t prompt[4] = {1, 2, 3, (int32_t)id};
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = 4, r.max_tokens = max_tokens, r.flags = LLM_SQE_IGNORE_EOS;
    r.user_data = id;
    assert_int_equal(llm_submit(c, &r, NULL), 0);
}

/* What came of the requests: tokens in order, and one end each. */
struct stream {
    uint32_t n, ends;
    int32_t status;
    int32_t tokens[TOKENS];
};

static void hear_all(struct llm_client *c, struct stream streams[REQUESTS + 1])
{
    struct llm_event e;
    while (llm_inflight(c)) {
        assert_int_equal(llm_wait(c, &e, 60000), 1);
        struct stream *s = &streams[e.id];
        if (e.type != LLM_EVENT_TOKENS) {
            s->ends++;
            s->status = e.status;
            continue;
        }
        assert_int_equal(e.position, s->n);
        assert_true(s->n + e.n_tokens <= TOKENS);
        memcpy(s->tokens + s->n, e.tokens, e.n_tokens * sizeof *e.tokens);
        s->n += e.n_tokens;
    }
}

static void its_requests_end_and_nobody_waits(void **state)
{
    (void)state;
    static struct stream whole[REQUESTS + 1], cut[REQUESTS + 1], own[REQUESTS + 1];
    struct llm_client *good = join(1024), *deaf = join(CQ);
    uint64_t blocks = order_read64(&board->kv_blocks_free);
    for (uint64_t id = 1; id <= REQUESTS; id++)
        submit(good, id, TOKENS);
    hear_all(good, whole);
    for (uint64_t id = 1; id <= REQUESTS; id++)
        submit(deaf, id, TOKENS);
    submit(good, 1, TOKENS);
    hear_all(good, own);
    assert_memory_equal(own[1].tokens, whole[1].tokens, sizeof own[1].tokens);
    assert_true(hand_until(&board->running, 0));
    assert_true(order_read64(&board->unread_cancels) > 0);
    assert_int_equal(order_read64(&board->kv_blocks_free), blocks);

    uint32_t cancelled = 0;
    hear_all(deaf, cut);
    for (int id = 1; id <= REQUESTS; id++) {
        assert_int_equal(cut[id].ends, 1);
        assert_true(cut[id].status == 0 || cut[id].status == LLM_EUNREAD);
        assert_memory_equal(cut[id].tokens, whole[id].tokens, cut[id].n * sizeof(int32_t));
        cancelled += cut[id].status == LLM_EUNREAD;
    }
    assert_true(cancelled > 0);

    memset(own, 0, sizeof own);
    submit(deaf, 1, 20); /* it may go on, reading */
    hear_all(deaf, own);
    assert_int_equal(own[1].n, 20);
    assert_int_equal(own[1].status, 0);
    llm_close(good);
    llm_close(deaf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(its_requests_end_and_nobody_waits)};
    return cmocka_run_group_tests(tests, start, finish);
}
