/* nodes.h - NUMA: memory lies on the nodes where it is read.
 *
 * Threads of one node: nothing to do, the kernel gives a page on the node of the thread that first
 * touches it. Threads of several nodes share the weights out, always in the same way, so each page
 * of them goes to the node whose threads read most of it; any sequence's keys and values are read by
 * all, so those are interleaved, page by page, over just these nodes. Only speed depends on it: what
 * the system does not grant is left. While some threads sit out (crew.h) shares shift a little, and
 * a part of the weights is read from afar.
 */
#ifndef LLMD_CPU_NODES_H
#define LLMD_CPU_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool.h"

/* The nodes of the CPUs that the pool's threads are pinned to, bit i for node i. `node_of` gives a
 * CPU's node or -1 (NULL: libnuma's; tests have their own). Nodes from 64 on are left out. */
uint64_t nodes_of_pool(const struct pool *p, int (*node_of)(int cpu));

/* Each thread's node (threads); a thread that is pinned to no CPU is taken to be where the next one
 * is. False: they are all on one, or it is not known. */
bool nodes_of_threads(const struct pool *p, int (*node_of)(int cpu), int *node);

/* For a range that nobody has touched: interleaved. */
void nodes_spread(void *at, uint64_t bytes, const struct pool *p);

/* Bytes from .. to - 1 of a mapping, which threads of that node read. */
struct nodes_range {
    uint64_t from, to;
    int node; /* 0 .. 63 */
};
/* Each page's node: where most of its bytes are read; -1: nobody reads it. 0 or -ENOMEM. */
int nodes_choose(const struct nodes_range *ranges, size_t n, uint64_t page, int *node /* (pages) */,
                 size_t pages);
/* Puts pages that nobody has touched there. */
void nodes_place(uint8_t *at, uint64_t page, const int *node, size_t pages);

#endif
