/* lanes.h - the model of a token lane: a device stores tokens into a client's segment itself, the
 * host publishes the rest. No code yet: the protocol for a backend that can do so.
 *
 *   lane     LANE words {sequence number, token}, stored by the device alone, release each
 *   ring     host: an entry for every step ("the lane has news"), and the final with the count
 *   lane_head  client: tokens taken; the host starts a step only when the lane has room for it
 *
 * After each step the host does what it does for tokens of its own: ring_put, ring_publish,
 * ring_after_publish, ring_wants_wake, the wake. The client looks at the ring first, then at the
 * lane: the final counts tokens that were stored before it.
 *
 * Properties
 *   1. No token is lost, repeated or out of order; none is overwritten before it was taken.
 *   2. The client learns of the end, also when the device is given up in the middle of a step; then
 *      the lane may hold more than the final counts.
 *   3. No lost wake-up.
 */
#ifndef LLMD_TESTS_MODEL_LANES_H
#define LLMD_TESTS_MODEL_LANES_H

#include "explore.h"

enum {
    LANES_DEVICE_FAILS = 1 << 0, /* no fault: the device may be given up at any step */
    LANES_ONE_WORD = 1 << 1,     /* a word a request, overwritten by every token */
    LANES_NO_CREDIT = 1 << 2,    /* steps are started without room in the lane */
    LANES_END_IN_LANE = 1 << 3,  /* the watchdog writes the end there: a word with two writers */
    LANES_NO_NEWS = 1 << 4,      /* steps wake, but put no entry: the futex word does not change */
    LANES_ONE_RING = 1 << 5,     /* device and host write entries of one ring */
    LANES_RELAXED = 1 << 6,      /* the client loads lane words relaxed */
    LANES_NO_FENCE = 1 << 7      /* ring_after_publish does nothing */
};

struct lanes {
    const char *name, *says;
    unsigned faults;
    unsigned found; /* memories in which it must be found, a bit each */
};

extern const struct lanes lanes_cases[];
extern const unsigned n_lanes_cases;

void lanes_explore(const struct lanes *c, enum memory memory, bool traced, struct finding *f);

#endif
