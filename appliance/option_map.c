/* option_map.c - reads the option map of a submission: see option_map.h.
 *
 * Two passes. The first walks the whole map as msgpack and knows no option: heads, lengths, nesting,
 * nothing behind the end. The second reads options out of what is then known to be well formed, so
 * its cursor needs no further bounds.
 *
 * Invariants:
 * 1. No pass looks at a byte behind the map, and each looks at a byte at most a few times: nested
 *    values are counted, not descended into, and no more of them may be open than bytes are left.
 * 2. A map that is not well formed is refused as such, whatever options it has.
 *
 * Format: https://github.com/msgpack/msgpack/blob/master/spec.md
 */
#include "option_map.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum type {
    TYPE_NIL,
    TYPE_BOOL,
    TYPE_INTEGER,
    TYPE_FLOAT,
    TYPE_STR,
    TYPE_BIN,
    TYPE_ARRAY,
    TYPE_MAP,
    TYPE_EXT,
    TYPES
};

/* What a value begins with. */
struct head {
    enum type type;
    uint64_t bytes; /* that follow it before the next head */
    uint64_t n;     /* values that it contains: of an ARRAY its elements, of a MAP two each entry */
};

struct cursor {
    const uint8_t *at;
    size_t left;
};

/* ---- msgpack ---- */

static uint32_t big_endian(const uint8_t *p, int bytes)
{
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | p[i];
    return v;
}

/* The head bytes c0 .. df: each has its type, and a number of fixed size or a length field. */
struct family {
    uint8_t type;
    uint8_t bytes;        /* that follow always */
    uint8_t length_bytes; /* of the field that says how many more, or how many values */
    uint8_t never;        /* the specification leaves it unused */
};

static const struct family families[32] = {
    {.type = TYPE_NIL},       {.never = 1},
    {.type = TYPE_BOOL},      {.type = TYPE_BOOL},
    {TYPE_BIN, 0, 1, 0},      {TYPE_BIN, 0, 2, 0},
    {TYPE_BIN, 0, 4, 0},      {TYPE_EXT, 1, 1, 0}, /* an ext has its type beside its bytes */
    {TYPE_EXT, 1, 2, 0},      {TYPE_EXT, 1, 4, 0},
    {TYPE_FLOAT, 4, 0, 0},    {TYPE_FLOAT, 8, 0, 0},
    {TYPE_INTEGER, 1, 0, 0},  {TYPE_INTEGER, 2, 0, 0},
    {TYPE_INTEGER, 4, 0, 0},  {TYPE_INTEGER, 8, 0, 0},
    {TYPE_INTEGER, 1, 0, 0},  {TYPE_INTEGER, 2, 0, 0},
    {TYPE_INTEGER, 4, 0, 0},  {TYPE_INTEGER, 8, 0, 0},
    {TYPE_EXT, 1 + 1, 0, 0},  {TYPE_EXT, 1 + 2, 0, 0},
    {TYPE_EXT, 1 + 4, 0, 0},  {TYPE_EXT, 1 + 8, 0, 0},
    {TYPE_EXT, 1 + 16, 0, 0}, {TYPE_STR, 0, 1, 0},
    {TYPE_STR, 0, 2, 0},      {TYPE_STR, 0, 4, 0},
    {TYPE_ARRAY, 0, 2, 0},    {TYPE_ARRAY, 0, 4, 0},
    {TYPE_MAP, 0, 2, 0},      {TYPE_MAP, 0, 4, 0},
};

static void set_length(struct head *h, enum type type, uint64_t length)
{
    h->type = type;
    if (type == TYPE_ARRAY)
        h->n = length;
    else if (type == TYPE_MAP)
        h->n = 2 * length;
    else
        h->bytes += length;
}

/* Takes a head of c0 .. df. */
static bool family_head(struct cursor *c, struct head *h, uint8_t first)
{
    const struct family *f = &families[first - 0xc0];
    if (f->never || f->length_bytes > c->left)
        return false;
    h->bytes = f->bytes;
    set_length(h, f->type, big_endian(c->at, f->length_bytes));
    c->at += f->length_bytes;
    c->left -= f->length_bytes;
    return true;
}

/* Takes the next head: false where there is none, or none that the bytes left could be of. */
static bool take_head(struct cursor *c, struct head *h)
{
    *h = (struct head){0};
    if (!c->left)
        return false;
    uint8_t first = *c->at++;
    c->left--;
    if (first < 0x80 || first >= 0xe0)
        h->type = TYPE_INTEGER;
    else if (first < 0x90)
        set_length(h, TYPE_MAP, first & 0x0f);
    else if (first < 0xa0)
        set_length(h, TYPE_ARRAY, first & 0x0f);
    else if (first < 0xc0)
        set_length(h, TYPE_STR, first & 0x1f);
    else if (!family_head(c, h, first))
        return false;
    return h->bytes <= c->left;
}

static void take_bytes(struct cursor *c, uint64_t bytes)
{
    assert(bytes <= c->left);
    c->at += bytes;
    c->left -= bytes;
}

