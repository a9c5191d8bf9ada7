/* barrier.c - the barrier inside a job, and what a thread does that waits there for long.
 *
 *     SPINNING --POOL_SPIN_PAUSES--> LOOKING --a missing thread has no CPU--> ASLEEP on the phase
 *                                      ^ '--- its CPU is ours --------------->   |
 *                                      '------- POOL_SLEEP_NS, or woken ---------'
 *     and out of all of them when the phase moves
 *
 * Between two barriers lie microseconds of work. Where it takes longer a thread computes a larger
 * share, or it has lost its CPU to somebody else's work. Then nothing goes on until it has it back,
 * and who meanwhile spins uses up his own slice of the scheduler, so that he is without a CPU when
 * the other one returns: threads that do so in turns pass one barrier a slice. (So do threads that
 * call sched_yield, which gives a whole slice away.) Who sleeps keeps his claim: he is woken when
 * the last one arrives, and they run on together.
 *
 * One of those who wait watches: it reads the missing threads' CPU clocks. That tells a thread that
 * computes from one that cannot, and says how long each was held up.
 *
 * Invariants:
 *  1. `arrived` is 0 and `phase` unchanged whenever no thread is inside the barrier.
 *  2. A sleeper counts itself in `sleepers` before the kernel compares the phase, and the last one
 *     to arrive moves the phase before it reads `sleepers`. Of two that do so in the same few
 *     nanoseconds one may not see the other (a fence here would cost each barrier more than it is
 *     worth): then the sleep lasts POOL_SLEEP_NS. Every sleep is bounded by that.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <limits.h>
#include <sched.h>

#include "pool_parts.h"

enum {
    POOL_SPIN_PAUSES = 2000, /* 50 to 100 us: then it is a long wait */
    POOL_LOOK_NS = 50000,    /* of a watch, between two looks */
    POOL_SLEEP_NS = 2000000,
    POOL_WATCHED = 8 /* threads that one watch looks at */
};

static bool ended(const struct pool *p, uint32_t phase)
{
    return atomic_load_explicit(&p->phase, memory_order_acquire) != phase;
}

/* Who waits at the end of a job may find that the caller has begun the next one: so a long wait
 * reads nothing but hints (relaxed), and a stale one costs time, nothing else. */
static bool missing(const struct worker *w, uint32_t phase)
{
    return atomic_load_explicit(&w->takes_part, memory_order_relaxed) &&
           atomic_load_explicit(&w->at, memory_order_relaxed) != phase + 1;
}

/* A missing thread on the CPU that this one runs on, or NULL: there are more threads than CPUs. */
static const struct worker *one_stands_here(const struct pool *p, uint32_t phase)
{
    int here = sched_getcpu();
    for (unsigned i = 0; i < p->threads; i++)
        if (missing(&p->workers[i], phase) &&
            atomic_load_explicit(&p->workers[i].on, memory_order_relaxed) == here)
            return &p->workers[i];
    return NULL;
}

static void note_held(struct pool *p, const struct worker *w, uint64_t ns)
{
    atomic_fetch_add_explicit(&p->held_ns[w->index], ns, memory_order_relaxed);
    atomic_store_explicit(&p->any_held, 1, memory_order_relaxed);
}

/* ---- watch ---- */

/* Missing threads, and the CPU time that they had. */
struct watch {
    bool is_on;
    uint64_t since_ns, looked_ns;
    unsigned n;
    struct {
        const struct worker *who;
        uint64_t since_ns, looked_ns;
    } at[POOL_WATCHED];
};

static void watch_begin(struct watch *w, struct pool *p, uint32_t phase)
{
    if (atomic_exchange_explicit(&p->watching, 1, memory_order_acquire))
        return;
    w->is_on = true;
    w->since_ns = w->looked_ns = pool_now_ns();
    for (unsigned i = 0; i < p->threads && w->n < POOL_WATCHED; i++) {
        const struct worker *late = &p->workers[i];
        if (missing(late, phase) && late->has_clock) {
            uint64_t clock = pool_clock_ns(late->clock);
            w->at[w->n].who = late;
            w->at[w->n].since_ns = w->at[w->n].looked_ns = clock;
            w->n++;
        }
    }
}

