/* Metamorphic: under random workloads (arrivals, lengths, priorities, cancels, sessions with forks and
 * rewinds, resumed generations, stop strings, biases, penalties, candidates, pressure that forces
 * preemption, cache on and off, chunk sizes, promised gaps, several users, speculation on and off, a
 * shutdown in the middle of it all) each request's tokens, log-probabilities, candidates and end are
 * those of its run alone, bit by bit, and the engine's books are right between all steps.
 * LLMD_EXHAUSTIVE in the environment: many seeds. A failing seed is printed; run it alone with SEED=n,
 * or many from there on with SEEDS=n too. */
#include "../support/engine_load.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 100, SEEDS = 200, SEEDS_EXHAUSTIVE = 5000 };

/* What the workloads met, all together: a test that meets nothing shows nothing. */
static struct {
    uint64_t served, streams, preemptions, hits, copies, evicted, expired, recomputed, finals[8];
    uint64_t drafted, accepted, stopped, cut, biased, with_top;
} met;

static void note(const struct load *k)
{
    const struct llm_board *b = k->r.board;
    met.served += k->served;
    met.streams += k->r.n_streams;
    met.preemptions += rig_figure(&b->preemptions);
    met.hits += rig_figure(&b->prefix_hits);
    met.copies += k->r.gpu.copies;
    met.evicted += rig_figure(&b->session_evictions);
    met.expired += rig_figure(&b->sessions_expired);
    met.recomputed += rig_figure(&b->recomputed_tokens);
    met.drafted += rig_figure(&b->spec_draft_tokens);
    met.accepted += rig_figure(&b->spec_accepted_tokens);
    for (uint32_t i = 0; i < k->r.n_streams; i++) {
        const struct rig_stream *s = &k->r.streams[i];
        met.finals[s->final.finish % 8]++;
        met.stopped += s->result.stop != 0;
        met.cut += s->result.stop_cut != 0;
        met.biased += s->n && s->wish.n_biases;
        met.with_top += s->n && s->n_top;
    }
}

static void one_seed(uint32_t seed)
{
    static struct load k;
    load_begin(&k, seed);
    k.audited = true;
    k.may_fail = seed % 5 == 0;
    k.shut_down = seed % 7 == 0;
    rig_open(&k.r);
    if (k.may_fail)
        k.r.gpu.fail_wait_at = 1 + load_below(&k, 200);
    load_run(&k, ENTRIES);
    load_check(&k);
    note(&k);
    rig_close(&k.r);
}

static uint32_t seed_now;

static void say_seed(int signal_number)
{
    (void)signal_number;
    fprintf(stderr, "seed %u\n", seed_now);
}

static void random_seeds(void **state)
{
    (void)state;
    const char *one = getenv("SEED"), *many = getenv("SEEDS");
    uint32_t first = one ? (uint32_t)atoi(one) : 1;
    uint32_t n = getenv("LLMD_EXHAUSTIVE") ? SEEDS_EXHAUSTIVE : SEEDS;
    n = many ? (uint32_t)atoi(many) : one ? 1 : n;
    signal(SIGABRT, say_seed);
    for (seed_now = first; seed_now < first + n; seed_now++)
        one_seed(seed_now);
    seed_now = 0;
    if (one)
        return;
    assert_true(met.preemptions && met.hits && met.copies && met.evicted && met.expired);
    assert_true(met.recomputed && met.served > met.streams / 5);
    assert_true(met.accepted > 1000 && met.drafted > met.accepted + 1000);
    assert_true(met.stopped && met.cut && met.biased && met.with_top);
    for (int i = 0; i <= LLM_FINISH_ERROR; i++)
        assert_true(met.finals[i]);
}

static int say_failed_seed(void **state)
{
    (void)state;
    if (seed_now)
        say_seed(0);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(random_seeds, say_failed_seed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
