/* queue.c - see queue.h */
#include "queue.h"

#include <assert.h>

void queue_init(struct queue *q, uint64_t *floor, uint64_t slack, bool first_come)
{
    *q = (struct queue){.floor = floor, .slack = slack, .first_come = first_come};
    list_init(&q->arrivals);
    list_init(&q->hungry);
}

/* What was preempted is older than nearly all that waits, what is new younger: search from the end
 * that is near. */
static void insert_by_arrival(struct queue *q, struct sequence *s)
{
    struct list *at = &q->arrivals;
    if (s->t_admit) {
        at = q->arrivals.next;
        while (at != &q->arrivals && LIST_OF(at, struct sequence, queue)->order < s->order)
            at = at->next;
    } else
        while (at->prev != &q->arrivals &&
               LIST_OF(at->prev, struct sequence, queue)->order > s->order)
            at = at->prev;
    list_insert_before(at, &s->queue);
}

/* When its next token is due, as far as the order goes: at once for a stream that was interrupted,
 * and for what had to leave before it brought anything. */
static uint64_t due(const struct sequence *s)
{
    bool left = s->t_admit && s->state == SEQUENCE_WAITING;
    return s->t_first || left ? 0 : s->due_ns;
}

static bool earlier(const struct sequence *a, const struct sequence *b)
{
    return due(a) != due(b) ? due(a) < due(b) : a->order < b->order;
}

static void insert_by_urgency(struct list *waiting, struct sequence *s)
{
    struct list *at = waiting;
    if (s->t_admit) {
        at = waiting->next;
        while (at != waiting && earlier(LIST_OF(at, struct sequence, turn), s))
            at = at->next;
    } else
        while (at->prev != waiting && earlier(s, LIST_OF(at->prev, struct sequence, turn)))
            at = at->prev;
    list_insert_before(at, &s->turn);
}

void queue_add(struct queue *q, struct sequence *s)
{
    assert(s->state == SEQUENCE_WAITING && s->class < SEQUENCE_CLASSES);
    insert_by_arrival(q, s);
    insert_by_urgency(&s->owner->waiting[s->class], s);
    if (list_empty(&s->owner->hungry))
        list_insert_before(&q->hungry, &s->owner->hungry);
    q->changes++;
    q->n++;
    q->tokens += sequence_inputs(s) - s->n_computed;
}

static bool has_waiting(const struct sequence_owner *o)
{
    for (int i = 0; i < SEQUENCE_CLASSES; i++)
        if (!list_empty(&o->waiting[i]))
            return true;
    return false;
}

void queue_remove(struct queue *q, struct sequence *s)
{
    assert(s->state == SEQUENCE_WAITING && !list_empty(&s->turn));
    list_remove(&s->queue);
    list_remove(&s->turn);
    if (!has_waiting(s->owner))
        list_remove(&s->owner->hungry);
    q->changes++;
    q->n--;
    q->tokens -= sequence_inputs(s) - s->n_computed;
}

struct queue_least queue_least_served(const struct queue *q)
{
    struct queue_least least;
    for (int i = 0; i < SEQUENCE_CLASSES; i++)
        least.served[i] = UINT64_MAX;
    LIST_EACH (at, &q->hungry) {
        const struct sequence_owner *o = LIST_OF(at, struct sequence_owner, hungry);
        for (int i = 0; i < SEQUENCE_CLASSES; i++)
            if (!list_empty(&o->waiting[i]) && o->served < least.served[i])
                least.served[i] = o->served;
    }
    return least;
}

static bool had_more(const struct sequence_owner *o, uint64_t least_served, uint64_t slack)
{
    return o->served > least_served && o->served - least_served > slack;
}

bool queue_before(const struct queue *q, const struct sequence *a, const struct sequence *b,
                  const struct queue_least *least)
{
    if (q->first_come)
        return a->order < b->order;
    if (a->class != b->class)
        return a->class < b->class;
    if (a->owner != b->owner) {
        bool a_more = had_more(a->owner, least->served[a->class], q->slack);
        if (a_more != had_more(b->owner, least->served[a->class], q->slack))
            return !a_more;
    }
    if (due(a) != due(b))
        return due(a) < due(b);
    if (a->owner->served != b->owner->served)
        return a->owner->served < b->owner->served;
    if (a->owner->n_running != b->owner->n_running)
        return a->owner->n_running < b->owner->n_running;
    return a->order < b->order;
}

/* An owner's list of a class is in the queue's own order: behind the first that is not before s there
 * is none. */
static uint64_t list_rows_before(const struct queue *q, const struct list *waiting,
                                 const struct sequence *s, const struct queue_least *least)
{
    uint64_t rows = 0;
    LIST_EACH (at, waiting) {
        const struct sequence *w = LIST_OF(at, struct sequence, turn);
        if (!queue_before(q, w, s, least))
            break;
        if (s->session && w->session == s->session) /* s comes in its place */
            continue;
        rows += sequence_inputs(w) - w->n_computed;
    }
    return rows;
}

uint64_t queue_rows_before(const struct queue *q, const struct sequence *s,
                           const struct queue_least *least)
{
    uint64_t rows = 0;
    LIST_EACH (at, &q->hungry) {
        const struct sequence_owner *o = LIST_OF(at, struct sequence_owner, hungry);
        for (uint32_t class = 0; class <= s->class; class ++)
            rows += list_rows_before(q, &o->waiting[class], s, least);
    }
    return rows;
}

static bool ageing_turn(const struct queue *q)
{
    return q->picks % QUEUE_AGEING == QUEUE_AGEING - 1;
}

bool queue_aged(const struct queue *q, const struct sequence *s)
{
    return ageing_turn(q) && q->arrivals.next == &s->queue;
}

struct sequence *queue_next(const struct queue *q,
                            bool (*fits)(void *context, const struct sequence *s), void *context)
{
    if (ageing_turn(q) && !list_empty(&q->arrivals)) {
        struct sequence *oldest = LIST_OF(q->arrivals.next, struct sequence, queue);
        if (fits(context, oldest))
            return oldest;
    }
    return queue_first(q, fits, context);
}

struct sequence *queue_first(const struct queue *q,
                             bool (*fits)(void *context, const struct sequence *s), void *context)
{
    struct sequence *best = NULL;
    struct queue_least least = queue_least_served(q);
    LIST_EACH (at, &q->hungry) {
        const struct sequence_owner *o = LIST_OF(at, struct sequence_owner, hungry);
        for (int i = 0; i < SEQUENCE_CLASSES; i++) {
            if (best && i > best->class && !q->first_come)
                break;
            if (list_empty(&o->waiting[i]))
                continue;
            struct sequence *s = LIST_OF(o->waiting[i].next, struct sequence, turn);
            if ((!best || queue_before(q, s, best, &least)) && fits(context, s))
                best = s;
        }
    }
    return best;
}

void queue_picked(struct queue *q, const struct sequence *s)
{
    uint64_t least = queue_least_served(q).served[s->class];
    if (!ageing_turn(q) && least > *q->floor)
        *q->floor = least;
    q->picks++;
}
