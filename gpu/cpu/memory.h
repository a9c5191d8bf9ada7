/* memory.h - how much memory and how many CPUs there are.
 */
#ifndef LLMD_CPU_MEMORY_H
#define LLMD_CPU_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "../fail.h"

enum { MEMORY_ALIGN = 64, MEMORY_HUGE = 2 << 20 };

/* What to say where a mapping was refused although so much is free: -ENOMEM. */
int memory_refused(const char *what, uint64_t bytes, struct fail *f);

/* Bytes that this process may still take: what the machine has available, or what the memory
 * cgroups above us (v2 or v1, every ancestor) leave, whichever is less. Page cache that the kernel
 * would drop first counts as free. `root` is "" (tests: a folder that holds proc/ and sys/). */
uint64_t memory_available(const char *root);

/* CPUs that this process may run on: its affinity, or its cgroups' CPU quota rounded up, whichever
 * is less. At least 1. */
unsigned memory_cpus(const char *root);

#endif
