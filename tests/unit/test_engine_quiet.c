/* The step path is quiet: from submission to delivery no allocation and no system call. A child
 * process runs a load under a seccomp filter that kills it at the first system call, with an
 * allocator that counts. */
#include "../../appliance/token_text.h"
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

/* Every token is a letter. */
static void make_text(struct rig *r)
{
    static char bytes[97];
    static uint32_t end[97];
    static struct token_text text = {97, bytes, end};
    for (uint32_t i = 0; i < 97; i++) {
        bytes[i] = (char)('a' + i % 3);
        end[i] = i + 1;
    }
    r->config.text = &text;
}

/* Stop strings, a bias, candidates, penalties. */
static void send_with_options(struct rig *r, uint32_t i, struct llm_sqe *q)
{
    static const char map[] = "\x83\xa4stop\x92\xa4"
                              "abca"
                              "\xa5"
                              "bbbbb"
                              "\xaalogit_bias\xc4\x08\x07\0\0\0\0\0\0\0\xactop_logprobs\x03";
    memcpy(r->options, map, sizeof map);
    q->options_len = sizeof map - 1;
    q->repetition = 1.5f;
    rig_send(r, i % 4, q);
    for (uint32_t k = 0; k < engine_finals(q); k++) {
        struct rig_stream *s = rig_stream(r, i % 4, i, k);
        s->n_top = 3;
        s->logprobs = true;
    }
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
        if (i % 5 && i % 3 == 0 && engine_can_take(r->engine, &q))
            send_with_options(r, i, &q);
        else if (engine_can_take(r->engine, &q))
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
    for (uint32_t i = 0; i < 4; i++)
        r.top[i] = LLM_TOP_MAX;
    make_text(&r);
    rig_open(&r);
    uint64_t before = allocations;
    forbid_system_calls();
    load(&r);
    bool met_all = rig_figure(&r.board->preemptions) && r.gpu.copies &&
                   rig_figure(&r.board->cancelled) && rig_figure(&r.board->refused);
    bool stopped = false;
    for (uint32_t i = 0; i < r.n_streams; i++)
        stopped |= r.streams[i].result.stop != 0;
    return allocations != before ? 1 : met_all && stopped ? 0 : 2;
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
