/* schedule.h - which rows the next step computes: admission, preemption, forks, KV blocks.
 *
 * A step is formed in this order, within max_num_batched_tokens rows:
 *   1. every running decode (those that were served longest ago first, where they are too many),
 *   2. prefill chunks of what runs and of what is admitted for it from the queue, by the queue's
 *      order (queue.h), each at most prefill_chunk rows. Beside decodes whose gap is promised
 *      (max_itl) only as many rows as the cost model (cost.h) expects to fit into it; where none
 *      does, a block's rows every few steps: a promise that cannot be kept starves nobody.
 *      Every QUEUE_AGEING-th time the running prompt that was admitted first goes first. Who is
 *      admitted for its age gets a block's rows at once, the rest by the order.
 *      Where a length of steps is stated (max_step), prompts get rows as long as the step is
 *      expected to stay below it; but four blocks' always, and as long a time as the decodes.
 *      A step that brings a first token is not made half as long again as that prompt alone would
 *      have taken for owners that run many times as much: neither by their prompts, nor by their
 *      decodes, some of which wait a step unless their gap is promised.
 * Where decodes alone would fill every step, every second one leaves a quarter of its rows to
 * prompts: else a few long answers would keep all others waiting.
 *
 * Blocks come, in this order, from: the free ones; cached ones, the least recently used first;
 * leases of what does not run (idle sessions before all), the oldest first; preemption.
 * Whoever must have one block more takes from the least urgent that runs; for an admission only a
 * lower class gives way, once it has brought tokens for what its history cost, and an owner that has
 * more than half of what runs.
 *
 * Invariants
 *   1. running[] is in order of admission. running[0] is never preempted for another's blocks, so
 *      everything ends; what has brought no token since its admission is not preempted to make room
 *      for an admission, so nothing is moved in and out for ever.
 *   2. A sequence is admitted only if blocks for its whole known history and one token more are
 *      there, beyond what the running prefills still need: it is not thrown out at once.
 *   3. A step has at most one output for each row of the budget (a fork costs a row of it).
 *   4. Only blocks that nobody else has and that cannot be found are written: a partial block that
 *      is shared is copied first, or its rows are computed again.
 *   5. A block becomes findable when it is full and its tokens are accepted: with the step, or, of
 *      one that decodes, within SEQUENCE_TAIL steps or when it leaves the running set.
 *   6. Nothing here allocates after schedule_create.
 */
#ifndef LLMD_SCHEDULE_H
#define LLMD_SCHEDULE_H

#include "cost.h"
#include "engine.h"
#include "kv_pool.h"
#include "queue.h"
#include "sequence.h"
#include "speculate.h"
#include "stats.h"

struct schedule {
    const struct engine_config *config;
    struct stats *stats;
    struct kv_pool pool;
    struct queue queue;
    struct list leases;     /* sequences that hold blocks and do not run, the oldest lease first */
    uint32_t leased_blocks; /* of these; shared ones counted each time */
    uint32_t n_followers;   /* waiting for a leader's prompt */
    struct sequence **running; /* (max_num_seqs) */
    uint32_t n_running;
    uint32_t watermark;     /* blocks that an admission leaves free */
    uint32_t pinned_blocks; /* of all sessions */
    uint64_t admissions;    /* so far */
    uint64_t served;        /* admission number of the decode that was served last */
    bool prompts_turn;      /* the last full step left rows to prompts */
    uint32_t prompt_steps;  /* that had running prompts since the oldest of them went first */
    uint32_t starved;       /* steps in a row whose promise left no row to a prompt */
    struct cost cost;
    struct speculation speculation;

