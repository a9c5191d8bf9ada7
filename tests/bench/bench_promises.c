/* bench_promises.c - what the scheduler promises, each beside what it is compared with:
 *
 *   a long prompt beside running streams, with and without a promised gap
 *   a prompt whose prefix is cached, beside the same one cold
 *   a session to which words are appended, beside one decode step
 *   a client that floods, beside one that sends now and then
 *   a pool far too small for its load
 *
 *   bench_promises MODEL [SECONDS of the small pool, 60]
 *   bench_promises MODEL flood [MS, as for --max-step-ms]     that part alone
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../client/llmclient.h"
#include "../support/support.h"
#include "roof.h"

enum { TOKENS_MAX = 8192, REQUESTS_MAX = 1024 };

/* One request as its client saw it. */
struct seen {
    uint64_t t_submit, t_first, t_last;
    uint32_t n, done;
    int32_t status;
};

static double gaps[1 << 18]; /* milliseconds, of the streams that are watched */
static int n_gaps;

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static double ms(uint64_t from, uint64_t to)
{
    return (double)(to - from) * 1e-6;
}

static struct llm_client *connect_to(const struct engine_process *e)
{
    struct llm_client *c;
    struct llm_options o = LLM_OPTIONS_INIT;
    o.arena_bytes = 4 << 20;
    o.max_inflight = REQUESTS_MAX;
    o.cq_entries = 4 * REQUESTS_MAX;
    o.sq_entries = REQUESTS_MAX;
    if (llm_connect(&c, e->instance, &o) < 0)
        die(llm_connect_error());
    return c;
}

static void random_tokens(struct llm_client *c, struct rnd *r, int32_t *ids, uint32_t n)
{
    struct llm_limits limits;
    llm_get_limits(c, &limits);
    for (uint32_t i = 0; i < n; i++) /* no special tokens */
        ids[i] = (int32_t)(1000 + rnd_below(r, limits.vocab - 2000));
}

static void send_tokens(struct llm_client *c, struct seen *s, uint64_t id, const int32_t *ids,
                        uint32_t n, uint32_t max_tokens)
{
    struct llm_request q = LLM_REQUEST_INIT;
    q.tokens = ids, q.n_tokens = n, q.max_tokens = max_tokens;
    q.flags = LLM_SQE_IGNORE_EOS;
    q.user_data = id;
    s[id - 1] = (struct seen){.t_submit = bench_now_ns()};
    if (llm_submit(c, &q, NULL) < 0)
        die(llm_errmsg(c));
}

static void send_random(struct llm_client *c, struct seen *s, uint64_t id, struct rnd *r,
                        uint32_t n, uint32_t max_tokens)
{
    static _Thread_local int32_t ids[TOKENS_MAX];
    random_tokens(c, r, ids, n);
    send_tokens(c, s, id, ids, n, max_tokens);
}

/* Takes one event; gaps of ids up to `watched` are kept while `keep` is set. */
static void take(struct llm_client *c, struct seen *s, uint64_t watched, bool keep)
{
    struct llm_event e;
    if (llm_wait(c, &e, 120000) != 1)
        die(llm_errmsg(c));
    uint64_t now = bench_now_ns();
    struct seen *it = &s[e.id - 1];
    if (e.type == LLM_EVENT_TOKENS) {
        if (keep && e.id <= watched && it->n && n_gaps < (int)(sizeof gaps / sizeof *gaps))
            gaps[n_gaps++] = ms(it->t_last, now);
        if (!it->n)
            it->t_first = now;
        it->n += e.n_tokens;
        it->t_last = now;
        return;
    }
    it->done = 1;
    it->status = e.status;
}

static double gap_quantile(double q)
{
    qsort(gaps, (size_t)n_gaps, sizeof *gaps, bench_by_value);
    return n_gaps ? bench_quantile(gaps, n_gaps, q) : 0;
}

static double figure(const struct engine_process *e, const char *name)
{
    json_t *status = engine_status(e);
    double v = json_number_value(json_object_get(status, name));
    json_decref(status);
    return v;
}

static double alone(struct llm_client *c, struct rnd *r, uint32_t n)
{
    struct seen s[1];
    send_random(c, s, 1, r, n, 1);
    while (!s[0].done)
        take(c, s, 0, false);
    return ms(s[0].t_submit, s[0].t_first);
}

