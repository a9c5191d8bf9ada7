/* avx2_linear.c - products with packed weights on AVX2: 16 outputs x up to 4 rows at a time.
 *
 * Each kernel is one body with the type and the number of rows as constants. Weights stay unsigned
 * where they are stored so (vpmaddubsw takes u8 x s8); the zero point comes off through the
 * activation block's sum. Sums of products are exact:
 *   4 bits  8 pairs of at most 2 * 15 * 127 = 3810 fit a signed 16-bit lane (30480)
 *   5 bits  4 pairs of at most 2 * 31 * 127 = 7874 (31496)
 *   6 bits  4 pairs of at most 2 * 32 * 127 = 8128 (32512): |w| as unsigned, its sign moved to a;
 *           then times the scale of the 16 elements, which widens. A block's sum is at most
 *           2 * 65024 * 128 < 2^24, a float
 *   8 bits  1 pair of at most 2 * 128 * 127 = 32512, as with 6 bits
 * which needs |a| <= 127. Floats follow linear.h's chain, one explicit operation each.
 */
#include "linear.h"

#ifdef __AVX2__

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#include "inline.h"
#include "panel.h"

enum {
    PANEL = LINEAR_PANEL,
    BLOCK = LINEAR_BLOCK,
    GROUP = LINEAR_GROUP,
    HALF = 32,
    FLOAT_ROWS = 6 /* rows of f32 that share a pass: as many sums as registers hold */
};

/* How far ahead of a panel's first pass its bytes are asked for; passes after it find them in L1.
 */
enum { AHEAD = 1280 };

/* Keeps the compiler from reordering a sum of products: its reassociation puts all additions last,
 * and every product goes to the stack in between. */
#define PIN(v) __asm__ volatile("" : "+x"(v))

INLINE __m256i load(const void *p)
{
    return _mm256_load_si256(p);
}
INLINE __m256 halves(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* four activations to every lane */
INLINE __m256i four(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

INLINE __m256i widen(__m256i pairs)
{
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Block b's part of the unit that lies so far ahead. */
INLINE void ask_for_block(struct panel_format format, const uint8_t *unit, uint32_t b)
{
    int bytes = format.bytes / format.blocks;
    const char *at = (const char *)unit + AHEAD + (size_t)b * (unsigned)bytes;
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch(at + i, _MM_HINT_T0);
}

/* ---- int8: exact sums of one block, both halves of the panel; rows is a constant 1 .. 4 ---- */

/* 16-bit sums of u8 x s8 pairs */
INLINE void add_pairs(__m256i *sum, __m256i w, __m256i a, bool first)
{
    __m256i p = _mm256_maddubs_epi16(w, a);
    *sum = first ? p : _mm256_add_epi16(*sum, p);
    PIN(*sum);
}

/* The elements 4 j + i (*lo) and 16 + 4 j + i (*hi) of a half's vector j. high: the half's fifth
 * bits, bit j and bit 4 + j of each byte; NULL for 4-bit types. */
INLINE void split(const uint8_t *q, const uint8_t *high, int j, __m256i *lo, __m256i *hi)
{
    const __m256i low4 = _mm256_set1_epi8(15), bit4 = _mm256_set1_epi8(16);
    __m256i v = load(q);
    *lo = _mm256_and_si256(v, low4);
    *hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low4);
    if (high) {
        __m256i h = load(high);
        *lo = _mm256_or_si256(*lo, _mm256_and_si256(_mm256_slli_epi16(h, 4 - j), bit4));
        *hi = _mm256_or_si256(*hi, _mm256_and_si256(_mm256_srli_epi16(h, j), bit4));
    }
}

/* Vectors j0 .. j1 - 1 of both halves into 16-bit sums. high is (64) or NULL. */
INLINE void sum_nibbles(const uint8_t (*q)[64], const uint8_t *high, const struct act *x, int j0,
                        int j1, int rows, __m256i sum[2][GROUP])
{
#pragma GCC unroll 4
    for (int j = j0; j < j1; j++) {
        __m256i lo0, hi0, lo1, hi1;
        split(q[j], high, j, &lo0, &hi0);
        split(q[j] + HALF, high ? high + HALF : NULL, j, &lo1, &hi1);
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) {
            __m256i a = four(x[t].q + 4 * j), c = four(x[t].q + 16 + 4 * j);
            add_pairs(&sum[0][t], lo0, a, j == j0);
            add_pairs(&sum[1][t], lo1, a, j == j0);
            add_pairs(&sum[0][t], hi0, c, false);
            add_pairs(&sum[1][t], hi1, c, false);
        }
    }
}

/* 4 bits: all pairs fit 16 bits. */
INLINE void sum_4(const uint8_t (*q)[64], const struct act *x, int rows, __m256i sum[2][GROUP])
{
    sum_nibbles(q, NULL, x, 0, 4, rows, sum);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        sum[0][t] = widen(sum[0][t]);
        sum[1][t] = widen(sum[1][t]);
    }
}

