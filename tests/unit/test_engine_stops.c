/* test_engine_stops.c - stop strings through the engine, against a simple definition of them: after
 * each token, what may be delivered, and where the generation ends. Texts of tokens and what the
 * model draws are the test's; the rig checks order, counts and histories.
 */
#include "../../appliance/token_text.h"
#include "../support/engine_rig.h"
#include "../support/support.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIRST = 20, /* token ids below have no text */
    PIECES = 77,
    SCRIPT = 60,
    SCRIPTS = 64,
    TEXT = 1024,
    PROMPT = 10
};

struct stop {
    char text[LLM_STOP_BYTES_MAX];
    uint32_t bytes;
};

struct bench {
    struct rig r;
    struct token_text text;
    char bytes[TEXT];
    uint32_t end[FIRST + PIECES];
    int32_t script[SCRIPTS][SCRIPT]; /* by seed and choice */
    struct stop stops[LLM_STOPS_MAX];
    uint32_t n_stops;
};

static int32_t draw(void *context, const struct gpu_output *o)
{
    const struct bench *b = context;
    return b->script[(o->sampling.seed + o->sampling.choice) % SCRIPTS]
                    [(o->n_history - o->n_prompt) % SCRIPT];
}

static void set_text(struct bench *b, uint32_t piece, const char *text, uint32_t bytes)
{
    uint32_t id = FIRST + piece, begin = piece ? b->end[id - 1] : 0;
    assert_true(begin + bytes <= TEXT);
    memcpy(b->bytes + begin, text, bytes);
    b->end[id] = begin + bytes;
}

static struct bench *bench_made(void)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    rig_init(&b->r);
    b->text = (struct token_text){FIRST + PIECES, b->bytes, b->end};
    b->r.config.text = &b->text;
    for (uint32_t i = 0; i <= RIG_CLIENTS; i++)
        b->r.top[i] = LLM_TOP_MAX;
    return b;
}

static void bench_open(struct bench *b)
{
    rig_open(&b->r);
    b->r.gpu.draw = draw;
    b->r.gpu.draw_context = b;
}

static void bench_close(struct bench *b)
{
    rig_audit(&b->r);
    rig_close(&b->r);
    free(b);
}

/* Ids may be used again. */
static void forget_streams(struct bench *b)
{
    memset(b->r.streams, 0, b->r.n_streams * sizeof *b->r.streams);
    b->r.n_streams = 0;
}

/* Into the rig's option map; returns its bytes. */
static uint32_t write_options(struct bench *b, uint32_t top)
{
    uint8_t *at = b->r.options;
    *at++ = 0x82;
    memcpy(at, "\xa4stop\xdc", 6), at += 6;
    *at++ = 0, *at++ = (uint8_t)b->n_stops;
    for (uint32_t i = 0; i < b->n_stops; i++) {
        *at++ = 0xc5, *at++ = (uint8_t)(b->stops[i].bytes >> 8), *at++ = (uint8_t)b->stops[i].bytes;
        memcpy(at, b->stops[i].text, b->stops[i].bytes), at += b->stops[i].bytes;
    }
    memcpy(at, "\xactop_logprobs", 13), at += 13;
    *at++ = (uint8_t)top;
    return (uint32_t)(at - b->r.options);
}

static void add_stop(struct bench *b, const char *text, uint32_t bytes)
{
    struct stop *s = &b->stops[b->n_stops++];
    memcpy(s->text, text, bytes);
    s->bytes = bytes;
}

/* ---- the definition ---- */

struct expected {
    uint32_t drawn;  /* tokens until it ended, or all of the script so far */
    uint32_t ready;  /* of these, that may be delivered */
    uint32_t finish; /* 0: it goes on */
    uint32_t stop, cut;
};

static const char *piece(const struct bench *b, int32_t token, uint32_t *bytes)
{
    return token_text_of(&b->text, token, bytes);
}

/* Which string ends the first n bytes: the longest. */
static uint32_t complete(const struct bench *b, const char *text, uint32_t n)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < b->n_stops; i++) {
        const struct stop *s = &b->stops[i];
        bool ends = s->bytes <= n && !memcmp(text + n - s->bytes, s->text, s->bytes);
        if (ends && (!found || s->bytes > b->stops[found - 1].bytes))
            found = i + 1;
    }
    return found;
}

