/* speculate.h - speculation by prompt lookup: a decode that expects to repeat what stands in its
 * history computes the rows of the expected tokens beside that of its last one.
 *
 *     history           ... x y | d1 d2 d3           draft: written behind the history, not part of it
 *     rows of the step        y   d1 d2 d3
 *     drawn                  d1   d2 e  .            each as if the rows before were the history
 *     new history       ... x y   d1 d2 e            the third row's draft is wrong: its row and what
 *                                                    it wrote to its block count for nothing
 *
 * A drawn token is what would have been drawn without the draft: the row's logits are the same bits
 * (pure logits), and so are position, seed and the history that penalties count. So tokens and
 * log-probabilities do not depend on who speculates.
 *
 * Drafts are planned last, in the rows, blocks and time that are left (speculate_plan):
 *   - a draft is as long as brings most tokens a nanosecond, none where the step without it does:
 *     how likely its tokens are says the index (ngram.h), what its rows cost the steps before
 *     (row_times.h; beside prompts the cost model, cost.h). So drafts shrink with the odds, and vanish
 *     where rows are dear: in large batches, beside prompts;
 *   - never past the promised gap or --max-step-ms, nor past the brief step of another's first token;
 *   - beside another owner's stream the step grows by at most a quarter;
 *   - no lease is dropped for a draft and nobody is preempted.
 *
 * A sequence that runs and speculates has an index; a long history is read into it step by step.
 *
 * Invariants
 *   1. A draft is at most GPU_KV_BLOCK tokens: a sequence still has at most one block that it does
 *      not need.
 *   2. Nothing behind the history is ever published, sent or kept: n_tokens and n_computed grow by
 *      one with each token that holds (schedule_confirm).
 *   3. Nothing allocates after speculation_create; an index's pages come with their first use.
 */
#ifndef LLMD_SPECULATE_H
#define LLMD_SPECULATE_H

#include "engine.h"
#include "ngram.h"
#include "row_times.h"

struct sequence;

struct speculation {
    struct engine_speculation config;
    struct ngram *indices; /* (n) one for each that runs; NULL: nobody may speculate */
    uint32_t n, n_free;
    uint32_t *free_stack; /* (n) the next one last */
    void *memory;
    uint64_t bytes;
    struct row_times *times; /* of steps while somebody speculates */
    uint64_t next_try; /* by times->steps: a number of rows that was not seen may be tried then */
};

/* 0; -EINVAL, -ENOMEM. */
int speculation_create(struct speculation *x, const struct engine_config *config, struct fail *f);
void speculation_destroy(struct speculation *x);

/* Whether a generation with these flags (enum llm_sqe_flags) speculates. */
bool speculation_wanted(const struct engine_speculation *config, uint8_t flags);

/* It runs now, or does no longer: with an index, if it speculates. */
void speculation_enter(struct speculation *x, struct sequence *s);
void speculation_leave(struct speculation *x, struct sequence *s);

#endif
