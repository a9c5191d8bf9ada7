/* test_pool.c - the worker pool: every thread of a crew runs every job, barriers separate phases,
 * sleepers wake, probes end, one thread makes no system call. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "../../gpu/cpu/pool.h"
#include "../support/no_syscalls.h"
#include "../support/support.h"

enum { THREADS_MAX = 8 };

static struct pool *make_pool(unsigned threads)
{
    struct fail f = {0};
    struct pool *p;
    if (pool_create(&p, threads, &f))
        fail_msg("%s", f.text);
    assert_int_equal(pool_threads(p), threads);
    return p;
}

/* ---- jobs ---- */

struct counts {
    unsigned ran[THREADS_MAX], n_threads; /* plain: the job's end must publish them */
};

static void count(void *context, unsigned thread, unsigned n_threads)
{
    struct counts *c = context;
    c->ran[thread]++;
    if (thread == 0)
        c->n_threads = n_threads;
}

static void every_thread_runs_every_job(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= THREADS_MAX; threads++) {
        struct pool *p = make_pool(threads);
        struct counts c = {0};
        for (unsigned job = 1; job <= 300; job++) {
            if (job % 7 == 0)
                pool_rest(p); /* the next job finds sleepers, or threads on their way to sleep */
            pool_run(p, count, &c);
            for (unsigned i = 0; i < threads; i++)
                assert_int_equal(c.ran[i], job);
        }
        assert_int_equal(c.n_threads, threads);
        pool_destroy(p);
    }
}

/* ---- barriers ---- */

enum { PHASES = 400 };

struct phases {
    struct pool *pool;
    unsigned n;                     /* 0: PHASES */
    unsigned value[2][THREADS_MAX]; /* plain: only the barriers keep writers and readers apart */
    _Atomic unsigned wrong;
};

/* In each phase, every thread writes its word of one row and reads all of the other one. */
static void walk_phases(void *context, unsigned thread, unsigned n_threads)
{
    struct phases *s = context;
    for (unsigned phase = 0; phase < (s->n ? s->n : PHASES); phase++) {
        s->value[phase % 2][thread] = phase;
        pool_barrier(s->pool, thread);
        for (unsigned i = 0; i < n_threads; i++)
            if (s->value[phase % 2][i] != phase)
                atomic_fetch_add(&s->wrong, 1);
    }
}

static void barriers_separate_phases(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= THREADS_MAX; threads++) {
        struct phases s = {.pool = make_pool(threads)};
        pool_run(s.pool, walk_phases, &s);
        pool_run(s.pool, walk_phases, &s);
        assert_int_equal(atomic_load(&s.wrong), 0);
        pool_destroy(s.pool);
    }
}

/* ---- crews ---- */

struct crew_walk {
    struct phases phases;
    _Atomic unsigned ran[THREADS_MAX], others;
    unsigned expected;
};

static void walk_with_crew(void *context, unsigned thread, unsigned n_threads)
{
    struct crew_walk *w = context;
    if (n_threads != w->expected || thread >= n_threads)
        atomic_fetch_add(&w->others, 1);
    atomic_fetch_add(&w->ran[thread], 1);
    walk_phases(&w->phases, thread, n_threads);
}

/* Every crew that there is, some of them asleep, one after the other. */
static void any_crew_runs_a_job(void **state)
{
    (void)state;
    enum { THREADS = 5, CREWS = 1 << (THREADS - 1) };
    static struct crew_walk w;
    struct rnd r = {5};
    w.phases.pool = make_pool(THREADS);
    w.phases.n = 40;
    for (unsigned job = 0; job < 6 * CREWS; job++) {
        bool crew[THREADS] = {false}; /* the caller takes part whatever stands there */
        unsigned bits = job < CREWS ? job : rnd_below(&r, CREWS);
        w.expected = 1 + (unsigned)__builtin_popcount(bits);
        for (unsigned i = 1; i < THREADS; i++)
            crew[i] = bits >> (i - 1) & 1;
        memset(w.ran, 0, sizeof w.ran);
        pool_run_crew(w.phases.pool, crew, walk_with_crew, &w);
        for (unsigned i = 0; i < THREADS; i++)
            assert_int_equal(atomic_load(&w.ran[i]), i < w.expected);
        if (job % 3 == 0)
            pool_rest(w.phases.pool);
    }
    assert_int_equal(atomic_load(&w.others), 0);
    assert_int_equal(atomic_load(&w.phases.wrong), 0);
    pool_destroy(w.phases.pool);
}

