/* tokenizer.h - what the tokenizer shows to the detokenizer and to nobody else. */
#ifndef LLMD_CLIENT_TEXT_TOKENIZER_H
#define LLMD_CLIENT_TEXT_TOKENIZER_H

#include <stdbool.h>

#include "bpe.h"
#include "special.h"
#include "split.h"
#include "spm.h"
#include "words.h"

/* Built at open, read-only after: many threads tokenize at once. */
struct llm_tokenizer {
    bool is_spm;
    bool space_prefix;   /* SPM: a text's first word is taken as if a space stood before it */
    int32_t first, last; /* tokens that ADD_SPECIAL puts around a text; -1: none */
    struct words words;
    struct special special;
    struct split split; /* BPE */
    struct bpe bpe;
    struct spm spm;
};

#endif
