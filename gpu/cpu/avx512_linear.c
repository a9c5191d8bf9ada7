/* avx512_linear.c - products with packed weights on AVX-512 with VNNI: 16 outputs x up to 8 rows at
 * a time, one vector of a panel a load.
 *
 * vpdpbusd multiplies unsigned by signed bytes and adds fours of products to 32-bit sums, so there
 * is no narrow sum that could overflow: every type takes the same path, and the zero point (128 for
 * 8 bits, which are made unsigned on the way) comes off through the activation block's sum, with which
 * the sums begin: a broadcast from memory instead of a float operation on the ports that products
 * want. All integers stay below 2^24, so what is computed of them in floats is exact:
 *   8 bits  a block's sum is at most 32 * 255 * 127
 *   6 bits  each 16 elements at most 16 * 63 * 127, less 32 * their sum: 65,024; times a scale of at
 *           most 128, twice: 16,646,144
 * Floats follow linear.h's chain, one explicit operation each: the same bits as the other kernels.
 * Products with float activations are avx2_linear.c's.
 */
#include "linear.h"

#ifdef __AVX512VNNI__

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#include "inline.h"
#include "panel.h"

enum {
    PANEL = LINEAR_PANEL,
    GROUP = LINEAR_GROUP,
    BLOCK = LINEAR_BLOCK,
    ROWS = 2 * GROUP, /* rows that share a pass over a panel */
    LINE = 64
};

/* Which lines of each block a pass asks for, and how many bytes ahead of where it reads: into L2 and,
 * if not 0, into L1. */
struct ahead {
    uint32_t from, to;
    size_t far, near;
};

/* Rows first .. first + rows - 1 against one panel. */
struct pass {
    const uint8_t *panel;
    uint32_t blocks;
    const struct act *x; /* of the first row; its group's rows follow */
    size_t next_group;   /* blocks from there to the next group */
    float *y;
    size_t stride;
    struct ahead ahead;
};

INLINE __m512i load(const void *p)
{
    return _mm512_loadu_si512(p);
}
INLINE __m512 halves(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE __m512i bytes(const void *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
}

/* Row t's activations of the block at x. */
INLINE const struct act *act_of(const struct act *x, size_t next_group, int t)
{
    return t < GROUP ? x + t : x + next_group + (t - GROUP);
}

/* sum += w . the four activations at a, in every lane */
INLINE __m512i add_four(__m512i sum, __m512i w, const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(four));
}

/* ---- unsigned quants ---- */

/* Elements 4 j + i (*lo) and 16 + 4 j + i (*hi) of vector j. high: NULL for 4-bit types, or the bits
 * above: one vector of fifths, two of sixths. */
INLINE void split(const uint8_t *q, const uint8_t *high, int extra, int j, __m512i *lo, __m512i *hi)
{
    const __m512i low4 = _mm512_set1_epi8(15);
    __m512i v = load(q);
    *lo = _mm512_and_si512(v, low4);
    *hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), low4);
    if (extra == 1) {
        const __m512i bit4 = _mm512_set1_epi8(16);
        __m512i h = load(high);
        *lo = _mm512_or_si512(*lo, _mm512_and_si512(_mm512_slli_epi16(h, 4 - (unsigned)j), bit4));
        *hi = _mm512_or_si512(*hi, _mm512_and_si512(_mm512_srli_epi16(h, (unsigned)j), bit4));
    }
    if (extra == 2) {
        const __m512i bits45 = _mm512_set1_epi8(48);
        __m512i h[2] = {load(high), load(high + LINE)};
        for (int i = 0; i < 2; i++)
            h[i] = j < 2 ? _mm512_slli_epi16(h[i], 4 - 2 * (unsigned)j)
                         : _mm512_srli_epi16(h[i], 2 * (unsigned)j - 4);
        *lo = _mm512_or_si512(*lo, _mm512_and_si512(h[0], bits45));
        *hi = _mm512_or_si512(*hi, _mm512_and_si512(h[1], bits45));
    }
}

/* ---- exact sums of one block; rows is a constant ---- */

/* What the zero points of a block's elements come to, in every lane; zero: 0 or 8 to 128. */
INLINE __m512i less_zeros(const struct act *a, int zero)
{
    __m512i less = _mm512_set1_epi32(a->less8);
    return zero == 0    ? _mm512_setzero_si512()
           : zero == 8  ? less
           : zero == 16 ? _mm512_slli_epi32(less, 1)
                        : _mm512_slli_epi32(less, 4);
}

