/* nodes.h - NUMA: memory that all threads read lies on the nodes where they compute.
 *
 * Threads of one node: nothing to do, the kernel gives a page on the node of the thread that first
 * touches it. Threads of several nodes all read all weights and any sequence's keys and values, so
 * those are interleaved, page by page, over just these nodes. Only speed depends on it: what the
 * system does not grant is left.
 */
#ifndef LLMD_CPU_NODES_H
#define LLMD_CPU_NODES_H

#include <stdint.h>

#include "pool.h"

/* The nodes of the CPUs that the pool's threads are pinned to, bit i for node i. `node_of` gives a
 * CPU's node or -1 (NULL: libnuma's; tests have their own). Nodes from 64 on are left out. */
uint64_t nodes_of_pool(const struct pool *p, int (*node_of)(int cpu));

/* For a range that nobody has touched. */
void nodes_spread(void *at, uint64_t bytes, const struct pool *p);

#endif
