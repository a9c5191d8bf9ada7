/* check.c - what a request must be like, as far as it can be judged without the engine. Nothing is
 * changed here; the engine judges its own copy again.
 */
#include <errno.h>
#include <math.h>

#include "handle.h"

/* Records the failure and returns its code. */
#define FAIL(c, code, ...) (client_fail(c, code, __VA_ARGS__), (code))

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

static bool session_operation(uint32_t op)
{
    return op >= LLM_OP_SESSION_OPEN && op <= LLM_OP_SESSION_CLOSE;
}

static bool may_bring_tokens(uint32_t op)
{
    return op != LLM_OP_NOP && op != LLM_OP_SESSION_FORK && op != LLM_OP_SESSION_CLOSE;
}

uint32_t request_finals(const struct llm_request *r)
{
    return r->op == LLM_OP_GENERATE ? r->choices : r->op == LLM_OP_CHOOSE ? r->n_labels : 1;
}

/* ---- versions ---- */

/* Whether the entry would use what was reserved in 1.0. */
static bool needs_minor_1(const struct llm_request *r)
{
    return r->op > LLM_OP_CANCEL || r->flags & ~(uint32_t)(LLM_SQE_IGNORE_EOS | LLM_SQE_LOGPROBS) ||
           r->session || r->priority || r->deadline_us || r->timeout_ms || r->queue_timeout_ms ||
           r->max_itl_us || r->first_choice || r->output_from || r->presence != 0 ||
           r->frequency != 0 || (r->repetition != 0 && r->repetition != 1) || r->n_stops ||
           r->n_biases || r->top_logprobs;
}

static int check_version(struct llm_client *c, const struct llm_request *r)
{
    if (c->limits.abi_minor >= 1 || !needs_minor_1(r))
        return 0;
    return FAIL(c, -ENOTSUP,
                "the engine speaks version %d.%u of the protocol; sessions, labels, deadlines, "
                "timeouts, priorities, penalties, biases, stop strings, candidates and speculation "
                "need 1.1: update llmd",
                LLM_ABI_MAJOR, c->limits.abi_minor);
}

/* ---- tokens ---- */

static bool in_arena(const struct llm_client *c, const void *p)
{
    return (uintptr_t)p - (uintptr_t)c->ring.arena < c->ring.arena_bytes;
}

static int check_place(struct llm_client *c, const struct llm_request *r, uint64_t bytes)
{
    if (bytes > c->ring.arena_bytes)
        return FAIL(c, -E2BIG,
                    "%u tokens (%llu bytes with the option map) can never fit into the arena of %u "
                    "bytes: connect with a larger arena_bytes",
                    r->n_tokens, (unsigned long long)bytes, c->ring.arena_bytes);
    if (!r->n_tokens)
        return 0;
    if (!r->tokens || (uintptr_t)r->tokens % sizeof(int32_t))
        return FAIL(c, -EINVAL, "tokens is NULL or not aligned");
    const uint8_t *reserved = c->ring.arena + c->ring.reserved_at % c->ring.arena_bytes;
    if (in_arena(c, r->tokens) && ((const uint8_t *)r->tokens != reserved ||
                                   r->n_tokens > c->ring.reserved_bytes / sizeof(int32_t)))
        return FAIL(c, -EINVAL,
                    "tokens points into the arena, but not to what the last llm_reserve gave, or "
                    "n_tokens exceeds it");
    return 0;
}

static int check_ids(struct llm_client *c, const char *what, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)tokens[i] >= c->limits.vocab)
            return FAIL(c, LLM_ETOKEN, "%s %u is %d, outside the vocabulary of %u", what, i,
                        tokens[i], c->limits.vocab);
    return 0;
}

/* Tokens that the sequence may come to have, without a session's. */
static uint64_t whole_length(const struct llm_request *r)
{
    if (r->op == LLM_OP_GENERATE)
        return (uint64_t)(r->output_from ? r->output_from : r->n_tokens) + r->max_tokens;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < r->n_labels; i++)
        if (r->labels[i].n_tokens > longest)
            longest = r->labels[i].n_tokens;
    return (uint64_t)r->n_tokens + longest;
}

