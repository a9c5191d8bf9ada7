/* test_engine_drafts.c - who speculates, and how much: what requests say against what the engine does
 * by default; drafts keep within the rows, the blocks and the time that are left, yield to prompts and
 * to other clients' streams, pay, and are tried again. All generations repeat a loop, so that drafts
 * hold; steps take as long as the fake is told. */
#include "../../appliance/engine_parts.h"
#include "../support/engine_rig.h"
#include "../support/support.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LOOP = 7, DRAFT = 8, STEPS = 4096 };

struct step {
    uint32_t decode_rows, most, sequences, prefill_rows;
};

struct bench {
    struct rig r;
    struct step steps[STEPS]; /* since the last forget_steps */
    uint32_t n_steps;
};

static int32_t in_loop(uint32_t i)
{
    return (int32_t)(30 + i % LOOP);
}

static int32_t draw(void *context, const struct gpu_output *o)
{
    (void)context;
    return in_loop(o->position);
}

/* A sequence draws from each row of a decode, and from the last one of a prompt. */
static void watch(void *context, const struct gpu_step *s)
{
    struct bench *b = context;
    struct step *seen = &b->steps[b->n_steps++ % STEPS];
    *seen = (struct step){0};
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct gpu_seq *q = &s->seqs[i];
        uint32_t outputs = 0;
        for (uint32_t k = 0; k < s->n_outputs; k++)
            outputs += s->outputs[k].row - q->first_row < q->n_rows;
        if (outputs < q->n_rows || !q->pos) {
            seen->prefill_rows += q->n_rows;
            continue;
        }
        seen->sequences++;
        seen->decode_rows += q->n_rows;
        seen->most = q->n_rows > seen->most ? q->n_rows : seen->most;
    }
    assert_true(s->n_rows <= b->r.config.max_num_batched_tokens);
    assert_true(s->n_outputs <= b->r.config.max_num_batched_tokens);
}

static void forget_steps(struct bench *b)
{
    b->n_steps = 0;
}

static struct bench *bench_made(void)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    rig_init(&b->r);
    b->r.config.speculation = (struct engine_speculation){
        .by_default = true, .max_tokens = DRAFT, .min_match = 2, .max_match = 8};
    return b;
}

static void bench_open(struct bench *b, uint64_t step_ns, uint64_t row_ns)
{
    rig_open(&b->r);
    b->r.gpu.draw = draw;
    b->r.gpu.watch = watch;
    b->r.gpu.watch_context = b;
    b->r.gpu.step_ns = step_ns;
    b->r.gpu.row_ns = row_ns;
}

static void bench_close(struct bench *b)
{
    rig_audit(&b->r);
    rig_close(&b->r);
    free(b);
}

static void send(struct bench *b, uint32_t client, const struct llm_sqe *q)
{
    int32_t prompt[RIG_TOKENS];
    for (uint32_t i = 0; i < q->tokens_len; i++)
        prompt[i] = in_loop(i);
    assert_true(rig_submit(&b->r, client, q, prompt));
}

/* A stream of that client, with its first token. */
static void begin_stream(struct bench *b, uint64_t id, uint32_t client, uint8_t flags)
{
    struct llm_sqe q = rig_generate(id, 20, 450);
    q.flags = flags;
    send(b, client, &q);
    while (!rig_stream(&b->r, client, id, 0)->n)
        rig_step(&b->r);
}

static void steps(struct bench *b, uint32_t n)
{
    for (uint32_t i = 0; i < n && engine_has_work(b->r.engine); i++) {
        rig_step(&b->r);
        rig_audit(&b->r);
    }
}

static uint64_t drafted(const struct bench *b)
{
    return rig_figure(&b->r.board->spec_draft_tokens);
}

static uint64_t accepted(const struct bench *b)
{
    return rig_figure(&b->r.board->spec_accepted_tokens);
}

/* All tokens are those of the loop. */
static void finish(struct bench *b)
{
    steps(b, UINT32_MAX);
    for (uint32_t i = 0; i < b->r.n_streams; i++)
        for (uint32_t k = 0; k < b->r.streams[i].n; k++)
            assert_int_equal(b->r.streams[i].tokens[k], in_loop(b->r.streams[i].q.tokens_len + k));
    assert_int_equal(accepted(b), drafted(b));
    bench_close(b);
}

/* ---- who ---- */

static bool speculates(bool by_default, uint32_t max_tokens, uint8_t flags)
{
    struct bench *b = bench_made();
    b->r.config.speculation.by_default = by_default;
    b->r.config.speculation.max_tokens = max_tokens;
    bench_open(b, 10000, 100);
    struct llm_sqe q = rig_generate(1, 20, 60);
    q.flags = flags;
    send(b, 0, &q);
    steps(b, UINT32_MAX);
    bool did = drafted(b) > 0;
    assert_int_equal(b->n_steps < 60, did);
    finish(b);
    return did;
}

