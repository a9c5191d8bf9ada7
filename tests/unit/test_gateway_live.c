/* test_gateway_live.c - which boards say that an engine makes progress. */
#include "../../tools/gateway/board.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SECONDS 1000000000ull

static bool live(uint32_t state, uint64_t beat_s, uint64_t step_s, uint64_t waiting)
{
    static struct board_copy b;
    memset(&b, 0, sizeof b);
    b.now_ns = 1000 * SECONDS;
    b.lives = true;
    order_set(&b.board.state, state);
    order_set64(&b.board.heartbeat_ns, beat_s * SECONDS);
    order_set64(&b.board.last_step_ns, step_s * SECONDS);
    order_set64(&b.board.waiting, waiting);
    return board_makes_progress(&b);
}

static void at_work(void **state)
{
    (void)state;
    assert_true(live(LLM_STATE_READY, 999, 999, 1));
    assert_true(live(LLM_STATE_READY, 900, 999, 1)); /* one long run of steps */
    assert_true(live(LLM_STATE_READY, 999, 900, 1)); /* all wait */
    assert_false(live(LLM_STATE_READY, 900, 900, 1));
    assert_true(live(LLM_STATE_READY, 1001, 1001, 1)); /* later than the copy was made */
}

/* A stopped engine never takes the request that waits for it: its board says that it has no work. */
static void without_work(void **state)
{
    (void)state;
    assert_true(live(LLM_STATE_READY, 999, 0, 0));
    assert_false(live(LLM_STATE_READY, 900, 900, 0));
    assert_false(live(LLM_STATE_DRAINING, 900, 900, 0));
}

static void loading(void **state)
{
    (void)state;
    assert_true(live(LLM_STATE_STARTING, 0, 0, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_work),
        cmocka_unit_test(without_work),
        cmocka_unit_test(loading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