/* Adds the elements 0 .. 15 and 16 .. 31; where both are the same array, all. */
INLINE void sum_nibbles(const uint8_t (*q)[LINE], const uint8_t *high, int extra,
                        const struct act *x, size_t next_group, int rows, __m512i *lo_sum,
                        __m512i *hi_sum)
{
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m512i lo, hi;
        split(q[j], high, extra, j, &lo, &hi);
        UNROLL
        for (int t = 0; t < rows; t++) {
            const int8_t *a = act_of(x, next_group, t)->q + 4 * j;
            lo_sum[t] = add_four(lo_sum[t], lo, a);
            hi_sum[t] = add_four(hi_sum[t], hi, a + 16);
        }
    }
}

INLINE void sum_bytes(const int8_t (*q)[LINE], const struct act *x, size_t next_group, int rows,
                      __m512i *sum)
{
    UNROLL
    for (int j = 0; j < 8; j++) {
        __m512i w = _mm512_xor_si512(load(q[j]), _mm512_set1_epi8(-128)); /* + 128 */
        UNROLL
        for (int t = 0; t < rows; t++)
            sum[t] = add_four(sum[t], w, act_of(x, next_group, t)->q + 4 * j);
    }
}

/* Block s of the unit at w: the quants' sum, without what zero adds; not of Q6_K. */
INLINE void sum_block(enum gpu_type type, const uint8_t *w, uint32_t s, const struct act *x,
                      size_t next_group, int rows, __m512i *sum)
{
    const struct panel_q5_0 *q5 = (const void *)w; /* q and h lie alike in Q5_1, q in Q4_* */
    const struct panel_q5_k *k5 = (const void *)w; /* q in Q4_K */
    int zero = type == GPU_Q8_0 ? 128 : panel_format(type).zero;
    UNROLL
    for (int t = 0; t < rows; t++)
        sum[t] = less_zeros(act_of(x, next_group, t), zero);
    if (type == GPU_Q8_0)
        sum_bytes(((const struct panel_q8_0 *)w)->q, x, next_group, rows, sum);
    else if (type == GPU_Q4_0 || type == GPU_Q4_1)
        sum_nibbles(q5->q, NULL, 0, x, next_group, rows, sum, sum);
    else if (type == GPU_Q4_K)
        sum_nibbles(k5->q[s], NULL, 0, x, next_group, rows, sum, sum);
    else if (type == GPU_Q5_K)
        sum_nibbles(k5->q[s], k5->h[s], 1, x, next_group, rows, sum, sum);
    else
        sum_nibbles(q5->q, q5->h, 1, x, next_group, rows, sum, sum);
}

/* ---- d and m of a block's rows ---- */

/* Scale and min of block s of a unit, from the packed scales (12, 16). */
INLINE void unpack_scales(const uint8_t (*scales)[PANEL], uint32_t s, __m512 *scale, __m512 *min)
{
    const __m512i low4 = _mm512_set1_epi32(15), low6 = _mm512_set1_epi32(63);
    __m512i a = bytes(scales[s]), b = bytes(scales[s + 4]);
    if (s < 4) {
        a = _mm512_and_si512(a, low6);
        b = _mm512_and_si512(b, low6);
    } else {
        __m512i top = _mm512_srli_epi32(bytes(scales[s - 4]), 6);
        __m512i min_top = _mm512_srli_epi32(a, 6);
        a = _mm512_or_si512(_mm512_and_si512(b, low4), _mm512_slli_epi32(top, 4));
        b = _mm512_or_si512(_mm512_srli_epi32(b, 4), _mm512_slli_epi32(min_top, 4));
    }
    *scale = _mm512_cvtepi32_ps(a);
    *min = _mm512_cvtepi32_ps(b);
}

INLINE __m512 negative(__m512 x)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), sign));
}

/* Of block s of the unit at w; m only where the type has it. */
INLINE void block_scales(enum gpu_type type, const uint8_t *w, uint32_t s, __m512 *d, __m512 *m)
{
    struct panel_format format = panel_format(type);
    *d = halves((const uint16_t *)(const void *)(w + format.d_at));
    *m = format.m_at ? halves((const uint16_t *)(const void *)(w + format.m_at)) : *d;
    if (type == GPU_Q4_K || type == GPU_Q5_K) {
        __m512 scale, min;
        unpack_scales((const uint8_t(*)[PANEL])(w + format.s_at), s, &scale, &min);
        *d = _mm512_mul_ps(*d, scale);
        *m = negative(_mm512_mul_ps(*m, min));
    }
}

