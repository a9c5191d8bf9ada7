/* notices.c - see notices.h */
#include "notices.h"

#include "handshakes.h"

enum { ENGINE_T, CLIENT_T, THREADS };
enum { L_TEXT, L_TEXT_READS, L_EVICTED };
enum { OBJECT_WAKE, OBJECT_SOCKET, N_OBJECTS };

struct notices_own {
    uint8_t asleep, shut; /* kernel */
    uint8_t evicted, dead, slice_over;
};
_Static_assert(sizeof(struct notices_own) <= OWN_MAX, "raise OWN_MAX");

static struct notices_own *own(const struct run *x)
{
    return (struct notices_own *)x->s->own;
}
static bool is(const struct run *x, unsigned fault)
{
    return ((const struct notices *)x->model)->faults & fault;
}

/* The handshake's one operation, as the table has it. */
static bool of_kind(enum handshake h, enum op op)
{
    return handshake_table[h].op[0].op == op && handshake_table[h].op[0].word == EVICTED;
}

/* ---- the engine ---- */

static bool write_text(struct run *x)
{
    machine_write(x, L_TEXT, L_TEXT_READS, 1);
    machine_tell(x, "ring_evict", "writes the sentence");
    return true;
}

static bool set_evicted(struct run *x)
{
    machine_store(x, L_EVICTED, 1, of_kind(RING_EVICT, OP_RELEASE) && !is(x, NOTICES_SET));
    machine_tell(x, "ring_evict", "evicted = 1");
    return true;
}

static bool wake(struct run *x)
{
    if (!machine_enter(x, OBJECT_WAKE, true))
        return false;
    machine_tell(x, "clients_evict", "FUTEX_WAKE cq_tail: %s",
                 own(x)->asleep ? "the client" : "nobody waits");
    own(x)->asleep = 0;
    machine_leave(x, OBJECT_WAKE);
    return true;
}

static bool shut_socket(struct run *x)
{
    if (!machine_enter(x, OBJECT_SOCKET, false))
        return false;
    own(x)->shut = 1;
    machine_tell(x, "clients_leave", "shuts the socket");
    machine_leave(x, OBJECT_SOCKET);
    return true;
}

static enum progress engine(struct run *x)
{
    BEGIN
    if (is(x, NOTICES_SHUT_FIRST))
        STEP(shut_socket(x));
    STEP(write_text(x));
    STEP(set_evicted(x));
    STEP(wake(x));
    if (!is(x, NOTICES_SHUT_FIRST))
        STEP(shut_socket(x));
    END
}

/* ---- the client ---- */

static bool load_evicted(struct run *x)
{
    bool acquire = of_kind(LOOK_AT_MEMORY, OP_ACQUIRE) && !is(x, NOTICES_RELAXED);
    own(x)->evicted = machine_load(x, L_EVICTED, acquire);
    machine_tell(x, "look_at_memory", "evicted -> %u", own(x)->evicted);
    return true;
}

static bool read_text(struct run *x)
{
    uint8_t text = machine_read(x, L_TEXT, L_TEXT_READS);
    machine_tell(x, "look_at_memory", "reads the sentence: %s", text ? "there" : "empty");
    machine_check(x, text, "the sentence was read before it was written");
    return true;
}

static enum progress look_at_memory(struct run *x)
{
    BEGIN
    STEP(load_evicted(x));
    if (own(x)->evicted)
        STEP(read_text(x));
    END
}

/* cq_tail does not change here, so the compare always lets it sleep. */
static bool futex_wait(struct run *x)
{
    if (!machine_enter(x, OBJECT_WAKE, true))
        return false;
    own(x)->asleep = 1;
    machine_tell(x, "sleep_on_futex", "FUTEX_WAIT cq_tail: sleeps");
    machine_leave(x, OBJECT_WAKE);
    return true;
}

/* Woken, or the slice is over: that happens at any time. */
static bool awake(struct run *x)
{
    struct notices_own *o = own(x);
    if (o->asleep && is(x, NOTICES_NO_SLICES))
        return false;
    o->slice_over = o->asleep;
    o->asleep = 0;
    machine_see(x, OBJECT_WAKE);
    machine_tell(x, "sleep_on_futex", o->slice_over ? "the slice is over" : "woken");
    return true;
}

static bool ask_socket(struct run *x)
{
    if (!machine_enter(x, OBJECT_SOCKET, false))
        return false;
    own(x)->dead = own(x)->shut;
    machine_tell(x, "look_at_socket", own(x)->dead ? "end of file" : "nothing");
    machine_leave(x, OBJECT_SOCKET);
    return true;
}

static enum progress look_at_socket(struct run *x)
{
    BEGIN
    STEP(ask_socket(x));
    if (own(x)->dead && !is(x, NOTICES_EOF_FIRST))
        CALL(look_at_memory(x));
    machine_check(x, !own(x)->dead || own(x)->evicted,
                  "an evicted client was told that the engine died");
    END
}

static enum progress client(struct run *x)
{
    struct notices_own *o = own(x);
    BEGIN
    while (!o->evicted && !o->dead) {
        CALL(look_at_memory(x));
        if (o->evicted)
            break;
        STEP(futex_wait(x));
        STEP(awake(x));
        if (o->slice_over)
            CALL(look_at_socket(x));
    }
    END
}

/* ---- the model ---- */

static enum progress step(struct run *x)
{
    return x->thread == ENGINE_T ? engine(x) : client(x);
}

static void init(const struct model *m, struct state *s)
{
    (void)m;
    (void)s;
}

static const char *stuck(const struct model *m, const struct state *s)
{
    (void)m;
    return s->ended >> CLIENT_T & 1 ? NULL : "lost wake-up: an evicted client sleeps for ever";
}

void notices_explore(const struct notices *c, enum memory memory, bool traced, struct finding *f)
{
    struct model m = {.machine = {.memory = memory,
                                  .n_threads = THREADS,
                                  .n_objects = N_OBJECTS,
                                  .own_bytes = sizeof(struct notices_own)},
                      .config = c,
                      .thread = {"engine", "client"},
                      .init = init,
                      .step = step,
                      .stuck = stuck};
    unsigned both = 1u << ENGINE_T | 1u << CLIENT_T;
    machine_location(&m.machine, both, 0, "the sentence");
    machine_location(&m.machine, both, 0, "reads of the sentence");
    machine_location(&m.machine, both, 0, "evicted");
    explore(&m, traced, f);
}

enum { SC = 1 << MEMORY_SC, TSO = 1 << MEMORY_TSO, RA = 1 << MEMORY_RA, ALL = SC | TSO | RA };

/* clang-format off */
const struct notices notices_cases[] = {
    {"evict", "the engine evicts a client that may be asleep", 0, 0},
    {"evict-set", "ring_evict stores `evicted` relaxed", NOTICES_SET, RA},
    {"evict-relaxed", "look_at_memory loads `evicted` relaxed", NOTICES_RELAXED, RA},
    {"evict-noslices", "a sleep has no end of its own", NOTICES_NO_SLICES, ALL},
    {"evict-shutfirst", "the engine shuts the socket before it tells why", NOTICES_SHUT_FIRST, ALL},
    {"evict-eoffirst", "the client believes the socket before it looks at memory",
     NOTICES_EOF_FIRST, ALL},
};
/* clang-format on */
const unsigned n_notices_cases = sizeof notices_cases / sizeof notices_cases[0];
