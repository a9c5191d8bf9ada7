/* bench_streams.c - token rates and latencies of the engine through the rings, beside this
 * machine's limits taken right before each repetition.
 *
 *   bench_streams MODEL
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../appliance/model/model.h"
#include "../../client/llmclient.h"
#include "../support/support.h"
#include "roof.h"

enum { REPS = 5, STREAMS = 32, ONE_TOKENS = 192, MANY_TOKENS = 64, PROMPT = 16, MAX_TOKENS = 2048 };

struct stream {
    uint64_t t_submit, t[MAX_TOKENS];
    int n;
};

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* Weights that a token's linear layers multiply: every matrix once, the output head too, the
 * embedding not. */
static double linear_weights(const char *path, double *file_bytes)
{
    struct fail f = {0};
    struct model *m;
    if (model_open(&m, path, &f) < 0)
        die(f.text);
    double n = (double)m->net.output->ne[0] * (double)m->net.output->ne[1];
    for (uint32_t i = 0; i < m->net.n_layers; i++) {
        const struct gpu_layer *l = &m->net.layers[i];
        const struct gpu_tensor *all[] = {l->q, l->k, l->v, l->o, l->gate, l->up, l->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            n += (double)all[j]->ne[0] * (double)all[j]->ne[1];
    }
    *file_bytes = (double)m->file_bytes;
    model_close(m);
    return n;
}

/* Runs `count` streams at once. */
static void run_streams(struct llm_client *c, struct stream *s, int count, int prompt, int tokens,
                        struct rnd *r)
{
    struct llm_limits limits;
    llm_get_limits(c, &limits);
    for (int i = 0; i < count; i++) {
        struct llm_request q = LLM_REQUEST_INIT;
        int32_t *ids = llm_reserve(c, (uint32_t)prompt);
        if (!ids)
            die(llm_errmsg(c));
        for (int j = 0; j < prompt; j++)
            ids[j] = (int32_t)(1000 + rnd_below(r, limits.vocab - 2000)); /* no special tokens */
        q.tokens = ids, q.n_tokens = (uint32_t)prompt, q.max_tokens = (uint32_t)tokens;
        q.flags = LLM_SQE_IGNORE_EOS;
        q.user_data = (uint64_t)i + 1;
        s[i].n = 0;
        s[i].t_submit = bench_now_ns();
        if (llm_submit(c, &q, NULL) < 0)
            die(llm_errmsg(c));
    }
    struct llm_event e;
    while (llm_inflight(c)) {
        if (llm_wait(c, &e, 60000) != 1)
            die(llm_errmsg(c));
        if (e.type == LLM_EVENT_ERROR)
            die(llm_strerror(e.status));
        uint64_t now = bench_now_ns();
        for (uint32_t i = 0; e.type == LLM_EVENT_TOKENS && i < e.n_tokens; i++)
            s[e.id - 1].t[s[e.id - 1].n++] = now;
    }
}

/* Tokens per second while all streams decode. */
static double decode_rate(const struct stream *s, int count)
{
    uint64_t from = 0, to = UINT64_MAX;
    for (int i = 0; i < count; i++) {
        from = s[i].t[0] > from ? s[i].t[0] : from;
        to = s[i].t[s[i].n - 1] < to ? s[i].t[s[i].n - 1] : to;
    }
    int tokens = 0;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < s[i].n; j++)
            tokens += s[i].t[j] > from && s[i].t[j] <= to;
    return tokens / ((double)(to - from) * 1e-9);
}

static void print_gaps(const char *name, const struct stream *s, int count)
{
    static double gaps[STREAMS * MAX_TOKENS];
    int n = 0;
    for (int i = 0; i < count; i++)
        for (int j = 1; j < s[i].n; j++)
            gaps[n++] = (double)(s[i].t[j] - s[i].t[j - 1]) * 1e-6;
    qsort(gaps, (size_t)n, sizeof *gaps, bench_by_value);
    printf("  between tokens, %-13s p50 %7.2f  p95 %7.2f  p99 %7.2f  max %7.2f ms\n", name,
           bench_quantile(gaps, n, 0.5), bench_quantile(gaps, n, 0.95),
           bench_quantile(gaps, n, 0.99), gaps[n - 1]);
}

