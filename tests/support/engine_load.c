/* engine_load.c - see engine_load.h */
#include "engine_load.h"

#include <string.h>

enum { FAMILIES = 3, KEYS = 5, LOOP_MAX = 200000 };

uint32_t load_below(struct load *k, uint32_t n)
{
    k->random ^= k->random << 13;
    k->random ^= k->random >> 7;
    k->random ^= k->random << 17;
    return (uint32_t)((k->random >> 16) % n);
}

static uint32_t one_of(struct load *k, const uint32_t *values, uint32_t n)
{
    return values[load_below(k, n)];
}

static bool once_in(struct load *k, uint32_t n)
{
    return load_below(k, n) == 0;
}

/* ---- limits ---- */

static void random_steps(struct load *k)
{
    static const uint32_t chunks[] = {0, 1, 5, 16, 64}, budgets[] = {1, 2, 7, 16, 64, 300},
                          places[] = {1, 2, 5, 16, 64}, blocks[] = {9, 12, 16, 30, 60, 300},
                          gaps[] = {0, 0, 1, 30, 60}, lengths[] = {0, 0, 1, 40, 120};
    struct engine_config *c = &k->r.config;
    c->prefill_chunk = one_of(k, chunks, 5);
    c->max_num_batched_tokens = one_of(k, budgets, 6);
    c->max_num_seqs = one_of(k, places, 5);
    c->n_blocks = one_of(k, blocks, 6);
    c->max_itl_us = one_of(k, gaps, 5);
    c->max_step_us = one_of(k, lengths, 5);
}

static void random_limits(struct load *k)
{
    static const uint32_t requests[] = {8, 20, 100}, sessions[] = {1, 4, 12};
    struct engine_config *c = &k->r.config;
    c->max_requests = one_of(k, requests, 3);
    c->max_sessions = one_of(k, sessions, 3);
    c->prefix_cache = !once_in(k, 3);
    c->policy = once_in(k, 6) ? ENGINE_FIRST_COME : ENGINE_FAIR;
    if (once_in(k, 4))
        c->quota.kv_blocks = 8 + load_below(k, 12);
    if (once_in(k, 5))
        c->quota.requests = 3 + load_below(k, 10);
    if (once_in(k, 5))
        c->max_waiting = 3 + load_below(k, 10);
    if (once_in(k, 6))
        c->max_unread = 20;
    if (once_in(k, 4))
        c->session_idle_ms = 1;
    if (once_in(k, 3))
        c->max_model_len = 40 + load_below(k, 473);
    if (once_in(k, 6))
        c->quota.pinned_blocks = 1 + load_below(k, 6);
    if (once_in(k, 12))
        c->max_waiting_tokens = 50 + load_below(k, 200);
}

/* With few tokens in the vocabulary the fake's histories repeat, the more the fewer: drafts hold
 * always, often, seldom. */
static void random_speculation(struct load *k)
{
    static const uint32_t drafts[] = {0, 1, 3, 8, GPU_KV_BLOCK},
                          kinds[] = {97, 97, 1, 2, 3, 12, 2, 3};
    struct engine_config *c = &k->r.config;
    uint32_t min = 1 + load_below(k, 3);
    c->vocab = one_of(k, kinds, 8);
    c->speculation = (struct engine_speculation){.by_default = once_in(k, 2),
                                                 .max_tokens = one_of(k, drafts, 5),
                                                 .min_match = min,
                                                 .max_match = min + load_below(k, 6)};
}

/* Of few letters, so that stop strings come about; some tokens have no text. */
static void make_text(struct load *k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < LOAD_PIECES; i++) {
        for (uint32_t bytes = load_below(k, 4); bytes; bytes--)
            k->bytes[n++] = (char)('a' + load_below(k, 3));
        k->end[i] = n;
    }
    k->text = (struct token_text){LOAD_PIECES, k->bytes, k->end};
    k->r.config.text = &k->text;
}

void load_begin(struct load *k, uint64_t seed)
{
    memset(k, 0, sizeof *k);
    k->random = seed * 0x9e3779b97f4a7c15u + 1;
    rig_init(&k->r);
    random_steps(k);
    random_limits(k);
    uint32_t domains = 1 + load_below(k, 3);
    for (uint32_t i = 0; i < RIG_CLIENTS; i++)
        k->r.domain[i] = i % domains;
    random_speculation(k);
    for (uint32_t i = 0; i < RIG_CLIENTS; i++)
        k->r.top[i] = once_in(k, 4) ? 2 : LLM_TOP_MAX;
    make_text(k);
}