    /* the step */
    uint64_t now_ns;
    uint32_t n_decodes;          /* of what ran when it began to be formed */
    bool has_prompts;            /* the rest of it */
    uint32_t budget;             /* rows left */
    uint64_t promise_ns;         /* the step may take so long; UINT64_MAX: any time */
    uint64_t limit_ns;           /* the same for want of a promise: max_step, or more */
    uint64_t brief_ns;           /* the same for owners that run much more than */
    uint32_t brief_running;      /* this: the step brings the first token of another one */
    uint32_t n_spared;           /* decodes that wait a step for it */
    uint64_t spared;             /* admission number of the last one */
    struct cost_shape shape;     /* as planned, then as emitted */
    struct gpu_step step;        /* points to the arrays below */
    int32_t *tokens;             /* (max_num_batched_tokens) */
    struct gpu_seq *seqs;        /* (max_num_seqs) */
    struct gpu_output *outputs;  /* (max_num_batched_tokens) */
    struct gpu_result *results;  /* (max_num_batched_tokens) */
    struct sequence **output_of; /* (max_num_batched_tokens) */
    uint64_t *output_key;        /* (max_num_batched_tokens) the admission whose draw outputs[i] is;
                                    0: another output */
    uint64_t n_advances;         /* steps so far: whose turn it is (schedule_advance) */
    struct sequence *next;       /* of the queue, as long as it has not changed since */
    uint32_t next_changes;
    struct sequence **turns;           /* (max_num_seqs) scratch: in the order of their turn */
    uint32_t *before_dst, *before_src; /* (max_num_seqs) blocks to copy before the step */
    uint32_t n_before;
    uint32_t *copy_dst, *copy_src; /* (max_num_seqs) blocks to copy when the step is done */
    uint32_t n_copies;
    uint32_t decode_rows, prefill_rows;
    struct sequence **ended; /* (max_num_seqs) appends that the step completed: state ENDING */
    uint32_t n_ended;
};

/* `config`, `stats` and `floor` (queue.h) outlive it. 0; -EINVAL, -ENOMEM. */
int schedule_create(struct schedule *c, const struct engine_config *config, struct stats *stats,
                    uint64_t *floor, struct fail *f);
void schedule_destroy(struct schedule *c);

/* A sequence of state WAITING into the queue; it may hold a lease. */
void schedule_enqueue(struct schedule *c, struct sequence *s);
/* A further choice or label of `leader`, which was enqueued just before: it waits for the leader's
 * prompt. */
void schedule_follow(struct schedule *c, struct sequence *leader, struct sequence *s);

/* Forms c->step: at least one row if anything runs or waits and is allowed to. */
void schedule_form(struct schedule *c, uint64_t now_ns);

/* The step was computed, in so many ns, and the copies were made: histories advance, forks get
 * their blocks, full blocks become findable. Sessions that only had tokens appended and are done
 * are in `ended`. To be called before the results are looked at. */
void schedule_advance(struct schedule *c, uint64_t step_ns);

/* True if the end of the step that is formed or runs sees to the history of s, too: once in
 * SEQUENCE_TAIL steps. */
bool schedule_has_turn(const struct schedule *c, const struct sequence *s);

/* True if that output of the step draws the next token of s: no token that its row stands on was a
 * draft that proved wrong, and s has not ended. Then its row counts as computed. To be asked in the
 * order of the outputs, each after the tokens before it are in the history. */
bool schedule_confirm(struct schedule *c, struct sequence *s, uint32_t output);

/* Takes a sequence out of queue or running set, state ENDING, and gives its blocks back; one of a
 * session keeps them as a lease. */
void schedule_remove(struct schedule *c, struct sequence *s);
/* Gives all blocks back, of one that does not run: nothing of it is computed then. */
void schedule_release_blocks(struct schedule *c, struct sequence *s);

/* Of one that does not run: only the first n tokens of what is computed are left. */
void schedule_cut(struct schedule *c, struct sequence *s, uint32_t n);
/* `to` does not run and holds nothing: it shares what the first n tokens of `from` have. */
void schedule_share(struct schedule *c, struct sequence *to, const struct sequence *from,
                    uint32_t n);
/* The lease of a session becomes one that is never taken, or an ordinary one again. */
void schedule_pin(struct schedule *c, struct sequence *s, bool pinned);

/* When the first token of `s`, which waits or is not yet enqueued, may be expected, in ns from now.
 * 0: no step was seen yet. Low until
 * the cost model has seen some. */
uint64_t schedule_estimate(const struct schedule *c, const struct sequence *s);

static inline uint32_t schedule_waiting(const struct schedule *c)
{
    return c->queue.n + c->n_followers;
}

#endif
