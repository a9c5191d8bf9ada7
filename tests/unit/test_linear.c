/* test_linear.c - packed products: AVX2 against the plain reference and against the checkpoint's
 * own blocks, bit for bit, over types, shapes, tails and extremes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/linear.h"
#include "../support/support.h"

static const enum gpu_type types[] = {GPU_F32,  GPU_F16,  GPU_BF16, GPU_Q4_0, GPU_Q4_1, GPU_Q5_0,
                                      GPU_Q5_1, GPU_Q8_0, GPU_Q4_K, GPU_Q5_K, GPU_Q6_K};
enum { N_TYPES = sizeof types / sizeof *types };

/* The kernels beside the plain ones that this machine runs: NULL past the last. */
static const struct linear_kernels *fast(size_t i)
{
    const struct linear_kernels *have[3] = {0};
    size_t n = 0;
    if (test_avx2() && linear_avx2.multiply)
        have[n++] = &linear_avx2;
    if (test_avx512() && linear_avx512.multiply)
        have[n++] = &linear_avx512;
    return have[i];
}

static struct rnd rnd = {1};
static float random_float(void)
{
    return rnd_float(&rnd);
}

/* k, or the next one that has whole blocks of the type */
static uint32_t whole_blocks(enum gpu_type type, uint32_t k)
{
    uint32_t block = gpu_type_info(type)->block;
    return (k + block - 1) / block * block;
}

static void *aligned(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xff, (bytes + 63) / 64 * 64);
    return p;
}

/* ---- weights ---- */

enum fill {
    RANDOM,
    LARGEST, /* every quant at the end of its range; -128 among the 8-bit ones */
    FILLS
};

static void put_half(uint8_t *at, uint32_t low, uint32_t range, bool negative)
{
    uint16_t h = (uint16_t)((low + rnd_u32(&rnd) % range) | (negative ? 0x8000u : 0));
    memcpy(at, &h, 2);
}

static void fill_block(enum gpu_type type, enum fill fill, uint8_t *at)
{
    uint32_t bytes = gpu_type_info(type)->block_bytes;
    if (type == GPU_F32) {
        float x = fill == RANDOM ? random_float() : -3e4f;
        memcpy(at, &x, 4);
        return;
    }
    if (type == GPU_F16 || type == GPU_BF16) {
        put_half(at, type == GPU_F16 ? 0x2000 : 0x3d00, 0x1000, rnd_u32(&rnd) & 1);
        if (fill == LARGEST && type == GPU_F16)
            memcpy(at, &(uint16_t){rnd_u32(&rnd) & 1 ? 0x7bff : 0x8001}, 2);
        return;
    }
    for (uint32_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(fill == RANDOM ? rnd_u32(&rnd) : 0xff);
    if (fill == LARGEST && type == GPU_Q8_0)
        for (uint32_t i = 2; i < bytes; i++)
            at[i] = rnd_u32(&rnd) & 64 ? 0x80 : 0x7f;
    if (type == GPU_Q6_K) {
        for (uint32_t i = 192; i < 208 && fill == LARGEST; i++)
            at[i] = rnd_u32(&rnd) & 64 ? 0x80 : 0x7f;
        if (fill == LARGEST && rnd_u32(&rnd) & 64) /* all quants -32 */
            memset(at, 0, 192);
        put_half(at + 208, 0x0c00, 0x400, rnd_u32(&rnd) & 1);
        return;
    }
    put_half(at, 0x1c00, 0x400, rnd_u32(&rnd) & 1);
    if (type == GPU_Q4_1 || type == GPU_Q5_1 || type == GPU_Q4_K || type == GPU_Q5_K)
        put_half(at + 2, 0x1c00, 0x800, rnd_u32(&rnd) & 1);
}

struct weights {
    struct linear l;
    uint8_t *raw;
};

static struct weights make_weights(enum gpu_type type, uint32_t n, uint32_t k, bool int8,
                                   enum fill fill)
{
    const struct gpu_type_info *info = gpu_type_info(type);
    struct weights w;
    size_t blocks = (size_t)n * k / info->block;
    w.raw = malloc(blocks * info->block_bytes);
    assert_non_null(w.raw);
    for (size_t i = 0; i < blocks; i++)
        fill_block(type, fill, w.raw + i * info->block_bytes);
    linear_shape(&w.l, type, k, n, int8);
    w.l.panels_at = aligned(w.l.panels * w.l.panel_bytes);
    linear_pack(&w.l, w.raw, 0, w.l.panels / 2);
    linear_pack(&w.l, w.raw, w.l.panels / 2, w.l.panels);
    return w;
}

static void free_weights(struct weights *w)
{
    free(w->raw);
    free(w->l.panels_at);
}

/* ---- products ---- */

/* y (rows, stride) of rows `first` .. of x, which are given to the kernels as their rows 0 .. */
static void multiply(const struct linear_kernels *kernels, const struct linear *l, const float *x,
                     uint32_t rows, float *y)
{
    struct act *acts = aligned(linear_acts(l->k, rows) * sizeof *acts);
    struct linear_input in = {.acts = acts, .f32 = x, .stride = l->k};
    if (l->int8)
        for (uint32_t r = 0; r < rows; r++)
            kernels->quantize(x + (size_t)r * l->k, l->k, linear_act(acts, l->k, r));
    size_t stride = linear_stride(l->n);
    uint32_t cut = l->panels / 3; /* as threads would */
    kernels->multiply(l, 0, cut, &in, 0, rows, y, stride);
    kernels->multiply(l, cut, l->panels, &in, 0, rows, y + (size_t)cut * LINEAR_PANEL, stride);
    free(acts);
}

/* One output from the checkpoint's blocks, as linear.h defines it. */
static float expected_f32(const struct weights *w, uint32_t row, const float *x)
{
    float *f = aligned(w->l.k * sizeof *f), acc = 0;
    linear_dequantize(w->l.type, w->raw + row * gpu_row_bytes(w->l.type, w->l.k), w->l.k, f);
    for (uint32_t i = 0; i < w->l.k; i++)
        acc = fmaf(f[i], x[i], acc);
    free(f);
    return acc;
}

/* The same through dequantized weights and activations in double: the int8 result is close to it.
 */
static double expected_int8(const struct weights *w, uint32_t row, const float *x, double *size)
{
    float *f = aligned(w->l.k * sizeof *f);
    struct act *a = aligned(linear_acts(w->l.k, 1) * sizeof *a);
    double sum = 0;
    *size = 0;
    linear_dequantize(w->l.type, w->raw + row * gpu_row_bytes(w->l.type, w->l.k), w->l.k, f);
    linear_plain.quantize(x, w->l.k, a);
    for (uint32_t i = 0; i < w->l.k; i++) {
        const struct act *b = &a[i / LINEAR_BLOCK * LINEAR_GROUP];
        double term = (double)f[i] * b->d * b->q[i % LINEAR_BLOCK];
        sum += term;
        *size += fabs(term);
    }
    free(f);
    free(a);
    return sum;
}

static void check_values(const struct weights *w, const float *x, const float *y, uint32_t rows)
{
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t r = 0; r < w->l.n; r++) {
            float got = y[t * linear_stride(w->l.n) + r];
            const float *row = x + (size_t)t * w->l.k;
            if (!w->l.int8) {
                float want = expected_f32(w, r, row);
                assert_memory_equal(&got, &want, sizeof got);
            } else {
                double size, want = expected_int8(w, r, row, &size);
                assert_true(fabs(got - want) <= 1e-5 * size + 1e-30);
            }
        }
}

