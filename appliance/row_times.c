/* row_times.c - see row_times.h */
#include "row_times.h"

enum {
    WINDOW = 8, /* samples that a mean is over */
    NOISE_WINDOW = 32,
    ONE = 65536,
    SAMPLES = 4,     /* as many as make it last longest */
    FRESH_FIRST = 64 /* steps, of one sample; twice as many of two, ... */
};
_Static_assert(FRESH_FIRST << (SAMPLES - 1) == ROW_TIMES_FRESH, "as the header says");

bool row_times_known(const struct row_times *t, uint32_t rows)
{
    if (rows > ROW_TIMES_MAX || !t->samples[rows])
        return false;
    uint32_t samples = t->samples[rows] < SAMPLES ? t->samples[rows] : SAMPLES;
    return t->steps - t->seen[rows] < (uint64_t)FRESH_FIRST << (samples - 1);
}

/* The largest known count up to that one; 0: none is. */
static uint32_t known_below(const struct row_times *t, uint32_t rows)
{
    uint32_t below = rows < ROW_TIMES_MAX ? rows : ROW_TIMES_MAX;
    while (below && !row_times_known(t, below))
        below--;
    return below;
}

/* One that took many times what is usual says little: the machine was busy elsewhere. */
static uint64_t moved(uint64_t mean, uint64_t ns, uint32_t weight)
{
    if (ns / 2 > mean)
        ns = 2 * mean;
    return ns < mean ? mean - (mean - ns) / weight : mean + (ns - mean) / weight;
}

/* Of one sample, at most ONE. */
static uint32_t deviation(uint64_t mean, uint64_t ns)
{
    uint64_t off = ns > mean ? ns - mean : mean - ns;
    return off < mean ? (uint32_t)((double)off / (double)mean * ONE) : ONE;
}

void row_times_observe(struct row_times *t, uint32_t rows, uint64_t ns)
{
    if (!rows || rows > ROW_TIMES_MAX)
        return;
    if (!row_times_known(t, rows)) {
        t->ns[rows] = ns;
        t->samples[rows] = 0;
    } else if (t->samples[rows] == WINDOW - 1)
        t->noise = (t->noise * (NOISE_WINDOW - 1) + deviation(t->ns[rows], ns)) / NOISE_WINDOW;
    if (t->samples[rows] < WINDOW - 1)
        t->samples[rows]++;
    t->ns[rows] = moved(t->ns[rows], ns, t->samples[rows] + 1u);
    t->seen[rows] = ++t->steps;
}

static uint64_t add_rows(uint64_t ns, uint64_t rows, uint64_t row_ns)
{
    return __builtin_mul_overflow(rows, row_ns, &row_ns) || __builtin_add_overflow(ns, row_ns, &ns)
               ? UINT64_MAX
               : ns;
}

/* The mean of a known count, and more the fewer samples it is of: of several means the one of lucky
 * samples would else look best. */
static uint64_t doubted(const struct row_times *t, uint32_t rows)
{
    uint32_t doubt = t->noise / (1 + t->samples[rows] / 3u);
    return add_rows(t->ns[rows], doubt, t->ns[rows] / ONE);
}

uint64_t row_times_expect(const struct row_times *t, uint32_t rows, uint64_t row_ns)
{
    uint32_t below = known_below(t, rows), above = rows;
    while (above <= ROW_TIMES_MAX && !row_times_known(t, above))
        above++;
    if (!below)
        return 0;
    uint64_t least = doubted(t, below);
    if (below == rows)
        return least;
    if (above > ROW_TIMES_MAX)
        return add_rows(least, rows - below, row_ns);
    uint64_t most = doubted(t, above);
    return most > least ? least + (most - least) / (above - below) * (rows - below) : least;
}

uint64_t row_times_hope(const struct row_times *t, uint32_t rows, uint64_t row_ns)
{
    uint64_t expected = row_times_expect(t, rows, row_ns);
    uint32_t below = known_below(t, rows);
    uint64_t hoped = below ? add_rows(doubted(t, below), rows - below, row_ns) : 0;
    return hoped < expected ? hoped : expected;
}