/* 5 bits: half of the pairs do. */
INLINE void sum_5(const uint8_t (*q)[64], const uint8_t *high, const struct act *x, int rows,
                  __m256i sum[2][GROUP])
{
    __m256i more[2][GROUP];
    sum_nibbles(q, high, x, 0, 2, rows, sum);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        sum[0][t] = widen(sum[0][t]);
        sum[1][t] = widen(sum[1][t]);
    }
    sum_nibbles(q, high, x, 2, 4, rows, more);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        sum[0][t] = _mm256_add_epi32(sum[0][t], widen(more[0][t]));
        sum[1][t] = _mm256_add_epi32(sum[1][t], widen(more[1][t]));
    }
}

INLINE void add_signed(__m256i *sum, __m256i w, __m256i w_abs, __m256i a, bool first)
{
    __m256i p = widen(_mm256_maddubs_epi16(w_abs, _mm256_sign_epi8(a, w)));
    *sum = first ? p : _mm256_add_epi32(*sum, p);
    PIN(*sum);
}

INLINE void sum_8(const int8_t (*q)[64], const struct act *x, int rows, __m256i sum[2][GROUP])
{
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m256i w0 = load(q[j]), w1 = load(q[j] + HALF);
        __m256i abs0 = _mm256_abs_epi8(w0), abs1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) {
            __m256i a = four(x[t].q + 4 * j);
            add_signed(&sum[0][t], w0, abs0, a, j == 0);
            add_signed(&sum[1][t], w1, abs1, a, j == 0);
        }
    }
}

/* The signed elements 4 j + i (*lo) and 16 + 4 j + i (*hi) of a half's vector j. high: the half's
 * part of the first of two vectors */
INLINE void split_6(const uint8_t *q, const uint8_t *high, int j, __m256i *lo, __m256i *hi)
{
    const __m256i bits45 = _mm256_set1_epi8(48), zero = _mm256_set1_epi8(32);
    __m256i h[2];
    split(q, NULL, j, lo, hi);
    for (int i = 0; i < 2; i++) {
        h[i] = load(high + i * 64);
        h[i] = j < 2 ? _mm256_slli_epi16(h[i], 4 - 2 * j) : _mm256_srli_epi16(h[i], 2 * j - 4);
        h[i] = _mm256_and_si256(h[i], bits45);
    }
    *lo = _mm256_sub_epi8(_mm256_or_si256(*lo, h[0]), zero);
    *hi = _mm256_sub_epi8(_mm256_or_si256(*hi, h[1]), zero);
}

/* Eight signed bytes, each twice, as 16 bits: what a lane's two sums are multiplied with. */
INLINE __m256i twice(const int8_t *p)
{
    __m256i v = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return _mm256_blend_epi16(v, _mm256_slli_epi32(v, 16), 0xaa);
}