/* ---- a long prompt beside streams ---- */

enum { STREAMS = 4, LONG_PROMPT = 6000, PROMISE_MS = 40, RUNS = 3 };

struct beside {
    double p999, ttft;
};

static struct beside long_beside_streams(struct llm_client *c, struct rnd *r)
{
    static struct seen s[STREAMS + 1];
    n_gaps = 0;
    for (uint64_t i = 1; i <= STREAMS; i++)
        send_random(c, s, i, r, 32, 2000);
    for (int i = 0; i < STREAMS * 40; i++) /* they run, and the engine knows its steps */
        take(c, s, STREAMS, false);
    send_random(c, s, STREAMS + 1, r, LONG_PROMPT, 1);
    while (!s[STREAMS].done)
        take(c, s, STREAMS, true);
    struct beside b = {gap_quantile(0.999), ms(s[STREAMS].t_submit, s[STREAMS].t_first)};
    for (uint64_t i = 1; i <= STREAMS; i++)
        llm_cancel(c, i);
    while (llm_inflight(c))
        take(c, s, STREAMS, false);
    return b;
}

static void print_long_prompt(const char *model)
{
    char promise[16];
    struct rnd r = {11};
    printf("a prompt of %d tokens beside %d streams (best of %d runs)\n", LONG_PROMPT, STREAMS,
           RUNS);
    for (int on = 1; on >= 0; on--) {
        struct engine_process e = {0};
        snprintf(promise, sizeof promise, "%d", on ? PROMISE_MS : 0);
        engine_start(&e, model, "--max-itl-ms", promise, NULL);
        struct llm_client *c = connect_to(&e);
        alone(c, &r, 512);
        struct beside best = {1e9, 1e9};
        double single = alone(c, &r, LONG_PROMPT);
        for (int i = 0; i < RUNS; i++) {
            struct beside b = long_beside_streams(c, &r);
            if (b.p999 < best.p999)
                best = b;
        }
        printf(
            "  promised gap %-6s  streams' p99.9 gap %8.2f ms (%.2f x the promise of %d ms), the "
            "long prompt's TTFT %7.0f ms = %.2f x alone (%.0f ms)\n",
            on ? "on" : "off", best.p999, best.p999 / PROMISE_MS, PROMISE_MS, best.ttft,
            best.ttft / single, single);
        llm_close(c);
        engine_stop(&e);
    }
}

/* ---- prefix cache and sessions ---- */

enum { SHARED = 2000, NEW = 16, REPEATS = 5 };

static void print_prefix(const struct engine_process *e, struct llm_client *c, struct rnd *r)
{
    static int32_t ids[SHARED + NEW];
    double cold[REPEATS], warm[REPEATS], rows = 0;
    struct seen s[1];
    for (int i = 0; i < REPEATS; i++) {
        random_tokens(c, r, ids, SHARED);
        for (int hit = 0; hit < 2; hit++) {
            double before = figure(e, "prefill_rows");
            random_tokens(c, r, ids + SHARED, NEW);
            send_tokens(c, s, 1, ids, SHARED + NEW, 1);
            while (!s[0].done)
                take(c, s, 0, false);
            (hit ? warm : cold)[i] = ms(s[0].t_submit, s[0].t_first);
            if (hit && figure(e, "prefill_rows") - before > rows)
                rows = figure(e, "prefill_rows") - before;
        }
    }
    double a = bench_median(cold, REPEATS), b = bench_median(warm, REPEATS);
    printf("a prompt of %d tokens, %d of them cached\n  TTFT %.2f ms, cold %.1f ms: 1 / %.1f; rows "
           "computed: %.0f\n",
           SHARED + NEW, SHARED, b, a, a / b, rows);
}

static void nap_ms(long n)
{
    nanosleep(&(struct timespec){n / 1000, n % 1000 * 1000000}, NULL);
}

static void finish(struct llm_client *c)
{
    struct llm_event e;
    while (llm_inflight(c))
        if (llm_wait(c, &e, 60000) != 1 || e.type == LLM_EVENT_ERROR)
            die("a session operation failed");
}

