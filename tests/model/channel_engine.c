/* channel_engine.c - the engine of channel.h: appliance/loop.c and appliance/clients.c over
 * shm/ring_engine.c. */
#include "../../shm/segment.h"
#include "channel.h"

static uint8_t no = 0, yes = 1;

static struct engine_end *end_of(const struct run *x)
{
    return &channel_own(x)->engine[channel_own(x)->client];
}

static unsigned client_of(const struct run *x)
{
    return channel_own(x)->client;
}

#define EACH_CLIENT                                                                                \
    for (channel_own(x)->client = 0; channel_own(x)->client < channel_of(x)->clients;              \
         channel_own(x)->client++)

/* ---- the way in ---- */

/* Where operation `at` of ring_sweep puts what it reads: the table decides which word is first. */
static uint8_t *swept(const struct run *x, unsigned at)
{
    struct engine_end *e = end_of(x);
    return channel_of(x)->op[RING_SWEEP][at].word == SQ_TAIL ? &e->new_tail : &e->new_head;
}

static void judge_cursors(struct run *x)
{
    struct engine_end *e = end_of(x);
    machine_check(x, distance(e->new_tail, e->sq_head) <= channel_of(x)->sq_entries,
                  "an honest client is found guilty: sq_tail");
    machine_check(x, distance(e->new_head, e->cq_head) <= distance(e->cq_published, e->cq_head),
                  "an honest client is found guilty: cq_head");
    e->sq_tail = e->new_tail;
    e->cq_head = e->new_head;
}

static bool read_entry(struct run *x)
{
    const struct channel *ch = channel_of(x);
    struct engine_end *e = end_of(x);
    unsigned slot = e->sq_head % ch->sq_entries;
    uint8_t value =
        machine_read(x, ch->sq_entry[client_of(x)][slot], ch->sq_reads[client_of(x)][slot]);
    machine_tell(x, "ring_take", "reads %c.sq[%u]: request %u", 'A' + (int)client_of(x), slot,
                 value);
    machine_check(x, value == e->taken + 1,
                  "a submission was read before it was written, or overwritten before it was read");
    return true;
}

/* ring_taken's refusals, then the request is the core's. */
static void admit(struct run *x)
{
    const struct channel *ch = channel_of(x);
    struct engine_end *e = end_of(x);
    if (!ch->silent) {
        machine_check(x, e->inflight < ch->max_inflight,
                      "an honest client is found guilty: more in flight than max_inflight");
        machine_check(x, distance(e->cq_tail, e->cq_head) + e->inflight + 1u <= ch->cq_entries,
                      "an honest client is found guilty: no room for the end of its request");
        e->inflight++;
    }
    e->sq_head = (uint8_t)((e->sq_head + 1) % CURSORS);
    e->taken++;
    channel_own(x)->worked = 1;
}

static enum progress take_entries(struct run *x)
{
    struct engine_end *e = end_of(x);
    BEGIN
    e->new_tail = e->sq_tail;
    e->new_head = e->cq_head;
    ORDER(RING_SWEEP, 0, client_of(x), swept(x, 0));
    ORDER(RING_SWEEP, 1, client_of(x), swept(x, 1));
    judge_cursors(x);
    while (e->sq_head != e->sq_tail) {
        STEP_IF(channel_data_noticed(x, false), read_entry(x));
        admit(x);
        ORDER(RING_TAKEN, 0, client_of(x), &e->sq_head);
    }
    END
}

/* ---- the way out ---- */

static unsigned room_left(const struct run *x)
{
    const struct channel *ch = channel_of(x);
    const struct engine_end *e = end_of(x);
    unsigned used = distance(e->cq_tail, e->cq_head), keep = ch->max_inflight;
    if (channel_faulty(x, FAULT_NO_RESERVE))
        keep = 0;
    if (channel_faulty(x, FAULT_FEW_RESERVED))
        keep = e->inflight;
    return used < ch->cq_entries - keep ? ch->cq_entries - keep - used : 0;
}

