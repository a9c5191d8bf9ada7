/* test_wake_storm.c - a client wakes the engine as fast as it can, flips the word that says how it
 * sleeps, and rings without work: the engine goes on sleeping, others are served, no wake is lost.
 */
#include "../../client/llmclient.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 100, STORMS = 3, TICKS = 2, SLEEPS_A_TICK = 100 };

static struct engine_process engine;
static const struct llm_board *board;
static struct llm_client *neighbour;
static int32_t expected[TOKENS];
static atomic_bool stop;

static void stream(int32_t *tokens)
{
    static const int32_t prompt[5] = {1, 2, 3, 4, 5};
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event e;
    uint32_t n = 0;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = TOKENS, r.flags = LLM_SQE_IGNORE_EOS;
    assert_int_equal(llm_submit(neighbour, &r, NULL), 0);
    for (;;) {
        assert_int_equal(llm_wait(neighbour, &e, 60000), 1);
        if (e.type != LLM_EVENT_TOKENS)
            break;
        assert_true(n + e.n_tokens <= TOKENS);
        memcpy(tokens + n, e.tokens, e.n_tokens * sizeof *tokens);
        n += e.n_tokens;
    }
    assert_int_equal(n, TOKENS);
}

static void start_with(const char *io)
{
    engine = (struct engine_process){0};
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--idle-spin-us", "0", "--io", io, NULL);
    board = hand_board(engine.instance);
    assert_non_null(board);
    assert_int_equal(llm_connect(&neighbour, engine.instance, NULL), 0);
    stream(expected);
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
    llm_close(neighbour);
    return engine_stop(&engine);
}

static void *storm(void *argument)
{
    struct hand *h = argument;
    for (uint32_t i = 0; !atomic_load_explicit(&stop, memory_order_relaxed); i++) {
        order_set(&h->up->cq_wait, i % 4);
        hand_wake(&h->up->sq_tail);
        hand_wake(&h->up->cq_head);
    }
    return NULL;
}

/* By the engine's own clock: how often it slept in so many of its ticks, a second each. */
static uint64_t sleeps_in(unsigned ticks)
{
    uint64_t from_ns = order_read64(&board->heartbeat_ns), now_ns = from_ns;
    uint64_t sleeps = order_read64(&board->sleeps);
    uint64_t patience = test_now_ns() + 60000000000u;
    while (now_ns - from_ns < ticks * 1000000000ull) {
        assert_true(test_now_ns() < patience);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        now_ns = order_read64(&board->heartbeat_ns);
    }
    uint64_t slept = order_read64(&board->sleeps) - sleeps;
    return slept * 1000000000u / (now_ns - from_ns);
}

static void the_engine_sleeps_on(void **state)
{
    (void)state;
    struct hand h[STORMS];
    pthread_t thread[STORMS];
    int32_t got[TOKENS];
    atomic_store(&stop, false);
    for (int i = 0; i < STORMS; i++) {
        assert_true(hand_open(&h[i], engine.instance, NULL));
        assert_int_equal(pthread_create(&thread[i], NULL, storm, &h[i]), 0);
    }
    uint64_t a_tick = sleeps_in(TICKS);
    print_message("%llu sleeps a second\n", (unsigned long long)a_tick);
    assert_true(a_tick <= SLEEPS_A_TICK);
    for (int i = 0; i < 5; i++) {
        stream(got);
        assert_memory_equal(got, expected, sizeof got);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < STORMS; i++) {
        pthread_join(thread[i], NULL);
        assert_true(hand_nop(&h[i])); /* what it submits is seen, at the next tick if not before */
        assert_int_equal(order_acquire(&h[i].down->evicted), 0);
        hand_close(&h[i]);
    }
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    assert_int_equal(order_read64(&board->errors_written), STORMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_engine_sleeps_on)};
    int failed = cmocka_run_group_tests_name("io_uring", tests, start_io_uring, finish);
    return failed + cmocka_run_group_tests_name("epoll", tests, start_epoll, finish);
}