/* Whether a missing thread had a CPU for less than half of the time since the last look. */
static bool watch_finds_held(struct watch *w, uint32_t phase, uint64_t now)
{
    uint64_t passed = now - w->looked_ns;
    bool held = false;
    for (unsigned i = 0; i < w->n; i++) {
        uint64_t clock = pool_clock_ns(w->at[i].who->clock), ran = clock - w->at[i].looked_ns;
        w->at[i].looked_ns = clock;
        held |= missing(w->at[i].who, phase) && ran * 2 < passed;
    }
    w->looked_ns = now;
    return held;
}

static void watch_end(const struct watch *w, struct pool *p)
{
    uint64_t waited = pool_now_ns() - w->since_ns;
    for (unsigned i = 0; i < w->n; i++) {
        const struct worker *late = w->at[i].who;
        uint64_t ran = pool_clock_ns(late->clock) - w->at[i].since_ns;
        if (ran < waited)
            note_held(p, late, waited - ran);
    }
    atomic_store_explicit(&p->watching, 0, memory_order_release);
}

/* ---- a long wait ---- */

static void sleep_a_while(struct pool *p, uint32_t phase)
{
    atomic_fetch_add_explicit(&p->sleepers, 1, memory_order_relaxed); /* invariant 2 */
    pool_futex_wait(&p->phase, phase, &(struct timespec){.tv_nsec = POOL_SLEEP_NS});
    atomic_fetch_sub_explicit(&p->sleepers, 1, memory_order_relaxed);
}

/* Whether a thread without a CPU is missing. What the watch finds is told to the others who wait. */
static bool waits_in_vain(struct pool *p, struct watch *w, uint32_t phase)
{
    uint64_t now = w->is_on ? pool_now_ns() : 0;
    if (w->is_on && now - w->looked_ns > POOL_LOOK_NS && watch_finds_held(w, phase, now))
        atomic_store_explicit(&p->held_phase, phase + 1, memory_order_relaxed);
    return atomic_load_explicit(&p->held_phase, memory_order_relaxed) == phase + 1;
}

/* It computes while this one sleeps: so no watch would see that it was held up. */
static void give_way(struct pool *p, const struct worker *late, uint32_t phase)
{
    uint64_t since = pool_now_ns();
    sleep_a_while(p, phase);
    note_held(p, late, pool_now_ns() - since);
}

/* Returns when the phase is over. */
static void wait_long(struct pool *p, uint32_t phase)
{
    enum { PAUSES = 32 };
    const struct worker *late;
    struct watch w = {0};
    watch_begin(&w, p, phase);
    while (!ended(p, phase)) {
        if ((late = one_stands_here(p, phase)))
            give_way(p, late, phase);
        else if (waits_in_vain(p, &w, phase))
            sleep_a_while(p, phase);
        for (unsigned i = 0; i < PAUSES && !ended(p, phase); i++)
            pool_pause();
    }
    if (w.is_on)
        watch_end(&w, p);
}

/* ---- barrier ---- */

static void open_barrier(struct pool *p, uint32_t phase)
{
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    /* release, with ended()'s acquire: and hands it on to everybody */
    atomic_store_explicit(&p->phase, phase + 1, memory_order_release);
    if (atomic_load_explicit(&p->sleepers, memory_order_relaxed)) /* invariant 2 */
        pool_futex_wake(&p->phase, INT_MAX);
}

void pool_barrier(struct pool *p, unsigned thread)
{
    unsigned n = p->n_crew;
    assert(thread < n);
    if (n == 1)
        return;
    /* relaxed: the phase cannot move before this thread has arrived */
    uint32_t phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    atomic_store_explicit(&p->crew[thread]->at, phase + 1, memory_order_relaxed);
    /* acquire-release: the last one to arrive has seen what all the others wrote */
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 == n) {
        open_barrier(p, phase);
        return;
    }
    for (unsigned i = 0; i < POOL_SPIN_PAUSES; i++) {
        if (ended(p, phase))
            return;
        pool_pause();
    }
    wait_long(p, phase);
}
