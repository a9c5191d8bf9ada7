/* test_llmctl_drain.c - `llmctl drain`: the engine finishes what runs and is gone when the command
 * returns; of one that died, or was never there, it says so and signals nobody.
 */
#include "llmctl_rig.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void start(const char *more, const char *value)
{
    engine = (struct engine_process){0};
    engine_start(&engine, tiny_model(), "--threads", "1", more, value, NULL);
}

static void idle_engine(void **state)
{
    (void)state;
    start(NULL, NULL);
    char *out = ctl_text(0, "drain");
    char want[64];
    snprintf(want, sizeof want, "process %d has stopped", (int)engine.pid);
    assert_non_null(strstr(out, want));
    free(out);
    assert_int_equal(engine_wait(&engine), 0);
    refuses("drain", 1, "there is no engine");
}

/* A long answer is running when the drain begins: it comes to its end. */
static void what_runs_is_finished(void **state)
{
    (void)state;
    start("--max-num-seqs", "1");
    int status;
    char *out = run_command(
        &status,
        "'%s' -i %s complete --tokens 5,6 -n 250 --choices 32 --ignore-eos --json >'%s/answer' & "
        "answer=$!; while ! '%s' -i %s status --json | grep -q '\"running\":1,'; do "
        "kill -0 $answer || break; done; '%s' -i %s drain --quiet 2>&1; wait $answer",
        built("llmctl"), engine.instance, scratch_dir(), built("llmctl"), engine.instance,
        built("llmctl"), engine.instance);
    if (status || !strstr(out, "has stopped"))
        fail_msg("status %d, said: %s", status, out);
    free(out);
    assert_int_equal(engine_wait(&engine), 0);
    out = run_command(&status, "cat '%s/answer'", scratch_dir());
    json_t *answer = json_loads(out, 0, NULL);
    assert_string_equal(word(answer, "finish_reason"), "length");
    assert_int_equal(json_array_size(json_object_get(answer, "tokens")), 250);
    json_decref(answer);
    free(out);
}

/* Stopped by a signal, it cannot answer the drain: the command gives up when told to, and the
 * engine still drains when it goes on. */
static void gives_up_waiting(void **state)
{
    (void)state;
    start(NULL, NULL);
    kill(engine.pid, SIGSTOP);
    refuses("drain --timeout 0.3", 1, "still draining");
    kill(engine.pid, SIGCONT);
    assert_int_equal(engine_wait(&engine), 0);
}

static void dead_engine(void **state)
{
    (void)state;
    start(NULL, NULL);
    engine_kill(&engine);
    refuses("drain", 1, "nothing to drain");
}

static void wrong_command_lines(void **state)
{
    (void)state;
    refuses("drain --timeout x", 2, "--timeout");
    refuses("drain now", 2, "unexpected");
    refuses("drain --force", 2, "force");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_engine),         cmocka_unit_test(what_runs_is_finished),
        cmocka_unit_test(gives_up_waiting),    cmocka_unit_test(dead_engine),
        cmocka_unit_test(wrong_command_lines),
    };
    return cmocka_run_group_tests_name("llmctl_drain", tests, NULL, NULL);
}