/* Bytes at the end of the text that begin a string. */
static uint32_t pending(const struct bench *b, const char *text, uint32_t n)
{
    for (uint32_t k = n < LLM_STOP_BYTES_MAX ? n : LLM_STOP_BYTES_MAX; k; k--)
        for (uint32_t i = 0; i < b->n_stops; i++)
            if (k < b->stops[i].bytes && !memcmp(text + n - k, b->stops[i].text, k))
                return k;
    return 0;
}

/* Tokens in front of byte `upto`; with `inside`, also the one that it lies in. *end: their text. */
static uint32_t tokens_before(const struct bench *b, const int32_t *script, uint32_t n,
                              uint32_t upto, bool inside, uint32_t *end)
{
    uint32_t bytes, i = 0;
    for (*end = 0; i < n; i++, *end += bytes) {
        piece(b, script[i], &bytes);
        if (*end + bytes > upto && !(inside && *end < upto))
            break;
    }
    return i;
}

static struct expected expect(const struct bench *b, const int32_t *script, uint32_t drawn,
                              uint32_t max_tokens)
{
    char text[SCRIPT * 64];
    struct expected x = {0};
    uint32_t n = 0, bytes, end;
    while (x.drawn < drawn) {
        int32_t token = script[x.drawn++];
        const char *at = piece(b, token, &bytes);
        memcpy(text + n, at, bytes);
        for (uint32_t i = 0; i < bytes && !x.stop; i++)
            if ((x.stop = complete(b, text, n + i + 1))) {
                uint32_t begin = n + i + 1 - b->stops[x.stop - 1].bytes;
                x.ready = tokens_before(b, script, x.drawn, begin, true, &end);
                x.cut = end > begin ? end - begin : 0;
                x.finish = LLM_FINISH_STOP;
                return x;
            }
        n += bytes;
        bool over = token == 5 || token == 11;
        if (over || x.drawn == max_tokens) {
            x.finish = over ? LLM_FINISH_STOP : LLM_FINISH_LENGTH;
            x.ready = x.drawn;
            return x;
        }
    }
    x.ready = tokens_before(b, script, drawn, n - pending(b, text, n), false, &end);
    return x;
}

static const int32_t *script_of(const struct bench *b, const struct rig_stream *s)
{
    return b->script[(s->q.seed + s->choice) % SCRIPTS];
}

/* The stream is what the definition says, at its end. */
static void check_end(const struct bench *b, const struct rig_stream *s)
{
    const int32_t *script = script_of(b, s);
    struct expected x = expect(b, script, SCRIPT, s->q.max_tokens);
    assert_int_equal(s->finals, 1);
    assert_int_equal(s->final.status, 0);
    assert_int_equal(s->final.finish, x.finish);
    assert_int_equal(s->result.stop, x.stop);
    assert_int_equal(s->result.stop_cut, x.cut);
    assert_int_equal(s->result.output_tokens, x.ready > s->first ? x.ready : s->first);
    assert_int_equal(s->first + s->n, x.ready > s->first ? x.ready : s->first);
    for (uint32_t i = 0; i < s->n; i++)
        assert_int_equal(s->tokens[i], script[s->first + i]);
}

/* One request alone, each step looked at. */
static struct rig_stream *follow(struct bench *b, uint64_t id, uint32_t max_tokens, uint32_t top)
{
    struct llm_sqe q = rig_generate(id, PROMPT, max_tokens);
    q.options_len = write_options(b, top);
    rig_send(&b->r, 0, &q);
    struct rig_stream *s = rig_stream(&b->r, 0, id, 0);
    s->n_top = top, s->logprobs = top > 0;
    for (uint32_t drawn = 1; !s->finals; drawn++) {
        rig_step(&b->r);
        struct expected x = expect(b, script_of(b, s), drawn, max_tokens);
        assert_int_equal(s->n, x.ready);
        assert_int_equal(s->finals, x.finish != 0);
    }
    check_end(b, s);
    return s;
}

