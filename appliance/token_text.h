/* token_text.h - the bytes of every token, for stop strings: made once from the vocabulary image,
 * never changed after. Equal to what llm_token_bytes says (shm/vocab_text.h is both), but that
 * control tokens have no text. */
#ifndef LLMD_TOKEN_TEXT_H
#define LLMD_TOKEN_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct token_text {
    uint32_t n;
    char *bytes;   /* token i is bytes[end[i - 1] .. end[i]), end[-1] = 0 */
    uint32_t *end; /* (n) */
};

/* 0; LLM_EPROTO for an image that llm_vocab_check does not accept; -ENOMEM. Nothing is left behind
 * a failure. */
int token_text_create(struct token_text *t, const void *image, size_t bytes);
void token_text_destroy(struct token_text *t); /* also of one that is zero */

static inline const char *token_text_of(const struct token_text *t, int32_t token, uint32_t *bytes)
{
    uint32_t begin = token ? t->end[token - 1] : 0;
    *bytes = t->end[token] - begin;
    return t->bytes + begin;
}

#endif
