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

void stats_add(struct stats *s, size_t place, uint64_t n);
void stats_set(struct stats *s, size_t place, uint64_t value);
void stats_max(struct stats *s, size_t place, uint64_t value); /* keeps the larger */
uint64_t stats_get(const struct stats *s, size_t place);       /* of the private copy */
void stats_observe(struct stats *s, size_t histogram, uint64_t ns);

/* Callers hand in times that they took themselves, maybe a little before ours: never below 0. */
static inline uint64_t stats_elapsed(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

#define STATS_ADD(s, field, n)      stats_add((s), offsetof(struct llm_board, field), (n))
#define STATS_SET(s, field, v)      stats_set((s), offsetof(struct llm_board, field), (v))
#define STATS_MAX(s, field, v)      stats_max((s), offsetof(struct llm_board, field), (v))
#define STATS_OBSERVE(s, field, ns) stats_observe((s), offsetof(struct llm_board, field), (ns))

#endif
