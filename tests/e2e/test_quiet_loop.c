/* test_quiet_loop.c - while there is work the engine makes no system call: counted by tracing it
 * (ptrace), with one compute thread and a client that spins. One request follows the other without
 * a gap, and the ring holds everything, so nobody has a reason to sleep.
 */
#include "../../client/llmclient.h"
#include "../support/support.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REQUESTS = 40, TOKENS = 240, TOTAL = REQUESTS * TOKENS };

/* Submits when told to, takes everything, then stops itself. Never returns. */
static void run_client(const char *instance, int go, int connected)
{
    static const int32_t prompt[5] = {1, 2, 3, 4, 5};
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    struct llm_event e;
    char x;
    o.cq_entries = 16384, o.max_inflight = 64, o.spin_us = UINT32_MAX;
    if (llm_connect(&c, instance, &o) < 0 || write(connected, "x", 1) != 1 || read(go, &x, 1) != 1)
        _exit(1);
    for (int i = 0; i < REQUESTS; i++) {
        struct llm_request r = LLM_REQUEST_INIT;
        r.tokens = prompt, r.n_tokens = 5, r.max_tokens = TOKENS, r.flags = LLM_SQE_IGNORE_EOS;
        if (llm_submit(c, &r, NULL) < 0)
            _exit(2);
    }
    unsigned tokens = 0;
    while (llm_inflight(c)) {
        if (llm_wait(c, &e, -1) != 1 || e.type == LLM_EVENT_ERROR)
            _exit(3);
        tokens += e.n_tokens;
    }
    raise(SIGSTOP); /* leaving would make the engine work */
    _exit(tokens == TOTAL ? 0 : 4);
}

/* The engine's sleep is interrupted, and its next one is seen: the tracing works. */
static void attach(pid_t engine)
{
    int status;
    assert_int_equal(ptrace(PTRACE_SEIZE, engine, 0, PTRACE_O_TRACESYSGOOD), 0);
    assert_int_equal(ptrace(PTRACE_INTERRUPT, engine, 0, 0), 0);
    assert_int_equal(waitpid(engine, &status, __WALL), engine);
    assert_int_equal(ptrace(PTRACE_SYSCALL, engine, 0, 0), 0);
    assert_int_equal(waitpid(engine, &status, __WALL), engine);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80));
    assert_int_equal(ptrace(PTRACE_SYSCALL, engine, 0, 0), 0);
}

/* The engine's stops until the client has stopped itself: two for each system call. */
static unsigned count_stops(pid_t engine, pid_t client)
{
    unsigned stops = 0;
    for (;;) {
        int status;
        pid_t who = waitpid(-1, &status, __WALL | WUNTRACED);
        assert_true(who == engine || who == client);
        if (!WIFSTOPPED(status))
            fail_msg("the %s ended with status %x", who == engine ? "engine" : "client", status);
        if (who == client)
            return stops;
        int signal = WSTOPSIG(status);
        bool call = signal == (SIGTRAP | 0x80);
        stops += call;
        assert_int_equal(ptrace(PTRACE_SYSCALL, engine, 0, call || status >> 16 ? 0 : signal), 0);
    }
}

static void detach(pid_t engine)
{
    int status;
    assert_int_equal(ptrace(PTRACE_INTERRUPT, engine, 0, 0), 0);
    assert_int_equal(waitpid(engine, &status, __WALL), engine);
    assert_int_equal(ptrace(PTRACE_DETACH, engine, 0, 0), 0);
}

static void no_calls_while_there_is_work(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", "--max-num-seqs",
                 "1", NULL);
    int go[2], connected[2], status;
    char x;
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(connected), 0);
    fflush(NULL);
    pid_t client = fork();
    assert_true(client >= 0);
    if (!client)
        run_client(e.instance, go[0], connected[1]);
    assert_int_equal(read(connected[0], &x, 1), 1);
    attach(e.pid);
    assert_int_equal(write(go[1], "x", 1), 1);
    unsigned calls = (count_stops(e.pid, client) + 1) / 2;
    detach(e.pid);
    print_message("%u system calls for %d tokens\n", calls, TOTAL);
    assert_true(calls <= TOTAL / 100);
    kill(client, SIGCONT);
    assert_int_equal(waitpid(client, &status, 0), client);
    assert_int_equal(status, 0);
    assert_int_equal(engine_stop(&e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_calls_while_there_is_work)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
