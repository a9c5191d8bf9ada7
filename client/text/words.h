/* words.h - the vocabulary, ready to be looked up: bytes of every token, token of every text.
 *
 * Built once from an image of shm/vocab.h, never changed after. Invariants:
 *   1. Token bytes are what stands in a text: shm/vocab_text.h.
 *   2. words_find never returns a control or unknown token: those are made by their id or by
 *      special.h alone, so that no text merges into one.
 */
#ifndef LLMD_CLIENT_TEXT_WORDS_H
#define LLMD_CLIENT_TEXT_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../shm/vocab_text.h"

struct words {
    uint32_t n;
    char *bytes;             /* token i is bytes[end[i - 1] .. end[i]), end[-1] = 0 */
    uint32_t *end;           /* (n) */
    uint8_t *class;          /* (n) enum vocab_class */
    int32_t byte_token[256]; /* -1: the vocabulary has none */
    uint32_t longest;        /* bytes of the longest token that words_find can return */

    uint32_t *slots; /* (mask + 1) id + 1 by hash of the bytes, linear probing; 0: empty */
    uint32_t mask;
};

/* From an image that llm_vocab_check has accepted. 0 or -ENOMEM; words_free in either case. */
int words_build(struct words *w, const struct llm_vocab *image);
void words_free(struct words *w);

static inline uint32_t words_begin(const struct words *w, int32_t id)
{
    return id ? w->end[id - 1] : 0;
}

static inline const char *words_bytes(const struct words *w, int32_t id, size_t *bytes)
{
    uint32_t begin = words_begin(w, id);
    *bytes = w->end[id] - begin;
    return w->bytes + begin;
}

/* The token with exactly these bytes, or -1. */
int32_t words_find(const struct words *w, const char *at, size_t bytes);

#endif
