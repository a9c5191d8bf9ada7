/* image.c - lays the tokenizer's data out as the vocabulary image of shm/vocab.h.
 *
 * The sections come in the order of that header, each 8-byte aligned, the gaps zero: the same
 * vocabulary makes the same bytes.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../../shm/vocab.h"
#include "parts.h"

static uint64_t total_bytes(const struct model_text *texts, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += texts[i].bytes;
    return sum;
}

/* Gives a section its place behind the others. */
static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t at = (*end + 7) & ~(uint64_t)7;
    *end = at + bytes;
    return at;
}

static void lay_out(struct llm_vocab *h, const struct model_vocab *v)
{
    uint64_t end = sizeof *h;
    h->strings_bytes = total_bytes(v->texts, v->n_tokens);
    h->merge_strings_bytes = total_bytes(v->merges, v->n_merges);
    h->template_bytes = v->chat_template.bytes;
    h->text_end_off = place(&end, (uint64_t)v->n_tokens * 4);
    h->types_off = place(&end, v->n_tokens);
    h->scores_off = v->scores ? place(&end, (uint64_t)v->n_tokens * 4) : 0;
    h->merge_end_off = place(&end, (uint64_t)v->n_merges * 4);
    h->eog_off = place(&end, (uint64_t)v->n_eog * 4);
    h->strings_off = place(&end, h->strings_bytes);
    h->merge_strings_off = place(&end, h->merge_strings_bytes);
    h->template_off = place(&end, h->template_bytes);
    h->bytes = (end + 7) & ~(uint64_t)7;
}

static void fill_header(struct llm_vocab *h, const struct model *m)
{
    const struct model_vocab *v = &m->vocab;
    h->magic = LLM_MAGIC_VOCAB;
    h->version = 1;
    h->kind = v->tokenizer == MODEL_TOKENIZER_BPE ? LLM_VOCAB_BPE : LLM_VOCAB_SPM;
    h->n_tokens = v->n_tokens;
    h->n_merges = v->n_merges;
    h->n_eog = v->n_eog;
    h->flags = (v->add_bos ? LLM_VOCAB_ADD_BOS : 0) | (v->add_eos ? LLM_VOCAB_ADD_EOS : 0) |
               (v->add_space_prefix ? LLM_VOCAB_SPACE_PREFIX : 0);
    h->bos = v->bos;
    h->eos = v->eos;
    h->eot = v->eot;
    h->eom = v->eom;
    h->unk = v->unk;
    h->pad = v->pad;
    memcpy(h->pre, v->pre, sizeof h->pre);
    memcpy(h->model, m->name, sizeof h->model);
}

_Static_assert(sizeof((struct llm_vocab *)0)->pre == sizeof((struct model_vocab *)0)->pre &&
                   sizeof((struct llm_vocab *)0)->model == sizeof((struct model *)0)->name,
               "names are copied whole");

static void put_texts(char *image, uint64_t ends_off, uint64_t strings_off,
                      const struct model_text *texts, uint32_t n)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(image + strings_off + end, texts[i].at, texts[i].bytes);
        end += texts[i].bytes;
        memcpy(image + ends_off + (uint64_t)i * 4, &end, 4);
    }
}

static void fill_sections(char *image, const struct llm_vocab *h, const struct model_vocab *v)
{
    put_texts(image, h->text_end_off, h->strings_off, v->texts, v->n_tokens);
    put_texts(image, h->merge_end_off, h->merge_strings_off, v->merges, v->n_merges);
    memcpy(image + h->types_off, v->types, v->n_tokens);
    memcpy(image + h->eog_off, v->eog, (size_t)v->n_eog * 4);
    if (v->scores)
        memcpy(image + h->scores_off, v->scores, (size_t)v->n_tokens * 4);
    if (v->chat_template.bytes)
        memcpy(image + h->template_off, v->chat_template.at, v->chat_template.bytes);
}

int model_vocab_image(const struct model *m, void **image, size_t *bytes, struct fail *f)
{
    const struct model_vocab *v = &m->vocab;
    struct llm_vocab h = {0};
    *image = NULL;
    *bytes = 0;
    lay_out(&h, v);
    if (h.strings_bytes > UINT32_MAX || h.merge_strings_bytes > UINT32_MAX)
        return fail(f, -EOVERFLOW, "%.200s: the texts of its vocabulary take more than 4 GiB",
                    m->path);
    fill_header(&h, m);
    char *at = calloc(1, h.bytes);
    if (!at)
        return fail(f, -ENOMEM, "no memory for a vocabulary image of %" PRIu64 " bytes", h.bytes);
    memcpy(at, &h, sizeof h);
    fill_sections(at, &h, v);
    assert(llm_vocab_check(at, h.bytes) == 0);
    *image = at;
    *bytes = h.bytes;
    return 0;
}
