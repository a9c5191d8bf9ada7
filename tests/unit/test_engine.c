/* The scheduling core, one request or a few at a time: what each operation brings, ends, choices,
 * cancel in every state, failures of the backend, back-pressure, shutdown. */
#include <errno.h>
#include <string.h>

#include "../support/engine_rig.h"

/* ---- what requests bring ---- */

static void generates_what_the_model_says(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    for (uint32_t n = 1; n <= 70; n++) {
        struct llm_sqe q = rig_generate(n, n, 1 + n % 40);
        q.temperature = n % 2 ? 0.7f : 0.0f;
        q.flags = n % 3 ? LLM_SQE_LOGPROBS : 0;
        rig_send(&r, n % RIG_CLIENTS, &q);
        assert_true(engine_has_work(r.engine));
        rig_run(&r);
        rig_expect_whole(&r, n % RIG_CLIENTS, &q);
    }
    assert_int_equal(rig_figure(&r.board->requests), 70);
    assert_int_equal(rig_figure(&r.board->finished), 70);
    assert_int_equal(rig_figure(&r.board->prompt_tokens), 70 * 71 / 2);
    rig_close(&r);
}

static void fills_the_longest_sequence(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe a = rig_generate(1, 1, 511), b = rig_generate(2, 511, 1);
    a.flags = b.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &a);
    rig_send(&r, 0, &b);
    rig_run(&r);
    rig_expect_whole(&r, 0, &a);
    rig_expect_whole(&r, 0, &b);
    rig_close(&r);
}

static void one_block_holds_17_tokens(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 1;
    rig_open(&r);
    struct llm_sqe q = rig_generate(1, 9, 8), long_one = rig_generate(2, 9, 9);
    q.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &q);
    rig_send(&r, 0, &long_one);
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    rig_expect_refused(&r, 0, &long_one, LLM_ETOOLONG, 8);
    rig_close(&r);
}

static void scores_a_prompt(void **state)
{
    (void)state;
    for (uint32_t chunk = 0; chunk <= 40; chunk += 5) {
        struct rig r;
        rig_init(&r);
        r.config.prefill_chunk = chunk;
        rig_open(&r);
        for (uint32_t n = 2; n <= 130; n += 16) {
            struct llm_sqe q = rig_score(n, n);
            rig_send(&r, 0, &q);
            rig_run(&r);
            rig_expect_whole(&r, 0, &q);
        }
        assert_int_equal(rig_figure(&r.board->output_tokens), 0);
        rig_close(&r);
    }
}

static void a_scored_prompt_may_be_as_long_as_the_model(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = rig_score(1, 512);
    rig_send(&r, 0, &q);
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

static void nop_is_answered_at_once(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = {.user_data = 9, .op = LLM_OP_NOP};
    rig_send(&r, 3, &q);
    const struct rig_stream *s = rig_stream(&r, 3, 9, 0);
    assert_int_equal(s->finals, 1);
    assert_int_equal(s->final.type, LLM_CQE_DONE);
    assert_int_equal(s->final.status, 0);
    assert_false(engine_has_work(r.engine));
    assert_true(s->result.t_arrival > 0);
    rig_close(&r);
}

/* The engine's own part counts between steps that follow each other, not over a pause. */
static void overhead_counts_between_busy_steps(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    for (uint32_t i = 1; i <= 3; i++) {
        struct llm_sqe q = rig_generate(i, 5, 10);
        q.flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, 0, &q);
        rig_run(&r);
    }
    assert_int_equal(rig_figure(&r.board->steps), 30);
    assert_int_equal(rig_figure(&r.board->overhead.count), 27);
    assert_true(rig_figure(&r.board->last_step_ns) > 0);
    rig_close(&r);
}

/* ---- choices ---- */

static void choices_prefill_the_prompt_once(void **state)
{
    (void)state;
    static const uint32_t prompts[] = {1, 15, 16, 17, 32, 50};
    for (uint32_t i = 0; i < 6; i++) {
        struct rig r;
        rig_init(&r);
        rig_open(&r);
        struct llm_sqe q = rig_generate(1, prompts[i], 30);
        q.choices = 8;
        q.temperature = 1.0f;
        rig_send(&r, 0, &q);
        assert_int_equal(engine_waiting(r.engine), 8);
        rig_step(&r);
        assert_int_equal(r.gpu.rows_last, prompts[i]);
        assert_int_equal(r.gpu.copies, prompts[i] % GPU_KV_BLOCK ? 7 : 0);
        rig_run(&r);
        rig_expect_whole(&r, 0, &q);
        assert_int_equal(rig_figure(&r.board->prefill_rows), prompts[i]);
        rig_close(&r);
    }
}

