/* test_crowd_at_socket.c - a crowd polls a client's socket when the engine ends it, and is woken on
 * the engine's time. Whoever comes next pays for it at the door: meanwhile the others go on.
 */
#include "../../client/llmclient.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <liburing.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CROWDS = 4, CROWD = 20000, BATCH = 4096, REQUESTS = 64, STEPS = 20 };

static struct engine_process engine;
static const struct llm_board *board;

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--max-num-seqs", "1", NULL);
    board = hand_board(engine.instance);
    assert_non_null(board);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    return engine_stop(&engine);
}

static bool gather(struct io_uring *ring, int fd)
{
    if (io_uring_queue_init(BATCH, ring, 0))
        return false;
    for (int n = 0; n < CROWD; n++) {
        struct io_uring_sqe *e = io_uring_get_sqe(ring);
        if (!e && io_uring_submit(ring) > 0)
            e = io_uring_get_sqe(ring);
        assert_non_null(e);
        io_uring_prep_poll_add(e, fd, POLLIN);
    }
    io_uring_submit(ring);
    return true;
}

/* In a process of its own, which has its own work to do when they are woken. False: there is no
 * io_uring to make a crowd with. */
static bool start_crowd(int fd, pid_t *pid)
{
    struct io_uring ring[CROWDS];
    int told[2];
    char c;
    assert_int_equal(pipe(told), 0);
    fflush(NULL);
    *pid = fork();
    if (!*pid) {
        for (int i = 0; i < CROWDS; i++)
            if (!gather(&ring[i], fd))
                _exit(1);
        if (write(told[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    assert_true(*pid > 0);
    close(told[1]);
    bool there = read(told[0], &c, 1) == 1;
    close(told[0]);
    return there;
}

/* The neighbour has work for so long that the engine is never idle. */
static void give_work(struct llm_client *c)
{
    static const int32_t prompt[5] = {1, 2, 3, 4, 5};
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = 200, r.flags = LLM_SQE_IGNORE_EOS;
    for (int i = 0; i < REQUESTS; i++)
        assert_int_equal(llm_submit(c, &r, NULL), 0);
    assert_true(hand_until(&board->running, 1));
}

static void the_next_one_waits(void **state)
{
    (void)state;
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *neighbour;
    struct hand hostile, at_once, next;
    pid_t crowd;
    o.cq_entries = 16384, o.max_inflight = REQUESTS;
    assert_int_equal(llm_connect(&neighbour, engine.instance, &o), 0);
    assert_true(hand_open(&hostile, engine.instance, NULL));
    if (!start_crowd(hostile.socket, &crowd))
        skip();
    give_work(neighbour);
    assert_int_equal(send(hostile.socket, "", 1, MSG_NOSIGNAL), 1);
    assert_true(hand_until(&board->evictions, 1));
    uint64_t steps = order_read64(&board->steps);
    assert_true(hand_open(&at_once, engine.instance, NULL)); /* maybe: it stood there already */
    assert_true(hand_open(&next, engine.instance, NULL));
    steps = order_read64(&board->steps) - steps;
    kill(crowd, SIGKILL);
    waitpid(crowd, NULL, 0);
    print_message("%llu steps before the next one was let in\n", (unsigned long long)steps);
    assert_true(steps >= STEPS);
    hand_close(&next);
    hand_close(&at_once);
    hand_close(&hostile);
    llm_close(neighbour);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_next_one_waits)};
    return cmocka_run_group_tests(tests, start, finish);
}
