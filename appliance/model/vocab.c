/* vocab.c - the tokenizer's data: tokens, types, scores, merges, special tokens, chat template.
 *
 * What is accepted is whole: every id is inside the vocabulary, each merge joins two tokens into a
 * third, an SPM vocabulary has its scores. Which pre-tokenizer a name stands for is the client's
 * business; here it is only recorded.
 *
 * Source of the keys and of their defaults: the GGUF specification; llama.cpp for what is taken
 * where a key is missing (add_bos: SentencePiece vocabularies and the llama-bpe family have it on).
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

enum { TOKENS_MAX = 1 << 24, NOBODY = -1 };

/* Tokens that end a generation whatever the special ids say: files often name only one of them. */
static const char *const eog_texts[] = {"<|eot_id|>",    "<|im_end|>", "<|eom_id|>",
                                        "<end_of_turn>", "<|end|>",    "<|endoftext|>"};

enum { EOG_TEXTS = sizeof eog_texts / sizeof eog_texts[0], EOG_MAX = EOG_TEXTS + 3 };

/* ---- text -> id ---- */

/* Open addressing, at most half full. The seed is not guessable, so that no file can be made to
 * collide. */
struct lookup {
    const struct model_text *texts;
    int32_t *slots; /* (mask + 1) ids, NOBODY: free */
    uint32_t mask;
    XXH64_hash_t seed;
};

static uint32_t slot_of(const struct lookup *l, const char *at, uint32_t bytes)
{
    uint32_t slot = (uint32_t)XXH3_64bits_withSeed(at, bytes, l->seed) & l->mask;
    for (;; slot = (slot + 1) & l->mask) {
        int32_t id = l->slots[slot];
        if (id == NOBODY ||
            (l->texts[id].bytes == bytes && memcmp(l->texts[id].at, at, bytes) == 0))
            return slot;
    }
}

static int32_t lookup_id(const struct lookup *l, const char *at, uint32_t bytes)
{
    return l->slots[slot_of(l, at, bytes)];
}

/* Of equal texts the first id is found. */
static int lookup_build(struct lookup *l, const struct model_text *texts, uint32_t n)
{
    uint32_t size = 16;
    while (size < 2 * n)
        size *= 2;
    *l = (struct lookup){.texts = texts, .mask = size - 1};
    l->slots = malloc(size * sizeof l->slots[0]);
    if (!l->slots)
        return -ENOMEM;
    l->seed = (XXH64_hash_t)(uintptr_t)l->slots;
    for (uint32_t i = 0; i < size; i++)
        l->slots[i] = NOBODY;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = slot_of(l, texts[i].at, texts[i].bytes);
        if (l->slots[slot] == NOBODY)
            l->slots[slot] = (int32_t)i;
    }
    return 0;
}

/* ---- arrays ---- */

static int read_kind(struct opened *o, struct fail *f)
{
    struct model_text kind;
    char shown[64];
    int rc = gguf_text(o->file, "tokenizer.ggml.model", GGUF_NEEDED, &kind, f);
    if (rc < 0)
        return rc;
    if (kind.bytes == 4 && memcmp(kind.at, "gpt2", 4) == 0) {
        o->m.vocab.tokenizer = MODEL_TOKENIZER_BPE;
    } else if (kind.bytes == 5 && memcmp(kind.at, "llama", 5) == 0) {
        o->m.vocab.tokenizer = MODEL_TOKENIZER_SPM;
    } else {
        return gguf_refuse(o->file, f, -ENOTSUP,
                           "key 'tokenizer.ggml.model' is %s; this program knows the tokenizers "
                           "'gpt2' (byte-level BPE) and 'llama' (SentencePiece)",
                           gguf_quote(shown, sizeof shown, kind.at, kind.bytes));
    }
    return 0;
}

static int read_pre(struct opened *o, struct fail *f)
{
    struct model_text pre;
    struct model_vocab *v = &o->m.vocab;
    int rc = gguf_text(o->file, "tokenizer.ggml.pre", GGUF_OPTIONAL, &pre, f);
    if (rc <= 0)
        return rc;
    if (pre.bytes >= sizeof v->pre || memchr(pre.at, 0, pre.bytes))
        return gguf_refuse(o->file, f, -EINVAL,
                           "key 'tokenizer.ggml.pre' is no name (%" PRIu32
                           " bytes, below %zu and without NUL are needed): the file is damaged",
                           pre.bytes, sizeof v->pre);
    memcpy(v->pre, pre.at, pre.bytes);
    return 0;
}

