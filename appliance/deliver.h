/* deliver.h - from histories to rings: tokens in entries of up to 4, then the final.
 *
 * Invariants
 *   1. Tokens go out in order and once; the final of a choice goes out after its tokens, once.
 *   2. A client's sequences take turns, one entry each: whoever found the ring full is first when
 *      there is room.
 *   3. A final never waits for room; only tokens in front of it do.
 *   4. With its final a sequence is released; one of a session is idle again.
 */
#ifndef LLMD_DELIVER_H
#define LLMD_DELIVER_H

#include "engine.h"
#include "sequence.h"
#include "session.h"
#include "stats.h"

struct delivery {
    const struct engine_sink *sink;
    struct sequence_table *table;
    struct session_table *sessions; /* a session's rest begins with the final */
    struct stats *stats;
    uint64_t numerics_id;
    uint32_t max_unread; /* tokens; 0: no limit */
    struct list due;     /* owners with news since the last deliver_due */
    struct list behind;  /* owners that left more than max_unread unread: to be dealt with by the
                            caller of deliver_due */
    uint64_t gap_ns, n_gaps; /* gaps of that length that the histogram does not have yet: those of a
                                step are mostly alike */
};

/* The sequence has tokens that were not offered yet. */
void deliver_note(struct delivery *d, struct sequence *s);

/* Offers the news of all owners that were noted. Sequences of state ENDING may be gone then. */
void deliver_due(struct delivery *d, uint64_t now_ns);
/* The same for one owner, which may be gone then. */
void deliver_owner(struct delivery *d, struct sequence_owner *o, uint64_t now_ns);

/* Ends a sequence of state ENDING now: offers what the ring takes, drops the rest of its tokens,
 * puts the final (status 0: DONE with `finish`; negative: ERROR) and releases the slot. */
void deliver_end(struct delivery *d, struct sequence *s, int32_t status, enum llm_finish finish,
                 uint64_t now_ns);

/* Offers the tokens of one sequence before its turn; one of state ENDING may be gone then. */
void deliver_tokens(struct delivery *d, struct sequence *s, uint64_t now_ns);

/* The final of an entry that became no sequence. */
void deliver_answer(struct delivery *d, uint32_t client, const struct llm_sqe *q, uint32_t choice,
                    int32_t status, uint32_t fits, uint64_t now_ns);

#endif
