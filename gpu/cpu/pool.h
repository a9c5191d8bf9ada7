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
 * Between jobs workers spin for a bounded time, then sleep on a futex; pool_run wakes those that
 * sleep (one system call, only if some do). A barrier spins, then yields. One thread calls
 * pool_run.
 */
#ifndef LLMD_CPU_POOL_H
#define LLMD_CPU_POOL_H

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
void pool_barrier(struct pool *p, unsigned thread);
void pool_rest(struct pool *p); /* workers go to sleep now */

#endif
