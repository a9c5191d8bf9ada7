/* lanes.c - see lanes.h
 *
 * The token's data lies beside its lane word, so that RA judges whether the word's release and
 * acquire carry it. Entries of the ring are not used twice.
 */
#include "lanes.h"

enum { DEVICE_T, HOST_T, CLIENT_T, THREADS };
enum { TOKENS = 3, LANE = 2, ENTRIES = TOKENS + 1, NEWS = 100, END_IN_LANE = 99 };
enum { OBJECT_STREAM, OBJECT_WAKE, N_OBJECTS };

enum lane_location {
    L_LANE,
    L_TOKEN = L_LANE + LANE,
    L_TOKEN_READS = L_TOKEN + LANE,
    L_CQ_TAIL = L_TOKEN_READS + LANE,
    L_CQ_WAIT,
    L_LANE_HEAD,
    L_ENTRY,
    L_ENTRY_READS = L_ENTRY + ENTRIES,
    L_END = L_ENTRY_READS + ENTRIES
};

struct lanes_own {
    uint8_t started, completed; /* steps */
    uint8_t asleep;
    uint8_t step, value, given_up, cq_tail;           /* host */
    uint8_t stored;                                   /* device */
    uint8_t seen, cq_head, word, has_final, of_final; /* client */
};
_Static_assert(sizeof(struct lanes_own) <= OWN_MAX, "raise OWN_MAX");
_Static_assert((int)L_END <= (int)LOCATIONS_MAX, "raise LOCATIONS_MAX");

static struct lanes_own *own(const struct run *x)
{
    return (struct lanes_own *)x->s->own;
}
static bool is(const struct run *x, unsigned fault)
{
    return ((const struct lanes *)x->model)->faults & fault;
}
static unsigned lane_words(const struct run *x)
{
    return is(x, LANES_ONE_WORD) ? 1 : LANE;
}
static bool store(struct run *x, const char *function, unsigned l, uint8_t value, bool release)
{
    machine_tell(x, function, "%s = %u", x->machine->location[l].name, value);
    machine_store(x, l, value, release);
    return true;
}
static bool load(struct run *x, const char *function, unsigned l, uint8_t *value, bool acquire)
{
    *value = machine_load(x, l, acquire);
    machine_tell(x, function, "%s -> %u", x->machine->location[l].name, *value);
    return true;
}
static bool fence(struct run *x, const char *function)
{
    if (!machine_fence(x))
        return false;
    machine_tell(x, function, "order_fence");
    return true;
}

/* ---- the device ---- */

static bool write_token(struct run *x)
{
    unsigned at = own(x)->stored % lane_words(x);
    machine_write(x, L_TOKEN + at, L_TOKEN_READS + at, own(x)->stored + 1);
    machine_tell(x, "", "writes token %u", own(x)->stored + 1);
    return true;
}

static bool step_done(struct run *x)
{
    if (!machine_enter(x, OBJECT_STREAM, false))
        return false;
    own(x)->completed++;
    machine_tell(x, "", "step %u is done", own(x)->completed);
    machine_leave(x, OBJECT_STREAM);
    return true;
}

static bool step_started(struct run *x)
{
    if (own(x)->started <= own(x)->stored || !machine_enter(x, OBJECT_STREAM, false))
        return false;
    machine_leave(x, OBJECT_STREAM);
    return true;
}

static enum progress device(struct run *x)
{
    struct lanes_own *o = own(x);
    BEGIN
    if (is(x, LANES_ONE_RING)) {
        STEP(step_started(x));
        STEP(store(x, "", L_ENTRY, 1, true));
        return PC = 0, DONE;
    }
    for (o->stored = 0; o->stored < TOKENS; o->stored++) {
        STEP(step_started(x));
        STEP(write_token(x));
        STEP(store(x, "", L_LANE + o->stored % lane_words(x), o->stored + 1, true));
        STEP(step_done(x));
    }
    END
}

/* ---- the host ---- */

static bool start_step(struct run *x)
{
    if (!machine_enter(x, OBJECT_STREAM, false))
        return false;
    own(x)->started++;
    machine_tell(x, "engine_step", "starts step %u", own(x)->started);
    machine_leave(x, OBJECT_STREAM);
    return true;
}

static bool has_credit(struct run *x)
{
    uint8_t head;
    load(x, "engine_step", L_LANE_HEAD, &head, true);
    return own(x)->step - head < LANE;
}

/* The step is over, or the watchdog says so. */
static bool await_step(struct run *x)
{
    if (is(x, LANES_DEVICE_FAILS) && machine_choose(x, 2)) {
        own(x)->given_up = 1;
        machine_tell(x, "engine_step", "the device is given up");
        return true;
    }
    if (own(x)->completed <= own(x)->step)
        return false;
    machine_see(x, OBJECT_STREAM);
    machine_tell(x, "engine_step", "sees that step %u is done", own(x)->step + 1);
    return true;
}