static bool put(struct run *x, unsigned request, unsigned event)
{
    const struct channel *ch = channel_of(x);
    struct engine_end *e = end_of(x);
    unsigned slot = e->cq_tail % ch->cq_entries;
    machine_write(x, ch->cq_entry[client_of(x)][slot], ch->cq_reads[client_of(x)][slot],
                  (uint8_t)(request * 8 + event));
    machine_tell(x, "ring_put", "writes %c.cq[%u]: request %u, %s %u", 'A' + (int)client_of(x),
                 slot, request + 1, event == FINAL ? "final" : "token", event);
    e->cq_tail = (uint8_t)((e->cq_tail + 1) % CURSORS);
    e->sent[request]++;
    channel_own(x)->worked = 1;
    return true;
}

static bool put_final(struct run *x, unsigned request)
{
    struct engine_end *e = end_of(x);
    machine_check(x, distance(e->cq_tail, e->cq_head) < channel_of(x)->cq_entries,
                  "no room for a final");
    e->inflight--;
    return put(x, request, FINAL);
}

static enum progress ring_token_room(struct run *x)
{
    struct engine_end *e = end_of(x);
    BEGIN
    if (!room_left(x)) {
        e->new_head = e->cq_head;
        ORDER(REFRESH_CQ_HEAD, 0, client_of(x), &e->new_head);
        if (distance(e->new_head, e->cq_head) <= distance(e->cq_published, e->cq_head))
            e->cq_head = e->new_head;
    }
    END
}

/* Tokens that were made and fit; a final after its last token. */
static enum progress deliver(struct run *x)
{
    const struct channel *ch = channel_of(x);
    struct engine_end *e = end_of(x);
    uint8_t *q = &channel_own(x)->request;
    BEGIN
    for (*q = 0; *q < e->taken; ++*q) {
        while (e->sent[*q] < e->made[*q]) {
            CALL(ring_token_room(x));
            if (!room_left(x))
                return PC = 0, DONE;
            STEP_IF(channel_data_noticed(x, true), put(x, *q, e->sent[*q] + 1u));
        }
        if (e->sent[*q] == ch->tokens)
            STEP_IF(channel_data_noticed(x, true), put_final(x, *q));
    }
    END
}

/* True if tokens of the client wait for room. */
static bool holds(const struct engine_end *e)
{
    for (unsigned q = 0; q < e->taken; q++)
        if (e->sent[q] < e->made[q])
            return true;
    return false;
}

/* A step of the backend: a token for every request that runs. True if there was one. */
static bool make_tokens(struct run *x)
{
    struct channel_own *o = channel_own(x);
    bool made = false;
    for (unsigned i = 0; i < channel_of(x)->clients; i++)
        for (unsigned q = 0; q < o->engine[i].taken; q++)
            if (o->engine[i].made[q] < channel_of(x)->tokens) {
                o->engine[i].made[q]++;
                made = true;
            }
    return made;
}

/* Requests of no tokens end when they are taken. */
static bool has_news(const struct run *x)
{
    const struct engine_end *e = end_of(x);
    bool ends = false;
    for (unsigned q = 0; q < e->taken; q++)
        ends |= !channel_of(x)->tokens && !e->sent[q];
    return !channel_of(x)->silent && (holds(e) || ends);
}

static enum progress look_for_sleepers(struct run *x)
{
    struct engine_end *e;
    BEGIN
    EACH_CLIENT
    {
        end_of(x)->wants_wake = 0;
        if (end_of(x)->fresh)
            ORDER(RING_WANTS_WAKE, 0, client_of(x), &end_of(x)->wants_wake);
        e = end_of(x);
        if (channel_faulty(x, FAULT_WAKE_ONCE) && e->fresh && e->publishes++ % 2)
            e->wants_wake = 0;
    }
    END
}

static enum progress publish_tails(struct run *x)
{
    BEGIN
    EACH_CLIENT
    {
        if (end_of(x)->fresh) {
            end_of(x)->cq_published = end_of(x)->cq_tail;
            ORDER(RING_PUBLISH, 0, client_of(x), &end_of(x)->cq_tail);
        }
    }
    END
}

