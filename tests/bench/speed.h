/* speed.h - what bench_speed measures, as plain data: filled in by bench_speed.c, latency.c and
 * resident.c, shown by report.c and charts.c.
 */
#ifndef LLMD_BENCH_SPEED_H
#define LLMD_BENCH_SPEED_H

#include <stdbool.h>
#include <stdint.h>

#include "work.h"

enum { SPEED_ROUNDS_MAX = 64, SPEED_CASES_MAX = 16, SPEED_GAPS_MAX = 1 << 16 };

/* One value a round; NAN: that round has none. */
struct speed_series {
    double v[SPEED_ROUNDS_MAX];
    int n;
};

void speed_add(struct speed_series *s, double v);
double speed_median(const struct speed_series *s); /* of those that are there; NAN of none */
double speed_least(const struct speed_series *s);
double speed_most(const struct speed_series *s);

/* What is aimed at: at least so much; 0: nothing is stated. */
struct speed_goal {
    double roof;       /* of the roof that binds, 0 .. 1 */
    double same, q4_0; /* times the peer on the same file, on the file requantized to Q4_0 */
};

/* One thing that is measured, tokens a second. */
struct speed_case {
    bool prefill; /* `n` prompt tokens of one stream; else `n` streams that decode */
    uint32_t n;
    uint32_t prompt, tokens; /* of each stream; prefill: prompt == n, tokens == 1 */
    int rounds, peer_rounds;
    struct speed_goal goal;

    struct speed_series ours, same, q4_0;
    struct speed_series roof; /* the lower limit, measured right before `ours` */
    struct speed_series of_roof, to_same, to_q4_0; /* ratios of a round */
    bool by_reading; /* which roof binds: the read bandwidth, else the int8 peak */
    float *gaps;     /* (n_gaps) of all rounds, ms, sorted once it is measured; decoding alone */
    int n_gaps;
    double gap_p50, gap_p99;
};

/* Microseconds. "bare" is the backend alone, driven in this process in turns with the engine. */
struct speed_latency {
    bool measured;
    double gap, bare_gap;     /* p50: between two tokens; a step with the same context */
    double gap_minus_bare;    /* median over the turns */
    double gap_minus_step;    /* p50 of (gap - the engine's own step of it), token by token */
    double first, bare_first; /* p50: one-token prompt to its token; a step of that kind */
    double first_minus_bare, first_minus_step;
    double asleep_first; /* p50: the same when the engine sleeps and its threads rest */
    double overhead_p50, overhead_p99; /* the engine's own part between two steps */
    double wake_call, wake_back;       /* bare_wake_swept */
    int tokens, firsts;                /* how many of each were looked at */
};

/* Bytes. */
struct speed_memory {
    bool measured;
    uint64_t rss, pss, weights, pool, goal;
    uint32_t context;  /* tokens that fit into the pool; the peer's context is as large */
    uint64_t peer_rss; /* 0: not measured */
};

struct speed {
    char cpu[128], model[128], quantization[32];
    const char *int8_name; /* the instructions behind int8_rate */
    double int8_avx2;      /* operations/s with AVX2 alone, for comparison */
    unsigned threads;
    int rounds;
    bool goals;                      /* the stated goals are for this model and number of threads */
    const char *peer, *peer_version; /* NULL: without the peer */
    double others; /* share of the machine that went to other programs meanwhile; NAN: not known */
    struct work work;
    struct speed_series read_rate, int8_rate; /* bytes/s, operations/s */
    struct speed_case cases[SPEED_CASES_MAX];
    int n_cases;
    struct speed_latency latency;
    struct speed_memory memory;
};

#endif
