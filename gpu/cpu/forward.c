/* forward.c - a step: one job of the worker pool, all rows through all layers.
 *
 * By columns, where rows are few: each thread a part of every output. Per layer; every line ends
 * with a barrier:
 *
 *     norm + quantize           rows; up to CPU_PRIVATE_ROWS rows each thread does all for itself
 *                               and needs no barrier
 *     q, k, v + bias            output columns
 *     RoPE of k, KV store       rows
 *     RoPE of q, attention      (row range, kv head, span range) items (attend.c)
 *     quantize                  as above
 *     o + bias + residual       output columns
 *     norm + quantize           as above
 *     gate, up, SwiGLU,
 *     quantize                  columns, in blocks of 32: a thread finishes its own
 *     down + residual           output columns
 *
 * By rows, where there are enough of them: chunks of rows, taken in order from a counter, each of
 * which one thread takes from one attention to the next:
 *
 *     o ... down of layer i, norm ... KV store of layer i + 1      chunks
 *     RoPE of q, attention                                         items
 *
 * Two barriers a layer instead of nine; what leads from one product to the next never leaves the
 * thread's cache; and of many chunks a thread that is slowed down takes fewer. Many get smaller
 * towards the end, so that the threads end together. The price: each chunk reads all weights. n
 * threads read n times as much in the time of one n-th of the rows, so n^2 x CPU_ROWS_EACH rows
 * cost the same rate of reading whatever n is.
 *
 * Rows that no output names are dropped after the last layer's attention; those left go on by
 * columns, to the head and sampling (outputs.c).
 *
 * Invariants:
 *  1. No result depends on who computed it: each op works on whole rows or whole chains, shares
 *     only say where (pure logits, rule 1).
 *  2. Between two barriers nobody reads what another thread writes.
 */
#include <assert.h>

#include "turn.h"

/* All rows, by columns. */
static struct turn turn_of(struct gpu *g, unsigned thread, unsigned n_threads)
{
    const struct gpu_model *m = &g->model;
    const struct cpu_workspace *w = &g->w;
    return (struct turn){.g = g,
                         .step = g->step,
                         .thread = thread,
                         .part = thread,
                         .parts = n_threads,
                         .n_rows = g->step->n_rows,
                         .x = w->x,
                         .q = w->q,
                         .attn = w->attn,
                         .k = w->k,
                         .v = w->v,
                         .norm = w->norm,
                         .ffn = w->ffn,
                         .acts = w->acts,
                         .ffn_acts = w->ffn_acts,
                         .x_stride = linear_stride(m->hidden),
                         .q_stride = linear_stride(m->heads * m->head_dim),
                         .kv_stride = linear_stride(m->kv_heads * m->head_dim),
                         .ffn_stride = linear_stride(m->ffn)};
}

/* One chunk of all's rows. What does not outlive it lies in the thread's own part of memory that is
 * all rows' by columns: parts as long as the largest chunk, in whole groups. */
static struct turn turn_of_chunk(const struct turn *all, struct cpu_share rows)
{
    const struct gpu *g = all->g;
    const struct gpu_model *m = &g->model;
    uint32_t largest = g->w.chunks[0].to;
    uint32_t place = all->thread * round_up(largest, LINEAR_GROUP);
    assert(rows.to - rows.from <= largest);
    assert(place + rows.to - rows.from <= cpu_rows_room(&g->config));
    struct turn t = *all;
    t.part = 0;
    t.parts = 1;
    t.first = rows.from;
    t.n_rows = rows.to - rows.from;
    t.x += rows.from * t.x_stride;
    t.q += rows.from * t.q_stride;
    t.attn += rows.from * t.q_stride;
    t.k += place * t.kv_stride;
    t.v += place * t.kv_stride;
    t.norm += place * t.x_stride;
    t.acts += linear_acts(cpu_acts_width(m), place);
    t.ffn_acts += linear_acts(m->ffn, place);
    if (t.ffn)
        t.ffn += place * t.ffn_stride;
    return t;
}

