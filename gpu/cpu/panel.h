/* panel.h - the layout of packed weights: blocks of 16 output rows x 32 k.
 *
 * Quantized types. Vectors of 64 bytes; their 32-bit lane r belongs to row r, so sums never cross
 * lanes and a row's scale meets its sum by position. Eight rows are a half, 32 bytes, for AVX2.
 *
 *   nibbles  q[j], j = 0 .. 3: byte 4 r + i holds of row r element 4 j + i in its low nibble and
 *            element 16 + 4 j + i in its high one
 *   fifths   h: byte 4 r + i, bit j is bit 4 of element 4 j + i, bit 4 + j that of 16 + 4 j + i
 *   sixths   h[2]: byte 4 r + i, bits 2 j and 2 j + 1 are bits 4 and 5 of element 4 j + i in the
 *            first vector, of 16 + 4 j + i in the second
 *   bytes    q[j], j = 0 .. 7: byte 4 r + i holds element 4 j + i, signed
 *   d, m     f16 of the 16 rows
 *
 *          offsets                             bytes
 *   Q4_0   0 nibbles   256 d                   288    x = d * (q - 8)
 *   Q4_1   0 nibbles   256 d   288 m           320    x = d * q + m
 *   Q5_0   0 nibbles   256 h   320 d           352    x = d * (q - 16)
 *   Q5_1   0 nibbles   256 h   320 d   352 m   384    x = d * q + m
 *   Q8_0   0 bytes     512 d                   544    x = d * q
 *
 * The types with blocks of 256 have units of 16 rows x 256 k: their eight blocks' quants, then
 * their high bits, then what they share. s: byte j of the checkpoint's scales of the 16 rows side by
 * side, packed as there.
 *
 *   Q4_K   0 nibbles                2048 s[12]   2240 d   2272 m   2304
 *   Q5_K   0 nibbles   2048 h[8]    2560 s[12]   2752 d   2784 m   2816
 *   Q6_K   0 nibbles   2048 h[8]    3072 s[16]   3328 d            3360
 *
 * F32, F16, BF16: element k of the 16 rows side by side, [32][16], 2048 or 1024 bytes; what lies
 * past k in the last block is zero.
 */
#ifndef LLMD_CPU_PANEL_H
#define LLMD_CPU_PANEL_H

#include <stdint.h>

#include "../tensor.h"

struct panel_q4_0 {
    uint8_t q[4][64];
    uint16_t d[16];
};
struct panel_q4_1 {
    uint8_t q[4][64];
    uint16_t d[16], m[16];
};
struct panel_q5_0 {
    uint8_t q[4][64], h[64];
    uint16_t d[16];
};
struct panel_q5_1 {
    uint8_t q[4][64], h[64];
    uint16_t d[16], m[16];
};
struct panel_q8_0 {
    int8_t q[8][64];
    uint16_t d[16];
};
struct panel_q4_k {
    uint8_t q[8][4][64], s[12][16];
    uint16_t d[16], m[16];
};
struct panel_q5_k {
    uint8_t q[8][4][64], h[8][64], s[12][16];
    uint16_t d[16], m[16];
};
struct panel_q6_k {
    uint8_t q[8][4][64], h[8][2][64];
    int8_t s[16][16];
    uint16_t d[16];
};
struct panel_f32 {
    float x[32][16];
};
struct panel_16 { /* F16 and BF16 */
    uint16_t x[32][16];
};

_Static_assert(sizeof(struct panel_q4_0) == 288 && sizeof(struct panel_q4_1) == 320, "panel");
_Static_assert(sizeof(struct panel_q5_0) == 352 && sizeof(struct panel_q5_1) == 384, "panel");
_Static_assert(sizeof(struct panel_q8_0) == 544 && sizeof(struct panel_16) == 1024, "panel");
_Static_assert(sizeof(struct panel_q4_k) == 2304 && sizeof(struct panel_q5_k) == 2816, "panel");
_Static_assert(sizeof(struct panel_q6_k) == 3360, "panel");

/* The table above as data, for code that need not be fast. */
struct panel_format {
    uint16_t bytes;                  /* of a unit */
    uint8_t blocks;                  /* of 32 k in a unit: 1 or 8 */
    uint8_t bits;                    /* 4, 5, 6, 8; 0: floats */
    uint8_t zero;                    /* what is taken off q */
    uint16_t h_at, s_at, d_at, m_at; /* 0: none */
};

static inline struct panel_format panel_format(enum gpu_type type)
{
    switch (type) {
    case GPU_Q4_0:
        return (struct panel_format){.blocks = 1, .bytes = 288, .bits = 4, .zero = 8, .d_at = 256};
    case GPU_Q4_1:
        return (struct panel_format){
            .blocks = 1, .bytes = 320, .bits = 4, .d_at = 256, .m_at = 288};
    case GPU_Q5_0:
        return (struct panel_format){
            .blocks = 1, .bytes = 352, .bits = 5, .zero = 16, .h_at = 256, .d_at = 320};
    case GPU_Q5_1:
        return (struct panel_format){
            .blocks = 1, .bytes = 384, .bits = 5, .h_at = 256, .d_at = 320, .m_at = 352};
    case GPU_Q8_0:
        return (struct panel_format){.blocks = 1, .bytes = 544, .bits = 8, .d_at = 512};
    case GPU_Q4_K:
        return (struct panel_format){
            .blocks = 8, .bytes = 2304, .bits = 4, .s_at = 2048, .d_at = 2240, .m_at = 2272};
    case GPU_Q5_K:
        return (struct panel_format){.blocks = 8,
                                     .bytes = 2816,
                                     .bits = 5,
                                     .h_at = 2048,
                                     .s_at = 2560,
                                     .d_at = 2752,
                                     .m_at = 2784};
    case GPU_Q6_K:
        return (struct panel_format){.blocks = 8,
                                     .bytes = 3360,
                                     .bits = 6,
                                     .zero = 32,
                                     .h_at = 2048,
                                     .s_at = 3072,
                                     .d_at = 3328};
    case GPU_F16:
    case GPU_BF16:
        return (struct panel_format){.blocks = 1, .bytes = sizeof(struct panel_16)};
    case GPU_F32:
        return (struct panel_format){.blocks = 1, .bytes = sizeof(struct panel_f32)};
    }
    return (struct panel_format){0};
}

/* 32 elements of one row, out of a quantized block: x = d * scale * (q - zero) + m. d * scale and m
 * are exact: no f16 times its scale needs more than 24 bits. */
struct panel_row {
    int16_t q[32];    /* zero is not taken off */
    int16_t scale[2]; /* of elements 0 .. 15 and 16 .. 31; 1 where d has it already */
    float d, m;       /* m is 0 for types that have none */
};
/* Row r of block b of a panel. */
void panel_read(enum gpu_type type, const uint8_t *panel, uint32_t b, uint32_t r,
                struct panel_row *out);

/* The first n <= 32 elements of row r of block b, of any type, dequantized. */
void panel_floats(enum gpu_type type, const uint8_t *panel, uint32_t b, uint32_t r, uint32_t n,
                  float *out);

#endif
