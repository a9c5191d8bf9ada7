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

static order_u64 *word(uint8_t *base, size_t place)
{
    return (order_u64 *)(void *)(base + place);
}

uint64_t stats_get(const struct stats *s, size_t place)
{
    return order_read64(word(s->own, place));
}

void stats_set(struct stats *s, size_t place, uint64_t value)
{
    order_set64(word(s->own, place), value);
    if (s->board)
        order_set64(word(s->board, place), value);
}

void stats_add(struct stats *s, size_t place, uint64_t n)
{
    stats_set(s, place, stats_get(s, place) + n);
}

void stats_max(struct stats *s, size_t place, uint64_t value)
{
    if (value > stats_get(s, place))
        stats_set(s, place, value);
}

void stats_observe(struct stats *s, size_t histogram, uint64_t ns)
{
    size_t bucket =
        offsetof(struct llm_histogram, bucket) + llm_histogram_bucket(ns) * sizeof(order_u64);
    stats_add(s, histogram + bucket, 1);
    stats_add(s, histogram + offsetof(struct llm_histogram, sum_ns), ns);
    stats_max(s, histogram + offsetof(struct llm_histogram, max_ns), ns);
    stats_add(s, histogram + offsetof(struct llm_histogram, count), 1);
}
