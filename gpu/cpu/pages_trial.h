/* pages_trial.h - which pages are read faster on this machine, huge or small ones: measured while
 * the start has other things to do.
 *
 *     pages_trial_begin(&t, PAGES_THP);
 *     ...the model's description is read...
 *     if (pages_trial_end(&t)) ...small ones...
 *
 * A thread walks through 8 MiB on either kind, in turns, as products walk through weights: from
 * end to end, prefetching, and out of memory, not out of the cache. Huge pages win nearly everywhere
 * (a processor's table of 4 KiB pages covers a few MiB), but not everywhere. It takes 5 to 15 ms
 * beside the start (30 at most), mostly for the page faults of the small ones, and the memory only
 * for so long.
 *
 * Small pages have to be clearly faster: a machine that was busy elsewhere decides nothing.
 */
#ifndef LLMD_CPU_PAGES_TRIAL_H
#define LLMD_CPU_PAGES_TRIAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "pages.h"

enum { PAGES_TRIAL_ROUNDS = 5, PAGES_TRIAL_NS = 30000000 };

struct pages_times {
    uint64_t huge_ns[PAGES_TRIAL_ROUNDS], small_ns[PAGES_TRIAL_ROUNDS];
    unsigned rounds;
};

struct pages_trial {
    enum pages_kind huge;
    uint64_t end_ns; /* CLOCK_MONOTONIC: begins nothing new after it */
    struct pages_times times;
    pthread_t thread;
    bool started;
};

/* A system that grants no thread or memory is not an error: nothing is measured. */
void pages_trial_begin(struct pages_trial *t, enum pages_kind huge);
/* Waits for the thread. True: small pages are faster. Once. */
bool pages_trial_end(struct pages_trial *t);

/* The fastest walk over huge pages as a share of the fastest over small ones; 0: not measured. */
double pages_trial_ratio(const struct pages_times *times);
bool pages_trial_small_win(const struct pages_times *times);

#endif