/* A turn of a call: words arrive one by one, then the answer is wanted. */
static double turn(struct llm_client *c, struct rnd *r, uint64_t key, double *step)
{
    enum { WORDS = 12, ANSWER = 24 };
    static int32_t ids[8];
    struct seen s[1];
    for (int i = 0; i < WORDS; i++) {
        random_tokens(c, r, ids, 2);
        if (llm_session_append(c, key, ids, 2, NULL) < 0)
            die(llm_errmsg(c));
        finish(c);
        nap_ms(i == WORDS - 1 ? 120 : 30);
    }
    struct llm_request q = LLM_REQUEST_INIT;
    q.session = key, q.max_tokens = ANSWER, q.flags = LLM_SQE_IGNORE_EOS, q.user_data = 1;
    s[0] = (struct seen){.t_submit = bench_now_ns()};
    if (llm_submit(c, &q, NULL) < 0)
        die(llm_errmsg(c));
    n_gaps = 0;
    while (!s[0].done)
        take(c, s, 1, true);
    *step = gap_quantile(0.5);
    return ms(s[0].t_submit, s[0].t_first);
}

static void print_sessions(const struct engine_process *e, struct llm_client *c, struct rnd *r)
{
    static int32_t ids[1500];
    uint64_t key = llm_session_key("bench");
    double ttft[REPEATS], step[REPEATS], ratio[REPEATS];
    random_tokens(c, r, ids, 1500);
    if (llm_session_open(c, key, ids, 1500, 0, NULL) < 0)
        die(llm_errmsg(c));
    finish(c);
    nap_ms(3000);
    for (int i = 0; i < REPEATS; i++) {
        ttft[i] = turn(c, r, key, &step[i]);
        ratio[i] = ttft[i] / step[i];
    }
    double before = figure(e, "prefill_rows");
    random_tokens(c, r, ids, 5);
    struct llm_event end = {0};
    if (llm_session_append(c, key, ids, 5, NULL) < 0 || llm_wait(c, &end, 60000) != 1)
        die(llm_errmsg(c));
    nap_ms(300);
    before = figure(e, "prefill_rows");
    if (llm_session_replace(c, key, end.position - 5, ids + 100, 5, NULL) < 0)
        die(llm_errmsg(c));
    finish(c);
    nap_ms(300);
    printf(
        "a session, its last word 120 ms before the answer is asked for\n  TTFT %.2f ms = %.2f x "
        "one decode step (%.2f ms); replacing its last 5 tokens computed %.0f rows\n",
        bench_median(ttft, REPEATS), bench_median(ratio, REPEATS), bench_median(step, REPEATS),
        figure(e, "prefill_rows") - before);
}

/* ---- a flood ---- */

enum { FLOOD = 500, VISITS = 20 };

struct flood {
    const struct engine_process *e;
    volatile bool over;
};

static void *flood(void *context)
{
    static struct seen s[FLOOD];
    struct flood *f = context;
    struct rnd r = {77};
    struct llm_client *c = connect_to(f->e);
    uint64_t next = 0;
    while (!f->over) {
        while (next < FLOOD)
            send_random(c, s, ++next, &r, 64, 32);
        take(c, s, 0, false);
        for (uint64_t i = 1; i <= FLOOD; i++) /* whoever ended comes again */
            if (s[i - 1].done && !f->over)
                send_random(c, s, i, &r, 64, 32);
    }
    llm_close(c);
    return NULL;
}

struct visits {
    double p50, p95;
};

/* Prompt and output, computed so far. */
static double rows_now(const struct engine_process *e)
{
    return figure(e, "prefill_rows") + figure(e, "decode_rows");
}

static struct visits visits(struct llm_client *c, struct rnd *r)
{
    double t[VISITS];
    struct seen s[1];
    for (int i = 0; i < VISITS; i++) {
        send_random(c, s, 1, r, 64, 32);
        while (!s[0].done)
            take(c, s, 0, false);
        t[i] = ms(s[0].t_submit, s[0].t_first);
        nap_ms(1000);
    }
    qsort(t, VISITS, sizeof *t, bench_by_value);
    return (struct visits){bench_quantile(t, VISITS, 0.5), bench_quantile(t, VISITS, 0.95)};
}

