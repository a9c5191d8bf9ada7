/* engine_rig.c - see engine_rig.h */
#include "engine_rig.h"

#include <stdlib.h>
#include <string.h>

static const int32_t end_tokens[] = {5, 11};

static uint64_t rig_clock(void *context)
{
    struct rig *r = context;
    r->clock_ns += r->ops ? 1000 : 0; /* the fake moves it by itself */
    return r->clock_ns;
}

/* ---- the sink ---- */

static uint32_t sink_room(void *context, uint32_t client)
{
    struct rig *r = context;
    assert_true(client <= RIG_CLIENTS && !r->gone[client]);
    return r->room[client];
}

static uint32_t sink_domain(void *context, uint32_t client)
{
    struct rig *r = context;
    assert_true(client <= RIG_CLIENTS);
    return r->domain[client];
}

static uint32_t sink_top(void *context, uint32_t client)
{
    const struct rig *r = context;
    return r->top[client];
}

static void sink_put_top(void *context, uint32_t client, const struct llm_candidate *top,
                         uint32_t n)
{
    struct rig *r = context;
    assert_true(!r->n_candidates && n && n <= r->top[client]);
    memcpy(r->candidates, top, n * sizeof *top);
    r->n_candidates = n;
}

static uint64_t digest(const struct llm_candidate *top, uint32_t n)
{
    uint64_t sum = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &top[i].logprob, sizeof bits);
        sum = fake_model_add(fake_model_add(sum, top[i].token), (int32_t)bits);
    }
    return sum;
}

/* They are those of the token that comes with them. */
static void take_candidates(struct rig *r, struct rig_stream *s, const struct llm_cqe *c)
{
    uint64_t hash = 0;
    assert_int_equal(r->n_candidates != 0, s->n_top != 0);
    if (!s->n_top)
        return;
    assert_int_equal(c->count, 1);
    s->candidates[s->n] = digest(r->candidates, r->n_candidates);
    if (r->ops) { /* what they are only that backend knows */
        r->n_candidates = 0;
        return;
    }
    assert_int_equal(r->n_candidates, s->n_top);
    for (uint32_t i = 0; i < s->n_known; i++)
        hash = fake_model_add(hash, s->known[i]);
    for (uint32_t i = 0; i < s->n; i++)
        hash = fake_model_add(hash, s->tokens[i]);
    assert_true(c->logprobs[0] == fake_model_logprob_of(hash, c->tokens[0]));
    for (uint32_t k = 0; k < s->n_top; k++) {
        struct gpu_candidate want = fake_model_candidate(hash, k, r->config.vocab);
        assert_memory_equal(&r->candidates[k], &want, sizeof want);
    }
    r->n_candidates = 0;
}

static void take_tokens(struct rig *r, struct rig_stream *s, const struct llm_cqe *c)
{
    assert_true(r->room[s->client] > 0);
    if (r->room[s->client] != RIG_ROOM_ENDLESS)
        r->room[s->client]--;
    assert_in_range(c->count, 1, LLM_CQE_TOKENS_MAX);
    assert_int_equal(c->position, s->op == LLM_OP_SCORE ? s->n + 1 : s->first + s->n);
    assert_int_equal(c->flags,
                     (s->logprobs ? LLM_CQE_HAS_LOGPROBS : 0) | (s->n_top ? LLM_CQE_HAS_TOP : 0));
    take_candidates(r, s, c);
    assert_int_equal(c->status, 0);
    assert_int_equal(c->finish, 0);
    assert_true(s->n_known + s->n + c->count <= RIG_TOKENS);
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
    else if (s->op < LLM_OP_SESSION_OPEN || s->op > LLM_OP_SESSION_CLOSE)
        assert_int_equal(c->position, s->first + s->n);
    rig_book_end(s);
}

/* Only of who has something that runs. */
static void sink_fetch(void *context, uint32_t client, uint32_t n)
{
    const struct rig *r = context;
    assert_true(client <= RIG_CLIENTS && !r->gone[client]);
    assert_true(n < engine_running(r->engine));
}

