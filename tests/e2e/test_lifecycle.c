/* test_lifecycle.c - an engine's life with real clients: requests, a client's death in mid-stream,
 * a second engine, the end; and nothing left behind by any of them.
 */
#include "../../client/llmclient.h"
#include "../../shm/board.h"
#include "../../shm/control.h"
#include "../support/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROMPT = 7, TOKENS = 40 };
static const int32_t prompt[PROMPT] = {5, 17, 100, 42, 300, 8, 9};

static const char *tiny(void)
{
    return golden_path("tiny_gguf/llama.Q4_0.gguf");
}

/* ---- looking at an engine from outside ---- */

static const struct llm_board *board_of(const struct engine_process *e)
{
    char name[80];
    assert_int_equal(llm_board_name(e->instance, name, sizeof name), 0);
    int fd = shm_open(name, O_RDONLY, 0);
    assert_true(fd >= 0);
    const struct llm_board *b = mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(b, MAP_FAILED);
    close(fd);
    assert_true(order_acquire64(&b->magic) == LLM_MAGIC_BOARD);
    return b;
}

static unsigned count_descriptors(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    unsigned n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Client segments that the process maps. */
static unsigned count_segments(pid_t pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    unsigned n = 0;
    while (fgets(line, sizeof line, f))
        n += strstr(line, "memfd:llmd-up") || strstr(line, "memfd:llmd-down");
    fclose(f);
    return n;
}

struct footprint {
    unsigned descriptors, segments;
    uint64_t clients, blocks_free, running;
};

static struct footprint footprint(const struct engine_process *e, const struct llm_board *b)
{
    return (struct footprint){.descriptors = count_descriptors(e->pid),
                              .segments = count_segments(e->pid),
                              .clients = order_read64(&b->clients),
                              .blocks_free = order_read64(&b->kv_blocks_free),
                              .running = order_read64(&b->running)};
}

/* A client's end is seen by the engine a moment later: looks until it is, or for 20 s. */
static void comes_back_to(const struct engine_process *e, const struct llm_board *b,
                          struct footprint before)
{
    struct footprint now = {0};
    for (int i = 0; i < 4000; i++) {
        now = footprint(e, b);
        if (!memcmp(&now, &before, sizeof now))
            return;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    fail_msg("left behind: descriptors %u (%u before), segments %u (%u), clients %llu (%llu), free "
             "blocks %llu (%llu), running %llu (%llu)",
             now.descriptors, before.descriptors, now.segments, before.segments,
             (unsigned long long)now.clients, (unsigned long long)before.clients,
             (unsigned long long)now.blocks_free, (unsigned long long)before.blocks_free,
             (unsigned long long)now.running, (unsigned long long)before.running);
}

/* ---- a client ---- */

static struct llm_client *connect_to(const struct engine_process *e)
{
    struct llm_client *c;
    if (llm_connect(&c, e->instance, NULL) < 0)
        fail_msg("%s", llm_connect_error());
    return c;
}

static uint64_t submit(struct llm_client *c, uint32_t op, uint32_t max_tokens)
{
    struct llm_request r = LLM_REQUEST_INIT;
    uint64_t id;
    r.op = op;
    r.flags = LLM_SQE_IGNORE_EOS;
    r.max_tokens = max_tokens;
    if (op != LLM_OP_NOP) {
        r.tokens = prompt;
        r.n_tokens = PROMPT;
    }
    if (llm_submit(c, &r, &id) < 0)
        fail_msg("submit: %s", llm_errmsg(c));
    return id;
}

static struct llm_event next_event(struct llm_client *c)
{
    struct llm_event ev;
    int rc = llm_wait(c, &ev, 60000);
    if (rc != 1)
        fail_msg("wait: %d %s", rc, rc ? llm_errmsg(c) : "timeout");
    return ev;
}

/* Collects the tokens of one request, the only one in flight; returns its final. */
static struct llm_event collect(struct llm_client *c, uint64_t id, int32_t *tokens, uint32_t *n)
{
    *n = 0;
    for (;;) {
        struct llm_event ev = next_event(c);
        assert_true(ev.id == id);
        if (ev.type == LLM_EVENT_ERROR)
            fail_msg("refused with %d: %s", ev.status, llm_strerror(ev.status));
        if (ev.type == LLM_EVENT_DONE)
            return ev;
        assert_true(*n + ev.n_tokens <= 1024);
        memcpy(tokens + *n, ev.tokens, ev.n_tokens * sizeof *tokens);
        *n += ev.n_tokens;
    }
}

/* ---- scenarios ---- */

static void the_four_operations(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--threads", "1", NULL);
    struct llm_client *c = connect_to(&e);
    int32_t tokens[1024];
    uint32_t n;

    struct llm_event ev = collect(c, submit(c, LLM_OP_NOP, 0), tokens, &n);
    assert_int_equal(ev.type, LLM_EVENT_DONE);

    ev = collect(c, submit(c, LLM_OP_GENERATE, TOKENS), tokens, &n);
    assert_int_equal(ev.type, LLM_EVENT_DONE);
    assert_int_equal(ev.finish, LLM_FINISH_LENGTH);
    assert_int_equal(n, TOKENS);
    assert_int_equal(ev.result.prompt_tokens, PROMPT);
    assert_int_equal(ev.result.output_tokens, TOKENS);
    struct llm_limits limits;
    llm_get_limits(c, &limits);
    assert_true(ev.result.numerics_id == limits.numerics_id);
    assert_int_equal(limits.engine_pid, e.pid);

    ev = collect(c, submit(c, LLM_OP_SCORE, 0), tokens, &n);
    assert_int_equal(ev.type, LLM_EVENT_DONE);
    assert_int_equal(n, PROMPT - 1);
    assert_memory_equal(tokens, prompt + 1, (PROMPT - 1) * sizeof *tokens);

    uint64_t id = submit(c, LLM_OP_GENERATE, 240);
    assert_int_equal(llm_cancel(c, id), 0);
    ev = collect(c, id, tokens, &n);
    assert_int_equal(ev.type, LLM_EVENT_DONE);
    assert_true(ev.finish == LLM_FINISH_CANCELLED || ev.finish == LLM_FINISH_LENGTH);
    assert_int_equal(llm_inflight(c), 0);
    llm_close(c);
    assert_int_equal(engine_stop(&e), 0);
}

/* A client that has much in flight and takes nothing; it says when its stream has begun. */
static pid_t start_victim(const struct engine_process *e)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct llm_options o = LLM_OPTIONS_INIT;
        struct llm_client *c;
        o.cq_entries = 64, o.max_inflight = 32;
        if (llm_connect(&c, e->instance, &o) < 0)
            _exit(1);
        for (int i = 0; i < 32; i++) {
            struct llm_request r = LLM_REQUEST_INIT;
            r.tokens = prompt, r.n_tokens = PROMPT, r.max_tokens = 200;
            r.flags = LLM_SQE_IGNORE_EOS;
            if (llm_submit(c, &r, NULL) < 0)
                _exit(2);
        }
        struct llm_event ev;
        if (llm_wait(c, &ev, -1) != 1 || ev.type != LLM_EVENT_TOKENS ||
            write(pipes[1], "x", 1) != 1)
            _exit(3);
        for (;;)
            pause();
    }
    close(pipes[1]);
    char x;
    assert_int_equal(read(pipes[0], &x, 1), 1);
    close(pipes[0]);
    return pid;
}

