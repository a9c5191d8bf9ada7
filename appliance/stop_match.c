/* stop_match.c - see stop_match.h */
#include "stop_match.h"

#include <assert.h>
#include <string.h>

/* The longest prefix of s that ends `byte` behind a text which ended with `at` bytes of it. */
static uint32_t next(const struct stop_string *s, uint32_t at, uint8_t byte)
{
    while (at && s->text[at] != byte)
        at = s->border[at - 1];
    return at + (s->text[at] == byte);
}

void stop_add(struct stop_set *set, const uint8_t *text, uint32_t bytes)
{
    assert(set->n < LLM_STOPS_MAX && bytes && bytes <= LLM_STOP_BYTES_MAX);
    struct stop_string *s = &set->strings[set->n++];
    s->bytes = (uint16_t)bytes;
    memcpy(s->text, text, bytes);
    s->border[0] = 0;
    for (uint32_t i = 1; i < bytes; i++)
        s->border[i] = (uint8_t)next(s, s->border[i - 1], s->text[i]);
}

/* One byte into all automata. Which string is complete, from 1, or 0. */
static uint32_t step(const struct stop_set *set, struct stop_state *state, uint8_t byte)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        const struct stop_string *s = &set->strings[i];
        uint32_t at = next(s, state->at[i], byte);
        if (at == s->bytes) {
            if (!found || s->bytes > set->strings[found - 1].bytes)
                found = i + 1;
            at = s->border[at - 1];
        }
        state->at[i] = (uint8_t)at;
    }
    return found;
}

uint32_t stop_feed(const struct stop_set *set, struct stop_state *state, const char *text,
                   uint32_t bytes, uint32_t *behind)
{
    for (uint32_t i = 0; i < bytes; i++) {
        uint32_t found = step(set, state, (uint8_t)text[i]);
        if (found) {
            *behind = set->strings[found - 1].bytes + bytes - 1 - i;
            return found;
        }
    }
    return 0;
}

uint32_t stop_pending(const struct stop_set *set, const struct stop_state *state)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < set->n; i++)
        most = state->at[i] > most ? state->at[i] : most;
    return most;
}