static void fill_input(float *x, uint32_t rows, uint32_t k, enum fill fill)
{
    for (size_t i = 0; i < (size_t)rows * k; i++)
        x[i] = fill == RANDOM ? random_float() : i / k & 1 ? -3.0f : 3.0f;
    if (fill == RANDOM && k > 2 * LINEAR_BLOCK)
        memset(x + LINEAR_BLOCK, 0, LINEAR_BLOCK * sizeof *x); /* an empty block */
}

static void check_shape(enum gpu_type type, bool int8, uint32_t n, uint32_t k, uint32_t rows,
                        enum fill fill)
{
    struct weights w = make_weights(type, n, k, int8, fill);
    size_t stride = linear_stride(n), y_bytes = rows * stride * sizeof(float);
    float *x = aligned((size_t)rows * k * sizeof *x), *y = aligned(y_bytes), *z = aligned(y_bytes);
    fill_input(x, rows, k, fill);

    multiply(&linear_plain, &w.l, x, rows, y);
    check_values(&w, x, y, rows);
    for (size_t i = 0; fast(i); i++) {
        multiply(fast(i), &w.l, x, rows, z);
        assert_memory_equal(y, z, y_bytes);
        for (uint32_t some = 1; some < rows; some = some * 2 + 1) /* rows in calls of `some` */
            for (uint32_t t = 0; t < rows; t += some) {
                uint32_t m = rows - t < some ? rows - t : some;
                multiply(fast(i), &w.l, x + (size_t)t * k, m, z);
                assert_memory_equal(y + t * stride, z, m * stride * sizeof *z);
            }
    }
    free_weights(&w);
    free(x);
    free(y);
    free(z);
}

static void kernels_agree(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{16, 32, 1},  {16, 64, 7}, {48, 576, 13},
                                         {384, 64, 4}, {5, 96, 3},  {33, 1536, 6}};
    for (int i = 0; i < N_TYPES; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int int8 = 0; int8 <= linear_quantized(types[i]); int8++)
                for (enum fill f = 0; f < FILLS; f++)
                    check_shape(types[i], int8, shapes[s][0], whole_blocks(types[i], shapes[s][1]),
                                shapes[s][2], f);
}