static int check_length(struct llm_client *c, const struct llm_request *r)
{
    if (!r->n_tokens && !session_operation(r->op) && !(r->op == LLM_OP_GENERATE && r->session))
        return FAIL(c, LLM_EPARAM,
                    "the prompt is empty: n_tokens is 0, and a request needs at least one token");
    if (r->op == LLM_OP_SCORE && r->n_tokens < 2)
        return FAIL(c, LLM_EPARAM,
                    "a score of 1 token: it needs at least 2, the first has none before it");
    if (whole_length(r) <= c->limits.max_model_len)
        return 0;
    if (r->op == LLM_OP_CHOOSE)
        return FAIL(c, LLM_ETOOLONG,
                    "%u prompt tokens and the longest label exceed the model's length of %u",
                    r->n_tokens, c->limits.max_model_len);
    return FAIL(c, LLM_ETOOLONG,
                "%u prompt tokens and max_tokens %u exceed the model's length of %u", r->n_tokens,
                r->op == LLM_OP_GENERATE ? r->max_tokens : 0, c->limits.max_model_len);
}

static int check_tokens(struct llm_client *c, const struct llm_request *r)
{
    if (!may_bring_tokens(r->op))
        return r->n_tokens ? FAIL(c, -EINVAL, "this operation has no tokens, but n_tokens is %u",
                                  r->n_tokens)
                           : 0;
    int rc = check_length(c, r);
    if (rc)
        return rc;
    rc = check_place(c, r, request_span(r));
    return rc ? rc : check_ids(c, "token", r->tokens, r->n_tokens);
}

/* ---- the operations' own ---- */

static int check_penalties(struct llm_client *c, const struct llm_request *r)
{
    if (!isfinite(r->repetition) || r->repetition < 0) /* 0 as in a request that was zeroed: off */
        return FAIL(c, LLM_EPARAM,
                    "the repetition penalty is %.9g, not a finite number over 0 (1, or 0: off)",
                    (double)r->repetition);
    if (!(fabsf(r->presence) <= 2))
        return FAIL(c, LLM_EPARAM, "the presence penalty is %.9g, not in [-2, 2]",
                    (double)r->presence);
    if (!(fabsf(r->frequency) <= 2))
        return FAIL(c, LLM_EPARAM, "the frequency penalty is %.9g, not in [-2, 2]",
                    (double)r->frequency);
    if (r->top_logprobs > c->ring.top)
        return FAIL(c, LLM_EPARAM,
                    "top_logprobs is %u, but this connection has room for %u: connect with "
                    "llm_options.max_top_logprobs (at most %d)",
                    r->top_logprobs, c->ring.top, LLM_TOP_MAX);
    return 0;
}

static int check_stops(struct llm_client *c, const struct llm_request *r)
{
    if (r->n_stops > LLM_STOPS_MAX || (r->n_stops && !r->stops))
        return FAIL(c, LLM_EPARAM, "n_stops is %u, not in 0 .. %d", r->n_stops, LLM_STOPS_MAX);
    for (uint32_t i = 0; i < r->n_stops; i++)
        if (!r->stops[i].bytes || r->stops[i].bytes > LLM_STOP_BYTES_MAX || !r->stops[i].text)
            return FAIL(c, LLM_EPARAM, "stop string %u has %u bytes, not 1 .. %d", i,
                        r->stops[i].bytes, LLM_STOP_BYTES_MAX);
    return 0;
}