static int read_tokens(struct opened *o, struct fail *f)
{
    struct model_vocab *v = &o->m.vocab;
    int rc = gguf_texts(o->file, "tokenizer.ggml.tokens", GGUF_NEEDED, &o->texts, &v->n_tokens, f);
    if (rc < 0)
        return rc;
    v->texts = o->texts;
    if (v->n_tokens == 0 || v->n_tokens > TOKENS_MAX)
        return gguf_refuse(o->file, f, -EINVAL,
                           "key 'tokenizer.ggml.tokens' has %" PRIu32
                           " entries, 1 to %d are allowed: "
                           "the file is damaged",
                           v->n_tokens, TOKENS_MAX);
    return 0;
}

static int read_types(struct opened *o, struct fail *f)
{
    struct model_vocab *v = &o->m.vocab;
    o->types = malloc(v->n_tokens);
    if (!o->types)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory for the types of its tokens");
    v->types = o->types;
    memset(o->types, MODEL_TOKEN_NORMAL, v->n_tokens);
    int rc = gguf_u8s(o->file, "tokenizer.ggml.token_type", v->n_tokens, MODEL_TOKEN_NORMAL,
                      MODEL_TOKEN_BYTE, GGUF_OPTIONAL, o->types, f);
    return rc < 0 ? rc : 0;
}

static int read_scores(struct opened *o, struct fail *f)
{
    struct model_vocab *v = &o->m.vocab;
    bool spm = v->tokenizer == MODEL_TOKENIZER_SPM;
    if (!spm && !gguf_find(o->file, "tokenizer.ggml.scores"))
        return 0;
    o->scores = malloc(v->n_tokens * sizeof(float));
    if (!o->scores)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory for the scores of its tokens");
    int rc = gguf_f32s(o->file, "tokenizer.ggml.scores", v->n_tokens, GGUF_NEEDED, o->scores, f);
    if (rc < 0)
        return rc;
    v->scores = o->scores;
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (o->scores[i] != o->scores[i])
            return gguf_refuse(o->file, f, -EINVAL,
                               "key 'tokenizer.ggml.scores': entry %" PRIu32
                               " is no number: the file is damaged",
                               i);
    return 0;
}

/* ---- merges ---- */

/* Where the left part ends: the first space that is not its first character; 0: there is none, or
 * nothing behind it. */
static uint32_t merge_split(struct model_text t)
{
    const char *space = t.bytes > 2 ? memchr(t.at + 1, ' ', t.bytes - 2) : NULL;
    return space ? (uint32_t)(space - t.at) : 0;
}

static int check_merge(struct opened *o, const struct lookup *l, char *scratch, uint32_t i,
                       struct fail *f)
{
    char shown[96];
    struct model_text t = o->merges[i];
    uint32_t left = merge_split(t), right = t.bytes - left - 1;
    if (left == 0)
        return gguf_refuse(o->file, f, -EINVAL,
                           "key 'tokenizer.ggml.merges': entry %" PRIu32
                           " is %s, not two parts with a "
                           "space between: the file is damaged",
                           i, gguf_quote(shown, sizeof shown, t.at, t.bytes));
    memcpy(scratch, t.at, left);
    memcpy(scratch + left, t.at + left + 1, right);
    const char *part = lookup_id(l, t.at, left) < 0               ? "left part"
                       : lookup_id(l, t.at + left + 1, right) < 0 ? "right part"
                       : lookup_id(l, scratch, left + right) < 0  ? "result"
                                                                  : NULL;
    if (part)
        return gguf_refuse(o->file, f, -EINVAL,
                           "key 'tokenizer.ggml.merges': the %s of entry %" PRIu32
                           ", %s, is no token of the vocabulary: the file is damaged",
                           part, i, gguf_quote(shown, sizeof shown, t.at, t.bytes));
    return 0;
}

static int check_merges(struct opened *o, const struct lookup *l, struct fail *f)
{
    uint32_t longest = 1;
    int rc = 0;
    for (uint32_t i = 0; i < o->m.vocab.n_merges; i++)
        if (o->merges[i].bytes > longest)
            longest = o->merges[i].bytes;
    char *scratch = malloc(longest);
    if (!scratch)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory to check its merges");
    for (uint32_t i = 0; i < o->m.vocab.n_merges && rc == 0; i++)
        rc = check_merge(o, l, scratch, i, f);
    free(scratch);
    return rc;
}

