/* crew.c - see crew.h. */
#include "crew.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MS 1000000ull

/* Times of steps, not of the clock, unless it says so. */
#define HELD_WINDOW_NS (40 * MS)   /* held up for so long, on average */
#define COST_WINDOW_NS (100 * MS)  /* what a kind of steps takes is a mean over that */
#define COST_FRESH_NS  (3000 * MS) /* by the clock: older ones are compared with nothing */
#define MEASURE_NS     (60 * MS)   /* many slices of the scheduler */
#define TRIAL_NS       (40 * MS)
#define TRIAL_LOSS_NS  (6 * MS)   /* what a trial may cost */
#define TRIAL_MOST_NS  (120 * MS) /* then it ends, whatever could be compared */
#define FEWER_FIRST_NS (250 * MS) /* by the clock, after a trial that failed; then twice that */
#define FEWER_MOST_NS  (16000 * MS)
#define CALM_NS        (3000 * MS) /* nobody was held up: the next trial comes soon again */
#define ASK_FIRST_NS   (100 * MS)
#define ASK_MOST_NS    (800 * MS)
#define MORE_LASTED_NS (2000 * MS) /* what was kept for less was no success */

#define GAIN 0.03 /* what a change has to be worth */
#define SAME 0.02 /* times that differ by less are equal */

/* ---- life ---- */

int crew_create(struct crew *c, unsigned threads, bool caller_pinned)
{
    *c = (struct crew){.threads = threads,
                       .caller_pinned = caller_pinned,
                       .in = malloc(threads * sizeof *c->in),
                       .before = malloc(threads * sizeof *c->before),
                       .held = calloc(threads, sizeof *c->held),
                       .cost = calloc(CREW_KINDS, sizeof *c->cost),
                       .trial = calloc(CREW_KINDS, sizeof *c->trial),
                       .size = threads,
                       .fewer_wait_ns = FEWER_FIRST_NS,
                       .ask_wait_ns = ASK_FIRST_NS};
    if (!c->in || !c->before || !c->held || !c->cost || !c->trial) {
        crew_destroy(c);
        return -ENOMEM;
    }
    for (unsigned i = 0; i < threads; i++)
        c->in[i] = true;
    return 0;
}

void crew_destroy(struct crew *c)
{
    free(c->in);
    free(c->before);
    free(c->held);
    free(c->cost);
    free(c->trial);
    *c = (struct crew){0};
}

/* ---- what steps take ---- */

/* By the exponent and two more bits of the work. */
static unsigned kind_of(double work)
{
    enum { FIRST = (1023 + 8) * 4 }; /* 2^8 */
    uint64_t bits;
    memcpy(&bits, &work, sizeof bits);
    uint64_t n = bits >> 50;
    return n < FIRST ? 0 : n - FIRST < CREW_KINDS ? (unsigned)(n - FIRST) : CREW_KINDS - 1;
}

static bool is_fresh(const struct crew_cost *c, uint64_t now_ns)
{
    return c->work > 0 && now_ns - c->end_ns < COST_FRESH_NS;
}

static void add_cost(struct crew_cost *table, const struct crew_job *j)
{
    struct crew_cost *c = &table[kind_of(j->work)];
    if (!is_fresh(c, j->end_ns))
        c->took_ns = c->work = 0;
    if (c->took_ns > COST_WINDOW_NS) {
        c->took_ns /= 2;
        c->work /= 2;
    }
    c->took_ns += (double)j->took_ns;
    c->work += j->work;
    c->end_ns = j->end_ns;
}

/* ---- who is held up ---- */

static double held_in(const struct crew *c, const struct crew_job *j)
{
    double sum = 0;
    for (unsigned i = 0; i < c->threads && j->held_ns; i++)
        sum += (double)j->held_ns[i];
    return sum;
}

static void learn_held(struct crew *c, const struct crew_job *j)
{
    if (!j->held_ns && !c->any_held)
        return;
    double took = (double)j->took_ns, weight = took / (took + HELD_WINDOW_NS), most = 0;
    for (unsigned i = 0; i < c->threads; i++) {
        double share = j->held_ns && took > 0 ? (double)j->held_ns[i] / took : 0;
        c->held[i] += ((share < 1 ? share : 1) - c->held[i]) * weight;
        most = c->held[i] > most ? c->held[i] : most;
    }
    c->any_held = most > 1e-4;
}

static void forget_held(struct crew *c)
{
    memset(c->held, 0, c->threads * sizeof *c->held);
    c->any_held = false;
}

