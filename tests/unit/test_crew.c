/* test_crew.c - which threads compute: decided on a simulated machine, whose CPUs other programs
 * take in turns. The clock is the simulation's, so the same run brings the same decisions.
 */
#include "../../gpu/cpu/crew.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <stdlib.h>
#include <string.h>

#define MS 1000000ull

enum { THREADS_MAX = 16, SLICE_MS = 4, PROBE_MS = 20, TICK_NS = 50000 };

/* Thread i stands on CPU i. A busy CPU gives it `free_slices` of 4 slices. */
struct machine {
    struct crew crew;
    unsigned threads;
    uint64_t now_ns;
    unsigned free_slices[THREADS_MAX];
    double serial; /* the part of a step that does not get faster with more threads */
    uint64_t probe_end_ns;
    bool probes;

    /* counted */
    unsigned changes, steps, steps_of[THREADS_MAX + 1];
    uint64_t busy_ns;
    double work;
};

/* In turns, as schedulers have it; each CPU begins every four slices anew, somewhere. */
static bool has_cpu(const struct machine *m, unsigned thread, uint64_t at_ns)
{
    static const uint8_t turns[] = {0, 1, 5, 7, 15}; /* a bit a slice */
    uint64_t slice = at_ns / (SLICE_MS * MS);
    struct rnd r = {(slice / 4 + 1) * THREADS_MAX + thread};
    rnd_u32(&r);
    return turns[m->free_slices[thread]] >> (slice + rnd_u32(&r)) % 4 & 1;
}

static void machine_open(struct machine *m, unsigned threads, bool caller_pinned)
{
    *m = (struct machine){.threads = threads, .serial = 0.1};
    for (unsigned i = 0; i < threads; i++)
        m->free_slices[i] = 4;
    assert_int_equal(crew_create(&m->crew, threads, caller_pinned), 0);
}

static void machine_close(struct machine *m)
{
    crew_destroy(&m->crew);
}

static void forget_counts(struct machine *m)
{
    m->changes = m->steps = 0;
    memset(m->steps_of, 0, sizeof m->steps_of);
    m->busy_ns = 0;
    m->work = 0;
}

/* A step goes on while each of its threads has a CPU. */
static uint64_t run_step(struct machine *m, double work, uint64_t *held_ns)
{
    const bool *in = crew_members(&m->crew);
    double n = crew_size(&m->crew), left = work * (m->serial + (1 - m->serial) / n);
    uint64_t start = m->now_ns;
    for (; left > 0; m->now_ns += TICK_NS) {
        bool all = true;
        for (unsigned i = 0; i < m->threads; i++)
            if (in[i] && !has_cpu(m, i, m->now_ns)) {
                held_ns[i] += TICK_NS;
                all = false;
            }
        left -= all ? TICK_NS : 0;
    }
    return m->now_ns - start;
}

static void read_probe(struct machine *m, float *share)
{
    m->probes = false;
    for (unsigned i = 0; i < m->threads; i++) {
        unsigned had = 0;
        for (unsigned t = 0; t < PROBE_MS; t++)
            had += has_cpu(m, i, m->probe_end_ns - (t + 1) * MS);
        share[i] = (float)had / PROBE_MS;
    }
}

/* A step that one thread computes in `work` ns. */
static void step(struct machine *m, double work)
{
    uint64_t held[THREADS_MAX] = {0};
    float share[THREADS_MAX];
    unsigned size = crew_size(&m->crew);
    uint64_t took = run_step(m, work, held);
    struct crew_job j = {.end_ns = m->now_ns, .took_ns = took, .work = work, .held_ns = held};
    if (m->probes && m->now_ns >= m->probe_end_ns) {
        read_probe(m, share);
        j.share = share;
    }
    if (crew_note(&m->crew, &j) == CREW_PROBE) {
        assert_false(m->probes);
        m->probes = true;
        m->probe_end_ns = m->now_ns + PROBE_MS * MS;
    }
    m->steps++;
    m->steps_of[size]++;
    m->changes += crew_size(&m->crew) != size;
    m->busy_ns += took;
    m->work += work;
    assert_true(crew_members(&m->crew)[0]);
}

enum { DECODE = 5 * 1000000, PREFILL = 60 * 1000000 };