static bool wake(struct run *x)
{
    if (!machine_enter(x, OBJECT_WAKE, true))
        return false;
    machine_tell(x, "wake_client", "FUTEX_WAKE cq_tail: %s",
                 own(x)->asleep ? "the client" : "nobody waits");
    own(x)->asleep = 0;
    machine_leave(x, OBJECT_WAKE);
    return true;
}

static bool ring_put(struct run *x, uint8_t entry)
{
    unsigned at = own(x)->cq_tail++;
    machine_write(x, L_ENTRY + at, L_ENTRY_READS + at, entry);
    machine_tell(x, "ring_put", "entry %u: %s %u", at, entry == NEWS ? "news" : "final, count",
                 entry == NEWS ? own(x)->step + 1 : entry);
    return true;
}

static enum progress publish_and_wake(struct run *x)
{
    struct lanes_own *o = own(x);
    BEGIN
    STEP(store(x, "ring_publish", L_CQ_TAIL, o->cq_tail, true));
    if (!is(x, LANES_NO_FENCE))
        STEP(fence(x, "ring_after_publish"));
    STEP(load(x, "ring_wants_wake", L_CQ_WAIT, &o->value, false));
    if (o->value)
        STEP(wake(x));
    END
}

static enum progress host(struct run *x)
{
    struct lanes_own *o = own(x);
    BEGIN
    if (is(x, LANES_ONE_RING)) {
        STEP(start_step(x));
        STEP(store(x, "ring_put", L_ENTRY + 1, 7, false));
        STEP(store(x, "ring_publish", L_CQ_TAIL, 2, true));
        return PC = 0, DONE;
    }
    for (o->step = 0; o->step < TOKENS; o->step++) {
        if (!is(x, LANES_NO_CREDIT | LANES_ONE_WORD))
            STEP(has_credit(x));
        STEP(start_step(x));
        STEP(await_step(x));
        if (o->given_up)
            break;
        if (!is(x, LANES_NO_NEWS))
            STEP(ring_put(x, NEWS));
        CALL(publish_and_wake(x));
    }
    if (o->given_up && is(x, LANES_END_IN_LANE))
        STEP(store(x, "watchdog", L_LANE + o->step % LANE, END_IN_LANE, true));
    else
        STEP(ring_put(x, o->step));
    CALL(publish_and_wake(x));
    END
}

/* ---- the client ---- */

static bool read_entry(struct run *x)
{
    struct lanes_own *o = own(x);
    unsigned at = o->cq_head++;
    uint8_t entry = machine_read(x, L_ENTRY + at, L_ENTRY_READS + at);
    machine_tell(x, "ring_poll", "entry %u: %s %u", at, entry == NEWS ? "news" : "final, count",
                 entry == NEWS ? at + 1 : entry);
    if (entry != NEWS) {
        o->has_final = 1;
        o->of_final = entry;
    }
    return true;
}

static bool read_token(struct run *x)
{
    struct lanes_own *o = own(x);
    unsigned at = o->seen % lane_words(x);
    uint8_t token = machine_read(x, L_TOKEN + at, L_TOKEN_READS + at);
    machine_tell(x, "", "takes token %u", token);
    machine_check(x, token == ++o->seen, "a token was overwritten before it was taken");
    return true;
}

static enum progress take_tokens(struct run *x)
{
    struct lanes_own *o = own(x);
    bool acquire = !is(x, LANES_RELAXED);
    BEGIN
    for (;;) {
        STEP(load(x, "", L_LANE + o->seen % lane_words(x), &o->word, acquire));
        machine_check(x, o->word <= o->seen + 1 || o->word == END_IN_LANE,
                      "a token was overwritten before it was taken");
        if (o->word != o->seen + 1)
            break;
        STEP(read_token(x));
        STEP(store(x, "", L_LANE_HEAD, o->seen, true));
    }
    END
}

static bool futex_wait(struct run *x)
{
    struct lanes_own *o = own(x);
    if (!machine_enter(x, OBJECT_WAKE, true))
        return false;
    o->asleep = machine_load(x, L_CQ_TAIL, false) == o->cq_head;
    machine_tell(x, "sleep_on_futex", "FUTEX_WAIT cq_tail, %u: %s", o->cq_head,
                 o->asleep ? "sleeps" : "EAGAIN");
    machine_leave(x, OBJECT_WAKE);
    return true;
}

static bool awake(struct run *x)
{
    if (own(x)->asleep)
        return false;
    machine_see(x, OBJECT_WAKE);
    return true;
}

static enum progress sleep_once(struct run *x)
{
    struct lanes_own *o = own(x);
    BEGIN
    STEP(store(x, "ring_wait_begin", L_CQ_WAIT, 1, false));
    STEP(fence(x, "ring_wait_begin"));
    STEP(load(x, "ring_wait_begin", L_CQ_TAIL, &o->word, true));
    if (o->word == o->cq_head) {
        STEP(load(x, "", L_LANE + o->seen % lane_words(x), &o->word, true));
        if (o->word != o->seen + 1) {
            STEP(futex_wait(x));
            STEP(awake(x));
        }
    }
    STEP(store(x, "ring_wait_end", L_CQ_WAIT, 0, false));
    END
}

