/* params.h - the parameters of /v1/completions and /v1/chat/completions, checked.
 *
 * What a parameter may be stands in one table (params.c). null is the same as absent. A name that is
 * not in the table is refused, as is a parameter of the other endpoint: nothing is silently ignored
 * but what has no effect on the answer (user, metadata, store, ...).
 */
#ifndef LLMD_GATEWAY_PARAMS_H
#define LLMD_GATEWAY_PARAMS_H

#include <jansson.h>

#include "../../client/llmclient.h"
#include "problem.h"

enum api { API_COMPLETION = 1, API_CHAT = 2 };

enum { PARAMS_STOPS_MAX = 16, PARAMS_BIASES_MAX = 1024, PARAMS_TOP_MAX = 20 };

enum tool_choice { TOOL_AUTO, TOOL_NONE, TOOL_REQUIRED, TOOL_NAMED };

struct stop_text {
    const char *text; /* lies in the request's JSON */
    uint32_t bytes;
};

struct token_bias {
    int32_t token;
    float bias;
};

struct params {
    enum api api;
    const char *model;
    bool stream, include_usage, echo, logprobs, ignore_eos, add_generation_prompt,
        continue_final_message;
    uint32_t top_logprobs;
    uint32_t speculation;   /* LLM_SQE_SPECULATE, LLM_SQE_NO_SPECULATION; 0: not given */
    uint32_t n, max_tokens; /* UINT32_MAX: not given */
    uint32_t top_k;
    double temperature, top_p, min_p, presence, frequency, repetition;
    uint64_t seed; /* LLM_SEED_RANDOM: not given */
    uint32_t n_stops, n_biases;
    struct stop_text stops[PARAMS_STOPS_MAX];
    struct token_bias *biases;                                    /* (n_biases), malloc'ed */
    const json_t *prompt, *messages, *tools, *template_arguments; /* borrowed; NULL: absent */
    enum tool_choice tool_choice;
    const char *tool_name; /* TOOL_NAMED */
};

/* Fills it from the request. 0, or -1 after a problem; params_free in both cases. `body` must
 * outlive *p. */
int params_read(struct params *p, enum api api, const json_t *body, struct problem *problem);
void params_free(struct params *p);

#endif