/* Half h; scales: of elements 0 .. 15, then of 16 .. 31, of the 16 rows. */
INLINE void sum_half_6(const struct panel_q6_k *w, uint32_t s, int h, const struct act *x, int rows,
                       __m256i *sum)
{
    __m256i lo_sum[GROUP], hi_sum[GROUP];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m256i lo, hi;
        split_6(w->q[s][j] + HALF * h, w->h[s][0] + HALF * h, j, &lo, &hi);
        __m256i abs_lo = _mm256_abs_epi8(lo), abs_hi = _mm256_abs_epi8(hi);
#pragma GCC unroll 4
        for (int t = 0; t < rows; t++) {
            __m256i a = four(x[t].q + 4 * j), c = four(x[t].q + 16 + 4 * j);
            add_pairs(&lo_sum[t], abs_lo, _mm256_sign_epi8(a, lo), j == 0);
            add_pairs(&hi_sum[t], abs_hi, _mm256_sign_epi8(c, hi), j == 0);
        }
    }
    __m256i lo_scale = twice(w->s[2 * s] + 8 * h), hi_scale = twice(w->s[2 * s + 1] + 8 * h);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++)
        sum[t] = _mm256_add_epi32(_mm256_madd_epi16(lo_sum[t], lo_scale),
                                  _mm256_madd_epi16(hi_sum[t], hi_scale));
}

/* Block s of the unit at w. */
INLINE void sum_block(enum gpu_type type, const uint8_t *w, uint32_t s, const struct act *x,
                      int rows, __m256i sum[2][GROUP])
{
    const struct panel_q5_0 *q5 = (const void *)w; /* q and h lie alike in Q5_1, q in Q4_* */
    const struct panel_q5_k *k5 = (const void *)w; /* q in Q4_K */
    if (type == GPU_Q8_0) {
        sum_8(((const struct panel_q8_0 *)w)->q, x, rows, sum);
    } else if (type == GPU_Q4_0 || type == GPU_Q4_1) {
        sum_4(q5->q, x, rows, sum);
    } else if (type == GPU_Q4_K) {
        sum_4(k5->q[s], x, rows, sum);
    } else if (type == GPU_Q5_K) {
        sum_5(k5->q[s], k5->h[s], x, rows, sum);
    } else if (type == GPU_Q6_K) {
        sum_half_6((const void *)w, s, 0, x, rows, sum[0]);
        sum_half_6((const void *)w, s, 1, x, rows, sum[1]);
    } else {
        sum_5(q5->q, q5->h, x, rows, sum);
    }
}

/* ---- d and m of a block's rows ---- */

/* Byte j of the packed scales of eight rows, a lane each. */
INLINE __m256i packed(const uint8_t *scales, uint32_t j)
{
    return _mm256_cvtepu8_epi32(
        _mm_loadl_epi64((const __m128i *)(const void *)(scales + (size_t)j * PANEL)));
}

/* Scale and min of block s of a unit. */
INLINE void unpack_scales(const uint8_t *scales, uint32_t s, __m256 *scale, __m256 *min)
{
    const __m256i low4 = _mm256_set1_epi32(15), low6 = _mm256_set1_epi32(63);
    __m256i a = packed(scales, s), b = packed(scales, s + 4);
    if (s < 4) {
        a = _mm256_and_si256(a, low6);
        b = _mm256_and_si256(b, low6);
    } else {
        __m256i top = _mm256_srli_epi32(packed(scales, s - 4), 6);
        __m256i min_top = _mm256_srli_epi32(a, 6);
        a = _mm256_or_si256(_mm256_and_si256(b, low4), _mm256_slli_epi32(top, 4));
        b = _mm256_or_si256(_mm256_srli_epi32(b, 4), _mm256_slli_epi32(min_top, 4));
    }
    *scale = _mm256_cvtepi32_ps(a);
    *min = _mm256_cvtepi32_ps(b);
}

/* Of half h of block s of the unit at w; m only where the type has it. */
INLINE void block_scales(enum gpu_type type, const uint8_t *w, uint32_t s, int h, __m256 *d,
                         __m256 *m)
{
    struct panel_format format = panel_format(type);
    *d = halves((const uint16_t *)(w + format.d_at) + 8 * h);
    *m = format.m_at ? halves((const uint16_t *)(w + format.m_at) + 8 * h) : *d;
    if (type == GPU_Q4_K || type == GPU_Q5_K) {
        __m256 scale, min;
        unpack_scales(w + format.s_at + 8 * h, s, &scale, &min);
        *d = _mm256_mul_ps(*d, scale);
        *m = _mm256_xor_ps(_mm256_mul_ps(*m, min), _mm256_set1_ps(-0.0f));
    }
}

