/* request.h - checked parameters to a request of the library. */
#ifndef LLMD_GATEWAY_REQUEST_H
#define LLMD_GATEWAY_REQUEST_H

#include "call.h"

/* What depends on the model and the prompts: lengths, token ids. Finds max_tokens where none was
 * given. 0, or -1 after a problem. */
int request_judge(struct call *c, struct problem *problem);

/* The lists that a request points to. */
struct request_lists {
    struct llm_stop stops[PARAMS_STOPS_MAX];
    struct llm_bias biases[PARAMS_BIASES_MAX];
};
/* The request of a unit of the call; it points into the call and into *lists. */
void request_fill(const struct call *c, uint32_t unit, struct llm_request *r,
                  struct request_lists *lists);

#endif
