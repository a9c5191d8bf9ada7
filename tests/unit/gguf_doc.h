/* gguf_doc.h - writes GGUF files for tests: a list of keys and tensors that can be changed by name,
 * the bytes that it makes, and where in them each part lies, so that a test can damage exactly one.
 *
 *     struct doc d;
 *     doc_llama(&d);                                  // a whole tiny model
 *     doc_f32(&d, "llama.rope.freq_base", -1);
 *     struct bytes b = doc_bytes(&d);
 *     put_u64(&b, doc_key_at(&d, "llama.block_count"), 1ull << 60);
 *     bytes_save(&b, path);
 *     bytes_free(&b); doc_free(&d);
 */
#ifndef LLMD_TESTS_GGUF_DOC_H
#define LLMD_TESTS_GGUF_DOC_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../gpu/tensor.h"

#define DOC_MAYBE __attribute__((unused)) static

struct bytes {
    uint8_t *at;
    size_t n, room;
};

struct doc_key {
    char name[96];
    struct bytes value; /* type and payload */
    size_t at;          /* of its record in the file, once written */
};

struct doc_tensor {
    char name[96];
    uint32_t type, n_dims;
    uint64_t ne[4], bytes, offset;
    size_t at;
};

struct doc {
    uint32_t version, alignment;
    uint32_t n_keys, n_tensors;
    struct doc_key keys[64];
    struct doc_tensor tensors[64];
    size_t meta_bytes, data_at; /* once written */
};

/* ---- bytes ---- */

DOC_MAYBE void bytes_add(struct bytes *b, const void *from, size_t n)
{
    if (b->n + n > b->room) {
        b->room = 2 * (b->n + n);
        b->at = realloc(b->at, b->room);
    }
    if (n)
        memcpy(b->at + b->n, from, n);
    b->n += n;
}

DOC_MAYBE void add_u32(struct bytes *b, uint32_t v)
{
    bytes_add(b, &v, 4);
}
DOC_MAYBE void add_u64(struct bytes *b, uint64_t v)
{
    bytes_add(b, &v, 8);
}
DOC_MAYBE void add_text(struct bytes *b, const char *s, size_t n)
{
    add_u64(b, n);
    bytes_add(b, s, n);
}

DOC_MAYBE void put_u32(struct bytes *b, size_t at, uint32_t v)
{
    memcpy(b->at + at, &v, 4);
}
DOC_MAYBE void put_u64(struct bytes *b, size_t at, uint64_t v)
{
    memcpy(b->at + at, &v, 8);
}

DOC_MAYBE void bytes_free(struct bytes *b)
{
    free(b->at);
    *b = (struct bytes){0};
}

DOC_MAYBE void bytes_save(const struct bytes *b, const char *path)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(b->at, 1, b->n, f) != b->n || fclose(f))
        abort();
}

/* ---- keys ---- */

DOC_MAYBE struct doc_key *doc_find(struct doc *d, const char *name)
{
    for (uint32_t i = 0; i < d->n_keys; i++)
        if (strcmp(d->keys[i].name, name) == 0)
            return &d->keys[i];
    return NULL;
}

/* The key of that name, emptied; a new one at the end if there is none. */
DOC_MAYBE struct bytes *doc_value(struct doc *d, const char *name, uint32_t type)
{
    struct doc_key *k = doc_find(d, name);
    if (!k) {
        k = &d->keys[d->n_keys++];
        *k = (struct doc_key){0};
        snprintf(k->name, sizeof k->name, "%s", name);
    }
    k->value.n = 0;
    add_u32(&k->value, type);
    return &k->value;
}

DOC_MAYBE void doc_u32(struct doc *d, const char *name, uint32_t v)
{
    add_u32(doc_value(d, name, 4), v);
}
DOC_MAYBE void doc_i32(struct doc *d, const char *name, int32_t v)
{
    bytes_add(doc_value(d, name, 5), &v, 4);
}
DOC_MAYBE void doc_u64(struct doc *d, const char *name, uint64_t v)
{
    add_u64(doc_value(d, name, 10), v);
}
DOC_MAYBE void doc_f32(struct doc *d, const char *name, float v)
{
    bytes_add(doc_value(d, name, 6), &v, 4);
}
DOC_MAYBE void doc_f64(struct doc *d, const char *name, double v)
{
    bytes_add(doc_value(d, name, 12), &v, 8);
}
DOC_MAYBE void doc_bool(struct doc *d, const char *name, uint8_t v)
{
    bytes_add(doc_value(d, name, 7), &v, 1);
}
DOC_MAYBE void doc_text(struct doc *d, const char *name, const char *v)
{
    add_text(doc_value(d, name, 8), v, strlen(v));
}

