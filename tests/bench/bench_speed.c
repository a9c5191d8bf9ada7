/* bench_speed.c - token rates and latencies of the engine through the rings, in one run, in turns:
 * this machine's limits, the engine, and, where its programs are named, llama.cpp on the same file
 * and on the same model requantized to Q4_0.
 *
 *   bench_speed MODEL [--peer FOLDER --peer-q4_0 FILE] [--rounds N] [--quick] [--out FOLDER]
 *               [--only rates|latency|memory]
 *
 * Prints a table; writes speed.json, throughput.svg and gaps.svg to the folder (default
 * $B/bench) where rates were measured. --quick: one short round, for trying this program out.
 */
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../appliance/model/model.h"
#include "alone.h"
#include "bare.h"
#include "charts.h"
#include "latency.h"
#include "others.h"
#include "peer.h"
#include "report.h"
#include "resident.h"
#include "roof.h"
#include "streams.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

enum {
    STREAMS = 64,
    ROUNDS = 5,
    LATENCY_TURNS = 24,
    WAKES = 500,
    ALONE_LEN = 512,
    KV_BLOCKS = 1024, /* room for all streams, and the context that the peer's server gets */
    CONTEXT = KV_BLOCKS * GPU_KV_BLOCK,
    LEN_MAX = 8192,
    PEER_FAILURES_MAX = 4
};

/* Rounds 0: as many as there are. The peer has fewer where it takes long. */
static const struct speed_case plan[] = {
    {.n = 1, .prompt = 16, .tokens = 128, .goal = {0.70, 2.1, 1.7}},
    {.n = 2, .prompt = 16, .tokens = 64, .peer_rounds = 3},
    {.n = 4, .prompt = 16, .tokens = 64, .peer_rounds = 3},
    {.n = 8, .prompt = 16, .tokens = 64, .peer_rounds = 3},
    {.n = 16, .prompt = 16, .tokens = 48, .peer_rounds = 3},
    {.n = 32, .prompt = 16, .tokens = 64, .goal = {0.50, 4.2, 2.7}},
    {.n = 64, .prompt = 16, .tokens = 32, .peer_rounds = 3},
    {.prefill = true, .n = 512, .prompt = 512, .tokens = 1, .goal = {0.60, 4.0, 2.0}},
    {.prefill = true,
     .n = 4000,
     .prompt = 4000,
     .tokens = 1,
     .rounds = 3,
     .peer_rounds = 3,
     .goal = {0, 3.0, 0}},
};

struct bench {
    const char *path, *q4_0, *out, *only;
    bool quick;
    struct model *model;
    struct engine_process engine;
    struct streams *streams;
    struct peer peer;
    int peer_failures; /* in a row */
    uint64_t start_ns;
    struct speed s;
};

/* ---- what is asked for ---- */

static void usage(void)
{
    bench_die(
        "usage: bench_speed MODEL [--peer FOLDER --peer-q4_0 FILE] [--rounds 1..%d] [--quick] "
        "[--out FOLDER] [--only rates|latency|memory]",
        SPEED_ROUNDS_MAX);
}

static int take_rounds(const char *text)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < 1 || n > SPEED_ROUNDS_MAX)
        usage();
    return (int)n;
}

static bool wants(const struct bench *b, const char *part)
{
    return !b->only || !strcmp(b->only, part);
}

static void parse(struct bench *b, int argc, char **argv)
{
    static const struct option options[] = {{"peer", required_argument, NULL, 'p'},
                                            {"peer-q4_0", required_argument, NULL, '4'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {"out", required_argument, NULL, 'o'},
                                            {"only", required_argument, NULL, 'y'},
                                            {NULL, 0, NULL, 0}};
    int rounds = 0;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'p')
            b->peer.folder = optarg;
        else if (c == '4')
            b->q4_0 = optarg;
        else if (c == 'r')
            rounds = take_rounds(optarg);
        else if (c == 'q')
            b->quick = true;
        else if (c == 'o')
            b->out = optarg;
        else if (c == 'y')
            b->only = optarg;
        else
            usage();
    }
    if (optind != argc - 1 || (b->q4_0 && !b->peer.folder) ||
        !(wants(b, "rates") || wants(b, "latency") || wants(b, "memory")))
        usage();
    b->path = argv[optind];
    b->s.rounds = rounds ? rounds : b->quick ? 1 : ROUNDS;
}

