/* vocab_text.h - what a token of a vocabulary image is in a text: its bytes. Pure functions, shared
 * by the tokenizer (client/text) and the engine's stop strings, so that both mean the same.
 *
 * Token bytes are what stands in a text: GPT-2's byte alphabet is undone (BPE), U+2581 is a space
 * (SPM), a byte token is its byte. Control and user-defined tokens are spelled as in the checkpoint.
 */
#ifndef LLMD_VOCAB_TEXT_H
#define LLMD_VOCAB_TEXT_H

#include "vocab.h"

enum vocab_class {
    VOCAB_NORMAL,
    VOCAB_BYTE,   /* one byte of SPM's fallback */
    VOCAB_USER,   /* user-defined: matched in any text as a whole */
    VOCAB_CONTROL /* control and unknown: no part of a text */
};

/* Of an image that llm_vocab_check has accepted, and an id inside it. */
enum vocab_class vocab_class_of(const struct llm_vocab *image, uint32_t id);

/* The token's bytes into out, whose room is what is left of strings_bytes: together all tokens have
 * no more. Returns how many. */
size_t vocab_token_bytes(const struct llm_vocab *image, uint32_t id, char *out);

/* Undoes GPT-2's byte alphabet into out (`bytes` are enough). Returns the length, or -1 if a
 * character is not of the alphabet. */
long vocab_from_alphabet(const char *at, size_t bytes, char *out);

#endif
