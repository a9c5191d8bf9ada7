/* options.h - llmd's command line: what may be said, and what it means.
 *
 *     struct options o;
 *     switch (options_parse(&o, argc, argv, &f)) { case OPTIONS_RUN: ... }
 *
 * Every option takes `--name VALUE` or `--name=VALUE`; a later one replaces an earlier one. What is
 * wrong is said in one sentence that names the option and, where there is one, the range or the
 * closest name. Limits that depend on the model (the longest sequence) are checked where it is
 * known.
 */
#ifndef LLMD_OPTIONS_H
#define LLMD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../gpu/gpu.h"
#include "waiter.h"

/* Strings point into argv. 0 stands for "not given" where the default needs the model or machine.
 */
struct options {
    const char *model;             /* path; always set */
    const char *instance;          /* "default" */
    const char *served_model_name; /* NULL: the model's own name */
    bool plain;                    /* --backend cpu-plain */
    enum gpu_activations activations;
    enum gpu_kv_type kv_type;
    enum waiter_kind waiter;
    uint32_t threads;                /* 0: one a CPU */
    uint32_t max_model_len;          /* 0: the model's context */
    uint32_t max_num_seqs;           /* 64 */
    uint32_t max_num_batched_tokens; /* 512 */
    uint32_t prefill_chunk;          /* 0: no cap of its own */
    uint32_t max_requests;           /* 1024 */
    uint32_t max_clients;            /* 64 */
    uint32_t idle_spin_us;           /* 50 */
    uint32_t num_kv_blocks;          /* 0: sized in bytes */
    uint64_t kv_cache_memory;        /* bytes; 0: from the machine */
};

enum options_result { OPTIONS_RUN = 0, OPTIONS_HELP = 1, OPTIONS_VERSION = 2 };

/* Returns an enum options_result, or -EINVAL with the sentence in f. */
int options_parse(struct options *o, int argc, char **argv, struct fail *f);
void options_help(FILE *out);

/* "512M", "1.5GiB" is not one: digits, then nothing or one of K M G T (powers of 1024), then
 * optionally "B" or "iB". Returns 0, or -EINVAL, -ERANGE. */
int options_size(const char *text, uint64_t *bytes);

#endif