/* From the attention before `layer` to its own, or from the tokens. */
static void to_attention(const struct turn *t, uint32_t layer)
{
    if (layer == 0)
        turn_embed(t);
    else
        turn_rest_of_layer(t, layer - 1);
    turn_qkv(t, layer);
}

static void chunks_to_attention(const struct turn *all, uint32_t layer)
{
    struct cpu_workspace *w = &all->g->w;
    for (;;) {
        /* relaxed: only who takes what; the barriers order the data */
        uint32_t i = atomic_fetch_add_explicit(&w->counters[layer].chunk, 1, memory_order_relaxed);
        if (i >= w->n_chunks)
            break;
        struct turn t = turn_of_chunk(all, w->chunks[i]);
        to_attention(&t, layer);
    }
    turn_barrier(all);
}

static void forward_job(void *context, unsigned thread, unsigned n_threads)
{
    struct gpu *g = context;
    struct turn t = turn_of(g, thread, n_threads);
    uint32_t n_layers = g->model.n_layers;
    for (uint32_t i = 0; i < n_layers; i++) {
        if (g->w.n_chunks)
            chunks_to_attention(&t, i);
        else
            to_attention(&t, i);
        if (i + 1 == n_layers && g->n_wanted == 0)
            return; /* the KV is written, and nobody asks for more */
        turn_attend(&t, i);
    }
    turn_keep_wanted(&t);
    turn_rest_of_layer(&t, n_layers - 1);
    turn_outputs(&t);
}

/* ---- before the job ---- */

/* Rows that outputs name, each once: outputs come with rows ascending. */
static void list_wanted(struct gpu *g)
{
    const struct gpu_step *s = g->step;
    g->n_wanted = 0;
    for (uint32_t i = 0; i < s->n_outputs; i++) {
        if (i == 0 || s->outputs[i].row != s->outputs[i - 1].row)
            g->w.wanted[g->n_wanted++] = s->outputs[i].row;
        g->w.wanted_of[i] = g->n_wanted - 1;
    }
}

/* Of the next chunk. Where there are many rows a part of what is left, in passes of 8 rows, but never
 * so few that reading the weights would count; else one chunk for each thread, in whole groups. */
static uint32_t chunk_rows(uint32_t rows, uint32_t left, uint32_t threads)
{
    enum { PASS = 8 };
    if (rows < CPU_CHUNK * threads)
        return min_u32(round_up(rows, threads * LINEAR_GROUP) / threads, left);
    uint32_t n = round_up(left / (2 * threads), PASS);
    n = n < CPU_CHUNK_LEAST ? CPU_CHUNK_LEAST : n;
    return min_u32(min_u32(n, CPU_CHUNK), left);
}

static void list_chunks(struct gpu *g)
{
    struct cpu_workspace *w = &g->w;
    uint32_t rows = g->step->n_rows, threads = crew_size(&g->crew);
    w->n_chunks = 0;
    if (rows < threads * threads * CPU_ROWS_EACH)
        return;
    for (uint32_t from = 0, n; from < rows; from += n) {
        n = chunk_rows(rows, rows - from, threads);
        assert(w->n_chunks < cpu_chunks_most(&g->config));
        w->chunks[w->n_chunks++] = (struct cpu_share){from, from + n};
    }
}

void cpu_forward(struct gpu *g)
{
    if (g->step->n_rows == 0)
        return;
    list_wanted(g);
    list_chunks(g);
    cpu_list_items(g);
    for (uint32_t i = 0; i < g->model.n_layers; i++) {
        atomic_store_explicit(&g->w.counters[i].next, 0, memory_order_relaxed);
        atomic_store_explicit(&g->w.counters[i].chunk, 0, memory_order_relaxed);
    }
    cpu_run_step(g, forward_job);
}
