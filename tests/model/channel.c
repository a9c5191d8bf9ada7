/* channel.c - see channel.h: configuration, shared words, kernel, ends. */
#include "channel.h"

#include <assert.h>
#include <string.h>

_Static_assert(sizeof(struct channel_own) <= OWN_MAX, "raise OWN_MAX");
_Static_assert(CLIENTS_MAX *OBJECTS <= OBJECTS_MAX, "raise OBJECTS_MAX");

const char channel_trapped[] = "an operation that was replaced by OP_TRAP was reached";

static unsigned object_of(unsigned client, enum object o)
{
    return client * OBJECTS + o;
}

/* ---- shared words ---- */

static unsigned word_of(const struct channel *c, const struct handshake_op *op, unsigned client)
{
    return op->word == WORD_NONE ? (unsigned)NOWHERE : c->word[op->word][client];
}

bool channel_noticed(const struct run *x, enum handshake h, unsigned at, unsigned client)
{
    const struct channel *c = channel_of(x);
    const struct handshake_op *op = &c->op[h][at];
    enum memory memory = x->machine->memory;
    if (op->op == OP_NONE)
        return false;
    if (op->op == OP_FENCE)
        return memory != MEMORY_SC;
    bool store = op->op == OP_RELEASE || op->op == OP_SET;
    return word_of(c, op, client) != NOWHERE && !(store && memory == MEMORY_TSO);
}

bool channel_data_noticed(const struct run *x, bool write)
{
    return x->machine->memory == MEMORY_SC || (x->machine->memory == MEMORY_TSO && !write);
}

static bool fence(struct run *x, const char *function)
{
    if (!machine_fence(x))
        return false;
    machine_tell(x, function, "order_fence");
    return true;
}

bool channel_order(struct run *x, enum handshake h, unsigned at, unsigned client, uint8_t *value)
{
    const struct handshake_op *op = &channel_of(x)->op[h][at];
    const char *function = handshake_table[h].function;
    unsigned l = word_of(channel_of(x), op, client);
    machine_check(x, op->op != OP_TRAP, channel_trapped);
    if (op->op == OP_FENCE)
        return fence(x, function);
    if (op->op == OP_NONE || op->op == OP_TRAP || l == NOWHERE)
        return true;
    if (op->op == OP_RELEASE || op->op == OP_SET)
        machine_store(x, l, *value, op->op == OP_RELEASE);
    else
        *value = machine_load(x, l, op->op == OP_ACQUIRE);
    bool store = op->op == OP_RELEASE || op->op == OP_SET;
    machine_tell(x, function, "%s %s %s %u", op_name[op->op], x->machine->location[l].name,
                 store ? "=" : "->", *value);
    return true;
}

/* ---- the kernel ---- */

bool kernel_wait_engine(struct run *x, unsigned client, enum object o, uint8_t expected)
{
    struct kernel_end *k = &channel_own(x)->kernel[client];
    unsigned l = channel_of(x)->word[o == OBJECT_SUBMIT ? SQ_TAIL : CQ_HEAD][client];
    if (l == NOWHERE)
        return true;
    if (!machine_enter(x, object_of(client, o), true))
        return false;
    bool same = machine_load(x, l, false) == expected;
    k->armed[o] = same;
    k->fired[o] = !same;
    machine_tell(x, "arm_futex", "FUTEX_WAIT %s, %u: %s", x->machine->location[l].name, expected,
                 same ? "armed" : "EAGAIN");
    machine_leave(x, object_of(client, o));
    return true;
}

static bool ring_socket(struct run *x, unsigned client, const char *function)
{
    if (!machine_enter(x, object_of(client, OBJECT_SUBMIT), false))
        return false;
    channel_own(x)->kernel[client].socket = 1;
    machine_tell(x, function, "a byte to the engine's socket");
    machine_leave(x, object_of(client, OBJECT_SUBMIT));
    return true;
}

bool kernel_wake_engine(struct run *x, unsigned client, enum object o, const char *function)
{
    struct kernel_end *k = &channel_own(x)->kernel[client];
    if (channel_of(x)->engine_wait == WAIT_SOCKETS)
        return ring_socket(x, client, function);
    if (!machine_enter(x, object_of(client, o), true))
        return false;
    machine_tell(x, function, "FUTEX_WAKE %s: %s", o == OBJECT_SUBMIT ? "sq_tail" : "cq_head",
                 k->armed[o] ? "the engine" : "nobody waits");
    k->fired[o] |= k->armed[o];
    k->armed[o] = 0;
    machine_leave(x, object_of(client, o));
    return true;
}

