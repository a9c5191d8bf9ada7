/* submit.c - requests out: checked (check.c), then the entry in place.
 *
 *      arena   | tokens (s32)        | option map |
 *              ^ tokens_off          ^ options_off
 *
 * Nothing is changed before the last check has passed: a request that is refused, or that finds no
 * room (-EAGAIN), leaves ring, arena and table as they were, an llm_reserve included.
 */
#include <errno.h>
#include <string.h>

#include "handle.h"

/* Records the failure and returns its code. */
#define FAIL(c, code, ...) (client_fail(c, code, __VA_ARGS__), (code))

/* ---- the arena ---- */

static int arena_full(struct llm_client *c, uint32_t n)
{
    return FAIL(c, -EAGAIN, "the arena has no room for %u tokens now: take completions and retry",
                n);
}

int32_t *llm_reserve(struct llm_client *c, uint32_t n)
{
    if (client_ended(c))
        return NULL;
    if (!n) {
        client_fail(c, -EINVAL, "a reserve of no tokens");
        return NULL;
    }
    if (n > c->ring.arena_bytes / sizeof(int32_t)) {
        client_fail(c, -E2BIG,
                    "%u tokens can never fit into the arena of %u bytes: connect with a larger "
                    "arena_bytes",
                    n, c->ring.arena_bytes);
        return NULL;
    }
    if (resume_is_behind(c)) { /* the arena is another one then, or is used to send again */
        client_fail(c, -EAGAIN, "the engine is away: take events until it is back, and retry");
        return NULL;
    }
    resume_forget_arena(c);
    int32_t *tokens = ring_reserve(&c->ring, n);
    if (!tokens && !client_ended(c))
        arena_full(c, n);
    return tokens;
}

uint64_t request_span(const struct llm_request *r)
{
    return (uint64_t)r->n_tokens * sizeof(int32_t) + (request_options_bytes(r) + 3) / 4 * 4;
}

static bool written_in_place(const struct llm_client *c, const struct llm_request *r)
{
    return (const uint8_t *)r->tokens ==
               c->ring.arena + c->ring.reserved_at % c->ring.arena_bytes &&
           request_span(r) <= c->ring.reserved_bytes;
}

/* Puts tokens and option map into the arena, unless they were written in place. A prompt that was,
 * but has a map behind it, may have to move. */
static int place(struct llm_client *c, const struct llm_request *r, struct llm_sqe *e)
{
    uint64_t span = request_span(r);
    if (!span)
        return 0;
    if (!written_in_place(c, r)) {
        int32_t *room = ring_reserve(&c->ring, (uint32_t)(span / sizeof(int32_t)));
        if (!room)
            return client_ended(c) ? c->ended : arena_full(c, r->n_tokens);
        if (r->n_tokens)
            memmove(room, r->tokens, (size_t)r->n_tokens * sizeof *room);
    }
    e->tokens_off = c->ring.reserved_at % c->ring.arena_bytes;
    e->options_len = (uint32_t)request_options_bytes(r);
    if (e->options_len) {
        e->options_off = e->tokens_off + r->n_tokens * (uint32_t)sizeof(int32_t);
        request_options_write(r, c->ring.arena + e->options_off);
    }
    return 0;
}

/* ---- entries ---- */

struct llm_sqe *submit_next(struct llm_client *c, uint32_t finals)
{
    struct llm_sqe *e = ring_next(&c->ring, finals);
    if (e) {
        e->top_p = e->repetition = 1;
        return e;
    }
    if (client_ended(c))
        return NULL;
    if (finals > c->ring.max_inflight - c->ring.inflight)
        client_fail(c, -EAGAIN, "max_inflight %u is reached: take completions and retry",
                    c->ring.max_inflight);
    else
        client_fail(c, -EAGAIN, "the submission ring of %u entries is full: retry",
                    c->ring.sq_entries);
    return NULL;
}

uint64_t submit_id(struct llm_client *c)
{
    uint64_t id;
    do
        id = c->next_id++;
    while (!id || inflight_find(&c->inflight, id));
    return id;
}

void submit_publish(struct llm_client *c, uint32_t finals)
{
    ring_commit(&c->ring, finals);
    if (ring_submit(&c->ring))
        client_wake(&c->ring.up->sq_tail);
}

static uint64_t target_of(const struct llm_request *r)
{
    if (r->op == LLM_OP_SESSION_FORK)
        return r->session_to;
    bool cuts = r->op == LLM_OP_GENERATE || r->op == LLM_OP_SESSION_APPEND;
    return r->session && cuts ? r->session_keep : 0;
}

static void fill_sampling(struct llm_client *c, struct llm_sqe *e, const struct llm_request *r)
{
    e->max_tokens = r->max_tokens;
    e->choices = (uint16_t)r->choices;
    e->first_choice = (uint16_t)r->first_choice;
    e->output_from = r->output_from;
    e->seed = r->seed == LLM_SEED_RANDOM ? seeds_next(&c->seeds) : r->seed;
    e->temperature = r->temperature;
    e->top_p = r->top_p;
    e->min_p = r->min_p;
    e->top_k = r->top_k;
    e->repetition = r->repetition != 0 ? r->repetition : 1;
    e->presence = r->presence;
    e->frequency = r->frequency;
}

