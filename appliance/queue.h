/* queue.h - what waits to be admitted, and who is next.
 *
 * The order, first difference decides:
 *   1. priority class;
 *   2. owners that had more than their share (`slack` rows ahead of the least served one that
 *      waits in the class) go behind the others: a tight deadline is no way to take more;
 *   3. the earliest first-token deadline; none is later than all; a stream that was interrupted, and
 *      what was admitted before and had to leave, come before all;
 *   4. the owner that was served least, in rows computed; then the one with the fewest running;
 *   5. order of arrival.
 * Every QUEUE_AGEING-th pick takes whoever has waited longest, whatever the rest says: nobody
 * starves.
 *
 * `served` of an owner that was away begins where the least served one stood that waited in the class
 * of the last pick (start-time fair queueing: Goyal, Vin, Cheng 1996), so nobody saves up for a burst.
 * What ageing picks says nothing of that: the one that had most may be the oldest.
 *
 * Invariants
 *   1. `arrivals` is in order of arrival; an owner's list of a class by (due, order).
 *   2. An owner is hungry exactly while one of its lists is not empty.
 */
#ifndef LLMD_QUEUE_H
#define LLMD_QUEUE_H

#include "sequence.h"

enum { QUEUE_AGEING = 8 };

struct queue {
    struct list arrivals; /* sequences */
    struct list hungry;   /* owners */
    uint64_t *floor;      /* the table's `served`: where new owners begin */
    uint64_t slack;       /* rows that an owner may be ahead */
    bool first_come;
    uint32_t n;      /* sequences */
    uint64_t tokens; /* inputs not computed of what waits */
    uint32_t picks;
    uint32_t changes; /* so often something came or went */
};

/* Of the owners that wait in a class; UINT64_MAX where there is none. */
struct queue_least {
    uint64_t served[SEQUENCE_CLASSES];
};

/* `floor` is where new owners begin. first_come: order of arrival alone. */
void queue_init(struct queue *q, uint64_t *floor, uint64_t slack, bool first_come);
void queue_add(struct queue *q, struct sequence *s);
void queue_remove(struct queue *q, struct sequence *s);

/* True if it is the turn of s because it has waited longest. */
bool queue_aged(const struct queue *q, const struct sequence *s);

/* The next one for which `fits` is true of those that are first in their lists; NULL where there is
 * none. Does not remove it; queue_picked says that it will be admitted now. */
struct sequence *queue_next(const struct queue *q,
                            bool (*fits)(void *context, const struct sequence *s), void *context);
void queue_picked(struct queue *q, const struct sequence *s);
/* The same by the order alone, whoever has waited how long. */
struct sequence *queue_first(const struct queue *q,
                             bool (*fits)(void *context, const struct sequence *s), void *context);

/* True if a goes before b by the order above (2 by the owners' own counts). */
bool queue_before(const struct queue *q, const struct sequence *a, const struct sequence *b,
                  const struct queue_least *least);
struct queue_least queue_least_served(const struct queue *q);
/* Inputs, not computed, of what waits and goes before s. */
uint64_t queue_rows_before(const struct queue *q, const struct sequence *s,
                           const struct queue_least *least);

#endif