static void as_request_and_engine_say(void **state)
{
    (void)state;
    assert_true(speculates(true, DRAFT, 0));
    assert_true(speculates(true, DRAFT, LLM_SQE_SPECULATE));
    assert_false(speculates(true, DRAFT, LLM_SQE_NO_SPECULATION));
    assert_false(speculates(false, DRAFT, 0));
    assert_true(speculates(false, DRAFT, LLM_SQE_SPECULATE));
    assert_false(speculates(false, DRAFT, LLM_SQE_NO_SPECULATION));
    assert_true(speculates(true, 1, 0));
    assert_true(speculates(true, GPU_KV_BLOCK, 0));
    assert_false(speculates(true, 0, LLM_SQE_SPECULATE));
}

static void refused(struct bench *b, struct llm_sqe q)
{
    int32_t tokens[RIG_TOKENS] = {0};
    assert_true(rig_submit(&b->r, 0, &q, tokens));
    rig_expect_refused(&b->r, 0, &q, -EINVAL, 0);
}

static void both_flags_or_no_generation(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.config.max_sessions = 2;
    bench_open(b, 10000, 100);
    struct llm_sqe q = rig_generate(1, 20, 60);
    q.flags = LLM_SQE_SPECULATE | LLM_SQE_NO_SPECULATION;
    refused(b, q);
    q = rig_score(2, 20);
    q.flags = LLM_SQE_SPECULATE;
    refused(b, q);
    q = rig_session_open(3, 9, 20);
    q.flags = LLM_SQE_NO_SPECULATION;
    refused(b, q);
    bench_close(b);
}

static void limits_of_the_engine(void **state)
{
    (void)state;
    static const struct engine_speculation bad[] = {{true, GPU_KV_BLOCK + 1, 2, 8},
                                                    {true, 8, 0, 8},
                                                    {true, 8, 3, 2},
                                                    {true, 8, 2, NGRAM_MAX + 1},
                                                    {false, 17, 1, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct rig r;
        struct engine *e;
        struct fail f = {0};
        struct engine_sink sink = {0};
        rig_init(&r);
        r.config.speculation = bad[i];
        assert_int_equal(engine_create(&e, &r.config, fake_gpu_ops(), NULL, NULL, &sink, &f),
                         -EINVAL);
        assert_null(e);
        assert_true(f.text[0]);
    }
}

/* More indices than the address space holds: what to do about it is said. */
static void no_room_for_indices(void **state)
{
    (void)state;
    struct fail f = {0};
    struct speculation x;
    struct engine_config c = {.max_num_seqs = 16384,
                              .max_model_len = INT32_MAX,
                              .speculation = {.max_tokens = DRAFT, .min_match = 2, .max_match = 8}};
    assert_int_equal(speculation_create(&x, &c, &f), -ENOMEM);
    assert_non_null(strstr(f.text, "--speculative-tokens 0"));
    c.speculation.max_tokens = 0;
    assert_int_equal(speculation_create(&x, &c, &f), 0);
    speculation_destroy(&x);
}

/* Beside each other, each as it wants. */
static void some_of_one_batch(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    bench_open(b, 10000, 10);
    for (uint32_t i = 1; i <= 6; i++)
        begin_stream(b, i, 0, i % 2 ? LLM_SQE_NO_SPECULATION : 0);
    steps(b, 50);
    assert_true(rig_stream(&b->r, 0, 2, 0)->n > rig_stream(&b->r, 0, 1, 0)->n + 100);
    finish(b);
}

/* ---- rows ---- */

/* Drafts have what decodes leave of a step, and that is no more than there are. */
static void in_the_rows_that_are_left(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows <= 12; rows++) {
        struct bench *b = bench_made();
        b->r.config.max_num_batched_tokens = rows;
        bench_open(b, 100000, 10);
        for (uint32_t i = 1; i <= 3; i++)
            begin_stream(b, i, 0, 0);
        forget_steps(b);
        steps(b, 30);
        uint32_t most = 0;
        for (uint32_t i = 0; i < b->n_steps; i++) {
            assert_int_equal(b->steps[i].sequences, rows < 3 ? rows : 3);
            most = b->steps[i].decode_rows > most ? b->steps[i].decode_rows : most;
        }
        assert_int_equal(most, rows);
        finish(b);
    }
}

