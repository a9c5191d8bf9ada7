/* latency.h - what the way through the rings adds to the backend's own time: to the gap between two
 * tokens and to the first token of a one-token prompt.
 *
 * The client takes both with its own clock. Two things are taken off, and both differences are
 * reported:
 *
 *   the engine's own step of that very token, as its board counts it: exact, but it hides what
 *     the client's waking costs the engine's threads, and what they cost by resting in between
 *   a bare step: the same backend, the same context and threads, driven in this process, in turns
 *     with the engine, which sleeps meanwhile: nothing is hidden, but two processes' memory and
 *     moments are compared
 */
#ifndef LLMD_BENCH_LATENCY_H
#define LLMD_BENCH_LATENCY_H

#include "alone.h"
#include "speed.h"
#include "streams.h"

void latency_measure(struct speed_latency *out, struct streams *s, const char *instance,
                     struct alone *alone, int turns);

#endif
