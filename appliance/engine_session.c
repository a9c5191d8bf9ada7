/* engine_session.c - see engine_parts.h: open, append, replace, rewind, fork, close, and what is
 * generated on a session.
 *
 * An append is answered at once, with the session's new length; its rows are computed behind it. The
 * last token of the history is left out: whatever comes next begins with it. */
#include <assert.h>
#include <string.h>

#include "engine_parts.h"

struct edit { /* what an entry makes of a history */
    uint32_t keep, n_new, n_tokens;
    const int32_t *tokens; /* (n_new) in the memory of the free slot */
};

static void answer(struct engine *e, const struct engine_entry *in, uint32_t position)
{
    deliver_answer(&e->delivery, in->client, in->q, 0, 0, position, in->now_ns);
}

static void refuse(struct engine *e, const struct engine_entry *in, int32_t code, uint32_t fits)
{
    engine_refuse(e, in, (struct submission_verdict){code, fits});
}

static uint32_t longest(const struct engine *e)
{
    return submission_longest(&e->config);
}

/* ---- pins ---- */

/* Blocks that may still be pinned: one request of full length always finds its own beside them. */
static uint32_t pins_left(const struct engine *e, const struct domain *d)
{
    uint32_t pool = e->config.n_blocks - kv_blocks_for(longest(e) - 1);
    uint32_t all = e->schedule.pinned_blocks, mine = d ? d->pinned_blocks : 0;
    uint32_t quota = submission_pin_quota(&e->config);
    uint32_t left = pool > all ? pool - all : 0, quota_left = quota > mine ? quota - mine : 0;
    return left < quota_left ? left : quota_left;
}

static void count_pin(struct engine *e, struct session *session, uint32_t blocks)
{
    session->domain->pinned_blocks += blocks - session->pinned_blocks;
    e->schedule.pinned_blocks += blocks - session->pinned_blocks;
    session->pinned_blocks = blocks;
}

/* 0, or the blocks that would fit in *fits with LLM_EQUOTA. */
static int32_t may_pin(const struct engine *e, const struct domain *d, uint32_t has,
                       uint32_t n_tokens, uint32_t *fits)
{
    uint32_t limit = pins_left(e, d) + has;
    *fits = limit * GPU_KV_BLOCK;
    return kv_blocks_for(n_tokens) <= limit ? 0 : LLM_EQUOTA;
}

/* ---- a session's sequence ---- */

static bool generates(const struct sequence *s)
{
    return s->state != SEQUENCE_IDLE && s->op == LLM_OP_GENERATE;
}

/* Tokens that it has once it is idle: what is generated and was not put is no part of it. */
static uint32_t length_when_idle(const struct sequence *s)
{
    return generates(s) ? s->base + s->sent : s->n_tokens;
}

/* Out of whatever it does, idle. */
static void make_idle(struct engine *e, struct sequence *s, uint64_t now_ns)
{
    if (generates(s))
        engine_interrupt(e, s, now_ns);
    else if (s->state != SEQUENCE_IDLE)
        engine_end(e, s, 0, LLM_FINISH_CANCELLED, now_ns);
    assert(s->state == SEQUENCE_IDLE);
}

void engine_close_session(struct engine *e, struct session *session, uint64_t now_ns)
{
    struct sequence *s = session->sequence;
    make_idle(e, s, now_ns);
    count_pin(e, session, 0);
    schedule_release_blocks(&e->schedule, s);
    session_remove(&e->sessions, session);
    sequence_release(&e->table, s);
}

/* Attached to the client of the entry, as a new request over the history that it has now. */
static void begin(struct engine *e, struct sequence *s, const struct engine_entry *in)
{
    if (s->state == SEQUENCE_IDLE)
        sequence_attach(&e->table, s, in->client, engine_domain(e, in->client));
    engine_fill_sequence(s, e, in, 0);
}

/* Rows for what is new, behind the answer; idle where there are none. */
static void compute_behind(struct engine *e, struct sequence *s)
{
    if (sequence_inputs(s) > s->n_computed)
        schedule_enqueue(&e->schedule, s);
    else
        sequence_detach(&e->table, s);
}

/* What an append had still to compute goes on behind the entry that stopped it. */
static void go_on(struct engine *e, const struct engine_entry *in, struct sequence *s)
{
    const struct llm_sqe q = {.user_data = in->q->user_data,
                              .op = LLM_OP_SESSION_APPEND,
                              .tokens_len = s->n_brought,
                              .flags = s->flags & LLM_SQE_NO_CACHE,
                              .priority = in->q->priority};
    const struct engine_entry again = {in->client, &q, in->now_ns};
    begin(e, s, &again);
    compute_behind(e, s);
}

/* ---- open, fork, close ---- */

