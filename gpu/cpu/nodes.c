/* nodes.c - see nodes.h. Sources: mbind(2), numa(3). */
#include "nodes.h"

#include <assert.h>
#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 64 };

static int node_of_thread(const struct pool *p, unsigned thread, int (*node_of)(int cpu))
{
    int cpu = pool_cpu(p, thread);
    int node = cpu < 0 ? -1 : node_of ? node_of(cpu) : numa_node_of_cpu(cpu);
    return node < NODES ? node : -1;
}

uint64_t nodes_of_pool(const struct pool *p, int (*node_of)(int cpu))
{
    uint64_t nodes = 0;
    if (!node_of && numa_available() < 0)
        return 0;
    for (unsigned i = 0; i < pool_threads(p); i++) {
        int node = node_of_thread(p, i, node_of);
        if (node >= 0)
            nodes |= 1ull << node;
    }
    return nodes;
}

static bool several(uint64_t nodes)
{
    return nodes & (nodes - 1);
}

bool nodes_of_threads(const struct pool *p, int (*node_of)(int cpu), int *node)
{
    if (!several(nodes_of_pool(p, node_of)))
        return false;
    int next = -1;
    for (unsigned i = pool_threads(p); i-- > 0;) {
        int own = node_of_thread(p, i, node_of);
        next = own >= 0 ? own : next;
        node[i] = next;
    }
    for (unsigned i = 1; i < pool_threads(p); i++) /* the last ones may have had no next */
        node[i] = node[i] >= 0 ? node[i] : node[i - 1];
    return true;
}

void nodes_spread(void *at, uint64_t bytes, const struct pool *p)
{
    unsigned long nodes = nodes_of_pool(p, NULL);
    if (!several(nodes))
        return;
    /* mbind takes the number of bits plus one */
    (void)mbind(at, bytes, MPOL_INTERLEAVE, &nodes, NODES + 1, 0);
}

/* ---- readers ---- */

/* Adds what the range reads of each page to that page's sums. */
static void count_range(const struct nodes_range *r, uint64_t page, uint32_t (*sums)[NODES],
                        size_t pages)
{
    for (uint64_t i = r->from / page; i < pages && i * page < r->to; i++) {
        uint64_t from = i * page > r->from ? i * page : r->from;
        uint64_t to = (i + 1) * page < r->to ? (i + 1) * page : r->to;
        sums[i][r->node] += (uint32_t)((to - from) >> 6); /* in lines: a page has 2^24 at most */
    }
}

static int most_of(const uint32_t *sums)
{
    int most = 0;
    for (int k = 1; k < NODES; k++)
        most = sums[k] > sums[most] ? k : most;
    return sums[most] ? most : -1;
}

int nodes_choose(const struct nodes_range *ranges, size_t n, uint64_t page, int *node, size_t pages)
{
    uint32_t(*sums)[NODES] = calloc(pages, sizeof *sums);
    if (!sums)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        assert(ranges[i].node >= 0 && ranges[i].node < NODES && ranges[i].from <= ranges[i].to);
        count_range(&ranges[i], page, sums, pages);
    }
    for (size_t i = 0; i < pages; i++)
        node[i] = most_of(sums[i]);
    free(sums);
    return 0;
}

/* Preferred, not bound: a node that is full gives way to another one. */
void nodes_place(uint8_t *at, uint64_t page, const int *node, size_t pages)
{
    for (size_t i = 0, n; i < pages; i += n) {
        for (n = 1; i + n < pages && node[i + n] == node[i];)
            n++;
        unsigned long mask = node[i] >= 0 ? 1ul << node[i] : 0;
        if (mask)
            (void)mbind(at + i * page, n * page, MPOL_PREFERRED, &mask, NODES + 1, 0);
    }
}
