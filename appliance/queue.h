/* queue.h - what waits to be admitted, and who is next.
 *
 * The order, first difference decides:
 *   1. priority class;
 *   2. owners that had more than their share (`slack` rows ahead of the least served one that
 *      waits) go behind the others: a tight deadline is no way to take more;
 *   3. the earliest first-token deadline; none is later than all; what was admitted before and had
 *      to leave comes before all;
 *   4. the owner that was served least, in rows computed; then the one with the fewest running;
 *   5. order of arrival.
 * Every QUEUE_AGEING-th pick takes whoever has waited longest, whatever the rest says: nobody
 * starves.
 *
 * `served` of an owner that was away begins where the owner that was picked last stood when it was
 * picked (start-time fair queueing: Goyal, Vin, Cheng 1996), so nobody saves up for a burst.
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
};

/* `floor` is where the owner of the last pick stood. first_come: order of arrival alone. */
void queue_init(struct queue *q, uint64_t *floor, uint64_t slack, bool first_come);
void queue_add(struct queue *q, struct sequence *s);
void queue_remove(struct queue *q, struct sequence *s);

/* The next one for which `fits` is true of those that are first in their lists; NULL where there is
 * none. Does not remove it; queue_picked says that it was admitted. */
struct sequence *queue_next(const struct queue *q,
                            bool (*fits)(void *context, const struct sequence *s), void *context);
void queue_picked(struct queue *q, const struct sequence *s);

/* True if a goes before b by the order above (2 by the owners' own counts). */
bool queue_before(const struct queue *q, const struct sequence *a, const struct sequence *b,
                  uint64_t least_served);
/* Of the hungry owners; UINT64_MAX where there is none. */
uint64_t queue_least_served(const struct queue *q);

#endif