static int fewer(int wanted, int most)
{
    return wanted && wanted < most ? wanted : most;
}

static void plan_cases(struct bench *b)
{
    struct speed *s = &b->s;
    static_assert(sizeof plan / sizeof *plan <= SPEED_CASES_MAX, "cases");
    for (size_t i = 0; i < sizeof plan / sizeof *plan; i++) {
        struct speed_case c = plan[i];
        if (c.prompt + c.tokens > streams_max_len(b->streams)) {
            fprintf(stderr, "a prompt of %u tokens is left out: the model's context is %u\n",
                    c.prompt, streams_max_len(b->streams));
            continue;
        }
        c.rounds = fewer(c.rounds, s->rounds);
        c.peer_rounds = b->peer.folder ? fewer(c.peer_rounds, c.rounds) : 0;
        if (b->quick && c.tokens > 1)
            c.tokens /= 2;
        if (b->quick && c.n > 512)
            c.peer_rounds = 0;
        if (!c.prefill && !(c.gaps = calloc(SPEED_GAPS_MAX, sizeof *c.gaps)))
            bench_die("no memory for the gaps between tokens");
        s->cases[s->n_cases++] = c;
    }
}

/* ---- what is there ---- */

static void read_cpu_name(char *out, size_t size)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, size, "an unnamed CPU");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            snprintf(out, size, "%.*s", (int)strcspn(strchr(line, ':') + 2, "\n"),
                     strchr(line, ':') + 2);
            break;
        }
    if (f)
        fclose(f);
}

static void use_peer(struct bench *b)
{
    struct fail f = {0};
    const char *slash;
    if (!b->peer.folder)
        return;
    if (peer_check(&b->peer, &f) < 0)
        bench_die("%s", f.text);
    slash = strrchr(b->peer.folder, '/');
    b->peer.threads = b->s.threads;
    b->s.peer = b->peer.folder;
    b->s.peer_version = slash && slash[1] ? slash + 1 : b->peer.folder;
}

static void describe(struct bench *b)
{
    struct fail f = {0};
    struct speed *s = &b->s;
    if (model_open(&b->model, b->path, &f) < 0)
        bench_die("%s", f.text);
    const struct gpu_model *net = &b->model->net;
    const char *slash = strrchr(b->path, '/');
    snprintf(s->model, sizeof s->model, "%s", slash ? slash + 1 : b->path);
    memcpy(s->quantization, b->model->quantization, sizeof s->quantization);
    read_cpu_name(s->cpu, sizeof s->cpu);
    s->threads = roof_threads();
    s->int8_name = roof_int8_name(false);
    s->int8_avx2 = roof_int8_ops_per_s(true);
    s->work = work_of(net);
    /* SmolLM2-135M */
    s->goals = s->threads == 2 && !strcmp(s->quantization, "Q4_1") && net->hidden == 576 &&
               net->n_layers == 30 && net->vocab == 49152;
}

static void start_engine(struct bench *b)
{
    char threads[16], blocks[16], len[16];
    uint32_t context = b->model->net.context;
    snprintf(threads, sizeof threads, "%u", b->s.threads);
    snprintf(blocks, sizeof blocks, "%d", KV_BLOCKS);
    snprintf(len, sizeof len, "%u", context < LEN_MAX ? context : LEN_MAX);
    engine_start(&b->engine, b->path, "--threads", threads, "--num-kv-blocks", blocks,
                 "--max-model-len", len, NULL);
    b->streams = streams_open(b->engine.instance, STREAMS);
    streams_run(b->streams, STREAMS, 16, 8, NULL, NULL); /* warm */
}

