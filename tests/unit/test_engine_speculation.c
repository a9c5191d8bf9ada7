/* test_engine_speculation.c - speculation changes no token: generations whose tokens are the test's own
 * are run without and with it, and must bring the same tokens, log-probabilities, candidates and ends.
 * Drafts that always hold, that never do, over block borders, at max_tokens, at the end of the context,
 * with end tokens and stop strings inside of what holds, with penalties, choices, sessions. */
#include "../../appliance/token_text.h"
#include "../support/engine_rig.h"
#include "../support/support.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 512, SCRIPT = 400, LOOP = 7, STOP_TOKEN = 5 };

struct bench {
    struct rig r;
    int32_t script[SCRIPT]; /* output token i of every generation, behind a prompt of the same */
    uint32_t most_rows;     /* of one sequence in a step */
    uint32_t past_end;      /* rows that no output could follow */
    struct token_text text;
    char bytes[VOCAB];
    uint32_t end[VOCAB];
};

static int32_t draw(void *context, const struct gpu_output *o)
{
    const struct bench *b = context;
    return b->script[(o->position - o->n_prompt) % SCRIPT];
}

static void watch(void *context, const struct gpu_step *step)
{
    struct bench *b = context;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct gpu_seq *q = &step->seqs[i];
        if (q->pos && q->n_rows > b->most_rows)
            b->most_rows = q->n_rows;
        b->past_end += q->pos + q->n_rows > q->rope_len - 1;
    }
}

/* Letters a, b, c, ... of the token's number. */
static void make_text(struct bench *b)
{
    for (uint32_t i = 0; i < VOCAB; i++) {
        b->bytes[i] = (char)('a' + i % 26);
        b->end[i] = i + 1;
    }
    b->text = (struct token_text){VOCAB, b->bytes, b->end};
    b->r.config.text = &b->text;
}

static struct bench *bench_made(bool speculates)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    rig_init(&b->r);
    b->r.config.vocab = VOCAB;
    b->r.config.prefix_cache = true;
    b->r.config.speculation = (struct engine_speculation){
        .by_default = speculates, .max_tokens = 8, .min_match = 2, .max_match = 8};
    for (uint32_t i = 0; i <= RIG_CLIENTS; i++)
        b->r.top[i] = LLM_TOP_MAX;
    make_text(b);
    return b;
}

/* Steps cost nearly the same whatever their rows: drafts pay as long as they may hold at all. */
static void bench_open(struct bench *b)
{
    rig_open(&b->r);
    b->r.gpu.draw = draw;
    b->r.gpu.draw_context = b;
    b->r.gpu.watch = watch;
    b->r.gpu.watch_context = b;
    b->r.gpu.step_ns = 100000;
    b->r.gpu.row_ns = 100;
}

static void bench_close(struct bench *b)
{
    rig_audit(&b->r);
    rig_close(&b->r);
    free(b);
}

static uint64_t drafted(const struct bench *b)
{
    return rig_figure(&b->r.board->spec_draft_tokens);
}

static uint64_t accepted(const struct bench *b)
{
    return rig_figure(&b->r.board->spec_accepted_tokens);
}

/* ---- scripts ---- */

/* 30, 31, ... 36, 30, ... */
static int32_t in_loop(uint32_t i)
{
    return (int32_t)(30 + i % LOOP);
}

static void script_loop(struct bench *b)
{
    for (uint32_t i = 0; i < SCRIPT; i++)
        b->script[i] = in_loop(i);
}

/* The same two tokens, and each time others behind them, one more each time. */
static void script_wrong(struct bench *b)
{
    uint32_t begin = 0, gap = 1;
    for (uint32_t i = 0; i < SCRIPT; i++) {
        if (i == begin + 2 + gap) {
            begin = i;
            gap++;
        }
        b->script[i] = (int32_t)(i < begin + 2 ? 20 + i - begin : 100 + i);
    }
}

/* The loop, now and then with a token that is none of it. */
static void script_mixed(struct bench *b)
{
    for (uint32_t i = 0; i < SCRIPT; i++)
        b->script[i] = i % 23 == 11 || i % 31 == 2 ? (int32_t)(60 + i % 50) : in_loop(i);
}

static void (*const scripts[])(struct bench *) = {script_loop, script_wrong, script_mixed};
enum { SCRIPTS = sizeof scripts / sizeof *scripts };

/* ---- requests ---- */

/* Behind n tokens of the loop, so that the script goes on with it. */
static void send(struct bench *b, uint32_t client, const struct llm_sqe *q)
{
    int32_t prompt[RIG_TOKENS];
    for (uint32_t i = 0; i < q->tokens_len; i++)
        prompt[i] = in_loop(i + LOOP * 1000 - q->tokens_len);
    assert_true(rig_submit(&b->r, client, q, prompt));
}

