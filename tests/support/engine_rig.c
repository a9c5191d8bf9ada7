/* engine_rig.c - see engine_rig.h */
#include "engine_rig.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int32_t end_tokens[] = {5, 11};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the sink ---- */

static uint32_t sink_room(void *context, uint32_t client)
{
    struct rig *r = context;
    assert_true(client < RIG_CLIENTS && !r->gone[client]);
    return r->room[client];
}

static void take_tokens(struct rig *r, struct rig_stream *s, const struct llm_cqe *c)
{
    assert_true(r->room[s->client] > 0);
    if (r->room[s->client] != RIG_ROOM_ENDLESS)
        r->room[s->client]--;
    assert_in_range(c->count, 1, LLM_CQE_TOKENS_MAX);
    assert_int_equal(c->position, s->op == LLM_OP_SCORE ? s->n + 1 : s->n);
    assert_int_equal(c->flags, s->logprobs ? LLM_CQE_HAS_LOGPROBS : 0);
    assert_int_equal(c->status, 0);
    assert_int_equal(c->finish, 0);
    assert_true(s->n + c->count <= RIG_TOKENS);
    memcpy(s->tokens + s->n, c->tokens, c->count * sizeof *c->tokens);
    memcpy(s->logprob + s->n, c->logprobs, c->count * sizeof *c->logprobs);
    s->n += c->count;
}

static void take_final(struct rig_stream *s, const struct llm_cqe *c,
                       const struct llm_result *result)
{
    assert_non_null(result);
    assert_int_equal(result->numerics_id, 0x1234);
    s->finals++;
    s->final = *c;
    s->result = *result;
    if (c->type == LLM_CQE_ERROR)
        assert_true(c->status < 0);
    else
        assert_int_equal(c->position, s->n);
}

static void sink_put(void *context, uint32_t client, const struct llm_cqe *c,
                     const struct llm_result *result)
{
    struct rig *r = context;
    assert_true(client < RIG_CLIENTS && !r->gone[client]);
    struct rig_stream *s = rig_stream(r, client, c->user_data, c->choice);
    assert_int_equal(s->finals, 0); /* nothing comes after the final */
    s->puts++;
    r->puts++;
    r->last_put_of[client] = c->user_data;
    if (c->type == LLM_CQE_TOKENS)
        take_tokens(r, s, c);
    else
        take_final(s, c, result);
}

struct rig_stream *rig_stream(struct rig *r, uint32_t client, uint64_t user_data, uint32_t choice)
{
    for (uint32_t i = r->n_streams; i-- > 0;) {
        struct rig_stream *s = &r->streams[i];
        if (s->client == client && s->user_data == user_data && s->choice == choice)
            return s;
    }
    fail_msg("no stream of client %u, request %llu, choice %u", client,
             (unsigned long long)user_data, choice);
    return NULL;
}

/* ---- opening and closing ---- */

void rig_init(struct rig *r)
{
    *r = (struct rig){.config = {.max_model_len = 512,
                                 .max_num_seqs = 8,
                                 .max_num_batched_tokens = 64,
                                 .max_requests = 64,
                                 .n_blocks = 256,
                                 .vocab = 97,
                                 .eog = end_tokens,
                                 .n_eog = 2,
                                 .numerics_id = 0x1234}};
    for (uint32_t i = 0; i < RIG_CLIENTS; i++)
        r->room[i] = RIG_ROOM_ENDLESS;
}

void rig_open(struct rig *r)
{
    const struct engine_config *c = &r->config;
    fake_gpu_open(&r->gpu, c->vocab, c->n_blocks, c->max_num_batched_tokens, c->max_num_seqs,
                  c->max_num_batched_tokens);
    r->board = aligned_alloc(0x4000, LLM_BOARD_BYTES);
    r->streams = calloc(RIG_STREAMS, sizeof *r->streams);
    assert_true(r->board && r->streams);
    memset(r->board, 0, LLM_BOARD_BYTES);
    struct engine_sink sink = {.context = r, .token_room = sink_room, .put = sink_put};
    struct fail f = {0};
    if (engine_create(&r->engine, c, fake_gpu_ops(), fake_gpu_handle(&r->gpu), r->board, &sink, &f))
        fail_msg("engine_create: %s", f.text);
}

