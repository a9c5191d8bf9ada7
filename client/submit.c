/* submit.c - requests out: every check that needs no engine, then the entry in place.
 *
 * Nothing is changed before the last check has passed: a request that is refused, or that finds no
 * room (-EAGAIN), leaves ring, arena and table as they were, an llm_reserve included.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "handle.h"

int client_struct_check(const void *s, uint32_t size, size_t known)
{
    const uint8_t *bytes = s;
    if (size < known)
        return -EINVAL;
    for (size_t i = known; i < size; i++)
        if (bytes[i])
            return -EINVAL;
    return 0;
}

/* Records the failure and returns its code. */
#define FAIL(c, code, ...) (client_fail(c, code, __VA_ARGS__), (code))

/* ---- the arena ---- */

static bool in_arena(const struct llm_client *c, const void *p)
{
    return (uintptr_t)p - (uintptr_t)c->ring.arena < c->ring.arena_bytes;
}

static int arena_too_small(struct llm_client *c, uint32_t n)
{
    return FAIL(
        c, -E2BIG,
        "%u tokens can never fit into the arena of %u bytes: connect with a larger arena_bytes", n,
        c->ring.arena_bytes);
}

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
    int32_t *tokens = ring_reserve(&c->ring, n);
    if (tokens || client_ended(c))
        return tokens;
    if (n > c->ring.arena_bytes / sizeof(int32_t))
        arena_too_small(c, n);
    else
        arena_full(c, n);
    return NULL;
}

/* Where the prompt lies in the arena, copied there unless it was written in place. */
static int place_tokens(struct llm_client *c, const struct llm_request *r, uint32_t *offset)
{
    if (!in_arena(c, r->tokens)) {
        int32_t *room = ring_reserve(&c->ring, r->n_tokens);
        if (!room)
            return client_ended(c) ? c->ended : arena_full(c, r->n_tokens);
        memcpy(room, r->tokens, (size_t)r->n_tokens * sizeof *room);
    }
    *offset = c->ring.reserved_at % c->ring.arena_bytes;
    return 0;
}

/* ---- checks ---- */

static int check_place(struct llm_client *c, const struct llm_request *r)
{
    if (!r->tokens || (uintptr_t)r->tokens % sizeof(int32_t))
        return FAIL(c, -EINVAL, "tokens is NULL or not aligned");
    if (r->n_tokens > c->ring.arena_bytes / sizeof(int32_t))
        return arena_too_small(c, r->n_tokens);
    const uint8_t *reserved = c->ring.arena + c->ring.reserved_at % c->ring.arena_bytes;
    if (in_arena(c, r->tokens) && ((const uint8_t *)r->tokens != reserved ||
                                   r->n_tokens > c->ring.reserved_bytes / sizeof(int32_t)))
        return FAIL(c, -EINVAL,
                    "tokens points into the arena, but not to what the last llm_reserve gave, or "
                    "n_tokens exceeds it");
    return 0;
}

static int check_tokens(struct llm_client *c, const struct llm_request *r)
{
    uint64_t length = (uint64_t)r->n_tokens + (r->op == LLM_OP_GENERATE ? r->max_tokens : 0);
    if (!r->n_tokens)
        return FAIL(c, LLM_EPARAM, "n_tokens is 0: a request needs at least one token");
    if (r->op == LLM_OP_SCORE && r->n_tokens < 2)
        return FAIL(c, LLM_EPARAM,
                    "a score of 1 token: it needs at least 2, the first has none before it");
    if (length > c->limits.max_model_len)
        return FAIL(
            c, LLM_ETOOLONG, "%u prompt tokens and max_tokens %u exceed the model's length of %u",
            r->n_tokens, r->op == LLM_OP_GENERATE ? r->max_tokens : 0, c->limits.max_model_len);
    int rc = check_place(c, r);
    for (uint32_t i = 0; !rc && i < r->n_tokens; i++)
        if ((uint32_t)r->tokens[i] >= c->limits.vocab)
            return FAIL(c, LLM_ETOKEN, "token %u is %d, outside the vocabulary of %u", i,
                        r->tokens[i], c->limits.vocab);
    return rc;
}