static void a_client_is_killed_in_mid_stream(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--threads", "1", "--max-num-seqs", "8", NULL);
    const struct llm_board *b = board_of(&e);
    struct footprint empty = footprint(&e, b);
    assert_int_equal(empty.segments, 0);
    assert_true(empty.blocks_free == b->kv_blocks_total);

    struct llm_client *c = connect_to(&e);
    int32_t alone[1024], beside[1024];
    uint32_t n;
    collect(c, submit(c, LLM_OP_GENERATE, 200), alone, &n);
    assert_int_equal(n, 200);
    struct footprint one = footprint(&e, b);
    assert_int_equal(one.clients, 1);
    assert_int_equal(one.segments, 2);

    pid_t victim = start_victim(&e);
    uint64_t id = submit(c, LLM_OP_GENERATE, 200);
    struct llm_event ev = next_event(c); /* ours has begun, so has theirs */
    assert_int_equal(ev.type, LLM_EVENT_TOKENS);
    memcpy(beside, ev.tokens, ev.n_tokens * sizeof *beside);
    kill(victim, SIGKILL);
    assert_int_equal(waitpid(victim, NULL, 0), victim);
    uint32_t first = ev.n_tokens;
    ev = collect(c, id, beside + first, &n);
    assert_int_equal(first + n, 200);
    assert_memory_equal(alone, beside, 200 * sizeof *alone);

    comes_back_to(&e, b, one);
    llm_close(c);
    comes_back_to(&e, b, empty);
    assert_int_equal(order_read64(&b->clients_total), 2);
    assert_int_equal(order_read64(&b->evictions), 0);
    munmap((void *)b, LLM_BOARD_BYTES);
    assert_int_equal(engine_stop(&e), 0);
}

