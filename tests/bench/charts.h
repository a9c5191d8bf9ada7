/* charts.h - the two plots of bench_speed. */
#ifndef LLMD_BENCH_CHARTS_H
#define LLMD_BENCH_CHARTS_H

#include "../../gpu/fail.h"
#include "speed.h"

/* throughput.svg: tokens/s against streams, beside the limit; gaps.svg: the gap between two tokens
 * of a stream against the number of streams. */
int charts_write(const struct speed *s, const char *folder, struct fail *f);

#endif
