/* test_spin_forever.c - an engine that never sleeps: clients make no system call to reach it, ticks
 * come all the same, and it can be stopped.
 */
#include "../support/by_hand.h"
#include "../support/support.h"

static void it_never_sleeps(void **state)
{
    (void)state;
    struct engine_process e = {0};
    struct hand h;
    engine_start(&e, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", "--idle-spin-us",
                 "forever", NULL);
    const struct llm_board *board = hand_board(e.instance);
    assert_non_null(board);
    assert_true(hand_open(&h, e.instance, NULL));
    uint64_t heartbeat_ns = order_read64(&board->heartbeat_ns);
    while (order_read64(&board->heartbeat_ns) < heartbeat_ns + 1500000000) { /* beyond a tick */
        hand_entry(&h)->op = LLM_OP_NOP;
        assert_false(ring_submit(&h.ring)); /* nobody is to be woken */
        struct llm_cqe c;
        assert_true(hand_take(&h, &c));
    }
    assert_int_equal(order_read64(&board->sleeps), 0);
    hand_close(&h);
    assert_true(hand_until(&board->clients, 0));
    assert_int_equal(engine_stop(&e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_never_sleeps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