static void choices_differ(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = rig_generate(1, 20, 20);
    q.choices = 2;
    q.temperature = 1.0f;
    q.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &q);
    rig_run(&r);
    assert_memory_not_equal(rig_stream(&r, 0, 1, 0)->tokens, rig_stream(&r, 0, 1, 1)->tokens,
                            20 * sizeof(int32_t));
    rig_close(&r);
}

/* Too few places, rows or blocks for all forks: the rest comes later, with the same tokens. */
static void choices_beyond_the_limits_come_later(void **state)
{
    (void)state;
    static const struct {
        uint32_t seqs, rows, blocks;
    } limits[] = {{3, 64, 256}, {64, 24, 256}, {64, 64, 5}, {1, 1, 5}, {2, 21, 6}};
    for (uint32_t i = 0; i < 5; i++) {
        struct rig r;
        rig_init(&r);
        r.config.max_num_seqs = limits[i].seqs;
        r.config.max_num_batched_tokens = limits[i].rows;
        r.config.n_blocks = limits[i].blocks;
        rig_open(&r);
        struct llm_sqe q = rig_generate(1, 20, 30);
        q.choices = 12;
        q.temperature = 1.0f;
        q.flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, 0, &q);
        rig_run(&r);
        rig_expect_whole(&r, 0, &q);
        rig_close(&r);
    }
}

static void one_token_of_each_choice(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = rig_generate(1, 33, 1);
    q.choices = 5;
    q.temperature = 1.0f;
    rig_send(&r, 0, &q);
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    assert_int_equal(r.gpu.steps, 1);
    rig_close(&r);
}

/* ---- ends ---- */

static void an_end_token_is_delivered_and_ends(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    r.gpu.forced_token = 11;
    struct llm_sqe stops = rig_generate(1, 10, 20), goes_on = rig_generate(2, 10, 20);
    struct llm_sqe both = rig_generate(3, 10, 1);
    goes_on.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &stops);
    rig_send(&r, 0, &goes_on);
    rig_send(&r, 0, &both);
    rig_run(&r);
    const struct rig_stream *s = rig_stream(&r, 0, 1, 0);
    assert_int_equal(s->n, 1);
    assert_int_equal(s->tokens[0], 11);
    assert_int_equal(s->final.finish, LLM_FINISH_STOP);
    s = rig_stream(&r, 0, 2, 0);
    assert_int_equal(s->n, 20);
    assert_int_equal(s->final.finish, LLM_FINISH_LENGTH);
    s = rig_stream(&r, 0, 3, 0);
    assert_int_equal(s->n, 1);
    assert_int_equal(s->final.finish, LLM_FINISH_STOP);
    rig_close(&r);
}

static void only_end_tokens_end(void **state)
{
    (void)state;
    static const int32_t eog[] = {0, 7, 8, 96};
    struct rig r;
    rig_init(&r);
    r.config.eog = eog;
    r.config.n_eog = 4;
    rig_open(&r);
    for (int32_t token = 0; token < 97; token++) {
        struct llm_sqe q = rig_generate((uint64_t)token + 1, 3, 2);
        bool ends = token == 0 || token == 7 || token == 8 || token == 96;
        r.gpu.forced_token = token;
        rig_send(&r, 0, &q);
        rig_run(&r);
        assert_int_equal(rig_stream(&r, 0, q.user_data, 0)->n, ends ? 1 : 2);
    }
    rig_close(&r);
}

/* ---- back-pressure ---- */

static void takes_no_more_than_it_has_slots(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_requests = 4;
    rig_open(&r);
    struct llm_sqe q[4], cancel = rig_cancel(9, 2), two = rig_generate(8, 5, 5);
    two.choices = 2;
    for (uint32_t i = 0; i < 4; i++) {
        q[i] = rig_generate(i + 1, 20, 20);
        assert_true(engine_can_take(r.engine, &q[i]));
        rig_send(&r, 0, &q[i]);
    }
    assert_false(engine_can_take(r.engine, &q[0]));
    assert_true(engine_can_take(r.engine, &cancel)); /* always: it makes room */
    rig_send(&r, 0, &cancel);
    assert_true(engine_can_take(r.engine, &q[0]));
    assert_false(engine_can_take(r.engine, &two));
    rig_run(&r);
    assert_true(engine_can_take(r.engine, &two));
    rig_close(&r);
}

