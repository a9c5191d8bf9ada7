/* engine_book.c - see engine_rig.h: what the histories are, and what should have come. */
#include "engine_rig.h"

#include <stdlib.h>
#include <string.h>

/* ---- sessions ---- */

struct rig_session *rig_session(struct rig *r, uint32_t domain, uint64_t key)
{
    for (uint32_t i = 0; i < RIG_SESSIONS; i++) {
        struct rig_session *session = &r->sessions[i];
        if (session->open && session->domain == domain && session->key == key)
            return session;
    }
    return NULL;
}

static struct rig_session *new_session(struct rig *r, uint32_t domain, uint64_t key)
{
    assert_null(rig_session(r, domain, key));
    for (uint32_t i = 0; i < RIG_SESSIONS; i++)
        if (!r->sessions[i].open) {
            r->sessions[i].open = true;
            r->sessions[i].domain = domain;
            r->sessions[i].key = key;
            r->sessions[i].n = 0;
            return &r->sessions[i];
        }
    fail_msg("more than %d sessions", RIG_SESSIONS);
    return NULL;
}

static void edit(struct rig_session *session, const struct llm_sqe *q, const int32_t *tokens)
{
    uint64_t keep = q->target == LLM_SESSION_ALL ? session->n : q->target;
    assert_true(keep <= session->n && keep + q->tokens_len <= RIG_TOKENS);
    if (q->tokens_len)
        memcpy(session->tokens + keep, tokens, q->tokens_len * sizeof *tokens);
    session->n = (uint32_t)keep + q->tokens_len;
}

void rig_book_end(struct rig_stream *s)
{
    if (!s->session)
        return;
    assert_true(s->session->n + s->n <= RIG_TOKENS);
    memcpy(s->session->tokens + s->session->n, s->tokens, s->n * sizeof *s->tokens);
    s->session->n += s->n;
    s->session = NULL;
}

/* ---- entries ---- */

static void book_session_entry(struct rig *r, uint32_t client, const struct llm_sqe *q,
                               const int32_t *tokens)
{
    const struct rig_stream *s = rig_stream(r, client, q->user_data, 0);
    uint32_t domain = r->domain[client], has;
    assert_int_equal(s->finals, 1); /* answered at once */
    if (s->final.status)
        return;
    struct rig_session *to, *session = rig_session(r, domain, q->session);
    if (q->op == LLM_OP_SESSION_OPEN)
        session = new_session(r, domain, q->session);
    assert_non_null(session);
    if (q->op == LLM_OP_SESSION_OPEN || q->op == LLM_OP_SESSION_APPEND)
        edit(session, q, tokens);
    has = session->n;
    if (q->op == LLM_OP_SESSION_FORK) {
        to = new_session(r, domain, q->target);
        to->n = has;
        memcpy(to->tokens, session->tokens, has * sizeof *to->tokens);
    } else if (q->op == LLM_OP_SESSION_CLOSE)
        session->open = false;
    assert_int_equal(s->final.position, has);
}

static void know(struct rig_stream *s, const int32_t *tokens, uint32_t n)
{
    assert_true(s->n_known + n <= RIG_TOKENS);
    if (n)
        memcpy(s->known + s->n_known, tokens, n * sizeof *tokens);
    s->n_known += n;
}

static void book_request(struct rig *r, struct rig_stream *s, const int32_t *tokens)
{
    if (s->final.status)
        return;
    if (s->q.session) {
        s->session = rig_session(r, r->domain[s->client], s->q.session);
        assert_non_null(s->session);
        edit(s->session, &s->q, tokens);
        know(s, s->session->tokens, s->session->n);
        return;
    }
    know(s, tokens, s->q.tokens_len);
    if (s->op == LLM_OP_CHOOSE) {
        int32_t label[RIG_TOKENS];
        know(s, label, rig_label(r, s->user_data, s->choice, label));
    }
}

void rig_book_entry(struct rig *r, uint32_t client, const struct llm_sqe *q, const int32_t *tokens)
{
    if (q->op >= LLM_OP_SESSION_OPEN && q->op <= LLM_OP_SESSION_CLOSE) {
        book_session_entry(r, client, q, tokens);
        return;
    }
    if (q->op != LLM_OP_GENERATE && q->op != LLM_OP_SCORE && q->op != LLM_OP_CHOOSE)
        return;
    for (uint32_t i = 0; i < engine_finals(q); i++)
        book_request(r, rig_stream(r, client, q->user_data, rig_choice(q, i)), tokens);
}

/* ---- what should have come ---- */

struct expectation {
    uint32_t n;     /* tokens that it brings, if it comes to its end */
    uint32_t drawn; /* of which the last ones may be those of a stop string */
    uint32_t stop, stop_cut;
    enum llm_finish finish;
    int32_t tokens[RIG_TOKENS];
    float logprob[RIG_TOKENS];
};

static uint64_t hash_known(const struct rig_stream *s, uint32_t n)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < n; i++)
        hash = fake_model_add(hash, s->known[i]);
    return hash;
}

/* Of the known tokens from `first` on. */
static void expect_scores(const struct rig_stream *s, uint32_t first, struct expectation *x)
{
    uint64_t hash = hash_known(s, first);
    for (uint32_t i = first; i < s->n_known; i++) {
        x->tokens[i - first] = s->known[i];
        x->logprob[i - first] = fake_model_logprob_of(hash, s->known[i]);
        hash = fake_model_add(hash, s->known[i]);
    }
    x->n = x->drawn = s->n_known - first;
    x->finish = LLM_FINISH_LENGTH;
}

