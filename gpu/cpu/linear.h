/* linear.h - products with weight matrices: y = W x for any number of rows x.
 *
 *     struct linear l;
 *     linear_shape(&l, tensor->type, k, n, int8);
 *     l.panels_at = ...l.panels * l.panel_bytes bytes, 64-byte aligned...;
 *     linear_pack(&l, raw, 0, l.panels);                       // threads may share the panels out
 *     for each row r: kernels->quantize(x + r * k, k, linear_act(acts, k, r));
 *     kernels->multiply(&l, 0, l.panels, &input, 0, n_rows, y, linear_stride(n));
 *
 * Weights are packed at load into panels of 16 output rows (panel.h). Two ways to multiply:
 *   int8   activations in blocks of 32: x = d * q with int8 q. Only for quantized weights.
 *   f32    activations as they are, weights dequantized on the fly exactly as ggml's reference.
 *
 * Numerics (pure logits, rule 1). An output is one f32 chain over K in order, K is never split, and
 * rows, panels and threads meet in no sum, so a row's result does not depend on any of them:
 *   int8, Q4_0 Q5_0 Q8_0:  acc = fma(d_w * d_a, isum, acc)    isum = sum of q_w * q_a, exact
 *   int8, Q4_1 Q5_1:       acc = fma(d_a, fma(d_w, isum, m_w * asum), acc)   asum = sum of q_a
 *   int8, Q4_K Q5_K:       likewise, with d_w = d * scale and m_w = -(m * min) of the 32, both exact
 *   int8, Q6_K:            acc = fma(d_w * d_a, isum, acc)    isum = sum of scale * q_w * q_a, exact
 *   f32:                   acc = fma(w, x, acc)               for every k
 * The plain C kernels, the AVX2 and the AVX-512 ones give the same bits.
 */
#ifndef LLMD_CPU_LINEAR_H
#define LLMD_CPU_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../tensor.h"

enum {
    LINEAR_PANEL = 16, /* output rows of a panel */
    LINEAR_BLOCK = 32, /* k of a block */
    LINEAR_GROUP = 4   /* tokens that share a pass over a panel */
};

/* One weight matrix: n outputs of k inputs. */
struct linear {
    enum gpu_type type;
    bool int8;            /* takes int8 activations */
    uint32_t n, k;        /* k is a multiple of the type's block for quantized types */
    uint32_t blocks;      /* of k in a panel; the last may be short for F32, F16, BF16 */
    uint32_t panels;      /* ceil(n / 16); rows past n are zero */
    uint32_t block_bytes; /* of 16 rows x 32 k; an eighth of a unit where it has 256 k */
    size_t panel_bytes;   /* a multiple of 32 */
    uint8_t *panels_at;   /* (panels, blocks) blocks of panel.h, 64-byte aligned */
};

/* An activation block: x = d * q; sum of q, of its first half, and -8 times the sum (exact).
 * -127 <= q <= 127 whatever x was. */
struct act {
    float d, sum, low;
    int32_t less8;
    int8_t q[LINEAR_BLOCK];
};

/* The rows that go in. A linear with int8 reads acts, the others f32. */
struct linear_input {
    const struct act *acts; /* (groups of 4 rows, blocks, 4): linear_act() */
    const float *f32;       /* (rows, stride) */
    size_t stride;
};

struct linear_kernels {
    /* One row x (k), k a multiple of 32, into blocks `out`, out + 4, ... */
    void (*quantize)(const float *x, uint32_t k, struct act *out);
    /* y (n_rows, stride): outputs 16 p0 .. 16 p1 - 1 of rows first .. first + n_rows - 1. first is a
     * multiple of 4; y is 32-byte aligned, stride a multiple of 16. */
    void (*multiply)(const struct linear *l, uint32_t p0, uint32_t p1, const struct linear_input *x,
                     uint32_t first, uint32_t n_rows, float *y, size_t stride);
};
/* linear_avx2 and linear_avx512 (which wants VNNI) are all NULL in builds for other machines. */
extern const struct linear_kernels linear_plain, linear_avx2, linear_avx512;

/* Whether a tensor of that type can take int8 activations. */
bool linear_quantized(enum gpu_type type);

/* Fills in everything but panels_at. The type is one of gpu_type; k, n >= 1. */
void linear_shape(struct linear *l, enum gpu_type type, uint32_t k, uint32_t n, bool int8);

/* Packs panels p0 .. p1 - 1 from the checkpoint's rows: raw (n, k), as tensor.h lays blocks out. */
void linear_pack(struct linear *l, const void *raw, uint32_t p0, uint32_t p1);

/* Whether 16 of the checkpoint's rows take exactly a panel's bytes, so that the raw bytes may be
 * read to panels_at and packed there: always but for F32, F16, BF16 with k that is no multiple
 * of 32. */
bool linear_in_place(const struct linear *l);
/* Packs panels p0 .. p1 - 1 where their raw rows lie. `scratch`: panel_bytes, the thread's own. */
void linear_pack_in_place(struct linear *l, uint32_t p0, uint32_t p1, void *scratch);

/* Row `row` of the matrix dequantized, out (k) f32: the embedding of a token. */
void linear_row(const struct linear *l, uint32_t row, float *out);

/* Dequantizes n elements of a checkpoint's tensor, n a multiple of the type's block. */
void linear_dequantize(enum gpu_type type, const void *raw, uint64_t n, float *out);

/* Floats from row to row of an output or input of n elements: n rounded up to 16. */
static inline size_t linear_stride(uint32_t n)
{
    return ((size_t)n + LINEAR_PANEL - 1) / LINEAR_PANEL * LINEAR_PANEL;
}

/* Blocks of activations for `rows` rows of k elements. */
static inline size_t linear_acts(uint32_t k, uint32_t rows)
{
    size_t groups = ((size_t)rows + LINEAR_GROUP - 1) / LINEAR_GROUP;
    return groups * LINEAR_GROUP * (((size_t)k + LINEAR_BLOCK - 1) / LINEAR_BLOCK);
}

/* The first block of row r; its next block lies LINEAR_GROUP further. */
static inline struct act *linear_act(struct act *acts, uint32_t k, uint32_t r)
{
    size_t blocks = ((size_t)k + LINEAR_BLOCK - 1) / LINEAR_BLOCK;
    return acts + r / LINEAR_GROUP * blocks * LINEAR_GROUP + r % LINEAR_GROUP;
}

#endif
