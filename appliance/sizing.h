/* sizing.h - how large the KV pool is, and what that means for the people who plan it.
 *
 * Rules
 *   --num-kv-blocks or --kv-cache-memory given: that, if the machine has it.
 *   --gpu-memory-utilization given: that share of the memory that this process can have, its
 *   weights included, less weights and workspace; no more than there is.
 *   else: the least of 4 GiB, a quarter of the available memory, and what max_num_seqs sequences
 *   of max_model_len can use; but room for one of them, if the machine has it.
 *   A pool that cannot hold one request of max_model_len is refused, with the numbers.
 */
#ifndef LLMD_SIZING_H
#define LLMD_SIZING_H

#include <stdint.h>
#include <stdio.h>

#include "../gpu/gpu.h"

struct sizing_wish {
    uint32_t num_kv_blocks;   /* 0: not given */
    uint64_t kv_cache_memory; /* bytes; 0: not given */
    double utilization;       /* (0, 1]; 0: not given */
    uint32_t max_model_len, max_num_seqs;
    uint64_t own_bytes; /* that the engine takes beside the backend, after the pool was sized */
};

/* What that is about: tables, tokenizer, the clients' segments, the rounding of mappings to huge
 * pages. With SmolLM2's 49152 tokens it is 8 to 12 MiB; without it a control group whose limit is
 * close would kill the process once it is ready. */
uint64_t sizing_own_bytes(uint32_t vocab);

struct sizing {
    uint32_t n_blocks;
    uint64_t kv_bytes, tokens;
};

/* `memory` as the backend reports it after load. 0 or -ENOMEM, -ERANGE with the sentence in f. */
int sizing_plan(struct sizing *out, const struct sizing_wish *wish, const struct gpu_memory *memory,
                struct fail *f);

/* The longest prompt + output: what was wished for (0: nothing), or the model's context. -EDOM with
 * the sentence where it is out of range. */
int sizing_length(uint32_t *out, uint32_t wished, uint32_t context, struct fail *f);

/* The lines that people plan with: weights, KV, tokens, concurrent requests. */
void sizing_print(FILE *out, const struct sizing *s, const struct gpu_memory *memory,
                  uint32_t max_model_len);

#endif