static bool anything_fresh(struct run *x)
{
    struct channel_own *o = channel_own(x);
    bool any = false;
    for (unsigned i = 0; i < channel_of(x)->clients; i++) {
        o->engine[i].fresh = o->engine[i].cq_published != o->engine[i].cq_tail;
        any |= o->engine[i].fresh;
    }
    return any;
}

static bool by_bell(const struct run *x)
{
    return end_of(x)->wants_wake == LLM_WAIT_BELL && !channel_faulty(x, FAULT_BELL_FUTEX);
}

/* clients_publish, then wake_client for each that sleeps. */
static enum progress publish_and_wake(struct run *x)
{
    BEGIN
    if (!anything_fresh(x))
        return DONE;
    if (channel_faulty(x, FAULT_LOOK_FIRST))
        CALL(look_for_sleepers(x));
    CALL(publish_tails(x));
    ORDER(RING_AFTER_PUBLISH, 0, 0, NULL);
    if (!channel_faulty(x, FAULT_LOOK_FIRST))
        CALL(look_for_sleepers(x));
    EACH_CLIENT
    {
        if (end_of(x)->fresh && end_of(x)->wants_wake)
            STEP(kernel_wake_client(x, client_of(x), by_bell(x)));
        end_of(x)->fresh = end_of(x)->wants_wake = 0;
    }
    END
}

/* ---- a round ---- */

static bool something_fired(const struct run *x)
{
    const struct channel_own *o = channel_own(x);
    bool fired = false;
    for (unsigned i = 0; i < channel_of(x)->clients; i++)
        fired |= o->kernel[i].fired[0] || o->kernel[i].fired[1] || o->kernel[i].socket;
    return fired;
}

/* io_uring's completions lie in memory. No step of its own: who posts one does nothing else that
 * the engine's access before this could have noticed. */
static void take_events(struct run *x)
{
    struct channel_own *o = channel_own(x);
    for (unsigned i = 0; i < channel_of(x)->clients; i++)
        for (unsigned w = OBJECT_SUBMIT; w <= OBJECT_DRAIN; w++)
            if (o->kernel[i].fired[w]) {
                machine_see(x, i * OBJECTS + w);
                o->kernel[i].fired[w] = 0;
            }
}

static enum progress work_round(struct run *x)
{
    struct channel_own *o = channel_own(x);
    BEGIN
    take_events(x);
    o->worked = 0;
    EACH_CLIENT
    {
        CALL(take_entries(x));
        if (has_news(x))
            CALL(deliver(x));
    }
    if (!channel_of(x)->silent && make_tokens(x)) {
        o->worked = 1;
        EACH_CLIENT
        {
            if (has_news(x))
                CALL(deliver(x));
        }
    }
    CALL(publish_and_wake(x));
    END
}

/* ---- sleeping ---- */

static enum progress clients_rescan(struct run *x)
{
    struct channel_own *o = channel_own(x);
    BEGIN
    o->found = 0;
    EACH_CLIENT
    {
        o->value = end_of(x)->sq_tail;
        ORDER(RING_RESCAN, 0, client_of(x), &o->value);
        o->found = o->value != end_of(x)->sq_tail;
        if (!o->found && end_of(x)->held) {
            o->value = end_of(x)->cq_head;
            ORDER(RING_RESCAN, 1, client_of(x), &o->value);
            o->found = o->value != end_of(x)->cq_head;
        }
        if (o->found)
            break;
    }
    END
}

static enum progress clients_arm(struct run *x)
{
    BEGIN
    EACH_CLIENT
    {
        end_of(x)->held = holds(end_of(x));
        ORDER(RING_ARM, 0, client_of(x), end_of(x)->held ? &yes : &no);
    }
    ORDER(RING_ARM_FENCE, 0, 0, NULL);
    CALL(clients_rescan(x));
    END
}

static bool idle(const struct run *x, unsigned word)
{
    const struct kernel_end *k = &channel_own(x)->kernel[client_of(x)];
    return !k->armed[word] && !k->fired[word];
}