/* ---- int8: the chain ---- */

/* The next link of half h's chain for every row. */
INLINE void add_block(enum gpu_type type, const uint8_t *w, uint32_t b, int h, const struct act *x,
                      int rows, const __m256i *sum, __m256 *acc)
{
    struct panel_format format = panel_format(type);
    __m256 d, m;
    block_scales(type, w, b, h, &d, &m);
#pragma GCC unroll 4
    for (int t = 0; t < rows; t++) {
        __m256 s = _mm256_cvtepi32_ps(sum[t]);
        __m256 d_a = _mm256_broadcast_ss(&x[t].d), asum = _mm256_broadcast_ss(&x[t].sum);
        if (format.m_at) {
            s = _mm256_fmadd_ps(d, s, _mm256_mul_ps(m, asum));
            acc[t] = _mm256_fmadd_ps(d_a, s, acc[t]);
        } else {
            if (format.zero && type != GPU_Q6_K) /* exact: whole numbers below 2^24 */
                s = _mm256_fnmadd_ps(_mm256_set1_ps(format.zero), asum, s);
            acc[t] = _mm256_fmadd_ps(_mm256_mul_ps(d, d_a), s, acc[t]);
        }
    }
}

INLINE void store(float *y, size_t stride, int rows, __m256 (*acc)[FLOAT_ROWS])
{
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++) {
        _mm256_store_ps(y + t * stride, acc[0][t]);
        _mm256_store_ps(y + t * stride + 8, acc[1][t]);
    }
}

/* One panel against one group of rows. */
INLINE void int8_kernel(enum gpu_type type, const uint8_t *w, uint32_t blocks, const struct act *x,
                        float *y, size_t stride, int rows, bool ahead)
{
    struct panel_format format = panel_format(type);
    __m256 acc[2][FLOAT_ROWS];
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++) /* unrolled early: or the sums live in memory */
        acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (; blocks > 0; blocks -= format.blocks, w += format.bytes)
        for (uint32_t b = 0; b < format.blocks; b++, x += GROUP) {
            __m256i sum[2][GROUP];
            if (ahead)
                ask_for_block(format, w, b);
            sum_block(type, w, b, x, rows, sum);
            add_block(type, w, b, 0, x, rows, sum[0], acc[0]);
            add_block(type, w, b, 1, x, rows, sum[1], acc[1]);
        }
    store(y, stride, rows, acc);
}

/* ---- f32: one multiply-add for every k ---- */

INLINE __m256 wide_bf16(const uint16_t *p)
{
    __m256i v = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

/* d * (q - zero), or d * q rounded and then + m */
INLINE __m256 dequantize(struct panel_format format, __m256i q, __m256 d, __m256 m)
{
    __m256 x = _mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(format.zero)));
    x = _mm256_mul_ps(d, x);
    return format.m_at ? _mm256_add_ps(x, m) : x;
}

/* Byte i of every lane. */
INLINE __m256i byte_of(__m256i v, int i, bool negative)
{
    if (negative)
        return _mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * i), 24);
    return _mm256_and_si256(_mm256_srli_epi32(v, 8 * i), _mm256_set1_epi32(255));
}

INLINE __m256 signed_bytes(const int8_t *p)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* Vector j of half h of block s as split() and split_6() give it; of Q8_0, whose vectors hold eight
 * times four elements, in both. */
INLINE void quants(enum gpu_type type, const uint8_t *w, uint32_t s, int h, int j, __m256i *lo,
                   __m256i *hi)
{
    const struct panel_q8_0 *q8 = (const void *)w;
    const struct panel_q5_0 *q5 = (const void *)w;
    const struct panel_q5_k *k5 = (const void *)w;
    const struct panel_q6_k *k6 = (const void *)w;
    if (type == GPU_Q8_0)
        *lo = *hi = load(q8->q[j] + HALF * h);
    else if (type == GPU_Q6_K)
        split_6(k6->q[s][j] + HALF * h, k6->h[s][0] + HALF * h, j, lo, hi);
    else if (type == GPU_Q4_K)
        split(k5->q[s][j] + HALF * h, NULL, j, lo, hi);
    else if (type == GPU_Q5_K)
        split(k5->q[s][j] + HALF * h, k5->h[s] + HALF * h, j, lo, hi);
    else
        split(q5->q[j] + HALF * h, panel_format(type).h_at ? q5->h + HALF * h : NULL, j, lo, hi);
}

