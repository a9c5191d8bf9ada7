/* test_slot_reuse.c - failure test (15): a client dies, or cancels, while its requests are in a
 * step, and its slot, or the name of its request, is used again at once. No late event reaches the
 * new owner: what comes is its own, from the first token to the end.
 */
#include "../support/by_hand.h"
#include "../support/support.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 6, LONG = 200, SHORT = 24, OLD = 5, NEW = 300, ROUNDS = 40 };

static struct engine_process engine;
static const struct llm_board *board;
static int32_t expected[SHORT];

static void submit(struct hand *h, uint64_t id, int32_t first, uint32_t max_tokens)
{
    int32_t *tokens = ring_reserve(&h->ring, PROMPT);
    struct llm_sqe *q = ring_next(&h->ring, 1);
    assert_true(tokens && q);
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = first + i;
    q->user_data = id;
    q->op = LLM_OP_GENERATE;
    q->flags = LLM_SQE_IGNORE_EOS;
    q->tokens_off = (uint32_t)((uint8_t *)tokens - h->ring.arena);
    q->tokens_len = PROMPT;
    q->max_tokens = max_tokens;
    q->choices = 1;
    q->top_p = q->repetition = 1;
    ring_commit(&h->ring, 1);
}

static void publish(struct hand *h)
{
    if (ring_submit(&h->ring))
        hand_wake(&h->up->sq_tail);
}

/* The short request `id` from its first token to its end, and nothing else. */
static void hear_short(struct hand *h, uint64_t id, int32_t got[SHORT])
{
    struct llm_cqe c;
    uint32_t n = 0;
    for (;;) {
        assert_true(hand_take(h, &c));
        assert_int_equal(c.user_data, id);
        if (c.type != LLM_CQE_TOKENS)
            break;
        assert_int_equal(c.position, n);
        assert_true(n + c.count <= SHORT);
        memcpy(got + n, c.tokens, c.count * sizeof *c.tokens);
        n += c.count;
    }
    assert_int_equal(c.type, LLM_CQE_DONE);
    assert_int_equal(c.finish, LLM_FINISH_LENGTH);
    assert_int_equal(n, SHORT);
}

/* One place: whoever comes gets the slot of who left. */
static void join(struct hand *h)
{
    while (!hand_open(h, engine.instance, NULL))
        assert_int_equal(h->reject.code, LLM_EBUSY);
}

static int start(void **state)
{
    (void)state;
    struct hand h;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1",
                 "--max-clients", "1", NULL);
    board = hand_board(engine.instance);
    assert_non_null(board);
    join(&h);
    submit(&h, 1, NEW, SHORT);
    publish(&h);
    hear_short(&h, 1, expected);
    hand_close(&h);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    assert_int_equal(order_read64(&board->evictions), 0);
    assert_int_equal(order_read64(&board->backstop_rescues), 0);
    return engine_stop(&engine);
}

/* Four requests, which are in a step when the first token comes. */
static void get_going(struct hand *h)
{
    struct llm_cqe c;
    for (uint64_t id = 1; id <= 4; id++)
        submit(h, id, OLD, LONG);
    publish(h);
    assert_true(hand_take(h, &c));
    assert_int_equal(c.type, LLM_CQE_TOKENS);
}

static void the_next_one_hears_its_own(uint32_t generation)
{
    struct hand h;
    int32_t got[SHORT];
    join(&h);
    assert_int_equal(h.welcome.client, 0);
    assert_true(h.welcome.generation > generation);
    submit(&h, 1, NEW, SHORT);
    publish(&h);
    hear_short(&h, 1, got);
    assert_memory_equal(got, expected, sizeof got);
    assert_true(hand_nop(&h)); /* and behind its end comes nothing */
    hand_close(&h);
}

static void after_a_hang_up(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        struct hand h;
        join(&h);
        get_going(&h);
        hand_close(&h);
        the_next_one_hears_its_own(h.welcome.generation);
    }
}

/* The child says its generation, and is killed. */
static uint32_t killed_in_a_step(void)
{
    int said[2], status;
    uint32_t generation;
    assert_int_equal(pipe(said), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct hand h;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        join(&h);
        get_going(&h);
        if (write(said[1], &h.welcome.generation, sizeof generation) == sizeof generation)
            raise(SIGKILL);
        _exit(1);
    }
    close(said[1]);
    assert_int_equal(read(said[0], &generation, sizeof generation), sizeof generation);
    close(said[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return generation;
}

static void after_a_death(void **state)
{
    (void)state;
    for (int i = 0; i < ROUNDS; i++)
        the_next_one_hears_its_own(killed_in_a_step());
}

/* Takes what the old requests bring until their ends and the cancel's. */
static void hear_cancelled(struct hand *h, uint32_t ends)
{
    struct llm_cqe c;
    while (ends) {
        assert_true(hand_take(h, &c));
        if (c.type == LLM_CQE_TOKENS)
            continue;
        assert_int_equal(c.type, LLM_CQE_DONE);
        assert_int_equal(c.finish, c.user_data == 99 ? LLM_FINISH_NONE : LLM_FINISH_CANCELLED);
        ends--;
    }
}

/* Cancel and the new request of the same name are published together. */
static void after_a_cancel(void **state)
{
    (void)state;
    struct hand h;
    int32_t got[SHORT];
    join(&h);
    for (int i = 0; i < ROUNDS; i++) {
        struct llm_cqe c;
        submit(&h, 1, OLD, LONG);
        publish(&h);
        assert_true(hand_take(&h, &c));
        struct llm_sqe *q = ring_next(&h.ring, 1);
        q->user_data = 99;
        q->op = LLM_OP_CANCEL;
        q->target = 1;
        ring_commit(&h.ring, 1);
        submit(&h, 1, NEW, SHORT);
        publish(&h);
        hear_cancelled(&h, 2);
        hear_short(&h, 1, got);
        assert_memory_equal(got, expected, sizeof got);
    }
    hand_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(after_a_hang_up),
                                       cmocka_unit_test(after_a_death),
                                       cmocka_unit_test(after_a_cancel)};
    return cmocka_run_group_tests(tests, start, finish);
}