/* ---- a measurement ---- */

static void measure_limit(struct bench *b, struct speed_case *c)
{
    double read = roof_read_bytes_per_s(), ops = roof_int8_ops_per_s(false);
    speed_add(&b->s.read_rate, read);
    speed_add(&b->s.int8_rate, ops);
    speed_add(&c->roof, c->prefill
                            ? work_prefill_limit(&b->s.work, c->n, read, ops, &c->by_reading)
                            : work_decode_limit(&b->s.work, c->n, read, ops, &c->by_reading));
}

static double measure_ours(struct bench *b, struct speed_case *c)
{
    struct streams *s = b->streams;
    streams_run(s, c->prefill ? 1 : c->n, c->prompt, c->tokens, NULL, NULL);
    if (!c->prefill)
        c->n_gaps += streams_gaps(s, c->gaps + c->n_gaps, SPEED_GAPS_MAX - c->n_gaps);
    double rate = c->prefill ? c->prompt / streams_first_s(s) : streams_rate(s);
    speed_add(&c->ours, rate);
    speed_add(&c->of_roof, rate / c->roof.v[c->roof.n - 1]);
    return rate;
}

/* A message and NAN where the peer fails; a peer that goes on failing is left alone. */
static void measure_peer(struct bench *b, const struct speed_case *c, const char *model,
                         double ours, struct speed_series *rates, struct speed_series *ratios)
{
    struct peer_load load = {c->prompt, c->tokens, c->prefill ? 1 : c->n};
    struct peer_speed speed = {NAN, NAN};
    struct fail f = {0};
    if (b->peer_failures < PEER_FAILURES_MAX) {
        int code = peer_measure(&b->peer, model, &load, &speed, &f);
        b->peer_failures = code < 0 ? b->peer_failures + 1 : 0;
        if (code < 0)
            fprintf(stderr, "%s%s\n", f.text,
                    b->peer_failures < PEER_FAILURES_MAX ? "" : ": going on without it");
    }
    double rate = f.code ? NAN : c->prefill ? speed.prefill : speed.decode;
    speed_add(rates, rate);
    speed_add(ratios, ours / rate);
}

static void tell(const struct bench *b, const struct speed_case *c, int round)
{
    char name[64];
    report_name(c, name, sizeof name);
    fprintf(stderr, "[%4.0f s] round %d of %d, %s: %.1f tokens/s, %.0f %% of the limit",
            (double)(bench_now_ns() - b->start_ns) * 1e-9, round + 1, b->s.rounds, name,
            c->ours.v[round], 100 * c->of_roof.v[round]);
    if (c->same.n > round && !isnan(c->same.v[round]))
        fprintf(stderr, "; llama.cpp %.1f", c->same.v[round]);
    if (c->q4_0.n > round && !isnan(c->q4_0.v[round]))
        fprintf(stderr, "; llama.cpp with Q4_0 %.1f", c->q4_0.v[round]);
    fputc('\n', stderr);
}

