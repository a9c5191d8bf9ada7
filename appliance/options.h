/* options.h - what llmd may be told, on its command line and in a configuration file.
 *
 *     struct options o;
 *     switch (options_parse(&o, argc, argv, &f)) { case OPTIONS_RUN: ... }
 *
 * Every option takes `--name VALUE` or `--name=VALUE`; a later one replaces an earlier one.
 * Switches are `--name`, `--name yes|no` or `--no-name`. The file that --config names (config.h) is read first,
 * wherever it stands: what the command line says wins. What is wrong is said in one sentence that
 * names the option and, where there is one, the range or the closest name; of a file, with its
 * line. Limits that depend on the model or the machine are checked where those are known.
 */
#ifndef LLMD_OPTIONS_H
#define LLMD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../gpu/gpu.h"
#include "cpus.h"
#include "engine.h"
#include "log.h"
#include "waiter.h"

enum { OPTIONS_NO_CPU = UINT32_MAX, OPTIONS_TEXT = 6 << 10 };
#define OPTIONS_FOREVER UINT32_MAX /* idle_spin_us: never sleeps */

enum options_speculative { SPECULATIVE_OFF, SPECULATIVE_NGRAM };

/* Strings point into argv or into `text`, so this is not copied. 0 stands for "not given" where the
 * default needs the model or machine. */
struct options {
    const char *config;            /* NULL: no file */
    const char *model;             /* path; always set */
    const char *instance;          /* "default" */
    const char *served_model_name; /* NULL: the model's own name */
    bool plain, avx2;              /* --backend cpu-plain, cpu-avx2 */
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
    double gpu_memory_utilization;   /* (0, 1]; 0: not given */
    uint32_t block_size;             /* GPU_KV_BLOCK */

    /* promises; 0: off, unless said otherwise */
    uint32_t max_itl_ms, queue_timeout_ms, timeout_ms;
    uint32_t max_step_ms; /* 100 */
    uint32_t max_waiting; /* 0: max_requests */
    uint32_t max_waiting_tokens;
    uint32_t max_unread_tokens; /* 65536 */
    uint32_t drain_timeout_ms;  /* 5000 */

    bool prefix_caching;                           /* yes */
    enum options_speculative speculative;          /* what requests do that say nothing: off */
    uint32_t speculative_tokens;                   /* 8; 0: none may */
    uint32_t prompt_lookup_min, prompt_lookup_max; /* 2, 8 */
    uint32_t max_sessions;                         /* 64 */
    uint32_t session_idle_s;                       /* 300; 0: never */

    /* of each user; 0: none */
    uint32_t quota_clients;
    uint64_t quota_memory; /* bytes of shared memory */
    struct engine_quota quota;

    struct cpus cpu_list; /* --cpu-list with --io-cpu in front; n 0: not given */
    uint32_t io_cpu;      /* OPTIONS_NO_CPU: not given */
    uint32_t rt_priority; /* SCHED_FIFO's; 0: not given */
    bool mlock;
    enum gpu_huge_pages huge_pages; /* auto */
    enum log_level log_level;       /* info */
    bool log_json;
    bool check_config;

    uint64_t given; /* bit i: option i of the table was named */
    uint16_t
        line[64]; /* of the file, that set option i; 0: none, or the command line replaced it */
    uint32_t text_bytes;
    char text[OPTIONS_TEXT]; /* strings of the file */
};

enum options_result { OPTIONS_RUN = 0, OPTIONS_HELP = 1, OPTIONS_VERSION = 2, OPTIONS_CHECK = 3 };

/* Returns an enum options_result, or -EINVAL with the sentence in f. */
int options_parse(struct options *o, int argc, char **argv, struct fail *f);
void options_help(FILE *out);

/* The options in effect as a configuration file: what --check-config shows. What only the model or
 * the machine decides stands in comments. */
void options_print(FILE *out, const struct options *o);

/* What a file says: `name` without dashes. Copies the value. -EINVAL with a sentence that begins
 * with the name; -ENOENT for a name that is unknown. *known becomes the option's number. */
int options_set_from_file(struct options *o, const char *name, const char *value, unsigned *known,
                          struct fail *f);

/* "512M", "1.5GiB" is not one: digits, then nothing or one of K M G T (powers of 1024), then
 * optionally "B" or "iB". Returns 0, or -EINVAL, -ERANGE. */
int options_size(const char *text, uint64_t *bytes);

#endif
