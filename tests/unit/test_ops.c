/* test_ops.c - the small operations: AVX2 and AVX-512 against plain C bit for bit, plain C against
 * formulas in double, and the RoPE table against the C library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../gpu/cpu/ops.h"
#include "../support/support.h"

enum { MAX = 1600 };
static const uint32_t lengths[] = {1, 2, 7, 8, 9, 31, 32, 33, 40, 63, 64, 72, 576, 1536, 1599};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static struct rnd rnd = {20240611};

/* The kernels beside the plain ones that this machine runs: NULL past the last. */
static const struct ops_kernels *fast(size_t i)
{
    const struct ops_kernels *have[3] = {0};
    size_t n = 0;
    if (test_avx2() && ops_avx2.add)
        have[n++] = &ops_avx2;
    if (test_avx512() && ops_avx512.add)
        have[n++] = &ops_avx512;
    return have[i];
}

static void fill(float *x, uint32_t n, float scale)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = rnd_float(&rnd) * scale;
}

/* Whatever lies past n must stay as it is. */
static void guard(float *x, uint32_t n)
{
    for (uint32_t i = n; i < MAX; i++)
        x[i] = -7.25f;
}

static void norm_is_the_formula(void **state)
{
    (void)state;
    float x[MAX], w[MAX], y[MAX], z[MAX];
    for (int l = 0; l < LENGTHS; l++)
        for (int scale = -3; scale <= 3; scale++) {
            uint32_t n = lengths[l];
            fill(x, n, powf(10, (float)scale));
            fill(w, n, 2);
            guard(y, 0);
            guard(z, 0);
            ops_plain.rms_norm(x, w, 1e-5f, n, y);
            double sum = 0;
            for (uint32_t i = 0; i < n; i++)
                sum += (double)x[i] * x[i];
            for (uint32_t i = 0; i < n; i++) {
                double want = x[i] / sqrt(sum / n + (double)1e-5f) * w[i];
                assert_true(fabs(y[i] - want) <= 1e-6 * fabs(want) + 1e-12);
            }
            for (size_t k = 0; fast(k); k++) {
                float in[MAX];
                memcpy(in, x, sizeof in);
                guard(z, 0);
                fast(k)->rms_norm(x, w, 1e-5f, n, z);
                assert_memory_equal(y, z, sizeof y);
                fast(k)->rms_norm(in, w, 1e-5f, n, in); /* in place */
                assert_memory_equal(y, in, n * sizeof *y);
            }
        }
}

static void add_is_exact(void **state)
{
    (void)state;
    float x[MAX], y[MAX], bias[MAX], a[MAX];
    for (int l = 0; l < LENGTHS; l++)
        for (int with_bias = 0; with_bias < 2; with_bias++) {
            uint32_t n = lengths[l];
            const float *b = with_bias ? bias : NULL;
            fill(x, n, 3);
            fill(y, n, 3);
            fill(bias, n, 1e-3f);
            guard(x, n);
            memcpy(a, x, sizeof a);
            ops_plain.add(x, y, b, n);
            for (uint32_t i = 0; i < n; i++)
                assert_true(x[i] == a[i] + (b ? y[i] + bias[i] : y[i]));
            for (size_t k = 0; fast(k); k++) {
                float in[MAX];
                memcpy(in, a, sizeof in);
                fast(k)->add(in, y, b, n);
                assert_memory_equal(in, x, sizeof in);
            }
        }
}

static void swiglu_is_the_formula(void **state)
{
    (void)state;
    float gate[MAX], up[MAX], y[MAX], z[MAX];
    static const float odd[] = {0.0f, -0.0f, 88.0f, -88.0f, -104.0f, 1000.0f, -1000.0f, 1e-40f};
    for (int l = 0; l < LENGTHS; l++) {
        uint32_t n = lengths[l];
        fill(gate, n, 20);
        fill(up, n, 5);
        for (uint32_t i = 0; i < n; i += 5)
            gate[i] = odd[i / 5 % (sizeof odd / sizeof *odd)];
        guard(y, 0);
        guard(z, 0);
        ops_plain.swiglu(gate, up, n, y);
        for (uint32_t i = 0; i < n; i++) {
            double want = gate[i] / (1 + exp(-(double)gate[i])) * up[i];
            assert_true(fabs(y[i] - want) <= 1e-6 * fabs(want) + 1e-37);
        }
        for (size_t k = 0; fast(k); k++) {
            float in[MAX];
            memcpy(in, gate, sizeof in);
            guard(z, 0);
            fast(k)->swiglu(gate, up, n, z);
            assert_memory_equal(y, z, sizeof y);
            fast(k)->swiglu(in, up, n, in); /* in place */
            assert_memory_equal(y, in, n * sizeof *y);
        }
    }
}

