/* detokenizer.c - llm_detokenizer: tokens become text while they come.
 *
 * What is not handed out yet lies in one buffer, behind it the beginning of a character:
 *
 *   text[0 .. ready)  goes out now, or was refused for want of room
 *   text[ready .. n)  waits for the end of its word or sentence (WORDS, SENTENCES)
 *   tail[0 .. tail_n) waits for the rest of its UTF-8 character (UTF8, WORDS, SENTENCES)
 *
 * Invariants: but in raw mode (none of these three flags) text is well-formed UTF-8; after every
 * call at most WORD_BYTES_MAX or SENTENCE_BYTES_MAX bytes wait.
 *
 * Ill-formed UTF-8 becomes U+FFFD, one for each maximal ill-formed part, as soon as it is certain
 * that no character comes of it; a character that the stream's end cuts becomes one at the flush.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../llmclient.h"
#include "bounds.h"
#include "tokenizer.h"
#include "utf8.h"

enum {
    WHOLE_TEXT = LLM_DETOK_UTF8 | LLM_DETOK_WORDS | LLM_DETOK_SENTENCES,
    KNOWN_FLAGS = WHOLE_TEXT | LLM_DETOK_SHOW_SPECIAL | LLM_DETOK_CONTINUE,
    WORD_BYTES_MAX = 256,      /* a longer word is handed out in pieces */
    SENTENCE_BYTES_MAX = 1024, /* a longer sentence is handed out word by word */
    START_BYTES = 256
};

struct llm_detokenizer {
    const struct llm_tokenizer *t;
    unsigned flags;
    bool at_start; /* nothing has come yet: the space that the tokenizer put first goes away */
    char tail[4];
    unsigned tail_n;
    char *text; /* (capacity) */
    size_t ready, n, capacity;
};

int llm_detokenizer_open(struct llm_detokenizer **out, const struct llm_tokenizer *t,
                         unsigned flags)
{
    *out = NULL;
    if (flags & ~(unsigned)KNOWN_FLAGS)
        return -EINVAL;
    struct llm_detokenizer *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    d->t = t;
    d->flags = flags;
    d->capacity = START_BYTES;
    d->text = malloc(d->capacity);
    if (!d->text) {
        free(d);
        return -ENOMEM;
    }
    llm_detokenizer_reset(d);
    *out = d;
    return 0;
}

void llm_detokenizer_close(struct llm_detokenizer *d)
{
    if (!d)
        return;
    free(d->text);
    free(d);
}

void llm_detokenizer_reset(struct llm_detokenizer *d)
{
    d->at_start = d->t->space_prefix && !(d->flags & LLM_DETOK_CONTINUE);
    d->ready = d->n = d->tail_n = 0;
}

/* Room for the text that `bytes` more can become: each byte may be a U+FFFD. */
static int reserve(struct llm_detokenizer *d, size_t bytes)
{
    size_t needed = d->n + UTF8_REPLACEMENT_BYTES * (bytes + sizeof d->tail);
    if (needed <= d->capacity)
        return 0;
    char *text = realloc(d->text, 2 * needed);
    if (!text)
        return -ENOMEM;
    d->text = text;
    d->capacity = 2 * needed;
    return 0;
}

static void append(struct llm_detokenizer *d, const char *at, size_t bytes)
{
    memcpy(d->text + d->n, at, bytes);
    d->n += bytes;
}

/* Takes whole characters, and what can no longer become one, out of the tail. */
static void settle_tail(struct llm_detokenizer *d)
{
    while (d->tail_n) {
        unsigned used;
        int32_t point = utf8_decode(d->tail, d->tail_n, &used);
        if (point == UTF8_CUT)
            return;
        if (point == UTF8_ILL)
            append(d, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
        else
            append(d, d->tail, used);
        d->tail_n -= used;
        memmove(d->tail, d->tail + used, d->tail_n);
    }
}

static void append_characters(struct llm_detokenizer *d, const char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        d->tail[d->tail_n++] = at[i];
        settle_tail(d);
    }
}

static size_t whole_words(const char *at, size_t bytes)
{
    size_t whole = bounds_words(at, bytes);
    return bytes - whole > WORD_BYTES_MAX ? bytes : whole;
}

static size_t whole_sentences(const char *at, size_t bytes)
{
    size_t whole = bounds_sentences(at, bytes);
    if (bytes - whole <= SENTENCE_BYTES_MAX)
        return whole;
    return whole + whole_words(at + whole, bytes - whole);
}

static void advance_ready(struct llm_detokenizer *d)
{
    const char *at = d->text + d->ready;
    size_t waiting = d->n - d->ready;
    if (d->flags & LLM_DETOK_SENTENCES)
        d->ready += whole_sentences(at, waiting);
    else if (d->flags & LLM_DETOK_WORDS)
        d->ready += whole_words(at, waiting);
    else
        d->ready = d->n;
}

static long hand_out(struct llm_detokenizer *d, char *out, size_t size)
{
    size_t bytes = d->ready;
    if (bytes > size)
        return -ENOBUFS;
    if (bytes == 0) /* `out` may be NULL */
        return 0;
    memcpy(out, d->text, bytes);
    d->n -= bytes;
    memmove(d->text, d->text + bytes, d->n);
    d->ready = 0;
    return (long)bytes;
}

long llm_detokenize(struct llm_detokenizer *d, int32_t token, char *out, size_t size)
{
    const char *at;
    long length = llm_token_bytes(d->t, token, &at);
    if (length < 0)
        return length;
    size_t bytes = (size_t)length;
    if (llm_token_is_control(d->t, token) && !(d->flags & LLM_DETOK_SHOW_SPECIAL))
        return hand_out(d, out, size);
    if (reserve(d, bytes) < 0)
        return -ENOMEM;
    if (d->at_start && bytes && *at == ' ')
        at++, bytes--;
    d->at_start = false;
    if (d->flags & WHOLE_TEXT)
        append_characters(d, at, bytes);
    else
        append(d, at, bytes);
    advance_ready(d);
    return hand_out(d, out, size);
}

long llm_detokenize_flush(struct llm_detokenizer *d, char *out, size_t size)
{
    if (d->ready == 0) {
        if (reserve(d, 0) < 0)
            return -ENOMEM;
        if (d->tail_n)
            append(d, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
        d->tail_n = 0;
        d->ready = d->n;
    }
    return hand_out(d, out, size);
}
