/* stop_match.h - stop strings in a text that comes byte by byte: an automaton for each of them,
 * together as many bytes of state as there are strings. No allocation: a set is filled in place.
 *
 * The string that is complete first ends the text; of several complete at the same byte the longest,
 * for it began first. What was fed is never looked at again.
 *
 * Source: Knuth, Morris, Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6 (1977).
 */
#ifndef LLMD_STOP_MATCH_H
#define LLMD_STOP_MATCH_H

#include <stdint.h>

#include "../shm/llm_abi.h"

struct stop_string {
    uint16_t bytes;
    uint8_t text[LLM_STOP_BYTES_MAX];
    uint8_t border[LLM_STOP_BYTES_MAX]; /* [i]: the longest proper prefix of the string that ends
                                           the first i + 1 bytes of it */
};

struct stop_set {
    uint32_t n;
    struct stop_string strings[LLM_STOPS_MAX];
};

/* How many bytes of each string end the text so far, fewer than it has. Zero: no text. */
struct stop_state {
    uint8_t at[LLM_STOPS_MAX];
};

/* Appends a string of 1 .. LLM_STOP_BYTES_MAX bytes; the set has fewer than LLM_STOPS_MAX. */
void stop_add(struct stop_set *set, const uint8_t *text, uint32_t bytes);

/* Feeds bytes until a string is complete. 0: none is; else which one, from 1, and *behind: how many
 * of all bytes, those of this call up to `bytes` included, lie from its beginning on. */
uint32_t stop_feed(const struct stop_set *set, struct stop_state *state, const char *text,
                   uint32_t bytes, uint32_t *behind);

/* How many bytes at the end of the text may be the beginning of a stop string. */
uint32_t stop_pending(const struct stop_set *set, const struct stop_state *state);

#endif
