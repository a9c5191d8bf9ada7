/* reaper.h - gives the memory of large clients back: freeing 64 MiB takes the kernel tens of
 * milliseconds, which are nobody's step. One thread, which runs only where a CPU is idle, and sleeps
 * until there is something to free.
 *
 *          reaper_take             the thread, or reaper_help
 *   DONE ---------------> WAITING ----------------------------> CLAIMED ---> DONE
 *
 * Invariants
 *   1. A place has at most one job, and who claimed it alone touches it until it is DONE.
 *   2. One caller hands jobs over, helps and collects; it neither waits nor takes a lock.
 */
#ifndef LLMD_REAPER_H
#define LLMD_REAPER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "segments.h"

enum reaper_state { REAPER_DONE, REAPER_WAITING, REAPER_CLAIMED };

struct reaper_job {
    struct segment up, down;
    _Atomic(enum reaper_state) state;
};

struct reaper {
    uint32_t places;
    struct reaper_job *jobs; /* (places) */
    uint32_t next;           /* where the thread looks first */
    sem_t jobs_there;        /* one for each job, also those that were helped with, one to stop */
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
/* The caller frees it now, itself: for who cannot wait until a CPU is idle. False: the thread has
 * begun, or there is no job. */
bool reaper_help(struct reaper *r, uint32_t place);

#endif
