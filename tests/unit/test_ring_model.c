/* test_ring_model.c - the ring protocol as it is: every reachable state of small configurations is
 * good, under sequential consistency, x86's store buffers and C11's release and acquire. Failure test
 * (1).
 */
#include <string.h>

#include "../model/channel_cases.h"
#include "../support/support.h"

/* Under a sanitizer the largest memory is left to one case of each kind. */
static bool shall_run(const struct channel_case *c, enum memory memory)
{
    if (c->big && !test_exhaustive())
        return false;
    return !test_sanitized() || memory != MEMORY_RA || !strcmp(c->name, "tight") ||
           !strcmp(c->name, "complete-either") || !strcmp(c->name, "submit-batch");
}

static void check_case(const struct channel_case *c, enum memory memory)
{
    struct finding f;
    channel_explore(c, NULL, memory, true, &f);
    if (f.violation) {
        fputs(f.trace, stderr); /* too long for cmocka */
        fail_msg("%s (%s) under %s: %s", c->name, c->says, memory_name[memory], f.violation);
    }
    assert_true(f.states > 50);
    print_message("  %-16s %-3s ok, %zu states\n", c->name, memory_name[memory], f.states);
    finding_free(&f);
}

/* All cases whose names begin so. */
static void check_cases(const char *kind)
{
    unsigned n = 0;
    for (unsigned i = 0; i < n_channel_cases; i++)
        for (enum memory m = MEMORY_SC; m < MEMORIES; m++)
            if (!strncmp(channel_cases[i].name, kind, strlen(kind)) &&
                shall_run(&channel_cases[i], m)) {
                check_case(&channel_cases[i], m);
                n++;
            }
    assert_true(n >= 2);
}

static void submissions_reach_a_sleeping_engine(void **state)
{
    (void)state;
    check_cases("submit");
}

static void completions_reach_sleeping_clients(void **state)
{
    (void)state;
    check_cases("complete");
}

static void held_tokens_move_when_the_ring_is_drained(void **state)
{
    (void)state;
    check_cases("drain");
}

static void cursors_wrap(void **state)
{
    (void)state;
    check_cases("wrap");
}

static void finals_always_find_room(void **state)
{
    (void)state;
    check_cases("tight");
    check_cases("room");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(submissions_reach_a_sleeping_engine),
        cmocka_unit_test(completions_reach_sleeping_clients),
        cmocka_unit_test(held_tokens_move_when_the_ring_is_drained),
        cmocka_unit_test(cursors_wrap),
        cmocka_unit_test(finals_always_find_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