static void measure(struct bench *b, struct speed_case *c, int round)
{
    measure_limit(b, c);
    double ours = measure_ours(b, c);
    if (round < c->peer_rounds)
        measure_peer(b, c, b->path, ours, &c->same, &c->to_same);
    if (round < c->peer_rounds && b->q4_0)
        measure_peer(b, c, b->q4_0, ours, &c->q4_0, &c->to_q4_0);
    tell(b, c, round);
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void sort_gaps(struct speed_case *c)
{
    c->gap_p50 = c->gap_p99 = NAN;
    if (!c->n_gaps)
        return;
    qsort(c->gaps, (size_t)c->n_gaps, sizeof *c->gaps, by_size);
    c->gap_p50 = c->gaps[(c->n_gaps - 1) / 2];
    c->gap_p99 = c->gaps[(int)ceil(0.99 * c->n_gaps) - 1];
}

static void measure_rates(struct bench *b)
{
    struct speed *s = &b->s;
    for (int round = 0; round < s->rounds; round++)
        for (int i = 0; i < s->n_cases; i++)
            if (round < s->cases[i].rounds)
                measure(b, &s->cases[i], round);
    for (int i = 0; i < s->n_cases; i++)
        sort_gaps(&s->cases[i]);
}

static double quantile_of(const json_t *histogram, const char *name)
{
    return json_number_value(json_object_get(histogram, name));
}

static void measure_latency(struct bench *b)
{
    struct speed_latency *l = &b->s.latency;
    fprintf(stderr, "what the way through the rings adds ...\n");
    struct alone *alone = alone_open(b->model, b->s.threads, ALONE_LEN);
    latency_measure(l, b->streams, b->engine.instance, alone, b->quick ? 3 : LATENCY_TURNS);
    alone_close(alone);
    struct bare_wake wake = bare_wake_swept(WAKES, (size_t)b->s.work.bytes, b->s.threads);
    l->wake_call = wake.call;
    l->wake_back = wake.back;
    json_t *status = engine_status(&b->engine);
    const json_t *overhead = json_object_get(status, "step_overhead_us");
    l->overhead_p50 = quantile_of(overhead, "p50");
    l->overhead_p99 = quantile_of(overhead, "p99");
    json_decref(status);
}

static void measure_memory(struct bench *b)
{
    struct speed_memory *m = &b->s.memory;
    struct fail f = {0};
    fprintf(stderr, "memory ...\n");
    m->weights = (uint64_t)engine_figure(&b->engine, "weights_bytes");
    m->pool = (uint64_t)engine_figure(&b->engine, "kv_bytes");
    m->goal = (uint64_t)((double)m->weights * 1.15) + m->pool + 30000000;
    m->context = CONTEXT;
    m->measured = resident_bytes(b->engine.pid, &m->rss, &m->pss, &f) == 0;
    if (m->measured && b->peer.folder &&
        peer_resident(&b->peer, b->path, CONTEXT, &m->peer_rss, &f) < 0)
        m->peer_rss = 0;
    if (f.code)
        fprintf(stderr, "a figure is left out: %s\n", f.text);
}

/* ---- what was found ---- */

static void make_folder(const char *path)
{
    char part[4096];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0777);
        *slash = '/';
    }
    if (mkdir(part, 0777) && errno != EEXIST)
        bench_die("no folder %s: %s", path, strerror(errno));
}

static void write_files(const struct bench *b)
{
    char folder[4096], path[4200];
    const char *build = getenv("B");
    struct fail f = {0};
    snprintf(folder, sizeof folder, "%s", b->out ? b->out : build && *build ? build : "build");
    if (!b->out)
        snprintf(folder + strlen(folder), sizeof folder - strlen(folder), "/bench");
    make_folder(folder);
    snprintf(path, sizeof path, "%s/speed.json", folder);
    if (report_json(&b->s, path, &f) < 0 || charts_write(&b->s, folder, &f) < 0)
        bench_die("%s", f.text);
    printf("\n  written: %s, throughput.svg and gaps.svg beside it\n", path);
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct others others;
    parse(&b, argc, argv);
    if (!roof_has_avx2()) {
        printf(
            "no AVX2: here the engine computes in plain C, whose speed is not what is measured\n");
        return 0;
    }
    b.start_ns = bench_now_ns();
    describe(&b);
    use_peer(&b);
    start_engine(&b);
    others_begin(&others, b.engine.pid);
    if (wants(&b, "rates")) {
        plan_cases(&b);
        measure_rates(&b);
    }
    if (wants(&b, "latency"))
        measure_latency(&b);
    b.s.others = others_share(&others, b.engine.pid);
    if (wants(&b, "memory"))
        measure_memory(&b);
    report_print(&b.s, stdout);
    if (b.s.n_cases)
        write_files(&b);
    streams_close(b.streams);
    model_close(b.model);
    return engine_stop(&b.engine);
}
