/* gguf.h - reads what a GGUF file says about itself: keys, values, the table of tensors.
 *
 *     struct gguf *g;
 *     uint32_t layers;
 *     if (gguf_open(&g, "m.gguf", GGUF_ALL, f) < 0 ||
 *         gguf_u32(g, "llama.block_count", 1, 4096, GGUF_NEEDED, &layers, f) < 0)
 *         return f->code;
 *     const struct gpu_tensor *t = gguf_tensor(g, "token_embd.weight");
 *     gguf_close(g);
 *
 * The file is somebody else's: nothing that it says is believed before it is checked, and a fault
 * is refused with the file, the place (byte, key or tensor) and the reason. The tensors' own bytes
 * are not read here (fetch.h).
 *
 * Getters: 1 and *out set where the key is there, 0 and *out untouched where it is not and `need`
 * is GGUF_OPTIONAL, a negative code where it is needed and missing, of the wrong type or out of
 * range.
 */
#ifndef LLMD_MODEL_GGUF_H
#define LLMD_MODEL_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "model.h"

/* Caps: far above every published file, low enough that a hostile one costs little. */
enum {
    GGUF_KEYS_MAX = 65536,
    GGUF_TENSORS_MAX = 65536,
    GGUF_META_MAX = 256 << 20, /* bytes of header, keys and tensor table */
    GGUF_SHOWN = 200           /* bytes of the path that messages show */
};

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

enum gguf_what { GGUF_ALL, GGUF_KEYS_ONLY /* the tensor table is not even looked at */ };
enum gguf_need { GGUF_OPTIONAL, GGUF_NEEDED };

struct gguf_key {
    uint64_t name_at, value_at; /* bytes from the file's start */
    uint64_t n;                 /* elements of an array, bytes of a string, else 1 */
    uint32_t name_bytes;
    uint8_t type; /* enum gguf_type */
    uint8_t item; /* of an array's elements; else == type */
};

struct gguf {
    int fd;
    char shown[GGUF_SHOWN]; /* the path, or its tail, printable: for messages */
    uint64_t file_bytes;
    uint32_t version;   /* 2 or 3 */
    uint32_t alignment; /* a power of two */
    uint8_t *meta;      /* (meta_bytes) the file's start: header, keys, tensor table */
    uint64_t meta_bytes;
    uint64_t data_at; /* tensor offsets count from here */
    uint32_t n_keys, n_tensors;
    struct gguf_key *keys;      /* (n_keys) sorted by name */
    struct gpu_tensor *tensors; /* (n_tensors) in the order of the table */
    uint32_t *by_name;          /* (n_tensors) indices into tensors */
    uint32_t *by_offset;        /* (n_tensors) likewise: the order of their bytes in the file */
};

int gguf_open(struct gguf **out, const char *path, enum gguf_what what, struct fail *f);
void gguf_close(struct gguf *g); /* NULL is allowed */

/* Records "FILE: sentence" and returns `code`. */
__attribute__((format(printf, 4, 5))) int gguf_refuse(const struct gguf *g, struct fail *f,
                                                      int code, const char *format, ...);

/* Bytes of a file made fit for a message: printable ASCII in quotes, the rest as \xNN, cut with
 * "...". Returns `out`. */
const char *gguf_quote(char *out, size_t size, const void *bytes, size_t n);

const struct gguf_key *gguf_find(const struct gguf *g, const char *name);
const struct gpu_tensor *gguf_tensor(const struct gguf *g, const char *name);

/* Any integer type. */
int gguf_u32(const struct gguf *g, const char *name, uint32_t low, uint32_t high,
             enum gguf_need need, uint32_t *out, struct fail *f);
/* An integer, or an array of `n` equal ones (what some writers make of a per-layer value). */
int gguf_u32_uniform(const struct gguf *g, const char *name, uint32_t n, uint32_t low,
                     uint32_t high, enum gguf_need need, uint32_t *out, struct fail *f);
/* f32 or f64; finite. */
int gguf_f32(const struct gguf *g, const char *name, enum gguf_need need, float *out,
             struct fail *f);
int gguf_bool(const struct gguf *g, const char *name, enum gguf_need need, bool *out,
              struct fail *f);
/* Points into g->meta. */
int gguf_text(const struct gguf *g, const char *name, enum gguf_need need, struct model_text *out,
              struct fail *f);
/* An array of strings: *out is malloc'ed, its texts point into g->meta. */
int gguf_texts(const struct gguf *g, const char *name, enum gguf_need need, struct model_text **out,
               uint32_t *n, struct fail *f);
/* An array of exactly n f32, copied into out. */
int gguf_f32s(const struct gguf *g, const char *name, uint32_t n, enum gguf_need need, float *out,
              struct fail *f);
/* An array of exactly n integers, each low .. high <= 255, copied into out. */
int gguf_u8s(const struct gguf *g, const char *name, uint32_t n, uint8_t low, uint8_t high,
             enum gguf_need need, uint8_t *out, struct fail *f);

#endif