static void run_for(struct machine *m, uint64_t ms)
{
    for (uint64_t end = m->now_ns + ms * MS; m->now_ns < end;)
        step(m, DECODE);
}

static double rate(const struct machine *m)
{
    return m->work / (double)m->busy_ns;
}

/* ---- scenarios ---- */

static void a_quiet_machine_is_left_alone(void **state)
{
    (void)state;
    struct machine m;
    struct rnd r = {7};
    for (unsigned threads = 1; threads <= THREADS_MAX; threads *= 2) {
        machine_open(&m, threads, false);
        for (int i = 0; i < 3000; i++)
            step(&m, 100000 + rnd_below(&r, i % 50 ? DECODE : PREFILL));
        assert_int_equal(m.changes, 0);
        assert_int_equal(m.steps_of[threads], m.steps);
        assert_false(m.probes);
        machine_close(&m);
    }
}

/* One of two CPUs is busy half of the time: the other one alone is faster. */
static void two_threads_become_one_and_two_again(void **state)
{
    (void)state;
    struct machine m;
    machine_open(&m, 2, false);
    run_for(&m, 1000);
    double quiet = rate(&m);
    m.free_slices[1] = 2;
    run_for(&m, 300);
    assert_int_equal(crew_size(&m.crew), 1);
    forget_counts(&m);
    run_for(&m, 10000);
    assert_true(m.steps_of[1] > m.steps * 97 / 100);
    assert_true(rate(&m) > 0.97); /* one thread's */
    assert_true(m.changes <= 24); /* a trial now and then */
    m.free_slices[1] = 4;
    run_for(&m, 1000);
    assert_int_equal(crew_size(&m.crew), 2);
    forget_counts(&m);
    run_for(&m, 5000);
    assert_int_equal(m.changes, 0);
    assert_true(rate(&m) > 0.999 * quiet);
    machine_close(&m);
}

static void of_many_the_one_that_is_held_up_leaves(void **state)
{
    (void)state;
    struct machine m;
    machine_open(&m, 16, false);
    run_for(&m, 500);
    m.free_slices[5] = m.free_slices[11] = 2;
    run_for(&m, 1000);
    assert_int_equal(crew_size(&m.crew), 14);
    assert_false(crew_members(&m.crew)[5] || crew_members(&m.crew)[11]);
    m.free_slices[11] = 4; /* one of them has its CPU again */
    run_for(&m, 1000);
    assert_int_equal(crew_size(&m.crew), 15);
    assert_false(crew_members(&m.crew)[5]);
    m.free_slices[5] = 4;
    run_for(&m, 1000);
    assert_int_equal(crew_size(&m.crew), 16);
    machine_close(&m);
}

/* Of each other's time, too: half of the threads have no CPU of their own. */
static void more_threads_than_cpus(void **state)
{
    (void)state;
    struct machine m;
    machine_open(&m, 8, false);
    for (unsigned i = 4; i < 8; i++)
        m.free_slices[i] = 2;
    run_for(&m, 2000);
    assert_int_equal(crew_size(&m.crew), 4);
    machine_close(&m);
}

/* A CPU of which little is taken: two threads are faster all the same, and trials become rare. */
static void a_little_is_borne(void **state)
{
    (void)state;
    static const double serial[] = {0.1, 0.44}; /* one thread takes 36 % longer; or 4 % */
    for (int i = 0; i < 2; i++) {
        struct machine m;
        machine_open(&m, 2, false);
        m.serial = serial[i];
        m.free_slices[1] = 3;
        run_for(&m, 1000);
        forget_counts(&m);
        run_for(&m, 60000);
        assert_true(m.steps_of[2] > m.steps * 98 / 100);
        assert_true(m.changes <= 20);
        machine_close(&m);
    }
}

/* The caller's own CPU: whoever leaves makes room for it, unless it is bound to where it is. */
static void a_caller_that_is_held_up(void **state)
{
    (void)state;
    struct machine m;
    machine_open(&m, 4, false);
    m.free_slices[0] = 2;
    uint64_t end = 500 * MS;
    while (crew_size(&m.crew) == 4 && m.now_ns < end)
        step(&m, DECODE);
    assert_int_equal(crew_size(&m.crew), 3);
    assert_false(crew_members(&m.crew)[3]);
    m.free_slices[0] = 4; /* it has moved there */
    m.free_slices[3] = 2;
    run_for(&m, 2000);
    assert_int_equal(crew_size(&m.crew), 3);
    machine_close(&m);

    machine_open(&m, 4, true);
    m.free_slices[0] = 2;
    run_for(&m, 5000);
    assert_int_equal(m.changes, 0);
    machine_close(&m);
}