bool kernel_wait_client(struct run *x, unsigned client, uint8_t expected)
{
    unsigned l = channel_of(x)->word[CQ_TAIL][client];
    if (!machine_enter(x, object_of(client, OBJECT_COMPLETE), true))
        return false;
    bool same = machine_load(x, l, false) == expected;
    channel_own(x)->kernel[client].asleep = same;
    machine_tell(x, "sleep_on_futex", "FUTEX_WAIT cq_tail, %u: %s", expected,
                 same ? "sleeps" : "EAGAIN");
    machine_leave(x, object_of(client, OBJECT_COMPLETE));
    return true;
}

static bool ring_bell(struct run *x, unsigned client)
{
    if (!machine_enter(x, object_of(client, OBJECT_COMPLETE), false))
        return false;
    channel_own(x)->kernel[client].bell = 1;
    machine_tell(x, "wake_client", "a byte to the bell of %c", 'A' + (int)client);
    machine_leave(x, object_of(client, OBJECT_COMPLETE));
    return true;
}

bool kernel_wake_client(struct run *x, unsigned client, bool bell)
{
    struct kernel_end *k = &channel_own(x)->kernel[client];
    if (bell)
        return ring_bell(x, client);
    if (!machine_enter(x, object_of(client, OBJECT_COMPLETE), true))
        return false;
    machine_tell(x, "wake_client", "FUTEX_WAKE cq_tail of %c: %s", 'A' + (int)client,
                 k->asleep ? "the client" : "nobody waits");
    k->asleep = 0;
    machine_leave(x, object_of(client, OBJECT_COMPLETE));
    return true;
}

bool kernel_empty_socket(struct run *x, unsigned client)
{
    if (!machine_enter(x, object_of(client, OBJECT_SUBMIT), false))
        return false;
    channel_own(x)->kernel[client].socket = 0;
    machine_tell(x, "sleep_armed", "empties the socket of %c", 'A' + (int)client);
    machine_leave(x, object_of(client, OBJECT_SUBMIT));
    return true;
}

bool kernel_empty_bell(struct run *x, unsigned client)
{
    if (!machine_enter(x, object_of(client, OBJECT_COMPLETE), false))
        return false;
    channel_own(x)->kernel[client].bell = 0;
    machine_tell(x, "client_bell_empty", "the bell is empty");
    machine_leave(x, object_of(client, OBJECT_COMPLETE));
    return true;
}

/* ---- ends ---- */

static const char *client_stuck(const struct model *m, const struct state *s,
                                const struct channel_own *o, unsigned client)
{
    const struct channel *c = m->config;
    const struct client_end *end = &o->end[client];
    unsigned tail = c->word[CQ_TAIL][client];
    if (tail != NOWHERE && machine_newest(&m->machine, s, tail) != end->cq_head)
        return "lost wake-up: a client sleeps for ever beside a completion";
    if (o->engine[client].taken == end->sent)
        return "lost wake-up: tokens are held, the ring has room, and both sides sleep for ever";
    return "lost wake-up: the engine sleeps for ever beside a submission";
}

static const char *stuck(const struct model *m, const struct state *s)
{
    const struct channel *c = m->config;
    const struct channel_own *o = (const struct channel_own *)s->own;
    for (unsigned i = 0; i < c->clients; i++)
        if (!(s->ended >> (CLIENT_THREAD + i) & 1))
            return client_stuck(m, s, o, i);
    return s->ended & 1 << ENGINE_THREAD
               ? NULL
               : "lost wake-up: the engine sleeps for ever beside a submission";
}

static enum progress step(struct run *x)
{
    return x->thread == ENGINE_THREAD ? channel_engine(x) : channel_client(x);
}

/* ---- configuration ---- */

void channel_defaults(struct channel *c)
{
    *c = (struct channel){.clients = 1,
                          .requests = {2, 2},
                          .tokens = 1,
                          .batch = 1,
                          .sq_entries = 2,
                          .cq_entries = 4,
                          .max_inflight = 2,
                          .release_every = 1,
                          .start = CURSORS - 2};
    for (unsigned h = 0; h < HANDSHAKES; h++)
        memcpy(c->op[h], handshake_table[h].op, sizeof c->op[h]);
}

