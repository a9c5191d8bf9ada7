/* pool.c - the worker pool: threads that stay awake between the steps of a busy engine.
 *
 * A worker's life, each edge with the place that takes it:
 *
 *     SPINNING --its call moved (worker_wait)--> WORKING --last barrier (work)--> SPINNING
 *        |  ^                                    PROBING --POOL_PROBE_NS (probe)------'
 *        |  '---- (the next call)
 *        '--POOL_SPIN_NS over, or pool_rest (worker_wait)--> SLEEPING on the futex call
 *     SLEEPING --call()'s wake--> WORKING or PROBING
 *
 * Invariants:
 *  1. job, context and crew, and what a call to a worker is about, are written by the caller
 *     alone, before it moves the `call` of each worker that takes part, and read by these after
 *     they saw it move; they stay unchanged until all of them have left the job. Others read none
 *     of it.
 *  2. A worker says that it is asleep before it looks at its call for the last time, and the caller
 *     moves the call before it looks who is asleep; both are sequentially consistent, so one of the
 *     two sees the other: no wake is lost.
 *  3. Every thread computes under the same MXCSR: round to nearest, denormals kept.
 *
 * With one thread nothing here makes a system call.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool_parts.h"

enum {
    POOL_THREADS_MAX = 1024,
    POOL_SPIN_NS = 150000 /* a worker without a job sleeps after that */
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
#else
static uint32_t float_mode_enter(void)
{
    return 0;
}
static void float_mode_leave(uint32_t before)
{
    (void)before;
}
#endif

/* ---- workers ---- */

static void sleep_until_called(struct worker *w, uint32_t seen)
{
    atomic_store(&w->asleep, 1); /* invariant 2 */
    while (atomic_load(&w->call) == seen)
        pool_futex_wait(&w->call, seen, NULL);
    atomic_store_explicit(&w->asleep, 0, memory_order_relaxed);
}

/* Returns when its call is no longer `seen`. */
static void worker_wait(struct worker *w, uint32_t seen)
{
    uint64_t since = pool_now_ns();
    for (unsigned i = 1; atomic_load_explicit(&w->call, memory_order_acquire) == seen; i++) {
        bool rest = atomic_load_explicit(&w->pool->rest, memory_order_relaxed);
        if (rest || (i % 64 == 0 && pool_now_ns() - since > POOL_SPIN_NS)) {
            sleep_until_called(w, seen);
            return;
        }
        pool_pause();
    }
}

/* Where it computes now: a hint for those who will wait for it. */
static void show_place(struct worker *w)
{
    int here = w->cpu >= 0 ? w->cpu : sched_getcpu();
    if (atomic_load_explicit(&w->on, memory_order_relaxed) != here)
        atomic_store_explicit(&w->on, here, memory_order_relaxed);
}

static void work(struct pool *p, struct worker *w)
{
    unsigned number = w->number; /* the next job's may be another */
    show_place(w);
    p->job(p->context, number, p->n_crew);
    pool_barrier(p, number);
}

/* Spins, and compares its CPU time with the clock on the wall. */
static void probe(struct pool *p, struct worker *w)
{
    uint64_t since = pool_now_ns(), before = pool_clock_ns(CLOCK_THREAD_CPUTIME_ID), passed;
    while ((passed = pool_now_ns() - since) < POOL_PROBE_NS)
        pool_pause();
    uint64_t ran = pool_clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    w->share = ran < passed ? (float)ran / (float)passed : 1;
    /* release, with pool_probed's acquire: the share */
    atomic_fetch_sub_explicit(&p->probing, 1, memory_order_release);
}

