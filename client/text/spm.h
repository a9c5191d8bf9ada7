/* spm.h - SentencePiece's BPE: characters join to the tokens with the best score.
 *
 * Text arrives with spaces where SentencePiece has U+2581 (words.h does the same to the tokens), so
 * a U+2581 in the text is a space, as in SentencePiece. Stretches that no token can cross are
 * merged one by one: before a space, unless the byte before it stands before a space in some
 * token. Joins on both sides do not touch each other, so this changes no result; it keeps memory
 * and heap small.
 */
#ifndef LLMD_CLIENT_TEXT_SPM_H
#define LLMD_CLIENT_TEXT_SPM_H

#include "merge.h"
#include "words.h"

struct spm {
    const struct words *words;
    uint32_t *priorities; /* (n tokens) smaller is the better score */
    int32_t unknown;      /* -1: none */
    bool glues[256];      /* bytes that stand before a space inside a token */
};

/* 0 or -ENOMEM; spm_free in either case. `words` must outlive it. */
int spm_build(struct spm *s, const struct words *words, const struct llm_vocab *image);
void spm_free(struct spm *s);

/* Tokens of well-formed UTF-8; calls emit for each in order. A character that is no token becomes
 * the tokens of its bytes, or the unknown token where the vocabulary has no byte tokens. */
int spm_text(const struct spm *s, struct merge_space *m, const char *text, size_t bytes,
             void (*emit)(void *to, int32_t id), void *to);

#endif