/* Clients that send as much as they may: each gets half of what is left, the last one still some.
 */
static void one_client_does_not_take_all_slots(void **state)
{
    (void)state;
    static const uint32_t shares[] = {32, 16, 8, 4, 2};
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe many = rig_generate(999, 5, 5), cancel = rig_cancel(1000, 1);
    uint64_t id = 0;
    many.choices = 40;
    for (uint32_t client = 0; client < 5; client++) {
        uint32_t n = 0;
        struct llm_sqe q = rig_generate(++id, 5, 5);
        for (; engine_can_take_from(r.engine, client, &q); n++) {
            rig_send(&r, client, &q);
            q.user_data = ++id;
        }
        assert_int_equal(n, shares[client]);
        assert_true(engine_can_take_from(r.engine, client, &cancel));
    }
    assert_false(engine_can_take_from(r.engine, 6, &many)); /* 2 slots are left */
    rig_run(&r);
    assert_true(engine_can_take_from(r.engine, 6, &many)); /* more than half, but its first */
    rig_send(&r, 6, &many);
    assert_false(engine_can_take_from(r.engine, 6, &many));
    rig_run(&r);
    rig_close(&r);
}

/* A caller that does not ask gets an answer all the same. */
static void without_a_slot_it_says_busy(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_requests = 1;
    rig_open(&r);
    struct llm_sqe a = rig_generate(1, 20, 20), b = rig_generate(2, 20, 20);
    rig_send(&r, 0, &a);
    r.streams[r.n_streams++] = (struct rig_stream){.user_data = 2, .op = LLM_OP_GENERATE};
    engine_submit(r.engine, 0, &b, 1);
    rig_expect_refused(&r, 0, &b, LLM_EBUSY, 0);
    rig_run(&r);
    rig_expect_whole(&r, 0, &a);
    rig_close(&r);
}

/* ---- cancel ---- */

static void expect_cancel_answer(struct rig *r, uint64_t id, int32_t status)
{
    const struct rig_stream *s = rig_stream(r, 0, id, 0);
    assert_int_equal(s->finals, 1);
    assert_int_equal(s->final.type, status ? LLM_CQE_ERROR : LLM_CQE_DONE);
    assert_int_equal(s->final.status, status);
}

static void expect_cancelled(struct rig *r, const struct llm_sqe *q)
{
    rig_expect_prefix(r, 0, q);
    for (uint32_t i = 0; i < engine_finals(q); i++) {
        const struct rig_stream *s = rig_stream(r, 0, q->user_data, i);
        assert_int_equal(s->finals, 1);
        assert_int_equal(s->final.type, LLM_CQE_DONE);
        assert_int_equal(s->final.status, 0);
        assert_int_equal(s->final.finish, LLM_FINISH_CANCELLED);
        assert_int_equal(s->result.output_tokens, q->op == LLM_OP_SCORE ? 0 : s->n);
    }
}

/* After 0, 1, 2 ... steps: waiting, in the middle of its prompt, decoding. */
static void cancels_after(uint32_t steps, struct llm_sqe q)
{
    struct rig r;
    rig_init(&r);
    r.config.prefill_chunk = 10;
    rig_open(&r);
    struct llm_sqe other = rig_generate(70, 25, 30), cancel = rig_cancel(71, q.user_data);
    other.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &q);
    rig_send(&r, 0, &other);
    for (uint32_t i = 0; i < steps; i++)
        rig_step(&r);
    rig_send(&r, 0, &cancel);
    expect_cancelled(&r, &q);
    expect_cancel_answer(&r, 71, 0);
    assert_int_equal(engine_running(r.engine) + engine_waiting(r.engine), 1);
    assert_int_equal(rig_figure(&r.board->cancelled), engine_finals(&q));
    rig_run(&r);
    rig_expect_whole(&r, 0, &other);
    rig_close(&r);
}

static void cancels_in_every_state(void **state)
{
    (void)state;
    for (uint32_t steps = 0; steps < 12; steps++) {
        struct llm_sqe q = rig_generate(1, 45, 30);
        q.flags = LLM_SQE_IGNORE_EOS;
        cancels_after(steps, q);
        q.choices = 6;
        q.temperature = 1.0f;
        cancels_after(steps, q);
        cancels_after(steps, rig_score(1, 200));
    }
}