static void print_ttft(struct llm_client *c, int prompt, struct rnd *r)
{
    enum { RUNS = 12 };
    static struct stream s;
    double ms[RUNS];
    for (int i = 0; i < RUNS; i++) {
        run_streams(c, &s, 1, prompt, 1, r);
        ms[i] = (double)(s.t[0] - s.t_submit) * 1e-6;
    }
    qsort(ms, RUNS, sizeof *ms, bench_by_value);
    double p50 = bench_quantile(ms, RUNS, 0.5);
    printf("  TTFT, %4d prompt tokens:      p50 %7.2f  p95 %7.2f  p99 %7.2f ms   (%.0f prompt "
           "tokens/s)\n",
           prompt, p50, bench_quantile(ms, RUNS, 0.95), bench_quantile(ms, RUNS, 0.99),
           prompt / (p50 * 1e-3));
}

static void print_overhead(const struct engine_process *e)
{
    json_t *status = engine_status(e), *h = json_object_get(status, "overhead_us");
    printf("  engine's own part of a step:    p50 %7.2f  p99 %7.2f us over %lld steps\n",
           json_number_value(json_object_get(h, "p50")),
           json_number_value(json_object_get(h, "p99")),
           (long long)json_integer_value(json_object_get(h, "count")));
    json_decref(status);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        die("usage: bench_streams MODEL");
    static struct stream s[STREAMS];
    double file_bytes, weights = linear_weights(argv[1], &file_bytes);
    double one[REPS], many[REPS], one_of[REPS], many_of[REPS], read_rate[REPS], int8_rate[REPS];
    struct rnd r = {1};
    struct engine_process e = {0};
    engine_start(&e, argv[1], NULL);
    struct llm_client *c;
    struct llm_options o = LLM_OPTIONS_INIT;
    o.spin_us =
        50; /* a client that spins for ever would take a core from the engine on a small machine */
    if (llm_connect(&c, e.instance, &o) < 0)
        die(llm_connect_error());
    run_streams(c, s, STREAMS, PROMPT, 8, &r); /* warm */
    for (int i = 0; i < REPS; i++) {
        read_rate[i] = roof_read_bytes_per_s();
        int8_rate[i] = roof_int8_ops_per_s();
        run_streams(c, s, 1, PROMPT, ONE_TOKENS, &r);
        one[i] = decode_rate(s, 1);
        one_of[i] = one[i] / (read_rate[i] / file_bytes);
        run_streams(c, s, STREAMS, PROMPT, MANY_TOKENS, &r);
        many[i] = decode_rate(s, STREAMS);
        many_of[i] = int8_rate[i] > 0 ? many[i] / (int8_rate[i] / (2 * weights)) : 0;
        fprintf(stderr, "round %d of %d\n", i + 1, REPS);
    }
    printf("limits: read %.1f GB/s, int8 %.0f GOP/s (medians of %d)\n",
           bench_median(read_rate, REPS) * 1e-9, bench_median(int8_rate, REPS) * 1e-9, REPS);
    printf("  one stream                     %8.1f tokens/s   %.1f %% of (read bandwidth / file "
           "bytes)\n",
           bench_median(one, REPS), 100 * bench_median(one_of, REPS));
    printf("  %d streams                     %8.1f tokens/s   %.1f %% of the int8 limit\n", STREAMS,
           bench_median(many, REPS), 100 * bench_median(many_of, REPS));
    print_gaps("32 streams:", s, STREAMS);
    run_streams(c, s, 1, PROMPT, 512, &r);
    print_gaps("one stream:", s, 1);
    print_ttft(c, 16, &r);
    print_ttft(c, 128, &r);
    print_ttft(c, 512, &r);
    print_overhead(&e);
    llm_close(c);
    return engine_stop(&e);
}
