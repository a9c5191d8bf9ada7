/* vocab_image.h - vocabulary images for tests: out of a GGUF file, or made up token by token. */
#ifndef LLMD_TESTS_VOCAB_IMAGE_H
#define LLMD_TESTS_VOCAB_IMAGE_H

#include "../../client/llmclient.h"
#include "../../shm/vocab.h"

/* What goes into an image. Texts are NUL-terminated here, unless text_bytes says otherwise. */
struct vocab_recipe {
    enum llm_vocab_kind kind;
    const char *pre;
    uint32_t flags; /* enum llm_vocab_flags */
    uint32_t n_tokens;
    const char *const *texts;
    const uint32_t *text_bytes; /* (n_tokens) or NULL */
    const uint8_t *types;       /* (n_tokens) */
    const float *scores;        /* (n_tokens) or NULL */
    uint32_t n_merges;
    const char *const *merges;
    const uint32_t *merge_bytes; /* (n_merges) or NULL */
    int32_t bos, eos, unk;
    int32_t eog; /* one, or -1 */
};

/* malloc'ed image. */
struct llm_vocab *vocab_image(const struct vocab_recipe *recipe);

/* Image of the vocabulary in a GGUF file's bytes, with llama.cpp's defaults for missing keys. Reads
 * what the tests' own files have; it does not defend itself. */
struct llm_vocab *vocab_image_from_gguf(const char *file);

/* Tokenizer over tokenizer/NAME.vocab.gguf of the golden data; fails the test if it cannot. */
struct llm_tokenizer *golden_tokenizer(const char *name);
/* Over the model file that LLMD_GEMMA3 names (its vocabulary is too big for the repository), or
 * NULL without it. */
struct llm_tokenizer *gemma3_tokenizer(void);
struct llm_tokenizer *tokenizer_of(struct llm_vocab *image); /* frees the image */

#endif
