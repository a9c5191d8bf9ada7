/* bench_contention.c - steps beside a busy process: how long they take on a quiet machine, while
 * another process keeps one CPU busy, and once it has gone.
 *
 *   bench_contention MODEL [THREADS [ROWS [SECONDS]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../appliance/model/model.h"
#include "../support/gpu_rig.h"
#include "../support/support.h"
#include "bare.h"
#include "roof.h"

enum { BLOCKS = 160, ROWS_MAX = 1024, CONTEXT = 256, STEPS_MAX = 1 << 16 };

struct bench {
    struct gpu_rig rig;
    uint32_t rows, seconds;
    int32_t tokens[ROWS_MAX];
    uint32_t blocks[BLOCKS];
    double ms[STEPS_MAX];
};

static void step(struct bench *b, uint32_t pos)
{
    struct gpu_seq seq = {.blocks = b->blocks, .pos = pos, .n_rows = b->rows};
    struct gpu_output output = {.row = b->rows - 1, .target = -1, .position = pos + b->rows};
    struct gpu_result result;
    struct gpu_step s = {.n_rows = b->rows,
                         .n_seqs = 1,
                         .n_outputs = 1,
                         .tokens = b->tokens,
                         .seqs = &seq,
                         .outputs = &output,
                         .results = &result};
    gpu_rig_step(&b->rig, &s);
}

/* Steps for so long; prints their mean and quantiles. */
static double run(struct bench *b, const char *what, double seconds)
{
    uint64_t start = bench_now_ns(), last = start, end = start + (uint64_t)(seconds * 1e9);
    int n = 0;
    double threads = 0;
    while (last < end && n < STEPS_MAX) {
        struct gpu_figures figures;
        b->rig.ops->figures(b->rig.gpu, &figures);
        threads += figures.threads_in_use;
        step(b, b->rows == 1 ? CONTEXT + (uint32_t)n % CONTEXT : 0);
        uint64_t now = bench_now_ns();
        b->ms[n++] = (double)(now - last) * 1e-6;
        last = now;
    }
    double mean = (double)(last - start) * 1e-6 / n;
    qsort(b->ms, (size_t)n, sizeof *b->ms, bench_by_value);
    printf("  %-32s mean %7.2f  p50 %7.2f  p95 %7.2f  max %7.2f ms   %8.1f rows/s, %.2f threads\n",
           what, mean, bench_quantile(b->ms, n, 0.5), bench_quantile(b->ms, n, 0.95), b->ms[n - 1],
           b->rows * 1e3 / mean, threads / n);
    fflush(stdout);
    return mean;
}

static void run_beside(struct bench *b, const char *what, int cpu)
{
    pid_t child = bare_spin(cpu);
    run(b, what, b->seconds);
    bare_end(child);
}

static void open_bench(struct bench *b, const struct model *m, uint32_t threads,
                       const struct gpu_source *source)
{
    struct gpu_config config = {.threads = threads,
                                .max_rows = ROWS_MAX,
                                .max_seqs = 1,
                                .max_outputs = 1,
                                .max_len = BLOCKS * GPU_KV_BLOCK};
    for (uint32_t i = 0; i < BLOCKS; i++)
        b->blocks[i] = i;
    for (uint32_t i = 0; i < ROWS_MAX; i++)
        b->tokens[i] = (int32_t)((1000 + 7 * i) % m->net.vocab);
    gpu_rig_open(&b->rig, &config, &m->net, source, BLOCKS);
}

static uint32_t argument(int argc, char **argv, int i, uint32_t otherwise)
{
    return argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct fail f = {0};
    struct model *m;
    if (argc < 2 || *argv[1] == '-')
        bench_die("usage: bench_contention MODEL [THREADS [ROWS [SECONDS]]]");
    if (model_open(&m, argv[1], &f) < 0)
        bench_die("%s", f.text);
    struct gpu_source source = model_source(m);
    int last = 0;
    while (bare_cpu(last + 1) >= 0) /* asked before anything is pinned */
        last++;
    b.rows = argument(argc, argv, 3, 1);
    b.seconds = argument(argc, argv, 4, 2);
    if (b.rows < 1 || b.rows > ROWS_MAX)
        b.rows = 1;
    open_bench(&b, m, argument(argc, argv, 2, 0), &source);
    run(&b, "warm", 0.3);
    run(&b, "quiet", b.seconds);
    run_beside(&b, "a busy process on the last CPU", last);
    run(&b, "gone: first second", 1);
    run(&b, "gone: after that", b.seconds);
    run_beside(&b, "a busy process on the first CPU", 0);
    run(&b, "gone: first second", 1);
    run_beside(&b, "a busy process anywhere", -1);
    run(&b, "gone: first second", 1);
    gpu_rig_close(&b.rig);
    model_close(m);
    return 0;
}