void rig_close(struct rig *r)
{
    if (!engine_has_work(r->engine)) {
        assert_int_equal(rig_figure(&r->board->kv_blocks_free), r->config.n_blocks);
        assert_int_equal(rig_figure(&r->board->running), 0);
        assert_int_equal(rig_figure(&r->board->waiting), 0);
    }
    engine_destroy(r->engine);
    fake_gpu_close(&r->gpu);
    free(r->board);
    free(r->streams);
}

/* ---- requests ---- */

struct llm_sqe rig_generate(uint64_t user_data, uint32_t n_prompt, uint32_t max_tokens)
{
    return (struct llm_sqe){.user_data = user_data,
                            .op = LLM_OP_GENERATE,
                            .tokens_len = n_prompt,
                            .max_tokens = max_tokens,
                            .choices = 1,
                            .seed = user_data * 77,
                            .top_p = 1.0f,
                            .repetition = 1.0f};
}

struct llm_sqe rig_score(uint64_t user_data, uint32_t n_prompt)
{
    return (struct llm_sqe){
        .user_data = user_data, .op = LLM_OP_SCORE, .tokens_len = n_prompt, .repetition = 1.0f};
}

struct llm_sqe rig_cancel(uint64_t user_data, uint64_t target)
{
    return (struct llm_sqe){.user_data = user_data, .op = LLM_OP_CANCEL, .target = target};
}

void rig_prompt(const struct rig *r, uint64_t seed, int32_t *tokens, uint32_t n)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 0x1234567;
    for (uint32_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        tokens[i] = (int32_t)(x % r->config.vocab);
    }
}

bool rig_submit(struct rig *r, uint32_t client, const struct llm_sqe *q, const int32_t *tokens)
{
    if (!engine_can_take(r->engine, q))
        return false;
    uint32_t finals = engine_finals(q);
    for (uint32_t i = 0; i < finals; i++) {
        assert_true(r->n_streams < RIG_STREAMS);
        r->streams[r->n_streams++] =
            (struct rig_stream){.client = client,
                                .choice = i,
                                .user_data = q->user_data,
                                .op = q->op,
                                .n_prompt = q->tokens_len,
                                .logprobs = q->flags & LLM_SQE_LOGPROBS || q->op == LLM_OP_SCORE};
    }
    bool prompt = q->op == LLM_OP_GENERATE || q->op == LLM_OP_SCORE;
    if (prompt && q->tokens_len && q->tokens_len <= r->config.max_model_len)
        memcpy(engine_token_buffer(r->engine), tokens, q->tokens_len * sizeof *tokens);
    engine_submit(r->engine, client, q, now_ns());
    return true;
}

void rig_send(struct rig *r, uint32_t client, const struct llm_sqe *q)
{
    int32_t tokens[RIG_TOKENS];
    rig_prompt(r, q->user_data, tokens, q->tokens_len <= RIG_TOKENS ? q->tokens_len : 0);
    assert_true(rig_submit(r, client, q, tokens));
}

void rig_step(struct rig *r)
{
    assert_int_equal(engine_step(r->engine), 0);
    assert_true(engine_running(r->engine) <= r->config.max_num_seqs);
}

void rig_run(struct rig *r)
{
    for (uint32_t i = 0; engine_has_work(r->engine); i++) {
        assert_true(i < 1000000);
        rig_step(r);
    }
}

void rig_drop(struct rig *r, uint32_t client)
{
    engine_drop_client(r->engine, client);
    assert_false(engine_holds(r->engine, client));
    r->gone[client] = true;
}

/* ---- what should have come ---- */

struct expectation {
    uint32_t n;
    enum llm_finish finish;
    int32_t tokens[RIG_TOKENS];
    float logprob[RIG_TOKENS];
};

static bool ends(int32_t token)
{
    return token == end_tokens[0] || token == end_tokens[1];
}

