/* test_llmctl_top.c - `llmctl top`: one frame as text at several widths, live on a terminal, and of
 * an engine that was killed.
 */
#include "llmctl_rig.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static char *once(const char *environment)
{
    int status;
    char *out = run_command(&status, "%s '%s' -i %s top --once", environment, built("llmctl"),
                            engine.instance);
    assert_int_equal(status, 0);
    return out;
}

static void has(const char *frame, const char *text)
{
    if (!strstr(frame, text))
        fail_msg("no \"%s\" in\n%s", text, frame);
}

static void widest_line_is(const char *frame, size_t most)
{
    for (const char *at = frame; *at;) {
        size_t n = strcspn(at, "\n");
        if (n > most)
            fail_msg("a line of %zu columns, not %zu: %.*s", n, most, (int)n, at);
        at += n + (at[n] == '\n');
    }
}

/* Each stands on one line, whatever the width. */
static const char *const wanted[] = {
    "  ready",     "running 0", "waiting 0",    "clients",     "sessions",  "KV",
    "used#",       "cached=",   "free.",        "prefill",     "decode",    "prefix hits",
    "preemptions", "TTFT ms",   "token gap ms", "queue ms",    "step ms",   "overhead us",
    "p50",         "p95",       "p99",          "refused   1", "session 1", "deadline misses 0",
    "last step",   "heartbeat"};

static void one_frame(void **state)
{
    (void)state;
    json_decref(ctl_json("complete --tokens 5,6,7 -n 20 --ignore-eos --json"));
    json_decref(ctl_json_status(1, "session close nobody --json 2>/dev/null"));
    char *frame = once("COLUMNS=80");
    widest_line_is(frame, 80);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        has(frame, wanted[i]);
    size_t lines = 0;
    for (const char *at = frame; *at; at++)
        lines += *at == '\n';
    assert_in_range(lines, 12, 23);
    free(frame);
}

static void narrow_frames(void **state)
{
    (void)state;
    static const unsigned widths[] = {24, 33, 40, 61, 79, 120};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        char environment[32];
        snprintf(environment, sizeof environment, "COLUMNS=%u", widths[i]);
        char *frame = once(environment);
        widest_line_is(frame, widths[i]);
        has(frame, "running 0");
        has(frame, "TTFT ms");
        for (size_t k = 0; widths[i] >= 33 && k < sizeof wanted / sizeof *wanted; k++)
            has(frame, wanted[k]);
        free(frame);
    }
}

/* ---- a terminal ---- */

enum { LONGEST_MS = 30000 /* that a terminal may be silent: only a failure takes it */ };

struct terminal {
    pid_t pid;
    int fd;
    size_t n;
    char said[1 << 18];
};

static void terminal_start(struct terminal *t, unsigned short rows, unsigned short columns)
{
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    t->n = 0;
    fflush(NULL);
    t->pid = forkpty(&t->fd, NULL, NULL, &size);
    assert_true(t->pid >= 0);
    if (!t->pid) {
        setenv("TERM", "xterm", 1);
        unsetenv("COLUMNS"), unsetenv("LINES");
        execl(built("llmctl"), "llmctl", "-i", engine.instance, "top", "--interval", "0.1",
              (char *)NULL);
        _exit(127);
    }
}

static void terminal_sees(struct terminal *t, const char *text)
{
    t->said[t->n] = 0;
    while (!strstr(t->said, text)) {
        if (t->n + 4096 >= sizeof t->said)
            t->n = 0;
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        ssize_t got = poll(&p, 1, LONGEST_MS) == 1 ? read(t->fd, t->said + t->n, 4095) : -1;
        if (got <= 0)
            fail_msg("the terminal never saw \"%s\", but %s", text, t->said);
        t->n += (size_t)got;
        t->said[t->n] = 0;
    }
}

