/* report.c - see report.h. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL = 64 };

static const double QUIET = 0.04; /* of the CPUs, to others: what the system itself may need */

void report_name(const struct speed_case *c, char *out, size_t size)
{
    if (c->prefill)
        snprintf(out, size, "prefill of %u", c->n);
    else
        snprintf(out, size, "%u stream%s", c->n, c->n == 1 ? "" : "s");
}

/* "-" for what is not there. */
__attribute__((format(printf, 2, 0))) static const char *number(char cell[CELL], const char *format,
                                                                double v)
{
    if (isnan(v))
        return "-";
    snprintf(cell, CELL, format, v);
    return cell;
}

/* ---- the head ---- */

static void print_limits(const struct speed *s, FILE *out)
{
    fprintf(out, "  limits: memory is read at %.1f GB/s, int8 products run at %.0f GOP/s (%s",
            speed_median(&s->read_rate) * 1e-9, speed_median(&s->int8_rate) * 1e-9, s->int8_name);
    if (strcmp(s->int8_name, "AVX2"))
        fprintf(out, "; AVX2 alone %.0f", s->int8_avx2 * 1e-9);
    fprintf(out,
            ")\n  a token reads %.1f MB of weights and multiplies %.1f million in the layers, %.1f "
            "million in the output head\n",
            s->work.bytes * 1e-6, s->work.layer_weights * 1e-6, s->work.head_weights * 1e-6);
    if (!s->work.int8)
        fputs("  not all weights take int8 activations: the limit is reading alone\n", out);
    if (s->peer)
        fprintf(out,
                "  beside it %s, by llama-batched-bench: it neither samples nor passes through a "
                "server; ours does\n  both, through the rings. \"Q4_0\": the same model with every "
                "matrix requantized to it, the peer's fastest\n",
                s->peer_version);
    fprintf(out, "  medians of %d round%s in turns, of rates and of each round's ratios\n",
            s->rounds, s->rounds == 1 ? "" : "s");
}

/* ---- tokens/s ---- */

__attribute__((format(printf, 3, 0))) static void goal_cell(char cell[CELL], bool shown,
                                                            const char *format, double goal)
{
    char text[CELL];
    snprintf(cell, CELL, "%s", shown && goal > 0 ? number(text, format, goal) : "");
}

static void print_peer(const struct speed_series *rate, const struct speed_series *ratio,
                       bool goals, double goal, FILE *out)
{
    char a[CELL], b[CELL], c[CELL];
    goal_cell(c, goals, "(>= %.1f)", goal);
    fprintf(out, "  %9s %7s %-9s", number(a, "%.1f", speed_median(rate)),
            number(b, "x %.2f", speed_median(ratio)), c);
}

static void print_case(const struct speed *s, const struct speed_case *c, FILE *out)
{
    char name[CELL], goal[CELL], a[CELL], b[CELL], d[CELL], e[CELL];
    report_name(c, name, sizeof name);
    goal_cell(goal, s->goals, "(>= %.0f %%)", 100 * c->goal.roof);
    fprintf(out, "  %-16s %8s  %8s-%-8s %6s of %-8s %-10s", name,
            number(a, "%.1f", speed_median(&c->ours)), number(b, "%.1f", speed_least(&c->ours)),
            number(d, "%.1f", speed_most(&c->ours)),
            number(e, "%.1f %%", 100 * speed_median(&c->of_roof)),
            c->by_reading ? "reading" : "int8", goal);
    if (s->peer) {
        print_peer(&c->same, &c->to_same, s->goals, c->goal.same, out);
        print_peer(&c->q4_0, &c->to_q4_0, s->goals, c->goal.q4_0, out);
    }
    fputc('\n', out);
}

/* Whether each number of streams yields more than the one before it. */
static void print_rise(const struct speed *s, FILE *out)
{
    const struct speed_case *last = NULL;
    char a[CELL], b[CELL];
    for (int i = 0; i < s->n_cases; i++) {
        const struct speed_case *c = &s->cases[i];
        if (c->prefill)
            continue;
        if (last && !(speed_median(&c->ours) > speed_median(&last->ours))) {
            report_name(last, a, sizeof a);
            report_name(c, b, sizeof b);
            fprintf(out, "  throughput does not rise from %s to %s\n", a, b);
            return;
        }
        last = c;
    }
    fputs("  throughput rises with each number of streams\n", out);
}

static void print_rates(const struct speed *s, FILE *out)
{
    fprintf(out, "\n  %-16s %8s  %8s-%-8s %6s    %-19s", "tokens/s", "median", "least", "most",
            "limit", "");
    if (s->peer)
        fprintf(out, "  %9s %7s %-9s  %9s", "llama.cpp", "", "", "Q4_0");
    fputc('\n', out);
    for (int i = 0; i < s->n_cases; i++)
        print_case(s, &s->cases[i], out);
    print_rise(s, out);
}

