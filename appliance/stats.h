/* stats.h - the scheduling core's figures on the board.
 *
 * The board is written and never read back: anybody of the same uid may write to it. So the truth
 * is a private copy, and every change is stored to the board, if there is one (tests have none).
 * Places are offsets into struct llm_board: STATS_ADD(&stats, steps, 1).
 */
#ifndef LLMD_STATS_H
#define LLMD_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "../shm/board.h"

struct stats {
    uint8_t *board; /* struct llm_board, or NULL. Mapped pages: aligned to 4096, no more */
    uint8_t *own;   /* (sizeof(struct llm_board)) the private copy */
};

int stats_create(struct stats *s, struct llm_board *board); /* 0 or -ENOMEM */
void stats_destroy(struct stats *s);

/* What an observation of about that length will touch comes into the caches; so does a word. */
void stats_fetch(const struct stats *s, size_t place);
void stats_fetch_histogram(const struct stats *s, size_t histogram, uint64_t ns);
void stats_observe_n(struct stats *s, size_t histogram, uint64_t ns, uint64_t n); /* n times */

static inline order_u64 *stats_word(uint8_t *base, size_t place)
{
    return (order_u64 *)(void *)(base + place);
}

/* Of the private copy. */
static inline uint64_t stats_get(const struct stats *s, size_t place)
{
    return order_read64(stats_word(s->own, place));
}

static inline void stats_set(struct stats *s, size_t place, uint64_t value)
{
    order_set64(stats_word(s->own, place), value);
    if (s->board)
        order_set64(stats_word(s->board, place), value);
}

static inline void stats_add(struct stats *s, size_t place, uint64_t n)
{
    stats_set(s, place, stats_get(s, place) + n);
}

/* Keeps the larger. */
static inline void stats_max(struct stats *s, size_t place, uint64_t value)
{
    if (value > stats_get(s, place))
        stats_set(s, place, value);
}

/* Callers hand in times that they took themselves, maybe a little before ours: never below 0. */
static inline uint64_t stats_elapsed(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

#define STATS_ADD(s, field, n) stats_add((s), offsetof(struct llm_board, field), (n))
#define STATS_SET(s, field, v) stats_set((s), offsetof(struct llm_board, field), (v))
#define STATS_MAX(s, field, v) stats_max((s), offsetof(struct llm_board, field), (v))
#define STATS_OBSERVE_N(s, field, ns, n)                                                           \
    stats_observe_n((s), offsetof(struct llm_board, field), (ns), (n))
#define STATS_OBSERVE(s, field, ns) STATS_OBSERVE_N(s, field, ns, 1)

#endif
