/* workspace.c - the memory that steps work in, and the KV pool.
 *
 * Everything is mapped once, after the weights are known, and touched before steps need it, so that
 * a step neither allocates nor faults: the workspace and the front of the pool at once, the rest of
 * the pool in the background (touch.h). The workspace is planned by one list, walked to count and
 * walked to take.
 */
#include "backend.h"

#include <errno.h>
#include <inttypes.h>

#include "memory.h"

/* ---- plan ---- */

static float *take_rows(struct cpu_plan *p, uint32_t rows, uint32_t n)
{
    return cpu_take(p, (uint64_t)rows * linear_stride(n) * sizeof(float));
}

static struct act *take_acts(struct cpu_plan *p, uint32_t rows, uint32_t k)
{
    return cpu_take(p, (uint64_t)linear_acts(k, rows) * sizeof(struct act));
}

static void plan_threads(struct gpu *g, struct cpu_plan *p)
{
    struct cpu_private *threads = cpu_take(p, sizeof *threads * g->config.threads);
    size_t attn = attn_scratch_bytes(&g->shape), sample = sample_scratch_bytes(g->model.vocab);
    uint32_t heads = g->model.heads / g->model.kv_heads;
    uint32_t pairs = heads < CPU_ATTN_PAIRS ? CPU_ATTN_PAIRS : heads;
    for (uint32_t i = 0; i < g->config.threads; i++) {
        struct cpu_private t = {
            .norm = take_rows(p, CPU_PRIVATE_ROWS, g->model.hidden),
            .acts = take_acts(p, CPU_PRIVATE_ROWS, cpu_acts_width(&g->model)),
            .q = cpu_take(p, (uint64_t)pairs * g->model.head_dim * sizeof(float)),
            .tile = cpu_take(p, (uint64_t)2 * CPU_TILE * sizeof(float)),
            .scratch = cpu_take(p, attn > sample ? attn : sample)};
        cpu_take(p, 64); /* so that no prefetched pair of lines is shared */
        if (threads)
            threads[i] = t;
    }
    g->w.threads = threads;
}

/* How many there can be. Items that are cut: fewer than grains, each costs more than one. Items: one
 * for each row and kv head, and the pieces past the first of each cut, which are fewer than grains
 * together. Sums of spans: room for CPU_CUT_ROWS rows of the longest sequence; one thread cuts
 * nothing. */
static void plan_items(struct gpu *g, struct cpu_plan *p)
{
    struct cpu_items *i = &g->w.items;
    size_t kv_heads = g->model.kv_heads, longest = attn_spans(g->config.max_len - 1);
    i->cuts_room = (size_t)g->config.threads * CPU_GRAINS;
    i->room = g->config.max_rows * kv_heads + i->cuts_room;
    i->parts_room = CPU_CUT_ROWS * kv_heads * longest * attn_part_floats(&g->shape);
    i->parts_room = g->config.threads > 1 ? i->parts_room : 0;
    i->list = cpu_take(p, i->room * sizeof *i->list);
    i->cuts = cpu_take(p, i->cuts_room * sizeof *i->cuts);
    i->parts = cpu_take(p, i->parts_room * sizeof *i->parts);
}

/* Lays the workspace out at base, or at nothing; returns its bytes. */
static uint64_t plan_workspace(struct gpu *g, uint8_t *base)
{
    struct cpu_plan plan = {.base = base}, *p = &plan;
    const struct gpu_model *m = &g->model;
    const struct gpu_config *c = &g->config;
    struct cpu_workspace *w = &g->w;
    uint32_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    uint32_t rows = cpu_rows_room(c), wanted = min_u32(c->max_outputs, c->max_rows);
    w->x = take_rows(p, c->max_rows, m->hidden);
    w->norm = take_rows(p, rows, m->hidden);
    w->q = take_rows(p, c->max_rows, q);
    w->attn = take_rows(p, c->max_rows, q);
    w->last_x = take_rows(p, wanted, m->hidden);
    w->last_attn = take_rows(p, wanted, q);
    w->k = take_rows(p, rows, kv);
    w->v = take_rows(p, rows, kv);
    w->ffn = g->ffn_f32 ? take_rows(p, rows, m->ffn) : NULL;
    w->acts = take_acts(p, rows, cpu_acts_width(m));
    w->ffn_acts = take_acts(p, rows, m->ffn);
    w->logits = take_rows(p, CPU_OUTPUT_ROWS, m->vocab);
    w->slices =
        cpu_take(p, (uint64_t)CPU_OUTPUT_ROWS * sample_slices(m->vocab) * sizeof *w->slices);
    w->wanted = cpu_take(p, (uint64_t)c->max_outputs * sizeof *w->wanted);
    w->wanted_of = cpu_take(p, (uint64_t)c->max_outputs * sizeof *w->wanted_of);
    w->chunks = cpu_take(p, cpu_chunks_most(c) * sizeof *w->chunks);
    plan_items(g, p);
    w->counters = cpu_take(p, (uint64_t)m->n_layers * sizeof *w->counters);
    w->rope = cpu_take(p, (uint64_t)c->max_len * m->rope_dim * sizeof(float));
    plan_threads(g, p);
    return plan.used;
}

