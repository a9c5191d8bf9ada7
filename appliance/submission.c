/* submission.c - see submission.h. Comparisons are written so that a NaN fails them. */
#include "submission.h"

#include <errno.h>
#include <math.h>

static bool reserved_are_zero(const struct llm_sqe *q)
{
    return !q->priority && !q->session && !q->adapter && !q->options_off && !q->options_len &&
           !q->first_choice && !q->output_from && !q->rope_len && !q->deadline_us &&
           !q->timeout_ms && !q->queue_timeout_ms && !q->max_itl_us && !q->reserved2;
}

static bool well_formed(const struct llm_sqe *q)
{
    return q->op <= LLM_OP_CANCEL && !(q->flags & ~3) && reserved_are_zero(q) &&
           (q->op == LLM_OP_CANCEL || !q->target);
}

/* Also where an operation does not use them: a NaN is never meant. */
static bool all_finite(const struct llm_sqe *q)
{
    return isfinite(q->temperature) && isfinite(q->top_p) && isfinite(q->min_p) &&
           isfinite(q->repetition) && isfinite(q->presence) && isfinite(q->frequency);
}

static bool sampling_in_range(const struct llm_sqe *q)
{
    return q->temperature >= 0.0f && q->top_p > 0.0f && q->top_p <= 1.0f && q->min_p >= 0.0f &&
           q->min_p <= 1.0f && q->repetition == 1.0f && q->presence == 0.0f && q->frequency == 0.0f;
}

/* Prompt and output tokens that one sequence may have. The last one is never an input, so it needs
 * no KV. */
static uint32_t longest_sequence(const struct engine_config *config)
{
    uint64_t pool = (uint64_t)config->n_blocks * GPU_KV_BLOCK + 1;
    return pool < config->max_model_len ? (uint32_t)pool : config->max_model_len;
}

static struct submission_verdict check_length(uint32_t prompt, uint32_t output,
                                              const struct engine_config *config)
{
    uint32_t longest = longest_sequence(config);
    if ((uint64_t)prompt + output <= longest)
        return (struct submission_verdict){0, 0};
    if (prompt < longest)
        return (struct submission_verdict){LLM_ETOOLONG, longest - prompt};
    return (struct submission_verdict){LLM_ETOOLONG,
                                       output < longest ? longest - output : longest - 1};
}

static struct submission_verdict check_generate(const struct llm_sqe *q,
                                                const struct engine_config *config)
{
    uint32_t choices =
        config->max_requests < LLM_CHOICES_MAX ? config->max_requests : (uint32_t)LLM_CHOICES_MAX;
    if (!q->tokens_len || !q->max_tokens || !q->choices || !sampling_in_range(q))
        return (struct submission_verdict){LLM_EPARAM, 0};
    if (q->choices > choices)
        return (struct submission_verdict){LLM_EPARAM, choices};
    return check_length(q->tokens_len, q->max_tokens, config);
}

struct submission_verdict submission_check(const struct llm_sqe *q,
                                           const struct engine_config *config)
{
    if (!well_formed(q))
        return (struct submission_verdict){-EINVAL, 0};
    if (!all_finite(q))
        return (struct submission_verdict){LLM_EPARAM, 0};
    if (q->op == LLM_OP_GENERATE)
        return check_generate(q, config);
    if (q->choices > 1)
        return (struct submission_verdict){LLM_EPARAM, 1};
    if (q->op != LLM_OP_SCORE)
        return (struct submission_verdict){0, 0};
    if (q->tokens_len < 2)
        return (struct submission_verdict){LLM_EPARAM, 0};
    return check_length(q->tokens_len, 0, config);
}

struct submission_verdict submission_check_tokens(const int32_t *tokens, uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab)
            return (struct submission_verdict){LLM_ETOKEN, 0};
    return (struct submission_verdict){0, 0};
}
