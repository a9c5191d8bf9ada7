/* items.c - attention's share-out: the items of a step, each of which one thread takes at a time.
 *
 * The cost of rows is rows x spans that the last one sees, once for each kv head. A thread's part of
 * the whole is some CPU_GRAINS grains, and an item is about a grain at most, so that the threads end
 * together: rows are divided first, down to CPU_CUT_ROWS, which still share each load of K and V;
 * then spans, as long as there is room for their sums:
 *
 *     row, kv head   |  item  |  item  | item |    whole grains, then what is left
 *                    0        g       2g    spans
 *
 * Of such a cut, the thread that ends last merges. What is left of cuts goes to the end of the list,
 * together with all items below a grain.
 *
 * Invariant: items say who computes what and when, never what (attention.h).
 */
#include "backend.h"

#include <assert.h>

struct listing {
    const struct gpu *g;
    struct cpu_items *items;
    uint64_t grain;
    bool large; /* whole grains of cuts; else the rest */
    uint32_t n_cuts;
    size_t parts; /* floats in use */
};

static void add(struct listing *l, struct cpu_attn_item item, uint32_t from, uint32_t to)
{
    item.from = from;
    item.to = to;
    l->items->list[l->items->n++] = item;
}

/* Pieces of `piece` spans. */
static void cut(struct listing *l, struct cpu_attn_item item, uint32_t spans, uint32_t piece)
{
    struct cpu_attn_cut *c = &l->items->cuts[l->n_cuts++];
    uint32_t whole = spans / piece;
    assert(l->n_cuts <= l->items->cuts_room);
    c->parts = l->items->parts + l->parts;
    c->pieces = (spans + piece - 1) / piece;
    atomic_store_explicit(&c->left, c->pieces, memory_order_relaxed);
    l->parts += spans * item.n_rows * attn_part_floats(&l->g->shape);
    item.cut = c;
    for (uint32_t i = 0; i < whole && l->large; i++)
        add(l, item, i * piece, (i + 1) * piece);
    if (spans % piece && !l->large)
        add(l, item, whole * piece, spans);
}

static void list_item(struct listing *l, struct cpu_attn_item item, uint32_t spans)
{
    uint64_t piece = (l->grain + item.n_rows - 1) / item.n_rows;
    size_t parts = spans * item.n_rows * attn_part_floats(&l->g->shape);
    if (spans > piece && item.n_rows <= CPU_CUT_ROWS && parts <= l->items->parts_room - l->parts)
        cut(l, item, spans, (uint32_t)piece);
    else if (!l->large)
        add(l, item, 0, spans);
}

/* A sequence's last rows see most keys: they go first, so that the threads end with small items. */
static void list_seq(struct listing *l, uint32_t seq)
{
    const struct gpu_model *m = &l->g->model;
    const struct gpu_seq *s = &l->g->step->seqs[seq];
    uint64_t rows = l->grain / attn_spans(s->pos + s->n_rows - 1);
    rows = rows > CPU_CUT_ROWS ? rows : CPU_CUT_ROWS;
    uint32_t heads = m->heads / m->kv_heads;
    uint32_t most = heads < CPU_ATTN_PAIRS ? CPU_ATTN_PAIRS / heads : 1;
    most = rows < most ? (uint32_t)rows : most;
    for (uint32_t left = s->n_rows; left > 0;) {
        struct cpu_attn_item item = {.seq = seq, .n_rows = min_u32(most, left)};
        left -= item.n_rows;
        item.first = left;
        for (item.kv_head = 0; item.kv_head < m->kv_heads; item.kv_head++)
            list_item(l, item, attn_spans(s->pos + left + item.n_rows - 1));
    }
}

static uint64_t grain_of(const struct gpu *g)
{
    uint64_t cost = 0, grains = g->config.threads > 1 ? g->config.threads * CPU_GRAINS : 1;
    for (uint32_t i = 0; i < g->step->n_seqs; i++) {
        const struct gpu_seq *s = &g->step->seqs[i];
        cost += (uint64_t)s->n_rows * attn_spans(s->pos + s->n_rows - 1);
    }
    return (cost * g->model.kv_heads + grains - 1) / grains;
}

void cpu_list_items(struct gpu *g)
{
    uint64_t grain = grain_of(g);
    g->w.items.n = 0;
    for (int pass = 0; pass < 2; pass++) {
        struct listing l = {.g = g, .items = &g->w.items, .grain = grain, .large = pass == 0};
        for (uint32_t s = 0; s < g->step->n_seqs; s++)
            list_seq(&l, s);
    }
    assert(g->w.items.n <= g->w.items.room);
}
