/* linear.c - from a checkpoint's blocks to panels, and back to floats.
 *
 * Owns the two ways to read a quantized block, out of the checkpoint's bytes and out of a panel.
 * Both end in a struct panel_row, and one function turns that into floats, in the order of
 * operations of ggml's reference: d * (q - zero), or d * q rounded and then + m, where d and m are
 * already those of the sub-block. Block layouts:
 * tensor.h and panel.h.
 */
#include "linear.h"

#include <assert.h>
#include <string.h>

#include "math.h"
#include "panel.h"

enum {
    PANEL = LINEAR_PANEL,
    BLOCK = LINEAR_BLOCK,
    NIBBLES = PANEL * BLOCK / 2 /* bytes of a block's low nibbles */
};

bool linear_quantized(enum gpu_type type)
{
    return panel_format(type).bits != 0;
}

void linear_shape(struct linear *l, enum gpu_type type, uint32_t k, uint32_t n, bool int8)
{
    assert(gpu_type_info(type) && k > 0 && n > 0);
    assert(k % gpu_type_info(type)->block == 0);
    *l = (struct linear){.type = type, .int8 = int8 && linear_quantized(type), .n = n, .k = k};
    l->blocks = k / BLOCK + (k % BLOCK != 0);
    l->panels = n / PANEL + (n % PANEL != 0);
    l->block_bytes = panel_format(type).bytes / panel_format(type).blocks;
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

/* Types with blocks of 32. */
static void raw_small(struct panel_format format, const uint8_t *at, struct panel_row *out)
{
    out->d = math_from_f16(load_16(at));
    at += 2;
    if (format.m_at) {
        out->m = math_from_f16(load_16(at));
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

/* Where Q4_K, Q5_K and Q6_K keep the quants of sub-block s of a block. */
struct sub_block {
    const uint8_t *nibbles; /* (32) */
    const uint8_t *high;    /* (32) or NULL */
    uint32_t shift, high_shift;
};

static struct sub_block sub_block(enum gpu_type type, const uint8_t *raw, uint32_t s)
{
    if (type == GPU_Q6_K)
        return (struct sub_block){.nibbles = raw + s / 4 * 64 + s % 2 * 32,
                                  .high = raw + 128 + s / 4 * 32,
                                  .shift = s % 4 / 2 * 4,
                                  .high_shift = s % 4 * 2};
    const uint8_t *high = type == GPU_Q5_K ? raw + 16 : NULL;
    return (struct sub_block){.nibbles = raw + (high ? 48 : 16) + s / 2 * 32,
                              .high = high,
                              .shift = s % 2 * 4,
                              .high_shift = s};
}

/* What of sub-block s the packed scales say; byte j lies at at[j * step]. */
static void packed_scale(const uint8_t *at, size_t step, uint32_t s, uint32_t *scale, uint32_t *min)
{
    if (s < 4) {
        *scale = at[s * step] & 63u;
        *min = at[(s + 4) * step] & 63u;
        return;
    }
    uint32_t both = at[(s + 4) * step];
    *scale = (both & 15u) | (uint32_t)(at[(s - 4) * step] >> 6) << 4;
    *min = both >> 4 | (uint32_t)(at[s * step] >> 6) << 4;
}

/* d and m of sub-block s, from those of the block. */
static void scale_row(struct panel_row *row, const uint8_t *scales, size_t step, uint32_t s)
{
    uint32_t scale, min;
    packed_scale(scales, step, s, &scale, &min);
    row->d *= (float)scale;
    row->m = -(row->m * (float)min);
}

static void raw_large(enum gpu_type type, const uint8_t *raw, uint32_t s, struct panel_row *out)
{
    struct sub_block b = sub_block(type, raw, s);
    uint32_t mask = type == GPU_Q6_K ? 3 : 1;
    for (int i = 0; i < BLOCK; i++) {
        uint32_t high = b.high ? b.high[i] >> b.high_shift & mask : 0;
        out->q[i] = (int16_t)((b.nibbles[i] >> b.shift & 15) | high << 4);
    }
    if (type == GPU_Q6_K) {
        out->d = math_from_f16(load_16(raw + 208));
        for (uint32_t i = 0; i < 2; i++)
            out->scale[i] = (int8_t)raw[192 + 2 * s + i];
        return;
    }
    out->d = math_from_f16(load_16(raw));
    out->m = math_from_f16(load_16(raw + 2));
    scale_row(out, raw + 4, 1, s);
}

/* Block s of 32 of a checkpoint's block. */
static void raw_block(enum gpu_type type, const uint8_t *raw, uint32_t s, struct panel_row *out)
{
    struct panel_format format = panel_format(type);
    out->m = 0;
    out->scale[0] = out->scale[1] = 1;
    if (format.blocks == 1)
        raw_small(format, raw, out);
    else
        raw_large(type, raw, s, out);
}

/* ---- a panel's blocks ---- */

/* Of element i of row r: its byte in the vectors q, and the shift of its nibble. */
static uint32_t nibble_at(uint32_t r, uint32_t i, uint32_t *shift)
{
    uint32_t low = i % 16;
    *shift = i / 16 * 4;
    return low / 4 * 64 + r * 4 + low % 4;
}

/* Bits from 4 on of element i of row r: their byte in the vectors h, and their shift. */
static uint32_t high_at(uint32_t bits, uint32_t r, uint32_t i, uint32_t *shift)
{
    uint32_t j = i % 16 / 4, byte = r * 4 + i % 4;
    if (bits == 6) {
        *shift = 2 * j;
        return i / 16 * 64 + byte;
    }
    *shift = i / 16 * 4 + j;
    return byte;
}

static uint32_t byte_at(uint32_t r, uint32_t i)
{
    return i / 4 * 64 + r * 4 + i % 4;
}

static int16_t quant_of(struct panel_format format, const uint8_t *unit, uint32_t s, uint32_t r,
                        uint32_t i)
{
    uint32_t shift;
    if (format.bits == 8)
        return (int8_t)unit[byte_at(r, i)];
    uint32_t at = nibble_at(r, i, &shift), q = unit[s * NIBBLES + at] >> shift & 15u;
    if (format.bits > 4) {
        uint32_t extra = format.bits - 4u, vectors = extra * 64;
        at = high_at(format.bits, r, i, &shift);
        q |= (unit[format.h_at + s * vectors + at] >> shift & ((1u << extra) - 1)) << 4;
    }
    return (int16_t)q;
}

void panel_read(enum gpu_type type, const uint8_t *panel, uint32_t b, uint32_t r,
                struct panel_row *out)
{
    struct panel_format format = panel_format(type);
    const uint8_t *unit = panel + (size_t)(b / format.blocks) * format.bytes;
    uint32_t s = b % format.blocks;
    for (uint32_t i = 0; i < BLOCK; i++)
        out->q[i] = quant_of(format, unit, s, r, i);
    out->d = math_from_f16(load_16(unit + format.d_at + 2 * r));
    out->m = format.m_at ? math_from_f16(load_16(unit + format.m_at + 2 * r)) : 0;
    out->scale[0] = out->scale[1] = 1;
    if (type == GPU_Q6_K)
        for (uint32_t i = 0; i < 2; i++)
            out->scale[i] = (int8_t)unit[format.s_at + (2 * s + i) * PANEL + r];
    else if (format.s_at)
        scale_row(out, unit + format.s_at + r, PANEL, s);
}

/* ---- floats ---- */

static void dequantize_block(struct panel_format format, const struct panel_row *b, float *out)
{
    for (int i = 0; i < BLOCK; i++) {
        float x = b->d * (float)b->scale[i / 16] * (float)(b->q[i] - format.zero);
        out[i] = format.m_at ? x + b->m : x;
    }
}

static float float_of(enum gpu_type type, const uint8_t *raw, uint64_t i)
{
    if (type == GPU_F32)
        return math_from_bits(load_32(raw + 4 * i));
    uint16_t half = load_16(raw + 2 * i);
    return type == GPU_BF16 ? math_from_bits((uint32_t)half << 16) : math_from_f16(half);
}

void panel_floats(enum gpu_type type, const uint8_t *panel, uint32_t b, uint32_t r, uint32_t n,
                  float *out)
{
    struct panel_format format = panel_format(type);
    if (format.bits) {
        struct panel_row row;
        assert(n == BLOCK);
        panel_read(type, panel, b, r, &row);
        dequantize_block(format, &row, out);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = float_of(type, panel, ((uint64_t)b * BLOCK + i) * PANEL + r);
}

void linear_dequantize(enum gpu_type type, const void *raw, uint64_t n, float *out)
{
    struct panel_format format = panel_format(type);
    const struct gpu_type_info *info = gpu_type_info(type);
    const uint8_t *at = raw;
    if (!format.bits) {
        for (uint64_t i = 0; i < n; i++)
            out[i] = float_of(type, at, i);
        return;
    }
    assert(n % info->block == 0);
    for (; n > 0; n -= info->block, at += info->block_bytes)
        for (uint32_t s = 0; s < format.blocks; s++, out += BLOCK) {
            struct panel_row b;
            raw_block(type, at, s, &b);
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
        put_fifths(block + format.h_at + r * 4, load_32(raw));
        raw += 4;
    }
    uint8_t *q = block + r * 4;
    for (uint32_t j = 0; j < vectors; j++)
        memcpy(q + (size_t)64 * j, raw + (size_t)4 * j, 4);
}

/* Four bytes at a time: bits `shift` .. of the bytes of p that `mask` has in each. */
static uint32_t four(const uint8_t *p, uint32_t shift, uint32_t mask)
{
    return load_32(p) >> shift & mask * 0x01010101u;
}

static void put_four(uint8_t *to, uint32_t v)
{
    memcpy(to, &v, sizeof v);
}

/* Sub-block s of row r: nibbles to q, bits above them to h, as panel.h lays them out. */
static void put_sub_block(struct panel_format format, const struct sub_block *b, uint8_t *unit,
                          uint32_t s, uint32_t r)
{
    uint8_t *q = unit + s * NIBBLES + r * 4;
    for (uint32_t j = 0; j < 4; j++)
        put_four(q + 64 * j, four(b->nibbles + 4 * j, b->shift, 15) |
                                 four(b->nibbles + 16 + 4 * j, b->shift, 15) << 4);
    uint32_t low = 0, top = 0, extra = format.bits - 4u;
    for (uint32_t j = 0; j < 4 && b->high; j++) {
        low |= four(b->high + 4 * j, b->high_shift, (1u << extra) - 1) << extra * j;
        top |= four(b->high + 16 + 4 * j, b->high_shift, (1u << extra) - 1) << extra * j;
    }
    uint8_t *h = unit + format.h_at + s * extra * 64 + r * 4;
    if (extra == 1)
        put_four(h, low | top << 4);
    if (extra == 2) {
        put_four(h, low);
        put_four(h + 64, top);
    }
}

/* Row r of a unit from a checkpoint's block of 256. */
static void put_unit(enum gpu_type type, uint8_t *unit, uint32_t r, const uint8_t *raw)
{
    struct panel_format format = panel_format(type);
    bool six = type == GPU_Q6_K;
    for (uint32_t s = 0; s < format.blocks; s++) {
        struct sub_block b = sub_block(type, raw, s);
        put_sub_block(format, &b, unit, s, r);
    }
    for (uint32_t j = 0; j < (six ? 16 : 12); j++)
        unit[format.s_at + j * PANEL + r] = raw[(six ? 192 : 4) + j];
    memcpy(unit + format.d_at + 2 * r, raw + (six ? 208 : 0), 2);
    if (format.m_at)
        memcpy(unit + format.m_at + 2 * r, raw + 2, 2);
}

static void put_row(const struct linear *l, uint8_t *panel, uint32_t r, const uint8_t *raw)
{
    struct panel_format format = panel_format(l->type);
    uint32_t raw_bytes = gpu_type_info(l->type)->block_bytes;
    if (!format.bits) {
        put_floats(panel, r, raw, l->k, raw_bytes);
        return;
    }
    for (uint32_t b = 0; b < l->blocks; b += format.blocks, raw += raw_bytes, panel += format.bytes)
        if (format.blocks == 1)
            put_block(format, panel, r, raw);
        else
            put_unit(l->type, panel, r, raw);
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
    for (uint32_t k = 0; k < l->k; k += BLOCK)
        panel_floats(l->type, panel, k / BLOCK, row % PANEL, l->k - k < BLOCK ? l->k - k : BLOCK,
                     out + k);
}
