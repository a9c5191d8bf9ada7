/* test_slow_bell.c - a client has a crowd listen at its bell, says without end that it sleeps there
 * and empties it at once: each ring wakes all of them, on the engine's time. Its bell is rung rarely
 * then, and in the end it is.
 */
#include "../support/by_hand.h"
#include "../support/support.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum { CROWDS = 4, CROWD = 20000, BATCH = 4096, REQUESTS = 8, TOKENS = 200, BELL = 4 };

static struct engine_process engine;
static struct hand hostile;
static struct io_uring crowd[CROWDS];
static atomic_uint rings;

static void start_with(const char *io)
{
    struct llm_message hello = hand_hello();
    hello.hello.cq_entries = 512;
    engine = (struct engine_process){0};
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", "--io", io,
                 NULL);
    assert_true(hand_open(&hostile, engine.instance, &hello));
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
    hand_close(&hostile);
    return engine_stop(&engine);
}

/* Polls that stay where they are when the bell rings. */
static bool gather(struct io_uring *ring, int bell)
{
    struct io_uring_params p = {.flags = IORING_SETUP_CQSIZE, .cq_entries = 32768};
    if (io_uring_queue_init_params(BATCH, ring, &p))
        return false;
    for (int n = 0; n < CROWD; n++) {
        struct io_uring_sqe *e = io_uring_get_sqe(ring);
        if (!e && io_uring_submit(ring) > 0)
            e = io_uring_get_sqe(ring);
        assert_non_null(e);
        io_uring_prep_poll_multishot(e, bell, POLLIN);
    }
    io_uring_submit(ring);
    return true;
}

/* Empties the bell until its other half is shut. */
static void *listen_there(void *unused)
{
    char byte;
    (void)unused;
    while (recv(hostile.fds[BELL], &byte, 1, 0) == 1) {
        atomic_fetch_add(&rings, 1);
        for (int i = 0; i < CROWDS; i++)
            io_uring_cq_advance(&crowd[i], io_uring_cq_ready(&crowd[i]));
    }
    return NULL;
}

/* Whoever says that it sleeps, with nothing to take, is rung for what comes then. */
static void expect_a_ring(void)
{
    order_set(&hostile.up->cq_wait, LLM_WAIT_NONE);
    assert_true(hand_nop(&hostile));
    unsigned before = atomic_load(&rings);
    order_set(&hostile.up->cq_wait, LLM_WAIT_BELL);
    assert_true(hand_nop(&hostile));
    uint64_t patience = test_now_ns() + 20000000000u;
    while (atomic_load(&rings) == before)
        assert_true(test_now_ns() < patience);
}

static void it_is_rung_rarely(void **state)
{
    (void)state;
    pthread_t listener;
    atomic_store(&rings, 0);
    for (int i = 0; i < CROWDS; i++)
        if (!gather(&crowd[i], hostile.fds[BELL])) {
            assert_int_equal(i, 0);
            skip(); /* no io_uring to make a crowd with */
        }
    assert_int_equal(pthread_create(&listener, NULL, listen_there, NULL), 0);
    order_set(&hostile.up->cq_wait, LLM_WAIT_BELL);
    for (int i = 0; i < REQUESTS; i++) {
        hand_generate(&hostile, TOKENS);
        hand_take_all(&hostile);
    }
    unsigned n = atomic_load(&rings);
    print_message("%u rings for %d tokens\n", n, REQUESTS * TOKENS);
    assert_in_range(n, 1, REQUESTS * TOKENS / 20);
    for (int i = 0; i < 5; i++)
        expect_a_ring();
    shutdown(hostile.fds[BELL], SHUT_RD);
    pthread_join(listener, NULL);
    for (int i = 0; i < CROWDS; i++)
        io_uring_queue_exit(&crowd[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_is_rung_rarely)};
    int failed = cmocka_run_group_tests_name("io_uring", tests, start_io_uring, finish);
    return failed + cmocka_run_group_tests_name("epoll", tests, start_epoll, finish);
}
