/* words.c - builds the lookup tables of words.h from a vocabulary image.
 *
 * GPT-2's byte alphabet (openai/gpt-2, encoder.py, bytes_to_unicode): the bytes 21-7E, A1-AC and
 * AE-FF stand for themselves as code points; the other 68, in ascending order, are U+0100 to
 * U+0143.
 */
#include "words.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../shm/vocab.h"
#include "utf8.h"

enum { ALPHABET_POINTS = 0x144 };

/* GGUF token_type */
enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

struct text {
    const char *at;
    size_t bytes;
};

static const void *section(const struct llm_vocab *image, uint64_t offset)
{
    return (const char *)image + offset;
}

static struct text image_text(const struct llm_vocab *image, uint32_t id)
{
    const uint32_t *end = section(image, image->text_end_off);
    const char *strings = section(image, image->strings_off);
    uint32_t begin = id ? end[id - 1] : 0;
    return (struct text){strings + begin, end[id] - begin};
}

static bool stands_for_itself(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* Byte of a code point of the alphabet, or -1. */
static int alphabet_byte(int32_t point)
{
    if (point < 0 || point >= ALPHABET_POINTS)
        return -1;
    if (point < 0x100)
        return stands_for_itself((unsigned)point) ? point : -1;
    /* 00-20 (33 of them), 7F-A0 (34), AD */
    unsigned nth = (unsigned)point - 0x100;
    return nth < 33 ? (int)nth : nth < 67 ? (int)(0x7f + nth - 33) : 0xad;
}

long words_from_alphabet(const char *at, size_t bytes, char *out)
{
    long length = 0;
    for (size_t i = 0; i < bytes;) {
        unsigned used;
        int byte = alphabet_byte(utf8_decode(at + i, bytes - i, &used));
        if (byte < 0)
            return -1;
        out[length++] = (char)byte;
        i += used;
    }
    return length;
}

/* U+2581 to space; the result is not longer. */
static size_t unescape_spaces(struct text t, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < t.bytes;) {
        if (t.bytes - i >= 3 && memcmp(t.at + i, "\xe2\x96\x81", 3) == 0)
            out[length++] = ' ', i += 3;
        else
            out[length++] = t.at[i++];
    }
    return length;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x0A>" to 10, or -1. */
static int fallback_byte(struct text t)
{
    if (t.bytes != 6 || memcmp(t.at, "<0x", 3) != 0 || t.at[5] != '>')
        return -1;
    int high = hex_digit(t.at[3]), low = hex_digit(t.at[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static bool ends_generation(const struct llm_vocab *image, int32_t id)
{
    const int32_t *eog = section(image, image->eog_off);
    for (uint32_t i = 0; i < image->n_eog; i++)
        if (eog[i] == id)
            return true;
    return false;
}

/* A converter's slip is repaired: an end-of-generation token that is spelled like one is a control
 * token, whatever its type says. */
static enum word_class class_of(const struct llm_vocab *image, uint32_t id, struct text t)
{
    const uint8_t *types = section(image, image->types_off);
    switch (types[id]) {
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
        return WORD_CONTROL;
    case TYPE_BYTE:
        return image->kind == LLM_VOCAB_SPM ? WORD_BYTE : WORD_NORMAL;
    }
    bool spelled_so = t.bytes > 2 && t.at[0] == '<' && t.at[t.bytes - 1] == '>';
    if (spelled_so && ends_generation(image, (int32_t)id))
        return WORD_CONTROL;
    return types[id] == TYPE_USER_DEFINED ? WORD_USER : WORD_NORMAL;
}

/* Bytes of one token into out; returns how many, never more than the text has. */
static size_t bytes_of(const struct llm_vocab *image, struct text t, enum word_class class,
                       char *out)
{
    if (class == WORD_BYTE) {
        int byte = fallback_byte(t);
        if (byte >= 0)
            return *out = (char)byte, 1;
    }
    if (image->kind == LLM_VOCAB_SPM && class != WORD_CONTROL)
        return unescape_spaces(t, out);
    if (image->kind == LLM_VOCAB_BPE && class == WORD_NORMAL) {
        long length = words_from_alphabet(t.at, t.bytes, out);
        if (length >= 0)
            return (size_t)length;
    }
    memcpy(out, t.at, t.bytes);
    return t.bytes;
}

static uint32_t hash_bytes(const char *at, size_t bytes)
{
    uint64_t h = 0x9e3779b97f4a7c15ULL ^ bytes, block;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        memcpy(&block, at, 8);
        h = (h ^ block) * 0xff51afd7ed558ccdULL;
        h ^= h >> 32;
    }
    block = 0;
    memcpy(&block, at, bytes);
    h = (h ^ block) * 0xff51afd7ed558ccdULL;
    h ^= h >> 29;
    h *= 0xc4ceb9fe1a85ec53ULL;
    return (uint32_t)(h >> 32);
}

int32_t words_find(const struct words *w, const char *at, size_t bytes)
{
    if (bytes == 0 || bytes > w->longest)
        return -1;
    for (uint32_t i = hash_bytes(at, bytes) & w->mask; w->slots[i]; i = (i + 1) & w->mask) {
        int32_t id = (int32_t)(w->slots[i] - 1);
        size_t length;
        const char *token = words_bytes(w, id, &length);
        if (length == bytes && memcmp(token, at, bytes) == 0)
            return id;
    }
    return -1;
}

/* The first token with some bytes keeps them. */
static void index_token(struct words *w, uint32_t id)
{
    size_t bytes;
    const char *at = words_bytes(w, (int32_t)id, &bytes);
    if (bytes == 0)
        return;
    if (bytes > w->longest)
        w->longest = (uint32_t)bytes;
    if (words_find(w, at, bytes) >= 0)
        return;
    uint32_t i = hash_bytes(at, bytes) & w->mask;
    while (w->slots[i])
        i = (i + 1) & w->mask;
    w->slots[i] = id + 1;
}

static void index_class(struct words *w, enum word_class class)
{
    for (uint32_t id = 0; id < w->n; id++)
        if (w->class[id] == class)
            index_token(w, id);
}

static void find_byte_tokens(struct words *w, const struct llm_vocab *image)
{
    for (unsigned b = 0; b < 256; b++) {
        char byte = (char)b;
        w->byte_token[b] = words_find(w, &byte, 1);
    }
    if (image->kind != LLM_VOCAB_SPM)
        return;
    for (uint32_t id = w->n; id-- > 0;)
        if (w->class[id] == WORD_BYTE && w->end[id] - words_begin(w, (int32_t)id) == 1)
            w->byte_token[(unsigned char)w->bytes[words_begin(w, (int32_t)id)]] = (int32_t)id;
}

static int allocate(struct words *w, const struct llm_vocab *image)
{
    uint32_t slots = 64;
    while (slots < 2 * (uint64_t)image->n_tokens && slots < 1u << 31)
        slots *= 2;
    w->n = image->n_tokens;
    w->mask = slots - 1;
    w->bytes = malloc(image->strings_bytes + 1);
    w->end = malloc((size_t)w->n * sizeof *w->end + 1);
    w->class = malloc((size_t)w->n + 1);
    w->slots = calloc(slots, sizeof *w->slots);
    return w->bytes && w->end && w->class && w->slots ? 0 : -ENOMEM;
}

int words_build(struct words *w, const struct llm_vocab *image)
{
    memset(w, 0, sizeof *w);
    if (allocate(w, image) < 0)
        return -ENOMEM;
    size_t total = 0;
    for (uint32_t id = 0; id < w->n; id++) {
        struct text t = image_text(image, id);
        w->class[id] = (uint8_t)class_of(image, id, t);
        total += bytes_of(image, t, w->class[id], w -> bytes + total);
        w->end[id] = (uint32_t)total;
    }
    assert(total <= image->strings_bytes);
    index_class(w, WORD_NORMAL);
    index_class(w, WORD_USER); /* they may be parts of merges */
    find_byte_tokens(w, image);
    return 0;
}

void words_free(struct words *w)
{
    free(w->bytes);
    free(w->end);
    free(w->class);
    free(w->slots);
}
