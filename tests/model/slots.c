/* slots.c - see slots.h */
#include "slots.h"

#include <assert.h>

enum { ENGINE_T, DEVICE_T, CLIENTS_T, KERNEL_T, THREADS };
enum { CLIENTS_MAX = 3, NOBODY = 255 };
enum slot_state { FREE, LIVE, LEAVING, DRAINING };

/* appliance/clients.h's enum client_wait, with one futex */
enum { SOCKET = 1, PROCESS = 2, SUBMIT = 4, WAITS = 3 };
static const char *const wait_name[] = {
    [SOCKET] = "socket", [PROCESS] = "pidfd", [SUBMIT] = "futex"};

/* Of what belongs to client o there is an array, a member a client. */
struct slots_own {
    uint8_t state, generation, owner, armed; /* struct client */
    uint8_t knock;                           /* a client + 1 that waits at the door */
    uint8_t tag[CLIENTS_MAX];                /* the generation that its events carry */
    uint8_t waits[CLIENTS_MAX];              /* armed in the kernel */
    uint8_t fired[CLIENTS_MAX];              /* completions that were not taken yet */
    uint8_t cancelled[CLIENTS_MAX];          /* asked for */
    uint8_t blocks[CLIENTS_MAX], dead[CLIENTS_MAX], shut[CLIENTS_MAX];
    uint8_t steps[CLIENTS_MAX];    /* started in all */
    uint8_t running[2], completed; /* client + 1, oldest first; how many of them are done */
    uint8_t next;                  /* the clients' thread */
};
_Static_assert(sizeof(struct slots_own) <= OWN_MAX, "raise OWN_MAX");

static const struct slots *slots_of(const struct run *x)
{
    return x->model;
}
static struct slots_own *own(const struct run *x)
{
    return (struct slots_own *)x->s->own;
}

/* ---- the engine ---- */

static unsigned steps_in_flight(const struct slots_own *o)
{
    return (o->running[0] != 0) + (o->running[1] != 0);
}

static bool may_be_freed(const struct run *x)
{
    const struct slots_own *o = own(x);
    bool waits_over = slots_of(x)->generations_alone || !o->armed;
    bool steps_over = !steps_in_flight(o) || slots_of(x)->faults & SLOTS_EARLY;
    return o->state == DRAINING && waits_over && steps_over;
}

static void clients_free(struct run *x)
{
    struct slots_own *o = own(x);
    machine_tell(x, "clients_free", "unmaps, closes, frees blocks; generation %u ends",
                 o->generation);
    machine_check(x, slots_of(x)->generations_alone || !o->waits[o->owner],
                  "unmapped and closed while a wait in the kernel names it");
    o->blocks[o->owner] = 0;
    o->armed = 0;
    o->state = FREE;
    o->owner = NOBODY;
    if (!(slots_of(x)->faults & SLOTS_NO_BUMP))
        o->generation++;
}

static void arm(struct run *x, unsigned wait)
{
    struct slots_own *o = own(x);
    machine_check(x, !(o->waits[o->owner] & wait),
                  "two waits for one thing: the first one's end was misread");
    o->waits[o->owner] |= (uint8_t)wait;
    o->armed |= (uint8_t)wait;
}

static bool clients_admit(struct run *x)
{
    struct slots_own *o = own(x);
    if (o->state != FREE || !o->knock)
        return false;
    o->owner = o->knock - 1;
    o->knock = 0;
    o->state = LIVE;
    o->tag[o->owner] = o->generation;
    o->blocks[o->owner] = 1;
    machine_tell(x, "clients_admit", "client %u, generation %u", o->owner, o->generation);
    arm(x, SOCKET);
    arm(x, PROCESS);
    return true;
}

static bool arm_futex(struct run *x)
{
    if (own(x)->state != LIVE || own(x)->armed & SUBMIT)
        return false;
    machine_tell(x, "arm_futex", "FUTEX_WAIT on sq_tail of client %u", own(x)->owner);
    arm(x, SUBMIT);
    return true;
}

static void clients_leave(struct run *x)
{
    struct slots_own *o = own(x);
    machine_tell(x, "clients_leave", "client %u", o->owner);
    o->state = LEAVING;
    o->shut[o->owner] = 1;
    if (slots_of(x)->faults & SLOTS_BLOCKS_EARLY)
        o->blocks[o->owner] = 0;
}

static bool clients_evict(struct run *x)
{
    if (own(x)->state != LIVE)
        return false;
    machine_tell(x, "clients_evict", "client %u", own(x)->owner);
    clients_leave(x);
    return true;
}