static void sink_put(void *context, uint32_t client, const struct llm_cqe *c,
                     const struct llm_result *result)
{
    struct rig *r = context;
    assert_true(client <= RIG_CLIENTS && !r->gone[client]);
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
    for (uint32_t i = 0; i <= RIG_CLIENTS; i++)
        r->room[i] = RIG_ROOM_ENDLESS;
    r->clock_ns = 1000000000;
}

/* A step of the fake takes 10 us, and 1 us a row. */
static void open_fake(struct rig *r)
{
    const struct engine_config *c = &r->config;
    fake_gpu_open(&r->gpu, c->vocab, c->n_blocks, c->max_num_batched_tokens, c->max_num_seqs,
                  c->max_num_batched_tokens);
    r->gpu.clock = &r->clock_ns;
    r->gpu.step_ns = 10000;
    r->gpu.row_ns = 1000;
}

void rig_open(struct rig *r)
{
    bool fake = !r->ops;
    r->config.clock = rig_clock;
    r->config.clock_context = r;
    open_fake(r);
    r->board = aligned_alloc(0x4000, LLM_BOARD_BYTES);
    r->streams = calloc(RIG_STREAMS, sizeof *r->streams);
    r->sessions = calloc(RIG_SESSIONS, sizeof *r->sessions);
    assert_true(r->board && r->streams && r->sessions);
    memset(r->board, 0, LLM_BOARD_BYTES);
    struct engine_sink sink = {.context = r,
                               .token_room = sink_room,
                               .put = sink_put,
                               .fetch = sink_fetch,
                               .top = sink_top,
                               .put_top = sink_put_top,
                               .domain = sink_domain};
    struct fail f = {0};
    if (engine_create(&r->engine, &r->config, fake ? fake_gpu_ops() : r->ops,
                      fake ? fake_gpu_handle(&r->gpu) : r->device, r->board, &sink, &f))
        fail_msg("engine_create: %s", f.text);
}

static void close_sessions(struct rig *r)
{
    for (uint32_t i = 0; i < RIG_SESSIONS; i++) {
        const struct rig_session *session = &r->sessions[i];
        if (!session->open)
            continue;
        struct llm_sqe q = rig_session_close(UINT64_MAX - i, session->key);
        r->domain[RIG_CLIENTS] = session->domain;
        rig_send(r, RIG_CLIENTS, &q);
        rig_expect_done(r, RIG_CLIENTS, &q);
    }
    rig_drop(r, RIG_CLIENTS);
}

