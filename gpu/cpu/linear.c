/* linear.c - from a checkpoint's blocks to panels, and back to floats.
 *
 * Owns the two ways to read a quantized block, out of the checkpoint's bytes and out of a panel.
 * Both end in a struct panel_row, and one function turns that into floats, in the order of
 * operations of ggml's reference: d * (q - zero), or d * q rounded and then + m. Block layouts:
 * tensor.h and panel.h.
 */
#include "linear.h"

#include <assert.h>
#include <string.h>

#include "math.h"
#include "panel.h"

enum { PANEL = LINEAR_PANEL, BLOCK = LINEAR_BLOCK };

bool linear_quantized(enum gpu_type type)
{
    return panel_format(type).bits != 0;
}

void linear_shape(struct linear *l, enum gpu_type type, uint32_t k, uint32_t n, bool int8)
{
    assert(gpu_type_info(type) && k > 0 && n > 0);
    assert(!linear_quantized(type) || k % BLOCK == 0);
    *l = (struct linear){.type = type, .int8 = int8 && linear_quantized(type), .n = n, .k = k};
    l->blocks = k / BLOCK + (k % BLOCK != 0);
    l->panels = n / PANEL + (n % PANEL != 0);
    l->block_bytes = panel_format(type).bytes;
    l->panel_bytes = (size_t)l->blocks * l->block_bytes;
}

/* ---- the checkpoint's blocks ---- */