static void a_cancel_without_target_says_so(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = rig_generate(1, 10, 10), cancel = rig_cancel(2, 3), late = rig_cancel(4, 1);
    struct llm_sqe foreign = rig_cancel(5, 1);
    rig_send(&r, 0, &q);
    rig_send(&r, 0, &cancel);
    expect_cancel_answer(&r, 2, -ENOENT);
    rig_send(&r, 1, &foreign); /* another client's request of that number is not its own */
    assert_int_equal(rig_stream(&r, 1, 5, 0)->final.status, -ENOENT);
    rig_run(&r);
    rig_send(&r, 0, &late);
    expect_cancel_answer(&r, 4, -ENOENT);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

static void cancels_while_preempted(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 6;
    rig_open(&r);
    struct llm_sqe a = rig_generate(1, 40, 50), b = rig_generate(2, 30, 30);
    struct llm_sqe cancel = rig_cancel(3, 2);
    a.flags = b.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &a);
    rig_send(&r, 0, &b);
    while (!rig_figure(&r.board->preemptions))
        rig_step(&r);
    assert_int_equal(engine_waiting(r.engine), 1);
    rig_send(&r, 0, &cancel);
    expect_cancelled(&r, &b);
    assert_true(rig_stream(&r, 0, 2, 0)->n > 0);
    assert_int_equal(rig_stream(&r, 0, 2, 0)->result.preemptions, 1);
    rig_run(&r);
    rig_expect_whole(&r, 0, &a);
    rig_close(&r);
}

/* ---- failures and the end ---- */

static void expect_engine_error(struct rig *r, uint64_t id, uint32_t choice)
{
    const struct rig_stream *s = rig_stream(r, 0, id, choice);
    assert_int_equal(s->finals, 1);
    assert_int_equal(s->final.type, LLM_CQE_ERROR);
    assert_int_equal(s->final.status, LLM_EENGINE);
    assert_int_equal(s->final.finish, LLM_FINISH_ERROR);
}

static void fails_a_step(uint64_t wait_at, uint64_t submit_at, uint64_t copy_at)
{
    struct rig r;
    rig_init(&r);
    r.config.max_num_seqs = 2;
    rig_open(&r);
    r.gpu.fail_wait_at = wait_at;
    r.gpu.fail_submit_at = submit_at;
    r.gpu.fail_copy_at = copy_at;
    struct llm_sqe both = rig_generate(1, 20, 20), next = rig_generate(2, 20, 20);
    both.choices = 2;
    both.temperature = 1.0f;
    both.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &both);
    rig_send(&r, 0, &next);
    int code;
    while (!(code = engine_step(r.engine)))
        ;
    assert_int_equal(code, -EIO);
    expect_engine_error(&r, 1, 0);
    expect_engine_error(&r, 1, 1);
    assert_int_equal(engine_running(r.engine), 0);
    assert_int_equal(engine_waiting(r.engine), 1);
    assert_int_equal(rig_figure(&r.board->kv_blocks_free), r.config.n_blocks);
    rig_run(&r);
    rig_expect_whole(&r, 0, &next);
    rig_close(&r);
}

static void a_failed_step_ends_what_runs_and_spares_what_waits(void **state)
{
    (void)state;
    fails_a_step(1, 0, 0);
    fails_a_step(2, 0, 0);
    fails_a_step(0, 1, 0);
    fails_a_step(0, 7, 0);
    fails_a_step(0, 0, 1);
}

/* The leader fails in the middle of the prompt: the other choices compute it themselves. */
static void followers_survive_their_leader(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.prefill_chunk = 8;
    rig_open(&r);
    r.gpu.fail_wait_at = 2;
    struct llm_sqe q = rig_generate(1, 20, 20);
    q.choices = 3;
    q.temperature = 1.0f;
    rig_send(&r, 0, &q);
    rig_step(&r);
    assert_int_equal(engine_step(r.engine), -EIO);
    expect_engine_error(&r, 1, 0);
    assert_int_equal(engine_waiting(r.engine), 2);
    rig_run(&r);
    assert_int_equal(rig_stream(&r, 0, 1, 1)->final.type, LLM_CQE_DONE);
    assert_int_equal(rig_stream(&r, 0, 1, 2)->final.type, LLM_CQE_DONE);
    rig_expect_prefix(&r, 0, &q);
    rig_close(&r);
}

