/* test_ring_model_faults.c - each fault that is put into the model of the ring protocol is found,
 * under just those memories that can show it, with a shortest counterexample.
 */
#include <string.h>

#include "../model/channel_cases.h"
#include "../support/support.h"

enum { SC = 1 << MEMORY_SC, TSO = 1 << MEMORY_TSO, RA = 1 << MEMORY_RA, WEAK = TSO | RA, ALL = 7 };
enum group { FENCES, KERNEL, LOOKS, FLAGS, ORDERS, SEQUENCE, NAMES, BELLS, ROOM };

struct row {
    enum group group;
    const char *fault, *where;
    unsigned found;        /* memories, a bit each; 0: it does no harm there */
    const char *violation; /* a part of it */
};

static const char engine_sleeps[] = "the engine sleeps for ever beside a submission";
static const char client_sleeps[] = "a client sleeps for ever beside a completion";
static const char both_sleep[] = "both sides sleep for ever";
static const char early[] = "read before its write";
static const char overwritten[] = "overwritten before its read";
static const char guilty[] = "an honest client is found guilty";

/* clang-format off */
static const struct row rows[] = {
    /* A fence that is missing, or stands before what it shall order, shows only where stores wait. */
    {FENCES, "noC1", "submit", WEAK, engine_sleeps},
    {FENCES, "noC1", "submit-fresh", WEAK, engine_sleeps},
    {FENCES, "noC1", "submit-sockets", WEAK, engine_sleeps},
    {FENCES, "noC1", "tight", WEAK, engine_sleeps},
    {FENCES, "noE1", "submit", WEAK, engine_sleeps},
    {FENCES, "noE1", "submit-sockets", WEAK, engine_sleeps},
    {FENCES, "noE1", "wrap", WEAK, engine_sleeps},
    {FENCES, "noE1", "drain-late", WEAK, both_sleep},
    {FENCES, "noE2", "complete", WEAK, client_sleeps},
    {FENCES, "noE2", "complete-bell", WEAK, client_sleeps},
    {FENCES, "noE2", "complete-either", WEAK, client_sleeps},
    {FENCES, "noC2", "complete-bell", WEAK, client_sleeps},
    {FENCES, "noC2", "complete-either", WEAK, client_sleeps},
    {FENCES, "noC3", "wrap", WEAK, both_sleep},
    {FENCES, "noC3", "drain-fresh", WEAK, both_sleep},
    {FENCES, "noC3", "drain-sockets", WEAK, both_sleep},
    {FENCES, "earlyC1", "submit", WEAK, engine_sleeps},
    {FENCES, "earlyC2", "complete-bell", WEAK, client_sleeps},
    {FENCES, "earlyC3", "wrap-late", WEAK, both_sleep},
    /* A futex wait that is armed after the flag was set compares the word itself, after the kernel's
     * own barrier: there the fence and the last look could go. They stay, so that the ways to wait
     * can be exchanged. Looking every now and then needs no wake at all. */
    {KERNEL, "noE1", "submit-fresh", 0, NULL},
    {KERNEL, "norescan", "submit-fresh", 0, NULL},
    {KERNEL, "noC2", "complete", 0, NULL},
    {KERNEL, "norecheck", "complete", 0, NULL},
    {KERNEL, "noC1", "submit-looks", 0, NULL},
    {KERNEL, "noE1", "submit-looks", 0, NULL},
    {KERNEL, "noE2", "complete-spin", 0, NULL},
    {LOOKS, "norescan", "submit", ALL, engine_sleeps},
    {LOOKS, "norescan", "submit-sockets", ALL, engine_sleeps},
    {LOOKS, "norescan-head", "wrap", ALL, both_sleep},
    {LOOKS, "norescan-head", "drain-late", ALL, both_sleep},
    {LOOKS, "norecheck", "complete-bell", ALL, client_sleeps},
    {LOOKS, "norecheck", "complete-either", ALL, client_sleeps},
    {FLAGS, "noneed", "submit", ALL, engine_sleeps},
    {FLAGS, "noheld", "wrap", ALL, both_sleep},
    {FLAGS, "nowait", "complete", ALL, client_sleeps},
    {FLAGS, "nowait", "complete-bell", ALL, client_sleeps},
    {FLAGS, "nodisarm", "submit", 0, NULL}, /* wakes for nothing, no more */
    {FLAGS, "nodisarm", "tight", 0, NULL},
    {FLAGS, "nowaitend", "complete", 0, NULL},
    {FLAGS, "nowaitend", "complete-either", 0, NULL},
    /* x86 orders these by itself: only the release / acquire machine shows them. */
    {ORDERS, "submit-set", "submit", RA, early},
    {ORDERS, "sweep-relaxed", "submit", RA, early},
    {ORDERS, "taken-set", "submit-full", RA, overwritten},
    {ORDERS, "reclaim-relaxed", "submit-full", RA, overwritten},
    {ORDERS, "publish-set", "complete", RA, early},
    {ORDERS, "poll-relaxed", "complete", RA, early},
    {ORDERS, "heads-set", "drain-late", RA, overwritten},
    {ORDERS, "heads-relaxed", "drain-spin", RA, overwritten},
    {SEQUENCE, "headfirst", "tight", ALL, guilty},
    {SEQUENCE, "headfirst", "tight-late", ALL, guilty},
    {SEQUENCE, "nohead", "tight-late", ALL, guilty},
    {SEQUENCE, "lookfirst", "complete", ALL, client_sleeps},
    {SEQUENCE, "wakeonce", "tight", ALL, client_sleeps},
    {SEQUENCE, "norelease", "room", ALL, both_sleep},
    {SEQUENCE, "halfarmed", "submit", ALL, engine_sleeps},
    {NAMES, "wakeword", "wrap", ALL, both_sleep},
    {NAMES, "waitword", "wrap", ALL, both_sleep},
    {NAMES, "waitword", "drain-fresh", ALL, both_sleep},
    {NAMES, "nodrain", "wrap", ALL, both_sleep},
    {NAMES, "nodrain", "drain-sockets", ALL, both_sleep},
    {NAMES, "bellfutex", "complete-bell", ALL, client_sleeps},
    /* What is emptied after the last look is lost. */
    {BELLS, "socketlate", "submit-sockets", ALL, engine_sleeps},
    {BELLS, "belllate", "complete-bell", ALL, client_sleeps},
    {BELLS, "belllate", "complete-either", ALL, client_sleeps},
    {ROOM, "noreserve", "drain-spin", ALL, "no room for a final"},
    {ROOM, "fewreserved", "room", ALL, guilty},
    {ROOM, "capacity", "drain-spin", ALL, ""}, /* lost or repeated, read before it was written */
};
/* clang-format on */
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static void check_row(const struct row *r, enum memory memory)
{
    const struct channel_fault *fault = channel_fault(r->fault);
    struct finding f;
    assert_non_null(fault);
    channel_explore(channel_case(r->where), fault, memory, true, &f);
    bool found = r->found >> memory & 1;
    if (found != (f.violation != NULL))
        fail_msg("%s (%s) in %s under %s: %s", r->fault, fault->says, r->where, memory_name[memory],
                 f.violation ? f.violation : "not found");
    if (found) {
        assert_non_null(strstr(f.violation, r->violation));
        assert_true(f.steps > 2 && f.trace && strlen(f.trace) > 100);
    }
    print_message("  %-15s %-15s %-3s %s\n", r->fault, r->where, memory_name[memory],
                  found ? f.violation : "does no harm");
    finding_free(&f);
}

