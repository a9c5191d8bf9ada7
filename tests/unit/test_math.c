/* test_math.c - our exp and log against libm in double, their AVX2 and AVX-512 twins bit for bit,
 * f16 conversion against F16C.
 */
#include "../../gpu/cpu/math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include <cmocka.h>
#include <immintrin.h>

/* Every stride-th bit pattern: all exponents, both signs, NaN and infinity. */
enum { STRIDE = 499, LANES = 8 };

/* Functions from here on may use AVX2, whatever the rest of the build does. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#include "../../gpu/cpu/avx2_math.h"

static void exp8(const float *x, float *y)
{
    _mm256_storeu_ps(y, avx2_exp(_mm256_loadu_ps(x)));
}

static void log8(const float *x, float *y)
{
    _mm256_storeu_ps(y, avx2_log(_mm256_loadu_ps(x)));
}

static uint16_t to_f16c(float x)
{
    return (uint16_t)_mm_extract_epi16(
        _mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), 0);
}

static float from_f16c(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* The same for AVX-512. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
#include "../../gpu/cpu/avx512_math.h"

static void exp16(const float *x, float *y)
{
    _mm512_storeu_ps(y, avx512_exp(_mm512_loadu_ps(x)));
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* |got - want| in units of the last place of want as a float. */
static double ulps(float got, double want)
{
    if (isinf(got) || isinf((float)want))
        return got == (float)want ? 0.0 : INFINITY;
    int exponent = fabs(want) < 0x1p-126 ? -126 : ilogb(want);
    return fabs((double)got - want) / ldexp(1.0, exponent - 23);
}

static void within_1_ulp(void **state)
{
    (void)state;
    for (uint64_t b = 0; b < 1ull << 32; b += STRIDE) {
        float x = math_from_bits((uint32_t)b);
        if (x != x)
            continue;
        if (ulps(math_exp(x), exp((double)x)) > 1.0)
            fail_msg("exp(%a) = %a", (double)x, (double)math_exp(x));
        if (x > 0.0f && ulps(math_log(x), log((double)x)) > 1.0)
            fail_msg("log(%a) = %a", (double)x, (double)math_log(x));
    }
}

/* Where softmax lives, every float of a narrow range too: exp near 0, log near 1. */
static void within_1_ulp_dense(void **state)
{
    (void)state;
    for (uint32_t b = math_bits(0.998f); b < math_bits(1.002f); b++)
        assert_true(ulps(math_log(math_from_bits(b)), log((double)math_from_bits(b))) <= 1.0);
    for (uint32_t b = math_bits(0.34f); b < math_bits(0.36f); b++) {
        float x = math_from_bits(b);
        assert_true(ulps(math_exp(x), exp((double)x)) <= 1.0);
        assert_true(ulps(math_exp(-x), exp(-(double)x)) <= 1.0);
    }
}

static void special_values(void **state)
{
    (void)state;
    const uint32_t nan = 0x7fc00000u;
    assert_int_equal(math_bits(math_exp(-INFINITY)), 0);
    assert_true(math_exp(INFINITY) == INFINITY);
    assert_true(math_exp(0.0f) == 1.0f);
    assert_true(math_exp(-0.0f) == 1.0f);
    assert_true(math_exp(88.72284f) == INFINITY);
    assert_true(math_exp(88.72283f) < INFINITY);
    assert_true(math_exp(-103.9f) == 0x1p-149f);
    assert_true(math_exp(-104.0f) == 0.0f);
    assert_int_equal(math_bits(math_exp(-NAN)), nan);
    assert_true(math_log(0.0f) == -INFINITY);
    assert_true(math_log(-0.0f) == -INFINITY);
    assert_int_equal(math_bits(math_log(1.0f)), 0);
    assert_true(math_log(INFINITY) == INFINITY);
    assert_int_equal(math_bits(math_log(-1e-40f)), nan);
    assert_int_equal(math_bits(math_log(-INFINITY)), nan);
    assert_int_equal(math_bits(math_log(NAN)), nan);
    assert_true(ulps(math_log(0x1p-149f), log(0x1p-149)) <= 1.0);
}

