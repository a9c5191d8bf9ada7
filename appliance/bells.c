/* bells.c - see bells.h. */
#include "bells.h"

#include "clock.h"
#include "waiter.h"

enum { SHARE = 16 };

static void ring(struct bells *b, struct client *c)
{
    uint64_t start_ns = clock_cpu_ns();
    waiter_bell(c->bell);
    uint64_t took_ns = clock_cpu_ns() - start_ns;
    if (took_ns <= BELLS_CROWD_NS)
        return;
    c->bell_slow = true;
    b->next_ns = clock_ns() + took_ns * (SHARE - 1);
}

void bells_ring(struct bells *b, struct client *c)
{
    if (c->bell_slow)
        c->bell_owed = b->owed = true;
    else
        ring(b, c);
}

void bells_tick(struct bells *b, const struct clients *cs, uint64_t now_ns)
{
    if (!b->owed || now_ns < b->next_ns)
        return;
    b->owed = false;
    for (uint32_t i = 0, first = b->first; i < cs->high; i++) {
        uint32_t slot = (first + i) % cs->high;
        struct client *c = &cs->slots[slot];
        if (!c->bell_owed || c->state != CLIENT_LIVE)
            continue;
        b->owed = now_ns < b->next_ns;
        if (b->owed)
            return;
        c->bell_owed = false;
        b->first = slot + 1;
        if (ring_wants_wake(&c->ring) == LLM_WAIT_BELL)
            ring(b, c);
    }
}

uint64_t bells_until(const struct bells *b, uint64_t timeout_ns)
{
    uint64_t now_ns = clock_ns(), left_ns = b->next_ns > now_ns ? b->next_ns - now_ns : 0;
    return b->owed && left_ns < timeout_ns ? left_ns : timeout_ns;
}
