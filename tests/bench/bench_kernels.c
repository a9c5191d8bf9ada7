/* bench_kernels.c - each CPU kernel alone, on one thread, beside what one thread of this machine
 * could do at best.
 *
 *   bench_kernels [-2] [linear | attention | small]...    all of them without arguments
 *   bench_kernels [-2] [-t N] step MODEL [SEQSxROWS@AT [STEPS]]
 *                                                         whole steps of the backend, on N threads
 *                                                         (all CPUs), without an engine; of one kind
 *                                                         alone: how their times spread
 *
 * -2: the AVX2 kernels also where the CPU has AVX-512.
 *
 * Products: SmolLM2's shapes, then one shape in every type. With one row the weights come from
 * memory (as many copies as pass the caches), so GB/s counts; with more rows the int8 peak does, or
 * for float activations the peak of fused multiply-adds. A figure is the best of ROUNDS.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../appliance/model/model.h"
#include "../../gpu/cpu/attention.h"
#include "../../gpu/cpu/linear.h"
#include "../../gpu/cpu/ops.h"
#include "../../gpu/cpu/pages.h"
#include "../../gpu/cpu/sample.h"
#include "../support/gpu_rig.h"
#include "../support/support.h"
#include "roof.h"

enum { ROUNDS = 7, COLD_BYTES = 128 << 20, ROWS_MAX = 512 };

static struct rnd rnd = {1};
static double read_roof, int8_roof, fma_roof;
static bool only_avx2;
static uint32_t threads; /* 0: one for each CPU */

static void die(const char *what)
{
    fprintf(stderr, "bench_kernels: %s\n", what);
    exit(1);
}

static void *room(uint64_t bytes)
{
    struct pages p;
    if (!pages_map(&p, bytes, PAGES_THP))
        die("no memory");
    return p.at;
}

static void give_back(void *at, uint64_t bytes)
{
    uint64_t page = pages_bytes(PAGES_THP);
    struct pages p = {.at = at, .mapped = (bytes + page - 1) / page * page, .kind = PAGES_THP};
    pages_unmap(&p);
}

/* Seconds of the fastest of ROUNDS calls. */
static double best(void (*job)(void *context), void *context)
{
    double least = 1e9;
    job(context);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t from = bench_now_ns();
        job(context);
        double s = (double)(bench_now_ns() - from) * 1e-9;
        least = s < least ? s : least;
    }
    return least;
}

/* As the backend chooses. */
static bool cpu_has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}
static bool cpu_has_avx512(void)
{
#if defined(__x86_64__)
    return !only_avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}
static const struct linear_kernels *linear(void)
{
    return cpu_has_avx512() ? &linear_avx512 : cpu_has_avx2() ? &linear_avx2 : &linear_plain;
}
static const struct attn_kernels *attention(void)
{
    return cpu_has_avx512() ? &attn_avx512 : cpu_has_avx2() ? &attn_avx2 : &attn_plain;
}
static const struct ops_kernels *ops(void)
{
    return cpu_has_avx512() ? &ops_avx512 : cpu_has_avx2() ? &ops_avx2 : &ops_plain;
}

static void fill_floats(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rnd_float(&rnd);
}

/* ---- products ---- */

struct product {
    struct linear l;
    uint32_t copies, rows;
    struct linear_input in;
    float *y;
};

static void multiply_job(void *context)
{
    struct product *p = context;
    struct linear l = p->l;
    for (uint32_t c = 0; c < p->copies; c++) {
        linear()->multiply(&l, 0, l.panels, &p->in, 0, p->rows, p->y, linear_stride(l.n));
        l.panels_at += l.panels * l.panel_bytes;
    }
}

/* Random bits as quants; every 16-bit scale a small number, so that nothing overflows. */
static void fill_weights(const struct linear *l, uint32_t copies)
{
    uint64_t bytes = (uint64_t)l->panels * l->panel_bytes * copies;
    for (uint64_t i = 0; i < bytes; i += 2) {
        uint16_t v = (uint16_t)(0x2000 | (rnd_u32(&rnd) & 0x0fff));
        memcpy(l->panels_at + i, &v, sizeof v);
    }
}