static int read_merges(struct opened *o, const struct lookup *l, struct fail *f)
{
    struct model_vocab *v = &o->m.vocab;
    if (v->tokenizer != MODEL_TOKENIZER_BPE)
        return 0;
    int rc = gguf_texts(o->file, "tokenizer.ggml.merges", GGUF_NEEDED, &o->merges, &v->n_merges, f);
    if (rc < 0)
        return rc;
    v->merges = o->merges;
    return check_merges(o, l, f);
}

/* ---- special tokens ---- */

static int read_special(struct opened *o, struct fail *f)
{
    struct model_vocab *v = &o->m.vocab;
    const struct {
        const char *key;
        int32_t *id;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &v->bos},     {"tokenizer.ggml.eos_token_id", &v->eos},
        {"tokenizer.ggml.eot_token_id", &v->eot},     {"tokenizer.ggml.eom_token_id", &v->eom},
        {"tokenizer.ggml.unknown_token_id", &v->unk}, {"tokenizer.ggml.padding_token_id", &v->pad},
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        uint32_t id;
        int rc = gguf_u32(o->file, ids[i].key, 0, v->n_tokens - 1, GGUF_OPTIONAL, &id, f);
        if (rc < 0)
            return rc;
        *ids[i].id = rc ? (int32_t)id : NOBODY;
    }
    return 0;
}

/* Pre-tokenizers whose models start every text with bos even where the file does not say so. */
static bool pre_adds_bos(const char *pre)
{
    static const char *const names[] = {"llama3", "llama-v3", "llama-bpe", "falcon3", "tekken"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(pre, names[i]) == 0)
            return true;
    return false;
}

static int read_habits(struct opened *o, struct fail *f)
{
    struct model_vocab *v = &o->m.vocab;
    bool spm = v->tokenizer == MODEL_TOKENIZER_SPM;
    int rc;
    v->add_bos = spm || pre_adds_bos(v->pre);
    v->add_space_prefix = spm;
    if ((rc = gguf_bool(o->file, "tokenizer.ggml.add_bos_token", GGUF_OPTIONAL, &v->add_bos, f)) <
            0 ||
        (rc = gguf_bool(o->file, "tokenizer.ggml.add_eos_token", GGUF_OPTIONAL, &v->add_eos, f)) <
            0 ||
        (rc = gguf_bool(o->file, "tokenizer.ggml.add_space_prefix", GGUF_OPTIONAL,
                        &v->add_space_prefix, f)) < 0)
        return rc;
    v->add_bos = v->add_bos && v->bos != NOBODY; /* there must be one to add */
    v->add_eos = v->add_eos && v->eos != NOBODY;
    return 0;
}

/* Puts an id into the ascending set, once. */
static void eog_add(struct opened *o, int32_t id)
{
    struct model_vocab *v = &o->m.vocab;
    uint32_t at = v->n_eog;
    if (id == NOBODY)
        return;
    for (uint32_t i = 0; i < v->n_eog; i++)
        if (o->eog[i] == id)
            return;
    assert(v->n_eog < EOG_MAX);
    for (; at > 0 && o->eog[at - 1] > id; at--)
        o->eog[at] = o->eog[at - 1];
    o->eog[at] = id;
    v->n_eog++;
}

static int read_eog(struct opened *o, const struct lookup *l, struct fail *f)
{
    struct model_vocab *v = &o->m.vocab;
    o->eog = calloc(EOG_MAX, sizeof o->eog[0]);
    if (!o->eog)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory for its end-of-generation tokens");
    v->eog = o->eog;
    eog_add(o, v->eos);
    eog_add(o, v->eot);
    eog_add(o, v->eom);
    for (int i = 0; i < EOG_TEXTS; i++)
        eog_add(o, lookup_id(l, eog_texts[i], (uint32_t)strlen(eog_texts[i])));
    return 0;
}

/* What needs texts to be found. */
static int read_by_text(struct opened *o, struct fail *f)
{
    struct lookup l;
    if (lookup_build(&l, o->texts, o->m.vocab.n_tokens) < 0)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory to look its tokens up");
    int rc = read_merges(o, &l, f);
    if (rc == 0)
        rc = read_eog(o, &l, f);
    free(l.slots);
    return rc;
}

int vocab_read(struct opened *o, struct fail *f)
{
    static int (*const steps[])(struct opened *, struct fail *) = {
        read_kind,   read_pre,     read_tokens, read_types,
        read_scores, read_special, read_habits, read_by_text,
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int rc = steps[i](o, f);
        if (rc < 0)
            return rc;
    }
    int rc =
        gguf_text(o->file, "tokenizer.chat_template", GGUF_OPTIONAL, &o->m.vocab.chat_template, f);
    return rc < 0 ? rc : 0;
}