/* What does no harm is searched to the end: under a sanitizer not in the largest memory. */
static bool shall_run(const struct row *r, enum memory memory)
{
    return r->found || memory != MEMORY_RA || !test_sanitized();
}

static void check_group(enum group group)
{
    unsigned n = 0;
    for (size_t i = 0; i < N_ROWS; i++)
        for (enum memory m = MEMORY_SC; m < MEMORIES && rows[i].group == group; m++, n++)
            if (shall_run(&rows[i], m))
                check_row(&rows[i], m);
    assert_true(n > 0);
}

static void missing_fences(void **state)
{
    (void)state;
    check_group(FENCES);
}

static void fences_that_the_kernel_stands_in_for(void **state)
{
    (void)state;
    check_group(KERNEL);
}

static void missing_last_looks(void **state)
{
    (void)state;
    check_group(LOOKS);
}

static void flags_that_are_not_set(void **state)
{
    (void)state;
    check_group(FLAGS);
}

static void loads_and_stores_that_carry_nothing(void **state)
{
    (void)state;
    check_group(ORDERS);
}

static void wrong_order(void **state)
{
    (void)state;
    check_group(SEQUENCE);
}

static void wrong_words(void **state)
{
    (void)state;
    check_group(NAMES);
}

static void bells_that_are_emptied_late(void **state)
{
    (void)state;
    check_group(BELLS);
}

static void rings_without_room(void **state)
{
    (void)state;
    check_group(ROOM);
}

static bool found_by_a_row(const char *fault)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (!strcmp(rows[i].fault, fault) && rows[i].found)
            return true;
    return false;
}

/* But those that do no harm: wakes for nothing, and an order that ring_sweep brings anyway. */
static void every_fault_is_found_by_a_row(void **state)
{
    static const char harmless[] = " rescan-relaxed nodisarm nowaitend ";
    (void)state;
    for (unsigned i = 0; i < n_channel_faults; i++) {
        char name[32];
        snprintf(name, sizeof name, " %s ", channel_faults[i].name);
        if (!strstr(harmless, name) && !found_by_a_row(channel_faults[i].name))
            fail_msg("no row finds %s", channel_faults[i].name);
    }
}

/* True if some case comes to the operation. */
static bool reached(enum handshake h, unsigned at)
{
    static const char *const cases[] = {"submit-full", "tight-late", "drain-late", "tight"};
    struct channel_fault trap = {.edit = {{h, at, {OP_TRAP, WORD_NONE}}}, .n_edits = 1};
    bool trapped = false;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && !trapped; i++) {
        struct finding f;
        channel_explore(channel_case(cases[i]), &trap, MEMORY_SC, false, &f);
        trapped = f.violation == channel_trapped;
        finding_free(&f);
    }
    return trapped;
}

/* No row of the table is idle. The two of evictions are in notices.c. */
static void every_operation_is_reached(void **state)
{
    (void)state;
    for (unsigned h = 0; h < RING_EVICT; h++)
        for (unsigned at = 0; at < HANDSHAKE_OPS && handshake_table[h].op[at].op; at++)
            if (!reached(h, at))
                fail_msg("no model comes to operation %u of %s", at, handshake_table[h].function);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_fences),
        cmocka_unit_test(fences_that_the_kernel_stands_in_for),
        cmocka_unit_test(missing_last_looks),
        cmocka_unit_test(flags_that_are_not_set),
        cmocka_unit_test(loads_and_stores_that_carry_nothing),
        cmocka_unit_test(wrong_order),
        cmocka_unit_test(wrong_words),
        cmocka_unit_test(bells_that_are_emptied_late),
        cmocka_unit_test(rings_without_room),
        cmocka_unit_test(every_fault_is_found_by_a_row),
        cmocka_unit_test(every_operation_is_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