static void shutdown_ends_everything(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_seqs = 2;
    rig_open(&r);
    struct llm_sqe q[4], late = rig_generate(9, 5, 5), cancel = rig_cancel(10, 1);
    for (uint32_t i = 0; i < 4; i++) {
        q[i] = rig_generate(i + 1, 20, 50);
        q[i].flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, 0, &q[i]);
    }
    r.room[0] = 1;
    rig_step(&r);
    rig_step(&r);
    engine_shutdown(r.engine);
    assert_false(engine_has_work(r.engine));
    assert_false(engine_holds(r.engine, 0));
    expect_cancelled(&r, &q[0]);
    expect_cancelled(&r, &q[1]);
    for (uint32_t i = 2; i < 4; i++) {
        const struct rig_stream *s = rig_stream(&r, 0, i + 1, 0);
        assert_int_equal(s->finals, 1);
        assert_int_equal(s->final.type, LLM_CQE_ERROR);
        assert_int_equal(s->final.status, LLM_ESHUTDOWN);
        assert_int_equal(s->result.t_admit, 0);
    }
    rig_send(&r, 0, &late);
    rig_expect_refused(&r, 0, &late, LLM_ESHUTDOWN, 0);
    rig_send(&r, 0, &cancel);
    expect_cancel_answer(&r, 10, -ENOENT);
    rig_close(&r);
}

static int create(const struct engine_config *config, struct engine **e, struct fail *f)
{
    struct engine_sink sink = {0};
    return engine_create(e, config, fake_gpu_ops(), NULL, NULL, &sink, f);
}

static void create_refuses_impossible_limits(void **state)
{
    (void)state;
    static const size_t limits[] = {
        offsetof(struct engine_config, max_model_len),
        offsetof(struct engine_config, max_num_seqs),
        offsetof(struct engine_config, max_num_batched_tokens),
        offsetof(struct engine_config, max_requests),
        offsetof(struct engine_config, n_blocks),
        offsetof(struct engine_config, vocab),
    };
    struct engine *e;
    struct rig r;
    for (uint32_t i = 0; i < 6; i++) {
        struct fail f = {0};
        rig_init(&r);
        memset((char *)&r.config + limits[i], 0, sizeof(uint32_t));
        assert_int_equal(create(&r.config, &e, &f), -EINVAL);
        assert_true(f.code == -EINVAL && f.text[0] && !e);
    }
    struct fail f = {0};
    rig_init(&r);
    r.config.max_requests = 1u << 20;
    r.config.max_model_len = INT32_MAX;
    assert_true(create(&r.config, &e, &f) < 0);
    assert_true(f.text[0] && !e);
    engine_destroy(NULL);
}

static void works_without_a_board(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    struct engine *e;
    assert_int_equal(create(&r.config, &e, NULL), 0);
    assert_false(engine_has_work(e));
    assert_int_equal(engine_step(e), 0);
    engine_deliver(e, 5);
    engine_drop_client(e, 5);
    engine_shutdown(e);
    engine_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generates_what_the_model_says),
        cmocka_unit_test(fills_the_longest_sequence),
        cmocka_unit_test(one_block_holds_17_tokens),
        cmocka_unit_test(scores_a_prompt),
        cmocka_unit_test(a_scored_prompt_may_be_as_long_as_the_model),
        cmocka_unit_test(nop_is_answered_at_once),
        cmocka_unit_test(overhead_counts_between_busy_steps),
        cmocka_unit_test(choices_prefill_the_prompt_once),
        cmocka_unit_test(choices_differ),
        cmocka_unit_test(choices_beyond_the_limits_come_later),
        cmocka_unit_test(one_token_of_each_choice),
        cmocka_unit_test(an_end_token_is_delivered_and_ends),
        cmocka_unit_test(only_end_tokens_end),
        cmocka_unit_test(takes_no_more_than_it_has_slots),
        cmocka_unit_test(one_client_does_not_take_all_slots),
        cmocka_unit_test(without_a_slot_it_says_busy),
        cmocka_unit_test(cancels_in_every_state),
        cmocka_unit_test(a_cancel_without_target_says_so),
        cmocka_unit_test(cancels_while_preempted),
        cmocka_unit_test(a_failed_step_ends_what_runs_and_spares_what_waits),
        cmocka_unit_test(followers_survive_their_leader),
        cmocka_unit_test(shutdown_ends_everything),
        cmocka_unit_test(create_refuses_impossible_limits),
        cmocka_unit_test(works_without_a_board),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
