/* parts.h - how the files of appliance/model/ work together; nobody else includes it.
 *
 *   model.c   opens and closes, digests, gives the backend its source
 *   gguf.c    the file's keys and tensor table
 *   vocab.c   tokenizer data           -> model.vocab
 *   llama.c   shapes and tensors       -> model.net
 *   rope.c    rotary frequencies       -> model.net.rope_freq
 *   fetch.c   tensors' bytes
 *   image.c   model.vocab              -> the image of shm/vocab.h
 */
#ifndef LLMD_MODEL_PARTS_H
#define LLMD_MODEL_PARTS_H

#include <xxhash.h>

#include "fetch.h"
#include "gguf.h"
#include "model.h"

/* What model_open hands out: the public part first, so that the two pointers are one. */
struct opened {
    struct model m;
    struct gguf *file;
    struct fetch *fetch;
    struct opened_tensor *tensors; /* (file->n_tensors) as file->tensors */
    float *rope_freq;              /* what net.rope_freq points to */
    /* what vocab points to */
    struct model_text *texts, *merges;
    uint8_t *types;
    float *scores;
    int32_t *eog;
    /* progress of the fetches */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *progress_context;
    uint64_t fetched_bytes; /* of tensors that were fetched whole, each counted once */
};

struct opened_tensor {
    bool used;    /* the architecture has a place for it */
    bool fetched; /* digest is valid */
    XXH128_hash_t digest;
};

/* Tokenizer data of any architecture. */
int vocab_read(struct opened *o, struct fail *f);

/* Hyperparameters and tensors of architecture "llama", after vocab_read. */
int llama_read(struct opened *o, struct fail *f);

/* net.rope_freq and rope_magnitude, once net.rope_dim and net.context are known. `divisors` are the
 * bytes of rope_freqs.weight (rope_dim / 2) or NULL. */
int rope_read(struct opened *o, const float *divisors, struct fail *f);

/* Fetches one tensor and digests it. */
int model_fetch(struct opened *o, const struct gpu_tensor *t, void *dst, struct fail *f);

#endif
