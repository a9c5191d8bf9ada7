/* bells.h - rings clients at their bells (clients.h), on the loop's time.
 *
 * The call wakes all who listen at the client's end, and how many these are is up to the client:
 * 100,000 polls take it 10 ms and more. So each ring is timed. A bell that took more than
 * BELLS_CROWD_NS once is slow from then on:
 *
 *     bells_ring    at once, or, if the bell is slow, it is owed
 *     bells_tick    rings what is owed, in turn, as far as there is time for it
 *
 * Invariants
 *   1. All slow bells together have a sixteenth of the time; the others are rung at once.
 *   2. What is owed is rung, if the client still sleeps at its bell then.
 *
 * One that was slow by chance is rung at once as long as no other is.
 */
#ifndef LLMD_BELLS_H
#define LLMD_BELLS_H

#include "clients.h"

#define BELLS_CROWD_NS 100000ull /* waking a few takes less: one that is cold 40 us */

struct bells {
    uint64_t next_ns; /* slow bells are rung again then */
    bool owed;        /* some wait for it */
    uint32_t first;   /* slot with which they go on */
};

void bells_ring(struct bells *b, struct client *c);
void bells_tick(struct bells *b, const struct clients *cs, uint64_t now_ns);

/* How long a sleep may take: up to `timeout_ns`, or until what is owed is to be rung. */
uint64_t bells_until(const struct bells *b, uint64_t timeout_ns);

#endif
