/* merge.h - the merge loop that BPE and SentencePiece share, in O(n log n).
 *
 * Symbols are a doubly linked list over the bytes of one stretch of text: symbol i begins at byte
 * i, `next` is where the following one begins. Each symbol remembers the best that joining it with
 * its right neighbour would give; a binary heap of (priority, position) yields the best pair, the
 * leftmost among equals. Entries are never searched and removed: one is stale when the symbol at
 * its position no longer has its priority. Every join makes two entries at most and consumes one,
 * so 2n entries are enough.
 */
#ifndef LLMD_CLIENT_TEXT_MERGE_H
#define LLMD_CLIENT_TEXT_MERGE_H

#include <stddef.h>
#include <stdint.h>

#define MERGE_NEVER UINT32_MAX /* priority of a pair that does not join */

struct merge_symbol {
    int32_t id;        /* token, or -1: a character that is none */
    uint32_t previous; /* MERGE_NEVER: the first */
    uint32_t next;     /* the stretch's length: the last */
    uint32_t priority; /* of joining with the next; smaller is sooner */
    int32_t joined;    /* the token that it would give */
};

/* Memory of one caller, reused from stretch to stretch. */
struct merge_space {
    struct merge_symbol *symbols; /* (capacity) */
    uint64_t *heap;               /* (2 capacity) priority << 32 | position */
    size_t capacity, entries;
};

/* Sets priority and joined of the symbol at `left` for its next symbol, which exists. */
struct merge_rules {
    void (*judge)(const void *context, struct merge_symbol *symbols, uint32_t left);
    const void *context;
};

/* Room for a stretch of `bytes`: 0, -ENOMEM, or -E2BIG where positions would not fit. */
int merge_reserve(struct merge_space *m, size_t bytes);
void merge_free(struct merge_space *m);

/* Joins until nothing joins. The list begins at 0 and ends at `end`; ids, previous and next are
 * set. What remains is the answer. */
void merge_run(struct merge_space *m, uint32_t end, struct merge_rules rules);

#endif