static uint16_t load_16(const uint8_t *at)
{
    uint16_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static uint32_t load_32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static void raw_block(struct panel_format format, const uint8_t *at, struct panel_row *out)
{
    out->d = load_16(at);
    at += 2;
    out->m = 0;
    if (format.m_at) {
        out->m = load_16(at);
        at += 2;
    }
    if (format.bits == 8) {
        for (int i = 0; i < BLOCK; i++)
            out->q[i] = (int8_t)at[i];
        return;
    }
    uint32_t fifth = 0;
    if (format.h_at) {
        fifth = load_32(at);
        at += 4;
    }
    for (int i = 0; i < BLOCK; i++) {
        int nibble = i < 16 ? at[i] & 15 : at[i - 16] >> 4;
        out->q[i] = (int16_t)(nibble | (int)(fifth >> i & 1) << 4);
    }
}

/* ---- a panel's blocks ---- */

/* Of element i of row r: its byte in the vectors q, and the shift of its nibble. */
static uint32_t nibble_at(uint32_t r, uint32_t i, uint32_t *shift)
{
    uint32_t low = i % 16;
    *shift = i / 16 * 4;
    return r / 8 * 128 + low / 4 * 32 + r % 8 * 4 + low % 4;
}

/* Of element i of row r: its byte in the vectors h, and its bit. */
static uint32_t fifth_at(uint32_t r, uint32_t i, uint32_t *bit)
{
    *bit = i / 16 * 4 + i % 16 / 4;
    return r / 8 * 32 + r % 8 * 4 + i % 4;
}

static uint32_t byte_at(uint32_t r, uint32_t i)
{
    return r / 8 * 256 + i / 4 * 32 + r % 8 * 4 + i % 4;
}

void panel_read(enum gpu_type type, const uint8_t *block, uint32_t r, struct panel_row *out)
{
    struct panel_format format = panel_format(type);
    for (uint32_t i = 0; i < BLOCK; i++) {
        uint32_t shift, bit;
        if (format.bits == 8) {
            out->q[i] = (int8_t)block[byte_at(r, i)];
            continue;
        }
        uint32_t at = nibble_at(r, i, &shift), q = block[at] >> shift & 15u;
        if (format.h_at) {
            uint8_t h = block[format.h_at + fifth_at(r, i, &bit)];
            q |= (h >> bit & 1u) << 4;
        }
        out->q[i] = (int16_t)q;
    }
    out->d = load_16(block + format.d_at + 2 * r);
    out->m = format.m_at ? load_16(block + format.m_at + 2 * r) : 0;
}

/* ---- floats ---- */

static void dequantize_block(struct panel_format format, const struct panel_row *b, float *out)
{
    float d = math_from_f16(b->d), m = math_from_f16(b->m);
    for (int i = 0; i < BLOCK; i++) {
        float x = d * (float)(b->q[i] - format.zero);
        out[i] = format.m_at ? x + m : x;
    }
}

static float float_of(enum gpu_type type, const uint8_t *raw, uint64_t i)
{
    if (type == GPU_F32)
        return math_from_bits(load_32(raw + 4 * i));
    uint16_t half = load_16(raw + 2 * i);
    return type == GPU_BF16 ? math_from_bits((uint32_t)half << 16) : math_from_f16(half);
}

void panel_floats(enum gpu_type type, const uint8_t *block, uint32_t r, uint32_t n, float *out)
{
    struct panel_format format = panel_format(type);
    if (format.bits) {
        struct panel_row row;
        assert(n == BLOCK);
        panel_read(type, block, r, &row);
        dequantize_block(format, &row, out);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = float_of(type, block, (uint64_t)i * PANEL + r);
}

void linear_dequantize(enum gpu_type type, const void *raw, uint64_t n, float *out)
{
    struct panel_format format = panel_format(type);
    const uint8_t *at = raw;
    if (!format.bits) {
        for (uint64_t i = 0; i < n; i++)
            out[i] = float_of(type, at, i);
        return;
    }
    assert(n % BLOCK == 0);
    for (; n > 0; n -= BLOCK, out += BLOCK, at += gpu_type_info(type)->block_bytes) {
        struct panel_row b;
        raw_block(format, at, &b);
        dequantize_block(format, &b, out);
    }
}

/* ---- whole matrices ---- */

/* Row r of a panel: k elements of 2 or 4 bytes, to places 16 elements apart. */
static void put_floats(uint8_t *panel, uint32_t r, const uint8_t *raw, uint32_t k, uint32_t size)
{
    for (uint32_t i = 0; i < k; i++)
        memcpy(panel + ((size_t)i * PANEL + r) * size, raw + (size_t)i * size, size);
}

/* Bit e of `fifths` belongs to element e: byte i of the row takes those of 4 j + i and 16 + 4 j +
 * i. */
static void put_fifths(uint8_t *h, uint32_t fifths)
{
    for (int i = 0; i < 4; i++) {
        uint32_t bits = 0;
        for (int j = 0; j < 4; j++)
            bits |= (fifths >> (4 * j + i) & 1) << j | (fifths >> (16 + 4 * j + i) & 1) << (4 + j);
        h[i] = (uint8_t)bits;
    }
}

/* Row r of a panel's block from the checkpoint's block. A byte of nibbles holds the same two
 * elements in both (i and 16 + i), so quants move four bytes at a time. */
static void put_block(struct panel_format format, uint8_t *block, uint32_t r, const uint8_t *raw)
{
    uint32_t vectors = format.bits == 8 ? 8 : 4;
    memcpy(block + format.d_at + 2 * r, raw, 2);
    raw += 2;
    if (format.m_at) {
        memcpy(block + format.m_at + 2 * r, raw, 2);
        raw += 2;
    }
    if (format.h_at) {
        put_fifths(block + format.h_at + r / 8 * 32 + r % 8 * 4, load_32(raw));
        raw += 4;
    }
    uint8_t *q = block + r / 8 * vectors * 32 + r % 8 * 4;
    for (uint32_t j = 0; j < vectors; j++)
        memcpy(q + (size_t)32 * j, raw + (size_t)4 * j, 4);
}

static void put_row(const struct linear *l, uint8_t *panel, uint32_t r, const uint8_t *raw)
{
    struct panel_format format = panel_format(l->type);
    uint32_t raw_bytes = gpu_type_info(l->type)->block_bytes;
    if (!format.bits) {
        put_floats(panel, r, raw, l->k, raw_bytes);
        return;
    }
    for (uint32_t b = 0; b < l->blocks; b++)
        put_block(format, panel + (size_t)b * l->block_bytes, r, raw + (size_t)b * raw_bytes);
}

/* `rows`: the checkpoint's rows of this panel, one after the other. */
static void pack_panel(const struct linear *l, uint32_t p, const uint8_t *rows)
{
    uint8_t *panel = l->panels_at + p * l->panel_bytes;
    size_t row_bytes = (size_t)gpu_row_bytes(l->type, l->k);
    memset(panel, 0, l->panel_bytes);
    for (uint32_t r = 0; r < PANEL && p * PANEL + r < l->n; r++)
        put_row(l, panel, r, rows + r * row_bytes);
}

void linear_pack(struct linear *l, const void *raw, uint32_t p0, uint32_t p1)
{
    assert(p1 <= l->panels && (uintptr_t)l->panels_at % 64 == 0);
    size_t rows_bytes = (size_t)gpu_row_bytes(l->type, l->k) * PANEL;
    for (uint32_t p = p0; p < p1; p++)
        pack_panel(l, p, (const uint8_t *)raw + p * rows_bytes);
}

bool linear_in_place(const struct linear *l)
{
    return gpu_row_bytes(l->type, l->k) * PANEL == l->panel_bytes;
}

void linear_pack_in_place(struct linear *l, uint32_t p0, uint32_t p1, void *scratch)
{
    assert(p1 <= l->panels && linear_in_place(l));
    for (uint32_t p = p0; p < p1; p++) {
        memcpy(scratch, l->panels_at + p * l->panel_bytes, l->panel_bytes);
        pack_panel(l, p, scratch);
    }
}

void linear_row(const struct linear *l, uint32_t row, float *out)
{
    assert(row < l->n);
    const uint8_t *panel = l->panels_at + row / PANEL * l->panel_bytes;
    for (uint32_t k = 0; k < l->k; k += BLOCK, panel += l->block_bytes)
        panel_floats(l->type, panel, row % PANEL, l->k - k < BLOCK ? l->k - k : BLOCK, out + k);
}