/* Steps with a long prompt beside two streams. */
static struct bench *beside_a_prompt(bool speculates, uint64_t row_ns)
{
    struct bench *b = bench_made();
    b->r.config.max_num_batched_tokens = 40;
    b->r.config.prefill_chunk = 20;
    b->r.config.speculation.by_default = speculates;
    bench_open(b, 10000, row_ns);
    begin_stream(b, 1, 0, 0);
    begin_stream(b, 2, 0, 0);
    steps(b, 5);
    forget_steps(b);
    struct llm_sqe q = rig_generate(9, 400, 2);
    send(b, 0, &q);
    while (!rig_stream(&b->r, 0, 9, 0)->n)
        steps(b, 1);
    return b;
}

/* It gets as many rows of each as if nobody drafted; where rows cost, nobody does. */
static void prompts_go_before(void **state)
{
    (void)state;
    static const uint64_t row_ns[] = {1, 1000};
    for (int i = 0; i < 2; i++) {
        struct bench *plain = beside_a_prompt(false, row_ns[i]),
                     *b = beside_a_prompt(true, row_ns[i]);
        uint32_t drafts = 0;
        assert_int_equal(b->n_steps, plain->n_steps);
        for (uint32_t k = 0; k < b->n_steps; k++) {
            assert_int_equal(b->steps[k].prefill_rows, plain->steps[k].prefill_rows);
            drafts += b->steps[k].decode_rows > b->steps[k].sequences;
        }
        assert_true(row_ns[i] > 1 ? !drafts : drafts > b->n_steps / 2);
        finish(plain);
        finish(b);
    }
}

/* ---- blocks ---- */

/* A block for a draft alone leaves one for each that runs, and the watermark's one. */
static void watch_blocks(void *context, const struct gpu_step *step)
{
    const struct bench *b = context;
    const struct schedule *c = &b->r.engine->schedule;
    watch(context, step);
    for (uint32_t i = 0; i < c->n_running; i++)
        if (c->running[i]->n_blocks > kv_blocks_for(c->running[i]->n_tokens))
            assert_true(c->pool.n_free >= c->n_running + 1);
}

/* No lease is dropped and nobody is preempted for a draft: with few blocks there are none at borders. */
static void in_the_blocks_that_are_left(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.config.max_sessions = 4;
    b->r.config.n_blocks = 12;
    bench_open(b, 100000, 10);
    b->r.gpu.watch = watch_blocks;
    struct llm_sqe q = rig_session_open(1, 5, 16 * 5);
    send(b, 0, &q);
    steps(b, UINT32_MAX);
    q = rig_generate(2, 20, 16 * 7 - 20); /* all other blocks, in the end */
    send(b, 0, &q);
    steps(b, UINT32_MAX);
    assert_true(drafted(b) > 20);
    assert_int_equal(rig_figure(&b->r.board->session_evictions), 0);
    assert_int_equal(rig_figure(&b->r.board->preemptions), 0);
    finish(b);
}

static void in_the_quota(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.config.quota.kv_blocks = 6;
    bench_open(b, 100000, 10);
    struct llm_sqe q = rig_generate(1, 20, 16 * 6 - 20);
    send(b, 0, &q);
    finish(b); /* looks at the quota after each step */
}

/* ---- time ---- */

/* Planned is nine tenths of the promised gap: 18 us, of which a step takes 10 and a row 1. */
static void within_the_promised_gap(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.config.max_itl_us = 20;
    bench_open(b, 10000, 1000);
    begin_stream(b, 1, 0, 0);
    forget_steps(b);
    steps(b, UINT32_MAX);
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->n_steps; i++)
        most = b->steps[i].most > most ? b->steps[i].most : most;
    assert_in_range(most, 7, 8);
    finish(b);
}

/* A request's own promise, of a stream that does not speculate itself. */
static void within_anothers_promise(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    bench_open(b, 10000, 1000);
    begin_stream(b, 1, 0, 0);
    steps(b, 10);
    struct llm_sqe q = rig_generate(2, 20, 100);
    q.flags = LLM_SQE_NO_SPECULATION;
    q.max_itl_us = 16; /* 14.4: two streams and two more rows */
    send(b, 0, &q);
    while (!rig_stream(&b->r, 0, 2, 0)->n)
        rig_step(&b->r);
    forget_steps(b);
    steps(b, 20);
    assert_true(b->n_steps == 20);
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->n_steps; i++) {
        assert_int_equal(b->steps[i].sequences, 2);
        most = b->steps[i].decode_rows > most ? b->steps[i].decode_rows : most;
    }
    assert_int_equal(most, 4);
    finish(b);
}

/* Two streams of one client draft as they like; beside another client's a step takes a quarter more at
 * most: 12 us and 3. */
