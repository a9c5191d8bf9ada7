/* stats.c - see stats.h */
#include "stats.h"

#include <errno.h>
#include <stdlib.h>

int stats_create(struct stats *s, struct llm_board *board)
{
    s->board = (uint8_t *)board;
    s->own = calloc(1, sizeof(struct llm_board));
    return s->own ? 0 : -ENOMEM;
}

void stats_destroy(struct stats *s)
{
    free(s->own);
    *s = (struct stats){0};
}

static size_t bucket_of(uint64_t ns)
{
    return offsetof(struct llm_histogram, bucket) + llm_histogram_bucket(ns) * sizeof(order_u64);
}

void stats_fetch(const struct stats *s, size_t place)
{
    __builtin_prefetch(s->own + place, 1);
    if (s->board)
        __builtin_prefetch(s->board + place, 1);
}

void stats_fetch_histogram(const struct stats *s, size_t histogram, uint64_t ns)
{
    stats_fetch(s, histogram);
    stats_fetch(s, histogram + bucket_of(ns));
}

void stats_observe_n(struct stats *s, size_t histogram, uint64_t ns, uint64_t n)
{
    size_t bucket = bucket_of(ns);
    stats_add(s, histogram + bucket, n);
    stats_add(s, histogram + offsetof(struct llm_histogram, sum_ns), ns * n);
    stats_max(s, histogram + offsetof(struct llm_histogram, max_ns), ns);
    stats_add(s, histogram + offsetof(struct llm_histogram, count), n);
}
