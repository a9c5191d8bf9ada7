/* test_wake_ways.c - each way in which the engine wakes a sleeper does so: a futex by a call, a futex
 * by io_uring's submission where more sleep than WAITER_FEW, a bell in either company. The library
 * would hide a wake of a futex that never comes: it sleeps there for a twentieth of a second at most.
 * Here a sleeper sleeps until it is woken, beside others who say all the time that they sleep.
 */
#include "../../appliance/waiter.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { COMPANY = 2 * WAITER_FEW, TOKENS = 100, COMPANY_TOKENS = 200, BELL = 4 };

static struct engine_process engine;
static const struct llm_board *board;
static struct hand hands[1 + COMPANY]; /* the sleeper and the others */

static void start_with(const char *io)
{
    struct llm_message hello = hand_hello();
    hello.hello.cq_entries = 512; /* nobody need take anything */
    engine = (struct engine_process){0};
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--idle-spin-us", "0", "--max-num-seqs", "32", "--io", io, NULL);
    board = hand_board(engine.instance);
    assert_non_null(board);
    for (int i = 0; i <= COMPANY; i++)
        assert_true(hand_open(&hands[i], engine.instance, &hello));
}

static int start_io_uring(void **state)
{
    (void)state;
    start_with("io_uring");
    return 0;
}

static int start_epoll(void **state)
{
    (void)state;
    start_with("epoll");
    return 0;
}

static int finish(void **state)
{
    (void)state;
    for (int i = 0; i <= COMPANY; i++)
        hand_close(&hands[i]);
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    assert_int_equal(order_read64(&board->evictions), 0);
    return engine_stop(&engine);
}

/* Until a wake, for 20 s. */
static bool woken_on_futex(struct hand *h, uint32_t expected)
{
    struct timespec t = {.tv_sec = 20};
    return !syscall(SYS_futex, &h->down->cq_tail, FUTEX_WAIT, expected, &t, NULL, 0) ||
           errno == EAGAIN;
}

static void sleep_once(struct hand *h, enum llm_wait way)
{
    uint32_t expected;
    char byte;
    while (way == LLM_WAIT_BELL && recv(h->fds[BELL], &byte, 1, MSG_DONTWAIT) == 1)
        ;
    if (!ring_wait_begin(&h->ring, way, &expected))
        return;
    if (!(way == LLM_WAIT_BELL ? hand_wait(h->fds[BELL]) : woken_on_futex(h, expected)))
        fail_msg("a sleeper was not woken");
    ring_wait_end(&h->ring);
}

/* Takes all of it, and sleeps whenever nothing is there. */
static void take_asleep(struct hand *h, enum llm_wait way)
{
    struct llm_cqe cqe = {.type = LLM_CQE_TOKENS};
    struct llm_result result;
    while (cqe.type == LLM_CQE_TOKENS) {
        if (ring_poll(&h->ring, &cqe, &result))
            continue;
        assert_null(h->ring.broken);
        if (ring_drained(&h->ring))
            hand_wake(&h->up->cq_head);
        sleep_once(h, way);
    }
    assert_int_equal(cqe.type, LLM_CQE_DONE);
}

/* The others get a token in each step in which the sleeper does, and are woken then. */
static void sleep_among(int n, enum llm_wait way)
{
    uint64_t wakes = order_read64(&board->wakes);
    for (int i = 1; i <= n; i++) {
        order_set(&hands[i].up->cq_wait, i % 3 ? LLM_WAIT_FUTEX : LLM_WAIT_BELL);
        hand_generate(&hands[i], COMPANY_TOKENS);
    }
    hand_generate(&hands[0], TOKENS);
    take_asleep(&hands[0], way);
    for (int i = 1; i <= n; i++) {
        hand_take_all(&hands[i]);
        order_set(&hands[i].up->cq_wait, LLM_WAIT_NONE);
    }
    assert_true(order_read64(&board->wakes) - wakes >= (uint64_t)n * TOKENS / 2);
}

static void each_way_wakes(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        sleep_among(0, LLM_WAIT_FUTEX);
        sleep_among(0, LLM_WAIT_BELL);
        sleep_among(WAITER_FEW - 1, LLM_WAIT_FUTEX);
        sleep_among(WAITER_FEW, LLM_WAIT_FUTEX);
        sleep_among(COMPANY, LLM_WAIT_FUTEX);
        sleep_among(COMPANY, LLM_WAIT_BELL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_way_wakes)};
    int failed = cmocka_run_group_tests_name("io_uring", tests, start_io_uring, finish);
    return failed + cmocka_run_group_tests_name("epoll", tests, start_epoll, finish);
}
