/* engine_time.c - see engine_parts.h: what ends because its time is over.
 *
 * A lower bound of the next moment is kept: where it has not come, nothing is looked at. All that
 * could be due is looked at together, at most once in LOOK_NS. */
#include "engine_parts.h"

#define LOOK_NS 2000000ull

static bool waits_for_first(const struct sequence *s)
{
    return s->op == LLM_OP_GENERATE && s->n_tokens == s->n_prompt;
}

static bool waits_in_queue(const struct sequence *s)
{
    return s->state == SEQUENCE_WAITING && !s->t_admit;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What has ended and waits for ring room is not late any more. */
static uint64_t next_moment(const struct sequence *s)
{
    uint64_t at = s->expires_ns;
    if (s->state == SEQUENCE_ENDING)
        return UINT64_MAX;
    if (waits_for_first(s))
        at = least(at, s->due_ns);
    if (waits_in_queue(s))
        at = least(at, s->queue_expires_ns);
    return at;
}

void engine_watch_time(struct engine *e, const struct sequence *s)
{
    e->next_timer_ns = least(e->next_timer_ns, next_moment(s));
}

void engine_miss_deadline(struct engine *e, struct sequence *s, uint64_t more_ns, uint64_t now_ns)
{
    uint64_t us = (stats_elapsed(s->t_arrival, now_ns) + more_ns) / 1000 + 1;
    s->would_fit = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
    STATS_ADD(&e->stats, deadline_misses, 1);
    engine_end(e, s, LLM_EDEADLINE, LLM_FINISH_DEADLINE, now_ns);
}

/* The total timeout ends with what there is; the others are errors of their own. */
static void end_late(struct engine *e, struct sequence *s, uint64_t now_ns)
{
    if (waits_for_first(s) && now_ns >= s->due_ns)
        engine_miss_deadline(e, s, schedule_estimate(&e->schedule, s), now_ns);
    else if (waits_in_queue(s) && now_ns >= s->queue_expires_ns) {
        STATS_ADD(&e->stats, queue_timeouts, 1);
        engine_end(e, s, LLM_EQUEUETIME, LLM_FINISH_TIMEOUT, now_ns);
    } else {
        STATS_ADD(&e->stats, timeouts, 1);
        engine_end(e, s, 0, LLM_FINISH_TIMEOUT, now_ns);
    }
}

static void look(struct engine *e, uint64_t now_ns)
{
    e->timers_looked_ns = now_ns;
    e->next_timer_ns = UINT64_MAX;
    for (uint32_t i = 0; i < e->table.max_requests; i++) {
        struct sequence *s = &e->table.slots[i];
        if (s->state == SEQUENCE_FREE || !s->owner)
            continue;
        uint64_t at = next_moment(s);
        if (at <= now_ns)
            end_late(e, s, now_ns);
        else
            e->next_timer_ns = least(e->next_timer_ns, at);
    }
    engine_publish_gauges(e);
}

void engine_check_time(struct engine *e, uint64_t now_ns)
{
    if (now_ns >= e->next_timer_ns && now_ns - e->timers_looked_ns >= LOOK_NS)
        look(e, now_ns);
}

static void expire_sessions(struct engine *e, uint64_t now_ns)
{
    uint64_t idle_ns = (uint64_t)e->config.session_idle_ms * 1000000;
    struct list *next, *head = &e->sessions.by_use;
    for (struct list *at = head->next; at != head; at = next) {
        struct session *session = LIST_OF(at, struct session, use);
        next = at->next;
        if (stats_elapsed(session->used_ns, now_ns) < idle_ns)
            return;
        if (session->pinned)
            continue;
        if (session->sequence->state != SEQUENCE_IDLE) { /* in use: its rest begins later */
            session_touch(&e->sessions, session, now_ns);
            continue;
        }
        STATS_ADD(&e->stats, sessions_expired, 1);
        engine_close_session(e, session, now_ns);
    }
}

static uint32_t count_idle(const struct engine *e)
{
    uint32_t n = 0;
    LIST_EACH (at, &e->sessions.by_use)
        n += LIST_OF(at, struct session, use)->sequence->state == SEQUENCE_IDLE;
    return n;
}

void engine_tick(struct engine *e, uint64_t now_ns)
{
    engine_check_time(e, now_ns);
    if (e->config.session_idle_ms)
        expire_sessions(e, now_ns);
    STATS_SET(&e->stats, sessions_idle, count_idle(e));
    engine_publish_gauges(e);
}