static void no_text_again(struct bench *b)
{
    memset(b->end, 0, sizeof b->end);
}

/* The text, cut where `cuts` has a bit, as the script of that seed; then an end token. */
static void cut_up(struct bench *b, uint64_t id, const char *text, uint32_t n, uint32_t cuts)
{
    int32_t *script = b->script[id * 77 % SCRIPTS];
    uint32_t pieces = 0, begin = 0;
    no_text_again(b);
    for (uint32_t i = 1; i <= n; i++)
        if (i == n || cuts >> (i - 1) & 1) {
            set_text(b, pieces, text + begin, i - begin);
            script[pieces] = (int32_t)(FIRST + pieces);
            begin = i;
            pieces++;
        }
    script[pieces] = 5;
}

static void every_split(void **state)
{
    (void)state;
    static const struct {
        const char *text, *stop;
    } cases[] = {{"so STOP more", "STOP"},
                 {"STOP", "STOP"},
                 {"aaaaab", "aaab"},
                 {"ababac xabac", "abac"},
                 {"h\xc3\xa9\xe2\x82\xac!x", "\xa9\xe2\x82"},
                 {"STO STOq STOP", "STOP"},
                 {"nothing STO", "STOP"},
                 {"x\n\nUser", "\n\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench *b = bench_made();
        uint32_t n = (uint32_t)strlen(cases[i].text), step = n > 9 ? 7 : 1;
        add_stop(b, cases[i].stop, (uint32_t)strlen(cases[i].stop));
        bench_open(b);
        for (uint32_t cuts = 0; cuts < 1u << (n - 1); cuts += step) {
            forget_streams(b);
            cut_up(b, cuts + 1, cases[i].text, n, cuts);
            follow(b, cuts + 1, 40, cuts % 3);
        }
        bench_close(b);
    }
}

/* ---- at random ---- */

static void random_texts(struct bench *b, struct rnd *r)
{
    no_text_again(b);
    for (uint32_t i = 0; i < PIECES; i++) {
        char text[4];
        uint32_t n = rnd_below(r, 5);
        for (uint32_t k = 0; k < n; k++)
            text[k] = rnd_below(r, 3) ? 'a' : 'b';
        set_text(b, i, text, n);
    }
    for (uint32_t i = 0; i < SCRIPTS; i++)
        for (uint32_t k = 0; k < SCRIPT; k++)
            b->script[i][k] = rnd_below(r, 60) ? (int32_t)(FIRST + rnd_below(r, PIECES)) : 11;
}

static void random_stops(struct bench *b, struct rnd *r, uint32_t least)
{
    uint32_t n = 1 + rnd_below(r, LLM_STOPS_MAX);
    b->n_stops = 0;
    for (uint32_t i = 0; i < n; i++) {
        char text[40];
        uint32_t bytes = least + rnd_below(r, i % 4 ? 30 : 6);
        for (uint32_t k = 0; k < bytes; k++)
            text[k] = rnd_below(r, 3) ? 'a' : 'b';
        add_stop(b, text, bytes);
    }
}

static void alone(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    struct rnd r = {1};
    bench_open(b);
    for (uint64_t id = 1; id < 600; id++) {
        forget_streams(b);
        random_texts(b, &r);
        random_stops(b, &r, 3);
        follow(b, id, 1 + rnd_below(&r, SCRIPT), rnd_below(&r, 5));
    }
    bench_close(b);
}

/* Many at once, of which some are preempted, with several choices, chunks, narrow rings. */
static void together(void **state)
{
    (void)state;
    struct rnd r = {2};
    uint64_t preempted = 0;
    for (int round = 0; round < 30; round++) {
        struct bench *b = bench_made();
        b->r.config.n_blocks = 16;
        b->r.config.prefill_chunk = 7;
        b->r.config.max_num_batched_tokens = 24;
        random_texts(b, &r);
        random_stops(b, &r, 6);
        bench_open(b);
        struct llm_sqe q[12];
        for (uint64_t i = 0; i < 12; i++) {
            q[i] = rig_generate(i + 1, 5 + rnd_below(&r, 60), 1 + rnd_below(&r, SCRIPT));
            q[i].choices = (uint16_t)(1 + rnd_below(&r, 3));
            q[i].temperature = 1;
            q[i].repetition = i % 2 ? 1.5f : 1.0f;
            uint32_t top = rnd_below(&r, 3);
            q[i].options_len = write_options(b, top);
            rig_send(&b->r, (uint32_t)i % 3, &q[i]);
            for (uint32_t c = 0; c < q[i].choices; c++) {
                struct rig_stream *s = rig_stream(&b->r, (uint32_t)i % 3, i + 1, c);
                s->n_top = top, s->logprobs = top > 0;
            }
        }
        while (engine_has_work(b->r.engine) || rig_figure(&b->r.board->running)) {
            uint32_t client = rnd_below(&r, 3);
            b->r.room[client] = rnd_below(&r, 4);
            rig_step(&b->r);
            engine_deliver(b->r.engine, client);
        }
        for (uint32_t client = 0; client < 3; client++) {
            b->r.room[client] = RIG_ROOM_ENDLESS;
            engine_deliver(b->r.engine, client);
        }
        for (uint32_t i = 0; i < b->r.n_streams; i++)
            check_end(b, &b->r.streams[i]);
        preempted += rig_figure(&b->r.board->preemptions);
        bench_close(b);
    }
    assert_true(preempted > 20);
}

/* Continued from any point that it may have been delivered up to: it ends the same. */
static void resumed(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    struct rnd r = {3};
    int32_t tokens[PROMPT + SCRIPT];
    bench_open(b);
    for (uint64_t id = 1; id < 120; id++) {
        forget_streams(b);
        random_texts(b, &r);
        random_stops(b, &r, 3);
        struct rig_stream *s = follow(b, id, SCRIPT, 0);
        for (uint32_t had = 1; had <= s->n; had++) {
            struct llm_sqe q = rig_generate(id + 1000 * had, PROMPT + had, SCRIPT);
            q.seed = s->q.seed;
            q.output_from = PROMPT;
            q.options_len = write_options(b, 0);
            rig_prompt(&b->r, id, tokens, PROMPT);
            memcpy(tokens + PROMPT, s->tokens, had * sizeof *tokens);
            assert_true(rig_submit(&b->r, 0, &q, tokens));
            rig_run(&b->r);
            struct rig_stream *again = rig_stream(&b->r, 0, q.user_data, 0);
            check_end(b, again);
            assert_int_equal(again->n, s->n - had);
        }
    }
    bench_close(b);
}

/* As many as there may be, as long as they may be: all alike but for their last byte. */
static void sixteen_long_ones(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    char text[LLM_STOP_BYTES_MAX];
    memset(text, 'a', sizeof text);
    for (int i = 0; i < LLM_STOPS_MAX; i++) {
        text[LLM_STOP_BYTES_MAX - 1] = (char)('b' + i);
        add_stop(b, text, LLM_STOP_BYTES_MAX);
    }
    no_text_again(b);
    for (uint32_t i = 0; i < PIECES; i++)
        set_text(b, i, i ? "aaaaaaa" : "g", i ? 7 : 1);
    for (uint32_t i = 0; i < SCRIPT; i++) /* 7 * 40 bytes, of which the first 25 are no part */
        b->script[77 % SCRIPTS][i] = i == 40 ? FIRST : FIRST + 1;
    bench_open(b);
    struct rig_stream *s = follow(b, 1, SCRIPT, 0);
    assert_int_equal(s->result.stop, 6);
    assert_int_equal(s->n, 4);
    assert_int_equal(s->result.stop_cut, 3);
    bench_close(b);
}

/* ---- other ends ---- */

/* "ab", then "ST": withheld. */
static struct rig_stream *withheld(struct bench *b, uint64_t id, uint32_t max_tokens)
{
    add_stop(b, "STOP", 4);
    cut_up(b, id, "abSTOP", 6, 1 << 1 | 1 << 3);
    bench_open(b);
    struct llm_sqe q = rig_generate(id, PROMPT, max_tokens);
    q.options_len = write_options(b, 0);
    rig_send(&b->r, 0, &q);
    rig_step(&b->r);
    if (max_tokens == 2)
        rig_run(&b->r);
    else
        rig_step(&b->r);
    return rig_stream(&b->r, 0, id, 0);
}

static void cancelled_while_withheld(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    struct rig_stream *s = withheld(b, 1, 40);
    assert_int_equal(s->n, 1);
    struct llm_sqe q = rig_cancel(2, 1);
    rig_send(&b->r, 0, &q);
    assert_int_equal(s->n, 2); /* nothing is withheld from an answer that is over */
    assert_int_equal(s->final.finish, LLM_FINISH_CANCELLED);
    assert_int_equal(s->result.stop + s->result.stop_cut, 0);
    bench_close(b);
}

static void max_tokens_while_withheld(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    struct rig_stream *s = withheld(b, 1, 2);
    assert_int_equal(s->n, 2);
    assert_int_equal(s->final.finish, LLM_FINISH_LENGTH);
    bench_close(b);
}

static void timeout_while_withheld(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.config.timeout_ms = 10;
    struct rig_stream *s = withheld(b, 1, 40);
    assert_int_equal(s->n, 1);
    b->r.clock_ns += 20000000;
    engine_tick(b->r.engine, b->r.clock_ns);
    assert_int_equal(s->n, 2);
    assert_int_equal(s->final.finish, LLM_FINISH_TIMEOUT);
    bench_close(b);
}

static void client_gone_while_withheld(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    withheld(b, 1, 40);
    rig_drop(&b->r, 0);
    rig_run(&b->r);
    bench_close(b);
}

/* The final of an answer without a token waits for nothing. */
static void at_the_very_start(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.room[0] = 0;
    add_stop(b, "STOP", 4);
    cut_up(b, 1, "STOP", 4, 0);
    bench_open(b);
    struct rig_stream *s = follow(b, 1, 40, 0);
    assert_int_equal(s->n, 0);
    assert_int_equal(s->result.stop, 1);
    assert_int_equal(s->result.t_first, 0);
    bench_close(b);
}

/* A session has what was delivered: what was drawn behind it is computed no more. */
static void in_a_session(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    struct rnd r = {4};
    b->r.config.max_sessions = 2;
    b->r.config.prefix_cache = true;
    bench_open(b);
    for (uint64_t key = 1; key < 40; key++) {
        forget_streams(b);
        random_texts(b, &r);
        random_stops(b, &r, 3);
        struct llm_sqe q = rig_session_open(1, key, 1 + rnd_below(&r, 40));
        rig_send(&b->r, 0, &q);
        for (uint64_t turn = 2; turn < 8; turn++) {
            q = rig_continue(turn, key, LLM_SESSION_ALL, rnd_below(&r, 9), 1 + rnd_below(&r, 30));
            q.seed = turn;
            q.options_len = write_options(b, 0);
            rig_send(&b->r, 0, &q);
            if (turn % 3) {
                rig_run(&b->r);
                check_end(b, rig_stream(&b->r, 0, turn, 0));
            } else {
                for (uint32_t i = rnd_below(&r, 20); i; i--)
                    rig_step(&b->r);
                q = rig_append(100 + turn, key, LLM_SESSION_ALL, 0);
                q.flags = LLM_SQE_INTERRUPT;
                rig_send(&b->r, 0, &q);
            }
        }
        rig_run(&b->r);
        rig_audit(&b->r);
        q = rig_session_close(200, key);
        rig_send(&b->r, 0, &q);
    }
    bench_close(b);
}

/* What would have interrupted it had strings of its own. */
static void a_refused_interruption_leaves_the_strings(void **state)
{
    (void)state;
    enum { KEY = 9 };
    struct bench *b = bench_made();
    b->r.config.max_sessions = 2;
    add_stop(b, "STOP", 4);
    cut_up(b, 2, "abSTOP", 6, 1 << 1 | 1 << 3);
    bench_open(b);
    struct llm_sqe q = rig_session_open(1, KEY, 40);
    rig_send(&b->r, 0, &q);
    rig_run(&b->r);
    q = rig_continue(2, KEY, LLM_SESSION_ALL, 0, 40);
    q.options_len = write_options(b, 0);
    rig_send(&b->r, 0, &q);
    rig_step(&b->r);
    memcpy(b->stops[0].text, "nope", 4);
    q = rig_continue(3, KEY, LLM_SESSION_ALL, 1, 40);
    q.options_len = write_options(b, 0);
    q.flags = LLM_SQE_INTERRUPT;
    q.deadline_us = 1;
    rig_send(&b->r, 0, &q);
    assert_int_equal(rig_stream(&b->r, 0, 3, 0)->final.status, LLM_EDEADLINE);
    memcpy(b->stops[0].text, "STOP", 4);
    rig_run(&b->r);
    check_end(b, rig_stream(&b->r, 0, 2, 0));
    assert_int_equal(rig_stream(&b->r, 0, 2, 0)->final.finish, LLM_FINISH_STOP);
    bench_close(b);
}

/* ---- refusals ---- */

static void refused(struct bench *b, const char *map, uint32_t bytes, int32_t code, uint32_t fits)
{
    static uint64_t id;
    struct llm_sqe q = rig_generate(++id, PROMPT, 5);
    q.choices = 2;
    q.options_len = bytes;
    memcpy(b->r.options, map, bytes);
    rig_send(&b->r, 0, &q);
    rig_expect_refused(&b->r, 0, &q, code, fits);
}

#define REFUSED(b, map, code, fits) refused((b), (map), sizeof(map) - 1, (code), (fits))

static void what_is_refused(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.config.text = NULL;
    b->r.top[0] = 4;
    bench_open(b);
    REFUSED(b, "\x81\xa4stop\x91\xa1x", LLM_ENOTEXT, 0);
    REFUSED(b, "\x81\xa6labels\x91\xc4\x04\0\0\0\0", LLM_EPARAM, 0);
    REFUSED(b, "\x81\xactop_logprobs\x05", LLM_EPARAM, 4);
    REFUSED(b, "\x81\xactop_logprobs\x15", LLM_EPARAM, 0);
    REFUSED(b, "\x81\xaalogit_bias\xc4\x08\x61\0\0\0\0\0\0\0", LLM_ETOKEN, 0);
    REFUSED(b, "\x81\xaalogit_bias\xc4\x08\xff\xff\xff\xff\0\0\0\0", LLM_ETOKEN, 0);
    REFUSED(b, "\x81\xaalogit_bias\xc4\x10\x60\0\0\0\0\0\0\0\x60\0\0\0\0\0\0\0", LLM_EPARAM, 0);
    REFUSED(b, "\x81\xaalogit_bias\xc4\x08\x07\0\0\0\0\0\0\x7f", LLM_EPARAM, 0);
    REFUSED(b, "\x81\xaalogit_bias", LLM_EPARAM, 0);
    assert_false(engine_has_work(b->r.engine));
    struct llm_sqe q = rig_generate(999, PROMPT, 5); /* the same token, in another request */
    static const char map[] = "\x81\xaalogit_bias\xc4\x10\x60\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0";
    q.options_len = sizeof map - 1;
    memcpy(b->r.options, map, sizeof map);
    rig_send(&b->r, 0, &q);
    rig_run(&b->r);
    assert_int_equal(rig_stream(&b->r, 0, 999, 0)->final.status, 0);
    bench_close(b);
}

/* What is in the map reaches the device, for each choice, and not the next request. */
static int32_t seen_biases(void *context, const struct gpu_output *o)
{
    uint32_t *seen = context;
    assert_true(o->sampling.n_biases == 0 || o->sampling.n_biases == 2);
    if (o->sampling.n_biases) {
        assert_true(o->sampling.biases[0].token == 96 && o->sampling.biases[0].bias == -100.0f);
        assert_true(o->sampling.biases[1].token == 7 && o->sampling.biases[1].bias == 1.5f);
        assert_true(o->sampling.presence == -2.0f && o->sampling.frequency == 0.25f);
    }
    seen[o->sampling.n_biases == 2]++;
    return 30;
}

static void biases_reach_the_device(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    uint32_t seen[2] = {0};
    bench_open(b);
    b->r.gpu.draw = seen_biases;
    b->r.gpu.draw_context = seen;
    static const char map[] =
        "\x81\xaalogit_bias\xc4\x10\x60\0\0\0\0\0\xc8\xc2\x07\0\0\0\0\0\xc0\x3f";
    struct llm_sqe q = rig_generate(1, PROMPT, 5);
    q.choices = 3, q.temperature = 1;
    q.presence = -2, q.frequency = 0.25f;
    q.options_len = sizeof map - 1;
    memcpy(b->r.options, map, sizeof map);
    rig_send(&b->r, 0, &q);
    q = rig_generate(2, PROMPT, 6);
    rig_send(&b->r, 0, &q);
    rig_run(&b->r);
    assert_int_equal(seen[1], 15);
    assert_int_equal(seen[0], 6);
    bench_close(b);
}

/* ---- penalties, candidates ---- */

/* The fake draws by what it is told, and checks the history itself: whatever is preempted, cut into
 * chunks or forked, the tokens are the same. */
static void penalties_whatever_the_schedule(void **state)
{
    (void)state;
    struct rnd rnd = {5};
    uint64_t preempted = 0;
    for (uint32_t round = 0; round < 12; round++) {
        struct rig r;
        rig_init(&r);
        r.config.n_blocks = 34;
        r.config.prefill_chunk = round % 3 ? 5 * round : 0;
        r.config.prefix_cache = round % 2;
        rig_open(&r);
        struct llm_sqe q[10];
        for (uint64_t i = 0; i < 10; i++) {
            q[i] = rig_generate(i + 1, 1 + rnd_below(&rnd, 90), 1 + rnd_below(&rnd, 60));
            q[i].flags = i % 2 ? LLM_SQE_LOGPROBS : 0;
            q[i].temperature = i % 3 ? 0.8f : 0;
            q[i].choices = (uint16_t)(1 + i % 2);
            q[i].repetition = i % 4 ? 1.2f : 1;
            q[i].presence = i % 5 ? -0.5f : 0;
            q[i].frequency = i % 3 ? 0 : 2;
            rig_send(&r, (uint32_t)i % 4, &q[i]);
        }
        rig_run(&r);
        for (uint64_t i = 0; i < 10; i++)
            rig_expect_whole(&r, (uint32_t)i % 4, &q[i]);
        preempted += rig_figure(&r.board->preemptions);
        rig_close(&r);
    }
    assert_true(preempted > 10);
}

/* A client that does not read: its candidates have no place for ever. */
static void candidates_unread(void **state)
{
    (void)state;
    struct bench *b = bench_made();
    b->r.config.max_model_len = 2000;
    bench_open(b);
    for (uint32_t i = 0; i < SCRIPT; i++)
        b->script[77 % SCRIPTS][i] = b->script[2 * 77 % SCRIPTS][i] = 30;
    b->r.room[0] = 3;
    struct llm_sqe q = rig_generate(1, PROMPT, 1500), other = rig_generate(2, PROMPT, 1500);
    q.options_len = write_options(b, 2);
    rig_send(&b->r, 0, &q);
    rig_send(&b->r, 1, &other);
    struct rig_stream *s = rig_stream(&b->r, 0, 1, 0);
    s->n_top = 2, s->logprobs = true;
    rig_run(&b->r);
    assert_int_equal(s->n, 3);
    assert_int_equal(s->final.status, LLM_EUNREAD);
    assert_int_equal(rig_stream(&b->r, 1, 2, 0)->n, 1500);
    bench_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split),
        cmocka_unit_test(alone),
        cmocka_unit_test(together),
        cmocka_unit_test(resumed),
        cmocka_unit_test(sixteen_long_ones),
        cmocka_unit_test(cancelled_while_withheld),
        cmocka_unit_test(max_tokens_while_withheld),
        cmocka_unit_test(timeout_while_withheld),
        cmocka_unit_test(client_gone_while_withheld),
        cmocka_unit_test(at_the_very_start),
        cmocka_unit_test(in_a_session),
        cmocka_unit_test(a_refused_interruption_leaves_the_strings),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(biases_reach_the_device),
        cmocka_unit_test(penalties_whatever_the_schedule),
        cmocka_unit_test(candidates_unread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
