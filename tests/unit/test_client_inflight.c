/* test_client_inflight.c - the client's table of what is in flight, against a plain list: ids that
 * collide come and go, and each is found as long as it is there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../../client/handle.h"

enum { MOST = 13, IDS = 40, OPERATIONS = 200000 };

/* finals[id] is 0 where the id is not in flight. */
static void expect_same(struct inflight_table *t, const uint32_t finals[IDS], uint64_t spread)
{
    for (uint32_t id = 0; id < IDS; id++) {
        const struct inflight *slot = inflight_find(t, (id + 1) * spread);
        assert_true(!slot == !finals[id]);
        if (slot)
            assert_int_equal(slot->owed, UINT64_MAX >> (64 - finals[id]));
    }
}

static void come_and_go(uint64_t spread)
{
    struct inflight_table t;
    uint32_t finals[IDS] = {0}, count = 0;
    uint64_t rnd = spread;
    assert_int_equal(inflight_create(&t, MOST), 0);
    for (int i = 0; i < OPERATIONS; i++) {
        rnd = rnd * 6364136223846793005u + 1442695040888963407u;
        uint32_t id = (uint32_t)(rnd >> 33) % IDS;
        if (finals[id]) {
            inflight_remove(&t, inflight_find(&t, (id + 1) * spread));
            finals[id] = 0;
            count--;
        } else if (count < MOST) {
            finals[id] = 1 + (uint32_t)(rnd >> 50) % LLM_CHOICES_MAX;
            inflight_add(&t, (id + 1) * spread, finals[id]);
            count++;
        }
        if (i % 16 == 0)
            expect_same(&t, finals, spread);
    }
    inflight_destroy(&t);
}

static void what_is_in_flight_is_found(void **state)
{
    (void)state;
    come_and_go(1);
    come_and_go(64);
    come_and_go(4096); /* pointers */
    come_and_go(1ull << 40);
    come_and_go(0x9E3779B97F4A7C15ull);
}

/* llm_resume asks for twice what an engine grants, and that is not ours to say. */
static void room_for_the_most_that_can_be_granted(void **state)
{
    (void)state;
    struct inflight_table t;
    assert_int_equal(inflight_create(&t, 2 * (LLM_CQ_ENTRIES_MAX - 1)), 0);
    assert_true(t.mask + 1 >= 4 * (LLM_CQ_ENTRIES_MAX - 1));
    inflight_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_in_flight_is_found),
                                       cmocka_unit_test(room_for_the_most_that_can_be_granted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
