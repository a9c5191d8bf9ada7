/* nodes.c - see nodes.h. Sources: mbind(2), numa(3). */
#include "nodes.h"

#include <numa.h>
#include <numaif.h>
#include <stddef.h>

enum { NODES = 64 };

uint64_t nodes_of_pool(const struct pool *p, int (*node_of)(int cpu))
{
    uint64_t nodes = 0;
    if (!node_of && numa_available() < 0)
        return 0;
    for (unsigned i = 0; i < pool_threads(p); i++) {
        int cpu = pool_cpu(p, i);
        int node = cpu < 0 ? -1 : node_of ? node_of(cpu) : numa_node_of_cpu(cpu);
        if (node >= 0 && node < NODES)
            nodes |= 1ull << node;
    }
    return nodes;
}

void nodes_spread(void *at, uint64_t bytes, const struct pool *p)
{
    unsigned long nodes = nodes_of_pool(p, NULL);
    if ((nodes & (nodes - 1)) == 0)
        return;
    /* mbind takes the number of bits plus one */
    (void)mbind(at, bytes, MPOL_INTERLEAVE, &nodes, NODES + 1, 0);
}