/* ---- the chain ---- */

/* The next link for every row. */
INLINE void add_block(enum gpu_type type, const uint8_t *w, uint32_t b, const struct act *x,
                      size_t next_group, int rows, const __m512i *sum, __m512 *acc)
{
    struct panel_format format = panel_format(type);
    __m512 d, m;
    block_scales(type, w, b, &d, &m);
    UNROLL
    for (int t = 0; t < rows; t++) {
        const struct act *a = act_of(x, next_group, t);
        __m512 s = _mm512_cvtepi32_ps(sum[t]);
        __m512 d_a = _mm512_set1_ps(a->d), asum = _mm512_set1_ps(a->sum);
        if (format.m_at) {
            s = _mm512_fmadd_ps(d, s, _mm512_mul_ps(m, asum));
            acc[t] = _mm512_fmadd_ps(d_a, s, acc[t]);
        } else {
            acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(d, d_a), s, acc[t]);
        }
    }
}

INLINE __m512 signed_scales(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

/* Sum and link of block s of a Q6_K unit: its scales are of 16 elements. */
INLINE void add_block_6(const struct panel_q6_k *w, uint32_t s, const struct act *x,
                        size_t next_group, int rows, __m512 *acc)
{
    __m512i lo[ROWS], hi[ROWS];
    UNROLL
    for (int t = 0; t < rows; t++)
        lo[t] = hi[t] = _mm512_setzero_si512();
    sum_nibbles(w->q[s], w->h[s][0], 2, x, next_group, rows, lo, hi);
    const __m512 zero = _mm512_set1_ps(32);
    __m512 d = halves(w->d), lo_scale = signed_scales(w->s[2 * s]),
           hi_scale = signed_scales(w->s[2 * s + 1]);
    UNROLL
    for (int t = 0; t < rows; t++) {
        const struct act *a = act_of(x, next_group, t);
        __m512 low = _mm512_set1_ps(a->low), high = _mm512_set1_ps(a->sum - a->low);
        __m512 f = _mm512_fnmadd_ps(zero, low, _mm512_cvtepi32_ps(lo[t]));
        __m512 g = _mm512_fnmadd_ps(zero, high, _mm512_cvtepi32_ps(hi[t]));
        f = _mm512_fmadd_ps(f, lo_scale, _mm512_mul_ps(g, hi_scale));
        acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(a->d)), f, acc[t]);
    }
}

INLINE void ask(const uint8_t *block, const struct ahead *a)
{
    for (uint32_t i = a->from; i < a->to; i++) {
        const char *line = (const char *)block + (size_t)i * LINE;
        _mm_prefetch(line + a->far, _MM_HINT_T1);
        if (a->near)
            _mm_prefetch(line + a->near, _MM_HINT_T0);
    }
}

/* One panel against up to ROWS rows. */
INLINE void pass_body(enum gpu_type type, const struct pass *p, int rows)
{
    struct panel_format format = panel_format(type);
    const struct ahead ahead = p->ahead;
    const uint8_t *w = p->panel;
    const struct act *x = p->x;
    __m512 acc[ROWS];
    UNROLL
    for (int t = 0; t < rows; t++)
        acc[t] = _mm512_setzero_ps();
    for (uint32_t left = p->blocks; left > 0; left -= format.blocks, w += format.bytes)
        for (uint32_t b = 0; b < format.blocks; b++, x += GROUP) {
            __m512i sum[ROWS];
            ask(w + b * (format.bytes / format.blocks), &ahead);
            if (type == GPU_Q6_K) {
                add_block_6((const void *)w, b, x, p->next_group, rows, acc);
            } else {
                sum_block(type, w, b, x, p->next_group, rows, sum);
                add_block(type, w, b, x, p->next_group, rows, sum, acc);
            }
        }
    UNROLL
    for (int t = 0; t < rows; t++)
        _mm512_storeu_ps(p->y + t * p->stride, acc[t]);
}

/* ---- every type and number of rows as a function of its own ---- */

#define PASS(NAME, TYPE, N)                                                                        \
    static __attribute__((noinline)) void NAME##_##N(const struct pass *p)                         \
    {                                                                                              \
        pass_body(TYPE, p, N);                                                                     \
    }