/* Of time lost in vain: without one of n threads a step takes at most n / (n - 1) as long. Half of
 * that is worth a trial. */
static double worth_a_trial(unsigned n)
{
    double share = 0.5 / n;
    return share > 0.02 ? share : 0.02;
}

static double held_together(const struct crew *c)
{
    double sum = 0;
    for (unsigned i = 0; i < c->threads && c->any_held; i++)
        sum += c->in[i] ? c->held[i] : 0;
    return sum;
}

static unsigned worst_worker(const struct crew *c)
{
    unsigned worst = 0;
    for (unsigned i = 1; i < c->threads; i++)
        if (c->in[i] && (!worst || c->held[i] > c->held[worst]))
            worst = i;
    return worst;
}

/* ---- other crews ---- */

static void take_out(struct crew *c, unsigned thread)
{
    c->in[thread] = false;
    c->size--;
}

static void keep_in_mind(struct crew *c)
{
    memcpy(c->before, c->in, c->threads * sizeof *c->in);
    c->size_before = c->size;
}

static void restore(struct crew *c)
{
    memcpy(c->in, c->before, c->threads * sizeof *c->in);
    c->size = c->size_before;
    c->changed = true;
}

/* Without those who are held up about as much as the worst, but at least half of the crew stays. A
 * caller that is held up finds the CPU of whoever leaves. False: it would not help. */
static bool make_fewer(struct crew *c)
{
    unsigned worst = worst_worker(c), leave = c->size / 2;
    if (c->held[0] > c->held[worst]) {
        for (worst = c->threads - 1; !c->in[worst];)
            worst--;
        take_out(c, worst);
        c->caller_held = true;
        return !c->caller_pinned;
    }
    for (unsigned i = 1; i < c->threads && leave; i++)
        if (c->in[i] && c->held[i] * 2 >= c->held[worst]) {
            take_out(c, i);
            leave--;
        }
    return true;
}

/* With those who find a CPU free enough: one more of n threads makes a step faster by 1 / (n + 1)
 * at most, if it has a CPU for itself. False: none of them. */
static bool make_more(struct crew *c, const float *share)
{
    double enough = 1 - 0.6 / (c->size + 1);
    bool any = false;
    for (unsigned i = 1; i < c->threads; i++)
        if (!c->in[i] && share[i] >= enough) {
            c->in[i] = any = true;
            c->size++;
        }
    return any;
}

/* ---- trials ---- */

static void begin_trial(struct crew *c, enum crew_state state)
{
    c->state = state;
    c->changed = true;
    c->took_ns = c->would_ns = c->all_ns = c->held_ns = 0;
    memset(c->trial, 0, CREW_KINDS * sizeof *c->trial);
}

static void try_fewer(struct crew *c, uint64_t now_ns)
{
    keep_in_mind(c);
    c->worst_before = c->held[worst_worker(c)];
    if (make_fewer(c)) {
        begin_trial(c, CREW_TRIES_FEWER);
        return;
    }
    restore(c);
    c->changed = false;
    c->fewer_at_ns = now_ns + FEWER_MOST_NS;
}

static uint64_t twice(uint64_t wait_ns, uint64_t most_ns)
{
    return wait_ns * 2 < most_ns ? wait_ns * 2 : most_ns;
}

static void ask_later(struct crew *c, uint64_t now_ns)
{
    c->state = CREW_SETTLED;
    c->ask_at_ns = now_ns + c->ask_wait_ns;
    c->ask_wait_ns = twice(c->ask_wait_ns, ASK_MOST_NS);
}

static void try_more(struct crew *c, const float *share, uint64_t now_ns)
{
    keep_in_mind(c);
    if (make_more(c, share))
        begin_trial(c, CREW_TRIES_MORE);
    else
        ask_later(c, now_ns);
}

static void go_back(struct crew *c, uint64_t now_ns)
{
    restore(c);
    if (c->state == CREW_TRIES_MORE) {
        ask_later(c, now_ns);
        return;
    }
    c->fewer_at_ns = now_ns + c->fewer_wait_ns;
    c->fewer_wait_ns = twice(c->fewer_wait_ns, FEWER_MOST_NS);
}

