/* test_touch.c - the pool's pages: the front of every layer at once, the rest in the background,
 * and no byte changed by it.
 */
#include "../../gpu/cpu/touch.h"
#include "../../gpu/cpu/memory.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, LAYERS = 3, LAYER_BYTES = (5 << 20) + 3 * 768 };

static uint8_t *fresh(uint64_t bytes)
{
    uint8_t *at = memory_map(bytes);
    assert_non_null(at);
    assert_int_equal(madvise(at, bytes, MADV_NOHUGEPAGE), 0); /* to see every page */
    return at;
}

static bool resident(uint8_t *at)
{
    unsigned char in;
    assert_int_equal(mincore((void *)((uintptr_t)at / PAGE * PAGE), PAGE, &in), 0);
    return in & 1;
}

static bool all_resident(uint8_t *at, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += PAGE)
        if (!resident(at + i))
            return false;
    return resident(at + bytes - 1);
}

static void first_comes_the_front_of_every_layer(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= 5; threads++) {
        uint64_t bytes = (uint64_t)LAYERS * LAYER_BYTES;
        struct touch t = {.at = fresh(bytes), .layer_bytes = LAYER_BYTES, .layers = LAYERS};
        for (unsigned i = 0; i < threads; i++)
            touch_first(&t, i, threads);
        for (uint32_t i = 0; i < LAYERS; i++) {
            uint8_t *layer = t.at + (uint64_t)i * LAYER_BYTES;
            assert_true(all_resident(layer, TOUCH_FIRST));
            assert_false(resident(layer + TOUCH_FIRST + PAGE));
            assert_false(resident(layer + LAYER_BYTES - 2 * PAGE));
        }
        memory_unmap(t.at, bytes);
    }
}

static void a_small_pool_is_touched_whole(void **state)
{
    (void)state;
    enum { SMALL = 100 * 768 };
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct touch t = {.at = fresh(3 * SMALL), .layer_bytes = SMALL, .layers = 3};
        for (unsigned i = 0; i < threads; i++)
            touch_first(&t, i, threads);
        assert_true(all_resident(t.at, 3 * SMALL));
        touch_start(&t);
        assert_false(t.started); /* nothing is left to do */
        touch_stop(&t);
        memory_unmap(t.at, 3 * SMALL);
    }
}

/* The steps write while the thread is at work; what they wrote stays. */
static void the_rest_comes_without_changing_a_byte(void **state)
{
    (void)state;
    uint64_t bytes = (uint64_t)LAYERS * LAYER_BYTES;
    struct touch t = {.at = fresh(bytes), .layer_bytes = LAYER_BYTES, .layers = LAYERS};
    uint32_t cpu = (uint32_t)sched_getcpu();
    t.cpus = &cpu, t.n_cpus = 1;
    touch_first(&t, 0, 1);
    touch_start(&t);
    assert_true(t.started);
    for (uint64_t i = 0; i < bytes; i += 64 * PAGE) /* leaves most pages to it */
        t.at[i] = (uint8_t)(i / PAGE * 31 + 7);
    pthread_join(t.thread, NULL); /* it ends by itself */
    t.started = false;
    touch_stop(&t);
    assert_true(all_resident(t.at, bytes));
    for (uint64_t i = 0; i < bytes; i++)
        if (t.at[i] != (i % (64 * PAGE) ? 0 : (uint8_t)(i / PAGE * 31 + 7)))
            fail_msg("byte %zu changed", (size_t)i);
    memory_unmap(t.at, bytes);
}

static void a_stop_ends_it_early(void **state)
{
    (void)state;
    enum { ROUNDS = 20 };
    uint64_t bytes = 512ull << 20;
    for (int i = 0; i < ROUNDS; i++) {
        struct touch t = {.at = memory_map(bytes), .layer_bytes = bytes / 4, .layers = 4};
        assert_non_null(t.at);
        touch_start(&t);
        assert_true(t.started);
        touch_stop(&t);
        assert_false(t.started);
        memory_unmap(t.at, bytes); /* nobody touches it any more */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_comes_the_front_of_every_layer),
        cmocka_unit_test(a_small_pool_is_touched_whole),
        cmocka_unit_test(the_rest_comes_without_changing_a_byte),
        cmocka_unit_test(a_stop_ends_it_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
