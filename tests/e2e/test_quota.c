/* test_quota.c - what one user may have of an engine: a client or request beyond is refused with
 * LLM_EQUOTA, the library says the engine's sentence, and what was given back may be had again.
 */
#include "../../client/llmclient.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <string.h>

static struct engine_process engine;

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--quota-clients", "2", "--quota-memory", "8M", "--quota-requests", "4", NULL);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    return engine_stop(&engine);
}

static struct llm_client *join(uint32_t arena_bytes)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c = NULL;
    o.arena_bytes = arena_bytes;
    int rc = llm_connect(&c, engine.instance, &o);
    assert_true(rc == 0 || rc == LLM_EQUOTA);
    return c;
}

static void says(const char *sentence)
{
    if (!strstr(llm_connect_error(), sentence))
        fail_msg("it says: %s", llm_connect_error());
}

static void clients_and_their_memory(void **state)
{
    (void)state;
    const struct llm_board *board = hand_board(engine.instance);
    struct llm_client *a = join(0);
    assert_non_null(a);
    assert_null(join(7 << 20));
    says("--quota-memory");
    struct llm_client *b = join(0);
    assert_non_null(b);
    assert_null(join(0));
    says("has 2 clients, the quota is 2: close one, or raise --quota-clients");
    llm_close(b);
    assert_true(hand_until(&board->clients, 1));
    b = join(0);
    assert_non_null(b);
    llm_close(a);
    llm_close(b);
    assert_true(hand_until(&board->clients, 0));
}

/* Each choice counts. */
static void requests(void **state)
{
    (void)state;
    static const int32_t prompt[3] = {1, 2, 3};
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event e;
    struct llm_client *c = join(0);
    assert_non_null(c);
    r.tokens = prompt, r.n_tokens = 3, r.max_tokens = 2, r.choices = 5;
    assert_int_equal(llm_submit(c, &r, NULL), 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(llm_wait(c, &e, 60000), 1);
        assert_int_equal(e.type, LLM_EVENT_ERROR);
        assert_int_equal(e.status, LLM_EQUOTA);
    }
    r.choices = 4;
    for (int round = 0; round < 3; round++) {
        assert_int_equal(llm_submit(c, &r, NULL), 0);
        while (llm_inflight(c)) {
            assert_int_equal(llm_wait(c, &e, 60000), 1);
            assert_int_not_equal(e.type, LLM_EVENT_ERROR);
        }
    }
    llm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(clients_and_their_memory),
                                       cmocka_unit_test(requests)};
    return cmocka_run_group_tests(tests, start, finish);
}
