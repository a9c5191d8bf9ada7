/* test_no_io_uring.c - where a container's seccomp profile forbids io_uring the engine says so once
 * and serves all the same. The profile is put on this test process, engines inherit it.
 */
#include "../../client/llmclient.h"
#include "../support/support.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void forbid_io_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    assert_int_equal(syscall(SYS_io_uring_setup, 1, NULL), -1);
    assert_int_equal(errno, EPERM);
}

static void serves_all_the_same(void **state)
{
    (void)state;
    static const int32_t prompt[5] = {1, 2, 3, 4, 5};
    struct engine_process e = {0};
    forbid_io_uring();
    engine_start(&e, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", NULL);
    char *log = engine_log(&e);
    assert_non_null(strstr(log, "io_uring cannot be used (Operation not permitted)"));
    assert_non_null(strstr(log, "seccomp profile"));
    free(log);

    struct llm_client *c;
    if (llm_connect(&c, e.instance, NULL) < 0)
        fail_msg("%s", llm_connect_error());
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event ev;
    unsigned tokens = 0;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = 50, r.flags = LLM_SQE_IGNORE_EOS;
    assert_int_equal(llm_submit(c, &r, NULL), 0);
    do {
        assert_int_equal(llm_wait(c, &ev, 60000), 1);
        tokens += ev.n_tokens;
    } while (ev.type == LLM_EVENT_TOKENS);
    assert_int_equal(ev.type, LLM_EVENT_DONE);
    assert_int_equal(tokens, 50);
    llm_close(c);
    assert_int_equal(engine_stop(&e), 0);
}

static void is_refused_where_it_was_demanded(void **state)
{
    (void)state;
    struct engine_process e = {0};
    const char *arguments[] = {"--io", "io_uring", NULL};
    engine_spawn(&e, golden_path("tiny_gguf/llama.Q4_0.gguf"), arguments);
    assert_int_equal(engine_wait(&e), 1);
    char *log = engine_log(&e);
    assert_non_null(strstr(log, "io_uring cannot be used"));
    free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(serves_all_the_same),
                                       cmocka_unit_test(is_refused_where_it_was_demanded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