/* An array of n items of `each` bytes. */
DOC_MAYBE void doc_array(struct doc *d, const char *name, uint32_t type, const void *items,
                         size_t n, size_t each)
{
    struct bytes *v = doc_value(d, name, 9);
    add_u32(v, type);
    add_u64(v, n);
    bytes_add(v, items, n * each);
}

DOC_MAYBE void doc_texts(struct doc *d, const char *name, const char *const *texts, size_t n)
{
    struct bytes *v = doc_value(d, name, 9);
    add_u32(v, 8);
    add_u64(v, n);
    for (size_t i = 0; i < n; i++)
        add_text(v, texts[i], strlen(texts[i]));
}

DOC_MAYBE void doc_remove(struct doc *d, const char *name)
{
    struct doc_key *k = doc_find(d, name);
    if (!k)
        abort();
    free(k->value.at);
    memmove(k, k + 1, (size_t)(d->keys + --d->n_keys - k) * sizeof *k);
}

/* ---- tensors ---- */

DOC_MAYBE struct doc_tensor *doc_find_tensor(struct doc *d, const char *name)
{
    for (uint32_t i = 0; i < d->n_tensors; i++)
        if (strcmp(d->tensors[i].name, name) == 0)
            return &d->tensors[i];
    return NULL;
}

/* Adds or changes a tensor; ne1 1 makes a vector. */
DOC_MAYBE void doc_tensor(struct doc *d, const char *name, uint32_t type, uint64_t ne0,
                          uint64_t ne1)
{
    struct doc_tensor *t = doc_find_tensor(d, name);
    if (!t)
        t = &d->tensors[d->n_tensors++];
    *t = (struct doc_tensor){
        .type = type, .n_dims = ne1 == 1 ? 1 : 2, .ne = {ne0, ne1, 1, 1}, .bytes = 0};
    snprintf(t->name, sizeof t->name, "%s", name);
    if (gpu_type_info(type))
        t->bytes = gpu_row_bytes((enum gpu_type)type, ne0) * ne1;
}

DOC_MAYBE void doc_remove_tensor(struct doc *d, const char *name)
{
    struct doc_tensor *t = doc_find_tensor(d, name);
    if (!t)
        abort();
    memmove(t, t + 1, (size_t)(d->tensors + --d->n_tensors - t) * sizeof *t);
}

/* ---- the file ---- */

DOC_MAYBE void doc_write_record(struct bytes *b, struct doc_tensor *t)
{
    t->at = b->n;
    add_text(b, t->name, strlen(t->name));
    add_u32(b, t->n_dims);
    for (uint32_t i = 0; i < t->n_dims; i++)
        add_u64(b, t->ne[i]);
    add_u32(b, t->type);
    add_u64(b, t->offset);
}

DOC_MAYBE void doc_place_tensors(struct doc *d)
{
    uint64_t end = 0, mask = d->alignment - 1;
    for (uint32_t i = 0; i < d->n_tensors; i++) {
        d->tensors[i].offset = end;
        end = (end + d->tensors[i].bytes + mask) & ~mask;
    }
}

/* Values of 1 to 2 where the tensor is F32 (usable as norms and divisors), else bytes. */
DOC_MAYBE void doc_write_data(struct bytes *b, const struct doc_tensor *t)
{
    for (uint64_t i = 0; i < t->bytes; i += 4) {
        float f = 1.0f + (float)(i % 64) / 64.0f;
        uint32_t v = (uint32_t)(i * 2654435761u) & 0x3f3f3f3f;
        size_t n = t->bytes - i < 4 ? t->bytes - i : 4;
        bytes_add(b, t->type == GPU_F32 ? (const void *)&f : (const void *)&v, n);
    }
}

DOC_MAYBE void doc_add_zeros(struct bytes *b, size_t n)
{
    static const uint8_t zeros[256];
    for (; n; n -= n < 256 ? n : 256)
        bytes_add(b, zeros, n < 256 ? n : 256);
}

