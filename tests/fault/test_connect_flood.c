/* test_connect_flood.c - threads that connect, speak late or not at all, ask for large rings, and
 * hang up, without end: a stream beside them is whole, and nothing of them stays.
 */
#include "../../client/llmclient.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TOKENS = 200, FLOODS = 4, STREAMS = 8 };

static struct engine_process engine;
static const struct llm_board *board;
static struct llm_client *neighbour;
static atomic_bool stop;

static void stream(int32_t *tokens)
{
    static const int32_t prompt[5] = {1, 2, 3, 4, 5};
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event e;
    uint32_t n = 0;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = TOKENS, r.flags = LLM_SQE_IGNORE_EOS;
    assert_int_equal(llm_submit(neighbour, &r, NULL), 0);
    for (;;) {
        assert_int_equal(llm_wait(neighbour, &e, 60000), 1);
        if (e.type != LLM_EVENT_TOKENS)
            break;
        assert_true(n + e.n_tokens <= TOKENS);
        memcpy(tokens + n, e.tokens, e.n_tokens * sizeof *tokens);
        n += e.n_tokens;
    }
    assert_int_equal(n, TOKENS);
}

static uint32_t descriptors(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)engine.pid);
    DIR *d = opendir(path);
    uint32_t n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ---- those who flood ---- */

struct flood {
    pthread_t thread;
    atomic_uint rounds;
    uint32_t number, welcomes;
};

/* Says nothing, says it in a crowd, says nonsense. */
static void strangers(void)
{
    struct llm_message m = hand_hello();
    int fd[6];
    for (int i = 0; i < 6; i++)
        fd[i] = hand_knock(engine.instance);
    for (int i = 0; i < 6; i++)
        if (fd[i] >= 0 && i % 3 == 0)
            hand_say(fd[i], &m);
        else if (fd[i] >= 0 && i % 3 == 1)
            (void)!send(fd[i], "?", 1, MSG_NOSIGNAL);
    for (int i = 0; i < 6; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

static void *run(void *argument)
{
    struct flood *f = argument;
    struct llm_message m = hand_hello();
    m.hello.cq_entries = f->number % 2 ? 4096 : LLM_CQ_ENTRIES_MAX;
    while (!atomic_load(&stop)) {
        struct hand h;
        strangers();
        if (hand_open(&h, engine.instance, &m)) {
            f->welcomes++;
            hand_close(&h);
        }
        atomic_fetch_add(&f->rounds, 1);
    }
    return NULL;
}

static bool all_did_enough(struct flood floods[FLOODS])
{
    for (int i = 0; i < FLOODS; i++)
        if (atomic_load(&floods[i].rounds) < (test_sanitized() ? 5 : 20))
            return false;
    return true;
}

static void a_stream_beside_them_is_whole(void **state)
{
    (void)state;
    static struct flood floods[FLOODS];
    static int32_t expected[TOKENS], got[TOKENS];
    stream(expected);
    uint32_t before = descriptors(), welcomes = 0;
    for (uint32_t i = 0; i < FLOODS; i++) {
        floods[i].number = i;
        assert_int_equal(pthread_create(&floods[i].thread, NULL, run, &floods[i]), 0);
    }
    for (int i = 0; i < STREAMS || !all_did_enough(floods); i++) {
        stream(got);
        assert_memory_equal(got, expected, sizeof got);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < FLOODS; i++) {
        pthread_join(floods[i].thread, NULL);
        welcomes += floods[i].welcomes;
    }
    assert_true(welcomes > 0);
    assert_true(hand_until(&board->clients, 1));
    uint64_t end = test_now_ns() + 20000000000u;
    while (descriptors() > before)
        assert_true(test_now_ns() < end);
    stream(got);
    assert_memory_equal(got, expected, sizeof got);
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", NULL);
    board = hand_board(engine.instance);
    assert_non_null(board);
    assert_int_equal(llm_connect(&neighbour, engine.instance, NULL), 0);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    llm_close(neighbour);
    return engine_stop(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stream_beside_them_is_whole)};
    return cmocka_run_group_tests(tests, start, finish);
}
