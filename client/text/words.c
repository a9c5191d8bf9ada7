/* words.c - builds the lookup tables of words.h from a vocabulary image. */
#include "words.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

static void index_class(struct words *w, enum vocab_class class)
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
        if (w->class[id] == VOCAB_BYTE && w->end[id] - words_begin(w, (int32_t)id) == 1)
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
        w->class[id] = (uint8_t)vocab_class_of(image, id);
        total += vocab_token_bytes(image, id, w->bytes + total);
        w->end[id] = (uint32_t)total;
    }
    assert(total <= image->strings_bytes);
    index_class(w, VOCAB_NORMAL);
    index_class(w, VOCAB_USER); /* they may be parts of merges */
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
