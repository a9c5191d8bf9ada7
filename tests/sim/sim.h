/* sim.h - the scheduler under a virtual clock: the engine's own code (appliance/engine.h), driven by
 * a workload of requests, on a backend that computes nothing and takes the time of a model.
 *
 *     struct sim_config config;
 *     struct sim_result result;
 *     sim_defaults(&config);
 *     sim_workload("overload", 100000, &config);
 *     sim_run(&config, &result);
 *     sim_print(stdout, &config, &result);
 *
 * What is simulated: clients with rings (their entries are taken as clients.c takes them), arrivals,
 * a device whose steps take what struct sim_cost says. What is not: readers that are slow, sessions.
 * The same config brings the same result, to the last nanosecond.
 */
#ifndef LLMD_TESTS_SIM_H
#define LLMD_TESTS_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../../appliance/engine.h"
#include "histogram.h"

enum { SIM_KINDS = 6, SIM_CHOICES = 8 };

/* What a step takes: ns in all, a row, and a key that a row reads. */
struct sim_cost {
    double step, decode_row, prefill_row, decode_key, prefill_key;
    double noise; /* each step takes up to this share more or less */
};

/* Lengths: `least` plus an exponential, `mean` in all, cut at `most`. */
struct sim_length {
    uint32_t least, mean, most;
};

/* One kind of traffic, and when it arrives: every `gap_ns` on average (exactly, if `regular`), `burst`
 * requests together on average, geometric (exactly, if `regular`), all of one client (in turn, if
 * `regular`). */
struct sim_kind {
    const char *name;
    uint32_t clients; /* its own */
    uint32_t count;
    uint64_t start_ns, gap_ns;
    uint32_t burst;
    bool regular;

    enum llm_op op; /* GENERATE; or CHOOSE, `choices` labels of `output` tokens */
    uint16_t choices;
    uint16_t priority;
    struct sim_length prompt, output;
    uint32_t shared; /* so many tokens of each prompt are the same */
    uint32_t deadline_us;
    uint32_t cancel_percent; /* of its requests: after a part of the answer the client has enough */
};

struct sim_config {
    struct engine_config engine;
    struct sim_cost cost;
    const char *workload;
    uint64_t seed;
    struct sim_kind kinds[SIM_KINDS];
    uint32_t n_kinds;
    uint32_t
        check_every; /* steps: how often all blocks are counted; what is cheap is checked always */
};

struct sim_kind_result {
    uint32_t requests, served, refused, missed, cancelled; /* served: brought its first token */
    uint64_t prompt_tokens, output_tokens;                 /* of those that were not refused */
    uint64_t longest_wait_ns;                              /* arrival to admission */
    struct histogram ttft; /* ns from arrival in the ring; those without a first token: for ever */
    struct histogram gap;  /* ns between two tokens of a stream */
};

struct sim_result {
    struct sim_kind_result kinds[SIM_KINDS];
    uint64_t virtual_ns, wall_ns, steps, rows, recomputed, preemptions, mixed_steps;
    uint64_t prefix_hits, prefix_queries;
    double busy_tokens_per_s; /* prompt and output tokens of what was served */
    struct histogram step;    /* ns */
    uint64_t promised_steps;  /* whose gap was promised and could be kept */
    uint64_t late_steps;      /* of these: longer than promised */
    double worst_excess;      /* of these, once the model has learned: the most, as a share */
    uint32_t longest_picks;   /* that the oldest waiting one saw others picked */
    uint64_t longest_stall;   /* steps in a row without a token of output */
    uint64_t digest;          /* of all completions with their times */
    char violation[256];      /* the first broken invariant; empty: none */
};

/* The product's defaults beside a small model on two cores. */
void sim_defaults(struct sim_config *config);

/* Fills kinds (and what else of the config belongs to it). False where there is none of that name.
 */
bool sim_workload(const char *name, uint32_t requests, struct sim_config *config);
/* "name - what it is" of workload i; NULL behind the last. */
const char *sim_workload_line(uint32_t i);

/* 0; or a negative code with the sentence in result->violation. */
int sim_run(const struct sim_config *config, struct sim_result *result);

void sim_print_head(FILE *out, const struct sim_config *config);
void sim_print(FILE *out, const struct sim_config *config, const struct sim_result *result);

#endif