static void expect_scores(const struct rig *r, const struct llm_sqe *q, struct expectation *x)
{
    int32_t history[RIG_TOKENS];
    rig_prompt(r, q->user_data, history, q->tokens_len);
    for (uint32_t i = 1; i < q->tokens_len; i++) {
        x->tokens[i - 1] = history[i];
        x->logprob[i - 1] = fake_model_logprob(history, i, history[i]);
    }
    x->n = q->tokens_len - 1;
    x->finish = LLM_FINISH_LENGTH;
}

static void expect_tokens(const struct rig *r, const struct llm_sqe *q, uint32_t choice,
                          struct expectation *x)
{
    int32_t history[RIG_TOKENS];
    uint32_t n = q->tokens_len;
    struct gpu_sampling s = {.temperature = q->temperature, .seed = q->seed, .choice = choice};
    rig_prompt(r, q->user_data, history, n);
    for (x->n = 0; x->n < q->max_tokens; n++, x->n++) {
        history[n] = fake_model_next(history, n, &s, r->config.vocab);
        x->tokens[x->n] = history[n];
        x->logprob[x->n] = fake_model_logprob(history, n, history[n]);
        if (ends(history[n]) && !(q->flags & LLM_SQE_IGNORE_EOS)) {
            x->n++;
            x->finish = LLM_FINISH_STOP;
            return;
        }
    }
    x->finish = LLM_FINISH_LENGTH;
}

static void expect_beginning(const struct rig_stream *s, const struct expectation *x)
{
    assert_true(s->n <= x->n);
    for (uint32_t i = 0; i < s->n; i++) {
        assert_int_equal(s->tokens[i], x->tokens[i]);
        float logprob = s->logprobs ? x->logprob[i] : 0.0f;
        assert_memory_equal(&s->logprob[i], &logprob, sizeof logprob);
    }
}

static void expect_times(const struct rig_stream *s)
{
    const struct llm_result *t = &s->result;
    assert_true(t->t_arrival && t->t_arrival <= t->t_admit && t->t_admit <= t->t_first);
    assert_true(t->t_first <= t->t_last);
}

static void expect_stream(struct rig *r, uint32_t client, const struct llm_sqe *q, uint32_t choice,
                          bool whole)
{
    struct expectation x = {0};
    if (q->op == LLM_OP_SCORE)
        expect_scores(r, q, &x);
    else
        expect_tokens(r, q, choice, &x);
    const struct rig_stream *s = rig_stream(r, client, q->user_data, choice);
    expect_beginning(s, &x);
    if (!whole)
        return;
    assert_int_equal(s->n, x.n);
    assert_int_equal(s->finals, 1);
    assert_int_equal(s->final.type, LLM_CQE_DONE);
    assert_int_equal(s->final.status, 0);
    assert_int_equal(s->final.finish, x.finish);
    assert_int_equal(s->result.prompt_tokens, q->tokens_len);
    assert_int_equal(s->result.output_tokens, q->op == LLM_OP_SCORE ? 0 : x.n);
    expect_times(s);
}

void rig_expect_whole(struct rig *r, uint32_t client, const struct llm_sqe *q)
{
    for (uint32_t i = 0; i < engine_finals(q); i++)
        expect_stream(r, client, q, i, true);
}

void rig_expect_prefix(struct rig *r, uint32_t client, const struct llm_sqe *q)
{
    for (uint32_t i = 0; i < engine_finals(q); i++)
        expect_stream(r, client, q, i, false);
}

void rig_expect_refused(struct rig *r, uint32_t client, const struct llm_sqe *q, int32_t code,
                        uint32_t fits)
{
    for (uint32_t i = 0; i < engine_finals(q); i++) {
        const struct rig_stream *s = rig_stream(r, client, q->user_data, i);
        assert_int_equal(s->finals, 1);
        assert_int_equal(s->puts, 1);
        assert_int_equal(s->final.type, LLM_CQE_ERROR);
        assert_int_equal(s->final.status, code);
        assert_int_equal(s->final.finish, LLM_FINISH_REFUSED);
        assert_int_equal(s->final.position, fits);
    }
}
