/* vocab.c - the one check that stands between a vocabulary image and its readers.
 *
 * After it said 0, every offset, end and id in the image may be used without another look: sections
 * lie one behind the other inside the image, texts inside their strings, ids inside the vocabulary,
 * each merge has a left and a right part. The image must not change meanwhile: its memfd is sealed.
 */
#include "vocab.h"

#include <stdbool.h>
#include <string.h>

enum { TYPE_MIN = 1, TYPE_MAX = 6, KNOWN_FLAGS = 7 };

/* Takes the next section: `bytes` at offset `at`, aligned, not before `*end`, inside `total`. An
 * empty section may have offset 0. */
static bool section(uint64_t *end, uint64_t at, uint64_t bytes, uint64_t total)
{
    if (at == 0 && bytes == 0)
        return true;
    if (at % 8 || at < *end || at > total || bytes > total - at)
        return false;
    *end = at + bytes;
    return true;
}

static bool sections_ok(const struct llm_vocab *h)
{
    uint64_t end = sizeof *h, n = h->n_tokens;
    return section(&end, h->text_end_off, n * 4, h->bytes) &&
           section(&end, h->types_off, n, h->bytes) &&
           (h->scores_off == 0 || section(&end, h->scores_off, n * 4, h->bytes)) &&
           section(&end, h->merge_end_off, (uint64_t)h->n_merges * 4, h->bytes) &&
           section(&end, h->eog_off, (uint64_t)h->n_eog * 4, h->bytes) &&
           section(&end, h->strings_off, h->strings_bytes, h->bytes) &&
           section(&end, h->merge_strings_off, h->merge_strings_bytes, h->bytes) &&
           section(&end, h->template_off, h->template_bytes, h->bytes);
}

static bool id_ok(const struct llm_vocab *h, int32_t id)
{
    return id >= -1 && (id < 0 || (uint32_t)id < h->n_tokens);
}

static bool header_ok(const struct llm_vocab *h, size_t bytes)
{
    return h->magic == LLM_MAGIC_VOCAB && h->version == 1 &&
           (h->kind == LLM_VOCAB_BPE || h->kind == LLM_VOCAB_SPM) && h->bytes >= sizeof *h &&
           h->bytes <= bytes && h->n_tokens >= 1 && h->n_tokens <= INT32_MAX &&
           h->n_eog <= h->n_tokens && (h->flags & ~(uint32_t)KNOWN_FLAGS) == 0 &&
           id_ok(h, h->bos) && id_ok(h, h->eos) && id_ok(h, h->eot) && id_ok(h, h->eom) &&
           id_ok(h, h->unk) && id_ok(h, h->pad) && memchr(h->pre, 0, sizeof h->pre) &&
           memchr(h->model, 0, sizeof h->model);
}

static bool ends_ok(const uint32_t *end, uint32_t n, uint64_t strings_bytes)
{
    uint32_t before = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (end[i] < before || end[i] > strings_bytes)
            return false;
        before = end[i];
    }
    return true;
}

static bool types_ok(const uint8_t *types, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (types[i] < TYPE_MIN || types[i] > TYPE_MAX)
            return false;
    return true;
}

/* Scores are compared with each other: a NaN would make an order of none. */
static bool scores_ok(const float *scores, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (scores[i] != scores[i])
            return false;
    return true;
}

static bool eog_ok(const struct llm_vocab *h, const int32_t *eog)
{
    for (uint32_t i = 0; i < h->n_eog; i++)
        if (eog[i] < 0 || (uint32_t)eog[i] >= h->n_tokens || (i && eog[i] <= eog[i - 1]))
            return false;
    return true;
}

/* "left right": a space that is neither the first nor the last byte. */
static bool merges_ok(const uint32_t *end, uint32_t n, const char *strings)
{
    uint32_t before = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bytes = end[i] - before;
        if (bytes < 3 || !memchr(strings + before + 1, ' ', bytes - 2))
            return false;
        before = end[i];
    }
    return true;
}

int llm_vocab_check(const void *image, size_t bytes)
{
    const char *at = image;
    struct llm_vocab h;
    if (!image || (uintptr_t)image % 8 || bytes < sizeof h)
        return LLM_EPROTO;
    memcpy(&h, image, sizeof h);
    if (!header_ok(&h, bytes) || !sections_ok(&h))
        return LLM_EPROTO;

    const uint32_t *text_end = (const uint32_t *)(at + h.text_end_off);
    const uint32_t *merge_end = (const uint32_t *)(at + h.merge_end_off);
    bool ok = ends_ok(text_end, h.n_tokens, h.strings_bytes) &&
              ends_ok(merge_end, h.n_merges, h.merge_strings_bytes) &&
              merges_ok(merge_end, h.n_merges, at + h.merge_strings_off) &&
              types_ok((const uint8_t *)at + h.types_off, h.n_tokens) &&
              eog_ok(&h, (const int32_t *)(at + h.eog_off)) &&
              (h.scores_off == 0 || scores_ok((const float *)(at + h.scores_off), h.n_tokens));
    return ok ? 0 : LLM_EPROTO;
}