/* d times the scale of the elements 0 .. 15 and of the others. */
INLINE void half_scales(enum gpu_type type, const uint8_t *w, uint32_t s, int h, __m256 *d_lo,
                        __m256 *d_hi, __m256 *m)
{
    const struct panel_q6_k *k6 = (const void *)w;
    block_scales(type, w, s, h, d_lo, m);
    *d_hi = *d_lo;
    if (type == GPU_Q6_K) {
        *d_lo = _mm256_mul_ps(*d_lo, signed_bytes(k6->s[2 * s] + 8 * h));
        *d_hi = _mm256_mul_ps(*d_hi, signed_bytes(k6->s[2 * s + 1] + 8 * h));
    }
}

/* Half h of block s of a unit as floats: out[k][8 h ..]. Byte i of lane r is element 4 j + i. */
INLINE void unpack_half(enum gpu_type type, const uint8_t *w, uint32_t s, int h,
                        float out[BLOCK][PANEL])
{
    struct panel_format format = panel_format(type);
    __m256 d_lo, d_hi, m;
    half_scales(type, w, s, h, &d_lo, &d_hi, &m);
    if (type == GPU_Q6_K)
        format.zero = 0; /* split_6 has taken it off */
    bool whole = type == GPU_Q8_0, negative = whole || type == GPU_Q6_K;
    for (int j = 0; j < (whole ? 8 : 4); j++) {
        __m256i lo, hi;
        quants(type, w, s, h, j, &lo, &hi);
        for (int i = 0; i < 4; i++) {
            float *at = &out[4 * j + i][8 * h];
            _mm256_store_ps(at, dequantize(format, byte_of(lo, i, negative), d_lo, m));
            if (!whole)
                _mm256_store_ps(at + (ptrdiff_t)16 * PANEL,
                                dequantize(format, byte_of(hi, i, negative), d_hi, m));
        }
    }
}

/* Elements k .. of the panel's 16 rows as floats */
INLINE __m256 weights(enum gpu_type type, const uint8_t *w, const float unpacked[BLOCK][PANEL],
                      uint32_t k, int h)
{
    switch (type) {
    case GPU_F32:
        return _mm256_load_ps(((const struct panel_f32 *)w)->x[k] + 8 * h);
    case GPU_F16:
        return halves(((const struct panel_16 *)w)->x[k] + 8 * h);
    case GPU_BF16:
        return wide_bf16(((const struct panel_16 *)w)->x[k] + 8 * h);
    default:
        return _mm256_load_ps(unpacked[k] + 8 * h);
    }
}

INLINE void f32_kernel(enum gpu_type type, const uint8_t *w, uint32_t k, const float *x,
                       size_t x_stride, float *y, size_t stride, int rows, bool ahead)
{
    struct panel_format format = panel_format(type);
    __m256 acc[2][FLOAT_ROWS];
#pragma GCC unroll 6
    for (int t = 0; t < rows; t++) /* unrolled early: or the sums live in memory */
        acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (uint32_t at = 0, b = 0; at < k; at += BLOCK, x += BLOCK) {
        _Alignas(32) float unpacked[BLOCK][PANEL];
        uint32_t n = k - at < BLOCK ? k - at : BLOCK;
        if (ahead)
            ask_for_block(format, w, b);
        if (format.bits) {
            unpack_half(type, w, b, 0, unpacked);
            unpack_half(type, w, b, 1, unpacked);
        }
        for (uint32_t i = 0; i < n; i++) {
            __m256 w0 = weights(type, w, unpacked, i, 0), w1 = weights(type, w, unpacked, i, 1);
#pragma GCC unroll 6
            for (int t = 0; t < rows; t++) {
                __m256 v = _mm256_broadcast_ss(&x[t * x_stride + i]);
                acc[0][t] = _mm256_fmadd_ps(w0, v, acc[0][t]);
                acc[1][t] = _mm256_fmadd_ps(w1, v, acc[1][t]);
            }
        }
        if (++b == format.blocks) {
            b = 0;
            w += format.bytes;
        }
    }
    store(y, stride, rows, acc);
}

