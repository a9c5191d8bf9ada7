/* choose.c - choosing among labels: the request, and adding up what comes. */
#include <errno.h>
#include <string.h>

#include "handle.h"

int llm_choose(struct llm_client *c, const int32_t *tokens, uint32_t n,
               const struct llm_label *labels, uint32_t n_labels, uint64_t *id)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = LLM_OP_CHOOSE;
    r.tokens = tokens, r.n_tokens = n;
    r.labels = labels, r.n_labels = n_labels;
    return llm_submit(c, &r, id);
}

void llm_choose_begin(struct llm_choose_result *r, uint64_t id, uint32_t n_labels)
{
    *r = (struct llm_choose_result){.id = id, .n_labels = n_labels};
    if (n_labels > LLM_CHOICES_MAX)
        r->n_labels = LLM_CHOICES_MAX;
    if (r->n_labels)
        r->owed = UINT64_MAX >> (64 - r->n_labels);
}

static void settle(struct llm_choose_result *r, const struct llm_event *e)
{
    r->owed &= ~(1ull << e->choice);
    if (r->status)
        return;
    if (e->type == LLM_EVENT_ERROR)
        r->status = e->status;
    else if (e->finish == LLM_FINISH_CANCELLED)
        r->status = -ECANCELED;
    else if (e->finish == LLM_FINISH_TIMEOUT)
        r->status = -ETIMEDOUT;
}

int llm_choose_add(struct llm_choose_result *r, const struct llm_event *e)
{
    if (e->id == r->id && e->choice < r->n_labels) {
        for (uint32_t i = 0; i < e->n_tokens; i++)
            r->logprob[e->choice] += (double)e->logprobs[i];
        r->n_tokens[e->choice] += e->n_tokens;
        if (e->type != LLM_EVENT_TOKENS)
            settle(r, e);
    }
    return r->owed ? 0 : r->status ? r->status : 1;
}

uint32_t llm_choose_best(const struct llm_choose_result *r)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < r->n_labels; i++)
        if (r->logprob[i] > r->logprob[best])
            best = i;
    return best;
}