/* One value and nothing behind it. Every value has a byte, so more of them than bytes are left
 * cannot come: `open` stays below 2^32 + the size of the map. */
static bool well_formed(struct cursor c)
{
    uint64_t open = 1;
    while (open) {
        struct head h;
        if (!take_head(&c, &h))
            return false;
        take_bytes(&c, h.bytes);
        open += h.n - 1;
        if (open > c.left)
            return false;
    }
    return !c.left;
}

/* ---- options ---- */

static int refuse(const char **why, const char *sentence)
{
    *why = sentence;
    return LLM_EPARAM;
}

#define SENTENCES(begin)                                                                           \
    {                                                                                              \
        begin "nil", begin "a boolean", begin "an integer", begin "a float", begin "a string",     \
            begin "a bin", begin "an array", begin "a map", begin "an ext"                         \
    }

static const char *const not_a_map[TYPES] = SENTENCES("options: must be a msgpack map, not ");
static const char *const not_a_key[TYPES] = SENTENCES("options: keys must be strings, not ");
static const char *const not_labels[TYPES] =
    SENTENCES("options: \"labels\" must be an array of bins with token ids, not ");
static const char *const not_a_label[TYPES] =
    SENTENCES("options: each of \"labels\" must be a bin with token ids, not ");
static const char *const not_stops[TYPES] =
    SENTENCES("options: \"stop\" must be an array of strings or bins, not ");
static const char *const not_a_stop[TYPES] =
    SENTENCES("options: each of \"stop\" must be a string or a bin, not ");
static const char *const not_biases[TYPES] =
    SENTENCES("options: \"logit_bias\" must be a bin with pairs of token id and bias, not ");
static const char *const not_top[TYPES] =
    SENTENCES("options: \"top_logprobs\" must be an integer from 0 to 20, not ");

static struct head next(struct cursor *c)
{
    struct head h;
    bool there = take_head(c, &h);
    assert(there);
    return h;
}

static int read_label(struct option_label *l, const uint8_t *map, struct cursor *c,
                      const char **why)
{
    struct head h = next(c);
    if (h.type != TYPE_BIN)
        return refuse(why, not_a_label[h.type]);
    if (!h.bytes)
        return refuse(why, "options: one of \"labels\" is empty; each needs at least one token");
    if (h.bytes % sizeof(int32_t))
        return refuse(why,
                      "options: one of \"labels\" is not a number of whole token ids of 4 bytes");
    l->at = (uint32_t)(c->at - map);
    l->n_tokens = (uint32_t)(h.bytes / sizeof(int32_t));
    take_bytes(c, h.bytes);
    return 0;
}

static int read_labels(struct option_map *out, const uint8_t *map, struct cursor *c,
                       const char **why)
{
    static_assert(LLM_CHOICES_MAX == 64, "the sentence below");
    struct head h = next(c);
    if (h.type != TYPE_ARRAY)
        return refuse(why, not_labels[h.type]);
    if (!h.n || h.n > LLM_CHOICES_MAX)
        return refuse(why, "options: \"labels\" must have 1 to 64 elements");
    out->n_labels = (uint32_t)h.n;
    for (uint32_t i = 0; i < out->n_labels; i++) {
        int e = read_label(&out->labels[i], map, c, why);
        if (e)
            return e;
    }
    return 0;
}

static int read_stops(struct option_map *out, const uint8_t *map, struct cursor *c,
                      const char **why)
{
    static_assert(LLM_STOPS_MAX == 16 && LLM_STOP_BYTES_MAX == 256, "the sentences below");
    struct head h = next(c);
    if (h.type != TYPE_ARRAY)
        return refuse(why, not_stops[h.type]);
    if (h.n > LLM_STOPS_MAX)
        return refuse(why, "options: \"stop\" must have at most 16 elements");
    out->n_stops = (uint32_t)h.n;
    for (uint32_t i = 0; i < out->n_stops; i++) {
        h = next(c);
        if (h.type != TYPE_STR && h.type != TYPE_BIN)
            return refuse(why, not_a_stop[h.type]);
        if (!h.bytes || h.bytes > LLM_STOP_BYTES_MAX)
            return refuse(why, "options: each of \"stop\" must have 1 to 256 bytes");
        out->stops[i] = (struct option_stop){(uint32_t)(c->at - map), (uint32_t)h.bytes};
        take_bytes(c, h.bytes);
    }
    return 0;
}

enum { BIAS_BYTES = sizeof(int32_t) + sizeof(float) };

