/* merge.c - heap and linked list of merge.h. */
#include "merge.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { FEW = 24 }; /* up to so many symbols a scan is faster than the heap */

int merge_reserve(struct merge_space *m, size_t bytes)
{
    if (bytes <= m->capacity)
        return 0;
    if (bytes >= MERGE_NEVER)
        return -E2BIG;
    size_t capacity = bytes < 256 ? 256 : bytes + bytes / 4;
    merge_free(m);
    m->symbols = malloc(capacity * sizeof *m->symbols);
    m->heap = malloc(2 * capacity * sizeof *m->heap);
    if (!m->symbols || !m->heap) {
        merge_free(m);
        return -ENOMEM;
    }
    m->capacity = capacity;
    return 0;
}

void merge_free(struct merge_space *m)
{
    free(m->symbols);
    free(m->heap);
    *m = (struct merge_space){0};
}

static void push(struct merge_space *m, uint32_t priority, uint32_t position)
{
    uint64_t entry = (uint64_t)priority << 32 | position;
    size_t i = m->entries++;
    assert(m->entries <= 2 * m->capacity);
    for (; i > 0 && m->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = entry;
}

static uint64_t pop(struct merge_space *m)
{
    uint64_t top = m->heap[0], last = m->heap[--m->entries];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < m->entries; i = child) {
        if (child + 1 < m->entries && m->heap[child + 1] < m->heap[child])
            child++;
        if (m->heap[child] >= last)
            break;
        m->heap[i] = m->heap[child];
    }
    m->heap[i] = last;
    return top;
}

static void judge(struct merge_symbol *symbols, uint32_t at, uint32_t end, struct merge_rules rules)
{
    if (symbols[at].next == end)
        symbols[at].priority = MERGE_NEVER;
    else
        rules.judge(rules.context, symbols, at);
}

/* Joins the symbol at `at` with its next and judges both pairs anew that this makes. */
static void join(struct merge_symbol *symbols, uint32_t at, uint32_t end, struct merge_rules rules)
{
    struct merge_symbol *left = &symbols[at], *right = &symbols[left->next];
    right->priority = MERGE_NEVER; /* entries of its are stale from now on */
    left->id = left->joined;
    left->next = right->next;
    if (left->next != end)
        symbols[left->next].previous = at;
    judge(symbols, at, end, rules);
    if (left->previous != MERGE_NEVER)
        judge(symbols, left->previous, end, rules);
}

static void merge_few(struct merge_symbol *symbols, uint32_t end, struct merge_rules rules)
{
    for (;;) {
        uint32_t best = 0;
        for (uint32_t i = symbols[0].next; i != end; i = symbols[i].next)
            if (symbols[i].priority < symbols[best].priority)
                best = i;
        if (symbols[best].priority == MERGE_NEVER)
            return;
        join(symbols, best, end, rules);
    }
}

static void push_pair(struct merge_space *m, uint32_t at)
{
    if (at != MERGE_NEVER && m->symbols[at].priority != MERGE_NEVER)
        push(m, m->symbols[at].priority, at);
}

static void merge_many(struct merge_space *m, uint32_t end, struct merge_rules rules)
{
    m->entries = 0;
    for (uint32_t i = 0; i != end; i = m->symbols[i].next)
        push_pair(m, i);
    while (m->entries) {
        uint64_t entry = pop(m);
        uint32_t at = (uint32_t)entry;
        if (m->symbols[at].priority != entry >> 32)
            continue;
        join(m->symbols, at, end, rules);
        push_pair(m, at);
        push_pair(m, m->symbols[at].previous);
    }
}

void merge_run(struct merge_space *m, uint32_t end, struct merge_rules rules)
{
    if (end == 0)
        return;
    uint32_t n = 0;
    for (uint32_t i = 0; i != end; i = m->symbols[i].next, n++)
        judge(m->symbols, i, end, rules);
    if (n <= FEW)
        merge_few(m->symbols, end, rules);
    else
        merge_many(m, end, rules);
}
