/* test_rng.c - the counter generator: the published vectors, the range, the keys. */
#include "../../gpu/cpu/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Known answers of Random123's kat_vectors, philox4x32 10. */
static void known_answers(void **state)
{
    (void)state;
    static const struct {
        struct rng_block counter;
        uint64_t key;
        struct rng_block want;
    } vectors[] = {
        {{{0, 0, 0, 0}}, 0, {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}}},
        {{{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}},
         0xffffffffffffffffu,
         {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}}},
        {{{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}},
         0x299f31d0a4093822u,
         {{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        struct rng_block got = rng_philox(vectors[i].counter, vectors[i].key);
        assert_memory_equal(&got, &vectors[i].want, sizeof got);
    }
}

/* Seed, position and choice each lead to other numbers; the same three to the same. */
static void keyed(void **state)
{
    (void)state;
    double x = rng_uniform(1, 2, 3);
    assert_true(rng_uniform(1, 2, 3) == x);
    assert_true(rng_uniform(2, 2, 3) != x);
    assert_true(rng_uniform(1ull << 32 | 1, 2, 3) != x);
    assert_true(rng_uniform(1, 3, 3) != x);
    assert_true(rng_uniform(1, 2, 4) != x);
    assert_true(rng_uniform(1, 3, 2) != x);
}

/* In [0, 1), mean and variance of the uniform within five standard deviations. */
static void uniform(void **state)
{
    (void)state;
    enum { N = 100000 };
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < N; i++) {
        double x = rng_uniform(42, i, 0);
        assert_true(x >= 0.0 && x < 1.0);
        sum += x;
        squares += (x - 0.5) * (x - 0.5);
    }
    assert_true(sum / N > 0.5 - 0.0046 && sum / N < 0.5 + 0.0046);
    assert_true(squares / N > 1.0 / 12 - 0.0012 && squares / N < 1.0 / 12 + 0.0012);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers), cmocka_unit_test(keyed),
                                       cmocka_unit_test(uniform)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