/* All but the places in the arena. */
static void fill(struct llm_client *c, struct llm_sqe *e, const struct llm_request *r)
{
    e->user_data = r->user_data ? r->user_data : submit_id(c);
    e->op = (uint8_t)r->op;
    e->flags = (uint8_t)r->flags;
    e->priority = (uint16_t)r->priority;
    e->session = r->session;
    e->target = target_of(r);
    e->tokens_len = r->n_tokens;
    e->deadline_us = r->deadline_us;
    e->timeout_ms = r->timeout_ms;
    e->queue_timeout_ms = r->queue_timeout_ms;
    e->max_itl_us = r->max_itl_us;
    if (r->op == LLM_OP_GENERATE)
        fill_sampling(c, e, r);
    else if (r->op == LLM_OP_CHOOSE)
        e->choices = (uint16_t)r->n_labels;
}

static uint64_t in_flight_from_now(struct llm_client *c, const struct llm_sqe *e, uint32_t finals,
                                   struct record *record)
{
    struct inflight *f = inflight_add(&c->inflight, e->user_data, finals);
    f->owed <<= e->first_choice;
    f->record = record;
    c->owed += finals;
    return f->id;
}

/* With llm_resume ends may wait here to be told, of which the ring knows nothing. */
static int check_owed(struct llm_client *c, uint32_t finals)
{
    uint32_t most = c->limits.max_inflight;
    if (finals <= most && c->owed <= most - finals)
        return 0;
    return FAIL(c, -EAGAIN, "max_inflight %u is reached: take completions and retry", most);
}

static int send(struct llm_client *c, const struct llm_request *r, uint64_t *id)
{
    uint32_t finals = request_finals(r);
    struct llm_sqe *e = submit_next(c, finals);
    if (!e)
        return c->code;
    int rc = place(c, r, e);
    if (rc)
        return rc;
    fill(c, e, r);
    struct record *record = NULL;
    const int32_t *placed = (const int32_t *)(const void *)(c->ring.arena + e->tokens_off);
    if (c->resume && !(record = record_create(c, e, r, placed))) /* r's may be overwritten */
        return c->code;
    *id = in_flight_from_now(c, e, finals, record);
    submit_publish(c, finals);
    return 0;
}

/* The engine is away, or others wait to be sent again: behind them. */
static int send_later(struct llm_client *c, const struct llm_request *r, uint64_t *id)
{
    uint32_t finals = request_finals(r);
    struct llm_sqe e = {.top_p = 1, .repetition = 1};
    fill(c, &e, r);
    struct record *record = record_create(c, &e, r, r->tokens);
    if (!record)
        return c->code;
    *id = in_flight_from_now(c, &e, finals, record);
    resume_send_later(c, record);
    return 0;
}

/* llm_request ended here in 1.0. */
enum { REQUEST_1_0 = offsetof(struct llm_request, session) };

/* The caller's request as today's struct: itself, or a copy of an old one with defaults behind it.
 */
static const struct llm_request *today(const struct llm_request *r, struct llm_request *copy)
{
    if (r->size != REQUEST_1_0)
        return client_struct_check(r, r->size, sizeof *r) ? NULL : r;
    *copy = (struct llm_request)LLM_REQUEST_INIT;
    memcpy(copy, r, REQUEST_1_0);
    return copy;
}

int llm_submit(struct llm_client *c, const struct llm_request *request, uint64_t *id)
{
    struct llm_request copy;
    uint64_t chosen = 0;
    int rc = client_ended(c);
    if (rc)
        return rc;
    const struct llm_request *r = today(request, &copy);
    if (!r)
        return FAIL(c, -EINVAL, "llm_request.size is %u: start from LLM_REQUEST_INIT",
                    request->size);
    rc = request_check(c, r);
    if (!rc && c->resume)
        rc = check_owed(c, request_finals(r));
    if (!rc)
        rc = resume_is_behind(c) ? send_later(c, r, &chosen) : send(c, r, &chosen);
    if (!rc && id)
        *id = chosen;
    return rc;
}

/* ---- cancels ---- */

int submit_cancel(struct llm_client *c, uint64_t target)
{
    struct inflight *f = inflight_find(&c->inflight, target);
    if (!f || f->cancel || f->cancelled)
        return 0;
    struct llm_sqe *e = submit_next(c, 1);
    if (!e)
        return c->code;
    e->op = LLM_OP_CANCEL;
    e->target = target;
    e->user_data = submit_id(c);
    f->cancelled = true;
    inflight_add(&c->inflight, e->user_data, 1)->cancel = true;
    c->cancels++;
    submit_publish(c, 1);
    return 0;
}

int llm_cancel(struct llm_client *c, uint64_t id)
{
    int rc = client_ended(c);
    if (rc)
        return rc;
    const struct inflight *target = inflight_find(&c->inflight, id);
    if (!target || target->cancel || inflight_is_alias(target))
        return 0;
    return target->record ? resume_cancel(c, target->record) : submit_cancel(c, id);
}
