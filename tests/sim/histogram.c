/* histogram.c - see histogram.h */
#include "histogram.h"

static uint32_t bucket_of(uint64_t ns)
{
    if (ns < 1ull << HISTOGRAM_MIN_LOG2)
        return 0;
    uint32_t log2 = 63 - (uint32_t)__builtin_clzll(ns);
    uint32_t sub = (uint32_t)(ns >> (log2 - HISTOGRAM_SUB_LOG2)) & ((1 << HISTOGRAM_SUB_LOG2) - 1);
    return 1 + ((log2 - HISTOGRAM_MIN_LOG2) << HISTOGRAM_SUB_LOG2) + sub;
}

static uint64_t upper_edge(uint32_t bucket)
{
    if (!bucket)
        return 1ull << HISTOGRAM_MIN_LOG2;
    uint32_t octave = ((bucket - 1) >> HISTOGRAM_SUB_LOG2) + HISTOGRAM_MIN_LOG2;
    uint64_t sub = ((bucket - 1) & ((1 << HISTOGRAM_SUB_LOG2) - 1)) + 1;
    return ((1ull << HISTOGRAM_SUB_LOG2) + sub) << (octave - HISTOGRAM_SUB_LOG2);
}

void histogram_add(struct histogram *h, uint64_t ns)
{
    h->count++;
    h->bucket[bucket_of(ns)]++;
    if (ns != UINT64_MAX && ns > h->max)
        h->max = ns;
}

uint64_t histogram_percentile(const struct histogram *h, double share)
{
    uint64_t wanted = (uint64_t)(share * (double)h->count), seen = 0;
    if (!h->count)
        return 0;
    if (wanted >= h->count)
        wanted = h->count - 1;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS - 1; i++) {
        seen += h->bucket[i];
        if (seen > wanted)
            return upper_edge(i) < h->max ? upper_edge(i) : h->max;
    }
    return UINT64_MAX;
}