static void many_come_and_go(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--threads", "1", "--max-clients", "3", NULL);
    const struct llm_board *b = board_of(&e);
    struct footprint empty = footprint(&e, b);
    struct llm_client *c[4];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 3; i++)
            c[i] = connect_to(&e);
        assert_int_equal(llm_connect(&c[3], e.instance, NULL), LLM_EBUSY);
        assert_non_null(strstr(llm_connect_error(), "--max-clients"));
        for (int i = 0; i < 3; i++)
            submit(c[i], LLM_OP_GENERATE, 20);
        for (int i = round % 3; i < 3; i++) { /* some leave without looking */
            for (uint32_t n = 0; n < 20;)
                n += next_event(c[i]).n_tokens;
            assert_int_equal(next_event(c[i]).type, LLM_EVENT_DONE);
        }
        for (int i = 0; i < 3; i++)
            llm_close(c[i]);
        comes_back_to(&e, b, empty);
    }
    munmap((void *)b, LLM_BOARD_BYTES);
    assert_int_equal(engine_stop(&e), 0);
}

static void a_second_engine_is_refused(void **state)
{
    (void)state;
    struct engine_process first = {0}, second = {0};
    engine_start(&first, tiny(), "--threads", "1", NULL);
    snprintf(second.instance, sizeof second.instance, "%s", first.instance);
    engine_spawn(&second, tiny(), NULL);
    assert_int_equal(engine_wait(&second), 1);
    char *log = engine_log(&second), pid[32];
    snprintf(pid, sizeof pid, "process %d", (int)first.pid);
    assert_non_null(strstr(log, pid));
    assert_null(strstr(log, "ready"));
    free(log);

    struct llm_client *c = connect_to(&first); /* undisturbed */
    int32_t tokens[1024];
    uint32_t n;
    collect(c, submit(c, LLM_OP_GENERATE, TOKENS), tokens, &n);
    assert_int_equal(n, TOKENS);
    llm_close(c);
    assert_int_equal(engine_stop(&first), 0);
}

/* The name of a board is the instance's alone. */
static void one_in_another_runtime_directory_is_refused(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, tiny(), NULL);
    char elsewhere[300], pid[32];
    snprintf(elsewhere, sizeof elsewhere, "LLMD_RUNTIME_DIR=%s/elsewhere", scratch_dir());
    snprintf(pid, sizeof pid, "process %d", (int)e.pid);
    int status;
    char *out = run_command(&status, "%s timeout 60 '%s' --model '%s' --instance %s 2>&1",
                            elsewhere, built("llmd"), tiny(), e.instance);
    if (status != 1 || !strstr(out, pid))
        fail_msg("status %d, said: %s", status, out);
    free(out);
    out = run_command(&status, "%s '%s' -i %s status", elsewhere, built("llmctl"), e.instance);
    if (status || !strstr(out, ": ready, pid"))
        fail_msg("status %d, said: %s", status, out); /* it is not dead, just elsewhere */
    free(out);
    assert_int_equal(engine_figure(&e, "pid"), e.pid);
    assert_int_equal(engine_stop(&e), 0);
}