/* ---- held up ---- */

/* All on one CPU: whoever waits stands where the missing ones would compute. */
static void threads_without_a_cpu_are_seen(void **state)
{
    (void)state;
    enum { THREADS = 3 };
    cpu_set_t before;
    uint32_t here = (uint32_t)sched_getcpu(), cpus[THREADS] = {here, here, here};
    uint64_t held[THREADS] = {0};
    struct phases s = {0};
    sched_getaffinity(0, sizeof before, &before);
    assert_int_equal(pool_create_on(&s.pool, THREADS, cpus, NULL), 0);
    pool_run(s.pool, walk_phases, &s);
    assert_true(pool_held(s.pool, held));
    assert_true(held[0] + held[1] + held[2] > 0);
    assert_int_equal(atomic_load(&s.wrong), 0);
    while (pool_held(s.pool, held)) /* a thread may have been on its way out */
        sched_yield();
    uint64_t told[THREADS] = {7, 7, 7};
    assert_false(pool_held(s.pool, told));
    assert_int_equal(told[1], 7);
    pool_destroy(s.pool);
    sched_setaffinity(0, sizeof before, &before);
}

/* ---- probes ---- */

/* Jobs go on beside a probe; one that needs those who probe waits for them. */
static void probes_come_to_an_end(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    static const bool two[THREADS] = {true, false, true, false};
    struct phases s = {.pool = make_pool(THREADS), .n = 100};
    float share[THREADS] = {-1, -1, -1, -1};
    assert_false(pool_probed(s.pool, share));
    for (int i = 0; i < 3; i++) {
        pool_probe(s.pool, two);
        do
            pool_run_crew(s.pool, two, walk_phases, &s);
        while (!pool_probed(s.pool, share));
        assert_true(share[1] > 0 && share[1] <= 1);
        assert_true(share[3] > 0 && share[3] <= 1);
        assert_false(pool_probed(s.pool, share)); /* once */
        pool_run(s.pool, walk_phases, &s);
        pool_probe(s.pool, two);
        pool_run(s.pool, walk_phases, &s);
        assert_true(pool_probed(s.pool, share));
    }
    static const bool all[THREADS] = {true, true, true, true};
    pool_probe(s.pool, all); /* nobody is out */
    assert_false(pool_probed(s.pool, share));
    pool_probe(s.pool, two);
    pool_destroy(s.pool);
    assert_int_equal(atomic_load(&s.wrong), 0);
}

/* ---- places ---- */

static bool one_cpu_each(const struct pool *p, const cpu_set_t *allowed)
{
    cpu_set_t taken;
    CPU_ZERO(&taken);
    for (unsigned i = 1; i < pool_threads(p); i++) {
        int cpu = pool_cpu(p, i);
        if (cpu < 0 || !CPU_ISSET(cpu, allowed) || CPU_ISSET(cpu, &taken))
            return false;
        CPU_SET(cpu, &taken);
    }
    return true;
}

