/* forward.c - a step: one job of the worker pool, all rows through all layers.
 *
 * Per layer, and what the threads share out; every line ends with a barrier:
 *
 *     norm + quantize           rows; up to CPU_PRIVATE_ROWS rows each thread does all for itself
 *                               and needs no barrier
 *     q, k, v + bias            output columns
 *     RoPE of k, KV store       rows
 *     RoPE of q, attention      (row range, kv head, span range) items, taken in order from a counter;
 *                               where the spans of rows are shared, the last one merges (items.c)
 *     quantize                  as above
 *     o + bias + residual       output columns
 *     norm + quantize           as above
 *     gate, up, SwiGLU,
 *     quantize                  columns, in blocks of 32: a thread finishes its own
 *     down + residual           output columns
 *
 * Rows that no output names are dropped after the last layer's attention. Then the output norm and
 * the head, CPU_OUTPUT_ROWS rows at a time, each thread collecting of its own slices what sampling
 * wants to know, and sampling, one output a thread at a time.
 *
 * Invariants:
 *  1. No result depends on who computed it: each op works on whole rows or whole chains, shares
 * only say where (pure logits, rule 1).
 *  2. Between two barriers nobody reads what another thread writes.
 */
#include "backend.h"

#include <assert.h>
#include <string.h>

/* A thread's view of the step. */
struct turn {
    struct gpu *g;
    const struct gpu_step *step;
    unsigned thread, n_threads;
    uint32_t n_rows;   /* the first ones of x and attn that count */
    float *x;          /* (n_rows, hidden) */
    const float *attn; /* (n_rows, heads * head_dim) */
    size_t x_stride, q_stride, kv_stride, ffn_stride;
};

static void barrier(const struct turn *t)
{
    pool_barrier(t->g->threads, t->thread);
}