static bool ends(const struct rig *r, const struct rig_stream *s, int32_t token)
{
    if (s->q.flags & LLM_SQE_IGNORE_EOS)
        return false;
    for (uint32_t i = 0; i < r->config.n_eog; i++)
        if (r->config.eog[i] == token)
            return true;
    return false;
}

/* The output so far, with what the entry brought. */
static bool stops(const struct rig *r, const struct rig_stream *s, struct expectation *x)
{
    int32_t output[2 * RIG_TOKENS];
    struct rig_stop stop;
    memcpy(output, s->known + s->n_known - s->first, s->first * sizeof *output);
    memcpy(output + s->first, x->tokens, x->drawn * sizeof *output);
    if (!rig_stops(r, &s->wish, output, s->first + x->drawn, s->first, &stop))
        return false;
    x->n = stop.deliver - s->first;
    x->stop = stop.which;
    x->stop_cut = stop.cut;
    return true;
}

static struct gpu_sampling sampling_of(const struct rig_stream *s)
{
    const struct llm_sqe *q = &s->q;
    return (struct gpu_sampling){.temperature = q->temperature,
                                 .seed = q->seed,
                                 .choice = s->choice,
                                 .repetition = q->repetition,
                                 .presence = q->presence,
                                 .frequency = q->frequency,
                                 .biases = s->wish.biases,
                                 .n_biases = s->wish.n_biases};
}

static void expect_tokens(const struct rig *r, const struct rig_stream *s, struct expectation *x)
{
    struct gpu_sampling sampling = sampling_of(s);
    uint64_t hash = hash_known(s, s->n_known);
    bool stop = stops(r, s, x), over = s->first && ends(r, s, s->known[s->n_known - 1]);
    while (!stop && !over && s->first + x->drawn < s->q.max_tokens) {
        uint64_t from = fake_model_penalize(hash, &sampling, s->n_known - s->first);
        int32_t token = fake_model_draw(from, &sampling, s->n_known + x->drawn, r->config.vocab);
        x->tokens[x->drawn] = token;
        x->logprob[x->drawn] = fake_model_logprob_of(hash, token);
        hash = fake_model_add(hash, token);
        x->n = ++x->drawn;
        stop = stops(r, s, x);
        over = ends(r, s, token);
    }
    x->finish = stop || over ? LLM_FINISH_STOP : LLM_FINISH_LENGTH;
}

static void expect_beginning(const struct rig_stream *s, const struct expectation *x)
{
    assert_true(s->n <= x->drawn);
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

static void expect_counts(const struct rig_stream *s, const struct expectation *x)
{
    uint32_t prompt = s->op == LLM_OP_GENERATE ? s->n_known - s->first : s->q.tokens_len;
    assert_int_equal(s->result.prompt_tokens, prompt);
    assert_int_equal(s->result.output_tokens, s->op == LLM_OP_SCORE ? 0 : s->first + x->n);
    assert_true(s->result.cached_tokens <= prompt && s->result.cached_tokens < s->n_known);
}

void rig_expect_stream(const struct rig *r, const struct rig_stream *s, bool whole)
{
    static struct expectation x;
    x.n = x.drawn = x.stop = x.stop_cut = 0;
    if (s->op == LLM_OP_SCORE)
        expect_scores(s, 1, &x);
    else if (s->op == LLM_OP_CHOOSE)
        expect_scores(s, s->q.tokens_len, &x);
    else
        expect_tokens(r, s, &x);
    expect_beginning(s, &x);
    if (!whole)
        return;
    assert_int_equal(s->n, x.n);
    assert_int_equal(s->finals, 1);
    assert_int_equal(s->final.type, LLM_CQE_DONE);
    assert_int_equal(s->final.status, 0);
    assert_int_equal(s->final.finish, x.finish);
    assert_int_equal(s->result.stop, x.stop);
    assert_int_equal(s->result.stop_cut, x.stop_cut);
    expect_counts(s, &x);
    if (x.n)
        expect_times(s);
}

static const struct rig_stream *choice_of(struct rig *r, uint32_t client, const struct llm_sqe *q,
                                          uint32_t i)
{
    return rig_stream(r, client, q->user_data, rig_choice(q, i));
}

void rig_expect_whole(struct rig *r, uint32_t client, const struct llm_sqe *q)
{
    for (uint32_t i = 0; i < engine_finals(q); i++)
        rig_expect_stream(r, choice_of(r, client, q, i), true);
}

void rig_expect_prefix(struct rig *r, uint32_t client, const struct llm_sqe *q)
{
    for (uint32_t i = 0; i < engine_finals(q); i++)
        if (choice_of(r, client, q, i)->n)
            rig_expect_stream(r, choice_of(r, client, q, i), false);
}

void rig_expect_done(struct rig *r, uint32_t client, const struct llm_sqe *q)
{
    const struct rig_stream *s = rig_stream(r, client, q->user_data, 0);
    assert_int_equal(s->finals, 1);
    assert_int_equal(s->final.status, 0);
    assert_int_equal(s->final.type, LLM_CQE_DONE);
}

void rig_expect_refused(struct rig *r, uint32_t client, const struct llm_sqe *q, int32_t code,
                        uint32_t fits)
{
    for (uint32_t i = 0; i < engine_finals(q); i++) {
        const struct rig_stream *s = choice_of(r, client, q, i);
        assert_int_equal(s->finals, 1);
        assert_int_equal(s->puts, 1);
        assert_int_equal(s->final.type, LLM_CQE_ERROR);
        assert_int_equal(s->final.status, code);
        assert_int_equal(s->final.finish, LLM_FINISH_REFUSED);
        assert_int_equal(s->final.position, fits);
    }
}
