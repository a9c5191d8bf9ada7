/* submission.h - is this entry one that the engine can serve? Judges the engine's own copy of an
 * entry; pure functions. */
#ifndef LLMD_SUBMISSION_H
#define LLMD_SUBMISSION_H

#include "engine.h"

struct submission_verdict {
    int32_t code;  /* 0, or what the ERROR final says */
    uint32_t fits; /* the number that would have fitted, 0 where there is none */
};

/* Everything but the token ids. -EINVAL: not an entry of this minor version (unknown operation or
 * flag, a reserved field that is not zero); LLM_EPARAM: a value out of its range (choices: `fits`
 * is the most); LLM_ETOOLONG: over max_model_len, or over what the whole KV pool holds. */
struct submission_verdict submission_check(const struct llm_sqe *q,
                                           const struct engine_config *config);

/* LLM_ETOKEN where an id is outside the vocabulary. */
struct submission_verdict submission_check_tokens(const int32_t *tokens, uint32_t n,
                                                  uint32_t vocab);

/* Prompt and output tokens that one sequence may have. */
uint32_t submission_longest(const struct engine_config *config);
/* Blocks that one domain may pin. */
uint32_t submission_pin_quota(const struct engine_config *config);

#endif
