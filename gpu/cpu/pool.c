/* pool.c - the worker pool: threads that stay awake between the steps of a busy engine.
 *
 * A worker's life, each edge with the place that takes it:
 *
 *     SPINNING --job_number moved (worker_wait)--> WORKING --last barrier (worker)--> SPINNING
 *     SPINNING --POOL_SPIN_NS over, or pool_rest (worker_wait)--> SLEEPING on the futex job_number
 *     SLEEPING --pool_run's wake (post_job)--> WORKING
 *
 * Invariants:
 *  1. job, context and quit are written by the caller alone, before job_number moves, and read by
 *     workers after they saw it move; they stay unchanged until every worker has left the job.
 *  2. A worker counts itself in `sleepers` before it looks at job_number for the last time, and the
 *     caller moves job_number before it reads `sleepers`; both are sequentially consistent, so one
 *     of the two sees the other: no wake is lost.
 *  3. `arrived` is 0 and `phase` unchanged whenever no thread is inside the barrier.
 *  4. Every thread computes under the same MXCSR: round to nearest, denormals kept.
 *
 * With one thread nothing here makes a system call.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    POOL_THREADS_MAX = 1024,
    POOL_SPIN_NS = 150000,  /* a worker without a job sleeps after that */
    POOL_SPIN_PAUSES = 2000 /* a waiting thread yields its CPU after that */
};

struct worker {
    struct pool *pool;
    unsigned index;
    int cpu; /* that it is pinned to, or -1 */
    pthread_t thread;
};

struct pool {
    unsigned threads, started;
    struct worker *workers; /* (threads), 0 is the caller: nothing of it runs from here */

    void (*job)(void *context, unsigned thread, unsigned n_threads);
    void *context;
    bool quit;

    _Alignas(128) _Atomic uint32_t job_number; /* the futex word */
    _Atomic uint32_t rest_number;              /* == job_number: do not spin for the next one */
    _Alignas(128) _Atomic uint32_t sleepers;
    _Alignas(128) _Atomic uint32_t arrived;
    _Alignas(128) _Atomic uint32_t phase;
};

/* ---- the machine ---- */

#if defined(__x86_64__)
enum { MXCSR_DEFAULT = 0x1f80 }; /* exceptions masked, nearest, no flush to zero */
static uint32_t float_mode_enter(void)
{
    uint32_t before = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    return before;
}
static void float_mode_leave(uint32_t before)
{
    _mm_setcsr(before);
}
static inline void pause_cpu(void)
{
    _mm_pause();
}
#else
static uint32_t float_mode_enter(void)
{
    return 0;
}
static void float_mode_leave(uint32_t before)
{
    (void)before;
}
static inline void pause_cpu(void) {}
#endif

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- barrier ---- */

void pool_barrier(struct pool *p, unsigned thread)
{
    assert(thread < p->threads);
    if (p->threads == 1)
        return;
    /* relaxed: the phase cannot move before this thread has arrived */
    uint32_t phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    /* acquire-release: the last one to arrive has seen what all the others wrote */
    uint32_t before = atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel);
    if (before + 1 == p->threads) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        /* release, with the acquire below: and hands it on to everybody */
        atomic_store_explicit(&p->phase, phase + 1, memory_order_release);
        return;
    }
    for (unsigned i = 0; atomic_load_explicit(&p->phase, memory_order_acquire) == phase; i++)
        if (i < POOL_SPIN_PAUSES)
            pause_cpu();
        else
            sched_yield();
}

/* ---- workers ---- */

static void sleep_until_moved(struct pool *p, uint32_t seen)
{
    atomic_fetch_add(&p->sleepers, 1); /* invariant 2 */
    while (atomic_load(&p->job_number) == seen)
        futex_wait(&p->job_number, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

/* Returns when job_number is no longer `seen`. */
static void worker_wait(struct pool *p, uint32_t seen)
{
    uint64_t since = now_ns();
    for (unsigned i = 1; atomic_load_explicit(&p->job_number, memory_order_acquire) == seen; i++) {
        bool rest = atomic_load_explicit(&p->rest_number, memory_order_relaxed) == seen;
        if (rest || (i % 64 == 0 && now_ns() - since > POOL_SPIN_NS)) {
            sleep_until_moved(p, seen);
            return;
        }
        pause_cpu();
    }
}

static void *worker(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    float_mode_enter();
    for (uint32_t seen = 0;; seen++) {
        worker_wait(p, seen);
        if (p->quit)
            return NULL;
        p->job(p->context, w->index, p->threads);
        pool_barrier(p, w->index);
    }
}

static int pin(struct worker *w, unsigned cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    if (cpu < CPU_SETSIZE)
        CPU_SET(cpu, &one);
    int error = pthread_setaffinity_np(w->thread, sizeof one, &one);
    if (!error)
        w->cpu = (int)cpu;
    return error;
}

static int pin_on(struct worker *w, unsigned cpu, struct fail *f)
{
    int error = pin(w, cpu);
    if (!error)
        return 0;
    return fail(f, -error,
                "compute thread %u cannot run on CPU %u: %s; name CPUs that this process may use "
                "(taskset -p, the cpuset of its control group)",
                w->index, cpu, strerror(error));
}

/* Puts worker i on the i-th CPU of `allowed`, if there is one for every thread. */
static void pin_among(struct worker *w, const cpu_set_t *allowed)
{
    if ((unsigned)CPU_COUNT(allowed) < w->pool->threads)
        return;
    unsigned left = w->index;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed) && left-- == 0) {
            /* a worker that cannot be pinned still computes the same */
            (void)pin(w, cpu);
            return;
        }
}

