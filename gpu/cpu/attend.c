/* attend.c - a step's attention: each thread takes items (items.c) in order from a counter; where the
 * spans of rows are shared, the one that ends last merges.
 */
#include <string.h>

#include "turn.h"

void turn_rotate(const struct gpu *g, const float *from, uint32_t n, uint32_t pos, float *to)
{
    const struct gpu_model *m = &g->model;
    const float *table = rope_row(g->w.rope, m->rope_dim, pos);
    if (from != to && m->rope_dim < m->head_dim)
        memcpy(to, from, (size_t)n * m->head_dim * sizeof *to);
    for (uint32_t h = 0; h < n && m->rope_dim; h++)
        g->ops->rope(m->rope, from + (size_t)h * m->head_dim, m->rope_dim, table,
                     to + (size_t)h * m->head_dim);
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
        turn_rotate(g, g->w.q + at + r * t->q_stride, heads, pos + r, mine->q + r * length);
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

void turn_attend(const struct turn *t, uint32_t layer)
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
    turn_barrier(t);
}
