/* vocab.h - the vocabulary image: a sealed read-only memfd with all that a tokenizer needs.
 *
 *   0x0000  struct llm_vocab
 *   then    sections at the offsets it names, each 8-byte aligned, inside the image:
 *             text_end   u32 [n_tokens]  text i is strings[text_end[i - 1] .. text_end[i]),
 * text_end[-1] = 0 types      u8  [n_tokens]  GGUF token_type: 1 normal 2 unknown 3 control 4
 * user-defined 5 unused 6 byte scores     f32 [n_tokens]  or offset 0 merge_end  u32 [n_merges]  as
 * text_end, into merge_strings: "left right", best first eog        s32 [n_eog]     ascending
 *             strings, merge_strings, chat_template: bytes
 *
 * Texts are spelled as in the checkpoint (GPT-2's byte alphabet for BPE, U+2581 for SPM). A reader
 * checks an image with llm_vocab_check before it trusts an offset.
 */
#ifndef LLMD_VOCAB_H
#define LLMD_VOCAB_H

#include "llm_abi.h"

#define LLM_MAGIC_VOCAB 0x424143564d4c4c4cULL

enum llm_vocab_kind { LLM_VOCAB_BPE = 1, LLM_VOCAB_SPM = 2 };
enum llm_vocab_flags { LLM_VOCAB_ADD_BOS = 1, LLM_VOCAB_ADD_EOS = 2, LLM_VOCAB_SPACE_PREFIX = 4 };

struct llm_vocab {
    uint64_t magic;
    uint32_t version; /* 1 */
    uint32_t kind;    /* enum llm_vocab_kind */
    uint64_t bytes;   /* of the whole image */
    uint32_t n_tokens, n_merges, n_eog;
    uint32_t flags;                       /* enum llm_vocab_flags */
    int32_t bos, eos, eot, eom, unk, pad; /* -1: none */
    char pre[64];                         /* NUL-terminated */
    char model[128];                      /* NUL-terminated */
    uint64_t text_end_off, types_off, scores_off, merge_end_off, eog_off;
    uint64_t strings_off, strings_bytes;
    uint64_t merge_strings_off, merge_strings_bytes;
    uint64_t template_off, template_bytes;
};

/* 0 if every section lies inside the `bytes` of the image, aligned and ordered, ends ascend and ids
 * are in range; else LLM_EPROTO. shm/vocab.c */
int llm_vocab_check(const void *image, size_t bytes);

#endif
