/* latency.c - see latency.h. */
#include "latency.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../shm/board.h"
#include "roof.h"

enum {
    PROMPT = 16,
    GAP_TOKENS = 48, /* of a turn */
    SETTLE = 3,      /* the first ones of a turn: threads and caches come back */
    FIRSTS = 10,     /* one-token prompts of a turn */
    TURNS_MAX = 64,
    SAMPLES = TURNS_MAX * GAP_TOKENS,
    ASLEEP_NS = 3000000 /* by then an idle engine sleeps: it looks for work for 50 us */
};

struct samples {
    double v[SAMPLES];
    int n;
};

/* The engine's steps, as its board counts them, beside the times of a stream's tokens. */
struct watch {
    const struct llm_board *board;
    uint64_t steps, step_ns, t_ns; /* at the last look */
    int tokens;                    /* of the turn, so far */
    struct samples *whole, *added;
};

/* of all turns */
static struct samples gaps, gaps_added, firsts, firsts_added, sleepers, bare_gaps, bare_firsts;

static void add(struct samples *s, double v)
{
    if (!isnan(v) && s->n < SAMPLES)
        s->v[s->n++] = v;
}

static double p50(struct samples *s)
{
    return s->n ? bench_median(s->v, s->n) : NAN;
}

/* Of those from number `from` on. */
static double p50_since(const struct samples *s, int from)
{
    static double v[SAMPLES];
    int n = s->n - from;
    memcpy(v, s->v + from, (size_t)n * sizeof *v);
    return n ? bench_median(v, n) : NAN;
}

static const struct llm_board *open_board(const char *instance)
{
    char name[80];
    snprintf(name, sizeof name, "/llmd.%s", instance);
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        bench_die("the engine's board %s cannot be read", name);
    close(fd);
    return at;
}

static void look(struct watch *w, uint64_t now_ns)
{
    w->steps = order_read64(&w->board->step.count);
    w->step_ns = order_read64(&w->board->step.sum_ns);
    w->t_ns = now_ns;
}

/* At each token: since the last look there was one step, this token's. */
static void on_token(void *context, uint64_t now_ns)
{
    struct watch *w = context, last = *w;
    look(w, now_ns);
    if (w->tokens++ < SETTLE || w->steps != last.steps + 1)
        return;
    double whole = (double)(now_ns - last.t_ns) * 1e-3;
    add(w->whole, whole);
    add(w->added, whole - (double)(w->step_ns - last.step_ns) * 1e-3);
}

/* ---- the gap between two tokens ---- */

static void gaps_of_engine(struct streams *s, struct watch *w)
{
    w->whole = &gaps;
    w->added = &gaps_added;
    w->tokens = 0;
    look(w, bench_now_ns());
    streams_run(s, 1, PROMPT, GAP_TOKENS, on_token, w);
}

/* Token i of the engine's stream came of the row at position PROMPT - 1 + i. */
static void gaps_of_backend(struct alone *a)
{
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i + 1;
    alone_begin(a, prompt, PROMPT);
    for (int i = 0; i < GAP_TOKENS; i++) {
        double us = (double)alone_step_ns(a) * 1e-3;
        if (i >= SETTLE)
            add(&bare_gaps, us);
    }
    alone_rest(a);
}

/* ---- the first token ---- */

static void first_of_engine(struct streams *s, struct watch *w, struct samples *whole,
                            struct samples *added)
{
    struct samples one = {.n = 0}, one_added = {.n = 0};
    w->whole = &one;
    w->added = &one_added;
    w->tokens = SETTLE;
    look(w, bench_now_ns());
    streams_run(s, 1, 1, 1, on_token, w);
    if (!one.n)
        return;
    add(whole, streams_first_s(s) * 1e6);
    if (added)
        add(added, streams_first_s(s) * 1e6 - (one.v[0] - one_added.v[0]));
}

static void firsts_of_engine(struct streams *s, struct watch *w)
{
    struct samples unused = {.n = 0};
    for (int i = 0; i < SETTLE; i++)
        first_of_engine(s, w, &unused, NULL);
    for (int i = 0; i < FIRSTS; i++)
        first_of_engine(s, w, &firsts, &firsts_added);
}

static void firsts_of_sleeper(struct streams *s, struct watch *w)
{
    for (int i = 0; i < FIRSTS / 2; i++) {
        nanosleep(&(struct timespec){0, ASLEEP_NS}, NULL);
        first_of_engine(s, w, &sleepers, NULL);
    }
}

static void firsts_of_backend(struct alone *a)
{
    for (int32_t i = 0; i < SETTLE + FIRSTS; i++) {
        int32_t prompt[1] = {i + 1};
        alone_begin(a, prompt, 1);
        double us = (double)alone_step_ns(a) * 1e-3;
        if (i >= SETTLE)
            add(&bare_firsts, us);
    }
    alone_rest(a);
}

/* ---- in turns ---- */

/* What the engine's p50 has more than the backend's. */
static double turn_of_gaps(struct streams *s, struct watch *w, struct alone *alone)
{
    int from = gaps.n, bare_from = bare_gaps.n;
    gaps_of_engine(s, w);
    gaps_of_backend(alone);
    return p50_since(&gaps, from) - p50_since(&bare_gaps, bare_from);
}

static double turn_of_firsts(struct streams *s, struct watch *w, struct alone *alone)
{
    int from = firsts.n, bare_from = bare_firsts.n;
    firsts_of_engine(s, w);
    firsts_of_backend(alone);
    return p50_since(&firsts, from) - p50_since(&bare_firsts, bare_from);
}

void latency_measure(struct speed_latency *out, struct streams *s, const char *instance,
                     struct alone *alone, int turns)
{
    struct watch w = {.board = open_board(instance)};
    static struct samples gap_turns, first_turns;
    turns = turns < TURNS_MAX ? turns : TURNS_MAX;
    for (int i = 0; i < turns; i++) {
        add(&gap_turns, turn_of_gaps(s, &w, alone));
        add(&first_turns, turn_of_firsts(s, &w, alone));
        firsts_of_sleeper(s, &w);
    }
    munmap((void *)(uintptr_t)w.board, LLM_BOARD_BYTES);
    *out = (struct speed_latency){.measured = true,
                                  .tokens = gaps.n,
                                  .firsts = firsts.n,
                                  .gap = p50(&gaps),
                                  .bare_gap = p50(&bare_gaps),
                                  .gap_minus_bare = p50(&gap_turns),
                                  .gap_minus_step = p50(&gaps_added),
                                  .first = p50(&firsts),
                                  .bare_first = p50(&bare_firsts),
                                  .first_minus_bare = p50(&first_turns),
                                  .first_minus_step = p50(&firsts_added),
                                  .asleep_first = p50(&sleepers)};
}
