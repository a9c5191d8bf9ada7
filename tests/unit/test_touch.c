/* test_touch.c - the pool's pages: the front at once, the rest in the background, and no byte
 * changed by it.
 */
#include "../../gpu/cpu/touch.h"
#include "../../gpu/cpu/memory.h"
#include "../../gpu/cpu/pages.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, FIRST = (1 << 20) + 768, BYTES = (15 << 20) + 5 * 768 };

static struct pages fresh(uint64_t bytes)
{
    struct pages p;
    assert_true(pages_map(&p, bytes, PAGES_SMALL)); /* to see every page */
    return p;
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

static void a_range_is_touched_by_all_together(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, PAGE, PAGE + 1, MEMORY_HUGE - 1, 3 * MEMORY_HUGE + 5};
    for (unsigned threads = 1; threads <= 5; threads++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t shift = 0; shift < 8192; shift += 4032) { /* weights begin anywhere */
                struct pages all = fresh(sizes[s] + 4 * PAGE);
                uint8_t *at = all.at + shift;
                for (unsigned i = 0; i < threads; i++)
                    touch_range(at, sizes[s], i, threads);
                assert_true(all_resident(at, sizes[s]));
                assert_false(resident(at + sizes[s] + PAGE));
                pages_unmap(&all);
            }
}

static void a_small_pool_needs_no_thread(void **state)
{
    (void)state;
    struct pages p = fresh(BYTES);
    struct touch t = {.at = p.at, .bytes = BYTES, .first = BYTES};
    touch_start(&t);
    assert_false(t.started);
    touch_stop(&t);
    assert_false(resident(t.at + PAGE));
    pages_unmap(&p);
}

/* The steps write while the thread is at work; what they wrote stays. */
static void the_rest_comes_without_changing_a_byte(void **state)
{
    (void)state;
    uint32_t cpu = (uint32_t)sched_getcpu();
    struct pages p = fresh(BYTES);
    struct touch t = {.at = p.at, .bytes = BYTES, .first = FIRST, .cpus = &cpu, .n_cpus = 1};
    touch_start(&t);
    assert_true(t.started);
    for (uint64_t i = 0; i < BYTES; i += 64 * PAGE) /* leaves most pages to it */
        t.at[i] = (uint8_t)(i / PAGE * 31 + 7);
    pthread_join(t.thread, NULL); /* it ends by itself */
    t.started = false;
    touch_stop(&t);
    assert_true(all_resident(t.at + FIRST, BYTES - FIRST));
    assert_false(resident(t.at + PAGE)); /* that was not its work */
    for (uint64_t i = 0; i < BYTES; i++)
        if (t.at[i] != (i % (64 * PAGE) ? 0 : (uint8_t)(i / PAGE * 31 + 7)))
            fail_msg("byte %zu changed", (size_t)i);
    pages_unmap(&p);
}

static void a_stop_ends_it_early(void **state)
{
    (void)state;
    enum { ROUNDS = 20 };
    uint64_t bytes = 512ull << 20;
    for (int i = 0; i < ROUNDS; i++) {
        struct pages p;
        assert_true(pages_map(&p, bytes, PAGES_THP));
        struct touch t = {.at = p.at, .bytes = bytes};
        touch_start(&t);
        assert_true(t.started);
        touch_stop(&t);
        assert_false(t.started);
        pages_unmap(&p); /* nobody touches it any more */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_is_touched_by_all_together),
        cmocka_unit_test(a_small_pool_needs_no_thread),
        cmocka_unit_test(the_rest_comes_without_changing_a_byte),
        cmocka_unit_test(a_stop_ends_it_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
