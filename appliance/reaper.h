/* reaper.h - gives the memory of large clients back: freeing 64 MiB takes the kernel tens of
 * milliseconds, which are nobody's step. One thread, which runs only where a CPU is idle, and sleeps
 * until there is something to free.
 *
 * Invariants
 *   1. A place has at most one job, so the queue never overflows.
 *   2. One thread hands jobs over and collects them; it neither waits nor takes a lock.
 */
#ifndef LLMD_REAPER_H
#define LLMD_REAPER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "segments.h"

struct reaper_job {
    struct segment up, down;
    atomic_bool done;
};

struct reaper {
    uint32_t places;
    struct reaper_job *jobs;    /* (places) */
    _Atomic(uint32_t) *waiting; /* (places) ring of places, in order */
    uint32_t put, taken;        /* cursors: put is the caller's, taken the thread's */
    sem_t jobs_there;           /* one for each job, and one to stop */
    atomic_bool stop;
    pthread_t thread;
    bool running; /* false: no thread could be had, and what is handed over is freed at once */
};

int reaper_start(struct reaper *r, uint32_t places); /* 0 or -ENOMEM */
void reaper_stop(struct reaper *r); /* when all is freed; may be called on a zeroed one */

/* Takes the segments over; both are empty then. */
void reaper_take(struct reaper *r, uint32_t place, struct segment *up, struct segment *down);
/* True if what the place handed over is freed. */
bool reaper_done(const struct reaper *r, uint32_t place);

#endif