/* Prompts and decodes in turns, of many sizes: what is compared is of the same size. */
static void mixed_steps_are_judged_fairly(void **state)
{
    (void)state;
    struct machine m;
    struct rnd r = {11};
    machine_open(&m, 2, false);
    for (int busy = 0; busy < 2; busy++) {
        m.free_slices[1] = busy ? 2 : 4;
        for (int i = 0; i < 400; i++)
            step(&m, i % 3 ? DECODE : PREFILL / (1 + rnd_below(&r, 9)));
        assert_int_equal(crew_size(&m.crew), busy ? 1 : 2);
    }
    forget_counts(&m);
    for (int i = 0; i < 1000; i++)
        step(&m, i % 3 ? DECODE : PREFILL / (1 + rnd_below(&r, 9)));
    assert_true(m.steps_of[1] > m.steps * 95 / 100);
    machine_close(&m);
}

/* Nothing to do for a minute, and then everything is different. */
static void what_was_long_ago_is_compared_with_nothing(void **state)
{
    (void)state;
    struct machine m;
    machine_open(&m, 2, false);
    m.free_slices[1] = 2;
    run_for(&m, 2000);
    assert_int_equal(crew_size(&m.crew), 1);
    m.now_ns += 60000 * MS;
    m.free_slices[1] = 4;
    run_for(&m, 400);
    assert_int_equal(crew_size(&m.crew), 2);
    machine_close(&m);
}

/* Somebody works for a quarter of a second, then pauses as long: changes become rare. */
static void it_does_not_follow_every_change(void **state)
{
    (void)state;
    struct machine m;
    machine_open(&m, 2, false);
    for (int i = 0; i < 120; i++) {
        m.free_slices[1] = i % 2 ? 4 : 2;
        run_for(&m, 250);
        if (i == 40)
            forget_counts(&m);
    }
    assert_true(m.changes < 60); /* in 20 s */
    machine_close(&m);
}

static void odd_numbers_do_no_harm(void **state)
{
    (void)state;
    static const double works[] = {1e-300, 1, 1e30, 1e300};
    struct rnd r = {3};
    struct crew c;
    float share[3] = {0};
    assert_int_equal(crew_create(&c, 3, false), 0);
    uint64_t now = UINT64_MAX - 1000 * MS, held[3];
    for (int i = 0; i < 20000; i++) {
        uint64_t took = rnd_below(&r, 3) ? rnd_below(&r, 50) * MS : 0;
        for (int k = 0; k < 3; k++) {
            held[k] = rnd_below(&r, 4) ? 0 : (uint64_t)rnd_u32(&r) << rnd_below(&r, 30);
            share[k] = (float)rnd_below(&r, 3) / 2;
        }
        struct crew_job j = {.end_ns = now,
                             .took_ns = took,
                             .work = works[rnd_below(&r, 4)],
                             .held_ns = rnd_below(&r, 2) ? held : NULL,
                             .share = rnd_below(&r, 2) ? share : NULL};
        crew_note(&c, &j);
        unsigned n = 0;
        for (int k = 0; k < 3; k++)
            n += crew_members(&c)[k];
        assert_int_equal(n, crew_size(&c));
        assert_true(crew_members(&c)[0]);
        now += rnd_below(&r, 3) * took; /* past the clock's end, too */
    }
    crew_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quiet_machine_is_left_alone),
        cmocka_unit_test(two_threads_become_one_and_two_again),
        cmocka_unit_test(of_many_the_one_that_is_held_up_leaves),
        cmocka_unit_test(more_threads_than_cpus),
        cmocka_unit_test(a_little_is_borne),
        cmocka_unit_test(a_caller_that_is_held_up),
        cmocka_unit_test(mixed_steps_are_judged_fairly),
        cmocka_unit_test(what_was_long_ago_is_compared_with_nothing),
        cmocka_unit_test(it_does_not_follow_every_change),
        cmocka_unit_test(odd_numbers_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
