/* backend.c - the CPU backend behind gpu.h: its life, its limits, and which kernels it takes.
 *
 *     open -> load -> pool -> submit <-> wait -> close
 *
 * Calls out of this order are asserts, since the caller is our own engine. A step is computed in
 * wait, by all threads, the caller's among them; submit only remembers it, so that what the engine
 * does between the two is not held up by the step.
 */
#include "backend.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "memory.h"

/* ---- which kernels ---- */

#if defined(__x86_64__)
static bool cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static bool cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}
static bool cpu_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#else
static bool cpu_has_avx2(void)
{
    return false;
}
static bool cpu_has_avx512(void)
{
    return false;
}
#endif

/* Raise it when a kernel's results change: a resumed stream must not meet other numbers. */
#define KERNEL_VERSION "1"

static void choose_kernels(struct gpu *g)
{
    bool fast = !g->config.plain && cpu_has_avx2();
    bool faster = fast && !g->config.avx2 && cpu_has_avx512();
    g->linear = faster ? &linear_avx512 : fast ? &linear_avx2 : &linear_plain;
    g->ops = faster ? &ops_avx512 : fast ? &ops_avx2 : &ops_plain;
    g->attn = faster ? &attn_avx512 : fast ? &attn_avx2 : &attn_plain;
    g->sample = fast ? &sample_avx2 : &sample_plain;
}

/* AVX2 and AVX-512 give the same bits and have one name. After load: int8 is what some weight takes,
 * not what was asked for. */
static void name_numerics(struct gpu *g)
{
    static const char *const kv[GPU_KV_TYPES] = {
        [GPU_KV_F16] = "f16", [GPU_KV_F32] = "f32", [GPU_KV_INT8] = "int8"};
    snprintf(g->numerics, sizeof g->numerics, "cpu-%s-" KERNEL_VERSION "/%s/%s",
             g->linear == &linear_plain ? "plain" : "avx2", g->int8 ? "int8" : "f32",
             kv[g->config.kv_type]);
}

/* ---- open, close ---- */

enum { THREADS_MAX = 512, ROWS_MAX = 1 << 16, LEN_MAX = 1 << 20 };

static int check_config(const struct gpu_config *c, struct fail *f)
{
    const struct {
        const char *what;
        uint32_t value, least, most;
    } limits[] = {
        {"number of threads", c->threads, 0, THREADS_MAX},
        {"number of rows of a step", c->max_rows, 1, ROWS_MAX},
        {"number of sequences of a step", c->max_seqs, 1, ROWS_MAX},
        {"number of outputs of a step", c->max_outputs, 1, ROWS_MAX},
        {"longest sequence (--max-model-len)", c->max_len, 1, LEN_MAX},
        {"activation mode", (uint32_t)c->activations, 0, GPU_ACT_F32},
        {"KV type", (uint32_t)c->kv_type, 0, GPU_KV_TYPES - 1},
        {"kind of pages", (uint32_t)c->huge_pages, 0, GPU_HUGE_PAGES_OFF},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value < limits[i].least || limits[i].value > limits[i].most)
            return fail(f, -EINVAL,
                        "the %s is %" PRIu32 "; the CPU backend takes %" PRIu32 " to %" PRIu32,
                        limits[i].what, limits[i].value, limits[i].least, limits[i].most);
    return 0;
}

static void cpu_close(struct gpu *g)
{
    if (!g)
        return;
    pool_destroy(g->threads);
    crew_destroy(&g->crew);
    free(g->held_ns);
    free(g->cpu_share);
    cpu_pool_free(g);
    cpu_unload(g);
    free(g);
}

static int start_threads(struct gpu *g, struct fail *f)
{
    uint32_t n = g->config.threads;
    int error = crew_create(&g->crew, n, g->config.cpus != NULL);
    g->held_ns = calloc(n, sizeof *g->held_ns);
    g->cpu_share = calloc(n, sizeof *g->cpu_share);
    if (error || !g->held_ns || !g->cpu_share)
        return fail(f, -ENOMEM, "no memory for %" PRIu32 " threads", n);
    return pool_create_on(&g->threads, n, g->config.cpus, f);
}

static int cpu_open(struct gpu **out, const struct gpu_config *config, struct fail *f)
{
    *out = NULL;
    int error = check_config(config, f);
    if (error)
        return error;
    struct gpu *g = calloc(1, sizeof *g);
    if (!g)
        return fail(f, -ENOMEM, "no memory to open the CPU backend");
    g->config = *config;
    if (g->config.threads == 0) {
        unsigned cpus = memory_cpus("");
        g->config.threads = cpus < THREADS_MAX ? cpus : THREADS_MAX;
    }
    choose_kernels(g);
    error = start_threads(g, f);
    if (error) {
        cpu_close(g);
        return error;
    }
    *out = g;
    return 0;
}