static void leaves_nothing(const struct engine_process *e)
{
    char path[512];
    assert_int_equal(llm_socket_path(e->instance, path, sizeof path), 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(llm_lock_path(e->instance, path, sizeof path), 0);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof path, "/dev/shm/llmd.%s", e->instance);
    assert_int_equal(access(path, F_OK), -1);
}

static void sigterm_ends_streams_and_leaves_nothing(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--threads", "1", NULL);
    struct llm_client *c = connect_to(&e);
    enum { N = 32 };
    for (int i = 0; i < N; i++)
        submit(c, LLM_OP_GENERATE, 200);
    assert_int_equal(next_event(c).type, LLM_EVENT_TOKENS);
    assert_int_equal(engine_stop(&e), 0);
    leaves_nothing(&e);
    unsigned finals = 0;
    while (llm_inflight(c)) {
        struct llm_event ev = next_event(c); /* tokens, then one final for each */
        finals += ev.type != LLM_EVENT_TOKENS;
        if (ev.type == LLM_EVENT_DONE)
            assert_true(ev.finish == LLM_FINISH_CANCELLED || ev.finish == LLM_FINISH_LENGTH);
        if (ev.type == LLM_EVENT_ERROR)
            assert_int_equal(ev.status, LLM_ESHUTDOWN);
    }
    assert_int_equal(finals, N);
    llm_close(c);
}

static void idle_engines_stop_too(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, tiny(), NULL);
    struct llm_client *c = connect_to(&e);
    assert_int_equal(engine_stop(&e), 0);
    leaves_nothing(&e);
    llm_close(c);
}

/* The terminal is closed: as SIGTERM, unless the engine was started to outlive it. */
static void a_hangup_ends_what_was_not_told_to_stay(void **state)
{
    (void)state;
    struct engine_process e = {0}, stays = {0};
    signal(SIGHUP, SIG_DFL);
    engine_start(&e, tiny(), "--threads", "1", NULL);
    assert_int_equal(kill(e.pid, SIGHUP), 0);
    assert_int_equal(engine_wait(&e), 0);
    leaves_nothing(&e);

    signal(SIGHUP, SIG_IGN); /* nohup */
    engine_start(&stays, tiny(), "--threads", "1", NULL);
    signal(SIGHUP, SIG_DFL);
    assert_int_equal(kill(stays.pid, SIGHUP), 0);
    struct llm_client *c = connect_to(&stays);
    int32_t tokens[1024];
    uint32_t n;
    collect(c, submit(c, LLM_OP_GENERATE, TOKENS), tokens, &n);
    assert_int_equal(n, TOKENS);
    llm_close(c);
    assert_int_equal(engine_stop(&stays), 0);
}

/* Scripts wait for the word: a model that is called so does not say it too early. */
static void ready_is_said_once(void **state)
{
    (void)state;
    static const char key[] = "general.name";
    size_t bytes;
    char *model = golden_read("tiny_gguf/llama.Q8_0.gguf", &bytes), path[300];
    char *name = memmem(model, bytes, key, sizeof key - 1);
    assert_non_null(name);
    name += sizeof key - 1 + 4 + 8; /* its type, its length */
    assert_memory_equal(name, "llama", 5);
    memcpy(name, "ready", 5);
    snprintf(path, sizeof path, "%s/ready.gguf", scratch_dir());
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(model, 1, bytes, f), bytes);
    fclose(f);
    free(model);

    struct engine_process e = {0};
    engine_start(&e, path, "--threads", "1", NULL);
    assert_int_equal(engine_stop(&e), 0);
    char *log = engine_log(&e), *first = strstr(log, "ready");
    assert_non_null(first);
    while (first > log && first[-1] != '\n')
        first--;
    if (strncmp(first, "llmd: ready: ", 13))
        fail_msg("it said: %s", log);
    free(log);
}

