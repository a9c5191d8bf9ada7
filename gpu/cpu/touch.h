/* touch.h - the KV pool gets its pages before a step needs them, and without holding up the start:
 * what is used first at once, a reserve from a thread that runs only where a CPU is idle.
 *
 *     pool_run(threads, job, &t)             job: touch_range(t->at, t->first, thread, n_threads)
 *     touch_start(&t)                        returns at once
 *     ...steps...
 *     touch_stop(&t)                         before the memory is unmapped
 *
 * The engine hands out low blocks first, and the thread goes from low to high. It changes no byte:
 * it asks the kernel for pages (MADV_POPULATE_WRITE, Linux 5.14). Where the kernel does not know
 * that, pages come with their first use.
 */
#ifndef LLMD_CPU_TOUCH_H
#define LLMD_CPU_TOUCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { TOUCH_STRIPE = 2 << 20 }; /* bytes that are asked for at a time */

struct touch {
    uint8_t *at; /* page-aligned */
    uint64_t bytes;
    uint64_t first;       /* bytes at the front that are touched already */
    const uint32_t *cpus; /* (n_cpus) where the thread may run; NULL: where its maker may */
    uint32_t n_cpus;

    pthread_t thread;
    bool started;
    _Atomic bool stop;
};

/* Writes a zero into every page of a range in which nothing is stored yet: this thread's share. */
void touch_range(uint8_t *at, uint64_t bytes, unsigned thread, unsigned n_threads);

/* Starts the thread, if anything is left to do. A system that grants none is not an error. */
void touch_start(struct touch *t);
void touch_stop(struct touch *t);

#endif
