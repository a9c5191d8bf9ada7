/* deliver.c - see deliver.h */
#include "deliver.h"

#include <assert.h>
#include <string.h>

void deliver_note(struct delivery *d, struct sequence *s)
{
    struct sequence_owner *o = s->owner;
    if (list_empty(&s->news)) {
        list_insert_before(&o->news, &s->news);
        o->n_news++;
    }
    if (list_empty(&o->due))
        list_insert_before(&d->due, &o->due);
}

static void forget_news(struct sequence *s)
{
    if (list_empty(&s->news))
        return;
    list_remove(&s->news);
    s->owner->n_news--;
}

static void note_gaps(struct delivery *d)
{
    if (d->n_gaps)
        STATS_OBSERVE_N(d->stats, itl, d->gap_ns, d->n_gaps);
    d->n_gaps = 0;
}

static void add_gap(struct delivery *d, uint64_t ns)
{
    if (ns != d->gap_ns)
        note_gaps(d);
    d->gap_ns = ns;
    d->n_gaps++;
}

/* First token: time since arrival. Every later one: the gap to the one before; tokens that are
 * published together have none between them. */
static void time_tokens(struct delivery *d, struct sequence *s, uint32_t n, uint64_t now_ns)
{
    if (s->op == LLM_OP_GENERATE)
        for (uint32_t i = 0; i < n; i++) {
            if (i)
                add_gap(d, 0);
            else if (s->t_last)
                add_gap(d, stats_elapsed(s->t_last, now_ns));
            else
                STATS_OBSERVE(d->stats, ttft, stats_elapsed(s->t_arrival, now_ns));
        }
    if (!s->t_last)
        s->t_first = now_ns;
    if (now_ns > s->t_last)
        s->t_last = now_ns;
}

/* Of the token that is put next. */
static void put_candidates(struct delivery *d, struct sequence *s)
{
    const struct gpu_candidate *top = sequence_top(s, s->sent);
    struct llm_candidate out[LLM_TOP_MAX];
    uint32_t n = 0;
    for (; n < s->n_top && top[n].token >= 0; n++)
        out[n] = (struct llm_candidate){top[n].token, top[n].logprob};
    d->sink->put_top(d->sink->context, s->owner->client, out, n);
}

/* One entry of tokens. */
static void put_tokens(struct delivery *d, struct sequence *s, uint64_t now_ns)
{
    uint32_t unsent = sequence_unsent(s), at = s->base + s->sent;
    uint32_t most = s->n_top ? 1 : LLM_CQE_TOKENS_MAX, n = unsent < most ? unsent : most;
    struct llm_cqe c = {.user_data = s->user_data,
                        .type = LLM_CQE_TOKENS,
                        .count = (uint16_t)n,
                        .position = s->op == LLM_OP_SCORE ? at : s->sent,
                        .choice = s->choice};
    for (uint32_t i = 0; i < n; i++)
        c.tokens[i] = sequence_token(s, at + i);
    if (sequence_scores(s) || s->flags & LLM_SQE_LOGPROBS) {
        c.flags = LLM_CQE_HAS_LOGPROBS;
        memcpy(c.logprobs, s->logprobs + at, n * sizeof *c.logprobs);
    }
    if (s->n_top) {
        c.flags |= LLM_CQE_HAS_TOP;
        put_candidates(d, s);
    }
    time_tokens(d, s, n, now_ns);
    s->sent += n;
    s->owner->unread -= n;
    d->sink->put(d->sink->context, s->owner->client, &c, NULL);
}

static void count_final(struct delivery *d, const struct sequence *s, int32_t status,
                        enum llm_finish finish, uint64_t now_ns)
{
    STATS_ADD(d->stats, finished_for[finish], 1);
    if (status < 0)
        return;
    if (finish == LLM_FINISH_CANCELLED) {
        STATS_ADD(d->stats, cancelled, 1);
        return;
    }
    STATS_ADD(d->stats, finished, 1);
    if (s->op == LLM_OP_GENERATE)
        STATS_OBSERVE(d->stats, e2e, stats_elapsed(s->t_arrival, now_ns));
}