/* ---- RoPE ---- */

/* In place, and into another place of which the rest stays as it is. */
static void rope_is_the_same(const struct ops_kernels *kernels, enum gpu_rope kind,
                             const float *head, uint32_t dim, const float *table, const float *want)
{
    float y[MAX];
    memcpy(y, head, sizeof y);
    kernels->rope(kind, y, dim, table, y);
    assert_memory_equal(want, y, sizeof y);
    guard(y, 0);
    kernels->rope(kind, head, dim, table, y);
    assert_memory_equal(want, y, dim * sizeof *y);
    for (uint32_t i = dim; i < MAX; i++)
        assert_true(y[i] == -7.25f);
}

static void rope_rotates(void **state)
{
    (void)state;
    static const uint32_t dims[] = {2, 4, 6, 8, 10, 14, 16, 18, 32, 34, 48, 64, 80, 96, 128, 254};
    enum { POS = 37 };
    static float all[(POS + 1) * 256];
    float head[MAX], x[MAX], freq[128];
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int kind = GPU_ROPE_PAIRS; kind <= GPU_ROPE_HALVES; kind++) {
            uint32_t dim = dims[d], half = dim / 2;
            for (uint32_t i = 0; i < half; i++)
                freq[i] = powf(10000, -2.0f * (float)i / (float)dim);
            rope_fill(all, POS, POS + 1, freq, dim, 1.0f);
            const float *table = rope_row(all, dim, POS);
            fill(head, MAX, 2);
            memcpy(x, head, sizeof x);
            ops_plain.rope((enum gpu_rope)kind, x, dim, table, x);
            for (uint32_t i = 0; i < half; i++) {
                uint32_t a = kind == GPU_ROPE_PAIRS ? 2 * i : i;
                uint32_t b = kind == GPU_ROPE_PAIRS ? 2 * i + 1 : i + half;
                double angle = POS * (double)freq[i], c = cos(angle), s = sin(angle);
                assert_true(fabs(x[a] - (head[a] * c - head[b] * s)) < 1e-6);
                assert_true(fabs(x[b] - (head[b] * c + head[a] * s)) < 1e-6);
            }
            assert_memory_equal(x + dim, head + dim, sizeof x - dim * sizeof *x);
            for (size_t k = 0; fast(k); k++)
                rope_is_the_same(fast(k), (enum gpu_rope)kind, head, dim, table, x);
        }
}

static void rope_table_is_sine_and_cosine(void **state)
{
    (void)state;
    enum { DIM = 64, HALF = DIM / 2 };
    static const uint32_t positions[] = {0, 1, 2, 3, 100, 2047, 8191, 131071, 1048575};
    float freq[HALF];
    for (uint32_t i = 0; i < HALF; i++)
        freq[i] = powf(500000, -(float)i / HALF);
    for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
        uint32_t pos = positions[p];
        float *table = malloc(((size_t)pos + 1) * DIM * sizeof *table);
        assert_non_null(table);
        rope_fill(table, pos, pos + 1, freq, DIM, 1.25f);
        const float *row = rope_row(table, DIM, pos);
        for (uint32_t i = 0; i < HALF; i++) {
            double angle = (double)pos * (double)freq[i];
            assert_true(fabs(row[i] - 1.25 * cos(angle)) < 1e-7);
            assert_true(fabs(row[HALF + i] - 1.25 * sin(angle)) < 1e-7);
        }
        free(table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_is_the_formula),           cmocka_unit_test(add_is_exact),
        cmocka_unit_test(swiglu_is_the_formula),         cmocka_unit_test(rope_rotates),
        cmocka_unit_test(rope_table_is_sine_and_cosine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
