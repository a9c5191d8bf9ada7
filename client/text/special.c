/* special.c - the sorted list of spellings and the search in it. */
#include "special.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b, void *words)
{
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    size_t m, n;
    const char *x = words_bytes(words, left, &m), *y = words_bytes(words, right, &n);
    int order = memcmp(x, y, m < n ? m : n);
    if (order == 0)
        order = m < n ? -1 : m > n;
    return order ? order : left < right ? -1 : left > right;
}

static bool is_special(const struct words *w, uint32_t id)
{
    return (w->class[id] == VOCAB_CONTROL || w->class[id] == VOCAB_USER) &&
           w->end[id] > words_begin(w, (int32_t)id);
}

static bool same_bytes(const struct words *w, int32_t a, int32_t b)
{
    size_t m, n;
    const char *x = words_bytes(w, a, &m), *y = words_bytes(w, b, &n);
    return m == n && memcmp(x, y, n) == 0;
}

static void drop_doubles(struct special *s)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (kept == 0 || !same_bytes(s->words, s->ids[kept - 1], s->ids[i]))
            s->ids[kept++] = s->ids[i];
    s->n = kept;
}

int special_build(struct special *s, const struct words *words)
{
    *s = (struct special){.words = words};
    uint32_t n = 0;
    for (uint32_t id = 0; id < words->n; id++)
        n += is_special(words, id);
    s->ids = malloc((size_t)n * sizeof *s->ids + 1);
    if (!s->ids)
        return -ENOMEM;
    for (uint32_t id = 0; id < words->n; id++)
        if (is_special(words, id))
            s->ids[s->n++] = (int32_t)id;
    qsort_r(s->ids, n, sizeof *s->ids, compare, (void *)(uintptr_t)words);
    drop_doubles(s);
    for (uint32_t i = 0; i < s->n; i++)
        s->first[(unsigned char)words->bytes[words_begin(words, s->ids[i])] + 1]++;
    for (unsigned c = 0; c < 256; c++)
        s->first[c + 1] += s->first[c];
    return 0;
}

void special_free(struct special *s)
{
    free(s->ids);
}

/* First of ids[low .. high) whose byte at `depth` is at least c; all are longer than depth. */
static uint32_t lower_bound(const struct special *s, uint32_t low, uint32_t high, size_t depth,
                            unsigned c)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((unsigned char)s->words->bytes[words_begin(s->words, s->ids[middle]) + depth] < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest that the text begins with, or -1. */
static int32_t longest_at(const struct special *s, const char *text, size_t bytes, bool control)
{
    unsigned c = (unsigned char)text[0];
    uint32_t low = s->first[c], high = s->first[c + 1];
    int32_t found = -1;
    for (size_t depth = 1; low < high; depth++) {
        size_t length;
        words_bytes(s->words, s->ids[low], &length);
        if (length == depth) { /* the whole spelling: it sorts before its continuations */
            if (control || s->words->class[s->ids[low]] == VOCAB_USER)
                found = s->ids[low];
            low++;
        }
        if (depth == bytes)
            break;
        c = (unsigned char)text[depth];
        low = lower_bound(s, low, high, depth, c);
        high = lower_bound(s, low, high, depth, c + 1);
    }
    return found;
}

int32_t special_find(const struct special *s, const char *text, size_t bytes, size_t from,
                     bool control, size_t *at)
{
    for (size_t i = from; i < bytes; i++) {
        unsigned c = (unsigned char)text[i];
        if (s->first[c] == s->first[c + 1])
            continue;
        int32_t id = longest_at(s, text + i, bytes - i, control);
        if (id >= 0)
            return *at = i, id;
    }
    return -1;
}
