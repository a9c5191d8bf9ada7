/* choose.c - choosing among labels: the option map that carries them, and adding up what comes.
 *
 * The map is msgpack: {"labels": [bin, ...]}, each bin a label's token ids as little endian s32,
 * which is how this machine stores them. Format:
 * https://github.com/msgpack/msgpack/blob/master/spec.md
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "handle.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token ids are stored as they are sent");

/* ---- the option map ---- */

static const uint8_t map_head[] = {0x81, 0xA6, 'l', 'a', 'b', 'e', 'l', 's'};

static size_t bin_head_bytes(uint64_t bytes)
{
    return bytes <= UINT8_MAX ? 2 : bytes <= UINT16_MAX ? 3 : 5;
}

uint64_t labels_bytes(const struct llm_label *labels, uint32_t n)
{
    uint64_t sum = sizeof map_head + (n <= 15 ? 1 : 3);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = (uint64_t)labels[i].n_tokens * sizeof(int32_t);
        sum += bin_head_bytes(bytes) + bytes;
    }
    return sum;
}

/* A head: its code, then `width` bytes of a number, big endian. */
static uint8_t *put_head(uint8_t *to, uint8_t code, uint32_t number, unsigned width)
{
    *to++ = code;
    while (width--)
        *to++ = (uint8_t)(number >> 8 * width);
    return to;
}

static uint8_t *put_label(uint8_t *to, const struct llm_label *label)
{
    uint32_t bytes = label->n_tokens * (uint32_t)sizeof(int32_t);
    size_t head = bin_head_bytes(bytes);
    to = put_head(to, head == 2 ? 0xC4 : head == 3 ? 0xC5 : 0xC6, bytes, (unsigned)head - 1);
    memcpy(to, label->tokens, bytes);
    return to + bytes;
}

void labels_write(const struct llm_label *labels, uint32_t n, uint8_t *to)
{
    assert(n && n <= LLM_CHOICES_MAX);
    memcpy(to, map_head, sizeof map_head);
    to += sizeof map_head;
    to = n <= 15 ? put_head(to, (uint8_t)(0x90 | n), 0, 0) : put_head(to, 0xDC, n, 2);
    for (uint32_t i = 0; i < n; i++)
        to = put_label(to, &labels[i]);
}

/* ---- the call, and its events ---- */

int llm_choose(struct llm_client *c, const int32_t *tokens, uint32_t n,
               const struct llm_label *labels, uint32_t n_labels, uint64_t *id)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = LLM_OP_CHOOSE;
    r.tokens = tokens, r.n_tokens = n;
    r.labels = labels, r.n_labels = n_labels;
    return llm_submit(c, &r, id);
}

void llm_choose_begin(struct llm_choose_result *r, uint64_t id, uint32_t n_labels)
{
    *r = (struct llm_choose_result){.id = id, .n_labels = n_labels};
    if (n_labels > LLM_CHOICES_MAX)
        r->n_labels = LLM_CHOICES_MAX;
    if (r->n_labels)
        r->owed = UINT64_MAX >> (64 - r->n_labels);
}

static void settle(struct llm_choose_result *r, const struct llm_event *e)
{
    r->owed &= ~(1ull << e->choice);
    if (r->status)
        return;
    if (e->type == LLM_EVENT_ERROR)
        r->status = e->status;
    else if (e->finish == LLM_FINISH_CANCELLED)
        r->status = -ECANCELED;
    else if (e->finish == LLM_FINISH_TIMEOUT)
        r->status = -ETIMEDOUT;
}

int llm_choose_add(struct llm_choose_result *r, const struct llm_event *e)
{
    if (e->id == r->id && e->choice < r->n_labels) {
        for (uint32_t i = 0; i < e->n_tokens; i++)
            r->logprob[e->choice] += (double)e->logprobs[i];
        r->n_tokens[e->choice] += e->n_tokens;
        if (e->type != LLM_EVENT_TOKENS)
            settle(r, e);
    }
    return r->owed ? 0 : r->status ? r->status : 1;
}

uint32_t llm_choose_best(const struct llm_choose_result *r)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < r->n_labels; i++)
        if (r->logprob[i] > r->logprob[best])
            best = i;
    return best;
}
