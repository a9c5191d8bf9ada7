/* test_stopped_client.c - a process that is stopped is not dead: its client is neither evicted nor
 * in anybody's way, its tokens wait, and all of them come when it goes on. Also where it has
 * announced its bell, which rings unheard until it is full. Failure test (5).
 */
#include "../../client/llmclient.h"
#include "../../shm/board.h"
#include "../../shm/control.h"
#include "../support/support.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 200, REQUESTS = 2 };

static struct engine_process engine;
static const struct llm_board *board;

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", NULL);
    char name[80];
    assert_int_equal(llm_board_name(engine.instance, name, sizeof name), 0);
    int fd = shm_open(name, O_RDONLY, 0);
    assert_true(fd >= 0);
    board = mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(board, MAP_FAILED);
    close(fd);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    munmap((void *)board, LLM_BOARD_BYTES);
    return engine_stop(&engine);
}

static int submit(struct llm_client *c, uint32_t number)
{
    int32_t prompt[] = {1, 2, 3, (int32_t)number};
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = 4, r.max_tokens = TOKENS, r.flags = LLM_SQE_IGNORE_EOS;
    r.user_data = number;
    return llm_submit(c, &r, NULL);
}

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

/* Takes all that is in flight: tokens[number - 1]. False if anything ended otherwise. */
static bool take_all(struct llm_client *c, bool polled, int32_t tokens[REQUESTS][TOKENS])
{
    uint32_t n[REQUESTS] = {0};
    while (llm_inflight(c)) {
        struct llm_event e;
        if (next_event(c, &e, polled) != 1 || e.id < 1 || e.id > REQUESTS)
            return false;
        uint32_t i = (uint32_t)e.id - 1;
        if (e.type == LLM_EVENT_ERROR || n[i] + e.n_tokens > TOKENS)
            return false;
        memcpy(tokens[i] + n[i], e.tokens, e.n_tokens * sizeof **tokens);
        n[i] += e.n_tokens;
    }
    return n[0] == TOKENS && n[1] == TOKENS;
}

/* The child: it stops after it has said how it waits. */
static void run_client(bool polled, uint32_t cq_entries, int say)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    static int32_t tokens[REQUESTS][TOKENS];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    o.cq_entries = cq_entries, o.max_inflight = REQUESTS;
    if (llm_connect(&c, engine.instance, &o) || submit(c, 1) || submit(c, 2))
        _exit(1);
    if (polled)
        llm_arm(c);
    raise(SIGSTOP);
    if (!take_all(c, polled, tokens) || write(say, tokens, sizeof tokens) != sizeof tokens)
        _exit(2);
    llm_close(c);
    _exit(0);
}

static pid_t start_and_stop(bool polled, uint32_t cq_entries, int *hear)
{
    int said[2], status;
    assert_int_equal(pipe(said), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        run_client(polled, cq_entries, said[1]);
    close(said[1]);
    *hear = said[0];
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    return pid;
}

/* Until the engine has woken from its sleep `n` times, as it does once a second, or 20 s. */
static void let_it_tick(uint64_t n)
{
    uint64_t sleeps = order_read64(&board->sleeps);
    for (int i = 0; i < 20000 && order_read64(&board->sleeps) < sleeps + n; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_true(order_read64(&board->sleeps) >= sleeps + n);
}

static void it_goes_on_where_it_was(bool polled, uint32_t cq_entries)
{
    static int32_t expected[REQUESTS][TOKENS], got[REQUESTS][TOKENS];
    int hear, status;
    pid_t pid = start_and_stop(polled, cq_entries, &hear);
    struct llm_client *c;
    assert_int_equal(llm_connect(&c, engine.instance, NULL), 0);
    for (int i = 0; i < 5; i++) { /* it is in nobody's way */
        assert_int_equal(submit(c, 1) | submit(c, 2), 0);
        assert_true(take_all(c, false, expected));
    }
    let_it_tick(2);
    assert_int_equal(order_read64(&board->clients), 2);
    assert_int_equal(order_read64(&board->evictions), 0);
    kill(pid, SIGCONT);
    for (size_t done = 0; done < sizeof got;) {
        ssize_t n = read(hear, (char *)got + done, sizeof got - done);
        assert_true(n > 0);
        done += (size_t)n;
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_memory_equal(got, expected, sizeof got);
    close(hear);
    llm_close(c);
    for (int i = 0; i < 20000 && order_read64(&board->clients); i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_int_equal(order_read64(&board->clients), 0);
}

static void its_tokens_wait_for_room(void **state)
{
    (void)state;
    it_goes_on_where_it_was(false, 8);
}

static void they_wait_behind_the_bell_too(void **state)
{
    (void)state;
    it_goes_on_where_it_was(true, 8);
}

/* The ring has room for all: each of hundreds of publishes rings. */
static void a_full_bell_holds_nobody_up(void **state)
{
    (void)state;
    it_goes_on_where_it_was(true, 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_tokens_wait_for_room),
        cmocka_unit_test(they_wait_behind_the_bell_too),
        cmocka_unit_test(a_full_bell_holds_nobody_up),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
