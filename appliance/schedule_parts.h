/* schedule_parts.h - how the scheduler's files call each other: schedule.c (who waits, who runs),
 * schedule_blocks.c (who holds which blocks), schedule_plan.c (rows of a step), schedule_emit.c
 * (the step as plain data, and what it changed), speculate.c (rows of drafts). */
#ifndef LLMD_SCHEDULE_PARTS_H
#define LLMD_SCHEDULE_PARTS_H

#include "schedule.h"

/* ---- schedule.c ---- */

void schedule_enter_running(struct schedule *c, struct sequence *s);
/* Out of running[], blocks kept, state as the caller will have it. */
void schedule_leave_running(struct schedule *c, struct sequence *s);
/* Followers that get no fork compute the prompt themselves, or share what there is of it. */
void schedule_dismiss_followers(struct schedule *c, struct sequence *leader);
/* Back into the queue; its blocks are given back. */
void schedule_preempt(struct schedule *c, struct sequence *s);
/* The least urgent that runs and is less urgent than `s`, to make room for its admission; NULL. */
struct sequence *schedule_victim(const struct schedule *c, const struct sequence *s);

/* ---- schedule_blocks.c ---- */

/* Appends a block to the table. False where no block is free, cached or leased. */
bool schedule_take_block(struct schedule *c, struct sequence *s);
/* Extends the table over `inputs` tokens; takes from the least urgent that runs. False if that was
 * s itself (it is in the queue then), or if nobody is left to take from in this step. */
bool schedule_cover_by_force(struct schedule *c, struct sequence *s, uint32_t inputs);
/* Extends it as far as blocks are free. Returns how many tokens it covers then, at most `inputs`. */
uint32_t schedule_cover_if_free(struct schedule *c, struct sequence *s, uint32_t inputs);
/* Extends it over `inputs` tokens out of blocks that nobody needs soon: no lease is dropped; what
 * running prompts still need, one for each that runs and the watermark are left. False where they do
 * not suffice. */
bool schedule_cover_to_spare(struct schedule *c, struct sequence *s, uint32_t inputs);
/* Blocks for the known history and one token more, if there will be one. */
uint32_t schedule_blocks_wanted(const struct sequence *s);
/* True if `wanted` more blocks are there, beside what was promised; leases are dropped for it,
 * unless it were not enough. */
bool schedule_blocks_allow(struct schedule *c, uint32_t wanted);
/* True if the domain's quota has room for what `s` still wants. */
bool schedule_quota_allows(const struct schedule *c, const struct sequence *s);
/* Drops one lease, the oldest (of that domain, if not NULL). False where there is none. */
bool schedule_drop_lease(struct schedule *c, const struct domain *domain);
/* Blocks that were shared or found count too: leases of the domain are dropped until it is within
 * its quota. */
void schedule_keep_quota(struct schedule *c, const struct domain *d);
void schedule_keep_lease(struct schedule *c, struct sequence *s);
void schedule_end_lease(struct schedule *c, struct sequence *s);
/* What the prefix cache has of the rest of its history. */
void schedule_adopt_cached(struct schedule *c, struct sequence *s);
/* Blocks of the cache that it would share with others: it needs no free ones for them. */
uint32_t schedule_blocks_shared(const struct schedule *c, const struct sequence *s);
/* Tokens that it would not compute if it were admitted now. */
uint32_t schedule_cached(const struct schedule *c, const struct sequence *s);
/* What is full and accepted becomes findable. */
void schedule_publish(struct schedule *c, struct sequence *s);
/* The block that the next row is written to becomes its own. */
void schedule_own_last_block(struct schedule *c, struct sequence *s);

/* ---- schedule_plan.c ---- */

void schedule_plan(struct schedule *c);

/* ---- schedule_emit.c ---- */

void schedule_emit(struct schedule *c);

/* ---- speculate.c ---- */

/* Drafts, in what the plan has left of the step: rows of what decodes. */
void speculate_plan(struct schedule *c);
/* The step took so long. */
void speculate_observe(struct schedule *c, uint64_t step_ns);

#endif