static enum progress arm_client_futexes(struct run *x)
{
    BEGIN
    EACH_CLIENT
    {
        if (channel_faulty(x, FAULT_HALF_ARMED) && client_of(x) + 1u == channel_of(x)->clients)
            break;
        if (idle(x, OBJECT_SUBMIT) && channel_of(x)->word[SQ_TAIL][client_of(x)] != NOWHERE)
            STEP(kernel_wait_engine(x, client_of(x), OBJECT_SUBMIT, end_of(x)->sq_tail));
        if (end_of(x)->held && idle(x, OBJECT_DRAIN) && !channel_faulty(x, FAULT_WAIT_WORD))
            STEP(kernel_wait_engine(x, client_of(x), OBJECT_DRAIN, end_of(x)->cq_head));
    }
    END
}

static bool cancel_waits(struct run *x)
{
    for (unsigned i = 0; i < channel_of(x)->clients; i++)
        for (unsigned w = OBJECT_SUBMIT; w <= OBJECT_DRAIN; w++)
            channel_own(x)->kernel[i].armed[w] = 0;
    machine_tell(x, "sleep_armed", "cancels what is still armed");
    return true;
}

static enum progress empty_sockets(struct run *x)
{
    BEGIN
    EACH_CLIENT
    {
        if (channel_own(x)->kernel[client_of(x)].socket)
            STEP(kernel_empty_socket(x, client_of(x)));
    }
    END
}

/* The time is over, and there is something to find: looks that find nothing change nothing. */
static bool words_moved(struct run *x)
{
    const struct channel *ch = channel_of(x);
    bool moved = false;
    for (unsigned i = 0; i < ch->clients; i++) {
        const struct engine_end *e = &channel_own(x)->engine[i];
        unsigned tail = ch->word[SQ_TAIL][i], head = ch->word[CQ_HEAD][i];
        moved |= tail != NOWHERE && machine_catch_up(x, tail) != e->sq_tail;
        moved |= e->held && machine_catch_up(x, head) != e->cq_head;
    }
    return moved;
}

static enum progress sleep_armed(struct run *x)
{
    enum engine_wait wait = channel_of(x)->engine_wait;
    bool sockets = wait == WAIT_SOCKETS;
    BEGIN
    if (wait == WAIT_LOOKS) {
        STEP(words_moved(x));
        machine_tell(x, "epoll_sleep", "the time is over");
        return PC = 0, DONE;
    }
    if (!sockets)
        CALL(arm_client_futexes(x));
    if (channel_faulty(x, FAULT_SOCKET_LATE))
        CALL(empty_sockets(x));
    STEP(something_fired(x));
    machine_tell(x, "uring_wait", "woken");
    if (sockets && !channel_faulty(x, FAULT_SOCKET_LATE))
        CALL(empty_sockets(x));
    if (channel_of(x)->engine_wait == WAIT_FRESH)
        STEP(cancel_waits(x));
    END
}

static enum progress nap(struct run *x)
{
    BEGIN
    ORDER(RING_ARM_ALL, 0, 0, &yes);
    CALL(clients_arm(x));
    if (!channel_own(x)->found)
        CALL(sleep_armed(x));
    EACH_CLIENT
    {
        if (end_of(x)->held)
            ORDER(RING_DISARM, 0, client_of(x), &no);
        end_of(x)->held = 0;
    }
    ORDER(RING_DISARM_ALL, 0, 0, &no);
    END
}

/* Everything that the clients want was taken, made and published. */
static bool satisfied(const struct run *x)
{
    const struct channel *ch = channel_of(x);
    for (unsigned i = 0; i < ch->clients; i++) {
        const struct engine_end *e = &channel_own(x)->engine[i];
        for (unsigned q = 0; q < e->taken && !ch->silent; q++)
            if (e->sent[q] <= ch->tokens)
                return false;
        if (e->taken != ch->requests[i])
            return false;
    }
    return true;
}

enum progress channel_engine(struct run *x)
{
    BEGIN
    for (;;) {
        CALL(work_round(x));
        if (satisfied(x))
            break;
        if (!channel_own(x)->worked)
            CALL(nap(x));
    }
    END
}
