/* near.c - the weights of several nodes' threads: each page near those who read it.
 *
 * Who reads what follows from how forward.c shares products out by columns: of each matrix, thread i
 * of n reads the i-th of n equal parts; query, key and value count as one. Pages hold the ends and
 * beginnings of several parts; nodes.h weighs them.
 */
#include <errno.h>
#include <stdlib.h>

#include "load.h"
#include "nodes.h"

struct readers {
    const uint8_t *base; /* of the mapping */
    const int *node;     /* (threads) */
    unsigned threads;
    struct nodes_range *ranges;
    size_t n;
};

static void add_range(struct readers *r, uint64_t from, uint64_t to, int node)
{
    struct nodes_range *last = r->n ? &r->ranges[r->n - 1] : NULL;
    if (from >= to)
        return;
    if (last && last->node == node && last->to == from)
        last->to = to;
    else
        r->ranges[r->n++] = (struct nodes_range){from, to, node};
}

/* The matrix is panels before .. before + l->panels - 1 of `total` that are shared out together. */
static void add_matrix(struct readers *r, const struct linear *l, uint32_t before, uint32_t total)
{
    uint64_t at = (uint64_t)(l->panels_at - r->base);
    for (unsigned i = 0; i < r->threads; i++) {
        struct cpu_share s = cpu_share(total, i, r->threads);
        uint32_t from = s.from > before ? s.from - before : 0;
        uint32_t to = s.to > before ? s.to - before : 0;
        to = to < l->panels ? to : l->panels;
        add_range(r, at + from * l->panel_bytes, at + to * l->panel_bytes, r->node[i]);
    }
}

static void add_layer(struct readers *r, const struct cpu_layer *l)
{
    uint32_t qkv = l->q.panels + l->k.panels + l->v.panels;
    add_matrix(r, &l->q, 0, qkv);
    add_matrix(r, &l->k, l->q.panels, qkv);
    add_matrix(r, &l->v, l->q.panels + l->k.panels, qkv);
    add_matrix(r, &l->o, 0, l->o.panels);
    add_matrix(r, &l->gate, 0, l->gate.panels);
    add_matrix(r, &l->up, 0, l->up.panels);
    add_matrix(r, &l->down, 0, l->down.panels);
}

enum { MATRICES_OF_LAYER = 7 };

static void list_readers(struct readers *r, const struct gpu *g)
{
    for (uint32_t i = 0; i < g->model.n_layers; i++)
        add_layer(r, &g->layers[i]);
    const struct linear *head = g->model.output == g->model.embedding ? &g->embedding : &g->head;
    add_matrix(r, head, 0, head->panels);
}

int cpu_near_choose(const struct gpu *g, const struct pages *p, int (*node_of)(int cpu), int *nodes)
{
    unsigned threads = g->config.threads;
    size_t most = ((size_t)g->model.n_layers * MATRICES_OF_LAYER + 1) * threads;
    uint64_t page = pages_bytes(p->kind);
    int *node = malloc(threads * sizeof *node);
    struct readers r = {
        .base = p->at, .node = node, .threads = threads, .ranges = malloc(most * sizeof *r.ranges)};
    int rc = !node || !r.ranges                             ? -ENOMEM
             : !nodes_of_threads(g->threads, node_of, node) ? -ENOTSUP
                                                            : 0;
    if (!rc) {
        list_readers(&r, g);
        rc = nodes_choose(r.ranges, r.n, page, nodes, p->mapped / page);
    }
    free(node);
    free(r.ranges);
    return rc;
}

void cpu_near(const struct gpu *g, const struct pages *p)
{
    uint64_t page = pages_bytes(p->kind);
    size_t n = p->mapped / page;
    int *nodes = malloc(n * sizeof *nodes);
    nodes_spread(p->at, p->mapped, g->threads); /* stays for what nobody reads most of */
    if (nodes && !cpu_near_choose(g, p, NULL, nodes))
        nodes_place(p->at, page, nodes, n);
    free(nodes);
}
