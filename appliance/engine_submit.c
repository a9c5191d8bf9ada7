/* engine_submit.c - see engine_parts.h: an entry becomes sequences, an answer, or a refusal. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "engine_parts.h"

/* ---- slots ---- */

bool engine_carries_tokens(const struct llm_sqe *copy)
{
    switch (copy->op) {
    case LLM_OP_GENERATE:
    case LLM_OP_SCORE:
    case LLM_OP_SESSION_OPEN:
    case LLM_OP_SESSION_APPEND:
    case LLM_OP_CHOOSE:
        return true;
    default:
        return false;
    }
}

uint32_t engine_finals(const struct llm_sqe *copy)
{
    bool several = copy->op == LLM_OP_GENERATE || copy->op == LLM_OP_CHOOSE;
    return several && copy->choices > 1 ? copy->choices : 1;
}

/* Slots that the entry takes. One that will be refused takes none for long, but its tokens may need
 * the place to be looked at. */
static uint32_t slots_needed(const struct engine *e, const struct llm_sqe *copy)
{
    if (!engine_carries_tokens(copy) && copy->op != LLM_OP_SESSION_FORK)
        return 0;
    uint32_t finals = engine_finals(copy);
    return finals <= LLM_CHOICES_MAX && finals <= e->config.max_requests ? finals : 1;
}

/* Those of sessions that are not open yet are kept for them. */
static uint32_t slots_free(const struct engine *e)
{
    uint32_t kept = e->sessions.max - e->sessions.n;
    return e->table.n_free > kept ? e->table.n_free - kept : 0;
}

bool engine_can_take(const struct engine *e, const struct llm_sqe *copy)
{
    return slots_needed(e, copy) <= slots_free(e);
}

bool engine_can_take_from(struct engine *e, uint32_t client, const struct llm_sqe *copy)
{
    const struct sequence_owner *o = sequence_owner(&e->table, client);
    struct engine_reservation *r = &e->reservation;
    uint32_t needed = slots_needed(e, copy), n_free = slots_free(e);
    if (!needed)
        return true;
    bool mine = r->held && r->client == client, others = r->held && !mine;
    if (needed + (others ? r->slots : 0) > n_free) {
        if (!r->held)
            *r = (struct engine_reservation){true, client, needed};
        return false;
    }
    if (mine)
        r->held = false;
    return mine || !o || o->n_all + needed <= n_free - needed;
}

int32_t *engine_token_buffer(struct engine *e)
{
    return sequence_next_tokens(&e->table);
}

uint8_t *engine_option_buffer(struct engine *e)
{
    return e->option_map;
}

/* ---- refusals ---- */

static enum llm_refusal refusal_of(int32_t code)
{
    switch (code) {
    case LLM_ETOOLONG:
        return LLM_REFUSED_LENGTH;
    case LLM_EBUSY:
        return LLM_REFUSED_QUEUE;
    case LLM_EQUOTA:
        return LLM_REFUSED_QUOTA;
    case LLM_EDEADLINE:
        return LLM_REFUSED_DEADLINE;
    case LLM_ENOSESSION:
    case LLM_ESESSION:
        return LLM_REFUSED_SESSION;
    case LLM_ESHUTDOWN:
        return LLM_REFUSED_SHUTDOWN;
    default:
        return LLM_REFUSED_MALFORMED;
    }
}

/* Who brings tokens to a session may open it where it is not there, and asks so: the answer is no
 * failure. */
static bool asks_for_session(const struct llm_sqe *q, int32_t code)
{
    return code == LLM_ENOSESSION && q->target == LLM_SESSION_ALL && q->tokens_len &&
           (q->op == LLM_OP_SESSION_APPEND || q->op == LLM_OP_GENERATE);
}

void engine_refuse(struct engine *e, const struct engine_entry *in, struct submission_verdict v)
{
    const struct llm_sqe *q = in->q;
    uint32_t finals = engine_finals(q), first = 0;
    if (q->op == LLM_OP_GENERATE && q->first_choice + finals <= LLM_CHOICES_MAX)
        first = q->first_choice;
    for (uint32_t i = 0; i < finals; i++)
        deliver_answer(&e->delivery, in->client, q, first + i, v.code, v.fits, in->now_ns);
    if (asks_for_session(q, v.code))
        return;
    STATS_ADD(&e->stats, refused, 1);
    stats_add(&e->stats,
              offsetof(struct llm_board, refused_for) +
                  (size_t)refusal_of(v.code) * sizeof(order_u64),
              1);
}

/* ---- limits and quotas ---- */