static int start_worker(struct pool *p, unsigned index, const uint32_t *cpus,
                        const cpu_set_t *allowed, struct fail *f)
{
    struct worker *w = &p->workers[index];
    char name[32];
    *w = (struct worker){.pool = p, .index = index, .cpu = -1};
    int error = pthread_create(&w->thread, NULL, worker, w);
    if (error)
        return fail(f, -error, "cannot start worker thread %u of %u: %s; use fewer threads", index,
                    p->threads, strerror(error));
    p->started++;
    snprintf(name, sizeof name, "llmd-worker%u", index);
    (void)pthread_setname_np(w->thread, name);
    if (cpus)
        return pin_on(w, cpus[index], f);
    pin_among(w, allowed);
    return 0;
}

/* ---- jobs ---- */

static void post_job(struct pool *p)
{
    atomic_fetch_add(&p->job_number, 1); /* publishes invariant 1's fields */
    if (atomic_load(&p->sleepers) != 0)  /* invariant 2 */
        futex_wake_all(&p->job_number);
}

void pool_run(struct pool *p, void (*job)(void *context, unsigned thread, unsigned n_threads),
              void *context)
{
    uint32_t mode = float_mode_enter();
    if (p->threads > 1) {
        p->job = job;
        p->context = context;
        post_job(p);
    }
    job(context, 0, p->threads);
    pool_barrier(p, 0);
    float_mode_leave(mode);
}

void pool_rest(struct pool *p)
{
    /* only the caller's thread moves job_number, so it reads its own value */
    uint32_t now = atomic_load_explicit(&p->job_number, memory_order_relaxed);
    atomic_store_explicit(&p->rest_number, now, memory_order_relaxed);
}

unsigned pool_threads(const struct pool *p)
{
    return p->threads;
}

int pool_cpu(const struct pool *p, unsigned thread)
{
    assert(thread < p->threads);
    return p->workers[thread].cpu;
}

/* ---- life ---- */

static int start_workers(struct pool *p, const uint32_t *cpus, struct fail *f)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (p->threads > 1)
        sched_getaffinity(0, sizeof allowed, &allowed);
    p->workers[0] = (struct worker){.pool = p, .cpu = -1, .thread = pthread_self()};
    int error = cpus ? pin_on(&p->workers[0], cpus[0], f) : 0;
    for (unsigned i = 1; i < p->threads && !error; i++)
        error = start_worker(p, i, cpus, &allowed, f);
    return error;
}

int pool_create(struct pool **out, unsigned threads, struct fail *f)
{
    return pool_create_on(out, threads, NULL, f);
}

int pool_create_on(struct pool **out, unsigned threads, const uint32_t *cpus, struct fail *f)
{
    *out = NULL;
    if (threads < 1 || threads > POOL_THREADS_MAX)
        return fail(f, -EINVAL, "%u threads asked for: use 1 to %d", threads, POOL_THREADS_MAX);
    struct pool *p = aligned_alloc(_Alignof(struct pool), sizeof *p);
    struct worker *workers = calloc(threads, sizeof *workers);
    if (!p || !workers) {
        free(p);
        free(workers);
        return fail(f, -ENOMEM, "no memory for a pool of %u threads", threads);
    }
    memset(p, 0, sizeof *p);
    p->threads = threads;
    p->workers = workers;
    atomic_store(&p->rest_number, UINT32_MAX);

    int error = start_workers(p, cpus, f);
    if (error) {
        pool_destroy(p);
        return error;
    }
    *out = p;
    return 0;
}

void pool_destroy(struct pool *p)
{
    if (!p)
        return;
    if (p->started) {
        p->quit = true;
        post_job(p);
    }
    for (unsigned i = 1; i <= p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p);
}