static int read_biases(struct option_map *out, const uint8_t *map, struct cursor *c,
                       const char **why)
{
    static_assert(LLM_BIASES_MAX == 1024, "the sentence below");
    struct head h = next(c);
    if (h.type != TYPE_BIN)
        return refuse(why, not_biases[h.type]);
    if (h.bytes % BIAS_BYTES || h.bytes > (uint64_t)LLM_BIASES_MAX * BIAS_BYTES)
        return refuse(why, "options: \"logit_bias\" must be whole pairs of 8 bytes, at most 1024");
    out->biases_at = (uint32_t)(c->at - map);
    out->n_biases = (uint32_t)(h.bytes / BIAS_BYTES);
    take_bytes(c, h.bytes);
    for (uint32_t i = 0; i < out->n_biases; i++) {
        int32_t token;
        float bias;
        if (option_bias(map, out, i, &token, &bias))
            return refuse(why, "options: a bias of \"logit_bias\" is not in [-100, 100]");
    }
    return 0;
}

/* The number of an INTEGER whose head, that began with `first`, was taken; UINT64_MAX: negative. */
static uint64_t unsigned_of(uint8_t first, const struct head *h, const struct cursor *c)
{
    if (first < 0x80)
        return first;
    bool is_signed = first >= 0xd0; /* of these, d0 .. d3 and the negative e0 .. ff */
    if (first >= 0xe0 || (is_signed && c->at[0] & 0x80))
        return UINT64_MAX;
    int low = h->bytes < 4 ? (int)h->bytes : 4;
    uint64_t high = h->bytes == 8 ? big_endian(c->at, 4) : 0;
    return high << 32 | big_endian(c->at + h->bytes - low, low);
}

static int read_top(struct option_map *out, const uint8_t *map, struct cursor *c, const char **why)
{
    static_assert(LLM_TOP_MAX == 20, "the sentences");
    uint8_t first = *c->at;
    struct head h = next(c);
    (void)map;
    if (h.type != TYPE_INTEGER)
        return refuse(why, not_top[h.type]);
    uint64_t n = unsigned_of(first, &h, c);
    if (n > LLM_TOP_MAX)
        return refuse(why, "options: \"top_logprobs\" must be an integer from 0 to 20");
    out->top = (uint32_t)n;
    take_bytes(c, h.bytes);
    return 0;
}

static const struct {
    const char *name, *twice;
    int (*read)(struct option_map *out, const uint8_t *map, struct cursor *c, const char **why);
} keys[OPTION_KEYS] = {
    [OPTION_LABELS] = {"labels", "options: \"labels\" stands twice in the map", read_labels},
    [OPTION_STOP] = {"stop", "options: \"stop\" stands twice in the map", read_stops},
    [OPTION_BIAS] = {"logit_bias", "options: \"logit_bias\" stands twice in the map", read_biases},
    [OPTION_TOP] = {"top_logprobs", "options: \"top_logprobs\" stands twice in the map", read_top},
};

static bool is_key(const struct cursor *c, uint64_t bytes, const char *key)
{
    return bytes == strlen(key) && !memcmp(c->at, key, bytes);
}

static int read_option(struct option_map *out, const uint8_t *map, struct cursor *c,
                       const char **why)
{
    struct head h = next(c);
    if (h.type != TYPE_STR)
        return refuse(why, not_a_key[h.type]);
    uint32_t k = 0;
    while (k < OPTION_KEYS && !is_key(c, h.bytes, keys[k].name))
        k++;
    if (k == OPTION_KEYS)
        return refuse(why, "options: a key that this engine does not know; it knows \"labels\", "
                           "\"stop\", \"logit_bias\" and \"top_logprobs\"");
    if (out->given & 1u << k)
        return refuse(why, keys[k].twice);
    out->given |= 1u << k;
    take_bytes(c, h.bytes);
    return keys[k].read(out, map, c, why);
}

int option_map_read(struct option_map *out, const uint8_t *map, size_t bytes, const char **why)
{
    struct cursor c = {map, bytes};
    out->given = out->n_labels = out->n_stops = out->n_biases = out->top = 0;
    if (bytes > LLM_OPTIONS_MAX)
        return refuse(why, "options: the map is longer than LLM_OPTIONS_MAX bytes");
    if (!well_formed(c))
        return refuse(why, "options: not one whole msgpack value: cut off, ill-formed or followed "
                           "by other bytes");
    struct head h = next(&c);
    if (h.type != TYPE_MAP)
        return refuse(why, not_a_map[h.type]);
    for (uint64_t i = 0; i < h.n / 2; i++) {
        int e = read_option(out, map, &c, why);
        if (e)
            return e;
    }
    return 0;
}

static uint32_t little_endian(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int option_bias(const uint8_t *map, const struct option_map *m, uint32_t i, int32_t *token,
                float *bias)
{
    const uint8_t *p = map + m->biases_at + (size_t)i * BIAS_BYTES;
    uint32_t bits = little_endian(p + 4);
    *token = (int32_t)little_endian(p);
    memcpy(bias, &bits, sizeof *bias);
    return *bias >= -100.0f && *bias <= 100.0f ? 0 : LLM_EPARAM; /* a NaN fails */
}

void option_label_tokens(const uint8_t *map, const struct option_label *label, int32_t *tokens)
{
    const uint8_t *p = map + label->at;
    for (uint32_t i = 0; i < label->n_tokens; i++, p += 4)
        tokens[i] = (int32_t)little_endian(p);
}