static void put_final(struct delivery *d, struct sequence *s, int32_t status,
                      enum llm_finish finish, uint64_t now_ns)
{
    assert(s->state == SEQUENCE_ENDING);
    struct llm_cqe c = {.user_data = s->user_data,
                        .status = status,
                        .type = status < 0 ? LLM_CQE_ERROR : LLM_CQE_DONE,
                        .finish = (uint16_t)finish,
                        .position = status < 0 ? s->would_fit : s->sent,
                        .choice = s->choice};
    struct llm_result r = {.t_arrival = s->t_arrival,
                           .t_admit = s->t_admit,
                           .t_first = s->t_first,
                           .t_last = s->t_last,
                           .numerics_id = d->numerics_id,
                           .prompt_tokens = s->n_prompt,
                           .output_tokens = s->op == LLM_OP_SCORE ? 0 : s->sent,
                           .cached_tokens = s->n_cached,
                           .preemptions = s->preemptions,
                           .stop = (uint16_t)s->stop,
                           .stop_cut = s->stop_cut};
    count_final(d, s, status, finish, now_ns);
    d->sink->put(d->sink->context, s->owner->client, &c, &r);
    if (s->session) {
        session_touch(d->sessions, s->session, now_ns);
        sequence_detach(d->table, s);
    } else
        sequence_release(d->table, s);
}

static uint32_t token_room(const struct delivery *d, const struct sequence_owner *o)
{
    return d->sink->token_room(d->sink->context, o->client);
}

static void offer_news(struct delivery *d, struct sequence_owner *o, uint64_t now_ns)
{
    uint32_t left = o->n_news; /* sequences that are still to be looked at */
    uint32_t room = 0;         /* at least: finals take of it, too */
    while (left) {
        struct sequence *s = LIST_OF(o->news.next, struct sequence, news);
        assert(sequence_unsent(s) > 0);
        if (!room && !(room = token_room(d, o))) {
            if (d->max_unread && o->unread > d->max_unread)
                list_insert_before(&d->behind, &o->due);
            return;
        }
        put_tokens(d, s, now_ns);
        room--;
        if (sequence_unsent(s)) {
            list_remove(&s->news);
            list_insert_before(&o->news, &s->news);
            continue;
        }
        left--;
        if (s->state == SEQUENCE_ENDING) { /* with the owner's last sequence the owner goes */
            put_final(d, s, 0, s->finish, now_ns);
            room -= room > 0;
        } else
            forget_news(s);
    }
}

void deliver_owner(struct delivery *d, struct sequence_owner *o, uint64_t now_ns)
{
    list_remove(&o->due);
    offer_news(d, o, now_ns);
    note_gaps(d);
}

void deliver_due(struct delivery *d, uint64_t now_ns)
{
    while (!list_empty(&d->due)) {
        struct sequence_owner *o = LIST_OF(d->due.next, struct sequence_owner, due);
        list_remove(&o->due);
        offer_news(d, o, now_ns);
    }
    note_gaps(d);
}

static void put_what_fits(struct delivery *d, struct sequence *s, uint64_t now_ns)
{
    while (sequence_unsent(s) && token_room(d, s->owner))
        put_tokens(d, s, now_ns);
    note_gaps(d);
}

void deliver_end(struct delivery *d, struct sequence *s, int32_t status, enum llm_finish finish,
                 uint64_t now_ns)
{
    put_what_fits(d, s, now_ns);
    put_final(d, s, status, finish, now_ns);
}

void deliver_tokens(struct delivery *d, struct sequence *s, uint64_t now_ns)
{
    put_what_fits(d, s, now_ns);
    if (sequence_unsent(s))
        return;
    if (s->state == SEQUENCE_ENDING)
        put_final(d, s, 0, s->finish, now_ns);
    else
        forget_news(s);
}

void deliver_answer(struct delivery *d, uint32_t client, const struct llm_sqe *q, uint32_t choice,
                    int32_t status, uint32_t fits, uint64_t now_ns)
{
    struct llm_cqe c = {.user_data = q->user_data,
                        .status = status,
                        .type = status < 0 ? LLM_CQE_ERROR : LLM_CQE_DONE,
                        .finish = (uint16_t)(status < 0 ? LLM_FINISH_REFUSED : LLM_FINISH_NONE),
                        .position = fits,
                        .choice = choice};
    bool prompt = q->op == LLM_OP_GENERATE || q->op == LLM_OP_SCORE;
    struct llm_result r = {.t_arrival = now_ns,
                           .numerics_id = d->numerics_id,
                           .prompt_tokens = prompt ? q->tokens_len : 0};
    d->sink->put(d->sink->context, client, &c, &r);
}
