/* inflight.c - the table of what is in flight, by id.
 *
 * Linear probing over a power of two of slots, at most half of them taken; removal moves later
 * entries of the run back, so no tombstones pile up.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "handle.h"

int inflight_create(struct inflight_table *t, uint32_t max_inflight)
{
    assert(max_inflight && max_inflight <= 2 * LLM_CQ_ENTRIES_MAX); /* llm_resume: twice */
    uint32_t slots = 4;
    while (slots < 2 * max_inflight)
        slots *= 2;
    t->slots = calloc(slots, sizeof *t->slots);
    t->mask = slots - 1;
    return t->slots ? 0 : -ENOMEM;
}

void inflight_destroy(struct inflight_table *t)
{
    free(t->slots);
    t->slots = NULL;
}

/* Ids are counters or pointers for most: the multiplication spreads both. */
static uint32_t home(const struct inflight_table *t, uint64_t id)
{
    return (uint32_t)(id * 0x9E3779B97F4A7C15ull >> 32) & t->mask;
}

bool inflight_is_alias(const struct inflight *f)
{
    return f->record && f->id != f->record->entry.user_data;
}

struct inflight *inflight_find(struct inflight_table *t, uint64_t id)
{
    for (uint32_t i = home(t, id); t->slots[i].id; i = (i + 1) & t->mask)
        if (t->slots[i].id == id)
            return &t->slots[i];
    return NULL;
}

struct inflight *inflight_add(struct inflight_table *t, uint64_t id, uint32_t finals)
{
    assert(id && finals && finals <= LLM_CHOICES_MAX);
    uint32_t i = home(t, id);
    while (t->slots[i].id) {
        assert(t->slots[i].id != id);
        i = (i + 1) & t->mask;
    }
    t->slots[i] = (struct inflight){.id = id, .owed = UINT64_MAX >> (64 - finals)};
    return &t->slots[i];
}

void inflight_remove(struct inflight_table *t, struct inflight *slot)
{
    uint32_t hole = (uint32_t)(slot - t->slots);
    for (uint32_t i = (hole + 1) & t->mask; t->slots[i].id; i = (i + 1) & t->mask) {
        /* an entry may move back to the hole unless its home lies behind it */
        if (((i - home(t, t->slots[i].id)) & t->mask) < ((i - hole) & t->mask))
            continue;
        t->slots[hole] = t->slots[i];
        hole = i;
    }
    t->slots[hole] = (struct inflight){0};
}