/* Two entries of one ring, of which the device writes the first. */
static enum progress one_ring(struct run *x)
{
    struct lanes_own *o = own(x);
    BEGIN
    STEP(load(x, "ring_poll", L_CQ_TAIL, &o->word, true) && o->word == 2);
    STEP(load(x, "ring_poll", L_ENTRY, &o->word, true));
    machine_check(x, o->word == 1, "an entry was shown before the device had written it");
    END
}

static enum progress client(struct run *x)
{
    struct lanes_own *o = own(x);
    BEGIN
    if (is(x, LANES_ONE_RING)) {
        CALL(one_ring(x));
        return PC = 0, DONE;
    }
    for (;;) {
        STEP(load(x, "ring_poll", L_CQ_TAIL, &o->word, true));
        while (o->cq_head != o->word)
            STEP(read_entry(x));
        CALL(take_tokens(x));
        if (o->word == END_IN_LANE || (o->has_final && o->seen >= o->of_final))
            break;
        CALL(sleep_once(x));
    }
    END
}

/* ---- the model ---- */

static enum progress step(struct run *x)
{
    return x->thread == DEVICE_T ? device(x) : x->thread == HOST_T ? host(x) : client(x);
}

static void init(const struct model *m, struct state *s)
{
    (void)m;
    (void)s;
}

static const char *stuck(const struct model *m, const struct state *s)
{
    const struct lanes *c = m->config;
    const struct lanes_own *o = (const struct lanes_own *)s->own;
    if (!(s->ended >> CLIENT_T & 1))
        return "lost wake-up: the client never learns of a token or of the end";
    if (c->faults & (LANES_DEVICE_FAILS | LANES_ONE_RING))
        return NULL;
    return o->seen == TOKENS ? NULL : "a token was lost";
}

static void place(struct machine *m)
{
    unsigned to_client = 1u << HOST_T | 1u << CLIENT_T, lane = 1u << DEVICE_T | 1u << CLIENT_T;
    for (unsigned i = 0; i < LANE; i++)
        machine_location(m, lane | 1u << HOST_T, 0, "lane[%u]", i);
    for (unsigned i = 0; i < LANE; i++)
        machine_location(m, lane, 0, "token[%u]", i);
    for (unsigned i = 0; i < LANE; i++)
        machine_location(m, lane, 0, "reads of token[%u]", i);
    machine_location(m, to_client, 0, "cq_tail");
    machine_location(m, to_client, 0, "cq_wait");
    machine_location(m, to_client, 0, "lane_head");
    for (unsigned i = 0; i < ENTRIES; i++)
        machine_location(m, to_client | 1u << DEVICE_T, 0, "cq[%u]", i);
    for (unsigned i = 0; i < ENTRIES; i++)
        machine_location(m, to_client, 0, "reads of cq[%u]", i);
}

void lanes_explore(const struct lanes *c, enum memory memory, bool traced, struct finding *f)
{
    struct model m = {.machine = {.memory = memory,
                                  .n_threads = THREADS,
                                  .n_objects = N_OBJECTS,
                                  .own_bytes = sizeof(struct lanes_own)},
                      .config = c,
                      .thread = {"device", "host", "client"},
                      .init = init,
                      .step = step,
                      .stuck = stuck};
    place(&m.machine);
    explore(&m, traced, f);
}

enum { SC = 1 << MEMORY_SC, TSO = 1 << MEMORY_TSO, RA = 1 << MEMORY_RA, ALL = SC | TSO | RA };

/* clang-format off */
const struct lanes lanes_cases[] = {
    {"lanes", "a lane of two tokens, and a ring beside it", 0, 0},
    {"lanes-failure", "the device is given up at any step", LANES_DEVICE_FAILS, 0},
    {"lanes-oneword", "one word a request", LANES_ONE_WORD, ALL},
    {"lanes-nocredit", "steps are started without room in the lane", LANES_NO_CREDIT, ALL},
    {"lanes-endinlane", "the end of a failed device lies in the lane",
     LANES_DEVICE_FAILS | LANES_END_IN_LANE, ALL},
    {"lanes-nonews", "steps wake but put no entry", LANES_NO_NEWS, ALL},
    {"lanes-onering", "device and host write entries of one ring", LANES_ONE_RING, ALL},
    {"lanes-relaxed", "the client loads lane words relaxed", LANES_RELAXED, RA},
    {"lanes-noE2", "ring_after_publish does nothing", LANES_NO_FENCE, TSO | RA},
};
/* clang-format on */
const unsigned n_lanes_cases = sizeof lanes_cases / sizeof lanes_cases[0];
