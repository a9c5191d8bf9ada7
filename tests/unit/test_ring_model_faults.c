/* test_ring_model_faults.c - each fault that is put into the model of the ring protocol is found,
 * under just those memories that can show it, with a shortest counterexample.
 */
#include <string.h>

#include "../model/channel_cases.h"
#include "../support/support.h"

enum { SC = 1 << MEMORY_SC, TSO = 1 << MEMORY_TSO, RA = 1 << MEMORY_RA, WEAK = TSO | RA, ALL = 7 };

struct row {
    const char *fault, *where;
    unsigned found;        /* memories, a bit each */
    const char *violation; /* a part of it */
};

static const char engine_sleeps[] = "the engine sleeps for ever beside a submission";
static const char client_sleeps[] = "a client sleeps for ever beside a completion";
static const char both_sleep[] = "both sides sleep for ever";
static const char early[] = "read before its write";
static const char overwritten[] = "overwritten before its read";
static const char guilty[] = "an honest client is found guilty";

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

static void check_rows(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (enum memory m = MEMORY_SC; m < MEMORIES; m++)
            check_row(&rows[i], m);
}

#define CHECK(rows) check_rows(rows, sizeof rows / sizeof rows[0])

/* A fence that is missing, or stands before what it shall order, shows only where stores wait. */
static const struct row missing_fences_rows[] = {
    {"noC1", "submit", WEAK, engine_sleeps},
    {"noC1", "submit-fresh", WEAK, engine_sleeps},
    {"noC1", "submit-sockets", WEAK, engine_sleeps},
    {"noC1", "tight", WEAK, engine_sleeps},
    {"noE1", "submit", WEAK, engine_sleeps},
    {"noE1", "submit-sockets", WEAK, engine_sleeps},
    {"noE1", "wrap", WEAK, engine_sleeps},
    {"noE1", "drain-late", WEAK, both_sleep},
    {"noE2", "complete", WEAK, client_sleeps},
    {"noE2", "complete-bell", WEAK, client_sleeps},
    {"noE2", "complete-either", WEAK, client_sleeps},
    {"noC2", "complete-bell", WEAK, client_sleeps},
    {"noC2", "complete-either", WEAK, client_sleeps},
    {"noC3", "wrap", WEAK, both_sleep},
    {"noC3", "drain-fresh", WEAK, both_sleep},
    {"noC3", "drain-sockets", WEAK, both_sleep},
    {"earlyC1", "submit", WEAK, engine_sleeps},
    {"earlyC2", "complete-bell", WEAK, client_sleeps},
    {"earlyC3", "wrap-late", WEAK, both_sleep},
};
static void missing_fences(void **state)
{
    (void)state;
    CHECK(missing_fences_rows);
}

/* A futex wait that is armed after the flag was set compares the word itself, after the kernel's
 * own barrier: there the fence and the last look could go. They stay, so that the ways to wait can
 * be exchanged. Looking every now and then needs no wake at all. */
static const struct row fences_that_the_kernel_stands_in_for_rows[] = {
    {"noE1", "submit-fresh", 0, NULL},  {"norescan", "submit-fresh", 0, NULL},
    {"noC2", "complete", 0, NULL},      {"norecheck", "complete", 0, NULL},
    {"noC1", "submit-looks", 0, NULL},  {"noE1", "submit-looks", 0, NULL},
    {"noE2", "complete-spin", 0, NULL},
};
static void fences_that_the_kernel_stands_in_for(void **state)
{
    (void)state;
    CHECK(fences_that_the_kernel_stands_in_for_rows);
}

static const struct row missing_last_looks_rows[] = {
    {"norescan", "submit", ALL, engine_sleeps},
    {"norescan", "submit-sockets", ALL, engine_sleeps},
    {"norescan-head", "wrap", ALL, both_sleep},
    {"norescan-head", "drain-late", ALL, both_sleep},
    {"norecheck", "complete-bell", ALL, client_sleeps},
    {"norecheck", "complete-either", ALL, client_sleeps},
};
static void missing_last_looks(void **state)
{
    (void)state;
    CHECK(missing_last_looks_rows);
}

static const struct row flags_that_are_not_set_rows[] = {
    {"noneed", "submit", ALL, engine_sleeps},
    {"noheld", "wrap", ALL, both_sleep},
    {"nowait", "complete", ALL, client_sleeps},
    {"nowait", "complete-bell", ALL, client_sleeps},
    {"nodisarm", "submit", 0, NULL}, /* wakes for nothing, no more */
    {"nodisarm", "tight", 0, NULL},
    {"nowaitend", "complete", 0, NULL},
    {"nowaitend", "complete-either", 0, NULL},
};
static void flags_that_are_not_set(void **state)
{
    (void)state;
    CHECK(flags_that_are_not_set_rows);
}

