/* test_engine_death.c - the engine is killed under waiting clients: every request of each ends with
 * its own error, whether it waits in the library or in a loop of its own. A new engine starts over
 * what was left, and a second one on a living instance changes nothing there. Failure tests (3) and
 * (4).
 */
#include "../../client/llmclient.h"
#include "../../shm/board.h"
#include "../../shm/control.h"
#include "../support/support.h"
#include "../support/watchers.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *tiny(void)
{
    return golden_path("tiny_gguf/llama.Q4_0.gguf");
}

/* Nothing happens in the engine from here on. */
static void freeze(const struct engine_process *e)
{
    siginfo_t info;
    assert_int_equal(kill(e->pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)e->pid, &info, WSTOPPED), 0);
}

/* Runs a request of its own: the engine serves. */
static void serves(const struct engine_process *e)
{
    static const int32_t prompt[] = {1, 2, 3};
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_client *c;
    struct llm_event ev;
    r.tokens = prompt, r.n_tokens = 3, r.max_tokens = 20, r.flags = LLM_SQE_IGNORE_EOS;
    if (llm_connect(&c, e->instance, NULL))
        fail_msg("%s", llm_connect_error());
    assert_int_equal(llm_submit(c, &r, NULL), 0);
    uint32_t n = 0;
    do {
        assert_int_equal(llm_wait(c, &ev, 60000), 1);
        n += ev.n_tokens;
    } while (ev.type == LLM_EVENT_TOKENS);
    assert_int_equal(ev.type, LLM_EVENT_DONE);
    assert_int_equal(n, 20);
    llm_close(c);
}

/* ---- told of the death ---- */

static int by_time(const void *a, const void *b)
{
    const struct watcher_report *x = a, *y = b;
    return x->told_ns < y->told_ns ? -1 : x->told_ns > y->told_ns;
}

static void check_reports(struct watcher_report reports[WATCHERS], uint64_t killed_ns)
{
    qsort(reports, WATCHERS, sizeof *reports, by_time);
    for (int i = 0; i < WATCHERS; i++) {
        print_message("%s: told after %.1f ms\n", reports[i].epoll ? "epoll   " : "llm_wait",
                      (double)(reports[i].told_ns - killed_ns) * 1e-6);
        assert_int_equal(reports[i].finals, WATCHER_REQUESTS);
        assert_int_equal(reports[i].code, LLM_EOWNERDEAD);
    }
}

/* `asleep_ms`: how long they sleep already; a long llm_wait sleeps in another way than a short one.
 */
static void killed_under_sleepers(struct engine_process *e, long asleep_ms)
{
    struct watchers w;
    struct watcher_report reports[WATCHERS];
    engine_start(e, tiny(), "--threads", "1", NULL);
    watchers_start(&w, e->instance);
    freeze(e);
    watchers_wait(&w);
    nanosleep(&(struct timespec){0, asleep_ms * 1000000}, NULL);
    uint64_t killed_ns = test_now_ns();
    assert_int_equal(engine_kill(e), 128 + SIGKILL);
    watchers_collect(&w, reports);
    check_reports(reports, killed_ns);
}

static void all_are_told_and_a_new_engine_starts_over_it(void **state)
{
    (void)state;
    struct engine_process e = {0};
    for (long asleep_ms = 0; asleep_ms <= 150; asleep_ms += 150) {
        killed_under_sleepers(&e, asleep_ms); /* the second one starts over what the first left */
        struct engine_process next = {0};
        snprintf(next.instance, sizeof next.instance, "%s", e.instance);
        engine_start(&next, tiny(), "--threads", "1", NULL);
        serves(&next);
        assert_int_equal(engine_kill(&next), 128 + SIGKILL);
    }
}

/* In the middle of their streams, and with tokens on the way. */
static void killed_in_mid_stream(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct engine_process e = {0};
        struct watchers w;
        struct watcher_report reports[WATCHERS];
        engine_start(&e, tiny(), "--threads", "1", "--max-num-seqs", "1", NULL);
        watchers_start(&w, e.instance);
        freeze(&e);
        watchers_wait(&w);
        kill(e.pid, SIGCONT);
        nanosleep(&(struct timespec){0, 2000000 * round}, NULL);
        engine_kill(&e);
        watchers_collect(&w, reports);
        for (int i = 0; i < WATCHERS; i++) {
            assert_true(reports[i].finals <= WATCHER_REQUESTS);
            if (reports[i].code == -ENOENT) /* all had come before the kill: none ended with it */
                assert_int_equal(reports[i].finals, 0);
            else
                assert_int_equal(reports[i].code, LLM_EOWNERDEAD);
        }
    }
}

/* ---- a second engine ---- */

struct image {
    ino_t inode;
    uint8_t bytes[LLM_BOARD_BYTES];
};

static void look_at_board(const struct engine_process *e, struct image *to)
{
    char name[80];
    struct stat st;
    assert_int_equal(llm_board_name(e->instance, name, sizeof name), 0);
    int fd = shm_open(name, O_RDONLY, 0);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    to->inode = st.st_ino;
    assert_int_equal(pread(fd, to->bytes, sizeof to->bytes, 0), LLM_BOARD_BYTES);
    close(fd);
}

/* The first one is stopped meanwhile: so nothing on its board may move. */
static void a_second_engine_leaves_the_first_ones_board_alone(void **state)
{
    (void)state;
    static struct image before, after;
    struct engine_process first = {0}, second = {0};
    engine_start(&first, tiny(), "--threads", "1", NULL);
    freeze(&first);
    look_at_board(&first, &before);
    snprintf(second.instance, sizeof second.instance, "%s", first.instance);
    engine_spawn(&second, tiny(), NULL);
    assert_int_equal(engine_wait(&second), 1);
    char *log = engine_log(&second), pid[32];
    snprintf(pid, sizeof pid, "process %d", (int)first.pid);
    assert_non_null(strstr(log, pid));
    free(log);
    look_at_board(&first, &after);
    assert_true(before.inode == after.inode);
    assert_memory_equal(before.bytes, after.bytes, LLM_BOARD_BYTES);
    kill(first.pid, SIGCONT);
    serves(&first);
    assert_int_equal(engine_stop(&first), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_are_told_and_a_new_engine_starts_over_it),
        cmocka_unit_test(killed_in_mid_stream),
        cmocka_unit_test(a_second_engine_leaves_the_first_ones_board_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
