/* table.c - see sim.h: what a run brought, for people. */
#include <inttypes.h>

#include "sim.h"

static void print_ms(FILE *out, uint64_t ns)
{
    if (ns == UINT64_MAX)
        fprintf(out, " %8s", "never");
    else
        fprintf(out, " %8.1f", (double)ns / 1e6);
}

static void print_percentiles(FILE *out, const struct histogram *h)
{
    print_ms(out, histogram_percentile(h, 0.50));
    print_ms(out, histogram_percentile(h, 0.95));
    print_ms(out, histogram_percentile(h, 0.99));
}

static void print_kind(FILE *out, const char *name, const struct sim_kind_result *k)
{
    fprintf(out, "  %-9s %8u %8u %7u %7u", name, k->requests, k->served, k->refused, k->missed);
    print_percentiles(out, &k->ttft);
    print_percentiles(out, &k->gap);
    print_ms(out, k->gap.max);
    fputc('\n', out);
}

void sim_print_head(FILE *out, const struct sim_config *c)
{
    uint32_t requests = 0;
    for (uint32_t i = 0; i < c->n_kinds; i++)
        requests += c->kinds[i].count;
    fprintf(out, "workload %s: %u requests, seed %" PRIu64 "\n", c->workload, requests, c->seed);
    fprintf(
        out,
        "machine: %.1f ms a step + %.2f ms a decode row + %.2f ms a prefill row + %.1f and %.1f "
        "us a key, +- %.0f %%\n",
        c->cost.step / 1e6, c->cost.decode_row / 1e6, c->cost.prefill_row / 1e6,
        c->cost.decode_key / 1e3, c->cost.prefill_key / 1e3, c->cost.noise * 100);
    fprintf(out, "engine: %u running, %u rows a step, %u known, %u KV blocks\n",
            c->engine.max_num_seqs, c->engine.max_num_batched_tokens, c->engine.max_requests,
            c->engine.n_blocks);
}

static void print_policy(FILE *out, const struct engine_config *e)
{
    if (e->policy == ENGINE_FIRST_COME)
        fprintf(out, "\nfirst come, first served; prompts unbudgeted\n");
    else if (e->max_itl_us)
        fprintf(out, "\nfair; promised gap %.0f ms\n", e->max_itl_us / 1e3);
    else
        fprintf(out, "\nfair; no promised gap\n");
}

static void print_engine(FILE *out, const struct sim_result *r)
{
    fprintf(out,
            "  %.0f tokens/s (prompt and output of what was served) over %.0f s; %" PRIu64
            " steps of",
            r->busy_tokens_per_s, (double)r->virtual_ns / 1e9, r->steps);
    print_percentiles(out, &r->step);
    fprintf(out, " ms\n  preemptions %" PRIu64 ", computed again %.2f %% of the rows",
            r->preemptions, r->rows ? 100.0 * (double)r->recomputed / (double)r->rows : 0);
    fprintf(out, ", from the prefix cache %.1f %% of the prompts\n",
            r->prefix_queries ? 100.0 * (double)r->prefix_hits / (double)r->prefix_queries : 0);
    fprintf(out,
            "  the one that waited longest saw at most %u others admitted; at most %" PRIu64
            " steps in a row without an output token\n",
            r->longest_picks, r->longest_stall);
    if (r->promised_steps)
        fprintf(out,
                "  promised gaps: %" PRIu64 " steps, %" PRIu64 " longer, once learned by at most "
                "%.1f %%\n",
                r->promised_steps, r->late_steps, r->worst_excess * 100);
}

void sim_print(FILE *out, const struct sim_config *c, const struct sim_result *r)
{
    print_policy(out, &c->engine);
    fprintf(out, "  %-9s %8s %8s %7s %7s %26s %35s\n", "", "requests", "served", "refused",
            "missed", "first token ms p50 p95 p99", "gap ms p50 p95 p99 max");
    for (uint32_t i = 0; i < c->n_kinds; i++)
        print_kind(out, c->kinds[i].name, &r->kinds[i]);
    print_engine(out, r);
    fprintf(out, "  simulated in %.1f s; digest %016" PRIx64 "\n", (double)r->wall_ns / 1e9,
            r->digest);
    if (r->violation[0])
        fprintf(out, "  BROKEN: %s\n", r->violation);
}
