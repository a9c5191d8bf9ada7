/* pool.h - the worker pool: persistent, pinned threads that run one job together, with barriers
 * inside it.
 *
 *     static void job(void *context, unsigned thread, unsigned n_threads)
 *     {
 *         ...my share...
 *         pool_barrier(p, thread);
 *         ...
 *     }
 *     pool_run(p, job, context);   // the caller is thread 0; returns when all have left the job
 *
 * A job may have a crew: some of the threads, numbered 0 .. n_threads - 1 for this job. The others
 * are not even woken.
 *
 * Between jobs workers spin for a bounded time, then sleep on a futex; pool_run wakes those that
 * sleep (a system call each, only if some do). A barrier spins; who waits so long that somebody
 * must have lost his CPU finds out who, and sleeps as well. One thread calls pool_run.
 */
#ifndef LLMD_CPU_POOL_H
#define LLMD_CPU_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "../fail.h"

struct pool;

/* threads >= 1, the caller included (so threads - 1 are started). Pins worker i to the i-th CPU
 * that the process may use, if there are at least as many CPUs as threads. */
int pool_create(struct pool **out, unsigned threads, struct fail *f);

/* The same, with thread i, the caller as 0 included, on CPU cpus[i] (threads); NULL: as above.
 * -EINVAL with the sentence for a CPU that the process may not use. */
int pool_create_on(struct pool **out, unsigned threads, const uint32_t *cpus, struct fail *f);
void pool_destroy(struct pool *p);
unsigned pool_threads(const struct pool *p);
int pool_cpu(const struct pool *p, unsigned thread); /* that it is pinned to; -1: to none */

void pool_run(struct pool *p, void (*job)(void *context, unsigned thread, unsigned n_threads),
              void *context);
/* The same by the caller and those threads i > 0 whose crew[i] (threads) is set. */
void pool_run_crew(struct pool *p, const bool *crew,
                   void (*job)(void *context, unsigned thread, unsigned n_threads), void *context);
void pool_barrier(struct pool *p, unsigned thread);
void pool_rest(struct pool *p); /* workers go to sleep now */

/* Between jobs: how long others waited at barriers for each thread while it had no CPU, since the
 * last call; adds to held_ns (threads). False, and nothing added, if nobody did. Only waits that
 * were long are seen. */
bool pool_held(struct pool *p, uint64_t *held_ns);

/* Sends the caller, where it is bound to no CPU, to one that no worker of the crew is bound to, if
 * it stands on one of theirs now, or if it shall leave the one where it stands. It is free to be
 * moved on by the system. A few system calls: for when the crew has changed. */
void pool_place(struct pool *p, const bool *crew, bool leave);

/* Those threads i > 0 whose crew[i] is not set try for POOL_PROBE_NS how much of a CPU they get, and
 * not of the one where the caller stands: one that is bound to that takes another that is left over.
 * The next job need not wait for it; one that they take part in does. pool_probed is true once after
 * all have ended: share[i] (threads) is then 0 .. 1 for each that tried. */
enum { POOL_PROBE_NS = 20000000 };
void pool_probe(struct pool *p, const bool *crew);
bool pool_probed(struct pool *p, float *share);

#endif
