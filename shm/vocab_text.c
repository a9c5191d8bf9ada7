/* vocab_text.c - see vocab_text.h.
 *
 * GPT-2's byte alphabet (openai/gpt-2, encoder.py, bytes_to_unicode): the bytes 21-7E, A1-AC and
 * AE-FF stand for themselves as code points; the other 68, in ascending order, are U+0100 to
 * U+0143.
 */
#include "vocab_text.h"

#include <stdbool.h>
#include <string.h>

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

/* ---- the byte alphabet ---- */

static bool stands_for_itself(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* Byte of a code point of the alphabet, or -1. */
static int alphabet_byte(unsigned point)
{
    if (point >= ALPHABET_POINTS)
        return -1;
    if (point < 0x100)
        return stands_for_itself(point) ? (int)point : -1;
    /* 00-20 (33 of them), 7F-A0 (34), AD */
    unsigned nth = point - 0x100;
    return nth < 33 ? (int)nth : nth < 67 ? (int)(0x7f + nth - 33) : 0xad;
}

/* Takes one character of UTF-8. All of the alphabet have one byte or two: -1 for anything else. */
static int take_point(struct text *t)
{
    unsigned lead = (unsigned char)t->at[0];
    bool two =
        lead >= 0xc2 && lead <= 0xdf && t->bytes > 1 && ((unsigned char)t->at[1] & 0xc0) == 0x80;
    if (lead >= 0x80 && !two)
        return -1;
    int point = two ? (int)((lead & 0x1f) << 6 | ((unsigned char)t->at[1] & 0x3f)) : (int)lead;
    t->at += 1 + two;
    t->bytes -= 1u + two;
    return point;
}

long vocab_from_alphabet(const char *at, size_t bytes, char *out)
{
    struct text t = {at, bytes};
    long length = 0;
    while (t.bytes) {
        int point = take_point(&t);
        int byte = point < 0 ? -1 : alphabet_byte((unsigned)point);
        if (byte < 0)
            return -1;
        out[length++] = (char)byte;
    }
    return length;
}

/* ---- SentencePiece ---- */

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

/* ---- tokens ---- */

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
enum vocab_class vocab_class_of(const struct llm_vocab *image, uint32_t id)
{
    const uint8_t *types = section(image, image->types_off);
    struct text t = image_text(image, id);
    switch (types[id]) {
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
        return VOCAB_CONTROL;
    case TYPE_BYTE:
        return image->kind == LLM_VOCAB_SPM ? VOCAB_BYTE : VOCAB_NORMAL;
    }
    bool spelled_so = t.bytes > 2 && t.at[0] == '<' && t.at[t.bytes - 1] == '>';
    if (spelled_so && ends_generation(image, (int32_t)id))
        return VOCAB_CONTROL;
    return types[id] == TYPE_USER_DEFINED ? VOCAB_USER : VOCAB_NORMAL;
}

size_t vocab_token_bytes(const struct llm_vocab *image, uint32_t id, char *out)
{
    struct text t = image_text(image, id);
    enum vocab_class class = vocab_class_of(image, id);
    if (class == VOCAB_BYTE) {
        int byte = fallback_byte(t);
        if (byte >= 0)
            return *out = (char)byte, 1;
    }
    if (image->kind == LLM_VOCAB_SPM && class != VOCAB_CONTROL)
        return unescape_spaces(t, out);
    if (image->kind == LLM_VOCAB_BPE && class == VOCAB_NORMAL) {
        long length = vocab_from_alphabet(t.at, t.bytes, out);
        if (length >= 0)
            return (size_t)length;
    }
    memcpy(out, t.at, t.bytes);
    return t.bytes;
}
