/* resident.h - the memory that a process holds, as the kernel counts it. */
#ifndef LLMD_BENCH_RESIDENT_H
#define LLMD_BENCH_RESIDENT_H

#include <stdint.h>
#include <sys/types.h>

#include "../../gpu/fail.h"

/* Bytes, of /proc/PID/smaps_rollup: rss counts pages shared with others whole, pss its part. */
int resident_bytes(pid_t pid, uint64_t *rss, uint64_t *pss, struct fail *f);

#endif
