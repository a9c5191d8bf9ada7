/* ngram.h - prompt lookup: where the last tokens of a history stood before, and what followed them.
 *
 *     history  | A B C D E F ...  X A B C | D?        at: index of D, length: 3 (A B C)
 *                      ^at                ^n
 *
 *     ngram_begin(&g, length, min, max);
 *     ngram_follow(&g, tokens, n, UINT32_MAX);   // after each token, or several
 *     if (g.at) ngram_draft(&g, tokens, k);      // tokens[n .. n + k - 1] are what is expected
 *
 * A place is looked up by the last `min` tokens; of several the one is taken whose agreement reaches
 * further back, counted up to `max` tokens, and of equal ones the latest. As long as what comes is
 * what was expected the place is kept, and moves on. Where it is another token and nothing is found
 * behind that, the place is tried once more one token further: lists and tables repeat with one word
 * changed.
 *
 * Each expectation is judged by the token that came, drafted or not: `odds` says how often one of
 * that length held lately in this history. So nothing need be tried to learn whether it would pay.
 *
 * Invariants
 *   1. What followed a gram before `known` stands in the index, once; links only lead back.
 *   2. at < known; every token below `known` is one that the history has.
 *   3. No call allocates; ngram_follow is O(1) a token, and looks at NGRAM_WALK places at most.
 *
 * Source: Saxena, "Prompt Lookup Decoding" (2023); the index is that of LZ77 coders: heads of chains
 * of equal hash (RFC 1951, 4).
 */
#ifndef LLMD_NGRAM_H
#define LLMD_NGRAM_H

#include <stdint.h>

enum {
    NGRAM_WALK = 16, /* places of a chain that are looked at */
    NGRAM_MAX = 64,  /* the longest agreement that is counted */
    NGRAM_ODDS = 5   /* lengths 0 .. 1, 2 .. 3, 4 .. 7, 8 .. 15, 16 .. */
};

struct ngram {
    uint32_t *heads; /* by hash: index of what followed such a gram last, 0: none */
    uint32_t *older; /* by that index: the one before it, of the same hash */
    uint32_t max_len;
    uint32_t shift;    /* a hash's upper 32 - shift bits are the bucket */
    uint32_t min, max; /* 1 .. NGRAM_MAX */
    uint32_t known;    /* tokens of the history that were seen */
    uint32_t at;       /* index of the token that is expected next; 0: none is */
    uint32_t beside;   /* behind the place that failed just now; 0: none did */
    uint32_t length;   /* tokens in front of `at` that agree; 0 where it was tried once more */
    uint16_t odds[NGRAM_ODDS]; /* of 65536 */
};

/* Bytes of the memory behind one index of histories up to max_len tokens. */
uint64_t ngram_bytes(uint32_t max_len);
/* `memory` is aligned for a u32. Its content does not matter. */
void ngram_bind(struct ngram *g, void *memory, uint32_t max_len);

/* An empty index of a history that will have at most `length` tokens: that much is cleared. */
void ngram_begin(struct ngram *g, uint32_t length, uint32_t min, uint32_t max);

/* The history has n tokens, those seen before unchanged: looks at up to `most` new ones, returns at
 * how many. Nothing is expected before all were seen. */
uint32_t ngram_follow(struct ngram *g, const int32_t *tokens, uint32_t n, uint32_t most);

/* How likely the token behind `after` further expected ones is, if those held: 0 .. 1. */
double ngram_chance(const struct ngram *g, uint32_t after);

/* Writes the k tokens that are expected behind the history. Where the place is so near that it runs
 * into them, they repeat. g->at is not 0. */
void ngram_draft(const struct ngram *g, int32_t *tokens, uint32_t k);

#endif
