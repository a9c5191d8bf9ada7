/* serving.c - see serving.h. */
#include "serving.h"

#include "../../client/llmclient.h"
#include "../../shm/board.h"
#include "../../shm/control.h"
#include "support.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 100, KINDS = 6, CROWD = 140, ROOM = 150 };

static struct engine_process engine;
static const struct llm_board *board;
static const char *const *more;
static const char *sentence;
static int32_t expected[KINDS][TOKENS]; /* what request `kind` brings, computed alone */

/* ---- small things ---- */

static struct llm_client *join(uint32_t cq_entries)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    o.sq_entries = 8, o.cq_entries = cq_entries, o.max_inflight = KINDS, o.arena_bytes = 4096;
    if (llm_connect(&c, engine.instance, &o) < 0)
        fail_msg("%s", llm_connect_error());
    return c;
}

/* Request `kind`, 1 .. KINDS: some greedy, some drawn with a seed. */
static void submit(struct llm_client *c, uint32_t kind)
{
    int32_t prompt[] = {1, 2, 3, (int32_t)kind, 5, 6};
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = kind, r.max_tokens = TOKENS, r.flags = LLM_SQE_IGNORE_EOS;
    r.user_data = kind, r.seed = kind * 7, r.temperature = kind % 2 ? 0 : 1;
    if (llm_submit(c, &r, NULL) < 0)
        fail_msg("%s", llm_errmsg(c));
}

static void next_event(struct llm_client *c, struct llm_event *e)
{
    int rc = llm_wait(c, e, 60000);
    if (rc != 1)
        fail_msg("llm_wait: %d, %s", rc, llm_errmsg(c));
}

/* Takes all that is in flight: each request's tokens must be what it brings alone. */
static void take_expected(struct llm_client *c)
{
    uint32_t n[KINDS + 1] = {0};
    struct llm_event e;
    while (llm_inflight(c)) {
        next_event(c, &e);
        assert_in_range(e.id, 1, KINDS);
        assert_true(e.type != LLM_EVENT_ERROR);
        assert_true(n[e.id] + e.n_tokens <= TOKENS);
        assert_memory_equal(e.tokens, expected[e.id - 1] + n[e.id], e.n_tokens * sizeof *e.tokens);
        n[e.id] += e.n_tokens;
        if (e.type == LLM_EVENT_DONE)
            assert_int_equal(n[e.id], TOKENS);
    }
}

static void nop(struct llm_client *c)
{
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event e;
    r.op = LLM_OP_NOP, r.max_tokens = 0;
    if (llm_submit(c, &r, NULL) < 0)
        fail_msg("%s", llm_errmsg(c));
    next_event(c, &e);
    assert_int_equal(e.type, LLM_EVENT_DONE);
}

/* Waits for what another process brings about, for at most 20 s. */
static void until(const order_u64 *figure, uint64_t least, uint64_t most)
{
    uint64_t now = 0;
    for (int i = 0; i < 20000; i++) {
        now = order_read64(figure);
        if (now >= least && now <= most)
            return;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    fail_msg("a figure of the board is %llu, not %llu to %llu", (unsigned long long)now,
             (unsigned long long)least, (unsigned long long)most);
}

static void everything_has_come_back(void)
{
    until(&board->clients, 0, 0);
    until(&board->running, 0, 0);
    until(&board->kv_blocks_free, board->kv_blocks_total, board->kv_blocks_total);
}

/* ---- the set ---- */

static void tokens_are_the_same_in_company(void **state)
{
    (void)state;
    struct llm_client *c[3];
    for (int i = 0; i < 3; i++)
        c[i] = join(1024);
    for (uint32_t kind = 1; kind <= KINDS; kind++)
        for (int i = 0; i < 3; i++)
            submit(c[i], kind);
    for (int i = 0; i < 3; i++)
        take_expected(c[i]);
    for (int i = 0; i < 3; i++)
        llm_close(c[i]);
    everything_has_come_back();
}

static void a_request_is_cancelled(void **state)
{
    (void)state;
    struct llm_client *c = join(64);
    struct llm_event e;
    submit(c, 1);
    submit(c, 2);
    next_event(c, &e);
    assert_int_equal(llm_cancel(c, 2), 0);
    uint32_t finish = LLM_FINISH_NONE;
    while (llm_inflight(c)) {
        next_event(c, &e);
        if (e.type == LLM_EVENT_DONE && e.id == 2)
            finish = e.finish;
    }
    assert_true(finish == LLM_FINISH_CANCELLED || finish == LLM_FINISH_LENGTH);
    llm_close(c);
    everything_has_come_back();
}

/* Its ring is full long before its requests end: the rest waits, and the engine for it. */
static void who_does_not_read_is_in_nobodys_way(void **state)
{
    (void)state;
    struct llm_client *slow = join(8), *c = join(1024);
    uint64_t sleeps;
    submit(slow, 1);
    submit(slow, 2);
    for (int i = 0; i < 3; i++) {
        submit(c, 3);
        take_expected(c);
    }
    sleeps = order_read64(&board->sleeps);
    until(&board->sleeps, sleeps + 1, UINT64_MAX); /* it has nothing to do */
    take_expected(slow);
    llm_close(slow);
    llm_close(c);
    everything_has_come_back();
}

static void a_client_that_dies_is_missed_by_nobody(void **state)
{
    (void)state;
    struct llm_client *c = join(1024);
    for (int i = 0; i < 5; i++) {
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            submit(join(8), 4);
            submit(join(8), 5);
            raise(SIGKILL);
        }
        submit(c, 6);
        take_expected(c);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        until(&board->clients, 1, 1);
    }
    llm_close(c);
    everything_has_come_back();
}

