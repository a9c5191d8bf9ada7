/* test_llmctl_board.c - what llmctl says of boards that the test has written itself: figures that
 * are known to the last digit, names that hold anything, processes that are not there.
 */
#include "../../shm/board.h"
#include "../../shm/control.h"
#include "llmctl_rig.h"

#include <fcntl.h>
#include <sys/file.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char board_name[128];
static int board_fd = -1;
static struct llm_board *board;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* An empty board of an engine that started a minute ago; dead, unless `locked`. */
static void make(bool locked)
{
    board_fd = shm_open(board_name, O_CREAT | O_EXCL | O_RDWR, 0600);
    assert_true(board_fd >= 0);
    assert_int_equal(ftruncate(board_fd, LLM_BOARD_BYTES), 0);
    board = mmap(NULL, LLM_BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, board_fd, 0);
    assert_true(board != MAP_FAILED);
    if (locked)
        assert_int_equal(flock(board_fd, LOCK_EX), 0);
    board->abi_major = LLM_ABI_MAJOR;
    board->abi_minor = LLM_ABI_MINOR;
    board->pid = 2147483000; /* more than Linux gives */
    board->epoch = 7;
    board->started_ns = clock_ns(CLOCK_REALTIME) - 60000000000ull;
    strcpy(board->model, "some model");
    strcpy(board->quantization, "Q8_0");
    strcpy(board->backend, "cpu");
    order_set(&board->state, LLM_STATE_READY);
    order_set64(&board->heartbeat_ns, clock_ns(CLOCK_MONOTONIC));
    order_release64(&board->magic, LLM_MAGIC_BOARD);
}

static int take_away(void **state)
{
    (void)state;
    if (board_fd < 0)
        return 0;
    munmap(board, LLM_BOARD_BYTES);
    close(board_fd);
    shm_unlink(board_name);
    board_fd = -1;
    return 0;
}

static char *once(unsigned columns)
{
    int status;
    char *out = run_command(&status, "COLUMNS=%u '%s' -i %s top --once", columns, built("llmctl"),
                            engine.instance);
    assert_int_equal(status, 0);
    return out;
}

static void has(const char *frame, const char *text)
{
    if (!strstr(frame, text))
        fail_msg("no \"%s\" in\n%s", text, frame);
}

/* ---- figures ---- */

static void observe(struct llm_histogram *h, uint64_t ns, uint64_t times)
{
    order_set64(&h->count, order_read64(&h->count) + times);
    order_set64(&h->sum_ns, order_read64(&h->sum_ns) + times * ns);
    order_u64 *bucket = &h->bucket[llm_histogram_bucket(ns)];
    order_set64(bucket, order_read64(bucket) + times);
    if (ns > order_read64(&h->max_ns))
        order_set64(&h->max_ns, ns);
}

static void fill(void)
{
    board->kv_blocks_total = 400;
    board->kv_block_size = 16;
    order_set64(&board->kv_blocks_free, 200);
    order_set64(&board->kv_blocks_cached, 100);
    order_set64(&board->running, 3);
    order_set64(&board->waiting, 2);
    order_set64(&board->sessions, 5);
    order_set64(&board->steps, 1200);
    order_set64(&board->rows, 9600);
    order_set64(&board->prefill_rows, 6000);
    order_set64(&board->decode_rows, 3600);
    order_set64(&board->prefix_queries, 1000);
    order_set64(&board->prefix_hits, 250);
    order_set64(&board->preemptions, 4);
    order_set64(&board->refused, 6);
    order_set64(&board->refused_for[LLM_REFUSED_QUEUE], 4);
    order_set64(&board->refused_for[LLM_REFUSED_DEADLINE], 2);
    order_set64(&board->deadline_misses, 1);
    order_set64(&board->backlog_tokens, 512);
    order_set64(&board->backlog_us, 2500);
    /* the upper edges of their buckets: 2^20 to 2^20 9/8 ns, and 2^23 to 2^23 9/8 */
    observe(&board->ttft, 1 << 20, 90);
    observe(&board->ttft, 1 << 23, 9);
    observe(&board->ttft, 100000000, 1);
}

static void figures_of_a_frame(void **state)
{
    (void)state;
    make(true);
    fill();
    char *frame = once(80);
    has(frame, "ready");
    has(frame, "running 3  waiting 2");
    has(frame, "sessions 5");
    has(frame, "[###########=====......]"); /* 50 %, 25 %, 25 % of 22 */
    has(frame, "used# 50.0 %");
    has(frame, "cached= 25.0 %");
    has(frame, "free. 25.0 %");
    has(frame, "prefix hits 25.0 %");
    has(frame, "(250 of 1000 tokens)");
    has(frame, "rows/step 8.0");
    assert_null(strstr(frame, "drafts"));
    has(frame, "preemptions 4");
    has(frame, "refused   6  queue 4  deadline 2");
    has(frame, "deadline misses 1");
    has(frame, "last step never");
    has(frame, "backlog 512 tokens, 2.5 ms");
    has(frame, "TTFT ms             1.180       9.437       9.437         100");
    free(frame);

    json_t *o = ctl_json("status --json"), *ttft = json_object_get(o, "ttft_us");
    assert_int_equal(whole(ttft, "count"), 100);
    assert_true(real(ttft, "p50") == 1179.648 && real(ttft, "p95") == 9437.184);
    assert_true(real(ttft, "max") == 100000);
    assert_int_equal(whole(o, "kv_blocks_used"), 200);
    assert_int_equal(whole(o, "prefix_hit_tokens"), 250);
    assert_int_equal(whole(json_object_get(o, "refused_for"), "queue"), 4);
    assert_int_equal(whole(o, "backlog_us"), 2500);
    assert_true(json_is_null(json_object_get(o, "last_step_age_us")));
    json_decref(o);
}