static int32_t may_open(const struct engine *e, const struct engine_entry *in, uint64_t key)
{
    const struct domain *d = domain_find(&e->table.domains, engine_domain(e, in->client));
    uint32_t quota = e->config.quota.sessions;
    if (session_find(&e->sessions, engine_domain(e, in->client), key))
        return LLM_ESESSION;
    if (quota && d && d->sessions >= quota)
        return LLM_EQUOTA;
    return e->sessions.n < e->sessions.max ? 0 : LLM_EBUSY;
}

static void open_session(struct engine *e, const struct engine_entry *in)
{
    const struct llm_sqe *q = in->q;
    uint32_t fits = 0;
    bool pin = q->flags & LLM_SQE_PIN;
    int32_t code = may_open(e, in, q->session);
    if (!code && pin)
        code = may_pin(e, domain_find(&e->table.domains, engine_domain(e, in->client)), 0,
                       q->tokens_len, &fits);
    if (code) {
        refuse(e, in, code, fits);
        return;
    }
    struct sequence *s = sequence_take(&e->table, in->client, engine_domain(e, in->client));
    s->n_tokens = q->tokens_len;
    begin(e, s, in);
    struct session *session = session_add(&e->sessions, s, q->session, in->now_ns);
    if (pin) {
        session->pinned = true;
        count_pin(e, session, kv_blocks_for(q->tokens_len));
    }
    answer(e, in, s->n_tokens);
    compute_behind(e, s);
}

static void fork_session(struct engine *e, const struct engine_entry *in, struct session *from)
{
    int32_t code = may_open(e, in, in->q->target);
    if (code) {
        refuse(e, in, code, 0);
        return;
    }
    struct sequence *old = from->sequence;
    bool appends = old->state != SEQUENCE_IDLE && !generates(old);
    make_idle(e, old, in->now_ns);
    struct sequence *s = sequence_take(&e->table, in->client, engine_domain(e, in->client));
    memcpy(s->tokens, old->tokens, old->n_tokens * sizeof *s->tokens);
    s->n_tokens = old->n_tokens;
    engine_fill_sequence(s, e, in, 0);
    struct session *fork = session_add(&e->sessions, s, in->q->target, in->now_ns);
    fork->no_cache = from->no_cache;
    fork->private_from = from->private_from;
    schedule_share(&e->schedule, s, old, old->n_computed);
    answer(e, in, s->n_tokens);
    sequence_detach(&e->table, s);
    if (appends)
        go_on(e, in, old);
}

/* ---- append and generate ---- */

static int32_t check_edit(const struct engine *e, const struct engine_entry *in,
                          const struct session *session, struct edit *edit, uint32_t *fits)
{
    const struct llm_sqe *q = in->q;
    uint32_t has = length_when_idle(session->sequence);
    uint32_t output = q->op == LLM_OP_GENERATE ? q->max_tokens : 0;
    *fits = has;
    if (q->target != LLM_SESSION_ALL && q->target > has)
        return LLM_EPARAM;
    edit->keep = q->target == LLM_SESSION_ALL ? has : (uint32_t)q->target;
    edit->n_new = q->tokens_len;
    edit->n_tokens = edit->keep + edit->n_new;
    *fits = 0;
    if (output && (!edit->n_tokens || session->pinned))
        return LLM_EPARAM;
    *fits = longest(e) > edit->keep + output ? longest(e) - edit->keep - output : 0;
    if ((uint64_t)edit->n_tokens + output > longest(e))
        return LLM_ETOOLONG;
    *fits = 0;
    return session->pinned
               ? may_pin(e, session->domain, session->pinned_blocks, edit->n_tokens, fits)
               : 0;
}

/* A token that is replaced by itself is the same. */
static uint32_t same_tokens(const struct sequence *s, const struct edit *edit)
{
    uint32_t same = edit->keep;
    while (same < s->n_tokens && same < edit->n_tokens &&
           s->tokens[same] == edit->tokens[same - edit->keep])
        same++;
    return same;
}

/* Tokens whose rows are not computed again: whatever comes begins with the last one. */
static uint32_t rows_kept(const struct sequence *s, const struct edit *edit, uint32_t same)
{
    if (same > s->n_computed)
        same = s->n_computed;
    return same && same == edit->n_tokens ? same - 1 : same;
}

/* The whole history as it would be, in the memory of the free slot. */
static int32_t *lay_out(struct engine *e, const struct sequence *s, struct edit *edit)
{
    int32_t *tokens = sequence_next_tokens(&e->table);
    memmove(tokens + edit->keep, edit->tokens, edit->n_new * sizeof *tokens);
    memcpy(tokens, s->tokens, edit->keep * sizeof *tokens);
    edit->tokens = tokens + edit->keep;
    return tokens;
}

