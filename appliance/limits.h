/* limits.h - what the system grants this process: descriptors, locked memory, CPUs, real-time
 * priority, huge pages. Each refusal is one sentence that names the limit and how to raise it.
 */
#ifndef LLMD_LIMITS_H
#define LLMD_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "../gpu/fail.h"
#include "cpus.h"

/* Room for that many clients' descriptors: raises the soft limit as far as it may. -EMFILE. */
int limits_descriptors(uint32_t max_clients, struct fail *f);

/* Whether so many bytes, and what the process has besides, may be locked: raises the soft limit as
 * far as it may. Asked before a long load; limits_lock has the last word. -ENOMEM. */
int limits_may_lock(uint64_t bytes, struct fail *f);
/* Locks all memory that is mapped now: what has pages at once, the rest as it gets them. */
int limits_lock(struct fail *f);

/* Whether compute threads may run on the first n CPUs of the list; the one with the number io_cpu is
 * --io-cpu's, the others --cpu-list's. -EINVAL. */
int limits_may_run_on(const struct cpus *list, uint32_t n, uint32_t io_cpu, struct fail *f);

/* Whether SCHED_FIFO with that priority is allowed. -EPERM. */
int limits_may_run_real_time(uint32_t priority, struct fail *f);
/* Gives it to every thread of the process but those that run only on idle CPUs (SCHED_IDLE). */
int limits_run_real_time(uint32_t priority, struct fail *f);

/* False, with the sentence in notice: memory comes in small pages only. `root` is "" (tests: a
 * folder that holds sys/). */
bool limits_huge_pages(const char *root, struct fail *notice);

#endif
