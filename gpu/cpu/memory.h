/* memory.h - large memory for weights and KV, and how much of it there is.
 */
#ifndef LLMD_CPU_MEMORY_H
#define LLMD_CPU_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "../fail.h"

enum { MEMORY_ALIGN = 64, MEMORY_HUGE = 2 << 20 };

/* Anonymous zeroed memory, aligned to 2 MiB, huge pages advised. NULL if the kernel refuses.
 * `bytes` is given back to memory_unmap. memory_unmap(NULL, ..) does nothing. */
void *memory_map(uint64_t bytes);
void memory_unmap(void *at, uint64_t bytes);

/* What to say where memory_map returned NULL although so much is free: -ENOMEM. */
int memory_refused(const char *what, uint64_t bytes, struct fail *f);

/* Bytes that this process may still take: what the machine has available, or what the memory
 * cgroups above us (v2 or v1, every ancestor) leave, whichever is less. Page cache that the kernel
 * would drop first counts as free. `root` is "" (tests: a folder that holds proc/ and sys/). */
uint64_t memory_available(const char *root);

/* CPUs that this process may run on: its affinity, or its cgroups' CPU quota rounded up, whichever
 * is less. At least 1. */
unsigned memory_cpus(const char *root);

#endif
