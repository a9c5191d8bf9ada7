/* bpe.c - byte-level BPE of one word.
 *
 * The order of joins (lowest rank first, leftmost among equals) is that of the reference encoder of
 * GPT-2 (openai/gpt-2, encoder.py) and of Hugging Face's tokenizers.
 */
#include "bpe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../shm/vocab.h"

static uint32_t slot_of(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9e3779b97f4a7c15ULL;
    return (uint32_t)(key >> 32 ^ key >> 13) & b->mask;
}

static const struct bpe_rule *find_rule(const struct bpe *b, int32_t left, int32_t right)
{
    uint32_t i = slot_of(b, left, right);
    for (; b->rules[i].joined >= 0; i = (i + 1) & b->mask)
        if (b->rules[i].left == left && b->rules[i].right == right)
            return &b->rules[i];
    return NULL;
}

/* Of equal rules the first, which has the better rank, is found. */
static void add_rule(struct bpe *b, struct bpe_rule rule)
{
    uint32_t i = slot_of(b, rule.left, rule.right);
    while (b->rules[i].joined >= 0)
        i = (i + 1) & b->mask;
    b->rules[i] = rule;
}

/* Token with these bytes. Trained merges mostly make tokens in the order of their ids, so `guess`
 * saves the look-up. */
static int32_t find_token(const struct words *w, const char *at, size_t bytes, int32_t guess)
{
    if (guess > 0 && (uint32_t)guess < w->n && w->class[guess] == VOCAB_NORMAL) {
        size_t length;
        const char *token = words_bytes(w, guess, &length);
        if (length == bytes && memcmp(token, at, bytes) == 0)
            return guess;
    }
    return words_find(w, at, bytes);
}

/* "left right", split at the first space that is not the first byte; `room` holds `bytes`. */
static struct bpe_rule parse_rule(const struct words *w, const char *at, size_t bytes, char *room,
                                  int32_t guess)
{
    struct bpe_rule rule = {.left = -1, .right = -1, .joined = -1};
    const char *space = bytes > 2 ? memchr(at + 1, ' ', bytes - 2) : NULL;
    if (!space)
        return rule;
    long left = vocab_from_alphabet(at, (size_t)(space - at), room);
    if (left < 0)
        return rule;
    long right = vocab_from_alphabet(space + 1, (size_t)(at + bytes - space - 1), room + left);
    if (right < 0)
        return rule;
    rule.left = words_find(w, room, (size_t)left);
    rule.right = words_find(w, room + left, (size_t)right);
    if (rule.left >= 0 && rule.right >= 0)
        rule.joined = find_token(w, room, (size_t)(left + right), guess);
    return rule;
}

static void parse_rules(struct bpe *b, const struct llm_vocab *image, char *room)
{
    const char *base = (const char *)image, *strings = base + image->merge_strings_off;
    const uint32_t *end = (const uint32_t *)(base + image->merge_end_off);
    int32_t guess = -1;
    for (uint32_t rank = 0, begin = 0; rank < image->n_merges; begin = end[rank++]) {
        struct bpe_rule rule =
            parse_rule(b->words, strings + begin, end[rank] - begin, room, guess);
        if (rule.joined < 0)
            continue;
        guess = rule.joined + 1;
        rule.rank = rank;
        add_rule(b, rule);
    }
}

int bpe_build(struct bpe *b, const struct words *words, const struct llm_vocab *image,
              bool whole_words)
{
    uint32_t slots = 64;
    while (slots < 2 * (uint64_t)image->n_merges && slots < 1u << 31)
        slots *= 2;
    *b = (struct bpe){.words = words, .mask = slots - 1, .whole_words = whole_words};
    b->rules = malloc(slots * sizeof *b->rules);
    char *room = malloc(image->merge_strings_bytes + 1);
    if (b->rules && room) {
        memset(b->rules, 0xff, slots * sizeof *b->rules); /* joined = -1 */
        parse_rules(b, image, room);
    }
    int rc = b->rules && room ? 0 : -ENOMEM;
    free(room);
    return rc;
}

void bpe_free(struct bpe *b)
{
    free(b->rules);
}

static void judge(const void *context, struct merge_symbol *symbols, uint32_t left)
{
    struct merge_symbol *s = &symbols[left];
    const struct bpe_rule *rule = find_rule(context, s->id, symbols[s->next].id);
    s->priority = rule ? rule->rank : MERGE_NEVER;
    s->joined = rule ? rule->joined : -1;
}

/* A byte without a token stays in the list: it joins with nothing and keeps its neighbours apart.
 */
static void list_bytes(const struct words *w, struct merge_symbol *symbols, const char *word,
                       uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        symbols[i] = (struct merge_symbol){.id = w->byte_token[(unsigned char)word[i]],
                                           .previous = i ? i - 1 : MERGE_NEVER,
                                           .next = i + 1};
}

int bpe_word(const struct bpe *b, struct merge_space *m, const char *word, size_t bytes,
             void (*emit)(void *to, int32_t id), void *to)
{
    int32_t whole = b->whole_words ? words_find(b->words, word, bytes) : -1;
    if (whole >= 0) {
        emit(to, whole);
        return 0;
    }
    int rc = merge_reserve(m, bytes);
    if (rc < 0)
        return rc;
    uint32_t end = (uint32_t)bytes;
    list_bytes(b->words, m->symbols, word, end);
    merge_run(m, end, (struct merge_rules){judge, b});
    for (uint32_t i = 0; i != end; i = m->symbols[i].next)
        if (m->symbols[i].id >= 0)
            emit(to, m->symbols[i].id);
    return 0;
}
