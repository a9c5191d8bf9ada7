/* test_ring_model_slots.c - models beside the rings: slots that are used again, evictions, and
 * lanes that a device writes. Each case shows what it must, under each memory that could show it.
 */
#include <string.h>

#include "../model/lanes.h"
#include "../model/notices.h"
#include "../model/slots.h"
#include "../support/support.h"

static void judge(const char *name, const char *says, enum memory memory, const struct finding *f,
                  bool found)
{
    if (found != (f->violation != NULL)) {
        fputs(f->trace ? f->trace : "", stderr); /* too long for cmocka */
        fail_msg("%s (%s) under %s: %s", name, says, memory_name[memory],
                 f->violation ? f->violation : "nothing was found");
    }
    assert_true(!found || (f->steps > 2 && f->trace && *f->trace));
    print_message("  %-25s %-3s %s, %zu states\n", name, memory_name[memory],
                  found ? f->violation : "ok", f->states);
}

static bool shall_run(const struct slots *c)
{
    return !test_sanitized() || c->violation || !c->generations_alone;
}

static void slots_are_used_again(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_slots_cases; i++) {
        const struct slots *c = &slots_cases[i];
        struct finding f;
        if (!shall_run(c))
            continue;
        slots_explore(c, true, &f);
        judge(c->name, c->says, MEMORY_SC, &f, c->violation != NULL);
        if (c->violation)
            assert_string_equal(f.violation, c->violation);
        finding_free(&f);
    }
}

static void lanes_of_a_device(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_lanes_cases; i++)
        for (enum memory m = MEMORY_SC; m < MEMORIES; m++) {
            struct finding f;
            lanes_explore(&lanes_cases[i], m, true, &f);
            judge(lanes_cases[i].name, lanes_cases[i].says, m, &f, lanes_cases[i].found >> m & 1);
            finding_free(&f);
        }
}

static void evicted_clients_learn_why(void **state)
{
    (void)state;
    for (unsigned i = 0; i < n_notices_cases; i++)
        for (enum memory m = MEMORY_SC; m < MEMORIES; m++) {
            struct finding f;
            notices_explore(&notices_cases[i], m, true, &f);
            judge(notices_cases[i].name, notices_cases[i].says, m, &f,
                  notices_cases[i].found >> m & 1);
            finding_free(&f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_used_again),
        cmocka_unit_test(lanes_of_a_device),
        cmocka_unit_test(evicted_clients_learn_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
