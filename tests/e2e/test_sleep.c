/* test_sleep.c - engine and clients that sleep find each other: a sleeping engine is woken by a
 * submission, an engine that holds tokens for a full ring by the client that makes room, a sleeping
 * client by its tokens, on its futex or at its bell. A lost wake of the engine would be found by
 * its tick a second later and counted; the count stays 0. The same without io_uring, where the
 * engine looks by itself.
 */
#include "../../appliance/waiter.h"
#include "../../client/llmclient.h"
#include "../../shm/board.h"
#include "../../shm/control.h"
#include "../support/support.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int32_t prompt[5] = {1, 2, 3, 4, 5};
static struct engine_process engine;
static const struct llm_board *board;

static void start_with(const char *io)
{
    /* no spinning: every gap is a sleep */
    engine = (struct engine_process){0};
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--idle-spin-us", "0", "--io", io, NULL);
    char name[80];
    assert_int_equal(llm_board_name(engine.instance, name, sizeof name), 0);
    int fd = shm_open(name, O_RDONLY, 0);
    assert_true(fd >= 0);
    board = mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(board, MAP_FAILED);
    close(fd);
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
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    assert_int_equal(order_read64(&board->evictions), 0);
    munmap((void *)board, LLM_BOARD_BYTES);
    return engine_stop(&engine);
}

static struct llm_client *open_client(uint32_t cq_entries, uint32_t inflight, uint32_t spin_us)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    o.cq_entries = cq_entries, o.max_inflight = inflight;
    if (llm_connect(&c, engine.instance, &o) < 0)
        fail_msg("%s", llm_connect_error());
    llm_set_spin_us(c, spin_us);
    return c;
}

static void submit(struct llm_client *c, uint32_t op, uint32_t max_tokens)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = op, r.max_tokens = max_tokens, r.flags = LLM_SQE_IGNORE_EOS;
    if (op != LLM_OP_NOP)
        r.tokens = prompt, r.n_tokens = 5;
    if (llm_submit(c, &r, NULL) < 0)
        fail_msg("%s", llm_errmsg(c));
}

/* As llm_wait: in the library, or in a loop of our own. */
static int next_event(struct llm_client *c, struct llm_event *e, bool polled)
{
    int rc = polled ? llm_poll(c, e) : llm_wait(c, e, 60000);
    while (polled && !rc) {
        struct pollfd p = {llm_fd(c), POLLIN, 0};
        if (!llm_arm(c) && poll(&p, 1, 60000) != 1)
            break;
        rc = llm_poll(c, e);
    }
    return rc;
}

/* Takes everything up to the final; returns the number of tokens. */
static uint32_t take_all(struct llm_client *c, int32_t *tokens, bool polled)
{
    uint32_t n = 0;
    struct llm_event e;
    do {
        if (next_event(c, &e, polled) != 1)
            fail_msg("no event: %s", llm_errmsg(c));
        assert_true(n + e.n_tokens <= 256);
        memcpy(tokens + n, e.tokens, e.n_tokens * sizeof *tokens);
        n += e.n_tokens;
    } while (e.type == LLM_EVENT_TOKENS);
    assert_int_equal(e.type, LLM_EVENT_DONE);
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    return n;
}

