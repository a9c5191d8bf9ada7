/* record.c - what a request in flight needs to be sent to another engine: its entry, prompt, option
 * map, and the tokens that were delivered. One allocation each, made by llm_submit.
 *
 *     | struct record | choices [n] | prompt | tokens of choice 0 | 1 | ... | option map |
 *
 * Sizes are u64: 64 choices of 2^32 tokens do not overflow them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "handle.h"
#include "resume_state.h"

static uint32_t choices_of(const struct llm_sqe *e)
{
    return e->choices ? e->choices : 1;
}

/* Tokens that one choice can bring. */
static uint32_t room_of(const struct llm_sqe *e, uint32_t base)
{
    if (e->op != LLM_OP_GENERATE)
        return 0;
    return e->max_tokens > base ? e->max_tokens - base : 0;
}

static struct record *lay_out(const struct llm_sqe *e, uint32_t base, uint64_t options)
{
    uint32_t n = choices_of(e), room = room_of(e, base);
    uint64_t bytes = sizeof(struct record) + n * sizeof(struct record_choice) +
                     sizeof(int32_t) * ((uint64_t)e->tokens_len + (uint64_t)n * room) + options;
    struct record *r = calloc(1, bytes);
    if (!r)
        return NULL;
    r->base = base;
    r->choices = (struct record_choice *)(r + 1);
    r->prompt = (int32_t *)(r->choices + n);
    for (uint32_t i = 0; i < n; i++)
        r->choices[i].tokens = r->prompt + e->tokens_len + (uint64_t)i * room;
    r->options = (uint8_t *)(r->prompt + e->tokens_len + (uint64_t)n * room);
    return r;
}

struct record *record_create(struct llm_client *c, const struct llm_sqe *e,
                             const struct llm_request *request, const int32_t *tokens)
{
    uint64_t options = request_options_bytes(request);
    struct record *r = lay_out(e, e->output_from ? e->tokens_len - e->output_from : 0, options);
    if (!r) {
        client_fail(c, -ENOMEM, "no memory to keep the request for llm_resume");
        return NULL;
    }
    r->entry = *e;
    r->entry.options_len = (uint32_t)options;
    r->submitted_ns = client_now_ns();
    r->owed = UINT64_MAX >> (64 - choices_of(e)) << e->first_choice;
    r->sent = true;
    for (uint32_t i = 0; i < choices_of(e); i++)
        r->choices[i].n = e->op == LLM_OP_SCORE; /* the first score is of token 1 */
    if (e->tokens_len)
        memcpy(r->prompt, tokens, (size_t)e->tokens_len * sizeof *r->prompt);
    if (options)
        request_options_write(request, r->options);
    records_append(c->resume, r);
    return r;
}

void record_free(struct llm_client *c, struct record *r)
{
    records_remove(c->resume, r);
    free(r);
}

struct record_choice *record_choice(const struct record *r, uint32_t bit)
{
    return &r->choices[bit - r->entry.first_choice];
}

/* ---- what comes ---- */

static bool keep(struct record *r, struct record_choice *k, const struct llm_cqe *cqe,
                 const char **fault)
{
    if (cqe->position != r->base + k->n || cqe->count > room_of(&r->entry, r->base) - k->n) {
        *fault = "the engine sent tokens out of their order, or more than were asked for";
        return false;
    }
    memcpy(k->tokens + k->n, cqe->tokens, cqe->count * sizeof *k->tokens);
    k->n += cqe->count;
    return true;
}

/* The front of the completion is not shown again. */
static void cut(struct llm_cqe *cqe, uint32_t n)
{
    cqe->position += n;
    cqe->count = (uint16_t)(cqe->count - n);
    memmove(cqe->tokens, cqe->tokens + n, cqe->count * sizeof *cqe->tokens);
    memmove(cqe->logprobs, cqe->logprobs + n, cqe->count * sizeof *cqe->logprobs);
}

bool record_tokens(struct record *r, uint32_t bit, struct llm_cqe *cqe, const char **fault)
{
    struct record_choice *k = record_choice(r, bit);
    if (r->entry.op == LLM_OP_GENERATE)
        return keep(r, k, cqe, fault);
    if (!(r->owed >> bit & 1)) /* a label that has had its final, scored again */
        return false;
    if (cqe->position > k->n) {
        *fault = "the engine left out scores";
        return false;
    }
    uint32_t known = k->n - cqe->position;
    if (known >= cqe->count)
        return false;
    cut(cqe, known);
    k->n += cqe->count;
    return true;
}
