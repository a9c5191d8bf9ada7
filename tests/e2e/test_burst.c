/* test_burst.c - many connect at once beside steps that take long: the door's share of the time lets
 * several of them in beside each step. If it were one a step, with hundreds of milliseconds a step
 * most would give up.
 */
#include "../../client/llmclient.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <unistd.h>

enum { BURST = 32, STEPS = BURST / 2 };

static struct engine_process engine;
static const struct llm_board *board;
static struct llm_client *neighbour;

/* The reference in plain C takes long, and the neighbour's request longer than the test. */
static int start(void **state)
{
    (void)state;
    static const int32_t prompt[4] = {1, 2, 3, 4};
    struct llm_request r = LLM_REQUEST_INIT;
    engine_start(&engine, real_model_path(), "--threads", "1", "--backend", "cpu-plain",
                 "--max-model-len", "2048", "--drain-timeout", "0", NULL);
    board = hand_board(engine.instance);
    assert_non_null(board);
    assert_int_equal(llm_connect(&neighbour, engine.instance, NULL), 0);
    r.tokens = prompt, r.n_tokens = 4, r.max_tokens = 2000, r.flags = LLM_SQE_IGNORE_EOS;
    assert_int_equal(llm_submit(neighbour, &r, NULL), 0);
    assert_true(hand_until(&board->output_tokens, 2));
    return 0;
}

static int finish(void **state)
{
    (void)state;
    llm_close(neighbour);
    return engine_stop(&engine);
}

static void several_come_in_beside_a_step(void **state)
{
    (void)state;
    struct llm_message hello = hand_hello();
    int fd[BURST];
    uint64_t steps = order_read64(&board->steps);
    for (int i = 0; i < BURST; i++) {
        fd[i] = hand_knock(engine.instance);
        assert_true(fd[i] >= 0);
        assert_true(hand_say(fd[i], &hello));
    }
    assert_true(hand_until(&board->clients_total, 1 + BURST));
    steps = order_read64(&board->steps) - steps;
    print_message("%d clients beside %d steps\n", BURST, (int)steps);
    assert_in_range(steps, 1, STEPS);
    for (int i = 0; i < BURST; i++)
        close(fd[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(several_come_in_beside_a_step)};
    return cmocka_run_group_tests(tests, start, finish);
}