static void run(struct bench *b)
{
    for (uint32_t i = 0; engine_has_work(b->r.engine); i++) {
        assert_true(i < 100000);
        rig_step(&b->r);
        rig_audit(&b->r);
    }
}

static void expect_same(const struct rig_stream *plain, const struct rig_stream *s)
{
    assert_int_equal(s->n, plain->n);
    assert_memory_equal(s->tokens, plain->tokens, s->n * sizeof *s->tokens);
    assert_memory_equal(s->logprob, plain->logprob, s->n * sizeof *s->logprob);
    assert_int_equal(s->finals, 1);
    assert_int_equal(s->final.type, plain->final.type);
    assert_int_equal(s->final.status, plain->final.status);
    assert_int_equal(s->final.finish, plain->final.finish);
    assert_int_equal(s->final.position, plain->final.position);
    assert_int_equal(s->result.stop, plain->result.stop);
    assert_int_equal(s->result.stop_cut, plain->result.stop_cut);
    assert_int_equal(s->result.output_tokens, plain->result.output_tokens);
}

/* What was sent to both comes to the same; then both are closed. */
static void expect_all_same(struct bench *plain, struct bench *b)
{
    run(plain);
    run(b);
    assert_int_equal(drafted(plain), 0);
    assert_int_equal(b->past_end, 0);
    assert_true(accepted(b) <= drafted(b));
    assert_int_equal(b->r.n_streams, plain->r.n_streams);
    for (uint32_t i = 0; i < b->r.n_streams; i++)
        expect_same(&plain->r.streams[i], &b->r.streams[i]);
    bench_close(plain);
    bench_close(b);
}

static void open_both(struct bench **plain, struct bench **b, void (*script)(struct bench *))
{
    *plain = bench_made(false);
    *b = bench_made(true);
    script(*plain);
    script(*b);
    bench_open(*plain);
    bench_open(*b);
}

static void send_both(struct bench *plain, struct bench *b, uint32_t client,
                      const struct llm_sqe *q)
{
    send(plain, client, q);
    send(b, client, q);
}

/* ---- drafts ---- */

static void always_right(void **state)
{
    (void)state;
    struct bench *plain, *b;
    open_both(&plain, &b, script_loop);
    struct llm_sqe q = rig_generate(1, 2 * LOOP, 200);
    send_both(plain, b, 0, &q);
    run(b);
    assert_int_equal(accepted(b), drafted(b));
    assert_true(accepted(b) > 160);
    assert_int_equal(b->most_rows, 9);
    assert_true(b->r.gpu.steps < 40);
    assert_int_equal(rig_figure(&b->r.board->output_tokens), 200);
    assert_int_equal(rig_figure(&b->r.board->decode_rows), b->r.gpu.steps - 1 + drafted(b));
    expect_all_same(plain, b);
}

/* With rows that cost something, as on any machine, the sequence drafts no more after some. */
static void never_right(void **state)
{
    (void)state;
    struct bench *plain, *b;
    open_both(&plain, &b, script_wrong);
    b->r.gpu.row_ns = 20000;
    struct llm_sqe q = rig_generate(1, 4, SCRIPT);
    send_both(plain, b, 0, &q);
    while (rig_stream(&b->r, 0, 1, 0)->n < SCRIPT - 100)
        rig_step(&b->r);
    uint64_t then = drafted(b);
    run(b);
    assert_true(then > 10);
    assert_int_equal(drafted(b), then);
    assert_int_equal(accepted(b), 0);
    uint64_t before = drafted(b);
    q = rig_generate(2, 4, 60); /* another request begins anew */
    send_both(plain, b, 0, &q);
    run(b);
    assert_true(drafted(b) > before);
    expect_all_same(plain, b);
}

/* Prompts of all lengths: drafts begin and end anywhere in a block. */
static void over_block_borders(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < SCRIPTS; i++) {
        struct bench *plain, *b;
        open_both(&plain, &b, scripts[i]);
        for (uint32_t n = 1; n <= 40; n++) {
            struct llm_sqe q = rig_generate(n, n, 70);
            q.flags = LLM_SQE_LOGPROBS;
            send_both(plain, b, n % RIG_CLIENTS, &q);
            run(plain);
            run(b); /* what it leaves in the cache is what the next one finds */
        }
        expect_all_same(plain, b);
    }
}

/* No row is computed that could bring no token. */
static void at_max_tokens(void **state)
{
    (void)state;
    struct bench *plain, *b;
    open_both(&plain, &b, script_loop);
    for (uint32_t n = 1; n <= 60; n++) {
        struct llm_sqe q = rig_generate(n, 20, n);
        send_both(plain, b, 0, &q);
        run(plain);
        run(b);
    }
    expect_all_same(plain, b);
}

