/* arrivals.h - a workload's requests, in order of arrival, all made before the run: what one policy
 * is offered another is offered too. */
#ifndef LLMD_TESTS_SIM_ARRIVALS_H
#define LLMD_TESTS_SIM_ARRIVALS_H

#include "sim.h"

#define ARRIVALS_NONE UINT32_MAX

struct request {
    uint64_t arrival_ns; /* since the start */
    uint32_t client, n_prompt, n_output;
    uint32_t cancel_at; /* tokens; 0: never */
    uint32_t next;      /* in its client's ring, or ARRIVALS_NONE */
    uint32_t flight;    /* while the engine has it, or ARRIVALS_NONE */
    uint8_t kind;
    uint8_t finals; /* that came */
};

struct arrivals {
    struct request *requests; /* (n) */
    uint32_t n, n_clients;
};

/* False without memory. */
bool arrivals_make(struct arrivals *a, const struct sim_config *config);
void arrivals_free(struct arrivals *a);

/* Token i of the prompt of request r. */
int32_t arrivals_token(const struct sim_config *config, const struct arrivals *a, uint32_t r,
                       uint32_t i);

#endif
