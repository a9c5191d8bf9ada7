/* test_row_times.c - what steps of so many rows take: as seen, between what was seen, beyond it; one
 * slow step and an old one say little. */
#include "../../appliance/row_times.h"
#include "../support/support.h"

static void as_seen_between_and_beyond(void **state)
{
    (void)state;
    struct row_times t = {0};
    assert_int_equal(row_times_expect(&t, 3, 10), 0);
    row_times_observe(&t, 4, 400);
    assert_int_equal(row_times_expect(&t, 4, 10), 400);
    assert_int_equal(row_times_expect(&t, 3, 10), 0); /* nothing smaller is known */
    assert_int_equal(row_times_expect(&t, 6, 10), 420);
    row_times_observe(&t, 8, 1000);
    assert_int_equal(row_times_expect(&t, 4, 10), 400);
    assert_int_equal(row_times_expect(&t, 5, 10), 550);
    assert_int_equal(row_times_expect(&t, 7, 10), 850);
    assert_int_equal(row_times_expect(&t, 8, 10), 1000);
    assert_int_equal(row_times_expect(&t, 100, 10), 1000 + 92 * 10);
    assert_true(row_times_expect(&t, UINT32_MAX, UINT64_MAX) == UINT64_MAX);
    row_times_observe(&t, 16, 100); /* more rows are never taken to cost less */
    assert_int_equal(row_times_expect(&t, 12, 10), 1000);
    assert_int_equal(row_times_expect(&t, 16, 10), 100);
}

static void hoped_for(void **state)
{
    (void)state;
    struct row_times t = {0};
    assert_int_equal(row_times_hope(&t, 3, 10), 0);
    row_times_observe(&t, 4, 400);
    assert_int_equal(row_times_hope(&t, 4, 10), 400);
    assert_int_equal(row_times_hope(&t, 6, 10), 420);
    row_times_observe(&t, 8, 1000);
    assert_int_equal(row_times_hope(&t, 6, 10), 420);
    assert_int_equal(row_times_hope(&t, 6, 1000), 700); /* no worse than expected */
    assert_int_equal(row_times_hope(&t, 8, 10), 1000);
    assert_int_equal(row_times_hope(&t, 9, 10), 1010);
    assert_true(row_times_hope(&t, UINT32_MAX, UINT64_MAX) == UINT64_MAX);
}

static void limits(void **state)
{
    (void)state;
    struct row_times t = {0};
    row_times_observe(&t, 0, 1);
    row_times_observe(&t, ROW_TIMES_MAX + 1, 1);
    row_times_observe(&t, UINT32_MAX, 1);
    assert_int_equal(t.steps, 0);
    row_times_observe(&t, ROW_TIMES_MAX, 7);
    assert_int_equal(row_times_expect(&t, ROW_TIMES_MAX, 1), 7);
    assert_int_equal(row_times_expect(&t, ROW_TIMES_MAX + 1, 1), 8);
    row_times_observe(&t, ROW_TIMES_MAX, UINT64_MAX);
    assert_in_range(row_times_expect(&t, ROW_TIMES_MAX, 1), 7, 14);
}

static void means_follow(void **state)
{
    (void)state;
    struct row_times t = {0};
    for (int i = 0; i < 100; i++)
        row_times_observe(&t, 2, i % 2 ? 1100 : 900);
    assert_in_range(row_times_expect(&t, 2, 0), 950, 1050);
    row_times_observe(&t, 2, 1000000); /* the machine was busy elsewhere */
    assert_in_range(row_times_expect(&t, 2, 0), 950, 1200);
    for (int i = 0; i < 100; i++)
        row_times_observe(&t, 2, 5000);
    assert_in_range(row_times_expect(&t, 2, 0), 4900, 5000);
    for (int i = 0; i < 100; i++)
        row_times_observe(&t, 2, 300);
    assert_in_range(row_times_expect(&t, 2, 0), 300, 310);
}

/* Where steps of the same rows differ much, a mean of few samples is taken for more than it says. */
static void few_samples_are_doubted(void **state)
{
    (void)state;
    struct row_times t = {0};
    for (int i = 0; i < 200; i++)
        row_times_observe(&t, 2, i % 2 ? 150000 : 50000); /* half of the mean off */
    assert_in_range(t.noise, 65536 * 3 / 10, 65536 * 6 / 10);
    row_times_observe(&t, 3, 100000);
    uint64_t many = row_times_expect(&t, 2, 0), one = row_times_expect(&t, 3, 0);
    assert_in_range(many, 100000, 125000);
    assert_in_range(one, 130000, 160000);
    assert_int_equal(row_times_hope(&t, 3, 0), one);
    row_times_observe(&t, 3, 100000);
    row_times_observe(&t, 3, 100000);
    uint64_t three = row_times_expect(&t, 3, 0);
    assert_true(three < one && three > 100000);

    for (int i = 0; i < 500; i++) /* steady again */
        row_times_observe(&t, 2, 100000);
    assert_in_range(row_times_expect(&t, 2, 0), 100000, 101000);
}

static void old_ones_are_forgotten(void **state)
{
    (void)state;
    struct row_times t = {0};
    for (uint32_t samples = 1; samples < 9; samples++) {
        uint32_t lasts = 64u << (samples < 4 ? samples - 1 : 3);
        for (uint32_t i = 0; i < samples; i++)
            row_times_observe(&t, 4, 100000); /* in a bad moment */
        for (uint32_t i = 0; i < lasts - 1; i++) {
            row_times_observe(&t, 1, 100);
            assert_int_equal(row_times_expect(&t, 4, 10), 100000);
        }
        row_times_observe(&t, 1, 100);
        assert_int_equal(row_times_expect(&t, 4, 10), 130);
    }
    assert_int_equal(ROW_TIMES_FRESH, 512);
    row_times_observe(&t, 4, 140);
    assert_int_equal(row_times_expect(&t, 4, 10), 140); /* not a mean with what was forgotten */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_seen_between_and_beyond),
        cmocka_unit_test(hoped_for),
        cmocka_unit_test(limits),
        cmocka_unit_test(means_follow),
        cmocka_unit_test(few_samples_are_doubted),
        cmocka_unit_test(old_ones_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