static void at_the_context_end(void **state)
{
    (void)state;
    for (uint32_t length = 60; length < 80; length++) {
        struct bench *plain = bench_made(false), *b = bench_made(true);
        plain->r.config.max_model_len = b->r.config.max_model_len = length;
        script_loop(plain);
        script_loop(b);
        bench_open(plain);
        bench_open(b);
        struct llm_sqe q = rig_generate(1, 20, length - 20);
        send_both(plain, b, 0, &q);
        expect_all_same(plain, b);
    }
}

/* ---- ends ---- */

/* The end token stands in the prompt, so that it comes in a draft, and something behind it. */
static void end_tokens_in_drafts(void **state)
{
    (void)state;
    for (uint32_t at = 1; at < 30; at++) {
        struct bench *plain, *b;
        open_both(&plain, &b, script_loop);
        plain->script[at] = b->script[at] = STOP_TOKEN;
        struct llm_sqe q = rig_generate(1, 20, 60);
        int32_t prompt[3 * SCRIPT];
        q.tokens_len = at + 30;
        memcpy(prompt, b->script, (at + 30) * sizeof *prompt);
        assert_true(rig_submit(&plain->r, 0, &q, prompt));
        assert_true(rig_submit(&b->r, 0, &q, prompt));
        run(b);
        assert_int_equal(rig_stream(&b->r, 0, 1, 0)->n, at + 1);
        assert_int_equal(rig_stream(&b->r, 0, 1, 0)->final.finish, LLM_FINISH_STOP);
        q.user_data = 2;
        q.flags = LLM_SQE_IGNORE_EOS;
        assert_true(rig_submit(&plain->r, 0, &q, prompt));
        assert_true(rig_submit(&b->r, 0, &q, prompt));
        run(b);
        assert_true(accepted(b) > 10);
        expect_all_same(plain, b);
    }
}

static uint32_t write_options(struct rig *r, const char *stop, uint32_t top)
{
    uint8_t *at = r->options;
    *at++ = 0x82;
    memcpy(at, "\xa4stop\x91", 6), at += 6;
    *at++ = (uint8_t)(0xa0 | strlen(stop));
    memcpy(at, stop, strlen(stop)), at += strlen(stop);
    memcpy(at, "\xactop_logprobs", 13), at += 13;
    *at++ = (uint8_t)top;
    return (uint32_t)(at - r->options);
}

static void send_with_options(struct bench *b, struct llm_sqe q, const char *stop, uint32_t top)
{
    q.options_len = write_options(&b->r, stop, top);
    send(b, 0, &q);
    struct rig_stream *s = rig_stream(&b->r, 0, q.user_data, 0);
    s->n_top = top;
    s->logprobs = top > 0;
}

/* The tokens' text is efghijk efghijk ... (30 % 26 is the e). */
static void stop_strings_in_drafts(void **state)
{
    (void)state;
    static const char *const stops[] = {"hijkx", "k!", "jZe", "gh", "xyz", "efghijkefgq"};
    for (uint32_t at = 1; at < 24; at++)
        for (uint32_t i = 0; i < sizeof stops / sizeof *stops; i++) {
            struct bench *plain, *b;
            open_both(&plain, &b, script_loop);
            plain->script[at] = b->script[at] = 'x' - 'a';
            struct llm_sqe q = rig_generate(1, 35, 50);
            for (uint32_t top = 0; top < 3; top += 2) {
                q.user_data = 1 + top;
                send_with_options(plain, q, stops[i], top);
                send_with_options(b, q, stops[i], top);
                run(plain);
                run(b);
            }
            expect_all_same(plain, b);
        }
}

/* Nobody reads: it ends where it would have, before the window of candidates is overwritten. */
static void candidates_unread(void **state)
{
    (void)state;
    struct bench *plain = bench_made(false), *b = bench_made(true);
    plain->r.config.max_model_len = b->r.config.max_model_len = 2000;
    script_loop(plain);
    script_loop(b);
    bench_open(plain);
    bench_open(b);
    plain->r.room[0] = b->r.room[0] = 3;
    struct llm_sqe q = rig_generate(1, 2 * LOOP, 1500);
    send_with_options(plain, q, "zz", 4);
    send_with_options(b, q, "zz", 4);
    run(plain);
    run(b);
    assert_int_equal(rig_stream(&b->r, 0, 1, 0)->final.status, LLM_EUNREAD);
    assert_int_equal(rig_figure(&b->r.board->output_tokens),
                     rig_figure(&plain->r.board->output_tokens));
    expect_all_same(plain, b);
}

