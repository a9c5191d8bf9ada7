/* test_ring_model_memories.c - the memories that the models run on: litmus tests, each with the
 * outcomes that it must and must not have.
 *
 * A thread is a list of instructions; the outcome is what its loads saw. Sources: Maranget, Sarkar,
 * Sewell, "A Tutorial Introduction to the ARM and POWER Relaxed Memory Models" (2012) for the names;
 * what is allowed follows from the papers that machine.h names.
 */
#include <string.h>

#include "../model/explore.h"
#include "../support/support.h"

enum { SC = 1 << MEMORY_SC, TSO = 1 << MEMORY_TSO, RA = 1 << MEMORY_RA, ALL = 7, NEVER = 0 };
enum { X, Y, DATA, DATA_READS, LOCATIONS };
enum { INSTRUCTIONS = 4, LOADS = 4, UNSET = 9 };

enum what {
    NOTHING,
    STORE,   /* relaxed */
    RELEASE, /* store */
    LOAD,    /* relaxed */
    ACQUIRE, /* load */
    FENCE,
    WRITE, /* plain */
    READ,  /* plain, if the load before saw 1 */
    LOCK   /* in and out of a kernel object */
};

struct instruction {
    enum what what;
    uint8_t location, value;
};

struct litmus {
    const char *name;
    struct instruction thread[THREADS_MAX][INSTRUCTIONS];
    uint8_t outcome[LOADS]; /* of the loads, thread by thread; ends with UNSET */
    unsigned allowed;       /* memories in which it can happen, a bit each */
};

struct litmus_own {
    uint8_t at[THREADS_MAX], seen[THREADS_MAX][INSTRUCTIONS];
};

static const char happened[] = "the outcome";

static struct litmus_own *own(const struct run *x)
{
    return (struct litmus_own *)x->s->own;
}

static bool execute(struct run *x, const struct instruction *i, uint8_t *seen)
{
    switch (i->what) {
    case STORE:
    case RELEASE:
        machine_store(x, i->location, i->value, i->what == RELEASE);
        return true;
    case LOAD:
    case ACQUIRE:
        *seen = machine_load(x, i->location, i->what == ACQUIRE);
        return true;
    case WRITE:
        machine_write(x, DATA, DATA_READS, i->value);
        return true;
    case READ:
        if (seen[-1])
            *seen = machine_read(x, DATA, DATA_READS);
        return true;
    case LOCK:
        if (!machine_enter(x, 0, false))
            return false;
        machine_leave(x, 0);
        return true;
    default:
        return machine_fence(x);
    }
}

static enum progress step(struct run *x)
{
    const struct litmus *l = x->model;
    uint8_t *at = &own(x)->at[x->thread];
    const struct instruction *i = &l->thread[x->thread][*at];
    if (*at == INSTRUCTIONS || i->what == NOTHING)
        return DONE;
    return execute(x, i, &own(x)->seen[x->thread][(*at)++]) ? MOVED : BLOCKED;
}

static bool is_load(enum what what)
{
    return what == LOAD || what == ACQUIRE || what == READ;
}

/* All threads have ended: was it the outcome that is looked for? */
static const char *judge(const struct model *m, const struct state *s)
{
    const struct litmus *l = m->config;
    const struct litmus_own *o = (const struct litmus_own *)s->own;
    unsigned n = 0;
    for (unsigned t = 0; t < m->machine.n_threads; t++)
        for (unsigned i = 0; i < INSTRUCTIONS; i++)
            if (is_load(l->thread[t][i].what) && o->seen[t][i] != l->outcome[n++])
                return NULL;
    return happened;
}

static void init(const struct model *m, struct state *s)
{
    (void)m;
    (void)s;
}

static void explore_litmus(const struct litmus *l, enum memory memory, struct finding *f)
{
    struct model m = {
        .machine = {.memory = memory, .n_objects = 1, .own_bytes = sizeof(struct litmus_own)},
        .config = l,
        .thread = {"P0", "P1", "P2", "P3"},
        .init = init,
        .step = step,
        .stuck = judge};
    while (m.machine.n_threads < THREADS_MAX && l->thread[m.machine.n_threads][0].what)
        m.machine.n_threads++;
    for (unsigned i = 0; i < LOCATIONS; i++)
        machine_location(&m.machine, (1u << m.machine.n_threads) - 1, 0, "%c", "xydr"[i]);
    explore(&m, false, f);
}

static void check(const struct litmus *tests, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (enum memory m = MEMORY_SC; m < MEMORIES; m++) {
            struct finding f;
            explore_litmus(&tests[i], m, &f);
            if ((f.violation != NULL) != (tests[i].allowed >> m & 1))
                fail_msg("%s under %s: %s", tests[i].name, memory_name[m],
                         f.violation ? f.violation : "cannot happen");
            finding_free(&f);
        }
}

#define CHECK(tests) check(tests, sizeof tests / sizeof tests[0])

/* clang-format off */