static struct submission_verdict over(int32_t code, uint64_t limit, uint64_t used)
{
    return (struct submission_verdict){code, (uint32_t)(limit > used ? limit - used : 0)};
}

/* What uses the session of the entry now, and will not when the entry is taken; or NULL. */
static const struct sequence *replaced(const struct engine *e, const struct engine_entry *in)
{
    const struct session *session = NULL;
    if (in->q->session)
        session = session_find(&e->sessions, engine_domain(e, in->client), in->q->session);
    return session && session->sequence->owner ? session->sequence : NULL;
}

static struct submission_verdict check_queue(const struct engine *e, const struct engine_entry *in)
{
    const struct engine_config *c = &e->config;
    const struct schedule *s = &e->schedule;
    const struct llm_sqe *q = in->q;
    const struct sequence *old = replaced(e, in);
    uint64_t finals = engine_finals(q), waiting = schedule_waiting(s);
    waiting -= old && old->state == SEQUENCE_WAITING;
    if (c->max_waiting && waiting + finals > c->max_waiting)
        return over(LLM_EBUSY, c->max_waiting, waiting);
    if (c->max_waiting_tokens && s->queue.tokens + q->tokens_len > c->max_waiting_tokens)
        return over(LLM_EBUSY, c->max_waiting_tokens, s->queue.tokens);
    return (struct submission_verdict){0, 0};
}

static struct submission_verdict check_quota(const struct engine *e, const struct engine_entry *in)
{
    const struct engine_quota *quota = &e->config.quota;
    const struct llm_sqe *q = in->q;
    const struct domain *d = domain_find(&e->table.domains, engine_domain(e, in->client));
    uint64_t requests = d ? d->requests : 0, tokens = d ? d->prompt_tokens : 0;
    uint64_t finals = engine_finals(q);
    requests -= replaced(e, in) != NULL;
    if (quota->requests && requests + finals > quota->requests)
        return over(LLM_EQUOTA, quota->requests, requests);
    if (quota->prompt_tokens && tokens + q->tokens_len > quota->prompt_tokens)
        return over(LLM_EQUOTA, quota->prompt_tokens, tokens);
    return (struct submission_verdict){0, 0};
}

/* ---- sequences ---- */

static uint64_t moment(uint64_t from_ns, uint64_t unit_ns, uint32_t n, uint32_t by_default)
{
    uint32_t count = n ? n : by_default;
    return count ? from_ns + count * unit_ns : UINT64_MAX;
}

static uint8_t class_of(const struct llm_sqe *q)
{
    switch (q->priority) {
    case LLM_PRIORITY_HIGH:
        return 0;
    case LLM_PRIORITY_LOW:
        return 2;
    default:
        return 1;
    }
}

static void fill_times(struct sequence *s, const struct engine_config *c, const struct llm_sqe *q,
                       uint64_t now_ns)
{
    s->t_arrival = now_ns;
    s->t_admit = s->t_first = s->t_last = 0;
    s->due_ns = moment(now_ns, 1000, q->deadline_us, 0);
    s->expires_ns = moment(now_ns, 1000000, q->timeout_ms, c->timeout_ms);
    s->queue_expires_ns = moment(now_ns, 1000000, q->queue_timeout_ms, c->queue_timeout_ms);
    s->max_itl_us = q->max_itl_us;
    if (q->op != LLM_OP_GENERATE)
        s->due_ns = UINT64_MAX;
    if (!engine_carries_tokens(q) || q->op == LLM_OP_SESSION_OPEN || q->op == LLM_OP_SESSION_APPEND)
        s->expires_ns = s->queue_expires_ns = UINT64_MAX;
    s->class = class_of(q);
    if (c->policy == ENGINE_FIRST_COME) {
        s->class = 0;
        s->due_ns = UINT64_MAX;
        s->max_itl_us = 0;
    }
}

