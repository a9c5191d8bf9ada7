/* tokenizer.c - llm_tokenizer: from the vocabulary image to token ids.
 *
 * A text goes this way:
 *   1. ill-formed UTF-8 becomes U+FFFD, one for each maximal ill-formed part (normal.c). Models
 *      have not seen such bytes, byte-level vocabularies often have no token for them, and so do
 *      the models' own tokenizers. NUL is a character like any other.
 *   2. special tokens that are spelled out are cut out (special.c): user-defined ones always,
 *      control tokens with LLM_TOKENIZE_SPECIAL
 *   3. what lies between: BPE: NFC where the model's own tokenizer does so (qwen2: the checkpoint
 *      was trained on composed text; é as two characters gives other tokens than it ever saw),
 *      words (split.c), merges (bpe.c). SPM: a space before the text and after each special token
 *      where the vocabulary says so, then merges (spm.c)
 *   4. LLM_TOKENIZE_ADD_SPECIAL: bos before and eos after, if the vocabulary says so
 *
 * Time is O(n log n) in the worst case; memory is a small multiple of the longest word (BPE) or
 * stretch without a space (SPM).
 */
#include "tokenizer.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../shm/vocab.h"
#include "../internal.h"
#include "normal.h"

static const size_t text_bytes_max = (size_t)1 << 30;

/* ---- open ---- */

static int no_memory(char *why, size_t why_size)
{
    snprintf(why, why_size, "no memory for the tokenizer");
    return -ENOMEM;
}

static int open_bpe(struct llm_tokenizer *t, const struct llm_vocab *image, char *why,
                    size_t why_size)
{
    int rc = split_open(&t->split, image->pre);
    if (rc == LLM_ENOTEXT) {
        snprintf(why, why_size,
                 "the model's pre-tokenizer is '%s', which is not supported; send token ids, or "
                 "use a checkpoint whose tokenizer.ggml.pre is supported",
                 image->pre);
        return rc;
    }
    if (rc == 0)
        rc = bpe_build(&t->bpe, &t->words, image, t->split.whole_words);
    return rc < 0 ? no_memory(why, why_size) : 0;
}

static int open_spm(struct llm_tokenizer *t, const struct llm_vocab *image, char *why,
                    size_t why_size)
{
    t->is_spm = true;
    t->space_prefix = image->flags & LLM_VOCAB_SPACE_PREFIX;
    return spm_build(&t->spm, &t->words, image) < 0 ? no_memory(why, why_size) : 0;
}

static int build(struct llm_tokenizer *t, const struct llm_vocab *image, char *why, size_t why_size)
{
    t->first = image->flags & LLM_VOCAB_ADD_BOS ? image->bos : -1;
    t->last = image->flags & LLM_VOCAB_ADD_EOS ? image->eos : -1;
    if (words_build(&t->words, image) < 0 || special_build(&t->special, &t->words) < 0)
        return no_memory(why, why_size);
    switch (image->kind) {
    case LLM_VOCAB_BPE:
        return open_bpe(t, image, why, why_size);
    case LLM_VOCAB_SPM:
        return open_spm(t, image, why, why_size);
    }
    snprintf(why, why_size,
             "the model's tokenizer is of kind %u, which is not supported; send "
             "token ids",
             image->kind);
    return LLM_ENOTEXT;
}

int llm_tokenizer_open_image(struct llm_tokenizer **out, const void *image, size_t bytes, char *why,
                             size_t why_size)
{
    char unread[1];
    if (!why)
        why = unread, why_size = sizeof unread;
    *out = NULL;
    int rc = llm_vocab_check(image, bytes);
    if (rc < 0) {
        snprintf(why, why_size, "the vocabulary image is damaged, or of another version");
        return rc;
    }
    struct llm_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return no_memory(why, why_size);
    rc = build(t, image, why, why_size);
    if (rc < 0)
        llm_tokenizer_close(t);
    else
        *out = t;
    return rc;
}

int llm_tokenizer_open(struct llm_tokenizer **out, struct llm_client *c)
{
    const void *image;
    size_t bytes;
    char why[512];
    *out = NULL;
    int rc = client_vocabulary(c, &image, &bytes);
    if (rc < 0) {
        client_fail(c, rc, "the engine has published no vocabulary");
        return rc;
    }
    rc = llm_tokenizer_open_image(out, image, bytes, why, sizeof why);
    if (rc < 0)
        client_fail(c, rc, "%s", why);
    return rc;
}

void llm_tokenizer_close(struct llm_tokenizer *t)
{
    if (!t)
        return;
    bpe_free(&t->bpe);
    spm_free(&t->spm);
    split_free(&t->split);
    special_free(&t->special);
    words_free(&t->words);
    free(t);
}

/* ---- tokenize ---- */