/* How the client learns of it: asleep in llm_wait, or in poll(2) on its descriptor. */
static void both_sides_sleep(void **state)
{
    (void)state;
    struct llm_client *c = join(1024);
    for (int i = 0; i < 10; i++) {
        uint64_t sleeps = order_read64(&board->sleeps);
        until(&board->sleeps, sleeps + (i < 2), UINT64_MAX);
        nop(c);
    }
    struct llm_event e;
    struct pollfd p = {llm_fd(c), POLLIN, 0};
    submit(c, 1);
    for (uint32_t n = 0; llm_inflight(c);) {
        int rc = llm_poll(c, &e);
        assert_true(rc >= 0);
        if (!rc && !llm_arm(c))
            assert_int_equal(poll(&p, 1, 60000), 1);
        if (rc && e.type == LLM_EVENT_TOKENS)
            assert_memory_equal(e.tokens, expected[0] + n, e.n_tokens * sizeof *e.tokens);
        n += rc ? e.n_tokens : 0;
    }
    llm_close(c);
    everything_has_come_back();
}

/* More clients than one helper thread has words for, most of them asleep. */
static void many_clients(void **state)
{
    (void)state;
    static struct llm_client *c[CROWD];
    for (int i = 0; i < CROWD; i++)
        c[i] = join(8);
    until(&board->clients, CROWD, CROWD);
    for (int i = 0; i < CROWD; i += 9)
        nop(c[i]);
    for (int i = 0; i < CROWD; i += 20)
        submit(c[i], 1 + (uint32_t)i % KINDS);
    for (int i = 0; i < CROWD; i += 20)
        take_expected(c[i]);
    nop(c[CROWD - 1]);
    for (int i = 0; i < CROWD; i++)
        llm_close(c[i]);
    everything_has_come_back();
}

/* ---- the engine ---- */

static void look_at_the_board(void)
{
    char name[80];
    assert_int_equal(llm_board_name(engine.instance, name, sizeof name), 0);
    int fd = shm_open(name, O_RDONLY, 0);
    assert_true(fd >= 0);
    board = mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(board, MAP_FAILED);
    close(fd);
}

static void compute_alone(void)
{
    struct llm_client *c = join(1024);
    struct llm_event e;
    for (uint32_t kind = 1; kind <= KINDS; kind++) {
        submit(c, kind);
        for (uint32_t n = 0; llm_inflight(c); n += e.n_tokens) {
            next_event(c, &e);
            assert_true(n + e.n_tokens <= TOKENS);
            memcpy(expected[kind - 1] + n, e.tokens, e.n_tokens * sizeof *e.tokens);
        }
    }
    llm_close(c);
}

/* Huge pages are another matter, of the machine. */
static void expect_log(void)
{
    char *log = engine_log(&engine);
    const char *at = sentence ? strstr(log, sentence) : NULL;
    if (sentence ? !at || strstr(at + 1, sentence) : strstr(log, "stand") != NULL)
        fail_msg("the engine says: %s\nnot, once: %s", log,
                 sentence ? sentence : "(nothing of what stands in)");
    free(log);
}

static int start(void **state)
{
    (void)state;
    char room[16];
    const char *arguments[32] = {"--threads", "1", "--max-clients", room};
    size_t n = 4;
    snprintf(room, sizeof room, "%d", ROOM);
    for (const char *const *a = more; a && *a && n < 31; a++)
        arguments[n++] = *a;
    engine = (struct engine_process){0};
    engine_spawn(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), arguments);
    if (!engine_wait_ready(&engine))
        fail_msg("the engine did not start:\n%s", engine_log(&engine));
    expect_log();
    look_at_the_board();
    compute_alone();
    return 0;
}

static int finish(void **state)
{
    (void)state;
    if (!board)
        return 0; /* it did not come so far */
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    assert_int_equal(order_read64(&board->evictions), 0);
    munmap((void *)board, LLM_BOARD_BYTES);
    return engine_stop(&engine);
}

int serving_run(const char *name, const char *const *arguments, const char *says)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_the_same_in_company),
        cmocka_unit_test(a_request_is_cancelled),
        cmocka_unit_test(who_does_not_read_is_in_nobodys_way),
        cmocka_unit_test(a_client_that_dies_is_missed_by_nobody),
        cmocka_unit_test(both_sides_sleep),
        cmocka_unit_test(many_clients),
    };
    more = arguments;
    sentence = says;
    return cmocka_run_group_tests_name(name, tests, start, finish);
}
