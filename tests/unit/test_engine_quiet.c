/* The step path is quiet: from submission to delivery no allocation and no system call. A child
 * process runs a load under a seccomp filter that kills it at the first system call, with an
 * allocator that counts. */
#include "../support/engine_load.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static uint64_t allocations;

#ifndef SANITIZED
/* glibc lets a program bring its own; these count and pass on. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *at, size_t bytes);
void __libc_free(void *at);

void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes)
{
    allocations++;
    return __libc_calloc(n, bytes);
}
void *realloc(void *at, size_t bytes)
{
    allocations++;
    return __libc_realloc(at, bytes);
}
void free(void *at)
{
    allocations += at != NULL;
    __libc_free(at);
}
#endif

/* Allows exit_group, and clock_gettime for machines whose clock is not in the vDSO. */
static void forbid_system_calls(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(3);
}

/* Prompts, choices, scores, preemption, cancels, refusals, held tokens, a client that leaves. */
static void load(struct rig *r)
{
    for (uint32_t i = 1; i <= 60; i++) {
        struct llm_sqe q = i % 5 == 0 ? rig_score(i, 20 + i) : rig_generate(i, 10 + i, 40);
        if (i % 4 == 1) {
            q.choices = 4;
            q.temperature = 1.0f;
        }
        if (i % 11 == 10)
            q.adapter = 1;
        if (engine_can_take(r->engine, &q))
            rig_send(r, i % 4, &q);
        if (i % 6 == 5) {
            q = rig_cancel(100 + i, i);
            rig_send(r, i % 4, &q);
        }
        r->room[2] = i % 3;
        rig_step(r);
        engine_deliver(r->engine, 1);
    }
    rig_drop(r, 2);
    rig_run(r);
    engine_shutdown(r->engine);
}

static int child(void)
{
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 20;
    rig_open(&r);
    uint64_t before = allocations;
    forbid_system_calls();
    load(&r);
    bool met_all = rig_figure(&r.board->preemptions) && r.gpu.copies &&
                   rig_figure(&r.board->cancelled) && rig_figure(&r.board->refused);
    return allocations != before ? 1 : met_all ? 0 : 2;
}

/* All operations, random: sessions, labels, resumed generations, timeouts, the cache. */
static int child_of_seed(uint32_t seed)
{
    static struct load k;
    load_begin(&k, seed);
    rig_open(&k.r);
    uint64_t before = allocations;
    forbid_system_calls();
    load_run(&k, 100);
    engine_shutdown(k.r.engine);
    return allocations != before;
}

/* seed 0: the load above. */
static void expect_quiet(uint32_t seed)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(seed ? child_of_seed(seed) : child());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status)); /* a system call: killed by SIGSYS */
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void from_submission_to_delivery(void **state)
{
    (void)state;
#ifdef SANITIZED
    skip();
#endif
    void *volatile probe = malloc(1); /* are allocations counted at all? */
    free(probe);
    assert_int_equal(allocations >= 2, 1);
    for (uint32_t seed = 0; seed < 40; seed++)
        expect_quiet(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(from_submission_to_delivery)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