/* ---- entries ---- */

/* Beginnings are shared, so that there is something to be found in the cache. */
static void random_tokens(struct load *k, int32_t *tokens, uint32_t n)
{
    uint32_t shared = once_in(k, 3) ? 0 : load_below(k, n + 1);
    if (once_in(k, 3))
        shared = n;
    rig_prompt(&k->r, 1 + k->n, tokens, n);
    rig_prompt(&k->r, 1000 + load_below(k, FAMILIES), tokens, shared);
    if (once_in(k, 4)) /* the same blocks behind another beginning */
        rig_prompt(&k->r, 1000 + load_below(k, FAMILIES), tokens, n < 16 ? n : 16);
}

static uint32_t random_length(struct load *k)
{
    return 2 + load_below(k, once_in(k, 4) ? 110 : once_in(k, 30) ? 400 : 40);
}

static uint32_t random_output(struct load *k)
{
    return once_in(k, 8) ? 1 : 1 + load_below(k, once_in(k, 6) ? 300 : 40);
}

static struct llm_sqe random_generate(struct load *k, uint64_t id)
{
    struct llm_sqe q = rig_generate(id, random_length(k), random_output(k));
    q.choices = once_in(k, 4) ? (uint16_t)(1 + load_below(k, 6)) : 1;
    q.first_choice = once_in(k, 8) ? (uint16_t)load_below(k, 20) : 0;
    return q;
}

static void random_stops(struct load *k, struct rig_wish *w)
{
    w->n_stops = 1 + load_below(k, RIG_STOPS);
    for (uint32_t i = 0; i < w->n_stops; i++)
        for (uint32_t bytes = 1 + load_below(k, RIG_STOP_BYTES - 1); bytes; bytes--)
            w->stops[i][bytes - 1] = (char)('a' + load_below(k, 3));
}

/* One that is named twice now and then is a fault. */
static void random_biases(struct load *k, struct rig_wish *w)
{
    w->n_biases = 1 + load_below(k, RIG_BIASES);
    for (uint32_t i = 0; i < w->n_biases; i++) {
        uint32_t token = load_below(k, k->r.config.vocab);
        w->biases[i] = (struct gpu_bias){(int32_t)token, (float)load_below(k, 21) - 10};
    }
}

static void random_options(struct load *k, struct llm_sqe *q)
{
    struct rig_wish wish = {0};
    if (once_in(k, 3))
        random_stops(k, &wish);
    if (once_in(k, 5))
        random_biases(k, &wish);
    if (once_in(k, 5))
        wish.top = 1 + load_below(k, 5);
    q->options_len = rig_wish(&k->r, &wish);
}

/* A finished or running generation again, from somewhere in its middle. */
static struct llm_sqe random_resume(struct load *k, uint64_t id, int32_t *tokens)
{
    const struct rig_stream *s = NULL;
    for (int i = 0; !s && i < 16; i++) {
        s = &k->r.streams[load_below(k, k->r.n_streams)];
        if (s->op != LLM_OP_GENERATE || s->first || !s->n_known || !s->n)
            s = NULL;
    }
    if (!s)
        return random_generate(k, id);
    struct llm_sqe q = s->q;
    uint32_t n = load_below(k, s->n + 1);
    memcpy(tokens, s->known, s->n_known * sizeof *tokens);
    memcpy(tokens + s->n_known, s->tokens, n * sizeof *tokens);
    if (once_in(k, 4)) /* what somebody else drew: stop strings may be anywhere in it */
        rig_prompt(&k->r, 1 + k->n, tokens + s->n_known, n);
    q.user_data = id;
    q.session = q.target = 0;
    q.flags &= (uint8_t)~LLM_SQE_INTERRUPT;
    q.first_choice = (uint16_t)s->choice;
    q.choices = 1;
    q.output_from = s->n_known;
    q.tokens_len = s->n_known + n;
    q.options_len = rig_wish(&k->r, &s->wish);
    return q;
}