#define PASSES(NAME, TYPE)                                                                         \
    PASS(NAME, TYPE, 1)                                                                            \
    PASS(NAME, TYPE, 2)                                                                            \
    PASS(NAME, TYPE, 3)                                                                            \
    PASS(NAME, TYPE, 4)                                                                            \
    PASS(NAME, TYPE, 8)                                                                            \
    static const pass_of NAME[ROWS + 1] = {NULL,     NAME##_1, NAME##_2,                           \
                                           NAME##_3, NAME##_4, [ROWS] = NAME##_8};

typedef void (*pass_of)(const struct pass *p);
PASSES(q4_0, GPU_Q4_0)
PASSES(q4_1, GPU_Q4_1)
PASSES(q5_0, GPU_Q5_0)
PASSES(q5_1, GPU_Q5_1)
PASSES(q8_0, GPU_Q8_0)
PASSES(q4_k, GPU_Q4_K)
PASSES(q5_k, GPU_Q5_K)
PASSES(q6_k, GPU_Q6_K)

static const pass_of *passes_of(enum gpu_type type)
{
    switch (type) {
    case GPU_Q4_0:
        return q4_0;
    case GPU_Q4_1:
        return q4_1;
    case GPU_Q5_0:
        return q5_0;
    case GPU_Q5_1:
        return q5_1;
    case GPU_Q8_0:
        return q8_0;
    case GPU_Q4_K:
        return q4_k;
    case GPU_Q5_K:
        return q5_k;
    case GPU_Q6_K:
        return q6_k;
    default:
        return NULL;
    }
}

/* ---- all rows, panel by panel ---- */

/* Rows of the next pass: with 8, 4, and 1 .. 3 every count is made up. */
static uint32_t rows_of_pass(uint32_t left)
{
    return left >= ROWS ? ROWS : left >= GROUP ? GROUP : left;
}

/* Up to GROUP rows read as fast as the memory gives, and what the CPU asks for by itself is then best.
 * A single pass of more rows asks for what follows. Several passes over a panel share out the lines
 * of the next one: into L2, since L1 is full of what they work on. */
static struct ahead ahead_of_pass(const struct linear *l, uint32_t row, uint32_t rows,
                                  uint32_t n_rows)
{
    enum { FAR = 7680, NEAR = 1920 };
    uint32_t lines = (l->block_bytes + LINE - 1) / LINE;
    if (n_rows <= GROUP)
        return (struct ahead){0};
    if (rows == n_rows)
        return (struct ahead){0, lines, FAR, NEAR};
    return (struct ahead){lines * row / n_rows, lines * (row + rows) / n_rows, l->panel_bytes, 0};
}

static void multiply_int8(const struct linear *l, uint32_t p0, uint32_t p1, const struct act *acts,
                          uint32_t first, uint32_t n_rows, float *y, size_t stride)
{
    const pass_of *passes = passes_of(l->type);
    for (uint32_t p = p0; p < p1; p++) {
        struct pass pass = {.panel = l->panels_at + p * l->panel_bytes,
                            .blocks = l->blocks,
                            .next_group = (size_t)l->blocks * GROUP,
                            .stride = stride};
        for (uint32_t row = 0, rows; row < n_rows; row += rows) {
            rows = rows_of_pass(n_rows - row);
            pass.x = linear_act((struct act *)acts, l->k, first + row);
            pass.y = y + row * stride + (size_t)(p - p0) * PANEL;
            pass.ahead = ahead_of_pass(l, row, rows, n_rows);
            passes[rows](&pass);
        }
    }
}

static void multiply(const struct linear *l, uint32_t p0, uint32_t p1,
                     const struct linear_input *in, uint32_t first, uint32_t n_rows, float *y,
                     size_t stride)
{
    assert(first % GROUP == 0 && (uintptr_t)y % 32 == 0 && stride % 8 == 0);
    if (l->int8)
        multiply_int8(l, p0, p1, in->acts, first, n_rows, y, stride);
    else
        linear_avx2.multiply(l, p0, p1, in, first, n_rows, y, stride);
}

/* ---- activations: four blocks at a time, so that their chains of operations overlap ---- */

enum { BLOCKS = 4 };

/* max(v, m) with m where v is NaN */
INLINE __m512 max_or(__m512 v, __m512 m)
{
    return _mm512_max_ps(v, m);
}

/* The highest magnitude of a block in four lanes. */
INLINE __m128 highest_of_block(__m512 low, __m512 high)
{
    __m512 top = max_or(_mm512_abs_ps(low), _mm512_setzero_ps());
    top = max_or(_mm512_abs_ps(high), top);
    __m256 half =
        _mm256_max_ps(_mm512_castps512_ps256(top),
                      _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(top), 1)));
    return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* In lane i the highest of v[i]. */
