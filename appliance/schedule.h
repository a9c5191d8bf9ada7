/* schedule.h - which rows the next step computes: queue, admission, preemption, forks.
 *
 * A step is formed in this order, within max_num_batched_tokens rows:
 *   1. every running decode (those that were served longest ago first, where they are too many),
 *   2. prefill chunks of what runs, oldest first, each at most prefill_chunk rows,
 *   3. the head of the waiting queue, as long as a place, rows and blocks are free.
 * Where decodes alone would fill every step, every second one leaves a quarter of its rows to
 * prompts: else a few long answers would keep all others waiting.
 *
 * Invariants
 *   1. running[] is in order of admission, the waiting queue in order of arrival.
 *   2. The oldest running sequence always gets its blocks: whoever was admitted last gives its own
 *      up. A sequence that could not run alone was refused before, so everything ends.
 *   3. A sequence is admitted only if blocks for its whole known history and one token more are
 *      there, beyond what the running prefills still need: it is not thrown out at once.
 *   4. A step has at most one output for each row of the budget (a fork costs a row of it).
 *   5. Nothing here allocates after schedule_create.
 */
#ifndef LLMD_SCHEDULE_H
#define LLMD_SCHEDULE_H

#include "engine.h"
#include "kv_pool.h"
#include "sequence.h"
#include "stats.h"

struct schedule {
    const struct engine_config *config;
    struct stats *stats;
    struct kv_pool pool;
    struct list waiting;
    uint32_t n_waiting;        /* followers included */
    struct sequence **running; /* (max_num_seqs) */
    uint32_t n_running;
    uint32_t watermark;  /* blocks that an admission leaves free */
    uint64_t admissions; /* so far */
    uint64_t served;     /* admission number of the decode that was served last */
    bool prompts_turn;   /* the last full step left rows to prompts */

    /* the step */
    uint64_t now_ns;
    uint32_t budget;               /* rows left */
    struct gpu_step step;          /* points to the arrays below */
    int32_t *tokens;               /* (max_num_batched_tokens) */
    struct gpu_seq *seqs;          /* (max_num_seqs) */
    struct gpu_output *outputs;    /* (max_num_batched_tokens) */
    struct gpu_result *results;    /* (max_num_batched_tokens) */
    struct sequence **output_of;   /* (max_num_batched_tokens) */
    struct sequence **turns;       /* (max_num_seqs) scratch: decodes in the order of their turn */
    uint32_t *copy_dst, *copy_src; /* (max_num_seqs) blocks to copy when the step is done */
    uint32_t n_copies;
    uint32_t decode_rows, prefill_rows;
};

/* `config` and `stats` outlive it. 0; -EINVAL, -ENOMEM. */
int schedule_create(struct schedule *c, const struct engine_config *config, struct stats *stats,
                    struct fail *f);
void schedule_destroy(struct schedule *c);

/* A new sequence, behind all others. */
void schedule_enqueue(struct schedule *c, struct sequence *s);
/* A further choice of `leader`, which was enqueued just before: it waits for the leader's prompt.
 */
void schedule_follow(struct schedule *c, struct sequence *leader, struct sequence *s);

/* Forms c->step: at least one row if anything runs or waits. */
void schedule_form(struct schedule *c, uint64_t now_ns);

/* The step was computed and the copies were made: histories advance, forks get their blocks. To be
 * called before the results are looked at. */
void schedule_advance(struct schedule *c);

/* Takes a sequence out of queue or running set and gives its blocks back. */
void schedule_remove(struct schedule *c, struct sequence *s);

#endif