static int check_sampling(struct llm_client *c, const struct llm_request *r)
{
    if (!r->max_tokens)
        return FAIL(c, LLM_EPARAM, "max_tokens is 0: generate at least 1");
    if (!r->choices || r->choices > LLM_CHOICES_MAX)
        return FAIL(c, LLM_EPARAM, "choices is %u, not in 1 .. %d", r->choices, LLM_CHOICES_MAX);
    if (r->choices > c->ring.max_inflight)
        return FAIL(c, LLM_EPARAM, "choices is %u, more than max_inflight %u", r->choices,
                    c->ring.max_inflight);
    if (!isfinite(r->temperature) || r->temperature < 0)
        return FAIL(c, LLM_EPARAM, "temperature is %.9g, not a finite number from 0",
                    (double)r->temperature);
    if (!(r->top_p > 0 && r->top_p <= 1))
        return FAIL(c, LLM_EPARAM, "top_p is %.9g, not in (0, 1]", (double)r->top_p);
    if (!(r->min_p >= 0 && r->min_p <= 1))
        return FAIL(c, LLM_EPARAM, "min_p is %.9g, not in [0, 1]", (double)r->min_p);
    return 0;
}

static int check_request(struct llm_client *c, const struct llm_request *r)
{
    if (client_struct_check(r, r->size, sizeof *r))
        return FAIL(c, -EINVAL, "llm_request.size is %u: start from LLM_REQUEST_INIT", r->size);
    if (r->op > LLM_OP_SCORE)
        return FAIL(c, -EINVAL, "operation %u is not one of generate, score, nop", r->op);
    if (r->flags & ~(uint32_t)LLM_SQE_FLAGS)
        return FAIL(c, -EINVAL, "flags %#x has bits that this library does not know", r->flags);
    if (r->user_data && inflight_find(&c->inflight, r->user_data))
        return FAIL(c, -EINVAL, "user_data %#llx is in flight already",
                    (unsigned long long)r->user_data);
    if (r->op == LLM_OP_NOP)
        return r->n_tokens ? FAIL(c, -EINVAL, "a nop has no tokens") : 0;
    int rc = check_tokens(c, r);
    return rc || r->op != LLM_OP_GENERATE ? rc : check_sampling(c, r);
}

/* ---- entries ---- */

/* The next entry with the fields that every operation has, or NULL: no room, or the ring is broken;
 * the failure is recorded. */
static struct llm_sqe *next_entry(struct llm_client *c, uint32_t finals)
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

static uint64_t choose_id(struct llm_client *c)
{
    uint64_t id;
    do
        id = c->next_id++;
    while (!id || inflight_find(&c->inflight, id));
    return id;
}

static void publish(struct llm_client *c, uint32_t finals)
{
    ring_commit(&c->ring, finals);
    if (ring_submit(&c->ring))
        client_wake(&c->ring.up->sq_tail);
}

static void fill(struct llm_client *c, struct llm_sqe *e, const struct llm_request *r)
{
    e->op = (uint8_t)r->op;
    e->flags = (uint8_t)r->flags;
    e->tokens_len = r->n_tokens;
    if (r->op != LLM_OP_GENERATE)
        return;
    e->max_tokens = r->max_tokens;
    e->choices = (uint16_t)r->choices;
    e->seed = r->seed == LLM_SEED_RANDOM ? seeds_next(&c->seeds) : r->seed;
    e->temperature = r->temperature;
    e->top_p = r->top_p;
    e->min_p = r->min_p;
    e->top_k = r->top_k;
}

int llm_submit(struct llm_client *c, const struct llm_request *r, uint64_t *id)
{
    uint32_t offset = 0;
    int rc = client_ended(c);
    if (!rc)
        rc = check_request(c, r);
    if (rc)
        return rc;
    uint32_t finals = r->op == LLM_OP_GENERATE ? r->choices : 1;
    struct llm_sqe *e = next_entry(c, finals);
    if (!e)
        return c->code;
    rc = r->n_tokens ? place_tokens(c, r, &offset) : 0;
    if (rc)
        return rc;
    fill(c, e, r);
    e->tokens_off = offset;
    e->user_data = r->user_data ? r->user_data : choose_id(c);
    if (id)
        *id = e->user_data;
    inflight_add(&c->inflight, e->user_data, finals);
    c->owed += finals;
    publish(c, finals);
    return 0;
}

int llm_cancel(struct llm_client *c, uint64_t id)
{
    int rc = client_ended(c);
    if (rc)
        return rc;
    struct inflight *target = inflight_find(&c->inflight, id);
    if (!target || target->cancel || target->cancelled)
        return 0;
    struct llm_sqe *e = next_entry(c, 1);
    if (!e)
        return c->code;
    e->op = LLM_OP_CANCEL;
    e->target = id;
    e->user_data = choose_id(c);
    target->cancelled = true;
    inflight_add(&c->inflight, e->user_data, 1)->cancel = true;
    c->cancels++;
    publish(c, 1);
    return 0;
}
