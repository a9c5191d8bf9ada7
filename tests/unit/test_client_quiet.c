/* test_client_quiet.c - while the engine is awake, submit, poll, wait and cancel make no system
 * call and allocate nothing: a child process does them under a filter that kills it for any.
 */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "fake_engine.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

/* glibc lets a program stand in front of malloc; sanitizers do it themselves, and make calls of
 * their own. */
static unsigned long allocations;
#ifndef SANITIZED
extern void *__libc_malloc(size_t size);
void *malloc(size_t size)
{
    allocations++;
    return __libc_malloc(size);
}
extern void *__libc_calloc(size_t n, size_t size);
void *calloc(size_t n, size_t size)
{
    allocations++;
    return __libc_calloc(n, size);
}
extern void *__libc_realloc(void *p, size_t size);
void *realloc(void *p, size_t size)
{
    allocations++;
    return __libc_realloc(p, size);
}
#endif

enum { ROUNDS = 2000 };

/* Only leaving is allowed, and the clock where it has no vDSO. */
static void forbid_system_calls(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    REQUIRE(!prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)); /* no core file for what is expected */
    REQUIRE(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    REQUIRE(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void beat(struct fake *f)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    order_set64(&f->p->heartbeat_ns, (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec);
}

static struct llm_sqe take(struct fake *f)
{
    const char *why;
    struct llm_sqe e;
    int32_t tokens[FAKE_ARENA / 4];
    bool ok = ring_sweep(&f->ring, &why) > 0 && !ring_take(&f->ring, &e, &why) &&
              !ring_take_tokens(&f->ring, &e, tokens, &why) && !ring_taken(&f->ring, 1, &why);
    if (!ok)
        _exit(2);
    return e;
}

static uint64_t ask(struct llm_client *c, bool in_place)
{
    static const int32_t prompt[] = {1, 2, 3};
    struct llm_request r = LLM_REQUEST_INIT;
    int32_t *room = in_place ? llm_reserve(c, 3) : NULL;
    uint64_t id;
    if (room)
        memcpy(room, prompt, sizeof prompt);
    r.tokens = room ? room : prompt;
    r.n_tokens = 3;
    if (llm_submit(c, &r, &id))
        _exit(3);
    return id;
}

/* A request that is cancelled after a token; the engine answers, the client polls and waits. */
static void one_round(struct fake *f, struct llm_client *c, int round)
{
    struct llm_event e;
    beat(f);
    uint64_t id = ask(c, round % 2);
    take(f);
    if (llm_poll(c, &e) || llm_cancel(c, id))
        _exit(4);
    uint64_t cancel = take(f).user_data;
    struct llm_cqe token = {.user_data = id, .type = LLM_CQE_TOKENS, .count = 1};
    ring_put(&f->ring, &token, NULL);
    ring_publish(&f->ring);
    if (llm_wait(c, &e, -1) != 1 || llm_poll(c, &e))
        _exit(5);
    fake_done(f, cancel, 0, 0);
    fake_done(f, id, 0, LLM_FINISH_CANCELLED);
    fake_publish(f);
    if (llm_wait(c, &e, -1) != 1 || e.type != LLM_EVENT_DONE || llm_wait(c, &e, 0) != -ENOENT)
        _exit(6);
}

/* A session's request and a choose are no different. */
static void round_of_1_1(struct fake *f, struct llm_client *c)
{
    static const int32_t prompt[] = {1, 2, 3};
    struct llm_label label = {prompt, 2};
    struct llm_event e;
    uint64_t id[2];
    beat(f);
    if (llm_session_replace(c, 7, 1, prompt, 2, &id[0]) ||
        llm_choose(c, prompt, 3, &label, 1, &id[1]))
        _exit(8);
    for (int i = 0; i < 2; i++) {
        take(f);
        fake_done(f, id[i], 0, LLM_FINISH_STOP);
    }
    fake_publish(f);
    if (llm_wait(c, &e, -1) != 1 || e.id != id[0] || llm_wait(c, &e, -1) != 1 || e.id != id[1])
        _exit(9);
}

static void the_busy_path_is_quiet(void **state)
{
    struct fake *f = *state;
#ifdef SANITIZED
    skip(); /* a sanitizer makes system calls of its own */
#endif
    struct llm_client *c = fake_client(f);
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        forbid_system_calls();
        unsigned long before = allocations;
        for (int round = 0; round < ROUNDS; round++)
            one_round(f, c, round), round_of_1_1(f, c);
        _exit(allocations == before ? 0 : 7);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        fail_msg("a system call was made (signal %d)", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    llm_close(c);
}

/* The same filter must kill for what is known to call: else it proves nothing. */
static void the_filter_kills(void **state)
{
    struct fake *f = *state;
#ifdef SANITIZED
    skip();
#endif
    struct llm_client *c = fake_client(f);
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        forbid_system_calls();
        ring_arm_all(f->p); /* the engine sleeps: the submit must wake it */
        ask(c, false);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    llm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAKE_TEST(the_busy_path_is_quiet),
        FAKE_TEST(the_filter_kills),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