static void print_product(const struct product *p, double s)
{
    double weights = (double)p->l.n * p->l.k * p->copies;
    double bytes = (double)p->l.panels * (double)p->l.panel_bytes * p->copies;
    double ops = 2 * weights * p->rows, roof = p->l.int8 ? int8_roof : fma_roof;
    printf("  %-5s %-4s %6u x %-5u %3u rows  %9.1f us  %6.1f GB/s %4.0f %%  %7.1f GOP/s %4.0f %%\n",
           gpu_type_info(p->l.type)->name, p->l.int8 ? "int8" : "f32", p->l.n, p->l.k, p->rows,
           s * 1e6 / p->copies, bytes / s * 1e-9, 100 * bytes / s / read_roof, ops / s * 1e-9,
           roof > 0 ? 100 * ops / s / roof : 0);
    fflush(stdout);
}

static void bench_product(enum gpu_type type, bool int8, uint32_t n, uint32_t k)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 512};
    struct product p = {0};
    linear_shape(&p.l, type, k, n, int8);
    uint64_t bytes = (uint64_t)p.l.panels * p.l.panel_bytes;
    uint32_t cold = (uint32_t)(COLD_BYTES / bytes + 1);
    p.l.panels_at = room(bytes * cold);
    fill_weights(&p.l, cold);
    float *x = room((uint64_t)ROWS_MAX * k * sizeof *x);
    struct act *acts = room(linear_acts(k, ROWS_MAX) * sizeof *acts);
    p.y = room((uint64_t)ROWS_MAX * linear_stride(n) * sizeof(float));
    p.in = (struct linear_input){.acts = acts, .f32 = x, .stride = k};
    fill_floats(x, (size_t)ROWS_MAX * k);
    for (uint32_t r = 0; r < ROWS_MAX; r++)
        linear()->quantize(x + (size_t)r * k, k, linear_act(acts, k, r));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        p.rows = rows[i];
        p.copies = cold / rows[i] ? cold / rows[i] : 1;
        if (n > 8192 && rows[i] > 64)
            continue;
        print_product(&p, best(multiply_job, &p));
    }
    give_back(p.l.panels_at, bytes * cold);
    give_back(x, (uint64_t)ROWS_MAX * k * sizeof *x);
    give_back(acts, linear_acts(k, ROWS_MAX) * sizeof *acts);
    give_back(p.y, (uint64_t)ROWS_MAX * linear_stride(n) * sizeof(float));
}

static void bench_linear(void)
{
    static const enum gpu_type types[] = {GPU_Q4_0, GPU_Q5_0, GPU_Q5_1, GPU_Q8_0, GPU_Q4_K,
                                          GPU_Q5_K, GPU_Q6_K, GPU_F16,  GPU_BF16, GPU_F32};
    printf("products: one thread, limits %.1f GB/s, %.0f int8 GOP/s, %.0f f32 GFLOP/s\n",
           read_roof * 1e-9, int8_roof * 1e-9, fma_roof * 1e-9);
    bench_product(GPU_Q4_1, true, 576, 576);
    bench_product(GPU_Q4_1, true, 192, 576);
    bench_product(GPU_Q4_1, true, 1536, 576);
    bench_product(GPU_Q4_1, true, 576, 1536);
    bench_product(GPU_Q8_0, true, 49152, 576);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        bench_product(types[i], linear_quantized(types[i]), 1536, 768);
}

/* ---- attention ---- */

struct attention {
    struct attn_shape shape;
    struct attn_rows rows;
    void *scratch;
};

static void attention_job(void *context)
{
    const struct attention *a = context;
    size_t heads = (size_t)a->shape.heads / a->shape.kv_heads * a->shape.head_dim;
    for (uint32_t h = 0; h < a->shape.kv_heads; h++) {
        struct attn_rows r = a->rows;
        r.kv_head = h;
        r.q += h * heads;
        r.out += h * heads;
        attention()->rows(&a->shape, &r, a->scratch);
    }
}

