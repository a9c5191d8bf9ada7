/* options.c - the option map of a request: what has no place in the entry, as msgpack.
 *
 *   {"labels": [bin, ...]}                                  of a choose
 *   {"stop": [bin, ...], "logit_bias": bin, "top_logprobs": n}   of a generate, what was given of them
 *
 * Labels: token ids, s32. Bias: pairs of s32 token and f32 bias. All little endian.
 * Sizes are u64: labels of 2^32 tokens do not overflow them.
 *
 * Format: https://github.com/msgpack/msgpack/blob/master/spec.md, appliance/option_map.h
 */
#include <assert.h>
#include <string.h>

#include "handle.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are stored as they are sent");

/* Writes where there is somewhere to write, and counts. */
struct writer {
    uint8_t *to; /* NULL: count only */
    uint64_t bytes;
};

static void put(struct writer *w, const void *from, uint64_t n)
{
    if (w->to)
        memcpy(w->to + w->bytes, from, n);
    w->bytes += n;
}

/* A head: its code, then `width` bytes of a number, big endian. */
static void put_head(struct writer *w, uint8_t code, uint32_t number, unsigned width)
{
    uint8_t head[5] = {code};
    for (unsigned i = 0; i < width; i++)
        head[1 + i] = (uint8_t)(number >> 8 * (width - 1 - i));
    put(w, head, 1 + width);
}

static void put_key(struct writer *w, const char *key)
{
    size_t n = strlen(key);
    assert(n < 32);
    put_head(w, (uint8_t)(0xA0 | n), 0, 0);
    put(w, key, n);
}

static void put_bin(struct writer *w, const void *from, uint64_t n)
{
    unsigned width = n <= UINT8_MAX ? 1 : n <= UINT16_MAX ? 2 : 4;
    put_head(w, width == 1 ? 0xC4 : width == 2 ? 0xC5 : 0xC6, (uint32_t)n, width);
    put(w, from, n);
}

static void put_array(struct writer *w, uint32_t n)
{
    assert(n <= UINT16_MAX);
    if (n <= 15)
        put_head(w, (uint8_t)(0x90 | n), 0, 0);
    else
        put_head(w, 0xDC, n, 2);
}

static void put_labels(struct writer *w, const struct llm_request *r)
{
    put_key(w, "labels");
    put_array(w, r->n_labels);
    for (uint32_t i = 0; i < r->n_labels; i++)
        put_bin(w, r->labels[i].tokens, (uint64_t)r->labels[i].n_tokens * sizeof(int32_t));
}

static void put_stops(struct writer *w, const struct llm_request *r)
{
    put_key(w, "stop");
    put_array(w, r->n_stops);
    for (uint32_t i = 0; i < r->n_stops; i++)
        put_bin(w, r->stops[i].text, r->stops[i].bytes);
}

static void put_biases(struct writer *w, const struct llm_request *r)
{
    put_key(w, "logit_bias");
    put_bin(w, r->biases, (uint64_t)r->n_biases * sizeof *r->biases);
}

static void put_generate(struct writer *w, const struct llm_request *r)
{
    unsigned n = (r->n_stops > 0) + (r->n_biases > 0) + (r->top_logprobs > 0);
    if (!n)
        return;
    put_head(w, (uint8_t)(0x80 | n), 0, 0);
    if (r->n_stops)
        put_stops(w, r);
    if (r->n_biases)
        put_biases(w, r);
    if (r->top_logprobs) {
        put_key(w, "top_logprobs");
        put_head(w, (uint8_t)r->top_logprobs, 0, 0); /* one byte up to 127 */
    }
}

static uint64_t put_all(struct writer w, const struct llm_request *r)
{
    if (r->op == LLM_OP_GENERATE) {
        put_generate(&w, r);
    } else if (r->op == LLM_OP_CHOOSE) {
        put_head(&w, 0x81, 0, 0);
        put_labels(&w, r);
    }
    return w.bytes;
}

uint64_t request_options_bytes(const struct llm_request *r)
{
    return put_all((struct writer){0}, r);
}

void request_options_write(const struct llm_request *r, uint8_t *to)
{
    put_all((struct writer){.to = to}, r);
}
