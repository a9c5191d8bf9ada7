/* charts.c - see charts.h. */
#include "charts.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "plot.h"

/* The cases that decode, in their order, and a value of each. */
struct points {
    const struct speed_case *at[SPEED_CASES_MAX];
    double x[SPEED_CASES_MAX];
    int n;
};

static struct points decoding(const struct speed *s)
{
    struct points p = {.n = 0};
    for (int i = 0; i < s->n_cases; i++) {
        if (s->cases[i].prefill)
            continue;
        p.at[p.n] = &s->cases[i];
        p.x[p.n++] = s->cases[i].n;
    }
    return p;
}

static int write_plot(const struct plot *p, const char *folder, const char *name, struct fail *f)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    bool good = file && plot_write(p, file);
    if (file && fclose(file))
        good = false;
    return good ? 0 : fail(f, -EIO, "%s cannot be written: %s", path, strerror(errno));
}

static void describe(const struct speed *s, char *out, size_t size)
{
    char rounds[64] = "one round";
    if (s->rounds > 1)
        snprintf(rounds, sizeof rounds, "medians of %d rounds in turns", s->rounds);
    snprintf(out, size, "%s, %u thread%s on %s, %s", s->model, s->threads,
             s->threads == 1 ? "" : "s", s->cpu, rounds);
}

static int write_throughput(const struct speed *s, const char *folder, struct fail *f)
{
    struct points p = decoding(s);
    double ours[SPEED_CASES_MAX], low[SPEED_CASES_MAX], high[SPEED_CASES_MAX];
    double same[SPEED_CASES_MAX], q4_0[SPEED_CASES_MAX], limit[SPEED_CASES_MAX];
    double read = speed_median(&s->read_rate), ops = speed_median(&s->int8_rate);
    bool by_reading;
    char about[512];
    for (int i = 0; i < p.n; i++) {
        const struct speed_case *c = p.at[i];
        ours[i] = speed_median(&c->ours);
        low[i] = speed_least(&c->ours);
        high[i] = speed_most(&c->ours);
        same[i] = speed_median(&c->same);
        q4_0[i] = speed_median(&c->q4_0);
        limit[i] = work_decode_limit(&s->work, c->n, read, ops, &by_reading);
    }
    describe(s, about, sizeof about);
    struct plot plot = {.title = "Throughput against the number of streams",
                        .subtitle = about,
                        .x_label = "streams that decode at the same time",
                        .y_label = "tokens/s, all streams",
                        .x = p.x,
                        .n = p.n,
                        .lines = {{"llmd (and its range)", "llmd", PLOT_OURS, ours, low, high},
                                  {"limit of the machine", "limit", PLOT_LIMIT, limit},
                                  {"llama.cpp, same file", "llama.cpp", PLOT_PEER, same},
                                  {"llama.cpp, Q4_0", "llama.cpp Q4_0", PLOT_PEER_BEST, q4_0}},
                        .n_lines = s->peer ? 4 : 2};
    return write_plot(&plot, folder, "throughput.svg", f);
}

/* A stream gets a token a step: all streams' tokens are that many times as many. */
static double mean_gap_ms(const struct speed_case *c, const struct speed_series *rate)
{
    return 1e3 * c->n / speed_median(rate);
}

static int write_gaps(const struct speed *s, const char *folder, struct fail *f)
{
    struct points p = decoding(s);
    double p50[SPEED_CASES_MAX], p99[SPEED_CASES_MAX];
    double same[SPEED_CASES_MAX], q4_0[SPEED_CASES_MAX];
    char about[512];
    for (int i = 0; i < p.n; i++) {
        p50[i] = p.at[i]->gap_p50;
        p99[i] = p.at[i]->gap_p99;
        same[i] = mean_gap_ms(p.at[i], &p.at[i]->same);
        q4_0[i] = mean_gap_ms(p.at[i], &p.at[i]->q4_0);
    }
    describe(s, about, sizeof about);
    struct plot plot = {
        .title = "Gap between two tokens of a stream against load",
        .subtitle = about,
        .x_label = "streams that decode at the same time",
        .y_label = "milliseconds between two tokens",
        .x = p.x,
        .n = p.n,
        .y_log = true,
        .lines = {{"llmd p50", "llmd p50", PLOT_OURS, p50},
                  {"llmd p99", "llmd p99", PLOT_OURS_PALE, p99},
                  {"llama.cpp, same file, mean", "llama.cpp", PLOT_PEER, same},
                  {"llama.cpp, Q4_0, mean", "llama.cpp Q4_0", PLOT_PEER_BEST, q4_0}},
        .n_lines = s->peer ? 4 : 2};
    return write_plot(&plot, folder, "gaps.svg", f);
}

int charts_write(const struct speed *s, const char *folder, struct fail *f)
{
    int code = write_throughput(s, folder, f);
    return code ? code : write_gaps(s, folder, f);
}
