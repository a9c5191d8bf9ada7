/* test_pool.c - the worker pool: every thread runs every job, barriers separate phases, sleepers
 * wake, one thread makes no system call. */
#include <errno.h>
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
    unsigned value[2][THREADS_MAX]; /* plain: only the barriers keep writers and readers apart */
    _Atomic unsigned wrong;
};

/* In each phase, every thread writes its word of one row and reads all of the other one. */
static void walk_phases(void *context, unsigned thread, unsigned n_threads)
{
    struct phases *s = context;
    for (unsigned phase = 0; phase < PHASES; phase++) {
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
#if defined(__x86_64__)
        cmocka_unit_test(one_float_mode_everywhere),
#endif
        cmocka_unit_test(jobs_make_no_system_call),
        cmocka_unit_test(silly_thread_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
