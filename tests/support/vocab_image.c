/* vocab_image.c - a small GGUF reader and an image builder, for tests alone. */
#include "vocab_image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

/* ---- image ---- */

struct strings {
    const char *const *at;
    const uint32_t *bytes;
    uint32_t n;
};

static uint32_t string_bytes(struct strings s, uint32_t i)
{
    return s.bytes ? s.bytes[i] : (uint32_t)strlen(s.at[i]);
}

static uint64_t total_bytes(struct strings s)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < s.n; i++)
        total += string_bytes(s, i);
    return total;
}

static uint64_t take(uint64_t *used, uint64_t bytes)
{
    uint64_t at = (*used + 7) / 8 * 8;
    *used = at + bytes;
    return at;
}

static void fill(struct strings s, char *to, uint32_t *end)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < s.n; i++) {
        memcpy(to + total, s.at[i], string_bytes(s, i));
        end[i] = total += string_bytes(s, i);
    }
}

static struct llm_vocab header_of(const struct vocab_recipe *r, struct strings texts,
                                  struct strings merges)
{
    uint64_t used = sizeof(struct llm_vocab);
    struct llm_vocab h = {.magic = LLM_MAGIC_VOCAB, .version = 1, .kind = r->kind};
    h.n_tokens = r->n_tokens, h.n_merges = r->n_merges, h.n_eog = r->eog >= 0;
    h.flags = r->flags;
    h.bos = r->bos, h.eos = r->eos, h.unk = r->unk, h.eot = h.eom = h.pad = -1;
    snprintf(h.pre, sizeof h.pre, "%s", r->pre ? r->pre : "");
    snprintf(h.model, sizeof h.model, "test");
    h.text_end_off = take(&used, 4ull * h.n_tokens);
    h.types_off = take(&used, h.n_tokens);
    h.scores_off = r->scores ? take(&used, 4ull * h.n_tokens) : 0;
    h.merge_end_off = take(&used, 4ull * h.n_merges);
    h.eog_off = take(&used, 4ull * h.n_eog);
    h.strings_bytes = total_bytes(texts);
    h.strings_off = take(&used, h.strings_bytes);
    h.merge_strings_bytes = total_bytes(merges);
    h.merge_strings_off = take(&used, h.merge_strings_bytes);
    h.template_off = take(&used, 0);
    h.bytes = used;
    return h;
}

struct llm_vocab *vocab_image(const struct vocab_recipe *r)
{
    struct strings texts = {r->texts, r->text_bytes, r->n_tokens};
    struct strings merges = {r->merges, r->merge_bytes, r->n_merges};
    struct llm_vocab h = header_of(r, texts, merges);
    char *base = calloc(1, h.bytes);
    assert_non_null(base);
    memcpy(base, &h, sizeof h);
    fill(texts, base + h.strings_off, (uint32_t *)(base + h.text_end_off));
    fill(merges, base + h.merge_strings_off, (uint32_t *)(base + h.merge_end_off));
    memcpy(base + h.types_off, r->types, h.n_tokens);
    if (r->scores)
        memcpy(base + h.scores_off, r->scores, 4ull * h.n_tokens);
    if (r->eog >= 0)
        *(int32_t *)(base + h.eog_off) = r->eog;
    assert_int_equal(llm_vocab_check(base, h.bytes), 0);
    return (struct llm_vocab *)base;
}

/* ---- GGUF ---- */

enum { GGUF_U32 = 4, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9 };

struct cursor {
    const char *at;
};

static uint64_t number(struct cursor *c, unsigned bytes)
{
    uint64_t value = 0;
    memcpy(&value, c->at, bytes);
    c->at += bytes;
    return value;
}

struct value {
    uint32_t type, item_type; /* item_type and n: of an array */
    uint64_t n;
    const char *at; /* first item, or the value */
};

static unsigned type_bytes(uint32_t type)
{
    static const unsigned bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    assert_true(type < sizeof bytes / sizeof *bytes);
    return bytes[type];
}

static void pass_over(struct cursor *c, uint32_t type)
{
    uint64_t bytes = type == GGUF_STRING ? number(c, 8) : type_bytes(type);
    c->at += bytes;
}

static struct value take_value(struct cursor *c)
{
    struct value v = {.type = (uint32_t)number(c, 4), .n = 1};
    v.item_type = v.type;
    if (v.type == GGUF_ARRAY) {
        v.item_type = (uint32_t)number(c, 4);
        v.n = number(c, 8);
    }
    v.at = c->at;
    for (uint64_t i = 0; i < v.n; i++)
        pass_over(c, v.item_type);
    return v;
}

static bool find_value(const char *file, const char *key, struct value *v)
{
    struct cursor c = {file + 16};
    assert_memory_equal(file, "GGUF", 4);
    for (uint64_t n = number(&c, 8); n > 0; n--) {
        uint64_t bytes = number(&c, 8);
        bool same = bytes == strlen(key) && memcmp(c.at, key, bytes) == 0;
        c.at += bytes;
        *v = take_value(&c);
        if (same)
            return true;
    }
    return false;
}