/* n x k of the products of the models that the project is tried with: SmolLM2-135M's and Gemma 3
 * 270M's, their output heads cut short but for the long form. */
static void shapes_in_use(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{576, 576},  {192, 576},  {1536, 576}, {576, 1536},
                                         {1024, 640}, {256, 640},  {640, 1024}, {2048, 640},
                                         {640, 2048}, {2000, 576}, {2000, 640}};
    static const enum gpu_type quantized[] = {GPU_Q4_0, GPU_Q4_1, GPU_Q5_0, GPU_Q5_1,
                                              GPU_Q8_0, GPU_Q4_K, GPU_Q5_K, GPU_Q6_K};
    enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_QUANTIZED = 8 };
    for (size_t s = 0; s < N_SHAPES; s++)
        for (size_t t = 0; t < N_QUANTIZED; t++)
            if (test_exhaustive() || (s + t) % 4 == 0)
                check_shape(quantized[t], true, shapes[s][0],
                            whole_blocks(quantized[t], shapes[s][1]), 3 + (uint32_t)(s + t) % 11,
                            RANDOM);
    if (test_exhaustive())
        check_shape(GPU_Q8_0, true, 49152, 576, 9, RANDOM);
}

/* Every count of rows is made up of passes; each meets each count of the other kernels. */
static void every_count_of_rows(void **state)
{
    (void)state;
    for (int i = 0; i < N_TYPES; i++)
        for (uint32_t rows = 1; rows <= 26; rows++)
            check_shape(types[i], linear_quantized(types[i]), 32, whole_blocks(types[i], 64), rows,
                        RANDOM);
}

static void any_k_for_floats(void **state)
{
    (void)state;
    static const uint32_t ks[] = {1, 2, 31, 33, 40, 95};
    for (int i = 0; i < 3; i++)
        for (size_t s = 0; s < sizeof ks / sizeof *ks; s++)
            check_shape(types[i], false, 17, ks[s], 6, RANDOM);
}

/* ---- inputs that no model should produce ---- */

static void quantized_inputs_stay_in_range(void **state)
{
    (void)state;
    static const float odd[] = {NAN,    -NAN,   INFINITY, -INFINITY, 3.4e38f, -3.4e38f,
                                1e-30f, 1e-38f, 1e-45f,   -0.0f,     1.0f,    127.5f};
    enum { ODD = sizeof odd / sizeof *odd };
    for (int round = 0; round < 2000; round++) {
        float x[LINEAR_BLOCK];
        struct act a, b;
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        for (int i = 0; i < LINEAR_BLOCK; i++)
            x[i] = rnd_u32(&rnd) % 8 ? random_float() : odd[rnd_u32(&rnd) % ODD];
        linear_plain.quantize(x, LINEAR_BLOCK, &a);
        int sum = 0, low = 0;
        for (int i = 0; i < LINEAR_BLOCK; i++) {
            assert_in_range(a.q[i] + 127, 0, 254);
            sum += a.q[i];
            low += i < LINEAR_BLOCK / 2 ? a.q[i] : 0;
        }
        assert_true(a.sum == (float)sum && a.low == (float)low && a.less8 == -8 * sum);
        for (size_t i = 0; fast(i); i++) {
            fast(i)->quantize(x, LINEAR_BLOCK, &b);
            assert_memory_equal(&a, &b, sizeof a);
        }
    }
}

/* Every number of blocks, with odd ones among them: each is its own, and what lies between the blocks
 * of a row, which is other rows', stays as it is. */
static void quantizes_rows_of_any_length(void **state)
{
    (void)state;
    enum { BLOCKS = 19, ACTS = BLOCKS * LINEAR_GROUP };
    static struct act want[ACTS], got[ACTS];
    float x[BLOCKS * LINEAR_BLOCK];
    for (uint32_t n = 1; n <= BLOCKS; n++)
        for (uint32_t row = 0; row < LINEAR_GROUP; row++) {
            for (uint32_t i = 0; i < n * LINEAR_BLOCK; i++)
                x[i] = rnd_u32(&rnd) % 99 ? random_float() * (float)(1 + i / LINEAR_BLOCK)
                                          : (float[]){NAN, INFINITY, 1e-40f, 0}[rnd_u32(&rnd) % 4];
            memset(want, 0x55, sizeof want);
            linear_plain.quantize(x, n * LINEAR_BLOCK, want + row);
            for (size_t i = 0; fast(i); i++) {
                memset(got, 0x55, sizeof got);
                fast(i)->quantize(x, n * LINEAR_BLOCK, got + row);
                assert_memory_equal(want, got, sizeof want);
            }
        }
}