/* One call: where tokens go, and memory that its words share. */
struct job {
    const struct llm_tokenizer *t;
    int32_t *tokens; /* (max) */
    size_t n, max;
    struct merge_space space;
    struct pcre2_real_match_data_8 *match; /* BPE */
    char *spaced;                          /* SPM (spaced_bytes) the stretch being worked on */
    size_t spaced_bytes;
};

static void emit(void *to, int32_t id)
{
    struct job *j = to;
    if (j->n < j->max)
        j->tokens[j->n] = id;
    j->n++;
}

static int tokenize_word(void *to, const char *at, size_t bytes)
{
    struct job *j = to;
    return bpe_word(&j->t->bpe, &j->space, at, bytes, emit, j);
}

static int tokenize_bpe(struct job *j, const char *text, size_t bytes)
{
    char *composed = NULL;
    int rc = 0;
    if (j->t->split.composes)
        rc = normal_compose(text, bytes, &composed, &bytes);
    if (rc == 0)
        rc =
            split_text(&j->t->split, j->match, composed ? composed : text, bytes, tokenize_word, j);
    free(composed);
    return rc;
}

/* The text with U+2581 as a space, and a space before it where the vocabulary wants one. */
static int respace(struct job *j, const char *text, size_t bytes, size_t *length)
{
    if (j->spaced_bytes < bytes + 1) {
        free(j->spaced);
        j->spaced = malloc(bytes + 1);
        j->spaced_bytes = j->spaced ? bytes + 1 : 0;
        if (!j->spaced)
            return -ENOMEM;
    }
    char *to = j->spaced;
    if (j->t->space_prefix)
        *to++ = ' ';
    for (size_t i = 0; i < bytes;) {
        if (text[i] == '\xe2' && bytes - i >= 3 && memcmp(text + i, "\xe2\x96\x81", 3) == 0)
            *to++ = ' ', i += 3;
        else
            *to++ = text[i++];
    }
    *length = (size_t)(to - j->spaced);
    return 0;
}

static int tokenize_spm(struct job *j, const char *text, size_t bytes)
{
    size_t length;
    int rc = respace(j, text, bytes, &length);
    return rc < 0 ? rc : spm_text(&j->t->spm, &j->space, j->spaced, length, emit, j);
}

static int tokenize_plain(struct job *j, const char *text, size_t bytes)
{
    if (bytes == 0)
        return 0;
    return j->t->is_spm ? tokenize_spm(j, text, bytes) : tokenize_bpe(j, text, bytes);
}

static int tokenize_text(struct job *j, const char *text, size_t bytes, bool control)
{
    for (size_t done = 0;;) {
        size_t at = bytes, length;
        int32_t id = special_find(&j->t->special, text, bytes, done, control, &at);
        int rc = tokenize_plain(j, text + done, at - done);
        if (rc < 0 || id < 0)
            return rc;
        emit(j, id);
        words_bytes(&j->t->words, id, &length);
        done = at + length;
    }
}

static int run(struct job *j, const char *text, size_t bytes, unsigned flags)
{
    char *repaired;
    int rc = normal_well_formed(text, bytes, &repaired, &bytes);
    if (rc < 0)
        return rc;
    if (flags & LLM_TOKENIZE_ADD_SPECIAL && j->t->first >= 0)
        emit(j, j->t->first);
    rc = tokenize_text(j, repaired ? repaired : text, bytes, flags & LLM_TOKENIZE_SPECIAL);
    if (flags & LLM_TOKENIZE_ADD_SPECIAL && j->t->last >= 0)
        emit(j, j->t->last);
    free(repaired);
    return rc;
}

long llm_tokenize(const struct llm_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                  int32_t *tokens, size_t max)
{
    if (bytes > text_bytes_max)
        return -E2BIG;
    struct job j = {.t = t, .tokens = tokens, .max = tokens ? max : 0};
    if (!t->is_spm && !(j.match = split_match_data()))
        return -ENOMEM;
    int rc = run(&j, text, bytes, flags);
    split_match_data_free(j.match);
    merge_free(&j.space);
    free(j.spaced);
    return rc < 0 ? rc : (long)j.n;
}

/* ---- single tokens ---- */

long llm_token_bytes(const struct llm_tokenizer *t, int32_t token, const char **bytes)
{
    if (token < 0 || (uint32_t)token >= t->words.n)
        return LLM_ETOKEN;
    size_t length;
    *bytes = words_bytes(&t->words, token, &length);
    return (long)length;
}

bool llm_token_is_control(const struct llm_tokenizer *t, int32_t token)
{
    return token >= 0 && (uint32_t)token < t->words.n && t->words.class[token] == VOCAB_CONTROL;
}

uint32_t llm_tokenizer_vocab(const struct llm_tokenizer *t)
{
    return t->words.n;
}