static void beside_another_client(void **state)
{
    (void)state;
    for (uint32_t other = 0; other < 2; other++) {
        struct bench *b = bench_made();
        bench_open(b, 10000, 1000);
        begin_stream(b, 1, 0, 0);
        steps(b, 10);
        begin_stream(b, 2, other, LLM_SQE_NO_SPECULATION);
        forget_steps(b);
        steps(b, 30);
        uint32_t most = 0;
        for (uint32_t i = 0; i < b->n_steps && b->steps[i].sequences == 2; i++)
            most = b->steps[i].decode_rows > most ? b->steps[i].decode_rows : most;
        assert_int_equal(most, other ? 2 + 3 : 2 + DRAFT);
        finish(b);
    }
}

/* ---- what pays ---- */

/* Rows that cost as much as a step of one: there are no drafts but tries. */
static void dear_rows(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    bench_open(b, 0, 10000);
    begin_stream(b, 1, 0, 0);
    steps(b, UINT32_MAX);
    uint32_t tries = 0;
    for (uint32_t i = 0; i < b->n_steps; i++)
        tries += b->steps[i].most > 1;
    assert_in_range(tries, 1, b->n_steps / 8 + 1);
    finish(b);
}

/* Six streams alone say nothing of what a row more costs: it is tried, a draft at a time. */
static void tries_among_many(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.config.n_blocks = 400;
    b->r.config.max_num_batched_tokens = 120;
    b->r.config.policy = ENGINE_FIRST_COME; /* all prompts in one step */
    bench_open(b, 100000, 10);
    for (uint32_t i = 1; i <= 6; i++) {
        struct llm_sqe q = rig_generate(i, 20, 450);
        send(b, 0, &q);
    }
    steps(b, 1);
    forget_steps(b);
    steps(b, 40);
    uint32_t most = 0;
    assert_int_equal(b->steps[0].decode_rows, 6);
    assert_in_range(b->steps[1].decode_rows, 7, 6 + DRAFT);
    for (uint32_t i = 0; i < b->n_steps; i++)
        most = b->steps[i].decode_rows > most ? b->steps[i].decode_rows : most;
    assert_in_range(most, 6 * (1 + DRAFT) / 2, 6 * (1 + DRAFT));
    finish(b);
}

/* Rows are cheap up to four, then a step takes four times as long: drafts go up to there. */
static uint64_t *clock_ns;
static void step_up(void *context, const struct gpu_step *s)
{
    watch(context, s);
    *clock_ns += s->n_rows > 4 ? 30000 : 0;
}

static void up_to_a_kink(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    bench_open(b, 10000, 100);
    clock_ns = &b->r.clock_ns;
    b->r.gpu.watch = step_up;
    begin_stream(b, 1, 0, 0);
    steps(b, 20);
    forget_steps(b);
    steps(b, 30);
    uint32_t at_most_4 = 0;
    for (uint32_t i = 0; i < b->n_steps; i++)
        at_most_4 += b->steps[i].most <= 4;
    assert_true(at_most_4 + 3 >= b->n_steps && b->n_steps == 30);
    finish(b);
}

/* A history is read into the index in pieces; until all of it is there nothing is drafted. */
static void long_histories(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.config.max_model_len = 2200;
    b->r.config.max_num_batched_tokens = 2048;
    b->r.config.n_blocks = 300;
    bench_open(b, 100000, 10);
    struct llm_sqe q = rig_generate(1, 2000, 150);
    send(b, 0, &q);
    steps(b, 1); /* all of it in one step, a quarter of it read */
    assert_int_equal(rig_stream(&b->r, 0, 1, 0)->n, 1);
    steps(b, 2);
    assert_int_equal(drafted(b), 0);
    steps(b, 3);
    assert_true(drafted(b) > 0);
    finish(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_request_and_engine_say),
        cmocka_unit_test(both_flags_or_no_generation),
        cmocka_unit_test(limits_of_the_engine),
        cmocka_unit_test(no_room_for_indices),
        cmocka_unit_test(some_of_one_batch),
        cmocka_unit_test(in_the_rows_that_are_left),
        cmocka_unit_test(prompts_go_before),
        cmocka_unit_test(in_the_blocks_that_are_left),
        cmocka_unit_test(in_the_quota),
        cmocka_unit_test(within_the_promised_gap),
        cmocka_unit_test(within_anothers_promise),
        cmocka_unit_test(beside_another_client),
        cmocka_unit_test(dear_rows),
        cmocka_unit_test(tries_among_many),
        cmocka_unit_test(up_to_a_kink),
        cmocka_unit_test(long_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