static void random_manner(struct load *k, struct llm_sqe *q)
{
    if (q->op == LLM_OP_GENERATE) {
        random_options(k, q);
        q->temperature = once_in(k, 2) ? 0.8f : 0.0f;
        q->flags |= (uint8_t)load_below(k, 4); /* IGNORE_EOS, LOGPROBS */
        q->max_itl_us = once_in(k, 8) ? 40 : 0;
        if (once_in(k, 3))
            q->flags |= once_in(k, 3) ? LLM_SQE_NO_SPECULATION : LLM_SQE_SPECULATE;
        if (once_in(k, 5)) {
            q->repetition = 1.25f;
            q->presence = 0.5f;
            q->frequency = once_in(k, 2) ? 0.25f : 0.0f;
        }
        if (once_in(k, 20))
            q->deadline_us = 1 + load_below(k, 5000);
    }
    q->priority = once_in(k, 3) ? (uint16_t)load_below(k, 3) : 0;
    if (once_in(k, 6))
        q->flags |= LLM_SQE_NO_CACHE;
    if (once_in(k, 30))
        q->timeout_ms = 1 + load_below(k, 3);
    if (once_in(k, 40))
        q->queue_timeout_ms = 1 + load_below(k, 3);
}

static uint64_t random_keep(struct load *k, uint32_t domain, uint64_t key)
{
    const struct rig_session *session = rig_session(&k->r, domain, key);
    if (!session || once_in(k, 2))
        return LLM_SESSION_ALL;
    if (once_in(k, 2)) /* the tail */
        return session->n > 5 ? session->n - 1 - load_below(k, 5) : session->n;
    return load_below(k, session->n + 2); /* one too far now and then */
}

static struct llm_sqe random_session(struct load *k, uint32_t client, uint64_t id)
{
    uint64_t key = 1 + load_below(k, KEYS);
    uint64_t keep = random_keep(k, k->r.domain[client], key);
    struct llm_sqe q;
    if (!rig_session(&k->r, k->r.domain[client], key) && !once_in(k, 5)) {
        q = rig_session_open(id, key, once_in(k, 5) ? 0 : random_length(k));
        q.flags = once_in(k, 6) ? LLM_SQE_PIN : 0;
        return q;
    }
    switch (load_below(k, 12)) {
    case 0:
        q = rig_fork(id, key, 1 + load_below(k, KEYS));
        break;
    case 1:
        q = rig_session_close(id, key);
        break;
    case 2:
    case 3:
    case 4:
        q = rig_append(id, key, keep, load_below(k, 12));
        break;
    default:
        q = rig_continue(id, key, keep, load_below(k, 12), random_output(k));
    }
    q.flags |= once_in(k, 3) && q.op != LLM_OP_SESSION_CLOSE ? LLM_SQE_INTERRUPT : 0;
    return q;
}

static struct llm_sqe random_entry(struct load *k, uint32_t client, int32_t *tokens)
{
    uint64_t id = k->n + 1;
    struct llm_sqe q;
    switch (load_below(k, 16)) {
    case 0:
        q = rig_score(id, random_length(k));
        break;
    case 1:
        q = rig_choose(id, random_length(k), 1 + load_below(k, 5));
        break;
    case 2:
        q = rig_cancel(id, id - load_below(k, id < 12 || once_in(k, 4) ? (uint32_t)id : 12));
        break;
    case 3:
        if (k->r.n_streams) {
            q = random_resume(k, id, tokens);
            if (q.output_from)
                return q;
            break;
        } /* fall through */
    case 4:
    case 5:
    case 6:
    case 7:
        q = random_generate(k, id);
        break;
    default:
        q = random_session(k, client, id);
    }
    random_tokens(k, tokens, q.tokens_len);
    if (q.op == LLM_OP_GENERATE || q.op == LLM_OP_SCORE || q.op == LLM_OP_CHOOSE)
        random_manner(k, &q);
    return q;
}

static void send_one(struct load *k, uint32_t client)
{
    int32_t tokens[RIG_TOKENS];
    if (k->r.gone[client] || k->r.n_streams + 8 > RIG_STREAMS)
        return;
    struct llm_sqe q = random_entry(k, client, tokens);
    k->n += rig_submit(&k->r, client, &q, tokens);
}

/* ---- events ---- */