/* Wherever they are sent: the workers have a CPU each, the caller may run anywhere as before. */
static void places_change_and_all_have_one(void **state)
{
    (void)state;
    cpu_set_t before, after;
    struct rnd r = {17};
    float share[CPU_SETSIZE];
    sched_getaffinity(0, sizeof before, &before);
    unsigned n = (unsigned)CPU_COUNT(&before);
    n = n < THREADS_MAX ? n : THREADS_MAX;
    struct phases s = {.pool = make_pool(n), .n = 10};
    for (int i = 0; i < 40; i++) {
        bool crew[THREADS_MAX] = {true};
        for (unsigned k = 1; k < n; k++)
            crew[k] = rnd_below(&r, 2);
        pool_place(s.pool, crew, rnd_below(&r, 2));
        if (i % 8 == 0) {
            pool_probe(s.pool, crew);
            pool_run(s.pool, walk_phases, &s);
            pool_probed(s.pool, share);
        }
        pool_run_crew(s.pool, crew, walk_phases, &s);
        assert_true(one_cpu_each(s.pool, &before));
        sched_getaffinity(0, sizeof after, &after);
        assert_true(CPU_EQUAL(&before, &after));
    }
    assert_int_equal(atomic_load(&s.wrong), 0);
    pool_destroy(s.pool);
}

/* ---- arithmetic ---- */

#if defined(__x86_64__)
struct modes {
    unsigned csr[THREADS_MAX];
};

static void read_mode(void *context, unsigned thread, unsigned n_threads)
{
    struct modes *m = context;
    (void)n_threads;
    m->csr[thread] = _mm_getcsr() & 0xffc0; /* without the sticky flags */
}

static void one_float_mode_everywhere(void **state)
{
    (void)state;
    enum { FLUSH = 0x8040, NEAREST_NO_FLUSH = 0x1f80 };
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        struct modes m;
        _mm_setcsr(NEAREST_NO_FLUSH | FLUSH); /* workers would inherit it, the caller has it */
        struct pool *p = make_pool(threads);
        pool_run(p, read_mode, &m);
        unsigned after = _mm_getcsr();
        _mm_setcsr(NEAREST_NO_FLUSH);
        for (unsigned i = 0; i < threads; i++)
            assert_int_equal(m.csr[i], NEAREST_NO_FLUSH);
        assert_int_equal(after & FLUSH, FLUSH); /* the caller's own mode is given back */
        pool_destroy(p);
    }
}
#endif

/* ---- system calls ---- */

static bool hundred_jobs(void *context)
{
    unsigned threads = *(unsigned *)context;
    struct fail f = {0};
    struct pool *p;
    struct counts c = {0};
    if (pool_create(&p, threads, &f))
        return false;
    pool_run(p, count, &c); /* the threads have started: that takes system calls */
    no_syscalls(threads > 1);
    for (int i = 1; i < 100; i++) {
        pool_run(p, count, &c);
        pool_rest(p);
    }
    return c.ran[0] == 100;
}

static void jobs_make_no_system_call(void **state)
{
    (void)state;
    if (test_sanitized() || !no_syscalls_works())
        skip(); /* a sanitizer's runtime makes calls of its own */
    for (unsigned threads = 1; threads <= 3; threads++) /* more than one may sleep and wake */
        assert_true(without_syscalls(hundred_jobs, &threads));
}

/* ---- limits ---- */

static void silly_thread_counts_are_refused(void **state)
{
    (void)state;
    static const unsigned counts[] = {0, 1000000};
    for (int i = 0; i < 2; i++) {
        struct fail f = {0};
        struct pool *p;
        assert_int_equal(pool_create(&p, counts[i], &f), -EINVAL);
        assert_null(p);
        assert_non_null(strstr(f.text, "threads"));
    }
    pool_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_every_job),
        cmocka_unit_test(barriers_separate_phases),
        cmocka_unit_test(any_crew_runs_a_job),
        cmocka_unit_test(threads_without_a_cpu_are_seen),
        cmocka_unit_test(probes_come_to_an_end),
        cmocka_unit_test(places_change_and_all_have_one),
#if defined(__x86_64__)
        cmocka_unit_test(one_float_mode_everywhere),
#endif
        cmocka_unit_test(jobs_make_no_system_call),
        cmocka_unit_test(silly_thread_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