uint64_t cpu_workspace_bytes(struct gpu *g)
{
    return g->work ? g->work_bytes : plan_workspace(g, NULL);
}

/* ---- first touch ---- */

/* Of the pool, whichever is more: 256 tokens, by then the rest has come; or so little that a thread
 * is not worth it. */
enum { FIRST_BLOCKS = 16, FIRST_BYTES = 4 << 20 };

/* What comes in the background: a bounded reserve. Filling a pool of gigabytes would keep an idle
 * machine busy for seconds and hold memory that a small load never uses; past the reserve a huge
 * page comes with its first use, once in its life (2 MiB to be cleared: 0.1 to 0.3 ms). */
enum { RESERVE_BYTES = 64 << 20 };

static uint64_t first_bytes(const struct gpu *g)
{
    uint64_t first = FIRST_BLOCKS * (uint64_t)g->block_bytes;
    first = first > FIRST_BYTES ? first : FIRST_BYTES;
    return first < g->kv_bytes ? first : g->kv_bytes;
}

/* hugetlbfs pages are all there. */
static uint64_t reserve_bytes(const struct gpu *g)
{
    bool here = g->kv_pages.kind == PAGES_HUGETLB || g->kv_pages.kind == PAGES_HUGETLB_1G;
    uint64_t end = first_bytes(g) + (here ? 0 : RESERVE_BYTES);
    return end < g->kv_bytes ? end : g->kv_bytes;
}

static void touch_job(void *context, unsigned thread, unsigned n_threads)
{
    struct gpu *g = context;
    touch_range(g->kv, g->touch.first, thread, n_threads);
    touch_range(g->work, g->work_bytes, thread, n_threads);
}

static void rope_job(void *context, unsigned thread, unsigned n_threads)
{
    struct gpu *g = context;
    const struct gpu_model *m = &g->model;
    struct cpu_share s = cpu_share(g->config.max_len, thread, n_threads);
    rope_fill(g->w.rope, s.from, s.to, m->rope_freq, m->rope_dim, m->rope_magnitude);
}

/* ---- pool ---- */

int cpu_pool(struct gpu *g, uint32_t n_blocks, struct fail *f)
{
    uint64_t bytes, need, work_bytes = plan_workspace(g, NULL), left = cpu_memory_left(g);
    if (n_blocks == 0)
        return fail(f, -EINVAL, "a KV pool of 0 blocks holds no token");
    if (__builtin_mul_overflow((uint64_t)g->block_bytes, n_blocks, &bytes) ||
        __builtin_add_overflow(bytes, work_bytes, &need) || need > left)
        return fail(f, -ENOMEM,
                    "a KV pool of %" PRIu32 " blocks and the workspace of %" PRIu64
                    " MiB do not fit into the %" PRIu64 " MiB that are free; make the pool smaller",
                    n_blocks, work_bytes >> 20, left >> 20);
    if (!cpu_map(g, &g->kv_pages, bytes, NULL, NULL) ||
        !cpu_map(g, &g->work_pages, work_bytes, NULL, NULL)) {
        cpu_pool_free(g);
        return memory_refused("KV pool and the workspace", need, f);
    }
    g->kv = g->kv_pages.at;
    g->kv_bytes = bytes;
    g->work = g->work_pages.at;
    g->work_bytes = work_bytes;
    g->n_blocks = n_blocks;
    g->touch = (struct touch){.at = g->kv,
                              .bytes = reserve_bytes(g),
                              .first = first_bytes(g),
                              .cpus = g->config.cpus,
                              .n_cpus = g->config.threads};
    pool_run(g->threads, touch_job, g); /* before the plan writes into it */
    plan_workspace(g, g->work);
    if (g->model.rope_dim)
        pool_run(g->threads, rope_job, g);
    pool_rest(g->threads);
    touch_start(&g->touch);
    return 0;
}

void cpu_pool_free(struct gpu *g)
{
    touch_stop(&g->touch);
    pages_unmap(&g->kv_pages);
    pages_unmap(&g->work_pages);
    g->kv = g->work = NULL;
    g->kv_bytes = g->work_bytes = 0;
}