/* Somebody reads at last, with the window nearly full: nothing of it was overwritten by a draft (the
 * rig looks at all candidates), and the one that does not read ends at the token where it would. */
static void candidates_read_late(void **state)
{
    (void)state;
    for (uint32_t late = 1012; late < 1032; late++) {
        struct bench *b = bench_made(true);
        b->r.config.max_model_len = 2000;
        script_loop(b);
        bench_open(b);
        b->r.room[0] = 0;
        struct llm_sqe q = rig_generate(1, 2 * LOOP, 1100);
        send_with_options(b, q, "zz", 4);
        while (rig_figure(&b->r.board->output_tokens) < late && engine_has_work(b->r.engine))
            rig_step(&b->r);
        bool ended = rig_figure(&b->r.board->output_tokens) >= 1024;
        assert_true(!ended || rig_figure(&b->r.board->output_tokens) == 1024);
        b->r.room[0] = RIG_ROOM_ENDLESS;
        engine_deliver(b->r.engine, 0);
        run(b);
        const struct rig_stream *s = rig_stream(&b->r, 0, 1, 0);
        assert_int_equal(s->final.status, ended ? LLM_EUNREAD : 0);
        assert_int_equal(s->n, ended ? 0 : 1100);
        bench_close(b);
    }
}

/* ---- what else a request may want ---- */

/* The model's own draws, out of few tokens: the fake looks at the history behind each row. */
static void penalties_choices_seeds(void **state)
{
    (void)state;
    for (uint32_t vocab = 1; vocab <= 4; vocab++) {
        struct bench *b = bench_made(true);
        b->r.config.vocab = vocab;
        bench_open(b);
        b->r.gpu.draw = NULL;
        for (uint32_t i = 1; i <= 12; i++) {
            struct llm_sqe q = rig_generate(i, 3 * i, 80);
            q.flags = LLM_SQE_LOGPROBS;
            q.temperature = i % 2 ? 1.0f : 0.0f;
            q.repetition = i % 3 ? 1.5f : 1.0f;
            q.frequency = i % 4 ? 0.25f : 0.0f;
            q.choices = i % 5 ? 1 : 4;
            rig_send(&b->r, i % 3, &q);
        }
        run(b);
        for (uint32_t i = 0; i < b->r.n_streams; i++)
            rig_expect_stream(&b->r, &b->r.streams[i], true);
        assert_true(accepted(b) > 100 && (vocab == 1 || drafted(b) > accepted(b)));
        bench_close(b);
    }
}

/* A generation that is cancelled in its middle leaves its session what was delivered; then it goes on
 * from anywhere. The rig's book knows what each history must be. */
static void sessions_cut_and_continued(void **state)
{
    (void)state;
    struct bench *b = bench_made(true);
    b->r.config.vocab = 2;
    b->r.config.max_sessions = 4;
    bench_open(b);
    b->r.gpu.draw = NULL;
    struct llm_sqe q = rig_session_open(1, 9, 40);
    rig_send(&b->r, 0, &q);
    for (uint32_t i = 2; i < 80; i += 2) {
        const struct rig_session *session = rig_session(&b->r, 0, 9);
        uint64_t keep = session->n > 300 ? 45 : session->n - i % 9;
        q = rig_continue(i, 9, keep, i % 3, 40);
        q.flags = LLM_SQE_LOGPROBS;
        rig_send(&b->r, 0, &q);
        for (uint32_t steps = 0; steps < i % 7 + 1; steps++)
            rig_step(&b->r);
        q = i % 4 ? rig_cancel(i + 1, i) : rig_append(i + 1, 9, keep + i % 3, 2);
        q.flags = q.op == LLM_OP_CANCEL ? 0 : LLM_SQE_INTERRUPT;
        rig_send(&b->r, 0, &q);
        run(b);
    }
    for (uint32_t i = 0; i < b->r.n_streams; i++)
        if (b->r.streams[i].op == LLM_OP_GENERATE)
            rig_expect_stream(&b->r, &b->r.streams[i], false);
    assert_true(accepted(b) > 80 && drafted(b) > accepted(b));
    bench_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(always_right),
        cmocka_unit_test(never_right),
        cmocka_unit_test(over_block_borders),
        cmocka_unit_test(at_max_tokens),
        cmocka_unit_test(at_the_context_end),
        cmocka_unit_test(end_tokens_in_drafts),
        cmocka_unit_test(stop_strings_in_drafts),
        cmocka_unit_test(candidates_unread),
        cmocka_unit_test(candidates_read_late),
        cmocka_unit_test(penalties_choices_seeds),
        cmocka_unit_test(sessions_cut_and_continued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
