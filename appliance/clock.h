/* clock.h - the time that the appliance lives by. */
#ifndef LLMD_CLOCK_H
#define LLMD_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_of(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CLOCK_MONOTONIC; answered by the vDSO, not by a system call. */
static inline uint64_t clock_ns(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

/* What the calling thread has computed: by a system call. For what others make it do: a clock on the
 * wall also counts while they have the CPU. */
static inline uint64_t clock_cpu_ns(void)
{
    return clock_of(CLOCK_THREAD_CPUTIME_ID);
}

#endif