/* Over the s->n_tokens tokens of the history. */
void engine_fill_sequence(struct sequence *s, const struct engine *e, const struct engine_entry *in,
                          uint32_t choice)
{
    const struct llm_sqe *q = in->q;
    s->user_data = q->user_data;
    s->op = (enum llm_op)q->op;
    s->flags = q->flags;
    if (s->session && s->session->no_cache)
        s->flags |= LLM_SQE_NO_CACHE;
    if (speculation_wanted(&e->config.speculation, s->flags))
        s->flags |= LLM_SQE_SPECULATE;
    else
        s->flags &= (uint8_t)~LLM_SQE_SPECULATE;
    s->choice = q->op == LLM_OP_GENERATE ? q->first_choice + choice : choice;
    s->sampling = (struct gpu_sampling){.temperature = q->temperature,
                                        .top_p = q->top_p,
                                        .min_p = q->min_p,
                                        .top_k = q->top_k,
                                        .seed = q->seed,
                                        .choice = s->choice,
                                        .repetition = q->repetition,
                                        .presence = q->presence,
                                        .frequency = q->frequency};
    s->n_prompt = q->op == LLM_OP_GENERATE && q->output_from ? q->output_from : s->n_tokens;
    s->max_tokens = q->op == LLM_OP_GENERATE ? q->max_tokens : 0;
    s->base = s->op == LLM_OP_SCORE ? 1 : s->n_prompt;
    s->ready = s->op == LLM_OP_SCORE ? 1 : s->n_tokens;
    s->sent = s->ready - s->base;
    s->preemptions = s->would_fit = s->n_cached = 0;
    s->n_brought = q->tokens_len;
    engine_fill_options(s, e, in);
    fill_times(s, &e->config, q, in->now_ns);
}

bool engine_in_time(const struct engine *e, const struct sequence *s, struct submission_verdict *v)
{
    if (s->due_ns == UINT64_MAX)
        return true;
    uint64_t need_ns = schedule_estimate(&e->schedule, s), us = need_ns / 1000 + 1;
    if (need_ns <= s->due_ns - s->t_arrival)
        return true;
    *v = (struct submission_verdict){LLM_EDEADLINE, us < UINT32_MAX ? (uint32_t)us : UINT32_MAX};
    return false;
}

void engine_enqueue(struct engine *e, struct sequence *s)
{
    schedule_enqueue(&e->schedule, s);
    engine_watch_time(e, s);
}

static struct sequence *take_slot(struct engine *e, const struct engine_entry *in)
{
    return sequence_take(&e->table, in->client, engine_domain(e, in->client));
}

/* A resumed generation that had ended before its final was delivered. */
static bool ended_before(const struct engine *e, const struct sequence *s, enum llm_finish *finish)
{
    if (s->n_tokens == s->n_prompt)
        return false;
    bool stop = s->stop || (!(s->flags & LLM_SQE_IGNORE_EOS) &&
                            engine_ends_generation(e, s->tokens[s->n_tokens - 1]));
    *finish = stop ? LLM_FINISH_STOP : LLM_FINISH_LENGTH;
    return stop || s->n_tokens - s->n_prompt == s->max_tokens;
}

static void count_request(struct engine *e, const struct llm_sqe *q)
{
    STATS_ADD(&e->stats, requests, 1);
    STATS_ADD(&e->stats, prompt_tokens, q->tokens_len);
}

/* The finals of a generation that has nothing left to bring. */
static void end_at_once(struct engine *e, const struct engine_entry *in, enum llm_finish finish)
{
    for (uint32_t i = 0; i < engine_finals(in->q); i++) {
        struct sequence *s = take_slot(e, in);
        s->n_tokens = in->q->tokens_len;
        engine_fill_sequence(s, e, in, i);
        s->state = SEQUENCE_ENDING;
        deliver_end(&e->delivery, s, 0, finish, in->now_ns);
    }
}

static void take_choices(struct engine *e, const struct engine_entry *in)
{
    struct sequence *leader = take_slot(e, in);
    struct submission_verdict v = {0};
    enum llm_finish finish;
    leader->n_tokens = in->q->tokens_len;
    engine_fill_sequence(leader, e, in, 0);
    if (leader->op == LLM_OP_GENERATE && ended_before(e, leader, &finish)) {
        sequence_release(&e->table, leader);
        end_at_once(e, in, finish);
        return;
    }
    if (!engine_in_time(e, leader, &v)) {
        sequence_release(&e->table, leader);
        engine_refuse(e, in, v);
        return;
    }
    engine_enqueue(e, leader);
    for (uint32_t i = 1; i < engine_finals(in->q); i++) {
        struct sequence *s = take_slot(e, in);
        s->n_tokens = leader->n_tokens;
        engine_fill_sequence(s, e, in, i);
        memcpy(s->tokens, leader->tokens, s->n_tokens * sizeof *s->tokens);
        schedule_follow(&e->schedule, leader, s);
    }
    count_request(e, in->q);
}

/* ---- labels ---- */

