/* histogram.h - times of millions of events: 64 buckets an octave, so a percentile is right within
 * 1.6 %. What never came is UINT64_MAX. */
#ifndef LLMD_TESTS_HISTOGRAM_H
#define LLMD_TESTS_HISTOGRAM_H

#include <stdint.h>

enum {
    HISTOGRAM_SUB_LOG2 = 6,
    HISTOGRAM_MIN_LOG2 = 10, /* ns */
    HISTOGRAM_BUCKETS = (64 - HISTOGRAM_MIN_LOG2) * (1 << HISTOGRAM_SUB_LOG2) + 1
};

struct histogram {
    uint64_t count, max; /* max: of what came */
    uint32_t bucket[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *h, uint64_t ns);
/* The upper edge of the bucket that holds that share (0 .. 1) of the events, at most max; UINT64_MAX
 * where it never came. 0 where there are no events. */
uint64_t histogram_percentile(const struct histogram *h, double share);

#endif