static void keep(struct crew *c, uint64_t now_ns)
{
    struct crew_cost *old = c->cost;
    c->cost = c->trial;
    c->trial = old;
    c->fewer_wait_ns = FEWER_FIRST_NS;
    c->fewer_at_ns = now_ns;
    if (c->state == CREW_TRIES_MORE)
        c->more_kept_ns = now_ns;
    else if (now_ns - c->more_kept_ns > MORE_LASTED_NS)
        c->ask_wait_ns = ASK_FIRST_NS;
    ask_later(c, now_ns);
}

static void end_trial(struct crew *c, bool better, uint64_t now_ns)
{
    if (better)
        keep(c, now_ns);
    else
        go_back(c, now_ns);
    c->state = CREW_SETTLED;
    forget_held(c);
}

static bool lost_enough(const struct crew *c)
{
    return c->took_ns - c->would_ns > TRIAL_LOSS_NS;
}

static bool more_are_free(const struct crew *c)
{
    return c->state == CREW_TRIES_MORE && c->held_ns < c->all_ns * worth_a_trial(c->size) / 2;
}

/* One more of many makes little difference: where it has its CPU for itself it takes part. */
static bool better_by_time(const struct crew *c)
{
    return c->took_ns < c->would_ns * (more_are_free(c) ? 1 + SAME : 1 - GAIN);
}

/* Fewer are better where the worst one cost more than all that it can have done. */
static bool better_by_held(const struct crew *c)
{
    if (c->state == CREW_TRIES_MORE)
        return more_are_free(c);
    return c->worst_before > 1 - (double)c->size / c->size_before;
}

static void judge(struct crew *c, const struct crew_job *j)
{
    const struct crew_cost *known = &c->cost[kind_of(j->work)];
    add_cost(c->trial, j);
    c->all_ns += (double)j->took_ns;
    c->held_ns += held_in(c, j);
    if (is_fresh(known, j->end_ns)) {
        c->took_ns += (double)j->took_ns;
        c->would_ns += j->work * (known->took_ns / known->work);
    }
    if (lost_enough(c))
        end_trial(c, false, j->end_ns);
    else if (c->would_ns >= TRIAL_NS)
        end_trial(c, better_by_time(c), j->end_ns);
    else if (c->all_ns >= TRIAL_MOST_NS)
        end_trial(c, c->would_ns * 4 >= TRIAL_NS ? better_by_time(c) : better_by_held(c),
                  j->end_ns);
}

/* ---- between trials ---- */

/* What steps take while threads are held up: only now is it measured, since what they took until
 * now was mostly without. */
static void begin_measuring(struct crew *c)
{
    c->state = CREW_MEASURES;
    c->all_ns = 0;
    memset(c->cost, 0, CREW_KINDS * sizeof *c->cost);
}

static void measure(struct crew *c, const struct crew_job *j)
{
    c->all_ns += (double)j->took_ns;
    if (c->all_ns < MEASURE_NS)
        return;
    c->state = CREW_SETTLED;
    if (held_together(c) > worth_a_trial(c->size))
        try_fewer(c, j->end_ns);
}

/* True: those who are out shall be asked. */
static bool settle(struct crew *c, const struct crew_job *j)
{
    double held = held_together(c), worth = worth_a_trial(c->size);
    if (held > worth / 2)
        c->calm_since_ns = j->end_ns;
    else if (j->end_ns - c->calm_since_ns > CALM_NS)
        c->fewer_wait_ns = FEWER_FIRST_NS;
    if (c->size > 1 && held > worth && j->end_ns >= c->fewer_at_ns) {
        begin_measuring(c);
        return false;
    }
    if (c->size == c->threads || j->end_ns < c->ask_at_ns)
        return false;
    c->state = CREW_ASKS;
    return true;
}

/* True: as above. */
static bool go_on(struct crew *c, const struct crew_job *j)
{
    if (c->state == CREW_TRIES_FEWER || c->state == CREW_TRIES_MORE) {
        judge(c, j);
        return false;
    }
    add_cost(c->cost, j);
    if (c->state == CREW_SETTLED)
        return settle(c, j);
    if (c->state == CREW_MEASURES)
        measure(c, j);
    else if (j->share)
        try_more(c, j->share, j->end_ns);
    return false;
}

enum crew_wish crew_note(struct crew *c, const struct crew_job *j)
{
    assert(j->work > 0);
    if (c->threads == 1)
        return CREW_GO_ON;
    c->changed = c->caller_held = false;
    learn_held(c, j);
    if (go_on(c, j))
        return CREW_PROBE;
    return !c->changed ? CREW_GO_ON : c->caller_held ? CREW_LEAVE : CREW_MEET;
}