void rig_close(struct rig *r)
{
    if (!engine_has_work(r->engine))
        close_sessions(r);
    if (!engine_has_work(r->engine)) {
        assert_int_equal(rig_figure(&r->board->kv_blocks_free), r->config.n_blocks);
        assert_int_equal(rig_figure(&r->board->running), 0);
        assert_int_equal(rig_figure(&r->board->waiting), 0);
    }
    engine_destroy(r->engine);
    fake_gpu_close(&r->gpu);
    free(r->board);
    free(r->streams);
    free(r->sessions);
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

static struct llm_sqe session_entry(uint64_t user_data, enum llm_op op, uint64_t key)
{
    return (struct llm_sqe){
        .user_data = user_data, .op = (uint8_t)op, .session = key, .repetition = 1.0f};
}

struct llm_sqe rig_session_open(uint64_t user_data, uint64_t key, uint32_t n_tokens)
{
    struct llm_sqe q = session_entry(user_data, LLM_OP_SESSION_OPEN, key);
    q.tokens_len = n_tokens;
    return q;
}

struct llm_sqe rig_append(uint64_t user_data, uint64_t key, uint64_t keep, uint32_t n_tokens)
{
    struct llm_sqe q = session_entry(user_data, LLM_OP_SESSION_APPEND, key);
    q.target = keep;
    q.tokens_len = n_tokens;
    return q;
}

struct llm_sqe rig_fork(uint64_t user_data, uint64_t key, uint64_t new_key)
{
    struct llm_sqe q = session_entry(user_data, LLM_OP_SESSION_FORK, key);
    q.target = new_key;
    return q;
}

struct llm_sqe rig_session_close(uint64_t user_data, uint64_t key)
{
    return session_entry(user_data, LLM_OP_SESSION_CLOSE, key);
}

struct llm_sqe rig_continue(uint64_t user_data, uint64_t key, uint64_t keep, uint32_t n_tokens,
                            uint32_t max_tokens)
{
    struct llm_sqe q = rig_generate(user_data, n_tokens, max_tokens);
    q.session = key;
    q.target = keep;
    return q;
}

struct llm_sqe rig_choose(uint64_t user_data, uint32_t n_prompt, uint32_t n_labels)
{
    return (struct llm_sqe){.user_data = user_data,
                            .op = LLM_OP_CHOOSE,
                            .tokens_len = n_prompt,
                            .choices = (uint16_t)n_labels,
                            .options_len = 1, /* the rig writes the map */
                            .repetition = 1.0f};
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

uint32_t rig_label(const struct rig *r, uint64_t user_data, uint32_t i, int32_t *tokens)
{
    uint32_t n = r->label_tokens ? r->label_tokens : 1 + (uint32_t)((user_data * 7 + i * 5) % 9);
    if (tokens)
        rig_prompt(r, user_data * 1000 + i, tokens, n);
    return n;
}

/* A msgpack map: {"labels": [bin, ...]}. Returns its bytes. */
static uint32_t write_labels(const struct rig *r, const struct llm_sqe *q, uint8_t *map)
{
    static const uint8_t head[] = {0x81, 0xa6, 'l', 'a', 'b', 'e', 'l', 's', 0xdc};
    uint32_t at = sizeof head + 2;
    memcpy(map, head, sizeof head);
    map[sizeof head] = (uint8_t)(q->choices >> 8);
    map[sizeof head + 1] = (uint8_t)q->choices;
    for (uint32_t i = 0; i < q->choices; i++) {
        int32_t tokens[RIG_TOKENS];
        uint32_t bytes = 4 * rig_label(r, q->user_data, i, tokens);
        map[at] = 0xc5; /* bin 16 */
        map[at + 1] = (uint8_t)(bytes >> 8);
        map[at + 2] = (uint8_t)bytes;
        memcpy(map + at + 3, tokens, bytes);
        at += 3 + bytes;
    }
    return at;
}

uint32_t rig_choice(const struct llm_sqe *q, uint32_t i)
{
    bool numbered =
        q->op == LLM_OP_GENERATE && q->first_choice + engine_finals(q) <= (uint32_t)LLM_CHOICES_MAX;
    return numbered ? q->first_choice + i : i;
}

static void add_streams(struct rig *r, uint32_t client, const struct llm_sqe *q)
{
    for (uint32_t i = 0; i < engine_finals(q); i++) {
        assert_true(r->n_streams < RIG_STREAMS);
        struct rig_stream *s = &r->streams[r->n_streams++];
        s->q = *q;
        s->client = client;
        s->choice = rig_choice(q, i);
        s->user_data = q->user_data;
        s->op = q->op;
        s->first =
            q->output_from && q->output_from <= q->tokens_len ? q->tokens_len - q->output_from : 0;
        if (q->op == LLM_OP_GENERATE && q->options_len)
            s->wish = r->wish;
        s->n_top = s->wish.top;
        s->logprobs = q->flags & LLM_SQE_LOGPROBS || q->op == LLM_OP_SCORE ||
                      q->op == LLM_OP_CHOOSE || s->n_top;
    }
}

bool rig_submit(struct rig *r, uint32_t client, const struct llm_sqe *q, const int32_t *tokens)
{
    struct llm_sqe copy = *q;
    if (!engine_can_take(r->engine, q))
        return false;
    add_streams(r, client, q);
    if (engine_carries_tokens(q) && q->tokens_len && q->tokens_len <= r->config.max_model_len)
        memcpy(engine_token_buffer(r->engine), tokens, q->tokens_len * sizeof *tokens);
    if (q->op == LLM_OP_CHOOSE && q->options_len == 1)
        copy.options_len = write_labels(r, q, engine_option_buffer(r->engine));
    if (q->op == LLM_OP_GENERATE && q->options_len <= sizeof r->options)
        memcpy(engine_option_buffer(r->engine), r->options, q->options_len);
    engine_submit(r->engine, client, &copy, r->clock_ns);
    engine_publish(r->engine);
    rig_book_entry(r, client, q, tokens);
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
    for (uint32_t i = 0; i < r->n_streams; i++)
        if (r->streams[i].client == client)
            rig_book_end(&r->streams[i]);
}