/* Would its first token come in time? A refusal leaves the session as it was, so a copy is judged.
 */
static bool in_time(struct engine *e, const struct engine_entry *in, const struct session *session,
                    struct edit *edit, struct submission_verdict *v)
{
    struct sequence_owner newcomer = {.served = e->table.served};
    struct sequence_owner *o = sequence_owner(&e->table, in->client);
    struct sequence s = *session->sequence;
    if (!in->q->deadline_us)
        return true;
    s.n_tokens = length_when_idle(&s);
    s.owner = o ? o : &newcomer;
    s.order = e->table.arrivals;
    s.n_computed = rows_kept(&s, edit, same_tokens(&s, edit));
    if (s.n_hashed > s.n_computed / GPU_KV_BLOCK)
        s.n_hashed = s.n_computed / GPU_KV_BLOCK;
    s.tokens = lay_out(e, &s, edit);
    s.n_tokens = edit->n_tokens;
    sequence_borrow(&e->table, &s);
    engine_fill_sequence(&s, e, in, 0);
    return engine_in_time(e, &s, v);
}

/* Of a history of which the tokens from `keep` on are replaced. */
static void note_private(struct session *session, uint32_t keep, bool no_cache)
{
    if (keep <= session->private_from)
        session->private_from = no_cache ? keep : UINT32_MAX;
}

static void apply_edit(struct engine *e, const struct engine_entry *in, struct session *session,
                       const struct edit *edit)
{
    struct sequence *s = session->sequence;
    note_private(session, edit->keep, in->q->flags & LLM_SQE_NO_CACHE);
    uint32_t same = same_tokens(s, edit);
    schedule_cut(&e->schedule, s, rows_kept(s, edit, same));
    if (s->was_computed > same) /* what comes behind it is new */
        s->was_computed = same;
    memcpy(s->tokens + edit->keep, edit->tokens, edit->n_new * sizeof *edit->tokens);
    s->n_tokens = edit->n_tokens;
    if (session->pinned)
        count_pin(e, session, kv_blocks_for(s->n_tokens));
}

static void append(struct engine *e, const struct engine_entry *in, struct session *session)
{
    struct sequence *s = session->sequence;
    begin(e, s, in);
    answer(e, in, s->n_tokens);
    compute_behind(e, s);
}

static void generate(struct engine *e, const struct engine_entry *in, struct session *session)
{
    begin(e, session->sequence, in);
    engine_enqueue(e, session->sequence);
    STATS_ADD(&e->stats, requests, 1);
    STATS_ADD(&e->stats, prompt_tokens, in->q->tokens_len);
}

static void edit_session(struct engine *e, const struct engine_entry *in, struct session *session)
{
    struct edit edit = {.tokens = sequence_next_tokens(&e->table)};
    struct submission_verdict v = {0};
    bool answer_wanted = in->q->op == LLM_OP_GENERATE;
    v.code = check_edit(e, in, session, &edit, &v.fits);
    if (v.code || (answer_wanted && !in_time(e, in, session, &edit, &v))) {
        engine_refuse(e, in, v);
        return;
    }
    make_idle(e, session->sequence, in->now_ns);
    apply_edit(e, in, session, &edit);
    if (answer_wanted)
        generate(e, in, session);
    else
        append(e, in, session);
}

static void close_session(struct engine *e, const struct engine_entry *in, struct session *session)
{
    struct sequence *s = session->sequence;
    make_idle(e, s, in->now_ns);
    uint32_t had = s->n_tokens;
    engine_close_session(e, session, in->now_ns);
    answer(e, in, had);
}

/* A refusal leaves the session as it is, and what is generated on it. */
void engine_session_entry(struct engine *e, const struct engine_entry *in)
{
    const struct llm_sqe *q = in->q;
    if (q->op == LLM_OP_SESSION_OPEN) {
        open_session(e, in);
        return;
    }
    struct session *session = session_find(&e->sessions, engine_domain(e, in->client), q->session);
    if (!session) {
        refuse(e, in, LLM_ENOSESSION, 0);
        return;
    }
    session_touch(&e->sessions, session, in->now_ns);
    struct sequence *s = session->sequence;
    sequence_settle(s); /* what runs on it is compared with what comes */
    bool interrupt = q->flags & LLM_SQE_INTERRUPT || q->op == LLM_OP_SESSION_CLOSE;
    if (generates(s) && interrupt)
        deliver_tokens(&e->delivery, s, in->now_ns); /* what was put is what the client has */
    if (generates(s) && !interrupt)
        refuse(e, in, LLM_ESESSION, 0);
    else if (q->op == LLM_OP_SESSION_CLOSE)
        close_session(e, in, session);
    else if (q->op == LLM_OP_SESSION_FORK)
        fork_session(e, in, session);
    else
        edit_session(e, in, session);
}
