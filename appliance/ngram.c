/* ngram.c - see ngram.h. Multiplicative hashing: Knuth, The Art of Computer Programming 3, 6.4. */
#include "ngram.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum {
    BITS_MIN = 6,
    RATE = 4 /* an expectation counts as 1/16 of what was learned */
};

static const uint16_t first_odds[NGRAM_ODDS] = {13107, 32768, 39321, 52428, 58982};

/* Of a table with room for each second token: grams repeat, or there is nothing to look up. */
static uint32_t bits_for(uint32_t length)
{
    uint32_t bits = BITS_MIN;
    while (bits < 31 && 2u << bits < length)
        bits++;
    return bits;
}

uint64_t ngram_bytes(uint32_t max_len)
{
    return ((1ull << bits_for(max_len)) + max_len) * sizeof(uint32_t);
}

void ngram_bind(struct ngram *g, void *memory, uint32_t max_len)
{
    *g = (struct ngram){.heads = memory, .max_len = max_len};
    g->older = g->heads + ((size_t)1 << bits_for(max_len));
}

void ngram_begin(struct ngram *g, uint32_t length, uint32_t min, uint32_t max)
{
    assert(length <= g->max_len && min && min <= max && max <= NGRAM_MAX);
    uint32_t bits = bits_for(length);
    memset(g->heads, 0, ((size_t)1 << bits) * sizeof *g->heads);
    memcpy(g->odds, first_odds, sizeof g->odds);
    g->shift = 32 - bits;
    g->min = min;
    g->max = max;
    g->known = g->at = g->beside = g->length = 0;
}

/* ---- the index ---- */

/* Of the `min` tokens in front of `end`. */
static uint32_t bucket_of(const struct ngram *g, const int32_t *tokens, uint32_t end)
{
    uint32_t hash = 0;
    for (uint32_t i = end - g->min; i < end; i++)
        hash = (hash ^ (uint32_t)tokens[i]) * 0x9E3779B1u;
    return hash >> g->shift;
}

static void insert(struct ngram *g, const int32_t *tokens, uint32_t at)
{
    uint32_t *head = &g->heads[bucket_of(g, tokens, at)];
    g->older[at] = *head;
    *head = at;
}

/* Tokens in front of `at` that are those in front of n, up to max. */
static uint32_t agreement(const struct ngram *g, const int32_t *tokens, uint32_t at, uint32_t n)
{
    uint32_t most = at < g->max ? at : g->max, length = 0;
    while (length < most && tokens[at - 1 - length] == tokens[n - 1 - length])
        length++;
    return length;
}

/* The place whose agreement is longest, or none. */
static void look_up(struct ngram *g, const int32_t *tokens, uint32_t n)
{
    g->length = g->min - 1; /* grams of one hash may be different */
    uint32_t at = g->heads[bucket_of(g, tokens, n)];
    for (int walk = 0; at && walk < NGRAM_WALK && g->length < g->max; walk++) {
        uint32_t length = agreement(g, tokens, at, n);
        if (length > g->length) {
            g->length = length;
            g->at = at;
        }
        assert(g->older[at] < at);
        at = g->older[at];
    }
}

/* ---- expectations ---- */

static uint32_t class_of(uint32_t length)
{
    uint32_t class = 31 - (uint32_t)__builtin_clz(length | 1);
    return class < NGRAM_ODDS ? class : NGRAM_ODDS - 1;
}

static void judge(struct ngram *g, bool held)
{
    uint16_t *odds = &g->odds[class_of(g->length)];
    *odds = (uint16_t)(held ? *odds + ((UINT16_MAX - *odds) >> RATE) : *odds - (*odds >> RATE));
    g->beside = held ? 0 : g->at + 1;
    g->at = held ? g->at + 1 : 0;
    g->length += held;
}

/* What is expected behind n tokens, where the last place failed or there was none. */
static void expect(struct ngram *g, const int32_t *tokens, uint32_t n)
{
    if (n >= g->min)
        look_up(g, tokens, n);
    if (g->at)
        return;
    g->at = g->beside;
    g->length = 0;
}

uint32_t ngram_follow(struct ngram *g, const int32_t *tokens, uint32_t n, uint32_t most)
{
    uint32_t from = g->known, to = n - from < most ? n : from + most;
    assert(from <= n && n <= g->max_len);
    for (uint32_t i = from; i < to; i++) {
        if (g->at)
            judge(g, tokens[g->at] == tokens[i]);
        else
            g->beside = 0;
        if (i >= g->min)
            insert(g, tokens, i);
    }
    g->known = to;
    if (to < n)
        g->at = 0;
    else if (!g->at && to > from)
        expect(g, tokens, n);
    return to - from;
}

double ngram_chance(const struct ngram *g, uint32_t after)
{
    return (double)g->odds[class_of(g->length + after)] / (UINT16_MAX + 1);
}

void ngram_draft(const struct ngram *g, int32_t *tokens, uint32_t k)
{
    assert(g->at && g->at < g->known);
    for (uint32_t i = 0; i < k; i++)
        tokens[g->known + i] = tokens[g->at + i];
}