static struct submission_verdict check_label(struct engine *e, const struct llm_sqe *q, uint32_t i)
{
    const struct option_label *label = &e->options.labels[i];
    uint32_t longest = submission_longest(&e->config);
    if ((uint64_t)q->tokens_len + label->n_tokens > longest)
        return over(LLM_ETOOLONG, longest, label->n_tokens);
    for (uint32_t at = 0; at < label->n_tokens; at++) {
        int32_t token;
        memcpy(&token, e->option_map + label->at + (size_t)at * sizeof token, sizeof token);
        if (token < 0 || (uint32_t)token >= e->config.vocab)
            return (struct submission_verdict){LLM_ETOKEN, 0};
    }
    return (struct submission_verdict){0, 0};
}

static struct submission_verdict check_labels(struct engine *e, const struct llm_sqe *q)
{
    struct submission_verdict v = {0};
    if (e->options.n_labels != engine_finals(q))
        return (struct submission_verdict){LLM_EPARAM, e->options.n_labels};
    for (uint32_t i = 0; i < e->options.n_labels && !v.code; i++)
        v = check_label(e, q, i);
    return v;
}

/* Of choice i: what is scored is the label behind the prompt. */
static struct sequence *take_label(struct engine *e, const struct engine_entry *in,
                                   const int32_t *prompt, uint32_t i)
{
    struct sequence *s = take_slot(e, in);
    const struct option_label *label = &e->options.labels[i];
    uint32_t n_prompt = in->q->tokens_len;
    if (s->tokens != prompt)
        memcpy(s->tokens, prompt, n_prompt * sizeof *prompt);
    option_label_tokens(e->option_map, label, s->tokens + n_prompt);
    s->n_tokens = n_prompt;
    engine_fill_sequence(s, e, in, i);
    s->n_tokens += label->n_tokens;
    return s;
}

static void take_labels(struct engine *e, const struct engine_entry *in)
{
    struct sequence *leader = take_label(e, in, sequence_next_tokens(&e->table), 0);
    engine_enqueue(e, leader);
    for (uint32_t i = 1; i < e->options.n_labels; i++)
        schedule_follow(&e->schedule, leader, take_label(e, in, leader->tokens, i));
    count_request(e, in->q);
}

/* ---- entries ---- */

static struct submission_verdict judge(struct engine *e, const struct engine_entry *in)
{
    const struct llm_sqe *q = in->q;
    struct submission_verdict v = {0};
    if (!engine_can_take(e, q))
        v.code = LLM_EBUSY;
    bool stays = engine_carries_tokens(q); /* a fork or a close is over with its answer */
    if (!v.code && stays)
        v = check_queue(e, in);
    if (!v.code && stays)
        v = check_quota(e, in);
    if (!v.code && q->tokens_len)
        v = submission_check_tokens(sequence_next_tokens(&e->table), q->tokens_len,
                                    e->config.vocab);
    if (!v.code)
        v = engine_check_options(e, in);
    if (!v.code && q->op == LLM_OP_CHOOSE)
        v = check_labels(e, q);
    return v;
}

static void take_request(struct engine *e, const struct engine_entry *in)
{
    struct submission_verdict v = judge(e, in);
    if (v.code < 0)
        engine_refuse(e, in, v);
    else if (in->q->session)
        engine_session_entry(e, in);
    else if (in->q->op == LLM_OP_CHOOSE)
        take_labels(e, in);
    else
        take_choices(e, in);
}

static void cancel(struct engine *e, const struct engine_entry *in)
{
    const struct sequence_owner *o = sequence_owner(&e->table, in->client);
    struct sequence *next, *s = o ? sequence_first(o) : NULL;
    int32_t status = -ENOENT;
    for (; s; s = next) {
        next = sequence_next(o, s);
        bool answered = s->op != LLM_OP_GENERATE && !sequence_scores(s);
        if (s->user_data != in->q->target || answered)
            continue;
        engine_end(e, s, 0, LLM_FINISH_CANCELLED, in->now_ns);
        status = 0;
    }
    deliver_answer(&e->delivery, in->client, in->q, 0, status, 0, in->now_ns);
}

void engine_submit(struct engine *e, uint32_t client, const struct llm_sqe *copy, uint64_t now_ns)
{
    const struct engine_entry in = {client, copy, now_ns};
    struct submission_verdict v = submission_check(copy, &e->config);
    if (v.code == 0 && e->stopping && copy->op != LLM_OP_CANCEL)
        v.code = LLM_ESHUTDOWN;
    if (v.code < 0)
        engine_refuse(e, &in, v);
    else if (copy->op == LLM_OP_NOP) {
        deliver_answer(&e->delivery, client, copy, 0, 0, 0, now_ns);
        return; /* changes no figure that is published */
    } else if (copy->op == LLM_OP_CANCEL)
        cancel(e, &in);
    else
        take_request(e, &in);
    e->stale = true;
}
