/* special.h - finds control and user-defined tokens that are spelled out in a text.
 *
 * The leftmost wins, and of those that begin there the longest. The spellings are kept sorted, so
 * that those with a common beginning are neighbours and a search narrows byte by byte.
 */
#ifndef LLMD_CLIENT_TEXT_SPECIAL_H
#define LLMD_CLIENT_TEXT_SPECIAL_H

#include "words.h"

struct special {
    const struct words *words;
    int32_t *ids; /* (n) by spelling; equal spellings: the lowest id alone */
    uint32_t n;
    uint32_t first[257]; /* ids[first[c] .. first[c + 1]) begin with byte c */
};

/* 0 or -ENOMEM; special_free in either case. `words` must outlive it. */
int special_build(struct special *s, const struct words *words);
void special_free(struct special *s);

/* The next special token at or after `from`; control tokens count only with `control`. Returns its
 * id and sets *at; -1 if there is none. */
int32_t special_find(const struct special *s, const char *text, size_t bytes, size_t from,
                     bool control, size_t *at);

#endif
