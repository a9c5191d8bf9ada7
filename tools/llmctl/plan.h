/* plan.h - the arithmetic of `plan`: memory, load, money. Plain numbers in, plain numbers out.
 *
 * Memory. A token's KV takes, in each layer, K and V of every KV head:
 *     2 kv_heads (head_dim element_bytes + scale_bytes)
 * in blocks of 16 tokens. What the memory has beside weights and workspace is the pool, if
 * the memory is given; else the pool is llmd's default (appliance/sizing.h).
 *
 * Time. A step of n rows takes c0 + c1 n. With l requests a second of P prompt and O output tokens,
 * n streams run, and steps take T:
 *     T = c0 + c1 (n + l T P)    each step carries the streams and the prompts' share
 *     n = l O T                  Little's law
 * so T = c0 / (1 - rho) with rho = l c1 (P + O), and at least c0 + c1. A prompt is read in
 *     S = ceil(P / chunk) (c0 + c1 n) + P c1
 * and prompts are read one after the other: they wait as in a queue M/D/1 with the utilization
 * r = l S, on average W = r S / (2 (1 - r)) (Pollaczek and Khinchine; L. Kleinrock, Queueing
 * Systems I, ch. 5). The 95th percentile takes the wait of those that wait as exponential, which is
 * exact under heavy load (J. Kingman, The single server queue in heavy traffic, 1961):
 *     P(wait > t) = r exp(-t r / W)
 * Who arrives finds a step under way with the probability min(1, n): half of it is left on average.
 * Not counted: that attention takes longer the longer the context is.
 */
#ifndef LLMCTL_PLAN_H
#define LLMCTL_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "../../gpu/gpu.h"

struct plan_memory {
    uint64_t memory_bytes, weights_bytes, workspace_bytes;
    uint64_t block_bytes, blocks; /* of the pool */
    double token_bytes;           /* KV of one token */
};

struct plan_speed {
    double step_s; /* of one row */
    double row_s;  /* of each further row */
};

struct plan_load {
    double requests_per_s, prompt, output; /* tokens of a request */
    uint32_t chunk;                        /* prompt tokens in a step */
    double users;                          /* that fit at once */
};

struct plan_times {
    bool holds;             /* else the rest is zero */
    double step_s, running; /* T, n */
    double reading;         /* r: share of the time in which a prompt is read */
    double ttft_s, ttft_p95_s;
    double gap_s, gap_beside_prompt_s; /* between tokens: as a rule; while a prompt is read */
};

struct plan_cost {
    double per_hour;              /* of the machine */
    double hosted_in, hosted_out; /* per million tokens */
    double per_million, hosted_per_million;
    double break_even_requests_per_s;
};

/* Bytes of a block of 16 tokens, all layers. */
uint64_t plan_block_bytes(const struct gpu_model *m, enum gpu_kv_type type);
/* What steps work in, about: rows of activations, logits, RoPE tables. */
uint64_t plan_workspace_bytes(const struct gpu_model *m, uint32_t rows, uint32_t max_len);
/* Fills the pool from the rest. False: the weights and the workspace do not fit. */
bool plan_pool(struct plan_memory *m);

void plan_times(struct plan_times *out, const struct plan_speed *s, const struct plan_load *l);
/* The highest rate of such requests that holds. */
double plan_max_rate(const struct plan_speed *s, const struct plan_load *l);

/* The last three of `c` from the others. Zero where nothing is paid or sent. */
void plan_cost(struct plan_cost *c, const struct plan_load *l);

#endif
