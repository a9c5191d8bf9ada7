/* pool_parts.h - inside the worker pool: what pool.c (threads and jobs) and barrier.c (waiting
 * inside a job) share.
 */
#ifndef LLMD_CPU_POOL_PARTS_H
#define LLMD_CPU_POOL_PARTS_H

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "pool.h"

struct worker {
    /* moves with each job, and is polled */
    _Alignas(128) _Atomic uint32_t call; /* the futex word: jobs and probes that it was called to */

    /* change rarely */
    _Alignas(128) _Atomic uint32_t asleep; /* a call has to wake it */
    _Atomic uint32_t takes_part;           /* in the job; a hint for those who wait */
    unsigned number;                       /* in the job */
    bool probes;                           /* the call is to a probe */

    /* its own to write, with each barrier: hints for those who wait */
    _Alignas(128) _Atomic uint32_t at; /* the phase that it has come to the end of, plus 1 */
    _Atomic int on;                    /* the CPU where it began the job; -1: not known */

    struct pool *pool;
    unsigned index;
    int cpu;     /* that it is pinned to, or -1 */
    float share; /* of a CPU, that its last probe got */
    pthread_t thread;
    clockid_t clock; /* of its CPU time */
    bool has_clock;
};

struct pool {
    unsigned threads, started;
    struct worker *workers; /* (threads), 0 is the caller: nothing of it runs from here */

    void (*job)(void *context, unsigned thread, unsigned n_threads);
    void *context;
    struct worker **crew; /* (n_crew) by number */
    unsigned n_crew;
    _Atomic bool quit; /* also seen by who is called to a probe meanwhile */

    _Alignas(128) _Atomic uint32_t rest; /* do not spin for the next job */
    _Atomic uint32_t probing;            /* workers that have not ended their probe */
    bool probe_asked;

    /* the barrier */
    _Alignas(128) _Atomic uint32_t arrived;
    _Alignas(128) _Atomic uint32_t phase;    /* a futex word */
    _Atomic uint32_t sleepers;               /* who may be asleep on it */
    _Alignas(128) _Atomic uint32_t watching; /* somebody is */
    _Atomic uint32_t held_phase; /* plus 1: the one that waits for a thread without a CPU */
    _Atomic uint32_t any_held;
    _Atomic uint64_t *held_ns; /* (threads) pool_held's */
};

static inline void pool_pause(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

static inline uint64_t pool_clock_ns(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t))
        return 0;
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t pool_now_ns(void)
{
    return pool_clock_ns(CLOCK_MONOTONIC);
}

/* timeout NULL: none */
static inline void pool_futex_wait(_Atomic uint32_t *word, uint32_t expected,
                                   const struct timespec *timeout)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, expected, timeout, NULL, 0);
}

static inline void pool_futex_wake(_Atomic uint32_t *word, int most)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

#endif
