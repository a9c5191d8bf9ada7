/* touch.h - the KV pool gets its pages before a step needs them, and without holding up the start:
 * what is used first at once, the rest from a thread that runs only where a CPU is idle.
 *
 *     pool_run(threads, job, &t)             job: touch_first(t, thread, n_threads)
 *     touch_start(&t)                        returns at once
 *     ...steps...
 *     touch_stop(&t)                         before the memory is unmapped
 *
 * The pool lies layer by layer; the engine hands out low blocks first. So the front of every layer
 * is touched first, and the thread goes on from there in stripes over all layers:
 *
 *     layer 0  |== first ==|.. stripe 1 ..|.. stripe 2 ..|
 *     layer 1  |== first ==|.. stripe 1 ..|.. stripe 2 ..|
 *
 * The thread changes no byte: it asks the kernel for pages (MADV_POPULATE_WRITE, Linux 5.14). Where
 * the kernel does not know that, pages come with their first use.
 */
#ifndef LLMD_CPU_TOUCH_H
#define LLMD_CPU_TOUCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    TOUCH_FIRST = 512 << 10, /* bytes at the front of every layer */
    TOUCH_STRIPE = 2 << 20
};

struct touch {
    uint8_t *at; /* (layers, layer_bytes), page-aligned start */
    uint64_t layer_bytes;
    uint32_t layers;
    const uint32_t *cpus; /* (n_cpus) where the thread may run; NULL: where its maker may */
    uint32_t n_cpus;

    pthread_t thread;
    bool started;
    _Atomic bool stop;
};

/* This thread's share of what is used first. Writes zeros: nothing is stored there yet. */
void touch_first(const struct touch *t, unsigned thread, unsigned n_threads);

/* Starts the thread, if anything is left to do. A system that grants none is not an error. */
void touch_start(struct touch *t);
void touch_stop(struct touch *t);

/* Writes a zero into every page of a range: this thread's share. */
void touch_range(uint8_t *at, uint64_t bytes, unsigned thread, unsigned n_threads);

#endif
