/* bpe.h - byte-level BPE of one word: bytes become tokens, pairs join in the order of the merges.
 *
 * Invariant: a rule's two sides and its result are tokens; a merge of the checkpoint whose parts
 * are not (a vocabulary that was cut) can never apply and is left out.
 */
#ifndef LLMD_CLIENT_TEXT_BPE_H
#define LLMD_CLIENT_TEXT_BPE_H

#include "merge.h"
#include "words.h"

struct bpe_rule {
    int32_t left, right, joined; /* joined -1: an empty slot */
    uint32_t rank;
};

struct bpe {
    const struct words *words;
    struct bpe_rule *rules; /* (mask + 1) by hash of (left, right), linear probing */
    uint32_t mask;
    bool whole_words; /* a word that is a token is that token, whatever the merges say */
};

/* 0 or -ENOMEM; bpe_free in either case. `words` must outlive it. */
int bpe_build(struct bpe *b, const struct words *words, const struct llm_vocab *image,
              bool whole_words);
void bpe_free(struct bpe *b);

/* Tokens of one word; calls emit for each in order. A byte that has no token is dropped, as the
 * models' own tokenizers do. 0, -ENOMEM or -E2BIG. */
int bpe_word(const struct bpe *b, struct merge_space *m, const char *word, size_t bytes,
             void (*emit)(void *to, int32_t id), void *to);

#endif
