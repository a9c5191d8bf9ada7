/* spm.c - SentencePiece's BPE (google/sentencepiece, bpe_model.cc: best score first, leftmost among
 * equals) with byte fallback.
 */
#include "spm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../shm/vocab.h"
#include "utf8.h"

/* Maps scores to u32 so that the greatest score is the smallest number and none is MERGE_NEVER. */
static uint32_t priority_of(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ascending ? ~ascending : MERGE_NEVER - 1;
}

static void find_glue(struct spm *s)
{
    const struct words *w = s->words;
    for (uint32_t id = 0; id < w->n; id++) {
        size_t bytes;
        const char *at = words_bytes(w, (int32_t)id, &bytes);
        if (w->class[id] == VOCAB_CONTROL)
            continue;
        for (size_t i = 1; i < bytes; i++)
            if (at[i] == ' ')
                s->glues[(unsigned char)at[i - 1]] = true;
    }
}

int spm_build(struct spm *s, const struct words *words, const struct llm_vocab *image)
{
    *s = (struct spm){.words = words, .unknown = image->unk};
    s->priorities = malloc((size_t)words->n * sizeof *s->priorities + 1);
    if (!s->priorities)
        return -ENOMEM;
    const float *scores = NULL;
    if (image->scores_off)
        scores = (const float *)((const char *)image + image->scores_off);
    for (uint32_t id = 0; id < words->n; id++)
        s->priorities[id] = priority_of(scores ? scores[id] : 0.0f);
    find_glue(s);
    return 0;
}

void spm_free(struct spm *s)
{
    free(s->priorities);
}

struct stretch {
    const struct spm *spm;
    const char *at;
};

static void judge(const void *context, struct merge_symbol *symbols, uint32_t left)
{
    const struct stretch *t = context;
    struct merge_symbol *s = &symbols[left];
    uint32_t end = symbols[s->next].next;
    s->joined = words_find(t->spm->words, t->at + left, end - left);
    s->priority = s->joined < 0 ? MERGE_NEVER : t->spm->priorities[s->joined];
}

static void list_characters(const struct words *w, struct merge_symbol *symbols, const char *at,
                            uint32_t bytes)
{
    uint32_t previous = MERGE_NEVER;
    for (uint32_t i = 0; i < bytes;) {
        unsigned used;
        utf8_decode(at + i, bytes - i, &used);
        symbols[i] = (struct merge_symbol){
            .id = words_find(w, at + i, used), .previous = previous, .next = i + used};
        previous = i;
        i += used;
    }
}

static void emit_bytes(const struct spm *s, const char *at, size_t bytes,
                       void (*emit)(void *to, int32_t id), void *to)
{
    const int32_t *token = s->words->byte_token;
    bool all = true;
    for (size_t i = 0; i < bytes; i++)
        all &= token[(unsigned char)at[i]] >= 0;
    for (size_t i = 0; all && i < bytes; i++)
        emit(to, token[(unsigned char)at[i]]);
    if (!all && s->unknown >= 0)
        emit(to, s->unknown);
}

static int merge_stretch(const struct spm *s, struct merge_space *m, const char *at, size_t bytes,
                         void (*emit)(void *to, int32_t id), void *to)
{
    int rc = merge_reserve(m, bytes);
    if (rc < 0)
        return rc;
    struct stretch stretch = {s, at};
    uint32_t end = (uint32_t)bytes;
    list_characters(s->words, m->symbols, at, end);
    merge_run(m, end, (struct merge_rules){judge, &stretch});
    for (uint32_t i = 0; i != end; i = m->symbols[i].next) {
        if (m->symbols[i].id >= 0)
            emit(to, m->symbols[i].id);
        else
            emit_bytes(s, at + i, m->symbols[i].next - i, emit, to);
    }
    return 0;
}

int spm_text(const struct spm *s, struct merge_space *m, const char *text, size_t bytes,
             void (*emit)(void *to, int32_t id), void *to)
{
    int rc = 0;
    size_t begin = 0;
    for (size_t i = 1; i <= bytes && rc == 0; i++) {
        bool splits = i == bytes || (text[i] == ' ' && !s->glues[(unsigned char)text[i - 1]]);
        if (!splits)
            continue;
        rc = merge_stretch(s, m, text + begin, i - begin, emit, to);
        begin = i;
    }
    return rc;
}