/* ---- load, pool, memory ---- */

static int cpu_load_once(struct gpu *g, const struct gpu_model *m, const struct gpu_source *source,
                         struct fail *f)
{
    assert(!g->weights);
    int error = cpu_load(g, m, source, f);
    if (!error)
        name_numerics(g);
    return error;
}

static int cpu_pool_once(struct gpu *g, uint32_t n_blocks, struct fail *f)
{
    assert(g->weights && !g->work);
    return cpu_pool(g, n_blocks, f);
}

static void cpu_memory(struct gpu *g, struct gpu_memory *out)
{
    assert(g->weights);
    *out = (struct gpu_memory){.weights_bytes = g->weights_bytes,
                               .workspace_bytes = cpu_workspace_bytes(g),
                               .block_bytes = g->block_bytes,
                               .pool_bytes = g->kv_bytes,
                               .available_bytes = cpu_memory_left(g),
                               .weights_pages = pages_name(g->weights_pages.kind),
                               .weights_huge_bytes = g->weights_huge_bytes};
}

/* ---- steps ---- */

static void check_seq(const struct gpu *g, const struct gpu_seq *s, uint32_t first_row)
{
    assert(s->first_row == first_row && s->n_rows > 0);
    assert(s->n_rows <= g->step->n_rows - first_row);
    assert(s->pos < g->config.max_len && s->n_rows <= g->config.max_len - s->pos);
    assert(s->adapter == 0);
    for (uint32_t i = s->pos / GPU_KV_BLOCK; i <= (s->pos + s->n_rows - 1) / GPU_KV_BLOCK; i++)
        assert(s->blocks[i] < g->n_blocks);
}

static void check_output(const struct gpu *g, const struct gpu_output *o, uint32_t least_row)
{
    assert(o->row >= least_row && o->row < g->step->n_rows);
    assert(o->target < 0 || (uint32_t)o->target < g->model.vocab);
}

/* Our own engine's promises: a fault here is a bug of ours. */
static void check_step(const struct gpu *g)
{
    const struct gpu_step *s = g->step;
    uint32_t row = 0;
    assert(s->n_rows <= g->config.max_rows && s->n_seqs <= g->config.max_seqs);
    assert(s->n_outputs <= g->config.max_outputs);
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        check_seq(g, &s->seqs[i], row);
        row += s->seqs[i].n_rows;
    }
    assert(row == s->n_rows);
    for (uint32_t i = 0; i < s->n_rows; i++)
        assert(s->tokens[i] >= 0 && (uint32_t)s->tokens[i] < g->model.vocab);
    for (uint32_t i = 0; i < s->n_outputs; i++)
        check_output(g, &s->outputs[i], i ? s->outputs[i - 1].row : 0);
}

static int cpu_submit(struct gpu *g, const struct gpu_step *step)
{
    assert(g->work && !g->step);
    g->step = step;
    check_step(g);
    return 0;
}

static int cpu_wait(struct gpu *g)
{
    assert(g->step);
    cpu_forward(g);
    g->step = NULL;
    return 0;
}

static int cpu_copy_blocks(struct gpu *g, const uint32_t *dst, const uint32_t *src, uint32_t n)
{
    assert(g->kv && !g->step);
    for (uint32_t i = 0; i < n; i++) {
        assert(dst[i] < g->n_blocks && src[i] < g->n_blocks);
        if (dst[i] != src[i])
            memcpy(g->kv + dst[i] * g->block_bytes, g->kv + src[i] * g->block_bytes,
                   g->block_bytes);
    }
    return 0;
}

static void cpu_rest(struct gpu *g)
{
    pool_rest(g->threads);
}

static void cpu_figures(const struct gpu *g, struct gpu_figures *out)
{
    *out = (struct gpu_figures){.threads_in_use = crew_size(&g->crew)};
}

static const char *cpu_numerics(const struct gpu *g)
{
    return g->numerics;
}

static const char *cpu_kernels(const struct gpu *g)
{
    return g->linear == &linear_avx512 ? "cpu-avx512"
           : g->linear == &linear_avx2 ? "cpu-avx2"
                                       : "cpu-plain";
}

const struct gpu_ops *gpu_cpu_ops(void)
{
    static const struct gpu_ops ops = {.name = "cpu",
                                       .open = cpu_open,
                                       .load = cpu_load_once,
                                       .memory = cpu_memory,
                                       .pool = cpu_pool_once,
                                       .submit = cpu_submit,
                                       .wait = cpu_wait,
                                       .copy_blocks = cpu_copy_blocks,
                                       .rest = cpu_rest,
                                       .figures = cpu_figures,
                                       .numerics = cpu_numerics,
                                       .kernels = cpu_kernels,
                                       .close = cpu_close};
    return &ops;
}