static bool let_go(struct run *x)
{
    struct slots_own *o = own(x);
    if (o->state != LEAVING)
        return false;
    o->state = DRAINING;
    machine_tell(x, "let_go", "client %u", o->owner);
    if (!(slots_of(x)->faults & SLOTS_NO_CANCEL))
        o->cancelled[o->owner] = o->armed;
    if (may_be_freed(x))
        clients_free(x);
    return true;
}

static bool generation_passes(const struct run *x, unsigned client, unsigned any)
{
    return own(x)->tag[client] == own(x)->generation || slots_of(x)->faults & any;
}

/* A completion of a wait that was armed for that client. */
static void on_client(struct run *x, unsigned client, unsigned wait)
{
    static const unsigned any[] = {
        [SOCKET] = SLOTS_ANY_SOCKET, [PROCESS] = SLOTS_ANY_PROCESS, [SUBMIT] = SLOTS_ANY_FUTEX};
    struct slots_own *o = own(x);
    machine_tell(x, "on_client", "%s of client %u, generation %u", wait_name[wait], client,
                 o->tag[client]);
    bool mine = o->armed & wait || slots_of(x)->faults & SLOTS_NO_BITS;
    if (!generation_passes(x, client, any[wait]) || !mine)
        return;
    o->armed &= (uint8_t)~wait;
    if (o->state == LIVE && wait != SUBMIT) {
        machine_check(x, o->owner == client, "the death of an old client closed a new one");
        clients_leave(x);
    } else if (may_be_freed(x)) {
        clients_free(x);
    }
}

static bool take_event(struct run *x)
{
    struct slots_own *o = own(x);
    unsigned client = machine_choose(x, slots_of(x)->clients),
             wait = 1u << machine_choose(x, WAITS);
    if (!(o->fired[client] & wait))
        return false;
    o->fired[client] &= (uint8_t)~wait;
    on_client(x, client, wait);
    return true;
}

static bool start_step(struct run *x)
{
    struct slots_own *o = own(x);
    unsigned n = steps_in_flight(o);
    if (!slots_of(x)->device || o->state != LIVE || n == 2 || o->steps[o->owner] == 2)
        return false;
    o->steps[o->owner]++;
    o->running[n] = o->owner + 1;
    machine_tell(x, "engine_step", "starts a step for client %u", o->owner);
    return true;
}

static bool finish_step(struct run *x)
{
    struct slots_own *o = own(x);
    if (!o->completed)
        return false;
    unsigned client = o->running[0] - 1u;
    o->running[0] = o->running[1];
    o->running[1] = 0;
    o->completed--;
    machine_tell(x, "engine_step", "results of a step for client %u", client);
    if (o->state == LIVE && generation_passes(x, client, SLOTS_ANY_STEP))
        machine_check(x, o->owner == client, "results for an old client reached a new one");
    if (may_be_freed(x))
        clients_free(x);
    return true;
}

static enum progress engine(struct run *x)
{
    static bool (*const action[])(struct run *) = {clients_admit, arm_futex,  clients_evict, let_go,
                                                   take_event,    start_step, finish_step};
    return action[machine_choose(x, sizeof action / sizeof action[0])](x) ? MOVED : BLOCKED;
}

/* ---- the others ---- */

static enum progress device(struct run *x)
{
    struct slots_own *o = own(x);
    unsigned who = o->completed < 2 ? o->running[o->completed] : 0;
    if (!who)
        return BLOCKED;
    machine_tell(x, "", "a step of client %u completes", who - 1);
    machine_check(x, o->blocks[who - 1] || slots_of(x)->faults & SLOTS_NO_BLOCKS,
                  "a running step used blocks that were freed");
    o->completed++;
    return MOVED;
}

static bool wake(struct run *x)
{
    struct slots_own *o = own(x);
    if (machine_choose(x, 2) || !(o->waits[o->next] & SUBMIT))
        return true;
    machine_tell(x, "client_wake", "client %u", o->next);
    o->waits[o->next] &= (uint8_t)~SUBMIT;
    o->fired[o->next] |= SUBMIT;
    return true;
}

static enum progress clients(struct run *x)
{
    struct slots_own *o = own(x);
    BEGIN
    for (o->next = 0; o->next < slots_of(x)->clients; o->next++) {
        STEP(true);
        o->knock = o->next + 1;
        STEP(!o->knock);
        STEP(wake(x));
        STEP(true);
        machine_tell(x, "", "client %u dies", o->next);
        o->dead[o->next] = 1;
    }
    END
}