/* x86 orders these by itself: only the release / acquire machine shows them. */
static const struct row loads_and_stores_that_carry_nothing_rows[] = {
    {"submit-set", "submit", RA, early},
    {"sweep-relaxed", "submit", RA, early},
    {"taken-set", "submit-full", RA, overwritten},
    {"reclaim-relaxed", "submit-full", RA, overwritten},
    {"publish-set", "complete", RA, early},
    {"poll-relaxed", "complete", RA, early},
    {"heads-set", "drain-late", RA, overwritten},
    {"heads-relaxed", "drain-spin", RA, overwritten},
};
static void loads_and_stores_that_carry_nothing(void **state)
{
    (void)state;
    CHECK(loads_and_stores_that_carry_nothing_rows);
}

static const struct row wrong_order_rows[] = {
    {"headfirst", "tight", ALL, guilty},       {"headfirst", "tight-late", ALL, guilty},
    {"nohead", "tight-late", ALL, guilty},     {"lookfirst", "complete", ALL, client_sleeps},
    {"wakeonce", "tight", ALL, client_sleeps}, {"norelease", "room", ALL, both_sleep},
};
static void wrong_order(void **state)
{
    (void)state;
    CHECK(wrong_order_rows);
}

static const struct row wrong_words_rows[] = {
    {"wakeword", "wrap", ALL, both_sleep},
    {"waitword", "wrap", ALL, both_sleep},
    {"waitword", "drain-fresh", ALL, both_sleep},
    {"nodrain", "wrap", ALL, both_sleep},
    {"nodrain", "drain-sockets", ALL, both_sleep},
    {"bellfutex", "complete-bell", ALL, client_sleeps},
};
static void wrong_words(void **state)
{
    (void)state;
    CHECK(wrong_words_rows);
}

/* What was emptied after the last look is lost. */
static const struct row bells_that_are_emptied_late_rows[] = {
    {"socketlate", "submit-sockets", ALL, engine_sleeps},
    {"belllate", "complete-bell", ALL, client_sleeps},
    {"belllate", "complete-either", ALL, client_sleeps},
};
static void bells_that_are_emptied_late(void **state)
{
    (void)state;
    CHECK(bells_that_are_emptied_late_rows);
}

static const struct row rings_without_room_rows[] = {
    {"noreserve", "drain-spin", ALL, "no room for a final"},
    {"fewreserved", "room", ALL, guilty},
    {"capacity", "drain-spin", ALL, ""}, /* lost or repeated, read before it was written */
};
static void rings_without_room(void **state)
{
    (void)state;
    CHECK(rings_without_room_rows);
}

static bool found_in(const struct row *rows, size_t n, const char *fault)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(rows[i].fault, fault) && rows[i].found)
            return true;
    return false;
}

/* Every fault is found by some row above, but those that do no harm: spurious wakes, and an order
 * that ring_sweep brings anyway. */
static void every_fault_is_tried(void **state)
{
    static const struct {
        const struct row *rows;
        size_t n;
    } lists[] = {
        {missing_fences_rows, sizeof missing_fences_rows / sizeof *missing_fences_rows},
        {fences_that_the_kernel_stands_in_for_rows,
         sizeof fences_that_the_kernel_stands_in_for_rows /
             sizeof *fences_that_the_kernel_stands_in_for_rows},
        {missing_last_looks_rows, sizeof missing_last_looks_rows / sizeof *missing_last_looks_rows},
        {flags_that_are_not_set_rows,
         sizeof flags_that_are_not_set_rows / sizeof *flags_that_are_not_set_rows},
        {loads_and_stores_that_carry_nothing_rows,
         sizeof loads_and_stores_that_carry_nothing_rows /
             sizeof *loads_and_stores_that_carry_nothing_rows},
        {wrong_order_rows, sizeof wrong_order_rows / sizeof *wrong_order_rows},
        {wrong_words_rows, sizeof wrong_words_rows / sizeof *wrong_words_rows},
        {bells_that_are_emptied_late_rows,
         sizeof bells_that_are_emptied_late_rows / sizeof *bells_that_are_emptied_late_rows},
        {rings_without_room_rows,
         sizeof rings_without_room_rows / sizeof *rings_without_room_rows}};
    static const char harmless[] = " rescan-relaxed nodisarm nowaitend ";
    (void)state;
    for (unsigned i = 0; i < n_channel_faults; i++) {
        char name[32];
        snprintf(name, sizeof name, " %s ", channel_faults[i].name);
        bool found = strstr(harmless, name);
        for (size_t j = 0; j < sizeof lists / sizeof lists[0]; j++)
            found |= found_in(lists[j].rows, lists[j].n, channel_faults[i].name);
        if (!found)
            fail_msg("no row finds %s", channel_faults[i].name);
    }
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
        cmocka_unit_test(every_fault_is_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