/* Same bits, or both NaN. */
static void assert_same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_true(memcmp(&a[i], &b[i], sizeof *a) == 0 || (isnan(a[i]) && isnan(b[i])));
}

static void odd_inputs_give_the_same(void **state)
{
    (void)state;
    enum { N = 16, K = 256, ROWS = 5 };
    if (!fast(0))
        skip();
    for (int i = 0; i < N_TYPES; i++)
        for (int int8 = 0; int8 <= linear_quantized(types[i]); int8++) {
            struct weights w = make_weights(types[i], N, K, int8, RANDOM);
            float *x = aligned(ROWS * K * sizeof *x);
            float *y = aligned(ROWS * N * sizeof *y), *z = aligned(ROWS * N * sizeof *z);
            fill_input(x, ROWS, K, RANDOM);
            x[3] = NAN;
            x[K + 40] = INFINITY;
            x[2 * K] = -INFINITY;
            x[3 * K + 1] = 1e-42f;
            multiply(&linear_plain, &w.l, x, ROWS, y);
            for (size_t j = 0; fast(j); j++) {
                multiply(fast(j), &w.l, x, ROWS, z);
                assert_same(y, z, ROWS * N);
            }
            for (int c = 0; c < N; c++) /* the row beside them is untouched by its neighbours */
                assert_true(isfinite(y[4 * N + c]));
            free_weights(&w);
            free(x);
            free(y);
            free(z);
        }
}

/* ---- golden data ---- */

static void *read_golden(const char *type, const char *what, size_t *bytes)
{
    char name[64];
    snprintf(name, sizeof name, "dequant/%s.%s.bin", type, what);
    return golden_read(name, bytes);
}

static void dequantizes_as_the_reference(void **state)
{
    (void)state;
    for (int i = 1; i < N_TYPES; i++) { /* F32 needs none */
        const struct gpu_type_info *info = gpu_type_info(types[i]);
        size_t raw_bytes, want_bytes;
        uint8_t *raw = read_golden(info->name, "blocks", &raw_bytes);
        float *want = read_golden(info->name, "f32", &want_bytes);
        size_t n = raw_bytes / info->block_bytes * info->block;
        assert_int_equal(want_bytes, n * sizeof *want);
        assert_true(n >= 64);
        float *got = aligned(want_bytes);
        linear_dequantize(types[i], raw, n, got);
        assert_memory_equal(got, want, want_bytes);
        free(raw);
        free(want);
        free(got);
    }
}

static void rows_come_back_from_panels(void **state)
{
    (void)state;
    enum { N = 37, K_MAX = 256 };
    for (int i = 0; i < N_TYPES; i++) {
        uint32_t k = whole_blocks(types[i], 96);
        struct weights w = make_weights(types[i], N, k, false, RANDOM);
        float want[K_MAX], got[K_MAX];
        for (uint32_t r = 0; r < N; r++) {
            linear_dequantize(types[i], w.raw + r * gpu_row_bytes(types[i], k), k, want);
            linear_row(&w.l, r, got);
            assert_memory_equal(got, want, k * sizeof *got);
        }
        free_weights(&w);
    }
}

/* Read to where the panels lie and packed there, in any order: the same panels. */
static void packs_in_place(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, k;
    } shapes[] = {{1, 32}, {16, 64}, {33, 96}, {130, 32}};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            uint32_t k = whole_blocks(types[t], shapes[s].k);
            struct weights w = make_weights(types[t], shapes[s].n, k, false, RANDOM);
            struct linear there = w.l;
            size_t raw_bytes = shapes[s].n * gpu_row_bytes(types[t], k);
            assert_true(linear_in_place(&there));
            there.panels_at = aligned(there.panels * there.panel_bytes);
            void *scratch = aligned(there.panel_bytes);
            memcpy(there.panels_at, w.raw, raw_bytes);
            linear_pack_in_place(&there, there.panels / 2, there.panels, scratch);
            linear_pack_in_place(&there, 0, there.panels / 2, scratch);
            assert_memory_equal(there.panels_at, w.l.panels_at, there.panels * there.panel_bytes);
            free(scratch);
            free(there.panels_at);
            free_weights(&w);
        }
    struct linear odd;
    linear_shape(&odd, GPU_F16, 33, 16, false);
    assert_false(linear_in_place(&odd));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree),
        cmocka_unit_test(shapes_in_use),
        cmocka_unit_test(every_count_of_rows),
        cmocka_unit_test(any_k_for_floats),
        cmocka_unit_test(quantized_inputs_stay_in_range),
        cmocka_unit_test(quantizes_rows_of_any_length),
        cmocka_unit_test(odd_inputs_give_the_same),
        cmocka_unit_test(dequantizes_as_the_reference),
        cmocka_unit_test(rows_come_back_from_panels),
        cmocka_unit_test(packs_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
