/* model.h - what a checkpoint says: one description of any model file, whatever its format.
 *
 *     struct fail f = {0};
 *     struct model *m;
 *     if (model_open(&m, "SmolLM2.gguf", &f) < 0) { fprintf(stderr, "%s\n", f.text); exit(1); }
 *     struct gpu_source source = model_source(m);
 *     ops->load(gpu, &m->net, &source, &f);
 *     model_close(m);
 *
 * The reader takes a file as somebody else's bytes: every count, length and offset is checked
 * against what remains before anything is allocated, and a fault is refused with file, place and
 * reason. What it accepts is complete: every tensor that the architecture needs is there with the
 * right shape and a known type.
 */
#ifndef LLMD_MODEL_H
#define LLMD_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../gpu/gpu.h"

/* The tokenizer's data, as the checkpoint has them. Strings are length-counted and may hold any
 * byte. */
struct model_text {
    const char *at; /* not NUL-terminated */
    uint32_t bytes;
};

enum model_tokenizer {
    MODEL_TOKENIZER_BPE = 1 /* "gpt2": byte-level BPE */,
    MODEL_TOKENIZER_SPM = 2 /* "llama" */
};

/* token_type values of GGUF */
enum model_token_type {
    MODEL_TOKEN_NORMAL = 1,
    MODEL_TOKEN_UNKNOWN,
    MODEL_TOKEN_CONTROL,
    MODEL_TOKEN_USER_DEFINED,
    MODEL_TOKEN_UNUSED,
    MODEL_TOKEN_BYTE
};

struct model_vocab {
    enum model_tokenizer tokenizer;
    char pre[64];      /* pre-tokenizer's name: "smollm"; "" where the file has none */
    uint32_t n_tokens; /* == net.vocab */
    const struct model_text
        *texts;           /* (n_tokens) in the file's own spelling (GPT-2 byte alphabet for BPE) */
    const uint8_t *types; /* (n_tokens) enum model_token_type */
    const float *scores;  /* (n_tokens) or NULL */
    uint32_t n_merges;
    const struct model_text *merges;      /* (n_merges) "left right", best first */
    int32_t bos, eos, eot, eom, unk, pad; /* -1: none */
    bool add_bos, add_eos, add_space_prefix;
    uint32_t n_eog;
    const int32_t *eog;              /* (n_eog) ascending: the tokens that end a generation */
    struct model_text chat_template; /* bytes 0: none */
};

struct model {
    char path[4096];
    char name[128]; /* general.name, or the file's name without its ending; printable UTF-8 */
    char architecture[32]; /* "llama" */
    char quantization[32]; /* the type that holds most weight bytes: "Q4_1" */
    uint64_t file_bytes;
    uint64_t weights_bytes; /* of all tensors in the file */
    struct gpu_model net;
    struct model_vocab vocab;
};

/* Reads the description; the weights' bytes stay in the file until they are fetched. */
int model_open(struct model **out, const char *path, struct fail *f);

/* The tokenizer alone, of a model of any architecture or of a file that has no tensors: net holds
 * no more than the vocabulary's size, and there is nothing to fetch. */
int model_open_vocab(struct model **out, const char *path, struct fail *f);

/* Where a backend takes the weights from: each fetch reads the tensor with io_uring, many reads in
 * flight. One thread at a time. `progress`, if not NULL, is called now and then with bytes read so
 * far and in total. */
struct gpu_source model_source(struct model *m);
void model_on_progress(struct model *m,
                       void (*progress)(void *context, uint64_t done, uint64_t total),
                       void *context);

/* Digest of description and weights (XXH3 128). Valid once every tensor of net was fetched. */
void model_digest(const struct model *m, uint8_t out[16]);
/* Digest of the tokenizer's data alone. */
void model_vocab_digest(const struct model *m, uint8_t out[16]);

/* Builds the vocabulary image of shm/vocab.h into malloc'ed memory, *bytes long; caller frees. */
int model_vocab_image(const struct model *m, void **image, size_t *bytes, struct fail *f);

void model_close(struct model *m); /* NULL is allowed; source must no longer be used */

#endif