static void print_flood(const char *model, const char *max_step_ms)
{
    struct engine_process e = {0};
    struct rnd r = {5};
    engine_start(&e, model, "--max-step-ms", max_step_ms, NULL);
    struct llm_client *c = connect_to(&e);
    struct flood f = {.e = &e};
    pthread_t thread;
    alone(c, &r, 64);
    struct visits idle = visits(c, &r);
    pthread_create(&thread, NULL, flood, &f);
    nap_ms(2000);
    double rows = rows_now(&e);
    uint64_t start = bench_now_ns();
    struct visits busy = visits(c, &r);
    rows = (rows_now(&e) - rows) / (ms(start, bench_now_ns()) * 1e-3);
    json_t *status = engine_status(&e), *h = json_object_get(status, "step_us");
    double step = json_number_value(json_object_get(h, "p95")) * 1e-3;
    json_decref(status);
    f.over = true;
    pthread_join(thread, NULL);
    printf("a client floods with %d requests, another sends one a second, --max-step-ms %s\n  the "
           "second's TTFT p50 %.1f p95 %.1f ms, on an idle engine %.1f %.1f ms; p95 of a step %.1f "
           "ms: (p95 - step) / idle p95 = %.2f; %.0f rows/s\n",
           FLOOD, max_step_ms, busy.p50, busy.p95, idle.p50, idle.p95, step,
           (busy.p95 - step) / idle.p95, rows);
    llm_close(c);
    engine_stop(&e);
}

/* ---- a pool that is far too small ---- */

static void print_small_pool(const char *model, int seconds)
{
    enum { BLOCKS = 64, LOAD = 40 };
    static struct seen s[LOAD];
    struct engine_process e = {0};
    struct rnd r = {9};
    engine_start(&e, model, "--num-kv-blocks", "64", "--max-model-len", "512", NULL);
    struct llm_client *c = connect_to(&e);
    uint64_t start = bench_now_ns(), slowest = 0;
    uint32_t ended = 0;
    for (uint64_t i = 1; i <= LOAD; i++) /* 40 x 256 tokens: 10 times the pool's 1,024 */
        send_random(c, s, i, &r, 128, 128);
    while (ms(start, bench_now_ns()) < seconds * 1e3) {
        take(c, s, 0, false);
        for (uint64_t i = 1; i <= LOAD; i++)
            if (s[i - 1].done) {
                uint64_t took = s[i - 1].t_last - s[i - 1].t_submit;
                slowest = took > slowest ? took : slowest;
                ended++;
                send_random(c, s, i, &r, 128, 128);
            }
    }
    for (uint64_t i = 1; i <= LOAD; i++) {
        uint64_t age = bench_now_ns() - s[i - 1].t_submit;
        slowest = age > slowest ? age : slowest;
        llm_cancel(c, i);
    }
    while (llm_inflight(c))
        take(c, s, 0, false);
    double rows = figure(&e, "prefill_rows") + figure(&e, "decode_rows");
    printf("a pool of %d blocks under 10 x its capacity for %d s\n  %u requests ended, the slowest "
           "after %.1f s; %.0f preemptions, %.1f %% of the rows computed again; %.0f of %d blocks "
           "free at the end\n",
           BLOCKS, seconds, ended, (double)slowest * 1e-9, figure(&e, "preemptions"),
           100 * figure(&e, "recomputed_tokens") / rows, figure(&e, "kv_blocks_free"), BLOCKS);
    llm_close(c);
    engine_stop(&e);
}

int main(int argc, char **argv)
{
    if (argc < 2 || *argv[1] == '-')
        die("usage: bench_promises MODEL [SECONDS | flood [MS]]");
    struct rnd r = {1};
    if (argc > 2 && !strcmp(argv[2], "flood"))
        return print_flood(argv[1], argc > 3 ? argv[3] : "100"), 0;
    print_long_prompt(argv[1]);
    struct engine_process e = {0};
    engine_start(&e, argv[1], NULL);
    struct llm_client *c = connect_to(&e);
    print_prefix(&e, c, &r);
    print_sessions(&e, c, &r);
    llm_close(c);
    engine_stop(&e);
    print_flood(argv[1], "100");
    print_small_pool(argv[1], argc > 2 ? atoi(argv[2]) : 60);
    return 0;
}