static int64_t integer(const char *file, const char *key, int64_t missing)
{
    struct value v;
    if (!find_value(file, key, &v))
        return missing;
    struct cursor c = {v.at};
    return (int64_t)number(&c, type_bytes(v.type));
}

static void string_value(const char *file, const char *key, char *out, size_t size)
{
    struct value v;
    *out = 0;
    if (!find_value(file, key, &v))
        return;
    struct cursor c = {v.at};
    uint64_t bytes = number(&c, 8);
    snprintf(out, size, "%.*s", (int)bytes, c.at);
}

struct string_list {
    const char **at;
    uint32_t *bytes;
    uint32_t n;
};

static struct string_list strings_value(const char *file, const char *key)
{
    struct value v;
    struct string_list list = {0};
    if (!find_value(file, key, &v))
        return list;
    list.n = (uint32_t)v.n;
    list.at = calloc(v.n + 1, sizeof *list.at);
    list.bytes = calloc(v.n + 1, sizeof *list.bytes);
    struct cursor c = {v.at};
    for (uint64_t i = 0; i < v.n; i++) {
        list.bytes[i] = (uint32_t)number(&c, 8);
        list.at[i] = c.at;
        c.at += list.bytes[i];
    }
    return list;
}

static uint8_t *types_value(const char *file, uint32_t n)
{
    struct value v;
    uint8_t *types = malloc(n);
    assert_true(find_value(file, "tokenizer.ggml.token_type", &v) && v.n == n);
    struct cursor c = {v.at};
    for (uint32_t i = 0; i < n; i++)
        types[i] = (uint8_t)number(&c, 4);
    return types;
}

static float *scores_value(const char *file, uint32_t n)
{
    struct value v;
    if (!find_value(file, "tokenizer.ggml.scores", &v))
        return NULL;
    assert_true(v.n == n);
    float *scores = malloc(n * sizeof *scores);
    memcpy(scores, v.at, n * sizeof *scores);
    return scores;
}

struct llm_vocab *vocab_image_from_gguf(const char *file)
{
    char model[32], pre[64];
    string_value(file, "tokenizer.ggml.model", model, sizeof model);
    string_value(file, "tokenizer.ggml.pre", pre, sizeof pre);
    struct string_list texts = strings_value(file, "tokenizer.ggml.tokens");
    struct string_list merges = strings_value(file, "tokenizer.ggml.merges");
    bool spm = strcmp(model, "llama") == 0;
    struct vocab_recipe r = {.kind = spm ? LLM_VOCAB_SPM : LLM_VOCAB_BPE, .pre = pre};
    r.n_tokens = texts.n, r.texts = texts.at, r.text_bytes = texts.bytes;
    r.n_merges = merges.n, r.merges = merges.at, r.merge_bytes = merges.bytes;
    uint8_t *types = types_value(file, texts.n);
    float *scores = scores_value(file, texts.n);
    r.types = types, r.scores = scores;
    r.bos = (int32_t)integer(file, "tokenizer.ggml.bos_token_id", -1);
    r.eos = r.eog = (int32_t)integer(file, "tokenizer.ggml.eos_token_id", -1);
    r.unk = (int32_t)integer(file, "tokenizer.ggml.unknown_token_id", -1);
    bool starts = spm || strcmp(pre, "llama-bpe") == 0;
    if (integer(file, "tokenizer.ggml.add_bos_token", starts))
        r.flags |= LLM_VOCAB_ADD_BOS;
    if (integer(file, "tokenizer.ggml.add_eos_token", false))
        r.flags |= LLM_VOCAB_ADD_EOS;
    if (integer(file, "tokenizer.ggml.add_space_prefix", spm))
        r.flags |= LLM_VOCAB_SPACE_PREFIX;
    struct llm_vocab *image = vocab_image(&r);
    free(texts.at), free(texts.bytes), free(merges.at), free(merges.bytes);
    free(types), free(scores);
    return image;
}

struct llm_tokenizer *tokenizer_of(struct llm_vocab *image)
{
    struct llm_tokenizer *t;
    char why[256] = "";
    if (llm_tokenizer_open_image(&t, image, image->bytes, why, sizeof why) < 0)
        fail_msg("%s", why);
    free(image);
    return t;
}

struct llm_tokenizer *golden_tokenizer(const char *name)
{
    char path[128];
    size_t bytes;
    snprintf(path, sizeof path, "tokenizer/%s.vocab.gguf", name);
    char *file = golden_read(path, &bytes);
    struct llm_vocab *image = vocab_image_from_gguf(file);
    free(file);
    return tokenizer_of(image);
}

struct llm_tokenizer *gemma3_tokenizer(void)
{
    const size_t room = 32 << 20; /* the vocabulary is at the file's beginning */
    const char *path = getenv("LLMD_GEMMA3");
    if (!path || !*path)
        return NULL;
    FILE *f = fopen(path, "rb");
    char *file = calloc(1, room);
    assert_non_null(f);
    assert_non_null(file);
    assert_true(fread(file, 1, room, f) > 0);
    fclose(f);
    struct llm_vocab *image = vocab_image_from_gguf(file);
    free(file);
    return tokenizer_of(image);
}