static struct cpu_share own(const struct turn *t, uint32_t n)
{
    return cpu_share(n, t->thread, t->n_threads);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Own rows, in whole groups: a group's activation blocks lie side by side. */
static struct cpu_share own_rows(const struct turn *t)
{
    struct cpu_share s = own(t, (t->n_rows + LINEAR_GROUP - 1) / LINEAR_GROUP);
    return (struct cpu_share){min_u32(s.from * LINEAR_GROUP, t->n_rows),
                              min_u32(s.to * LINEAR_GROUP, t->n_rows)};
}

/* ---- inputs of a product ---- */

/* What rows go through before a product: norm if weight is not NULL, quantization if int8. */
struct stage {
    const float *from; /* (n_rows, stride) */
    size_t stride;
    uint32_t k;
    const float *weight; /* (k) */
    bool int8;
};

static void stage_rows(const struct turn *t, const struct stage *s, struct cpu_share rows,
                       float *norm, struct act *acts)
{
    const struct gpu *g = t->g;
    for (uint32_t r = rows.from; r < rows.to; r++) {
        const float *x = s->from + r * s->stride;
        if (s->weight) {
            float *y = norm + r * t->x_stride;
            g->ops->rms_norm(x, s->weight, g->model.rms_eps, s->k, y);
            x = y;
        }
        if (s->int8)
            g->linear->quantize(x, s->k, linear_act(acts, s->k, r));
    }
}

static struct linear_input stage_input(const struct turn *t, const struct stage *s)
{
    const struct cpu_workspace *w = &t->g->w;
    const struct cpu_private *mine = &w->threads[t->thread];
    bool private = t->n_rows <= CPU_PRIVATE_ROWS;
    float *norm = private ? mine->norm : w->norm;
    struct act *acts = private ? mine->acts : w->acts;
    stage_rows(t, s, private ? (struct cpu_share){0, t->n_rows} : own_rows(t), norm, acts);
    if (!private)
        barrier(t);
    return (struct linear_input){.acts = acts,
                                 .f32 = s->weight ? norm : s->from,
                                 .stride = s->weight ? t->x_stride : s->stride};
}

static struct linear_input norm_input(const struct turn *t, const float *weight, bool int8)
{
    return stage_input(t, &(struct stage){.from = t->x,
                                          .stride = t->x_stride,
                                          .k = t->g->model.hidden,
                                          .weight = weight,
                                          .int8 = int8});
}

/* ---- q, k, v ---- */

struct product {
    const struct linear *l;
    const float *bias; /* or NULL */
    float *y;          /* (n_rows, stride) */
    size_t stride;
};

static void add_bias(const struct gpu *g, const struct product *p, struct cpu_share panels,
                     uint32_t first, uint32_t n)
{
    uint32_t from = panels.from * LINEAR_PANEL, to = min_u32(panels.to * LINEAR_PANEL, p->l->n);
    for (uint32_t r = first; p->bias && r < first + n; r++)
        g->ops->add(p->y + r * p->stride + from, p->bias + from, NULL, to - from);
}

/* Several products of the same input: the threads share out all their panels as if they were one
 * matrix. */
static void multiply_all(const struct turn *t, const struct product *products, int n_products,
                         const struct linear_input *in)
{
    uint32_t total = 0;
    for (int i = 0; i < n_products; i++)
        total += products[i].l->panels;
    struct cpu_share s = own(t, total);
    for (uint32_t first = 0; first < t->n_rows; first += CPU_CHUNK) {
        uint32_t n = min_u32(CPU_CHUNK, t->n_rows - first), before = 0;
        for (int i = 0; i < n_products; i++) {
            const struct product *p = &products[i];
            struct cpu_share here = {s.from > before ? s.from - before : 0,
                                     s.to > before ? min_u32(s.to - before, p->l->panels) : 0};
            before += p->l->panels;
            if (here.from >= here.to)
                continue;
            t->g->linear->multiply(p->l, here.from, here.to, in, first, n, p->y + first * p->stride,
                                   p->stride);
            add_bias(t->g, p, here, first, n);
        }
    }
}

static void project_qkv(const struct turn *t, const struct cpu_layer *l)
{
    const struct cpu_workspace *w = &t->g->w;
    struct linear_input in = norm_input(t, l->attn_norm, l->q.int8 || l->k.int8 || l->v.int8);
    const struct product products[] = {{&l->q, l->q_bias, w->q, t->q_stride},
                                       {&l->k, l->k_bias, w->k, t->kv_stride},
                                       {&l->v, l->v_bias, w->v, t->kv_stride}};
    multiply_all(t, products, 3, &in);
    barrier(t);
}

/* ---- attention ---- */

/* n heads side by side: from, rotated, to `to`, which may be the same. */
static void rotate_heads(const struct gpu *g, const float *from, uint32_t n, uint32_t pos,
                         float *to)
{
    const struct gpu_model *m = &g->model;
    const float *table = rope_row(g->w.rope, m->rope_dim, pos);
    if (from != to && m->rope_dim < m->head_dim)
        memcpy(to, from, (size_t)n * m->head_dim * sizeof *to);
    for (uint32_t h = 0; h < n && m->rope_dim; h++)
        g->ops->rope(m->rope, from + (size_t)h * m->head_dim, m->rope_dim, table,
                     to + (size_t)h * m->head_dim);
}

static void store_kv(const struct turn *t, uint8_t *kv)
{
    const struct gpu *g = t->g;
    struct cpu_share rows = own(t, t->n_rows);
    const struct gpu_seq *s = t->step->seqs;
    for (uint32_t r = rows.from; r < rows.to; r++) {
        while (r >= s->first_row + s->n_rows)
            s++;
        uint32_t pos = s->pos + (r - s->first_row);
        float *k = g->w.k + r * t->kv_stride, *v = g->w.v + r * t->kv_stride;
        rotate_heads(g, k, g->model.kv_heads, pos, k);
        g->attn->store(&g->shape, kv, s->blocks, pos, k, v);
    }
    barrier(t);
}

/* Of an item whose spans are done: merges if all the others of its cut are. */
static void merge_item(const struct gpu *g, struct cpu_attn_cut *cut, const struct attn_rows *r)
{
    /* release: this item's sums; acquire: those of the items that came before */
    if (atomic_fetch_sub_explicit(&cut->left, 1, memory_order_acq_rel) > 1)
        return;
    g->attn->merge(&g->shape, r, cut->parts);
    /* relaxed: a barrier comes before the next layer */
    atomic_store_explicit(&cut->left, cut->pieces, memory_order_relaxed);
}

static void attend_item(const struct turn *t, const struct cpu_attn_item *item, const uint8_t *kv)
{
    const struct gpu *g = t->g;
    const struct cpu_private *mine = &g->w.threads[t->thread];
    const struct gpu_seq *s = &t->step->seqs[item->seq];
    uint32_t heads = g->model.heads / g->model.kv_heads, pos = s->pos + item->first;
    size_t length = (size_t)heads * g->model.head_dim;
    size_t at = (s->first_row + item->first) * t->q_stride + item->kv_head * length;
    for (uint32_t r = 0; r < item->n_rows; r++)
        rotate_heads(g, g->w.q + at + r * t->q_stride, heads, pos + r, mine->q + r * length);
    struct attn_rows rows = {.layer_pool = kv,
                             .blocks = s->blocks,
                             .pos = pos,
                             .n_rows = item->n_rows,
                             .kv_head = item->kv_head,
                             .q = mine->q,
                             .out = g->w.attn + at,
                             .q_stride = length,
                             .out_stride = t->q_stride};
    if (!item->cut) {
        g->attn->rows(&g->shape, &rows, mine->scratch);
        return;
    }
    g->attn->spans(&g->shape, &rows, item->from, item->to, item->cut->parts, mine->scratch);
    merge_item(g, item->cut, &rows);
}

static void attend(const struct turn *t, uint32_t layer)
{
    struct gpu *g = t->g;
    const uint8_t *kv = cpu_layer_kv(g, layer);
    for (;;) {
        /* relaxed: only who takes what; the barriers order the data */
        uint32_t i = atomic_fetch_add_explicit(&g->w.counters[layer].next, 1, memory_order_relaxed);
        if (i >= g->w.items.n)
            break;
        attend_item(t, &g->w.items.list[i], kv);
    }
    barrier(t);
}

/* Goes on with the rows that outputs name alone. */
static void keep_wanted(struct turn *t)
{
    const struct cpu_workspace *w = &t->g->w;
    uint32_t n = t->g->n_wanted;
    struct cpu_share s = own(t, n);
    if (n == t->n_rows)
        return;
    for (uint32_t i = s.from; i < s.to; i++) {
        uint32_t row = w->wanted[i];
        memcpy(w->last_x + i * t->x_stride, t->x + row * t->x_stride, t->x_stride * sizeof *t->x);
        memcpy(w->last_attn + i * t->q_stride, t->attn + row * t->q_stride,
               t->q_stride * sizeof *t->attn);
    }
    barrier(t);
    t->n_rows = n;
    t->x = w->last_x;
    t->attn = w->last_attn;
}

/* ---- residual products, feed-forward ---- */

/* x += in W' (+ bias) */
static void add_product(const struct turn *t, const struct linear *l, const float *bias,
                        const struct linear_input *in)
{
    const struct gpu *g = t->g;
    struct cpu_share s = own(t, l->panels);
    uint32_t from = s.from * LINEAR_PANEL, to = min_u32(s.to * LINEAR_PANEL, l->n);
    for (uint32_t first = 0; first < t->n_rows && s.from < s.to; first += CPU_CHUNK) {
        uint32_t n = min_u32(CPU_CHUNK, t->n_rows - first);
        g->linear->multiply(l, s.from, s.to, in, first, n, g->w.out, t->x_stride);
        for (uint32_t r = 0; r < n; r++)
            g->ops->add(t->x + (first + r) * t->x_stride + from, g->w.out + r * t->x_stride + from,
                        bias ? bias + from : NULL, to - from);
    }
    barrier(t);
}

static void project_attention(const struct turn *t, const struct cpu_layer *l)
{
    struct linear_input in =
        stage_input(t, &(struct stage){.from = t->attn,
                                       .stride = t->q_stride,
                                       .k = t->g->model.heads * t->g->model.head_dim,
                                       .int8 = l->o.int8});
    add_product(t, &l->o, l->o_bias, &in);
}

/* SwiGLU of columns from .. to - 1 of chunk row r, which is row `row` of the step: into the input
 * of the down projection. */
static void finish_ffn_row(const struct turn *t, bool int8, uint32_t r, uint32_t row, uint32_t from,
                           uint32_t to)
{
    const struct gpu *g = t->g;
    float *gate = g->w.gate + r * t->ffn_stride + from;
    const float *up = g->w.up + r * t->ffn_stride + from;
    float *y = int8 ? gate : g->w.ffn + row * t->ffn_stride + from;
    g->ops->swiglu(gate, up, to - from, y);
    if (int8)
        g->linear->quantize(y, to - from,
                            linear_act(g->w.ffn_acts, g->model.ffn, row) +
                                (size_t)from / LINEAR_BLOCK * LINEAR_GROUP);
}

static void gate_and_up(const struct turn *t, const struct cpu_layer *l)
{
    enum { BLOCK_PANELS = LINEAR_BLOCK / LINEAR_PANEL };
    const struct gpu *g = t->g;
    struct linear_input in = norm_input(t, l->ffn_norm, l->gate.int8 || l->up.int8);
    struct cpu_share s = own(t, (l->gate.panels + BLOCK_PANELS - 1) / BLOCK_PANELS);
    uint32_t p0 = s.from * BLOCK_PANELS, p1 = min_u32(s.to * BLOCK_PANELS, l->gate.panels);
    uint32_t from = p0 * LINEAR_PANEL, to = min_u32(p1 * LINEAR_PANEL, g->model.ffn);
    for (uint32_t first = 0; first < t->n_rows && p0 < p1; first += CPU_CHUNK) {
        uint32_t n = min_u32(CPU_CHUNK, t->n_rows - first);
        g->linear->multiply(&l->gate, p0, p1, &in, first, n, g->w.gate, t->ffn_stride);
        g->linear->multiply(&l->up, p0, p1, &in, first, n, g->w.up, t->ffn_stride);
        for (uint32_t r = 0; r < n; r++)
            finish_ffn_row(t, l->down.int8, r, first + r, from, to);
    }
    barrier(t);
}

static void feed_forward(const struct turn *t, const struct cpu_layer *l)
{
    gate_and_up(t, l);
    struct linear_input in = {
        .acts = t->g->w.ffn_acts, .f32 = t->g->w.ffn, .stride = t->ffn_stride};
    add_product(t, &l->down, NULL, &in);
}

/* ---- from tokens to rows, from rows to tokens ---- */

static void embed(const struct turn *t)
{
    struct cpu_share rows = own_rows(t);
    for (uint32_t r = rows.from; r < rows.to; r++)
        linear_row(&t->g->embedding, (uint32_t)t->step->tokens[r], t->x + r * t->x_stride);
    barrier(t);
}

/* The threads share out the head by slices of the vocabulary, and each looks at what it has just
 * computed, unless there are so few slices that the shares would be uneven. */
enum { HEAD_SLICES = 4, SLICE_PANELS = SAMPLE_SLICE / LINEAR_PANEL };

static bool share_slices(const struct turn *t)
{
    return sample_slices(t->g->model.vocab) >= HEAD_SLICES * t->n_threads;
}

/* The outputs of wanted rows first .. first + n - 1, whose logits are there. */
static void sample(const struct turn *t, uint32_t first, uint32_t n)
{
    const struct gpu *g = t->g;
    size_t stride = linear_stride(g->model.vocab), slices = sample_slices(g->model.vocab);
    bool last =
        t->thread == 0 && first + n == t->n_rows; /* nothing follows that sweeps the caches */
    void (*soon)(void *context, uint32_t left) = last ? t->step->soon : NULL;
    for (uint32_t i = t->thread; i < t->step->n_outputs; i += t->n_threads) {
        const struct gpu_output *o = &t->step->outputs[i];
        uint32_t row = g->w.wanted_of[i] - first;
        if (g->w.wanted_of[i] < first || row >= n)
            continue;
        if (soon)
            soon(t->step->soon_context, (t->step->n_outputs - i - 1) / t->n_threads + 1);
        const float *logits = g->w.logits + row * stride;
        const struct sample_slice *of = share_slices(t) ? g->w.slices + row * slices : NULL;
        t->step->results[i] =
            g->sample->row(logits, of, g->model.vocab, o, g->w.threads[t->thread].scratch);
        if (o->logits)
            memcpy(o->logits, logits, g->model.vocab * sizeof *logits);
    }
}

/* One slice of the logits of n wanted rows, and what is collected of it. */
static void head_slice(const struct turn *t, const struct linear_input *in, uint32_t first,
                       uint32_t n, uint32_t slice)
{
    const struct gpu *g = t->g;
    uint32_t vocab = g->model.vocab, slices = sample_slices(vocab), at = slice * SAMPLE_SLICE;
    uint32_t p0 = slice * SLICE_PANELS, p1 = min_u32(p0 + SLICE_PANELS, g->head.panels);
    size_t stride = linear_stride(vocab);
    g->linear->multiply(&g->head, p0, p1, in, first, n, g->w.logits, stride);
    for (uint32_t r = 0; r < n; r++)
        g->sample->slice(g->w.logits + r * stride + at, min_u32(SAMPLE_SLICE, vocab - at),
                         g->w.slices + (size_t)r * slices + slice);
}

static void head(const struct turn *t, const struct linear_input *in, uint32_t first, uint32_t n)
{
    const struct gpu *g = t->g;
    if (share_slices(t)) {
        struct cpu_share s = own(t, sample_slices(g->model.vocab));
        for (uint32_t i = s.from; i < s.to; i++)
            head_slice(t, in, first, n, i);
    } else {
        struct cpu_share s = own(t, g->head.panels);
        g->linear->multiply(&g->head, s.from, s.to, in, first, n, g->w.logits,
                            linear_stride(g->model.vocab));
    }
}

/* Logits of the wanted rows, CPU_OUTPUT_ROWS at a time. */
static void outputs(const struct turn *t)
{
    struct linear_input in = norm_input(t, t->g->output_norm, t->g->head.int8);
    for (uint32_t first = 0; first < t->n_rows; first += CPU_OUTPUT_ROWS) {
        uint32_t n = min_u32(CPU_OUTPUT_ROWS, t->n_rows - first);
        if (first > 0)
            barrier(t); /* the rows before are sampled */
        head(t, &in, first, n);
        barrier(t);
        sample(t, first, n);
    }
}

static void forward_job(void *context, unsigned thread, unsigned n_threads)
{
    struct gpu *g = context;
    const struct gpu_model *m = &g->model;
    struct turn t = {.g = g,
                     .step = g->step,
                     .thread = thread,
                     .n_threads = n_threads,
                     .n_rows = g->step->n_rows,
                     .x = g->w.x,
                     .attn = g->w.attn,
                     .x_stride = linear_stride(m->hidden),
                     .q_stride = linear_stride(m->heads * m->head_dim),
                     .kv_stride = linear_stride(m->kv_heads * m->head_dim),
                     .ffn_stride = linear_stride(m->ffn)};
    embed(&t);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct cpu_layer *l = &g->layers[i];
        project_qkv(&t, l);
        store_kv(&t, cpu_layer_kv(g, i));
        if (i + 1 == m->n_layers && g->n_wanted == 0)
            return; /* the KV is written, and nobody asks for more */
        attend(&t, i);
        if (i + 1 == m->n_layers)
            keep_wanted(&t);
        project_attention(&t, l);
        feed_forward(&t, l);
    }
    outputs(&t);
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

void cpu_forward(struct gpu *g)
{
    if (g->step->n_rows == 0)
        return;
    list_wanted(g);
    cpu_list_items(g);
    for (uint32_t i = 0; i < g->model.n_layers; i++)
        atomic_store_explicit(&g->w.counters[i].next, 0, memory_order_relaxed);
    cpu_run_step(g, forward_job);
}
