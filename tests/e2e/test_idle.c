/* test_idle.c - an engine that has nothing to do is quiet: no thread of it wakes up but for one
 * slow timer, also with clients connected, and with one that is stopped and has left tokens unread.
 * That one goes on where it was. With io_uring, with epoll, and with epoll where the engine must
 * look at the rings itself.
 *
 * Nothing in the engine depends on how long a client is silent, so a few seconds prove what sixty
 * would; LLMD_EXHAUSTIVE takes the sixty.
 * Failure test (5).
 */
#include "../../client/llmclient.h"
#include "../../shm/board.h"
#include "../../shm/control.h"
#include "../support/forbid.h"
#include "../support/process.h"
#include "../support/support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 100, REQUESTS = 2 };

static struct engine_process engine;
static const struct llm_board *board;

static void start_with(const char *io)
{
    char name[80];
    engine = (struct engine_process){0};
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "2", "--io", io,
                 NULL);
    assert_int_equal(llm_board_name(engine.instance, name, sizeof name), 0);
    int fd = shm_open(name, O_RDONLY, 0);
    assert_true(fd >= 0);
    board = mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(board, MAP_FAILED);
    close(fd);
}

static void finish(void)
{
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    assert_int_equal(order_read64(&board->evictions), 0);
    munmap((void *)board, LLM_BOARD_BYTES);
    assert_int_equal(engine_stop(&engine), 0);
}

/* The child: its ring is full long before its requests end; then it stops itself. */
static void run_client(void)
{
    static const int32_t prompt[4] = {1, 2, 3, 4};
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event e;
    struct llm_client *c;
    uint32_t n = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    o.cq_entries = 8, o.max_inflight = REQUESTS;
    r.tokens = prompt, r.n_tokens = 4, r.max_tokens = TOKENS, r.flags = LLM_SQE_IGNORE_EOS;
    if (llm_connect(&c, engine.instance, &o) || llm_submit(c, &r, NULL) || llm_submit(c, &r, NULL))
        _exit(1);
    raise(SIGSTOP);
    for (; llm_inflight(c); n += e.n_tokens)
        if (llm_wait(c, &e, 60000) != 1 || e.type == LLM_EVENT_ERROR)
            _exit(2);
    _exit(n == REQUESTS * TOKENS ? 0 : 3);
}

static pid_t stopped_client(void)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        run_client();
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    return pid;
}

static void goes_on(pid_t pid)
{
    int status;
    kill(pid, SIGCONT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Both requests are answered as far as the ring takes it, and the engine has gone to sleep: the
 * figures of two seconds are the same. */
static void until_it_is_idle(void)
{
    uint64_t steps, sleeps;
    do {
        steps = order_read64(&board->steps);
        sleeps = order_read64(&board->sleeps);
        while (order_read64(&board->sleeps) < sleeps + 2)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
    } while (order_read64(&board->steps) != steps || !order_read64(&board->output_tokens));
}

/* Counts over seconds, and allows several times what there should be: 1 tick a second, 20 looks a
 * second at the most. What was before took 500. */
static void is_quiet(unsigned a_second)
{
    unsigned seconds = test_exhaustive() ? 60 : 3;
    uint64_t start_ns = test_now_ns();
    struct held before = process_held(engine.pid);
    for (uint64_t left = seconds; left; left--)
        nanosleep(&(struct timespec){1, 0}, NULL);
    struct held after = process_held(engine.pid);
    uint64_t passed = (test_now_ns() - start_ns) / 1000000000u + 1;
    print_message("%u sleeps of %u threads in %u s\n", (unsigned)(after.sleeps - before.sleeps),
                  after.threads, (unsigned)passed);
    assert_in_range(after.sleeps - before.sleeps, 0, a_second * passed);
}

static void is_idle_with(const char *io, unsigned a_second)
{
    struct llm_client *c;
    start_with(io);
    assert_int_equal(llm_connect(&c, engine.instance, NULL), 0);
    pid_t pid = stopped_client();
    until_it_is_idle();
    is_quiet(a_second);
    assert_int_equal(order_read64(&board->clients), 2);
    goes_on(pid);
    llm_close(c);
    finish();
}

static void with_io_uring(void **state)
{
    (void)state;
    is_idle_with("io_uring", 6);
}

static void with_epoll(void **state)
{
    (void)state;
    is_idle_with("epoll", 6);
}

static void where_it_must_look(void **state)
{
    (void)state;
    is_idle_with("epoll", 60);
}

static int run_io_uring(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(with_io_uring)};
    return cmocka_run_group_tests_name("io_uring", tests, NULL, NULL);
}

static int run_epoll(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(with_epoll)};
    return cmocka_run_group_tests_name("epoll", tests, NULL, NULL);
}

static int run_looking(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(where_it_must_look)};
    forbid_futex_waitv();
    return cmocka_run_group_tests_name("no futex_waitv", tests, NULL, NULL);
}

/* At the same time: most of it is waiting. */
int main(void)
{
    pid_t pid[] = {start_a_process(run_io_uring), start_a_process(run_epoll),
                   start_a_process(run_looking)};
    int failed = 0;
    for (int i = 0; i < 3; i++)
        failed |= end_of_process(pid[i]);
    return failed != 0;
}