/* That each token stands there once, the engine finds out. */
static int check_biases(struct llm_client *c, const struct llm_request *r)
{
    if (r->n_biases > LLM_BIASES_MAX || (r->n_biases && !r->biases))
        return FAIL(c, LLM_EPARAM, "n_biases is %u, not in 0 .. %d", r->n_biases, LLM_BIASES_MAX);
    for (uint32_t i = 0; i < r->n_biases; i++) {
        const struct llm_bias *b = &r->biases[i];
        if ((uint32_t)b->token >= c->limits.vocab)
            return FAIL(c, LLM_ETOKEN, "the token of bias %u is %d, outside the vocabulary of %u",
                        i, b->token, c->limits.vocab);
        if (!(fabsf(b->bias) <= 100))
            return FAIL(c, LLM_EPARAM, "the bias of token %d is %.9g, not in [-100, 100]", b->token,
                        (double)b->bias);
    }
    return 0;
}

/* What goes into the option map of a generate. */
static int check_options(struct llm_client *c, const struct llm_request *r)
{
    bool given = r->n_stops || r->n_biases || r->top_logprobs;
    if (r->op != LLM_OP_GENERATE)
        return given ? FAIL(c, -EINVAL, "stops, biases and top_logprobs are of a generate") : 0;
    int rc = check_stops(c, r);
    return rc ? rc : check_biases(c, r);
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
    return check_penalties(c, r);
}

static int check_continuation(struct llm_client *c, const struct llm_request *r)
{
    if (r->op != LLM_OP_GENERATE)
        return r->first_choice || r->output_from || r->deadline_us || r->max_itl_us
                   ? FAIL(
                         c, LLM_EPARAM,
                         "first_choice, output_from, deadline_us and max_itl_us are of a generate; "
                         "timeout_ms and queue_timeout_ms bound any request")
                   : 0;
    if ((uint64_t)r->first_choice + r->choices > LLM_CHOICES_MAX)
        return FAIL(c, LLM_EPARAM, "first_choice %u and choices %u exceed %d choices",
                    r->first_choice, r->choices, LLM_CHOICES_MAX);
    if (r->output_from > r->n_tokens)
        return FAIL(c, LLM_EPARAM, "output_from is %u, behind the %u tokens", r->output_from,
                    r->n_tokens);
    if (r->output_from && r->n_tokens - r->output_from > r->max_tokens)
        return FAIL(c, LLM_EPARAM, "%u tokens from output_from on are more than max_tokens %u",
                    r->n_tokens - r->output_from, r->max_tokens);
    return 0;
}

static int check_labels(struct llm_client *c, const struct llm_request *r)
{
    if (r->op != LLM_OP_CHOOSE)
        return r->n_labels ? FAIL(c, -EINVAL, "labels are of a choose") : 0;
    if (!r->n_labels || r->n_labels > LLM_CHOICES_MAX || !r->labels)
        return FAIL(c, LLM_EPARAM, "n_labels is %u, not in 1 .. %d", r->n_labels, LLM_CHOICES_MAX);
    if (r->n_labels > c->ring.max_inflight)
        return FAIL(c, LLM_EPARAM, "n_labels is %u, more than max_inflight %u", r->n_labels,
                    c->ring.max_inflight);
    for (uint32_t i = 0; i < r->n_labels; i++) {
        const struct llm_label *label = &r->labels[i];
        if (!label->n_tokens || !label->tokens)
            return FAIL(c, LLM_EPARAM, "label %u has no tokens: each needs at least one", i);
        if (label->n_tokens > LLM_OPTIONS_MAX / sizeof(int32_t))
            return FAIL(c, -E2BIG, "label %u has %u tokens: all of them may have %d bytes", i,
                        label->n_tokens, LLM_OPTIONS_MAX);
        int rc = check_ids(c, "a label's token", label->tokens, label->n_tokens);
        if (rc)
            return rc;
    }
    uint64_t bytes = request_options_bytes(r);
    return bytes > LLM_OPTIONS_MAX ? FAIL(c, -E2BIG, "the labels take %llu bytes, more than %d",
                                          (unsigned long long)bytes, LLM_OPTIONS_MAX)
                                   : 0;
}