DOC_MAYBE struct bytes doc_bytes(struct doc *d)
{
    struct bytes b = {0};
    doc_place_tensors(d);
    bytes_add(&b, "GGUF", 4);
    add_u32(&b, d->version);
    add_u64(&b, d->n_tensors);
    add_u64(&b, d->n_keys);
    for (uint32_t i = 0; i < d->n_keys; i++) {
        struct doc_key *k = &d->keys[i];
        k->at = b.n;
        add_text(&b, k->name, strlen(k->name));
        bytes_add(&b, k->value.at, k->value.n);
    }
    for (uint32_t i = 0; i < d->n_tensors; i++)
        doc_write_record(&b, &d->tensors[i]);
    d->meta_bytes = b.n;
    doc_add_zeros(&b, (size_t)-b.n & (d->alignment - 1));
    d->data_at = b.n;
    for (uint32_t i = 0; i < d->n_tensors; i++) {
        doc_add_zeros(&b, d->data_at + d->tensors[i].offset - b.n);
        doc_write_data(&b, &d->tensors[i]);
    }
    return b;
}

/* Where a key's record (u64 length, name, u32 type, value) begins, and its parts. */
DOC_MAYBE size_t doc_key_at(struct doc *d, const char *name)
{
    return doc_find(d, name)->at;
}
DOC_MAYBE size_t doc_type_at(struct doc *d, const char *name)
{
    return doc_key_at(d, name) + 8 + strlen(name);
}
DOC_MAYBE size_t doc_value_at(struct doc *d, const char *name)
{
    return doc_type_at(d, name) + 4;
}

/* Where a tensor's dimension count and its type are; the offset is 4 bytes behind the type. */
DOC_MAYBE size_t doc_dims_at(struct doc *d, const char *name)
{
    return doc_find_tensor(d, name)->at + 8 + strlen(name);
}
DOC_MAYBE size_t doc_tensor_type_at(struct doc *d, const char *name)
{
    return doc_dims_at(d, name) + 4 + 8 * (size_t)doc_find_tensor(d, name)->n_dims;
}

DOC_MAYBE void doc_init(struct doc *d)
{
    memset(d, 0, sizeof *d);
    d->version = 3;
    d->alignment = 32;
}

DOC_MAYBE void doc_free(struct doc *d)
{
    for (uint32_t i = 0; i < d->n_keys; i++)
        free(d->keys[i].value.at);
}

/* ---- a whole tiny model: 1 layer, hidden 64, 4 heads of 16 over 2 of K and V, 8 tokens ---- */

DOC_MAYBE void doc_llama(struct doc *d)
{
    static const char *const tokens[] = {"a", "b", "ab", "c", "abc", "<s>", "</s>", "<|im_end|>"};
    static const char *const merges[] = {"a b", "ab c"};
    static const int32_t types[] = {1, 1, 1, 1, 1, 3, 3, 3};
    doc_init(d);
    doc_text(d, "general.architecture", "llama");
    doc_text(d, "general.name", "tiny");
    doc_u32(d, "llama.block_count", 1);
    doc_u32(d, "llama.context_length", 128);
    doc_u32(d, "llama.embedding_length", 64);
    doc_u32(d, "llama.feed_forward_length", 96);
    doc_u32(d, "llama.attention.head_count", 4);
    doc_u32(d, "llama.attention.head_count_kv", 2);
    doc_f32(d, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    doc_text(d, "tokenizer.ggml.model", "gpt2");
    doc_text(d, "tokenizer.ggml.pre", "smollm");
    doc_texts(d, "tokenizer.ggml.tokens", tokens, 8);
    doc_array(d, "tokenizer.ggml.token_type", 5, types, 8, 4);
    doc_texts(d, "tokenizer.ggml.merges", merges, 2);
    doc_u32(d, "tokenizer.ggml.bos_token_id", 5);
    doc_u32(d, "tokenizer.ggml.eos_token_id", 6);
    doc_tensor(d, "token_embd.weight", GPU_Q8_0, 64, 8);
    doc_tensor(d, "blk.0.attn_norm.weight", GPU_F32, 64, 1);
    doc_tensor(d, "blk.0.attn_q.weight", GPU_Q4_0, 64, 64);
    doc_tensor(d, "blk.0.attn_k.weight", GPU_Q4_0, 64, 32);
    doc_tensor(d, "blk.0.attn_v.weight", GPU_Q4_0, 64, 32);
    doc_tensor(d, "blk.0.attn_output.weight", GPU_Q4_0, 64, 64);
    doc_tensor(d, "blk.0.ffn_norm.weight", GPU_F32, 64, 1);
    doc_tensor(d, "blk.0.ffn_gate.weight", GPU_Q4_0, 64, 96);
    doc_tensor(d, "blk.0.ffn_up.weight", GPU_Q4_0, 64, 96);
    doc_tensor(d, "blk.0.ffn_down.weight", GPU_Q4_0, 96, 64);
    doc_tensor(d, "output_norm.weight", GPU_F32, 64, 1);
}

#endif
