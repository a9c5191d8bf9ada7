/* test_drain.c - SIGTERM: new requests and clients are refused, those that are known may end, within
 * the drain timeout or until a second signal; what is left then ends with a code. Each gets its end.
 */
#include "../../client/llmclient.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { REQUESTS = 40, CHOICES = 4, TOKENS = 200, ENDS = REQUESTS * CHOICES };

static struct engine_process engine;
static const struct llm_board *board;
static struct llm_client *client;

/* How they ended. */
struct ends {
    uint32_t whole, cancelled, refused, others;
};

static void start(const char *drain_timeout_ms)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    engine = (struct engine_process){0};
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--max-num-seqs", "1", "--drain-timeout-ms", drain_timeout_ms, NULL);
    board = hand_board(engine.instance);
    assert_non_null(board);
    o.cq_entries = 1 << 14, o.max_inflight = 2 * ENDS;
    assert_int_equal(llm_connect(&client, engine.instance, &o), 0);
}

static int submit(uint64_t id)
{
    static const int32_t prompt[5] = {1, 2, 3, 4, 5};
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = TOKENS, r.flags = LLM_SQE_IGNORE_EOS;
    r.user_data = id;
    r.choices = CHOICES;
    return llm_submit(client, &r, NULL);
}

/* They lie in the ring when the engine learns that it shall stop. */
static void submit_all_and_stop(void)
{
    siginfo_t info;
    assert_int_equal(kill(engine.pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)engine.pid, &info, WSTOPPED), 0);
    for (uint64_t id = 1; id <= REQUESTS; id++)
        assert_int_equal(submit(id), 0);
    assert_int_equal(kill(engine.pid, SIGTERM), 0);
    assert_int_equal(kill(engine.pid, SIGCONT), 0);
}

static void until_draining(void)
{
    uint64_t end = test_now_ns() + 20000000000u;
    while (order_acquire(&board->state) != LLM_STATE_DRAINING)
        assert_true(test_now_ns() < end);
}

static struct ends hear_all(void)
{
    struct ends ends = {0};
    struct llm_event e;
    while (llm_inflight(client)) {
        assert_int_equal(llm_wait(client, &e, 60000), 1);
        if (e.type == LLM_EVENT_TOKENS)
            continue;
        if (e.type == LLM_EVENT_DONE && e.finish == LLM_FINISH_LENGTH)
            ends.whole++;
        else if (e.type == LLM_EVENT_DONE && e.finish == LLM_FINISH_CANCELLED)
            ends.cancelled++;
        else if (e.type == LLM_EVENT_ERROR && e.status == LLM_ESHUTDOWN)
            ends.refused++;
        else
            ends.others++;
    }
    return ends;
}

static void stopped_well(void)
{
    assert_int_equal(engine_wait(&engine), 0);
    llm_close(client);
}

static void what_is_known_may_end(void **state)
{
    (void)state;
    struct hand h;
    start("600000");
    submit_all_and_stop();
    until_draining();
    assert_int_equal(submit(REQUESTS + 1), 0);
    assert_false(hand_open(&h, engine.instance, NULL));
    assert_int_equal(h.reject.code, LLM_ESHUTDOWN);
    assert_non_null(strstr(h.reject.text, "stopping"));
    struct ends ends = hear_all();
    assert_int_equal(ends.whole, ENDS);
    assert_int_equal(ends.refused, CHOICES);
    assert_int_equal(ends.cancelled + ends.others, 0);
    stopped_well();
}

static void without_time_nothing_goes_on(void **state)
{
    (void)state;
    start("0");
    submit_all_and_stop();
    struct ends ends = hear_all();
    assert_int_equal(ends.whole + ends.others, 0);
    assert_int_equal(ends.cancelled + ends.refused, ENDS);
    stopped_well();
}

static void in_little_time_some_end(void **state)
{
    (void)state;
    start("20");
    submit_all_and_stop();
    struct ends ends = hear_all();
    assert_int_equal(ends.others, 0);
    assert_true(ends.refused + ends.cancelled > 0);
    assert_int_equal(ends.whole + ends.cancelled + ends.refused, ENDS);
    stopped_well();
}

static void a_second_signal_cancels(void **state)
{
    (void)state;
    start("600000");
    submit_all_and_stop();
    until_draining();
    assert_int_equal(kill(engine.pid, SIGTERM), 0);
    struct ends ends = hear_all();
    assert_int_equal(ends.others, 0);
    assert_true(ends.refused + ends.cancelled > 0);
    assert_int_equal(ends.whole + ends.cancelled + ends.refused, ENDS);
    stopped_well();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_known_may_end),
        cmocka_unit_test(without_time_nothing_goes_on),
        cmocka_unit_test(in_little_time_some_end),
        cmocka_unit_test(a_second_signal_cancels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
