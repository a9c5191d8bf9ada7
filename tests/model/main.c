/* main.c - the models from the command line: `make model-check`, `make model-check FAULT=noC1`.
 *
 * Without a fault every model must show what it is known to show: prints "cases N ok". With one,
 * its shortest counterexample in the first case that has one, and status 1.
 */
#include <stdio.h>
#include <string.h>

#include "channel_cases.h"
#include "lanes.h"
#include "notices.h"
#include "slots.h"

static unsigned n_cases, n_wrong;

static void count(const char *name, enum memory memory, struct finding *f, bool found)
{
    n_cases++;
    if (found == (f->violation != NULL))
        return finding_free(f);
    n_wrong++;
    printf("%s under %s: %s\n%s", name, memory_name[memory],
           f->violation ? f->violation : "no counterexample", f->trace ? f->trace : "");
    finding_free(f);
}

static void run_all(enum memory m)
{
    struct finding f;
    for (unsigned i = 0; i < n_channel_cases; i++)
        if (!channel_cases[i].big) {
            channel_explore(&channel_cases[i], NULL, m, true, &f);
            count(channel_cases[i].name, m, &f, false);
        }
    for (unsigned i = 0; i < n_lanes_cases; i++) {
        lanes_explore(&lanes_cases[i], m, true, &f);
        count(lanes_cases[i].name, m, &f, lanes_cases[i].found >> m & 1);
    }
    for (unsigned i = 0; i < n_notices_cases; i++) {
        notices_explore(&notices_cases[i], m, true, &f);
        count(notices_cases[i].name, m, &f, notices_cases[i].found >> m & 1);
    }
    for (unsigned i = 0; i < n_slots_cases && m == MEMORY_SC; i++) {
        slots_explore(&slots_cases[i], true, &f);
        count(slots_cases[i].name, m, &f, slots_cases[i].violation != NULL);
    }
}

/* ---- one fault ---- */

/* True if there was a counterexample. */
static bool show(const char *name, const char *says, const char *where, enum memory m,
                 struct finding *f)
{
    if (f->violation)
        printf("%s (%s), case %s under %s, %zu states, %u steps:\n%s=> %s\n", name, says, where,
               memory_name[m], f->states, f->steps, f->trace, f->violation);
    bool found = f->violation;
    finding_free(f);
    return found;
}

static bool show_channel(const struct channel_fault *fault)
{
    struct finding f;
    for (unsigned i = 0; i < n_channel_cases; i++)
        for (enum memory m = MEMORY_SC; m < MEMORIES && !channel_cases[i].big; m++) {
            channel_explore(&channel_cases[i], fault, m, true, &f);
            if (show(fault->name, fault->says, channel_cases[i].name, m, &f))
                return true;
        }
    return false;
}

/* A case that has its fault built in. -1: there is none of that name. */
static int show_case(const char *name)
{
    struct finding f;
    enum memory m = MEMORY_RA; /* shows whatever the others show */
    for (unsigned i = 0; i < n_slots_cases; i++)
        if (!strcmp(slots_cases[i].name, name)) {
            slots_explore(&slots_cases[i], true, &f);
            return show(name, slots_cases[i].says, name, MEMORY_SC, &f);
        }
    for (unsigned i = 0; i < n_lanes_cases; i++)
        if (!strcmp(lanes_cases[i].name, name)) {
            lanes_explore(&lanes_cases[i], m, true, &f);
            return show(name, lanes_cases[i].says, name, m, &f);
        }
    for (unsigned i = 0; i < n_notices_cases; i++)
        if (!strcmp(notices_cases[i].name, name)) {
            notices_explore(&notices_cases[i], m, true, &f);
            return show(name, notices_cases[i].says, name, m, &f);
        }
    return -1;
}

static void list_faults(void)
{
    for (unsigned i = 0; i < n_channel_faults; i++)
        printf("  %-26s %s\n", channel_faults[i].name, channel_faults[i].says);
    for (unsigned i = 0; i < n_slots_cases; i++)
        printf("  %-26s %s\n", slots_cases[i].name, slots_cases[i].says);
    for (unsigned i = 0; i < n_lanes_cases; i++)
        printf("  %-26s %s\n", lanes_cases[i].name, lanes_cases[i].says);
    for (unsigned i = 0; i < n_notices_cases; i++)
        printf("  %-26s %s\n", notices_cases[i].name, notices_cases[i].says);
}

static int run_fault(const char *name)
{
    const struct channel_fault *fault = channel_fault(name);
    int found = fault ? show_channel(fault) : show_case(name);
    if (found < 0) {
        printf("no fault '%s'; there are:\n", name);
        list_faults();
        return 2;
    }
    if (!found)
        printf("%s: no counterexample in any case: it does no harm\n", name);
    return found;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return run_fault(argv[1]);
    for (enum memory m = MEMORY_SC; m < MEMORIES; m++)
        run_all(m);
    if (n_wrong)
        printf("cases %u, %u not as they must be\n", n_cases, n_wrong);
    else
        printf("cases %u ok\n", n_cases);
    return n_wrong > 0;
}