/* The engine closes sessions that were not used: the book says so too. */
static void forget_expired(struct load *k)
{
    if (!k->r.config.session_idle_ms || !once_in(k, 20))
        return;
    uint64_t before = rig_figure(&k->r.board->sessions_expired);
    engine_tick(k->r.engine, k->r.clock_ns);
    if (rig_figure(&k->r.board->sessions_expired) == before)
        return;
    for (uint32_t i = 0; i < RIG_SESSIONS; i++) {
        struct rig_session *session = &k->r.sessions[i];
        if (!session->open)
            continue;
        session->open = rig_engine_has(&k->r, session->domain, session->key);
    }
}

static void step(struct load *k)
{
    int code = engine_step(k->r.engine);
    assert_true(code == 0 || k->may_fail);
    k->has_failed |= code < 0;
    if (code < 0) /* and will again: wherever forks, copies, sessions stand then */
        k->r.gpu.fail_wait_at = k->r.gpu.steps + 1 + load_below(k, 40);
    if (k->audited)
        rig_audit(&k->r);
}

static void random_event(struct load *k)
{
    uint32_t client = load_below(k, RIG_CLIENTS);
    switch (load_below(k, 12)) {
    case 0:
    case 1:
    case 2:
    case 3:
        send_one(k, client);
        break;
    case 4:
        k->r.room[client] = once_in(k, 3) ? load_below(k, 6) : RIG_ROOM_ENDLESS;
        break;
    case 5:
        if (!k->r.gone[client])
            engine_deliver(k->r.engine, client);
        break;
    case 6:
        if (client && !k->stays_here && once_in(k, 30)) /* client 0 stays */
            rig_drop(&k->r, client);
        break;
    default:
        step(k);
        forget_expired(k);
    }
    if (k->audited)
        rig_audit(&k->r);
}

static void settle(struct load *k)
{
    for (uint32_t i = 0; i < RIG_CLIENTS; i++)
        k->r.room[i] = RIG_ROOM_ENDLESS;
    for (uint32_t i = 0; engine_has_work(k->r.engine); i++) {
        assert_true(i < LOOP_MAX);
        step(k);
    }
    for (uint32_t i = 0; i < RIG_CLIENTS; i++) {
        if (!k->r.gone[i])
            engine_deliver(k->r.engine, i);
        assert_false(engine_holds(k->r.engine, i));
    }
}

/* The more a row takes beside a step, the less a draft pays. */
static void random_pace(struct load *k)
{
    static const uint32_t step_ns[] = {0, 1000, 10000, 10000, 300000},
                          row_ns[] = {0, 1, 100, 1000, 1000, 20000};
    k->r.gpu.step_ns = one_of(k, step_ns, 5);
    k->r.gpu.row_ns = one_of(k, row_ns, 6);
}

void load_run(struct load *k, uint32_t entries)
{
    random_pace(k);
    for (uint32_t i = 0; k->n < entries && i < LOOP_MAX; i++)
        random_event(k);
    if (k->shut_down)
        engine_shutdown(k->r.engine);
    settle(k);
    if (k->shut_down)
        rig_restart(&k->r);
}

/* ---- what came ---- */

bool load_refused(const struct rig_stream *s)
{
    return s->final.type == LLM_CQE_ERROR && s->final.finish == LLM_FINISH_REFUSED;
}

bool load_cut_short(const struct rig_stream *s)
{
    return s->final.type != LLM_CQE_DONE || s->final.finish == LLM_FINISH_CANCELLED ||
           s->final.finish == LLM_FINISH_TIMEOUT;
}

static bool has_output(const struct rig_stream *s)
{
    return s->op == LLM_OP_GENERATE || s->op == LLM_OP_SCORE || s->op == LLM_OP_CHOOSE;
}

static void check_stream(struct load *k, const struct rig_stream *s)
{
    bool gone = k->r.gone[s->client];
    assert_true(s->finals == 1 || (gone && !s->finals));
    if (s->final.status == LLM_ESHUTDOWN) {
        assert_true(k->shut_down && !s->n);
        return;
    }
    if (s->final.status == LLM_EENGINE)
        assert_true(k->has_failed);
    if (load_refused(s))
        assert_int_equal(s->n, 0);
    else if (has_output(s)) {
        bool whole = s->finals && !load_cut_short(s);
        rig_expect_stream(&k->r, s, whole);
        k->served += whole;
    }
}

void load_check(struct load *k)
{
    for (uint32_t i = 0; i < k->r.n_streams; i++)
        check_stream(k, &k->r.streams[i]);
}