static void bench_attention_of(enum gpu_kv_type type, const char *name)
{
    static const uint32_t cases[][2] = {{63, 1},   {511, 1},   {4095, 1}, {511, 8},   {0, 64},
                                        {512, 64}, {4032, 64}, {0, 512},  {3584, 512}};
    enum { TOKENS = 4096, BLOCKS = TOKENS / GPU_KV_BLOCK };
    struct attention a = {
        .shape = {.heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125f, .kv_type = type}};
    size_t row = (size_t)a.shape.heads * a.shape.head_dim, kv = 3 * 64;
    uint32_t blocks[BLOCKS];
    uint64_t pool_bytes = attn_block_bytes(&a.shape) * BLOCKS;
    uint64_t row_bytes = ROWS_MAX * row * sizeof(float);
    float *q = room(row_bytes), *out = room(row_bytes);
    uint8_t *pool = room(pool_bytes);
    a.rows = (struct attn_rows){.layer_pool = pool,
                                .blocks = blocks,
                                .q = q,
                                .out = out,
                                .q_stride = row,
                                .out_stride = row};
    a.scratch = room(attn_scratch_bytes(&a.shape));
    fill_floats(q, ROWS_MAX * row);
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = (i * 7) % BLOCKS;
    for (uint32_t i = 0; i < TOKENS; i++) {
        float k[192], v[192];
        fill_floats(k, kv);
        fill_floats(v, kv);
        attention()->store(&a.shape, pool, blocks, i, k, v);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        a.rows.pos = cases[i][0];
        a.rows.n_rows = cases[i][1];
        double s = best(attention_job, &a);
        double pairs = 9.0 * a.rows.n_rows * (a.rows.pos + (a.rows.n_rows + 1) / 2.0);
        double ops = pairs * 64 * 4;
        printf("  %-5s %3u rows at %4u  %9.1f us  %6.1f GFLOP/s  %4.0f %% of the f32 limit\n", name,
               a.rows.n_rows, a.rows.pos, s * 1e6, ops / s * 1e-9,
               fma_roof > 0 ? 100 * ops / s / fma_roof : 0);
        fflush(stdout);
    }
    give_back(pool, pool_bytes);
    give_back(q, row_bytes);
    give_back(out, row_bytes);
    give_back(a.scratch, attn_scratch_bytes(&a.shape));
}

static void bench_attention(void)
{
    printf("attention: one layer, 9 query heads, 3 KV heads of 64\n");
    bench_attention_of(GPU_KV_F16, "f16");
    bench_attention_of(GPU_KV_INT8, "int8");
    bench_attention_of(GPU_KV_F32, "f32");
}

/* ---- small operations ---- */

enum { SMALL_ROWS = 64, HIDDEN = 576, FFN = 1536, VOCAB = 49152 };

struct small {
    float *x, *y, *weight;
    struct act *acts;
    void *scratch;
};

static void norm_job(void *context)
{
    struct small *s = context;
    for (int r = 0; r < SMALL_ROWS; r++)
        ops()->rms_norm(s->x + r * HIDDEN, s->weight, 1e-5f, HIDDEN, s->y + r * HIDDEN);
}
static void quantize_job(void *context)
{
    struct small *s = context;
    for (uint32_t r = 0; r < SMALL_ROWS; r++)
        linear()->quantize(s->x + (size_t)r * HIDDEN, HIDDEN, linear_act(s->acts, HIDDEN, r));
}
static void add_job(void *context)
{
    struct small *s = context;
    for (int r = 0; r < SMALL_ROWS; r++)
        ops()->add(s->y + r * HIDDEN, s->x + r * HIDDEN, NULL, HIDDEN);
}
static void swiglu_job(void *context)
{
    struct small *s = context;
    for (int r = 0; r < SMALL_ROWS; r++)
        ops()->swiglu(s->x + r * FFN, s->weight, FFN, s->y + r * FFN);
}
static void sample_job(void *context)
{
    struct small *s = context;
    struct gpu_output greedy = {.target = -1, .sampling = {.top_p = 1, .repetition = 1}};
    const struct sample_kernels *k = sample_avx2.row ? &sample_avx2 : &sample_plain;
    for (int r = 0; r < SMALL_ROWS; r++)
        k->row(s->x + (size_t)r * VOCAB, NULL, VOCAB, &greedy, s->scratch);
}
static void draw_job(void *context)
{
    struct small *s = context;
    struct gpu_output drawn = {
        .target = -1,
        .sampling = {.top_p = 0.95f, .top_k = 40, .temperature = 0.8f, .repetition = 1}};
    const struct sample_kernels *k = sample_avx2.row ? &sample_avx2 : &sample_plain;
    for (int r = 0; r < SMALL_ROWS; r++)
        k->row(s->x + (size_t)r * VOCAB, NULL, VOCAB, &drawn, s->scratch);
}