/* What a killed engine leaves is no hindrance, and the board tells of it until then. */
static void a_killed_engine_is_replaced(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--threads", "1", NULL);
    const struct llm_board *old = board_of(&e);
    engine_kill(&e);
    assert_int_equal(order_acquire(&old->state), LLM_STATE_READY);
    munmap((void *)board_of(&e), LLM_BOARD_BYTES); /* still there */
    struct engine_process next = {0};
    snprintf(next.instance, sizeof next.instance, "%s", e.instance);
    engine_start(&next, tiny(), "--threads", "1", NULL);
    const struct llm_board *b = board_of(&next);
    assert_int_equal(b->pid, next.pid);
    assert_true(b->epoch != old->epoch);
    assert_true(b->numerics_id == old->numerics_id);
    munmap((void *)old, LLM_BOARD_BYTES);
    munmap((void *)b, LLM_BOARD_BYTES);
    llm_close(connect_to(&next));
    assert_int_equal(engine_stop(&next), 0);
    leaves_nothing(&next);
}

/* The engine asks for what the hard limit allows. */
static void a_low_soft_limit_is_no_limit(void **state)
{
    (void)state;
    enum { CLIENTS = 24 };
    struct engine_process e = {0};
    struct rlimit was, low;
    struct llm_client *c[CLIENTS];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    low = was;
    low.rlim_cur = 48;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    engine_start(&e, tiny(), "--threads", "1", NULL);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    for (int i = 0; i < CLIENTS; i++)
        c[i] = connect_to(&e);
    for (int i = 0; i < CLIENTS; i++)
        llm_close(c[i]);
    assert_int_equal(engine_stop(&e), 0);
}

/* A signal while the model is being read: nothing is served yet, and nothing stays. */
static void a_start_can_be_stopped(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_spawn(&e, real_model_path(), NULL);
    char *log = NULL;
    siginfo_t ended = {0};
    do { /* until it has begun to load */
        free(log);
        log = engine_log(&e);
        assert_int_equal(waitid(P_PID, (id_t)e.pid, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
    } while (!strstr(log, "loading") && !ended.si_pid);
    free(log);
    assert_int_equal(engine_stop(&e), 0);
    leaves_nothing(&e);
}

static void wrong_command_lines(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        const char *arguments[3];
        int status;
        const char *sentence;
    } lines[] = {
        {"/nonexistent/m.gguf", {NULL}, 1, "/nonexistent/m.gguf"},
        {NULL, {"--max-model-len", "257", NULL}, 2, "out of range: 2 to 256"},
        {NULL, {"--max-num-seqs", "0", NULL}, 2, "out of range: 1 to 4096"},
        {NULL, {"--thread", "1", NULL}, 2, "did you mean --threads?"},
        {NULL, {"--num-kv-blocks", "15", NULL}, 1, "needs 16 blocks"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct engine_process e = {0};
        engine_spawn(&e, lines[i].model ? lines[i].model : tiny(), lines[i].arguments);
        int status = engine_wait(&e);
        char *log = engine_log(&e);
        if (status != lines[i].status || !strstr(log, lines[i].sentence) || strstr(log, "ready"))
            fail_msg("case %zu: status %d, says: %s", i, status, log);
        free(log);
        leaves_nothing(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_four_operations),
        cmocka_unit_test(a_client_is_killed_in_mid_stream),
        cmocka_unit_test(many_come_and_go),
        cmocka_unit_test(a_second_engine_is_refused),
        cmocka_unit_test(one_in_another_runtime_directory_is_refused),
        cmocka_unit_test(sigterm_ends_streams_and_leaves_nothing),
        cmocka_unit_test(idle_engines_stop_too),
        cmocka_unit_test(a_hangup_ends_what_was_not_told_to_stay),
        cmocka_unit_test(ready_is_said_once),
        cmocka_unit_test(a_killed_engine_is_replaced),
        cmocka_unit_test(a_low_soft_limit_is_no_limit),
        cmocka_unit_test(a_start_can_be_stopped),
        cmocka_unit_test(wrong_command_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