/* 1200 steps in the minute that it lived. */
static void rates_of_a_dead_one(void **state)
{
    (void)state;
    make(false);
    fill();
    char *frame = once(80);
    has(frame, "THE ENGINE HAS DIED");
    has(frame, "prefill 100.0  decode 60.0  steps/s 20.0");
    free(frame);
}

/* A row of a draft that was wrong is no token. */
static void drafts(void **state)
{
    (void)state;
    make(false);
    fill();
    order_set64(&board->spec_drafts, 500);
    order_set64(&board->spec_draft_tokens, 1600);
    order_set64(&board->spec_accepted_tokens, 1000);
    char *frame = once(80);
    has(frame, "decode 50.0");
    has(frame, "drafts    accepted 62.5 %  (1000 of 1600 tokens)");
    free(frame);
    char *text = ctl_text(0, "status");
    has(text, "speculation: 1000 of 1600 draft tokens accepted, in 500 drafts");
    free(text);
    json_t *o = ctl_json("status --json");
    assert_int_equal(whole(o, "spec_drafts"), 500);
    assert_int_equal(whole(o, "spec_draft_tokens"), 1600);
    assert_int_equal(whole(o, "spec_accepted_tokens"), 1000);
    json_decref(o);
}

/* ---- what may stand in it ---- */

static void last_errors(void **state)
{
    (void)state;
    make(false);
    for (uint64_t i = 0; i < LLM_BOARD_ERRORS + 3; i++) {
        struct llm_board_error *e = &board->errors[i % LLM_BOARD_ERRORS];
        memset(e->text, 'x', sizeof e->text); /* not one NUL */
        e->text[snprintf(e->text, sizeof e->text, "trouble %02u \x1b[31m", (unsigned)i)] = 'y';
        order_set64(&e->t_ns, clock_ns(CLOCK_REALTIME));
        order_set64(&board->errors_written, i + 1);
    }
    char *frame = once(80);
    has(frame, "last errors:");
    has(frame, "trouble 18");
    has(frame, "trouble 03");
    assert_null(strstr(frame, "trouble 02"));
    assert_null(strchr(frame, '\x1b'));
    free(frame);
    json_t *o = ctl_json("status --json");
    assert_int_equal(json_array_size(json_object_get(o, "last_errors")), LLM_BOARD_ERRORS);
    json_decref(o);
}

static void any_bytes(void **state)
{
    (void)state;
    make(false);
    uint8_t *bytes = (uint8_t *)board;
    struct rnd r = {1};
    for (int turn = 0; turn < 20; turn++) {
        for (size_t i = sizeof board->magic + 4; i < sizeof *board; i++)
            bytes[i] = (uint8_t)rnd_u32(&r);
        free(once(24 + rnd_below(&r, 180)));
        free(ctl_text(0, "status"));
        free(ctl_text(0, "status --json"));
    }
}

static void not_a_board(void **state)
{
    (void)state;
    make(false);
    board->abi_major = 9;
    refuses("top --once", 1, "version 9");
    order_set64(&board->magic, 0);
    refuses("status", 1, "not complete");
    assert_int_equal(ftruncate(board_fd, 100), 0);
    refuses("top --once", 1, "not complete");
    refuses("drain", 1, "not complete");
    assert_int_equal(ftruncate(board_fd, LLM_BOARD_BYTES), 0);
}

/* ---- drain ---- */

/* A process of this test, that must not be signalled. */
static pid_t bystander(void)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        execlp("sleep", "sleep", "600", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static void nobody_else_is_signalled(void **state)
{
    (void)state;
    pid_t pid = bystander();
    make(false); /* the engine is dead, its number another's by now */
    board->pid = (uint32_t)pid;
    refuses("drain", 1, "nothing to drain");
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void a_process_that_is_not_seen(void **state)
{
    (void)state;
    make(true);
    refuses("drain", 1, "cannot be seen from here");
    board->pid = 1; /* of another pid namespace, as llmd in a container */
    refuses("drain", 1, "cannot be seen from here");
}

static int name(void **state)
{
    (void)state;
    scratch_dir();
    snprintf(engine.instance, sizeof engine.instance, "b%d", (int)getpid());
    return llm_board_name(engine.instance, board_name, sizeof board_name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(figures_of_a_frame, take_away),
        cmocka_unit_test_teardown(rates_of_a_dead_one, take_away),
        cmocka_unit_test_teardown(drafts, take_away),
        cmocka_unit_test_teardown(last_errors, take_away),
        cmocka_unit_test_teardown(any_bytes, take_away),
        cmocka_unit_test_teardown(not_a_board, take_away),
        cmocka_unit_test_teardown(nobody_else_is_signalled, take_away),
        cmocka_unit_test_teardown(a_process_that_is_not_seen, take_away),
    };
    return cmocka_run_group_tests_name("llmctl_board", tests, name, NULL);
}