/* Until the engine has slept once more, or 20 s. */
static void wait_for_sleep(uint64_t sleeps)
{
    for (int i = 0; i < 20000 && order_read64(&board->sleeps) == sleeps; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_true(order_read64(&board->sleeps) > sleeps);
}

static void each_call_wakes_a_sleeping_engine(void **state)
{
    (void)state;
    for (uint32_t spin = 0; spin <= 100; spin += 50) {
        struct llm_client *c = open_client(0, 0, spin);
        int32_t tokens[256];
        for (int i = 0; i < 1000; i++) {
            submit(c, LLM_OP_NOP, 0);
            take_all(c, tokens, i % 2);
        }
        llm_close(c);
    }
}

static void a_full_ring_is_waited_for(void **state)
{
    (void)state;
    struct llm_client *c = open_client(0, 0, 0);
    int32_t expected[256], tokens[256];
    submit(c, LLM_OP_GENERATE, 200);
    assert_int_equal(take_all(c, expected, false), 200);
    llm_close(c);
    for (uint32_t spin = 0; spin <= 50; spin += 50) {
        c = open_client(4, 2, spin); /* two tokens at a time */
        for (int i = 0; i < 20; i++) {
            uint64_t sleeps = order_read64(&board->sleeps);
            submit(c, LLM_OP_GENERATE, 200);
            if (i % 8 < 2)
                wait_for_sleep(sleeps); /* it has all tokens by now, or sleeps holding them */
            assert_int_equal(take_all(c, tokens, i % 2), 200);
            assert_memory_equal(tokens, expected, sizeof *tokens * 200);
        }
        llm_close(c);
    }
}

/* `stuck` has said how it waits, but takes nothing until another client has had its tokens. */
static void one_is_stuck(bool polled)
{
    struct llm_client *stuck = open_client(4, 2, 0), *c = open_client(0, 0, 0);
    int32_t tokens[256];
    submit(stuck, LLM_OP_GENERATE, 200);
    submit(stuck, LLM_OP_GENERATE, 100);
    if (polled)
        llm_arm(stuck);
    for (int i = 0; i < 20; i++) {
        submit(c, LLM_OP_GENERATE, 200);
        assert_int_equal(take_all(c, tokens, false), 200);
    }
    uint32_t n = 0;
    while (llm_inflight(stuck)) {
        struct llm_event e;
        assert_int_equal(next_event(stuck, &e, polled), 1);
        n += e.n_tokens;
    }
    assert_int_equal(n, 300);
    llm_close(stuck);
    llm_close(c);
}

/* One client that takes nothing does not hold up another. */
static void a_full_ring_is_nobody_elses_matter(void **state)
{
    (void)state;
    one_is_stuck(false);
    one_is_stuck(true);
}

enum { CLIENTS_MOST = 3 * WAITER_FEW };

/* A client of its own process; every other one spins for a while, half of them wait at the bell. */
static void run_client(int i, unsigned requests)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    struct llm_event e;
    unsigned expected = 0;
    o.cq_entries = 64, o.max_inflight = 32, o.spin_us = i % 2 ? 0 : 20;
    if (llm_connect(&c, engine.instance, &o) < 0)
        _exit(1);
    for (unsigned sent = 0, tokens = 0, finals = 0; finals < requests;) {
        struct llm_request r = LLM_REQUEST_INIT;
        r.tokens = prompt, r.n_tokens = 5, r.max_tokens = 1 + sent % 30;
        r.flags = LLM_SQE_IGNORE_EOS;
        if (sent < requests && !llm_submit(c, &r, NULL)) {
            expected += r.max_tokens;
            sent++;
        } else if (next_event(c, &e, i / 2 % 2) != 1 || e.type == LLM_EVENT_ERROR)
            _exit(2);
        else if (e.type == LLM_EVENT_TOKENS)
            tokens += e.n_tokens;
        else if (++finals == requests && tokens != expected)
            _exit(3);
    }
    llm_close(c);
    _exit(0);
}

static void run_clients(int n, unsigned requests)
{
    pid_t pids[CLIENTS_MOST];
    fflush(NULL);
    for (int i = 0; i < n; i++)
        if (!(pids[i] = fork()))
            run_client(i, requests);
    for (int i = 0; i < n; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
}

/* More requests than the engine knows at a time: they wait in the ring, in order, and all come. So
 * few sleepers that each is woken by a call, and so many that one submission wakes them. */
static void many_clients_at_once(void **state)
{
    (void)state;
    run_clients(4, 200);
    run_clients(CLIENTS_MOST, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_wakes_a_sleeping_engine),
        cmocka_unit_test(a_full_ring_is_waited_for),
        cmocka_unit_test(a_full_ring_is_nobody_elses_matter),
        cmocka_unit_test(many_clients_at_once),
    };
    int failed = cmocka_run_group_tests_name("io_uring", tests, start_io_uring, finish);
    return failed + cmocka_run_group_tests_name("epoll", tests, start_epoll, finish);
}
