/* submission.c - see submission.h. Comparisons are written so that a NaN fails them. */
#include "submission.h"

#include <errno.h>
#include <math.h>

#include "kv_pool.h"

static bool is_session_op(const struct llm_sqe *q)
{
    return q->op >= LLM_OP_SESSION_OPEN && q->op <= LLM_OP_SESSION_CLOSE;
}

/* Fields that no operation uses yet, or that this one does not. */
static bool rest_is_zero(const struct llm_sqe *q)
{
    bool generate = q->op == LLM_OP_GENERATE;
    return !q->adapter && !q->rope_len && !q->reserved2 &&
           (q->op == LLM_OP_CHOOSE || (generate && q->options_len) ||
            (!q->options_len && !q->options_off)) &&
           (generate ||
            (!q->output_from && !q->first_choice && !q->deadline_us && !q->max_itl_us)) &&
           (generate || is_session_op(q) || !q->session) &&
           (q->op == LLM_OP_CANCEL || q->session || !q->target);
}

enum { SPECULATION = LLM_SQE_SPECULATE | LLM_SQE_NO_SPECULATION };

static bool flags_fit(const struct llm_sqe *q)
{
    bool session = q->session != 0;
    return !(q->flags & ~LLM_SQE_FLAGS) && (session || !(q->flags & LLM_SQE_INTERRUPT)) &&
           (q->op == LLM_OP_SESSION_OPEN || !(q->flags & LLM_SQE_PIN)) &&
           (q->op == LLM_OP_GENERATE || !(q->flags & SPECULATION)) &&
           (q->flags & SPECULATION) != SPECULATION;
}

static bool well_formed(const struct llm_sqe *q)
{
    return q->op <= LLM_OP_LAST && q->priority <= LLM_PRIORITY_LOW && flags_fit(q) &&
           rest_is_zero(q);
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
           q->min_p <= 1.0f && q->repetition > 0.0f && fabsf(q->presence) <= 2.0f &&
           fabsf(q->frequency) <= 2.0f && q->options_len <= LLM_OPTIONS_MAX;
}

/* Prompt and output tokens that one sequence may have. The last one is never an input, so it needs
 * no KV. */
static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t longest_in(const struct engine_config *config, uint64_t blocks)
{
    return least(least(blocks, config->n_blocks) * GPU_KV_BLOCK + 1, config->max_model_len);
}

/* Pins never keep a domain's own requests out. With no quota of their own they get what its longest
 * request leaves of its blocks; a stated one is kept for them, up to half, and is what requests do
 * not get. */
uint32_t submission_pin_quota(const struct engine_config *config)
{
    const struct engine_quota *q = &config->quota;
    if (!q->kv_blocks)
        return q->pinned_blocks ? q->pinned_blocks : UINT32_MAX;
    if (q->pinned_blocks)
        return (uint32_t)least(q->pinned_blocks, q->kv_blocks / 2);
    return q->kv_blocks - kv_blocks_for((uint32_t)longest_in(config, q->kv_blocks) - 1);
}

uint32_t submission_longest(const struct engine_config *config)
{
    uint64_t blocks = UINT32_MAX;
    if (config->quota.kv_blocks)
        blocks = config->quota.kv_blocks - submission_pin_quota(config);
    return (uint32_t)longest_in(config, blocks);
}

static struct submission_verdict check_length(uint32_t prompt, uint32_t output,
                                              const struct engine_config *config)
{
    uint32_t longest = submission_longest(config);
    if ((uint64_t)prompt + output <= longest)
        return (struct submission_verdict){0, 0};
    if (prompt < longest)
        return (struct submission_verdict){LLM_ETOOLONG, longest - prompt};
    return (struct submission_verdict){LLM_ETOOLONG,
                                       output < longest ? longest - output : longest - 1};
}

static struct submission_verdict bad(uint32_t fits)
{
    return (struct submission_verdict){LLM_EPARAM, fits};
}

static struct submission_verdict check_choices(const struct llm_sqe *q,
                                               const struct engine_config *config)
{
    uint32_t choices = (uint32_t)least(config->max_requests, LLM_CHOICES_MAX);
    if (q->choices > choices)
        return bad(choices);
    if (q->first_choice + q->choices > LLM_CHOICES_MAX)
        return bad(0);
    return (struct submission_verdict){0, 0};
}

/* With a session the core knows the length of its history. */
static struct submission_verdict check_generate(const struct llm_sqe *q,
                                                const struct engine_config *config)
{
    if ((!q->tokens_len && !q->session) || !q->max_tokens || !q->choices || !sampling_in_range(q))
        return bad(0);
    struct submission_verdict v = check_choices(q, config);
    if (v.code)
        return v;
    if (q->session)
        return q->choices == 1 && !q->output_from
                   ? check_length(q->tokens_len, q->max_tokens, config)
                   : bad(0);
    if (!q->output_from)
        return check_length(q->tokens_len, q->max_tokens, config);
    if (q->output_from > q->tokens_len || q->tokens_len - q->output_from > q->max_tokens)
        return bad(0);
    return check_length(q->output_from, q->max_tokens, config);
}

static struct submission_verdict check_session(const struct llm_sqe *q,
                                               const struct engine_config *config)
{
    bool open = q->op == LLM_OP_SESSION_OPEN, append = q->op == LLM_OP_SESSION_APPEND;
    if (!config->max_sessions)
        return (struct submission_verdict){LLM_EQUOTA, 0};
    if (!q->session || q->choices > 1 || (!open && !append && q->tokens_len))
        return bad(0);
    if ((open || q->op == LLM_OP_SESSION_CLOSE) && q->target)
        return bad(0);
    if (q->op == LLM_OP_SESSION_FORK && !q->target)
        return bad(0);
    return check_length(q->tokens_len, 0, config);
}

static struct submission_verdict check_choose(const struct llm_sqe *q,
                                              const struct engine_config *config)
{
    if (!q->tokens_len || !q->choices || !q->options_len || q->options_len > LLM_OPTIONS_MAX)
        return bad(0);
    struct submission_verdict v = check_choices(q, config);
    return v.code ? v : check_length(q->tokens_len, 1, config);
}

static struct submission_verdict check_score(const struct llm_sqe *q,
                                             const struct engine_config *config)
{
    if (q->choices > 1)
        return bad(1);
    return q->tokens_len < 2 ? bad(0) : check_length(q->tokens_len, 0, config);
}

struct submission_verdict submission_check(const struct llm_sqe *q,
                                           const struct engine_config *config)
{
    if (!well_formed(q))
        return (struct submission_verdict){-EINVAL, 0};
    if (!all_finite(q))
        return bad(0);
    if (q->op == LLM_OP_GENERATE)
        return check_generate(q, config);
    if (q->op == LLM_OP_SCORE)
        return check_score(q, config);
    if (q->op == LLM_OP_CHOOSE)
        return check_choose(q, config);
    if (is_session_op(q))
        return check_session(q, config);
    return q->choices > 1 ? bad(1) : (struct submission_verdict){0, 0};
}

struct submission_verdict submission_check_tokens(const int32_t *tokens, uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab)
            return (struct submission_verdict){LLM_ETOKEN, 0};
    return (struct submission_verdict){0, 0};
}
