/* test_bench_work.c - what the benchmark says a token costs: on the model whose parts are known by
 * hand, and the lower of two limits.
 */
#include "../bench/work.h"
#include "../support/tiny_model.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

/* One layer of 64 with 4 query heads and 2 key heads of 16 over 96, 480 words. Every matrix fills
 * whole panels, whatever a panel adds to 18 bytes of Q4_0 or 34 of Q8_0 for 32 weights. */
static struct tiny_config small(bool tied)
{
    struct tiny_config c = {.vocab = 480,
                            .hidden = 64,
                            .n_layers = 1,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .ffn = 96,
                            .rope_dim = 16,
                            .embedding = GPU_Q4_0,
                            .output = GPU_Q8_0,
                            .q = GPU_Q4_0,
                            .k = GPU_Q4_0,
                            .v = GPU_Q4_0,
                            .o = GPU_Q4_0,
                            .gate = GPU_Q4_0,
                            .up = GPU_Q4_0,
                            .down = GPU_Q4_0,
                            .norm = GPU_F32,
                            .tied = tied,
                            .seed = 1};
    return c;
}

static struct work work_with(struct tiny_config c)
{
    struct tiny_model t;
    tiny_make(&t, &c);
    struct work w = work_of(&t.net);
    tiny_free(&t);
    return w;
}

enum { LAYER = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96, HEAD = 64 * 480 };

/* Packing may add a little; an embedding that is counted wrongly is more. */
static void check_bytes(double bytes, double of_file)
{
    assert_true(bytes >= of_file && bytes <= 1.3 * of_file);
}

static void weights_are_counted(void **state)
{
    (void)state;
    struct work tied = work_with(small(true)), own = work_with(small(false));
    assert_float_equal(tied.layer_weights, LAYER, 0);
    assert_float_equal(tied.head_weights, HEAD, 0);
    check_bytes(tied.bytes, (LAYER + HEAD) / 32 * 18);
    assert_true(tied.int8);
    assert_float_equal(own.layer_weights, LAYER, 0);
    check_bytes(own.bytes, LAYER / 32 * 18 + HEAD / 32 * 34); /* the embedding not */
}

static void f16_has_no_int8_limit(void **state)
{
    (void)state;
    struct tiny_config c = small(true);
    bool by_reading;
    c.down = GPU_F16;
    struct work w = work_with(c);
    assert_false(w.int8);
    assert_float_equal(work_decode_limit(&w, 1000, w.bytes, 1, &by_reading), 1000, 1e-9);
    assert_true(by_reading);
}

static void the_lower_limit_counts(void **state)
{
    (void)state;
    struct work w = {.bytes = 100, .layer_weights = 40, .head_weights = 10, .int8 = true};
    bool by_reading;
    /* 10 times a second all bytes; 40 tokens a second of 2 * 50 operations */
    assert_float_equal(work_decode_limit(&w, 1, 1000, 4000, &by_reading), 10, 1e-9);
    assert_true(by_reading);
    assert_float_equal(work_decode_limit(&w, 3, 1000, 4000, &by_reading), 30, 1e-9);
    assert_true(by_reading);
    assert_float_equal(work_decode_limit(&w, 5, 1000, 4000, &by_reading), 40, 1e-9);
    assert_false(by_reading);
    assert_float_equal(work_decode_limit(&w, 5, 1000, 0, &by_reading), 50, 1e-9);
    assert_true(by_reading);
    /* 10 tokens: 2 * (10 * 40 + 10) operations */
    assert_float_equal(work_prefill_limit(&w, 10, 1e9, 4100, &by_reading), 50, 1e-9);
    assert_false(by_reading);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_counted),
        cmocka_unit_test(f16_has_no_int8_limit),
        cmocka_unit_test(the_lower_limit_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