static void bench_small(void)
{
    static const struct {
        const char *name;
        void (*job)(void *);
    } jobs[] = {{"norm, 576", norm_job},        {"quantize, 576", quantize_job},
                {"add, 576", add_job},          {"SwiGLU, 1536", swiglu_job},
                {"greedy, 49,152", sample_job}, {"top-k 40, top-p, 49,152", draw_job}};
    uint64_t floats = (uint64_t)SMALL_ROWS * VOCAB * sizeof(float);
    struct small s = {.x = room(floats), .y = room(floats), .weight = room(floats)};
    s.acts = room(linear_acts(HIDDEN, SMALL_ROWS) * sizeof *s.acts);
    s.scratch = room(sample_scratch_bytes(VOCAB));
    fill_floats(s.x, (size_t)SMALL_ROWS * VOCAB);
    fill_floats(s.weight, FFN);
    printf("small operations: one row of 64\n");
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        printf("  %-26s %8.2f us\n", jobs[i].name, best(jobs[i].job, &s) * 1e6 / SMALL_ROWS);
}

/* ---- whole steps ---- */

enum { STEP_SEQS = 64, STEP_LEN = 1024, STEP_BLOCKS = STEP_SEQS * STEP_LEN / GPU_KV_BLOCK };

struct steps {
    struct gpu_rig rig;
    struct gpu_step step;
    struct gpu_seq seqs[STEP_SEQS];
    struct gpu_output outputs[STEP_SEQS];
    struct gpu_result results[STEP_SEQS];
    int32_t tokens[ROWS_MAX];
    uint32_t blocks[STEP_BLOCKS];
};

static void step_job(void *context)
{
    struct steps *s = context;
    gpu_rig_step(&s->rig, &s->step);
}

struct step_kind {
    uint32_t seqs, rows, at; /* sequences, rows of each, tokens before them */
};

/* Each sequence with one output. */
static void set_step(struct steps *s, struct step_kind kind)
{
    uint32_t n_seqs = kind.seqs, n_rows = kind.rows, pos = kind.at;
    for (uint32_t i = 0; i < n_seqs; i++) {
        s->seqs[i] = (struct gpu_seq){.blocks = s->blocks + i * (STEP_BLOCKS / STEP_SEQS),
                                      .pos = pos,
                                      .first_row = i * n_rows,
                                      .n_rows = n_rows};
        s->outputs[i] = (struct gpu_output){.row = (i + 1) * n_rows - 1,
                                            .target = -1,
                                            .position = pos + n_rows,
                                            .sampling = {.top_p = 1, .repetition = 1}};
    }
    s->step.n_seqs = s->step.n_outputs = n_seqs;
    s->step.n_rows = n_seqs * n_rows;
}

static void print_kind(struct step_kind k)
{
    printf("  %2u sequences x %3u rows at %4u  ", k.seqs, k.rows, k.at);
}

static void bench_kinds(struct steps *s)
{
    static const struct step_kind kinds[] = {{1, 1, 16},  {1, 1, 1000}, {2, 1, 64},   {4, 1, 64},
                                             {8, 1, 64},  {16, 1, 64},  {32, 1, 64},  {64, 1, 64},
                                             {1, 128, 0}, {1, 512, 0},  {1, 512, 512}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        set_step(s, kinds[i]);
        double t = best(step_job, s);
        print_kind(kinds[i]);
        printf("%8.3f ms  %7.1f tokens/s\n", t * 1e3, s->step.n_rows / t);
        fflush(stdout);
    }
}

static void bench_kind(struct steps *s, struct step_kind kind, int n)
{
    double *ms = calloc((size_t)n, sizeof *ms);
    if (!ms)
        die("no memory");
    set_step(s, kind);
    step_job(s);
    for (int i = 0; i < n; i++) {
        uint64_t from = bench_now_ns();
        step_job(s);
        ms[i] = (double)(bench_now_ns() - from) * 1e-6;
    }
    qsort(ms, (size_t)n, sizeof *ms, bench_by_value);
    print_kind(kind);
    printf("least %.3f  p50 %.3f  p90 %.3f  p99 %.3f  most %.3f ms\n", ms[0],
           bench_quantile(ms, n, 0.5), bench_quantile(ms, n, 0.9), bench_quantile(ms, n, 0.99),
           ms[n - 1]);
    free(ms);
}