/* What it still writes is taken away, or it would wait for that. */
static int terminal_end(struct terminal *t)
{
    int status;
    while (read(t->fd, t->said, sizeof t->said) > 0)
        ;
    assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
    close(t->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static struct terminal terminal;

static void live(void **state)
{
    (void)state;
    terminal_start(&terminal, 24, 80);
    terminal_sees(&terminal, "since start");
    terminal_sees(&terminal, "q: quit");
    terminal_sees(&terminal, "interval");
    assert_int_equal(write(terminal.fd, "q", 1), 1);
    assert_int_equal(terminal_end(&terminal), 0);
}

static void live_in_a_small_window(void **state)
{
    (void)state;
    terminal_start(&terminal, 10, 30);
    terminal_sees(&terminal, "q: quit");
    kill(terminal.pid, SIGINT);
    assert_int_equal(terminal_end(&terminal), 130);
}

static void needs_a_terminal(void **state)
{
    (void)state;
    refuses("top </dev/null", 2, "--once");
    refuses("top --interval 0", 2, "--interval");
    refuses("top now", 2, "unexpected");
    int status;
    char *out =
        run_command(&status, "'%s' -i nobody-%s top --once 2>&1", built("llmctl"), engine.instance);
    assert_int_equal(status, 1);
    has(out, "there is no engine");
    has(out, "there are: ");
    free(out);
}

/* Watched to its death, and looked at afterwards. */
static void after_its_death(void **state)
{
    (void)state;
    terminal_start(&terminal, 24, 80);
    terminal_sees(&terminal, "ready");
    assert_int_equal(engine_kill(&engine), 128 + SIGKILL);
    terminal_sees(&terminal, "THE ENGINE HAS DIED");
    assert_int_equal(write(terminal.fd, "q", 1), 1);
    assert_int_equal(terminal_end(&terminal), 0);
    char *frame = once("COLUMNS=80");
    has(frame, "  dead");
    has(frame, "THE ENGINE HAS DIED");
    has(frame, "finished 1");
    has(frame, "refused   1  session 1");
    free(frame);
    json_t *status = ctl_json("status --json");
    assert_string_equal(word(status, "state"), "dead");
    assert_true(whole(status, "last_step_age_us") > 0);
    json_decref(status);
}

/* What the board says in numbers. */
static void status_figures(void **state)
{
    (void)state;
    static const char *const keys[] = {"prefix_hit_tokens",
                                       "prefix_query_tokens",
                                       "preemptions",
                                       "refused",
                                       "steps",
                                       "last_step_age_us",
                                       "heartbeat_age_us",
                                       "kv_blocks_used",
                                       "kv_blocks_cached",
                                       "kv_blocks_free",
                                       "sessions",
                                       "deadline_misses",
                                       "timeouts",
                                       "queue_timeouts",
                                       "backlog_tokens",
                                       "backlog_us",
                                       "recomputed_tokens",
                                       "pinned_blocks"};
    static const char *const histograms[] = {"step_overhead_us", "step_us", "ttft_us", "itl_us",
                                             "queue_us"};
    json_t *o = ctl_json("status --json");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_true(whole(o, keys[i]) >= 0);
    for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++) {
        const json_t *h = json_object_get(o, histograms[i]);
        assert_true(whole(h, "count") > 0);
        assert_true(real(h, "p50") > 0 && real(h, "p50") <= real(h, "p95"));
        assert_true(real(h, "p95") <= real(h, "p99") && real(h, "p99") <= real(h, "max"));
    }
    int64_t sum = 0;
    const char *reason;
    json_t *n;
    json_object_foreach(json_object_get(o, "refused_for"), reason, n)
    {
        sum += json_integer_value(n);
    }
    assert_int_equal(sum, whole(o, "refused"));
    assert_int_equal(whole(o, "kv_blocks_used") + whole(o, "kv_blocks_free"),
                     whole(o, "kv_blocks_total"));
    json_decref(o);
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, tiny_model(), "--threads", "1", NULL);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_frame),
        cmocka_unit_test(status_figures),
        cmocka_unit_test(narrow_frames),
        cmocka_unit_test(live),
        cmocka_unit_test(live_in_a_small_window),
        cmocka_unit_test(needs_a_terminal),
        cmocka_unit_test(after_its_death),
    };
    return cmocka_run_group_tests_name("llmctl_top", tests, start, NULL);
}