static void avx2_same_bits(void **state)
{
    (void)state;
    if (!have_avx2())
        skip();
    for (uint64_t b = 0; b < 1ull << 32; b += STRIDE * LANES) {
        float x[LANES], e[LANES], l[LANES];
        for (uint32_t i = 0; i < LANES; i++)
            x[i] = math_from_bits((uint32_t)b + i * STRIDE);
        exp8(x, e);
        log8(x, l);
        for (uint32_t i = 0; i < LANES; i++) {
            assert_int_equal(math_bits(e[i]), math_bits(math_exp(x[i])));
            assert_int_equal(math_bits(l[i]), math_bits(math_log(x[i])));
        }
    }
}

static void avx2_same_special(void **state)
{
    (void)state;
    if (!have_avx2())
        skip();
    const float x[2 * LANES] = {0.0f,    -0.0f,     INFINITY, -INFINITY,  NAN,      -NAN,
                                1.0f,    0x1p-149f, -1.0f,    88.72284f,  -103.97f, 0x1p-126f,
                                -103.9f, 3.4e38f,   -3.4e38f, 0x1.fp-127f};
    for (int half = 0; half < 2; half++) {
        float e[LANES], l[LANES];
        exp8(x + half * LANES, e);
        log8(x + half * LANES, l);
        for (int i = 0; i < LANES; i++) {
            assert_int_equal(math_bits(e[i]), math_bits(math_exp(x[half * LANES + i])));
            assert_int_equal(math_bits(l[i]), math_bits(math_log(x[half * LANES + i])));
        }
    }
}

/* Patterns in another stride too, and every one where results lose bits: below the normal range. */
static void avx512_same_bits(void **state)
{
    (void)state;
    if (!__builtin_cpu_supports("avx512f"))
        skip();
    static const struct {
        uint64_t from, to, step;
    } ranges[] = {{0, 1ull << 32, STRIDE - 2},   /* all */
                  {0xc2ae0000u, 0xc2d10000u, 1}, /* -87 .. -104.5 */
                  {0x42b10000u, 0x42b20000u, 1}, /* 88.5 .. 89 */
                  {0x7f7ffff0u, 0x7f800010u, 1}, /* up to infinity, and NaN */
                  {0xff7ffff0u, 0xff800010u, 1}};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (uint64_t b = ranges[r].from; b < ranges[r].to; b += ranges[r].step * 16) {
            float x[16], e[16];
            for (uint32_t i = 0; i < 16; i++)
                x[i] = math_from_bits((uint32_t)(b + i * ranges[r].step));
            exp16(x, e);
            for (uint32_t i = 0; i < 16; i++)
                assert_int_equal(math_bits(e[i]), math_bits(math_exp(x[i])));
        }
}

/* Every f16, and floats around every place where rounding decides. */
static void f16_as_f16c(void **state)
{
    (void)state;
    if (!have_avx2())
        skip();
    for (uint32_t h = 0; h < 65536; h++)
        assert_int_equal(math_bits(math_from_f16((uint16_t)h)), math_bits(from_f16c((uint16_t)h)));
    for (uint64_t b = 0; b < 1ull << 32; b += STRIDE) {
        float x = math_from_bits((uint32_t)b);
        assert_int_equal(math_to_f16(x), to_f16c(x));
    }
    for (uint32_t h = 0; h < 65536; h++)
        for (int near = -1; near <= 1; near++) {
            uint32_t half_way = math_bits(math_from_f16((uint16_t)h)) + 0x1000u;
            float x = math_from_bits(half_way + (uint32_t)near);
            assert_int_equal(math_to_f16(x), to_f16c(x));
        }
}

static void f16_by_hand(void **state)
{
    (void)state;
    assert_int_equal(math_to_f16(1.0f), 0x3c00);
    assert_int_equal(math_to_f16(65519.996f), 0x7bff);
    assert_int_equal(math_to_f16(65520.0f), 0x7c00);
    assert_int_equal(math_to_f16(-0x1p-24f), 0x8001);
    assert_int_equal(math_to_f16(0x1p-25f), 0x0000); /* a tie goes to the even one */
    assert_int_equal(math_to_f16(0x1.8p-24f), 0x0002);
    assert_true(math_from_f16(0x0001) == 0x1p-24f);
    assert_true(math_from_f16(0xfc00) == -INFINITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(within_1_ulp),      cmocka_unit_test(within_1_ulp_dense),
        cmocka_unit_test(special_values),    cmocka_unit_test(avx2_same_bits),
        cmocka_unit_test(avx2_same_special), cmocka_unit_test(avx512_same_bits),
        cmocka_unit_test(f16_as_f16c),       cmocka_unit_test(f16_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