/* A wait ends: what it waits for is there, or it was cancelled. */
static enum progress kernel(struct run *x)
{
    struct slots_own *o = own(x);
    unsigned client = machine_choose(x, slots_of(x)->clients),
             wait = 1u << machine_choose(x, WAITS);
    bool there = (wait == SOCKET && (o->dead[client] || o->shut[client])) ||
                 (wait == PROCESS && o->dead[client]);
    if (!(o->waits[client] & wait) || !(there || o->cancelled[client] & wait))
        return BLOCKED;
    machine_tell(x, "", "the wait on the %s of client %u ends", wait_name[wait], client);
    o->waits[client] &= (uint8_t)~wait;
    o->fired[client] |= (uint8_t)wait;
    return MOVED;
}

static enum progress step(struct run *x)
{
    static enum progress (*const thread[])(struct run *) = {engine, device, clients, kernel};
    return thread[x->thread](x);
}

static void init(const struct model *m, struct state *s)
{
    (void)m;
    ((struct slots_own *)s->own)->owner = NOBODY;
}

static const char *stuck(const struct model *m, const struct state *s)
{
    const struct slots_own *o = (const struct slots_own *)s->own;
    (void)m;
    if (!(s->ended >> CLIENTS_T & 1) || o->state != FREE)
        return "the slot never becomes free";
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        if (o->waits[i] || o->blocks[i])
            return "a wait or a block outlived its client";
    return NULL;
}

/* ---- cases ---- */

enum {
    ANY_EVENT = SLOTS_ANY_SOCKET | SLOTS_ANY_PROCESS | SLOTS_ANY_FUTEX,
    LATE_STEPS = SLOTS_EARLY | SLOTS_NO_BLOCKS
};
static const char old_death[] = "the death of an old client closed a new one";
static const char freed[] = "a running step used blocks that were freed";

/* clang-format off */
const struct slots slots_cases[] = {
    {"slots", "clients.c: free once no wait names the slot", .clients = 3},
    {"slots-device", "the same, with steps that run on", .clients = 2, .device = true},
    {"slots-generations", "free at once: generations keep late events away",
     .clients = 3, .generations_alone = true},
    {"slots-generations-device", "the same, with steps that run on",
     .clients = 2, .generations_alone = true, .device = true},
    /* Either guard is enough for the waits: the bits of `armed`, or generations. */
    {"slots-nogeneration", "clients.c, and no generation of a wait is compared",
     .clients = 3, .faults = ANY_EVENT},
    {"slots-nobits", "free at once, and `armed` is not looked at",
     .clients = 3, .generations_alone = true, .faults = SLOTS_NO_BITS},
    {"slots-nocancel", "let_go cancels nothing", .clients = 3, .faults = SLOTS_NO_CANCEL,
     .violation = "the slot never becomes free"},
    {"generations-nosocket", "free at once, and the socket's generation is not compared",
     .clients = 3, .generations_alone = true, .faults = SLOTS_ANY_SOCKET, .violation = old_death},
    {"generations-noprocess", "free at once, and the pidfd's generation is not compared",
     .clients = 3, .generations_alone = true, .faults = SLOTS_ANY_PROCESS, .violation = old_death},
    {"generations-nofutex", "free at once, and the futex's generation is not compared",
     .clients = 3, .generations_alone = true, .faults = SLOTS_ANY_FUTEX,
     .violation = "two waits for one thing: the first one's end was misread"},
    {"generations-nobump", "free at once, and the generation is kept",
     .clients = 3, .generations_alone = true, .faults = SLOTS_NO_BUMP, .violation = old_death},
    {"generations-nocancel", "free at once, and let_go cancels nothing",
     .clients = 3, .generations_alone = true, .faults = SLOTS_NO_CANCEL,
     .violation = "a wait or a block outlived its client"},
    {"steps-early", "free while steps still run",
     .clients = 2, .device = true, .faults = SLOTS_EARLY, .violation = freed},
    {"steps-blocks", "blocks are freed in clients_leave",
     .clients = 2, .device = true, .faults = SLOTS_BLOCKS_EARLY, .violation = freed},
    {"steps-late", "free while steps still run: generations keep their results away",
     .clients = 2, .device = true, .faults = LATE_STEPS},
    {"steps-nogeneration", "the same, and the generation of results is not compared",
     .clients = 2, .device = true, .faults = LATE_STEPS | SLOTS_ANY_STEP,
     .violation = "results for an old client reached a new one"},
};
/* clang-format on */
const unsigned n_slots_cases = sizeof slots_cases / sizeof slots_cases[0];

void slots_explore(const struct slots *c, bool traced, struct finding *f)
{
    struct model m = {.machine = {.memory = MEMORY_SC,
                                  .n_threads = THREADS,
                                  .own_bytes = sizeof(struct slots_own)},
                      .config = c,
                      .thread = {"engine", "device", "clients", "kernel"},
                      .init = init,
                      .step = step,
                      .stuck = stuck};
    explore(&m, traced, f);
}