static void *worker(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    float_mode_enter();
    for (uint32_t seen = 0;; seen++) {
        worker_wait(w, seen);
        if (atomic_load_explicit(&p->quit, memory_order_relaxed))
            return NULL;
        if (w->probes)
            probe(p, w);
        else
            work(p, w);
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

static void init_worker(struct pool *p, unsigned index)
{
    p->workers[index] = (struct worker){.pool = p, .index = index, .cpu = -1, .on = -1};
}

static int start_worker(struct pool *p, unsigned index, const uint32_t *cpus,
                        const cpu_set_t *allowed, struct fail *f)
{
    struct worker *w = &p->workers[index];
    char name[32];
    init_worker(p, index);
    int error = pthread_create(&w->thread, NULL, worker, w);
    if (error)
        return fail(f, -error, "cannot start worker thread %u of %u: %s; use fewer threads", index,
                    p->threads, strerror(error));
    p->started++;
    snprintf(name, sizeof name, "llmd-worker%u", index);
    (void)pthread_setname_np(w->thread, name);
    w->has_clock = !pthread_getcpuclockid(w->thread, &w->clock);
    if (cpus)
        return pin_on(w, cpus[index], f);
    pin_among(w, allowed);
    return 0;
}

/* ---- jobs ---- */

/* A worker has one call at a time. */
static void await_probe(struct pool *p, struct worker *w)
{
    while (atomic_load_explicit(&p->probing, memory_order_acquire))
        sched_yield();
    w->probes = false;
}

/* Who takes part, by number: the caller is 0. crew NULL: everybody. Only what changes is written. */
static void gather_crew(struct pool *p, const bool *crew)
{
    p->n_crew = 0;
    for (unsigned i = 0; i < p->threads; i++) {
        struct worker *w = &p->workers[i];
        bool in = i == 0 || !crew || crew[i];
        if (atomic_load_explicit(&w->takes_part, memory_order_relaxed) != in)
            atomic_store_explicit(&w->takes_part, in, memory_order_relaxed);
        if (!in)
            continue;
        if (w->probes)
            await_probe(p, w);
        if (w->number != p->n_crew)
            w->number = p->n_crew;
        p->crew[p->n_crew++] = w;
    }
}

static void call(struct worker *w)
{
    atomic_fetch_add(&w->call, 1); /* publishes invariant 1's fields */
    if (atomic_load(&w->asleep))   /* invariant 2 */
        pool_futex_wake(&w->call, 1);
}

static void call_crew(struct pool *p)
{
    if (atomic_load_explicit(&p->rest, memory_order_relaxed))
        atomic_store_explicit(&p->rest, 0, memory_order_relaxed);
    for (unsigned i = 1; i < p->n_crew; i++)
        call(p->crew[i]);
}

void pool_run_crew(struct pool *p, const bool *crew,
                   void (*job)(void *context, unsigned thread, unsigned n_threads), void *context)
{
    uint32_t mode = float_mode_enter();
    p->job = job;
    p->context = context;
    gather_crew(p, crew);
    call_crew(p);
    show_place(&p->workers[0]);
    job(context, 0, p->n_crew);
    pool_barrier(p, 0);
    float_mode_leave(mode);
}

void pool_run(struct pool *p, void (*job)(void *context, unsigned thread, unsigned n_threads),
              void *context)
{
    pool_run_crew(p, NULL, job, context);
}

void pool_rest(struct pool *p)
{
    atomic_store_explicit(&p->rest, 1, memory_order_relaxed);
}

bool pool_held(struct pool *p, uint64_t *held_ns)
{
    if (!atomic_load_explicit(&p->any_held, memory_order_relaxed))
        return false;
    atomic_store_explicit(&p->any_held, 0, memory_order_relaxed);
    for (unsigned i = 0; i < p->threads; i++)
        held_ns[i] += atomic_exchange_explicit(&p->held_ns[i], 0, memory_order_relaxed);
    return true;
}

/* ---- the caller's place ---- */

/* A CPU of `allowed`, but `here`, that no worker of the crew (NULL: none at all) is bound to; or -1.
 */
static int free_cpu(const struct pool *p, const bool *crew, const cpu_set_t *allowed, int here)
{
    cpu_set_t left = *allowed;
    CPU_CLR((unsigned)here, &left);
    for (unsigned i = 1; i < p->threads; i++)
        if ((!crew || crew[i]) && p->workers[i].cpu >= 0)
            CPU_CLR((unsigned)p->workers[i].cpu, &left);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((unsigned)cpu, &left))
            return cpu;
    return -1;
}

/* The worker that is bound to that CPU, in the crew or out of it; or NULL. */
static struct worker *bound_to(const struct pool *p, const bool *crew, bool in, int cpu)
{
    for (unsigned i = 1; i < p->threads; i++)
        if (crew[i] == in && p->workers[i].cpu == cpu)
            return &p->workers[i];
    return NULL;
}

/* Whoever may run on one CPU alone for a moment is there, and stays until it is moved. */
void pool_place(struct pool *p, const bool *crew, bool leave)
{
    cpu_set_t allowed, one;
    int here = sched_getcpu();
    if (p->workers[0].cpu >= 0 || here < 0 || !(leave || bound_to(p, crew, true, here)) ||
        sched_getaffinity(0, sizeof allowed, &allowed))
        return;
    int cpu = free_cpu(p, crew, &allowed, here);
    if (cpu < 0)
        return;
    CPU_ZERO(&one);
    CPU_SET((unsigned)cpu, &one);
    if (!sched_setaffinity(0, sizeof one, &one))
        sched_setaffinity(0, sizeof allowed, &allowed);
}

/* ---- probes ---- */

/* A worker that sits out gives its CPU to the caller if that stands there, and takes one that nobody
 * has: there it probes, and there it will compute. */
static void change_places(struct pool *p, const bool *crew)
{
    cpu_set_t allowed;
    int here = sched_getcpu();
    struct worker *w = p->workers[0].cpu < 0 && here >= 0 ? bound_to(p, crew, false, here) : NULL;
    if (!w || sched_getaffinity(0, sizeof allowed, &allowed))
        return;
    int cpu = free_cpu(p, NULL, &allowed, here);
    if (cpu >= 0)
        (void)pin(w, (unsigned)cpu);
}

void pool_probe(struct pool *p, const bool *crew)
{
    assert(!p->probe_asked);
    uint32_t n = 0;
    change_places(p, crew);
    for (unsigned i = 1; i < p->threads; i++)
        n += !crew[i];
    p->probe_asked = n > 0;
    atomic_store_explicit(&p->probing, n, memory_order_relaxed);
    for (unsigned i = 1; i < p->threads; i++)
        if (!crew[i]) {
            p->workers[i].probes = true;
            call(&p->workers[i]);
        }
}

bool pool_probed(struct pool *p, float *share)
{
    if (!p->probe_asked || atomic_load_explicit(&p->probing, memory_order_acquire))
        return false;
    p->probe_asked = false;
    for (unsigned i = 1; i < p->threads; i++) {
        share[i] = p->workers[i].share;
        p->workers[i].probes = false;
    }
    return true;
}

/* ---- what there is ---- */

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
    init_worker(p, 0);
    struct worker *caller = &p->workers[0];
    caller->thread = pthread_self();
    caller->has_clock = !pthread_getcpuclockid(caller->thread, &caller->clock);
    int error = cpus ? pin_on(caller, cpus[0], f) : 0;
    for (unsigned i = 1; i < p->threads && !error; i++)
        error = start_worker(p, i, cpus, &allowed, f);
    return error;
}

static void free_pool(struct pool *p)
{
    if (!p)
        return;
    free(p->workers);
    free(p->crew);
    free((void *)p->held_ns);
    free(p);
}

/* No thread is started. NULL: no memory. */
static struct pool *new_pool(unsigned threads)
{
    struct pool *p = aligned_alloc(_Alignof(struct pool), sizeof *p);
    if (!p)
        return NULL;
    memset(p, 0, sizeof *p);
    p->threads = threads;
    p->workers = aligned_alloc(_Alignof(struct worker), threads * sizeof *p->workers);
    p->crew = calloc(threads, sizeof(struct worker *));
    p->held_ns = calloc(threads, sizeof *p->held_ns);
    if (p->workers && p->crew && p->held_ns)
        return p;
    free_pool(p);
    return NULL;
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
    struct pool *p = new_pool(threads);
    if (!p)
        return fail(f, -ENOMEM, "no memory for a pool of %u threads", threads);
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
    atomic_store_explicit(&p->quit, true, memory_order_relaxed);
    for (unsigned i = 1; i <= p->started; i++)
        call(&p->workers[i]);
    for (unsigned i = 1; i <= p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    free_pool(p);
}