static int check_session(struct llm_client *c, const struct llm_request *r)
{
    bool cuts = r->op == LLM_OP_GENERATE || r->op == LLM_OP_SESSION_APPEND;
    bool keep_given = r->session_keep && r->session_keep != LLM_SESSION_ALL;
    if (session_operation(r->op) && !r->session)
        return FAIL(c, LLM_EPARAM, "a session's key is not 0: llm_session_key makes one of a name");
    if (r->session && !session_operation(r->op) && r->op != LLM_OP_GENERATE)
        return FAIL(c, LLM_EPARAM, "of a session there is no score, choose or nop");
    if (r->session && r->op == LLM_OP_GENERATE && (r->choices != 1 || r->output_from))
        return FAIL(c, LLM_EPARAM, "on a session one choice is generated, and output_from is 0");
    if (keep_given && !(r->session && cuts))
        return FAIL(c, LLM_EPARAM, "session_keep is of a session's append or generate");
    if (r->op == LLM_OP_SESSION_FORK && (!r->session_to || r->session_to == r->session))
        return FAIL(c, LLM_EPARAM, "session_to is %s: a fork needs a new key",
                    r->session_to ? "the session itself" : "0");
    if (r->op != LLM_OP_SESSION_FORK && r->session_to)
        return FAIL(c, LLM_EPARAM, "session_to is of a fork");
    if (r->flags & LLM_SQE_INTERRUPT && !(r->session && r->op != LLM_OP_SESSION_OPEN))
        return FAIL(c, LLM_EPARAM, "LLM_SQE_INTERRUPT is of a session that is there");
    if (r->flags & LLM_SQE_PIN && r->op != LLM_OP_SESSION_OPEN)
        return FAIL(c, LLM_EPARAM, "LLM_SQE_PIN is of llm_session_open");
    return 0;
}

static int check_speculation(struct llm_client *c, const struct llm_request *r)
{
    bool on = r->flags & LLM_SQE_SPECULATE, off = r->flags & LLM_SQE_NO_SPECULATION;
    if ((on || off) && r->op != LLM_OP_GENERATE)
        return FAIL(c, LLM_EPARAM, "LLM_SQE_%s is of a generate",
                    on ? "SPECULATE" : "NO_SPECULATION");
    if (on && off)
        return FAIL(c, LLM_EPARAM, "LLM_SQE_SPECULATE and LLM_SQE_NO_SPECULATION: give one");
    return 0;
}

static int check_head(struct llm_client *c, const struct llm_request *r)
{
    if (r->op == LLM_OP_CANCEL)
        return FAIL(c, -EINVAL, "a cancel is sent by llm_cancel");
    if (r->op > LLM_OP_LAST)
        return FAIL(c, -EINVAL, "operation %u is not one of enum llm_op", r->op);
    if (r->flags & ~(uint32_t)LLM_SQE_FLAGS)
        return FAIL(c, -EINVAL, "flags %#x has bits that this library does not know", r->flags);
    if (r->priority > LLM_PRIORITY_LOW)
        return FAIL(c, LLM_EPARAM, "priority %u is not one of enum llm_priority", r->priority);
    if (r->user_data && inflight_find(&c->inflight, r->user_data))
        return FAIL(c, -EINVAL, "user_data %#llx is in flight already",
                    (unsigned long long)r->user_data);
    return 0;
}

int request_check(struct llm_client *c, const struct llm_request *r)
{
    int rc = check_head(c, r);
    if (!rc)
        rc = check_version(c, r);
    if (!rc)
        rc = check_session(c, r);
    if (!rc)
        rc = check_speculation(c, r);
    if (!rc)
        rc = check_labels(c, r);
    if (!rc)
        rc = check_options(c, r);
    if (!rc)
        rc = check_tokens(c, r);
    if (!rc && r->op == LLM_OP_GENERATE)
        rc = check_sampling(c, r);
    return rc ? rc : check_continuation(c, r);
}
