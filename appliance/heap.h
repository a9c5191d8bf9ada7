/* heap.h - what the engine's own heap holds, where the allocator can tell (jemalloc).
 */
#ifndef LLMD_HEAP_H
#define LLMD_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct heap_figures {
    uint64_t allocated; /* bytes in use */
    uint64_t resident;  /* bytes of memory that the allocator holds for it */
};

/* False, and zeros, with another allocator. Takes the allocator's locks: not in the step path. */
bool heap_read(struct heap_figures *out);

#endif