/* Each looks at the other's flag before its own store is seen: the reason for every fence here. */
static void store_buffering(void **state)
{
    static const struct litmus tests[] = {
        {"SB", {{{STORE, X, 1}, {LOAD, Y}}, {{STORE, Y, 1}, {LOAD, X}}}, {0, 0}, TSO | RA},
        {"SB, release and acquire",
         {{{RELEASE, X, 1}, {ACQUIRE, Y}}, {{RELEASE, Y, 1}, {ACQUIRE, X}}}, {0, 0}, TSO | RA},
        {"SB, one fence",
         {{{STORE, X, 1}, {FENCE}, {LOAD, Y}}, {{STORE, Y, 1}, {LOAD, X}}}, {0, 0}, TSO | RA},
        {"SB, two fences",
         {{{STORE, X, 1}, {FENCE}, {LOAD, Y}}, {{STORE, Y, 1}, {FENCE}, {LOAD, X}}}, {0, 0}, NEVER},
        {"SB, fences too early",
         {{{FENCE}, {STORE, X, 1}, {LOAD, Y}}, {{FENCE}, {STORE, Y, 1}, {LOAD, X}}}, {0, 0},
         TSO | RA},
        {"SB, two fences: one sees the other",
         {{{STORE, X, 1}, {FENCE}, {LOAD, Y}}, {{STORE, Y, 1}, {FENCE}, {LOAD, X}}}, {0, 1}, ALL},
        {"SB: a thread sees its own store",
         {{{STORE, X, 1}, {LOAD, X}}, {{STORE, Y, 1}, {LOAD, Y}}}, {0, 1}, NEVER},
    };
    (void)state;
    CHECK(tests);
}

/* A flag and what it announces. */
static void message_passing(void **state)
{
    static const struct litmus tests[] = {
        {"MP", {{{STORE, X, 1}, {STORE, Y, 1}}, {{LOAD, Y}, {LOAD, X}}}, {1, 0}, RA},
        {"MP, release alone",
         {{{STORE, X, 1}, {RELEASE, Y, 1}}, {{LOAD, Y}, {LOAD, X}}}, {1, 0}, RA},
        {"MP, acquire alone",
         {{{STORE, X, 1}, {STORE, Y, 1}}, {{ACQUIRE, Y}, {LOAD, X}}}, {1, 0}, RA},
        {"MP, release and acquire",
         {{{STORE, X, 1}, {RELEASE, Y, 1}}, {{ACQUIRE, Y}, {LOAD, X}}}, {1, 0}, NEVER},
        {"MP, release and acquire: it does arrive",
         {{{STORE, X, 1}, {RELEASE, Y, 1}}, {{ACQUIRE, Y}, {LOAD, X}}}, {1, 1}, ALL},
        {"MP, fences",
         {{{STORE, X, 1}, {FENCE}, {STORE, Y, 1}}, {{LOAD, Y}, {FENCE}, {LOAD, X}}}, {1, 0}, NEVER},
        {"MP, kernel objects",
         {{{STORE, X, 1}, {LOCK}, {STORE, Y, 1}}, {{LOAD, Y}, {LOCK}, {LOAD, X}}}, {1, 0}, NEVER},
        {"MP, stores in order",
         {{{STORE, X, 1}, {STORE, X, 2}}, {{LOAD, X}, {LOAD, X}}}, {2, 1}, NEVER},
    };
    (void)state;
    CHECK(tests);
}

/* Three and four threads. */
static void causality(void **state)
{
    static const struct litmus tests[] = {
        {"WRC", {{{STORE, X, 1}}, {{LOAD, X}, {STORE, Y, 1}}, {{LOAD, Y}, {LOAD, X}}},
         {1, 1, 0}, RA},
        {"WRC, release and acquire",
         {{{RELEASE, X, 1}}, {{ACQUIRE, X}, {RELEASE, Y, 1}}, {{ACQUIRE, Y}, {ACQUIRE, X}}},
         {1, 1, 0}, NEVER},
        {"IRIW, release and acquire",
         {{{RELEASE, X, 1}}, {{RELEASE, Y, 1}}, {{ACQUIRE, X}, {ACQUIRE, Y}},
          {{ACQUIRE, Y}, {ACQUIRE, X}}}, {1, 0, 1, 0}, RA},
        {"IRIW, fences between the loads",
         {{{STORE, X, 1}}, {{STORE, Y, 1}}, {{LOAD, X}, {FENCE}, {LOAD, Y}},
          {{LOAD, Y}, {FENCE}, {LOAD, X}}}, {1, 0, 1, 0}, NEVER},
        {"LB: nobody sees the future",
         {{{LOAD, X}, {STORE, Y, 1}}, {{LOAD, Y}, {STORE, X, 1}}}, {1, 1}, NEVER},
    };
    (void)state;
    CHECK(tests);
}

/* clang-format on */

static const char *plain_data(const struct instruction *writer, const struct instruction *reader)
{
    struct litmus l = {.name = "plain", .outcome = {UNSET}};
    memcpy(l.thread[0], writer, sizeof l.thread[0]);
    memcpy(l.thread[1], reader, sizeof l.thread[1]);
    struct finding f;
    explore_litmus(&l, MEMORY_RA, &f);
    return f.violation;
}

/* Plain data that no release and acquire orders is a race, both ways. */
static void races(void **state)
{
    (void)state;
    const struct instruction wrote[INSTRUCTIONS] = {{WRITE, DATA, 1}, {RELEASE, Y, 1}};
    const struct instruction wrote_set[INSTRUCTIONS] = {{WRITE, DATA, 1}, {STORE, Y, 1}};
    const struct instruction reads[INSTRUCTIONS] = {{ACQUIRE, Y, 0}, {READ, DATA, 0}};
    const struct instruction reads_relaxed[INSTRUCTIONS] = {{LOAD, Y, 0}, {READ, DATA, 0}};
    assert_null(plain_data(wrote, reads));
    assert_non_null(plain_data(wrote_set, reads));
    assert_non_null(plain_data(wrote, reads_relaxed));
    const struct instruction again[INSTRUCTIONS] = {
        {WRITE, DATA, 1}, {RELEASE, Y, 1}, {WRITE, DATA, 2}};
    assert_non_null(plain_data(again, reads));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store_buffering),
        cmocka_unit_test(message_passing),
        cmocka_unit_test(causality),
        cmocka_unit_test(races),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