/* ---- times ---- */

static double mean_gap_ms(const struct speed_case *c, const struct speed_series *rate)
{
    return 1e3 * c->n / speed_median(rate);
}

static void print_gaps(const struct speed *s, FILE *out)
{
    char name[CELL], a[CELL], b[CELL], c[CELL], d[CELL];
    fprintf(out, "\n  %-16s %8s  %8s", "ms a token", "p50", "p99");
    fprintf(out, s->peer ? "   llama.cpp, mean   Q4_0, mean\n" : "\n");
    for (int i = 0; i < s->n_cases; i++) {
        const struct speed_case *k = &s->cases[i];
        if (k->prefill)
            continue;
        report_name(k, name, sizeof name);
        fprintf(out, "  %-16s %8s  %8s", name, number(a, "%.2f", k->gap_p50),
                number(b, "%.2f", k->gap_p99));
        if (s->peer)
            fprintf(out, "   %15s   %10s", number(c, "%.2f", mean_gap_ms(k, &k->same)),
                    number(d, "%.2f", mean_gap_ms(k, &k->q4_0)));
        fputc('\n', out);
    }
}

static void print_latency(const struct speed *s, FILE *out)
{
    const struct speed_latency *l = &s->latency;
    if (!l->measured)
        return;
    fprintf(out, "\n  through the rings, one stream, p50           whole us   bare step     more"
                 "  than its own step\n");
    fprintf(out, "  gap between two tokens                      %9.0f   %9.0f  %7.0f  %17.1f  %s\n",
            l->gap, l->bare_gap, l->gap_minus_bare, l->gap_minus_step, s->goals ? "(<= 30)" : "");
    fprintf(out, "  one-token prompt to its token               %9.0f   %9.0f  %7.0f  %17.1f  %s\n",
            l->first, l->bare_first, l->first_minus_bare, l->first_minus_step,
            s->goals ? "(<= 50)" : "");
    fprintf(out, "  the same, of an engine that sleeps          %9.0f   %9.0f  %7.0f\n",
            l->asleep_first, l->bare_first, l->asleep_first - l->bare_first);
    fprintf(
        out,
        "    bare step: the backend alone, in another process, in turns; its own step: as the "
        "engine counts it\n"
        "  engine's own part between two steps, with the wake of the client: p50 %.1f us, p99 "
        "%.1f us\n"
        "  to wake a sleeper, without an engine, after as much reading: the call %.1f us, until "
        "it runs %.1f us\n",
        l->overhead_p50, l->overhead_p99, l->wake_call, l->wake_back);
}

static void print_memory(const struct speed *s, FILE *out)
{
    const struct speed_memory *m = &s->memory;
    if (!m->measured)
        return;
    fprintf(out,
            "\n  memory of the engine after all that: resident %.1f MB (proportional %.1f)\n"
            "    weights %.1f MB, KV pool of %u tokens %.1f MB; weights x 1.15 + pool + 30 MB = "
            "%.1f MB%s\n",
            (double)m->rss * 1e-6, (double)m->pss * 1e-6, (double)m->weights * 1e-6, m->context,
            (double)m->pool * 1e-6, (double)m->goal * 1e-6, s->goals ? " (goal)" : "");
    if (m->peer_rss)
        fprintf(out, "    llama.cpp's server, same file, context of %u tokens: resident %.1f MB\n",
                m->context, (double)m->peer_rss * 1e-6);
}

static void print_all(const struct speed *s, FILE *out)
{
    fprintf(out, "%s, mostly %s, %u thread%s on %s%s\n", s->model, s->quantization, s->threads,
            s->threads == 1 ? "" : "s", s->cpu, s->goals ? "; in brackets: the goals" : "");
    if (s->others > QUIET)
        fprintf(out,
                "  DISTURBED: other programs had %.0f %% of the machine meanwhile; measure again "
                "when it is quiet\n",
                100 * s->others);
    if (s->n_cases) {
        print_limits(s, out);
        print_rates(s, out);
        print_gaps(s, out);
    }
    print_latency(s, out);
    print_memory(s, out);
}

/* Columns that are empty leave blanks at the end of a line. */
static void print_trimmed(const char *text, FILE *out)
{
    while (*text) {
        size_t bytes = strcspn(text, "\n"), shown = bytes;
        while (shown && text[shown - 1] == ' ')
            shown--;
        fprintf(out, "%.*s\n", (int)shown, text);
        text += bytes + (text[bytes] == '\n');
    }
}

void report_print(const struct speed *s, FILE *out)
{
    char *text = NULL;
    size_t bytes;
    FILE *whole = open_memstream(&text, &bytes);
    if (whole) {
        print_all(s, whole);
        fclose(whole);
        print_trimmed(text, out);
    }
    free(text);
}