static uint8_t submitted(const struct channel *c, unsigned client)
{
    return c->submitted ? (uint8_t)c->requests[client] : 0;
}

static void start_client(const struct channel *c, struct channel_own *o, unsigned i)
{
    uint8_t n = submitted(c, i), sq = (uint8_t)((c->start + n) % CURSORS);
    struct engine_end *e = &o->engine[i];
    *e = (struct engine_end){.sq_tail = sq,
                             .sq_head = sq,
                             .cq_tail = c->start,
                             .cq_published = c->start,
                             .cq_head = c->start,
                             .inflight = n,
                             .taken = n};
    o->end[i] = (struct client_end){.sq_tail = sq,
                                    .freed = sq,
                                    .cq_head = c->start,
                                    .cq_released = c->start,
                                    .inflight = n,
                                    .sent = n};
}

static void init(const struct model *m, struct state *s)
{
    const struct channel *c = m->config;
    for (unsigned i = 0; i < c->clients; i++)
        start_client(c, (struct channel_own *)s->own, i);
}

/* True if tokens may find no room. */
static bool may_hold(const struct channel *c, unsigned client)
{
    return !c->silent && c->requests[client] * (c->tokens + 1) > c->cq_entries - c->max_inflight;
}

static void place_submissions(struct channel *c, struct machine *m, unsigned i, unsigned users)
{
    int letter = 'A' + (int)i;
    if (c->submitted || !c->requests[i])
        return;
    c->word[SQ_TAIL][i] = machine_location(m, users, c->start, "%c.sq_tail", letter);
    c->word[SQ_HEAD][i] = machine_location(m, users, c->start, "%c.sq_head", letter);
    for (unsigned e = 0; e < c->sq_entries; e++) {
        c->sq_entry[i][e] = machine_location(m, users, 0, "%c.sq[%u]", letter, e);
        c->sq_reads[i][e] = machine_location(m, users, 0, "reads of %c.sq[%u]", letter, e);
    }
}

static void place_completions(struct channel *c, struct machine *m, unsigned i, unsigned users)
{
    int letter = 'A' + (int)i;
    if (c->silent || !c->requests[i])
        return;
    c->word[CQ_TAIL][i] = machine_location(m, users, c->start, "%c.cq_tail", letter);
    c->word[CQ_HEAD][i] = machine_location(m, users, c->start, "%c.cq_head", letter);
    if (c->client_wait != WAIT_SPIN)
        c->word[CQ_WAIT][i] = machine_location(m, users, 0, "%c.cq_wait", letter);
    if (may_hold(c, i))
        c->word[CQ_HELD][i] = machine_location(m, users, 0, "%c.cq_held", letter);
    for (unsigned e = 0; e < c->cq_entries; e++) {
        c->cq_entry[i][e] = machine_location(m, users, 0, "%c.cq[%u]", letter, e);
        c->cq_reads[i][e] = machine_location(m, users, 0, "reads of %c.cq[%u]", letter, e);
    }
}

static void place(struct channel *c, struct machine *m)
{
    for (unsigned w = 0; w < WORDS; w++)
        for (unsigned i = 0; i < CLIENTS_MAX; i++)
            c->word[w][i] = NOWHERE;
    bool engine_sleeps = !c->submitted;
    for (unsigned i = 0; i < c->clients; i++) {
        unsigned users = 1u << ENGINE_THREAD | 1u << (CLIENT_THREAD + i);
        place_submissions(c, m, i, users);
        place_completions(c, m, i, users);
        engine_sleeps |= may_hold(c, i);
    }
    unsigned everybody = (1u << m->n_threads) - 1;
    unsigned l = engine_sleeps ? machine_location(m, everybody, 0, "need_wakeup") : NOWHERE;
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        c->word[NEED_WAKEUP][i] = l;
}

void channel_model(struct channel *c, enum memory memory, struct model *m)
{
    assert(c->clients <= CLIENTS_MAX && c->sq_entries <= SQ_MAX && c->cq_entries <= CQ_MAX);
    *m = (struct model){.machine = {.memory = memory,
                                    .n_threads = 1 + c->clients,
                                    .n_objects = c->clients * OBJECTS,
                                    .own_bytes = sizeof(struct channel_own)},
                        .config = c,
                        .thread = {"engine", "client A", "client B"},
                        .init = init,
                        .step = step,
                        .stuck = stuck};
    place(c, &m->machine);
}
