/* notices.h - the model of an eviction: the engine leaves a sentence in `down`, and the client,
 * which may be asleep, finds it.
 *
 * The eviction wakes the cq_tail word without a change of it, so a client on its way into
 * FUTEX_WAIT may miss the wake. It does not sleep for ever: a sleep is cut into slices
 * (client/events.c), and after each it asks the socket, which the engine has shut.
 *
 * Properties: the client ends, it says that it was evicted (not that the engine died), and it reads
 * the sentence after it was written.
 */
#ifndef LLMD_TESTS_MODEL_NOTICES_H
#define LLMD_TESTS_MODEL_NOTICES_H

#include "explore.h"

enum {
    NOTICES_SET = 1 << 0,        /* ring_evict stores `evicted` relaxed */
    NOTICES_RELAXED = 1 << 1,    /* look_at_memory loads it relaxed */
    NOTICES_NO_SLICES = 1 << 2,  /* a sleep has no end of its own */
    NOTICES_SHUT_FIRST = 1 << 3, /* the engine shuts the socket before it tells why */
    NOTICES_EOF_FIRST = 1 << 4   /* the client believes the socket before it looks at memory */
};

struct notices {
    const char *name, *says;
    unsigned faults;
    unsigned found; /* memories in which it must be found, a bit each */
};

extern const struct notices notices_cases[];
extern const unsigned n_notices_cases;

void notices_explore(const struct notices *c, enum memory memory, bool traced, struct finding *f);

#endif
