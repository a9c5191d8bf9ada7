/* tensor.h - tensor formats: ids, block shapes, sizes. Ids are GGML's, as GGUF files carry them
 * (source of ids and block layouts: the GGUF specification and ggml's published type table).
 *
 * Block layouts (bytes; d, m are f16; "element i" counts along ne[0], the in-features). 32 elements:
 *
 *   Q4_0  18   0 d   2 q[16]            x = d * (q - 8)    element i: low nibble of q[i], 16 + i: high
 *   Q4_1  20   0 d   2 m   4 q[16]      x = d * q + m      nibbles as above
 *   Q5_0  22   0 d   2 h[4]   6 q[16]   x = d * (q - 16)   bit 4 of element i is bit i of the u32 h
 *   Q5_1  24   0 d   2 m   4 h[4]  8 q[16]   x = d * q + m   as above
 *   Q8_0  34   0 d   2 q[32] s8         x = d * q
 *
 * 256 elements, in sub-blocks s = 0 .. 7 of 32 (element i of 0 .. 31 in each):
 *
 *   Q4_K  144  0 d   2 m   4 s[12]   16 q[128]             x = (d * scale) * q - m * min
 *   Q5_K  176  0 d   2 m   4 s[12]   16 h[32]   48 q[128]  likewise; bit 4 is bit s of h[i]
 *              nibbles: of q[32 (s / 2) + i], low for even s, high for odd ones
 *              scale, min of s < 4: the low six bits of s[s], s[s + 4]
 *              of others: the low, high nibble of s[s + 4], and above it the top two bits of
 *              s[s - 4], s[s]
 *   Q6_K  210  0 q[128]   128 h[64]   192 scale[16] s8   208 d   x = (d * scale) * (q - 32)
 *              with c = s / 4, t = s % 4: nibble of q[64 c + 32 (t % 2) + i], low for t < 2, high
 *              for others; bits 4 and 5 are bits 2 t and 2 t + 1 of h[32 c + i]; the scale of
 *              elements 0 .. 15 is number 2 s, of the others 2 s + 1
 */
#ifndef LLMD_GPU_TENSOR_H
#define LLMD_GPU_TENSOR_H

#include <stdint.h>

enum gpu_type {
    GPU_F32 = 0,
    GPU_F16 = 1,
    GPU_Q4_0 = 2,
    GPU_Q4_1 = 3,
    GPU_Q5_0 = 6,
    GPU_Q5_1 = 7,
    GPU_Q8_0 = 8,
    GPU_Q4_K = 12,
    GPU_Q5_K = 13,
    GPU_Q6_K = 14,
    GPU_BF16 = 30,
};

enum { GPU_TENSOR_DIMS = 4 };

/* A tensor of a checkpoint. It does not own its bytes: they are fetched through gpu_source. */
struct gpu_tensor {
    char name[64];                /* as in the checkpoint, NUL-terminated */
    enum gpu_type type;           /* always one of the above once a reader accepted it */
    uint32_t n_dims;              /* 1 .. 4 */
    uint64_t ne[GPU_TENSOR_DIMS]; /* ne[0] is the fastest dimension; unused ones are 1.
                                   * A linear layer's weight: ne[0] = in-features, ne[1] =
                                   * out-features */
    uint64_t offset;              /* bytes from the start of the file */
    uint64_t bytes;               /* of the whole tensor */
};

struct gpu_type_info {
    const char *name; /* as people write it: "Q4_1" */
    uint32_t block;   /* elements in a block */
    uint32_t block_bytes;
};

/* NULL for a type that this build does not read. */
static inline const struct gpu_type_info *gpu_type_info(uint32_t type)
{
    static const struct gpu_type_info f32 = {"F32", 1, 4}, f16 = {"F16", 1, 2},
                                      bf16 = {"BF16", 1, 2}, q4_0 = {"Q4_0", 32, 18},
                                      q4_1 = {"Q4_1", 32, 20}, q5_0 = {"Q5_0", 32, 22},
                                      q5_1 = {"Q5_1", 32, 24}, q8_0 = {"Q8_0", 32, 34},
                                      q4_k = {"Q4_K", 256, 144}, q5_k = {"Q5_K", 256, 176},
                                      q6_k = {"Q6_K", 256, 210};
    switch (type) {
    case GPU_F32:
        return &f32;
    case GPU_F16:
        return &f16;
    case GPU_BF16:
        return &bf16;
    case GPU_Q4_0:
        return &q4_0;
    case GPU_Q4_1:
        return &q4_1;
    case GPU_Q5_0:
        return &q5_0;
    case GPU_Q5_1:
        return &q5_1;
    case GPU_Q8_0:
        return &q8_0;
    case GPU_Q4_K:
        return &q4_k;
    case GPU_Q5_K:
        return &q5_k;
    case GPU_Q6_K:
        return &q6_k;
    default:
        return 0;
    }
}

/* Bytes of one row of ne0 elements; ne0 is a multiple of the type's block. */
static inline uint64_t gpu_row_bytes(enum gpu_type type, uint64_t ne0)
{
    const struct gpu_type_info *i = gpu_type_info(type);
    return ne0 / i->block * i->block_bytes;
}

#endif