/* ---- every type and number of rows as a function of its own ---- */

/* Rows first .. first + rows - 1, a group or less, against one panel. */
struct pass {
    const struct linear *l;
    const uint8_t *panel;
    const struct linear_input *in;
    uint32_t first;
    float *y;
    size_t stride;
};

INLINE void pass_body(enum gpu_type type, bool int8, const struct pass *p, int rows, bool ahead)
{
    if (int8) {
        const struct act *x = linear_act((struct act *)p->in->acts, p->l->k, p->first);
        int8_kernel(type, p->panel, p->l->blocks, x, p->y, p->stride, rows, ahead);
    } else {
        const float *x = p->in->f32 + p->first * p->in->stride;
        f32_kernel(type, p->panel, p->l->k, x, p->in->stride, p->y, p->stride, rows, ahead);
    }
}

#define PASS(NAME, TYPE, INT8, ROWS, AHEAD_)                                                       \
    static __attribute__((noinline)) void NAME(const struct pass *p)                               \
    {                                                                                              \
        pass_body(TYPE, INT8, p, ROWS, AHEAD_);                                                    \
    }
/* The kernels with a number make the first pass over a panel, `more` the others. */
#define PASSES(NAME, TYPE)                                                                         \
    PASS(NAME##_1, TYPE, true, 1, true)                                                            \
    PASS(NAME##_2, TYPE, true, 2, true)                                                            \
    PASS(NAME##_3, TYPE, true, 3, true)                                                            \
    PASS(NAME##_4, TYPE, true, 4, true)                                                            \
    PASS(NAME##_more, TYPE, true, 4, false)                                                        \
    static const struct passes NAME = {                                                            \
        GROUP, {NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4}, NAME##_more};
#define FLOAT_PASSES(NAME, TYPE)                                                                   \
    PASS(NAME##_1, TYPE, false, 1, true)                                                           \
    PASS(NAME##_2, TYPE, false, 2, true)                                                           \
    PASS(NAME##_3, TYPE, false, 3, true)                                                           \
    PASS(NAME##_4, TYPE, false, 4, true)                                                           \
    PASS(NAME##_5, TYPE, false, 5, true)                                                           \
    PASS(NAME##_6, TYPE, false, 6, true)                                                           \
    PASS(NAME##_more, TYPE, false, 6, false)                                                       \
    static const struct passes NAME = {                                                            \
        FLOAT_ROWS,                                                                                \
        {NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6},                        \
        NAME##_more};

struct passes {
    uint32_t most; /* rows of a pass */
    void (*rows[FLOAT_ROWS + 1])(const struct pass *p);
    void (*more)(const struct pass *p);
};
PASSES(q4_0, GPU_Q4_0)
PASSES(q4_1, GPU_Q4_1)
PASSES(q5_0, GPU_Q5_0)
PASSES(q5_1, GPU_Q5_1)
PASSES(q8_0, GPU_Q8_0)
PASSES(q4_k, GPU_Q4_K)
PASSES(q5_k, GPU_Q5_K)
PASSES(q6_k, GPU_Q6_K)
FLOAT_PASSES(f32_q4_0, GPU_Q4_0)
FLOAT_PASSES(f32_q4_1, GPU_Q4_1)
FLOAT_PASSES(f32_q5_0, GPU_Q5_0)
FLOAT_PASSES(f32_q5_1, GPU_Q5_1)
FLOAT_PASSES(f32_q8_0, GPU_Q8_0)
FLOAT_PASSES(f32_q4_k, GPU_Q4_K)
FLOAT_PASSES(f32_q5_k, GPU_Q5_K)
FLOAT_PASSES(f32_q6_k, GPU_Q6_K)
FLOAT_PASSES(f32_f32, GPU_F32)
FLOAT_PASSES(f32_f16, GPU_F16)
FLOAT_PASSES(f32_bf16, GPU_BF16)

static const struct passes *passes_of(enum gpu_type type, bool int8)
{
    switch (type) {
    case GPU_Q4_0:
        return int8 ? &q4_0 : &f32_q4_0;
    case GPU_Q4_1:
        return int8 ? &q4_1 : &f32_q4_1;
    case GPU_Q5_0:
        return int8 ? &q5_0 : &f32_q5_0;
    case GPU_Q5_1:
        return int8 ? &q5_1 : &f32_q5_1;
    case GPU_Q8_0:
        return int8 ? &q8_0 : &f32_q8_0;
    case GPU_Q4_K:
        return int8 ? &q4_k : &f32_q4_k;
    case GPU_Q5_K:
        return int8 ? &q5_k : &f32_q5_k;
    case GPU_Q6_K:
        return int8 ? &q6_k : &f32_q6_k;
    case GPU_F16:
        return &f32_f16;
    case GPU_BF16:
        return &f32_bf16;
    case GPU_F32:
        return &f32_f32;
    }
    return NULL;
}

/* Panel by panel; all rows pass over a panel while it lies in L1. */
static void multiply(const struct linear *l, uint32_t p0, uint32_t p1,
                     const struct linear_input *in, uint32_t first, uint32_t n_rows, float *y,
                     size_t stride)
{
    const struct passes *passes = passes_of(l->type, l->int8);
    assert(first % GROUP == 0 && (uintptr_t)y % 32 == 0 && stride % 8 == 0);
    for (uint32_t p = p0; p < p1; p++) {
        struct pass pass = {.l = l,
                            .panel = l->panels_at + p * l->panel_bytes,
                            .in = in,
                            .first = first,
                            .y = y + (size_t)(p - p0) * PANEL,
                            .stride = stride};
        for (uint32_t left = n_rows; left > 0;) {
            uint32_t rows = left < passes->most ? left : passes->most;
            if (left == n_rows || rows < passes->most)
                passes->rows[rows](&pass);
            else
                passes->more(&pass);
            left -= rows;
            pass.first += rows;
            pass.y += rows * stride;
        }
    }
}

/* ---- activations ---- */

/* max(v, m) with m where v is NaN */
INLINE __m256 max_or(__m256 v, __m256 m)
{
    return _mm256_max_ps(v, m);
}

INLINE float largest(__m256 v)
{
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}

/* The sums of a's lanes and of b's. */
INLINE void sums_of(__m256i a, __m256i b, int32_t *a_sum, int32_t *b_sum)
{
    __m256i both = _mm256_hadd_epi32(a, b); /* pairs of a, of b, in each half */
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
    *a_sum = _mm_cvtsi128_si32(t);
    *b_sum = _mm_extract_epi32(t, 2);
}

static void quantize_block(const float *x, struct act *out)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), end = _mm256_set1_ps(127.0f);
    __m256 v[4], top = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        top = max_or(_mm256_andnot_ps(sign, v[i]), top);
    }
    float max = largest(top);
    __m256 inverse = _mm256_set1_ps(max > 1e-30f ? 127.0f / max : 0.0f);
    __m256i q[4];
    for (int i = 0; i < 4; i++) {
        __m256 f = max_or(_mm256_mul_ps(v[i], inverse), _mm256_set1_ps(-127.0f));
        q[i] = _mm256_cvtps_epi32(_mm256_min_ps(f, end));
    }
    int32_t low, high;
    sums_of(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]), &low, &high);
    /* packing works within 128-bit lanes and leaves the fours in the order 0 2 4 6 1 3 5 7 */
    __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)out->q, b);
    out->d = max / 127.0f;
    out->sum = (float)(low + high);
    out->low = (float)low;
    out->less8 = -8 * (low + high);
}

static void quantize(const float *x, uint32_t k, struct act *out)
{
    for (uint32_t i = 0; i < k; i += BLOCK, out += GROUP)
        quantize_block(x + i, out);
}

const struct linear_kernels linear_avx2 = {.quantize = quantize, .multiply = multiply};

#else

const struct linear_kernels linear_avx2 = {0};

#endif