INLINE __m128 highest_of_each(const __m128 v[BLOCKS])
{
    __m128 a = _mm_max_ps(_mm_unpacklo_ps(v[0], v[1]), _mm_unpackhi_ps(v[0], v[1]));
    __m128 b = _mm_max_ps(_mm_unpacklo_ps(v[2], v[3]), _mm_unpackhi_ps(v[2], v[3]));
    return _mm_max_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
}

/* x * 127 / max rounded: at most 127.00002 before that. NaN gives -127. */
INLINE __m128i quants(__m512 x, __m512 inverse)
{
    __m512 f = max_or(_mm512_mul_ps(x, inverse), _mm512_set1_ps(-127.0f));
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(f));
}

/* What the halves of q[i] add up to: lane i of *low and of *high. */
INLINE void sums_of_halves(const __m256i q[BLOCKS], __m128 *low, __m128 *high)
{
    __m256i fours[BLOCKS];
    UNROLL
    for (int i = 0; i < BLOCKS; i++)
        fours[i] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q[i]);
    __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(fours[0], fours[1]),
                                     _mm256_hadd_epi32(fours[2], fours[3]));
    *low = _mm_cvtepi32_ps(_mm256_castsi256_si128(sums));
    *high = _mm_cvtepi32_ps(_mm256_extracti128_si256(sums, 1));
}

/* Four blocks, of which the first n are there; the last of them stands for the others. */
INLINE void quantize_four(const float *x, uint32_t n, struct act *out)
{
    __m512 v[BLOCKS][2];
    __m128 top[BLOCKS];
    __m256i q[BLOCKS];
    struct act *to[BLOCKS];
    UNROLL
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t block = i < n ? i : n - 1;
        to[i] = out + (size_t)block * GROUP;
        v[i][0] = _mm512_loadu_ps(x + (size_t)block * BLOCK);
        v[i][1] = _mm512_loadu_ps(x + (size_t)block * BLOCK + BLOCK / 2);
        top[i] = highest_of_block(v[i][0], v[i][1]);
    }
    const __m128 end = _mm_set1_ps(127.0f);
    __m128 max = highest_of_each(top);
    __m128 inverse =
        _mm_maskz_div_ps(_mm_cmp_ps_mask(max, _mm_set1_ps(1e-30f), _CMP_GT_OQ), end, max);
    UNROLL
    for (int i = 0; i < BLOCKS; i++) {
        __m512 by = _mm512_broadcastss_ps(inverse);
        q[i] = _mm256_set_m128i(quants(v[i][1], by), quants(v[i][0], by));
        inverse = _mm_permute_ps(inverse, 0x39); /* the next one's */
    }
    __m128 low, high, sum, d = _mm_div_ps(max, end);
    sums_of_halves(q, &low, &high);
    sum = _mm_add_ps(low, high);
    __m128i less8 = _mm_cvtps_epi32(_mm_mul_ps(sum, _mm_set1_ps(-8.0f)));
    __m128 head[BLOCKS] = {d, sum, low, _mm_castsi128_ps(less8)}; /* (members, block) */
    _MM_TRANSPOSE4_PS(head[0], head[1], head[2], head[3]);
    UNROLL
    for (int i = 0; i < BLOCKS; i++) {
        static_assert(offsetof(struct act, q) == 16, "four members, then bytes");
        _mm_storeu_ps(&to[i]->d, head[i]);
        _mm256_storeu_si256((__m256i *)(void *)to[i]->q, q[i]);
    }
}

static void quantize(const float *x, uint32_t k, struct act *out)
{
    uint32_t left = k / BLOCK;
    for (; left > BLOCKS; left -= BLOCKS, x += BLOCKS * BLOCK, out += BLOCKS * GROUP)
        quantize_four(x, BLOCKS, out);
    quantize_four(x, left, out);
}

const struct linear_kernels linear_avx512 = {.quantize = quantize, .multiply = multiply};

#else

const struct linear_kernels linear_avx512 = {0};

#endif