static struct step_kind kind_of(const char *text)
{
    struct step_kind k;
    char end;
    if (sscanf(text, "%ux%u@%u%c", &k.seqs, &k.rows, &k.at, &end) != 3 || !k.seqs || !k.rows ||
        k.seqs > STEP_SEQS || k.seqs * k.rows > ROWS_MAX || k.at + k.rows > STEP_LEN)
        die("a kind of step is SEQSxROWS@AT, as 32x1@64: at most 64 sequences, 512 rows together, "
            "1024 tokens each");
    return k;
}

/* kind: NULL for some of each. */
static void bench_steps(const char *path, const char *kind, int n)
{
    static struct steps s;
    struct step_kind one = kind ? kind_of(kind) : (struct step_kind){0};
    struct fail f = {0};
    struct model *m;
    if (model_open(&m, path, &f) < 0)
        die(f.text);
    struct gpu_config config = {.max_rows = ROWS_MAX,
                                .max_seqs = STEP_SEQS,
                                .max_outputs = STEP_SEQS,
                                .avx2 = only_avx2,
                                .threads = threads,
                                .max_len = STEP_LEN};
    struct gpu_source source = model_source(m);
    gpu_rig_open(&s.rig, &config, &m->net, &source, STEP_BLOCKS);
    for (uint32_t i = 0; i < STEP_BLOCKS; i++)
        s.blocks[i] = i;
    for (uint32_t i = 0; i < ROWS_MAX; i++)
        s.tokens[i] = (int32_t)(1000 + rnd_below(&rnd, m->net.vocab / 2));
    s.step = (struct gpu_step){
        .tokens = s.tokens, .seqs = s.seqs, .outputs = s.outputs, .results = s.results};
    printf("steps of the backend, all CPUs\n");
    if (kind)
        bench_kind(&s, one, n);
    else
        bench_kinds(&s);
    gpu_rig_close(&s.rig);
    model_close(m);
}

/* ---- which ---- */

/* The roofs are those of as many threads as the process may use: one. */
static void stay_on_one_cpu(void)
{
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    int cpu = CPU_SETSIZE - 1;
    while (cpu > 0 && !CPU_ISSET(cpu, &all))
        cpu--;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    read_roof = roof_read_bytes_per_s();
    int8_roof = roof_int8_ops_per_s(only_avx2);
    fma_roof = roof_f32_ops_per_s();
}

static void usage(void)
{
    die("usage: bench_kernels [-2] [linear | attention | small]... or bench_kernels [-2] [-t N] "
        "step MODEL [SEQSxROWS@AT [STEPS]]");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"linear", bench_linear}, {"attention", bench_attention}, {"small", bench_small}};
    enum { PARTS = sizeof parts / sizeof *parts };
    bool wanted[PARTS] = {0}, any = false;
    int opt;
    opterr = 0;
    while ((opt = getopt(argc, argv, "2t:")) != -1)
        if (opt == '2')
            only_avx2 = true;
        else if (opt != 't' || (threads = (uint32_t)atoi(optarg)) == 0)
            usage();
    int words = argc - optind;
    if (words >= 2 && words <= 4 && strcmp(argv[optind], "step") == 0) {
        int n = words == 4 ? atoi(argv[optind + 3]) : 200;
        if (n < 1)
            usage();
        bench_steps(argv[optind + 1], words > 2 ? argv[optind + 2] : NULL, n);
        return 0;
    }
    for (int i = optind; i < argc; i++, any = true) {
        size_t p = 0;
        while (p < PARTS && strcmp(argv[i], parts[p].name))
            p++;
        if (p == PARTS)
            usage();
        wanted[p] = true;
    }
    stay_on_one_cpu();
    for (size_t p = 0; p < PARTS; p++)
        if (wanted[p] || !any)
            parts[p].run();
    return 0;
}
