/* test_orphan.c - a process connects, forks and ends, as one that becomes a daemon does. The engine
 * goes by the process that connected and closes the client; the child, which only looks at the rings
 * while the engine's heart beats for others, is told so.
 */
#include "../../client/llmclient.h"
#include "../support/support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOLD, NOT_TOLD, OTHER_REASON, NO_CONNECTION };

static struct engine_process engine;
static _Atomic bool enough;

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", NULL);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    return engine_stop(&engine);
}

/* Keeps the engine in its rounds. */
static void *others(void *arg)
{
    struct llm_client *c;
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event e;
    (void)arg;
    r.op = LLM_OP_NOP;
    if (llm_connect(&c, engine.instance, NULL))
        return NULL;
    while (!enough && !llm_submit(c, &r, NULL) && llm_wait(c, &e, 20000) == 1)
        ;
    llm_close(c);
    return NULL;
}

/* In the child: polls until it is told, for 20 s at most. */
static int look(struct llm_client *c)
{
    struct llm_event e;
    int rc = 0;
    for (uint64_t end = test_now_ns() + 20000000000u; !rc && test_now_ns() < end;)
        rc = llm_poll(c, &e);
    if (!rc)
        return NOT_TOLD;
    return rc == LLM_EEVICTED && strstr(llm_errmsg(c), "has ended") ? TOLD : OTHER_REASON;
}

/* In a process of its own. What the child found goes into the pipe. */
static void connect_and_fork(int result)
{
    struct llm_client *c;
    char found = NO_CONNECTION;
    bool connected = !llm_connect(&c, engine.instance, NULL);
    if (connected && fork())
        _exit(0);
    if (connected)
        found = (char)look(c);
    _exit(write(result, &found, 1) != 1);
}

static void a_child_that_polls_is_told(void **state)
{
    pthread_t thread;
    int pipes[2];
    char found = 0;
    (void)state;
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(pthread_create(&thread, NULL, others, NULL), 0);
    pid_t pid = fork();
    if (!pid)
        connect_and_fork(pipes[1]);
    close(pipes[1]);
    assert_int_equal(read(pipes[0], &found, 1), 1);
    enough = true;
    pthread_join(thread, NULL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(pipes[0]);
    assert_int_equal(found, TOLD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_child_that_polls_is_told)};
    return cmocka_run_group_tests(tests, start, finish);
}
