/* request.c - see request.h. */
#include "request.h"

enum { COMPLETION_TOKENS = 16 /* OpenAI's default of max_tokens */ };

_Static_assert((int)PARAMS_STOPS_MAX == (int)LLM_STOPS_MAX &&
                   (int)PARAMS_BIASES_MAX == (int)LLM_BIASES_MAX &&
                   (int)PARAMS_TOP_MAX == (int)LLM_TOP_MAX,
               "what the parameters allow is what a request takes");

static int check_candidates(const struct call *c, struct problem *problem)
{
    if (c->params.top_logprobs <= c->model->max_top_logprobs)
        return 0;
    return problem_set(problem, 400, "unsupported_value", "top_logprobs",
                       "this engine gives at most %u candidates for each token",
                       c->model->max_top_logprobs);
}

static int check_bias_ids(const struct call *c, struct problem *problem)
{
    for (uint32_t i = 0; i < c->params.n_biases; i++)
        if ((uint32_t)c->params.biases[i].token >= c->model->limits.vocab)
            return problem_value(problem, "logit_bias",
                                 "logit_bias names token %d: the model's tokens are 0 to %u",
                                 c->params.biases[i].token, c->model->limits.vocab - 1);
    return 0;
}

/* Every prompt with what it may generate has to fit. */
static int check_length(struct call *c, struct problem *problem)
{
    uint32_t longest = 0, room = c->model->limits.max_model_len;
    for (uint32_t i = 0; i < c->n_prompts; i++)
        longest = c->prompts[i].n > longest ? c->prompts[i].n : longest;
    if (longest >= room)
        return problem_set(
            problem, 400, "context_length_exceeded",
            c->params.api == API_CHAT ? "messages" : "prompt",
            "the prompt has %u tokens, this model's context is %u tokens: at most %u "
            "fit as a prompt",
            longest, room, room - 1);
    if (c->params.max_tokens == UINT32_MAX) {
        uint32_t fits = room - longest;
        c->params.max_tokens = c->params.api == API_CHAT  ? fits
                               : fits < COMPLETION_TOKENS ? fits
                                                          : COMPLETION_TOKENS;
    }
    if (c->params.max_tokens <= room - longest)
        return 0;
    return problem_set(problem, 400, "context_length_exceeded", "max_tokens",
                       "the prompt has %u tokens, this model's context is %u tokens: max_tokens is "
                       "%u, at most %u fit",
                       longest, room, c->params.max_tokens, room - longest);
}

/* A score is one of tokens behind a first one. */
static int check_scores(const struct call *c, struct problem *problem)
{
    for (uint32_t i = 0; c->params.echo && c->params.logprobs && i < c->n_prompts; i++)
        if (c->prompts[i].n < 2)
            return problem_value(problem, "echo",
                                 "'echo' with 'logprobs' needs prompts of at least 2 tokens");
    return 0;
}

int request_judge(struct call *c, struct problem *problem)
{
    if (check_scores(c, problem))
        return -1;
    if (check_candidates(c, problem) || check_bias_ids(c, problem))
        return -1;
    return check_length(c, problem);
}

static void fill_lists(const struct params *p, struct llm_request *r, struct request_lists *lists)
{
    for (uint32_t i = 0; i < p->n_stops; i++)
        lists->stops[i] = (struct llm_stop){p->stops[i].text, p->stops[i].bytes};
    for (uint32_t i = 0; i < p->n_biases; i++)
        lists->biases[i] = (struct llm_bias){p->biases[i].token, p->biases[i].bias};
    r->stops = lists->stops;
    r->n_stops = p->n_stops;
    r->biases = lists->biases;
    r->n_biases = p->n_biases;
}

static void fill_promises(const struct promises *p, struct llm_request *r)
{
    r->priority = p->priority;
    r->deadline_us = p->deadline_us;
    r->timeout_ms = p->timeout_ms;
    r->queue_timeout_ms = p->queue_timeout_ms;
    r->max_itl_us = p->max_itl_us;
}

static void fill_generate(const struct params *p, struct llm_request *r)
{
    r->max_tokens = p->max_tokens;
    r->choices = p->n;
    r->flags = (p->logprobs ? LLM_SQE_LOGPROBS : 0) | (p->ignore_eos ? LLM_SQE_IGNORE_EOS : 0) |
               p->speculation;
    r->seed = p->seed;
    r->temperature = (float)p->temperature;
    r->top_p = (float)p->top_p;
    r->min_p = (float)p->min_p;
    r->top_k = p->top_k;
    r->repetition = (float)p->repetition;
    r->presence = (float)p->presence;
    r->frequency = (float)p->frequency;
    r->top_logprobs = p->top_logprobs;
}

void request_fill(const struct call *c, uint32_t unit, struct llm_request *r,
                  struct request_lists *lists)
{
    const struct prompt *prompt = &c->prompts[unit % c->n_prompts];
    *r = (struct llm_request)LLM_REQUEST_INIT;
    r->tokens = prompt->tokens;
    r->n_tokens = prompt->n;
    fill_promises(&c->promises, r);
    if (unit < c->n_prompts) {
        r->op = LLM_OP_SCORE;
        return;
    }
    fill_generate(&c->params, r);
    fill_lists(&c->params, r, lists);
}
