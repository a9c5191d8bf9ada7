/* loop.c - see loop.h. */
#include "loop.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bells.h"
#include "clock.h"
#include "signals.h"

enum event {
    EVENT_ACCEPT,
    EVENT_STOP,
    EVENT_KNOCK,
    EVENT_CLIENT /* EVENT_CLIENT + an enum client_wait bit */
};

#define TICK_NS       1000000000ull
#define GRACE_NS      20000000ull /* a wake that is on its way arrives within it */
#define DELIVER_NS    2000000000ull
#define DRAIN_TICK_NS 10000000ull
#define DOOR_SHUT_NS  2000000000ull
#define ROUND_MOST_NS 100000000ull

enum { STEP_FAILURES_MAX = 3, WAITS_A_CLIENT = 4, ACCEPTS_A_ROUND = 4, DOOR_SHARE = 16 };

struct loop {
    struct loop_config c;
    struct waiter *w;
    bool accept_armed, stop_armed, draining;
    bool accept_later; /* no descriptor or slot for the next one: look again at the next tick */
    unsigned step_failures;
    int wait_failure; /* the kernel refuses to let us wait */
    uint64_t now_ns, last_work_ns, last_tick_ns, tick_ns;
    uint64_t door_ns;  /* under load the door opens again then */
    uint64_t round_ns; /* length of the last round */
    bool knocks_wait;  /* some spoke meanwhile */
    struct bells bells;
};

static uint64_t tag(unsigned event, uint32_t slot, uint32_t generation)
{
    return (uint64_t)event << 56 | (uint64_t)slot << 32 | generation;
}

static void poll_on(struct loop *l, int fd, unsigned events, uint64_t tag_of)
{
    l->w->ops->poll(l->w, fd, events, tag_of);
}

/* ---- clients' waits ---- */

static uint64_t client_tag(const struct loop *l, uint32_t slot, enum client_wait wait)
{
    return tag(EVENT_CLIENT + wait, slot, l->c.clients->slots[slot].generation);
}

static void arm_client_polls(struct loop *l, uint32_t slot)
{
    struct client *c = &l->c.clients->slots[slot];
    poll_on(l, c->socket, POLLIN | POLLRDHUP, client_tag(l, slot, CLIENT_WAIT_SOCKET));
    c->armed |= CLIENT_WAIT_SOCKET;
    if (c->process < 0)
        return;
    poll_on(l, c->process, POLLIN, client_tag(l, slot, CLIENT_WAIT_PROCESS));
    c->armed |= CLIENT_WAIT_PROCESS;
}

static void arm_futex(struct loop *l, uint32_t slot, enum client_wait wait, const order_u32 *word,
                      uint32_t last)
{
    struct client *c = &l->c.clients->slots[slot];
    if (c->armed & wait || clients_muted(c))
        return;
    if (l->w->ops->futex(l->w, word, last, client_tag(l, slot, wait)))
        c->armed |= wait;
}

static void arm_client_futexes(struct loop *l, uint32_t slot)
{
    const struct client *c = &l->c.clients->slots[slot];
    arm_futex(l, slot, CLIENT_WAIT_SUBMIT, &c->ring.up->sq_tail, c->ring.sq_tail);
    if (c->held)
        arm_futex(l, slot, CLIENT_WAIT_DRAIN, &c->ring.up->cq_head, c->ring.cq_head);
}

static void shut_door(struct loop *l, uint64_t until_ns)
{
    l->door_ns = until_ns > l->door_ns ? until_ns : l->door_ns;
}

/* The end of a socket wakes all who poll the other one, and how many these are is up to the client.
 * Whoever goes has come: what a crowd took keeps the door shut, and adds up; not for so long that
 * who knocks gives up. */
static void charge_end(struct loop *l, uint64_t start_cpu_ns)
{
    uint64_t took_ns = clock_cpu_ns() - start_cpu_ns, now_ns = clock_ns();
    if (took_ns <= BELLS_CROWD_NS)
        return;
    uint64_t from_ns = l->door_ns > now_ns ? l->door_ns : now_ns;
    uint64_t until_ns = from_ns + took_ns * (DOOR_SHARE - 1), most_ns = now_ns + DOOR_SHUT_NS;
    shut_door(l, until_ns < most_ns ? until_ns : most_ns);
}

static void free_client(struct loop *l, uint32_t slot)
{
    uint64_t start_ns = clock_cpu_ns();
    clients_free(l->c.clients, slot);
    charge_end(l, start_ns);
}

static void shut_knock(struct loop *l, uint32_t i)
{
    uint64_t start_ns = clock_cpu_ns();
    control_shut(l->c.server, i);
    charge_end(l, start_ns);
}

/* The other side sees its end now, not when the poll is gone. */
static void shut_client(struct loop *l, const struct client *c)
{
    uint64_t start_ns = clock_cpu_ns();
    shutdown(c->socket, SHUT_RDWR);
    charge_end(l, start_ns);
}

/* LEAVING -> DRAINING: the slot is free once the kernel has let go of everything. */
static void let_go(struct loop *l, uint32_t slot)
{
    struct client *c = &l->c.clients->slots[slot];
    assert(c->state == CLIENT_LEAVING);
    c->state = CLIENT_DRAINING;
    shut_client(l, c);
    for (unsigned wait = CLIENT_WAIT_SOCKET; wait <= CLIENT_WAIT_DRAIN; wait <<= 1)
        if (c->armed & wait)
            l->w->ops->cancel(l->w, client_tag(l, slot, wait));
    if (!c->armed)
        free_client(l, slot);
}

static void on_client(struct loop *l, uint32_t slot, uint32_t generation, unsigned wait, int result)
{
    struct clients *cs = l->c.clients;
    struct client *c = &cs->slots[slot];
    bool word = wait & (CLIENT_WAIT_SUBMIT | CLIENT_WAIT_DRAIN); /* tells also where not armed */
    if (c->generation != generation || !(word || c->armed & wait))
        return;
    c->armed &= ~wait;
    if (c->state != CLIENT_LIVE) { /* both the socket and the process tell of a death */
        if (c->state == CLIENT_DRAINING && !c->armed)
            free_client(l, slot);
        return;
    }
    bool spoke =
        wait == CLIENT_WAIT_SOCKET && result > 0 && !(result & (POLLHUP | POLLERR | POLLRDHUP));
    if (spoke)
        clients_evict(cs, slot, LLM_EPROTO, "it sent something after WELCOME");
    else if (wait == CLIENT_WAIT_SOCKET)
        clients_leave(cs, slot);
    else if (wait == CLIENT_WAIT_PROCESS)
        clients_orphan(cs, slot);
    else
        clients_woken(cs, slot);
}

/* ---- the door ---- */

static bool door_is_open(const struct loop *l)
{
    return !engine_has_work(l->c.engine) || l->now_ns >= l->door_ns;
}

/* What was done at the door is paid for, out of the last round's length first: the longer a step
 * the more comes in beside it. Not the clock on the wall: where others have the CPU for a while, who
 * knocks would wait for fifteen times as long. */
static void charge_door(struct loop *l, uint64_t start_cpu_ns)
{
    uint64_t took_ns = clock_cpu_ns() - start_cpu_ns;
    l->now_ns = clock_ns();
    uint64_t from_ns = l->now_ns - l->round_ns;
    shut_door(l, (from_ns > l->door_ns ? from_ns : l->door_ns) + took_ns * DOOR_SHARE);
}

static void arm_door(struct loop *l)
{
    if (!l->accept_armed && !l->accept_later && door_is_open(l)) {
        poll_on(l, l->c.server->listen_fd, POLLIN, tag(EVENT_ACCEPT, 0, 0));
        l->accept_armed = true;
    }
    if (!l->stop_armed && !l->draining) {
        poll_on(l, l->c.stop_event, POLLIN, tag(EVENT_STOP, 0, 0));
        l->stop_armed = true;
    }
}

static void arm_knock(struct loop *l, uint32_t i)
{
    struct knock *k = &l->c.server->knock[i];
    poll_on(l, k->fd, POLLIN | POLLRDHUP, tag(EVENT_KNOCK, i, k->generation));
    k->armed = true;
}

/* Answers a HELLO. The knock's descriptor goes to the client or is shut. */
static void answer(struct loop *l, uint32_t i, const struct llm_hello *hello)
{
    int socket = l->c.server->knock[i].fd;
    struct llm_reject refusal = {.code = LLM_ESHUTDOWN, .text = "the engine is stopping"};
    int slot = l->draining ? LLM_ESHUTDOWN : clients_admit(l->c.clients, socket, hello, &refusal);
    if (slot < 0) {
        control_refuse(socket, &refusal);
        control_shut(l->c.server, i);
        return;
    }
    control_take(l->c.server, i);
    if (l->c.clients->slots[slot].state == CLIENT_LIVE)
        arm_client_polls(l, (uint32_t)slot);
}

/* A piece of the segments of those who arrive. True if somebody does. */
static bool prepare(struct loop *l)
{
    if (!l->c.clients->n_arriving)
        return false;
    if (!door_is_open(l))
        return true;
    uint64_t start_ns = clock_cpu_ns();
    int slot = clients_prepare(l->c.clients);
    if (slot >= 0)
        arm_client_polls(l, (uint32_t)slot);
    charge_door(l, start_ns);
    return true;
}

/* Takes the HELLO if it is there; else waits for it. */
static void hear(struct loop *l, uint32_t i)
{
    struct llm_hello hello;
    struct llm_reject refusal;
    int rc = control_hear(l->c.server, i, &hello, &refusal);
    if (rc == -EAGAIN) {
        arm_knock(l, i);
        return;
    }
    if (!rc) {
        answer(l, i, &hello);
        return;
    }
    if (rc == LLM_EPROTO && refusal.text[0])
        control_refuse(l->c.server->knock[i].fd, &refusal);
    control_shut(l->c.server, i);
}

static void on_knock(struct loop *l, uint32_t i, uint32_t generation)
{
    struct knock *k = &l->c.server->knock[i];
    if (k->generation != generation || !k->armed)
        return;
    l->accept_later = false;
    uint64_t start_ns = clock_cpu_ns();
    bool open = control_polled(l->c.server, i); /* else it is closed */
    charge_end(l, start_ns);
    if (!open)
        return;
    k->waits = true;
    l->knocks_wait = true;
}

/* One of those who spoke. True if there may be more. */
static bool hear_next(struct loop *l)
{
    if (!l->knocks_wait || !door_is_open(l))
        return l->knocks_wait;
    uint64_t start_ns = clock_cpu_ns();
    for (uint32_t i = 0; i < CONTROL_KNOCKS; i++) {
        struct knock *k = &l->c.server->knock[i];
        if (k->fd < 0 || !k->waits || k->closing)
            continue;
        k->waits = false;
        hear(l, i);
        charge_door(l, start_ns);
        return true;
    }
    l->knocks_wait = false;
    return false;
}

/* Most have said HELLO by now: they are not in the way of a crowd that says nothing. A few at a
 * time, so that a crowd holds up no step for long. */
static void on_accept(struct loop *l)
{
    int i, n = 0;
    l->accept_armed = false;
    do {
        uint64_t start_ns = clock_cpu_ns();
        i = control_accept(l->c.server, l->now_ns);
        if (i >= 0)
            hear(l, (uint32_t)i);
        charge_door(l, start_ns);
    } while (i >= 0 && ++n < ACCEPTS_A_ROUND && door_is_open(l));
    l->accept_later = i < 0 && i != -EAGAIN;
}

/* A little of it where there is no work: then the next round comes at once. True if there is more. */
static bool at_the_door(struct loop *l)
{
    bool more;
    do {
        more = hear_next(l);
        more |= prepare(l);
    } while (more && engine_has_work(l->c.engine) && door_is_open(l));
    return more;
}

/* ---- a round ---- */

static void on_event(struct loop *l, uint64_t user_data, int result)
{
    unsigned event = (unsigned)(user_data >> 56);
    uint32_t slot = (uint32_t)(user_data >> 32) & 0xffffff, generation = (uint32_t)user_data;
    switch (event) {
    case EVENT_ACCEPT:
        on_accept(l);
        break;
    case EVENT_STOP:
        l->stop_armed = false;
        break;
    case EVENT_KNOCK:
        on_knock(l, slot, generation);
        break;
    default:
        on_client(l, slot, generation, event - EVENT_CLIENT, result);
    }
}

static void take_events(struct loop *l)
{
    uint64_t what;
    int result;
    while (l->w->ops->next(l->w, l->now_ns, &what, &result))
        on_event(l, what, result);
}

/* ---- wakes ---- */

static void wake_client(struct loop *l, struct client *c, bool few)
{
    if (c->wait == LLM_WAIT_BELL)
        bells_ring(&l->bells, c);
    else if (few)
        waiter_wake(&c->ring.down->cq_tail);
    else
        l->w->ops->wake(l->w, &c->ring.down->cq_tail);
}

static void publish_and_wake(struct loop *l)
{
    struct clients *cs = l->c.clients;
    clients_publish(cs);
    for (uint32_t i = 0; i < cs->n_wake; i++)
        wake_client(l, &cs->slots[cs->wake[i]], cs->n_wake <= WAITER_FEW);
    bells_tick(&l->bells, cs, l->now_ns);
    while (cs->n_leaving)
        let_go(l, cs->leaving[--cs->n_leaving]);
    arm_door(l);
    l->w->ops->flush(l->w);
}

static void tick(struct loop *l)
{
    l->last_tick_ns = l->now_ns;
    l->accept_later = false;
    int late;
    while ((late = control_overdue(l->c.server, l->now_ns)) >= 0)
        shut_knock(l, (uint32_t)late);
    clients_tick(l->c.clients);
    engine_tick(l->c.engine, l->now_ns);
    publish_and_wake(l); /* what it ended */
    if (l->c.hooks.tick)
        l->c.hooks.tick(l->c.hooks.context, engine_has_work(l->c.engine), l->now_ns);
}

static void beat(struct loop *l)
{
    l->now_ns = clock_ns();
    order_set64(&l->c.pulse->heartbeat_ns, l->now_ns);
    order_set64(&l->c.board->map->heartbeat_ns, l->now_ns);
    if (l->now_ns - l->last_tick_ns >= l->tick_ns)
        tick(l);
}

static int step(struct loop *l)
{
    int rc = engine_step(l->c.engine);
    l->step_failures = rc < 0 ? l->step_failures + 1 : 0;
    if (rc < 0)
        board_error(l->c.board, rc, "a step of the backend failed: %s", strerror(-rc));
    return rc;
}

/* True if anything was done. */
static bool work_round(struct loop *l)
{
    uint64_t start_ns = l->now_ns;
    take_events(l);
    bool worked = clients_sweep(l->c.clients);
    worked |= at_the_door(l);
    if (engine_has_work(l->c.engine)) {
        step(l);
        worked = true;
    }
    publish_and_wake(l);
    beat(l);
    l->round_ns = l->now_ns - start_ns < ROUND_MOST_NS ? l->now_ns - start_ns : ROUND_MOST_NS;
    if (worked)
        l->last_work_ns = l->now_ns;
    return worked;
}

/* ---- sleeping ---- */

/* True if the time passed without an event. */
static bool nothing_came(struct loop *l, uint64_t timeout_ns)
{
    int rc = l->w->ops->wait(l->w, timeout_ns);
    if (rc < 0 && rc != -ETIME)
        l->wait_failure = rc;
    return rc == -ETIME;
}

static void sleep_armed(struct loop *l, uint64_t timeout_ns)
{
    const struct clients *cs = l->c.clients;
    for (uint32_t i = 0; i < cs->high; i++)
        if (cs->slots[i].state == CLIENT_LIVE)
            arm_client_futexes(l, i);
    STATS_ADD(l->c.stats, sleeps, 1);
    if (nothing_came(l, timeout_ns) && l->w->ops->wakes && clients_rescan(cs) &&
        nothing_came(l, GRACE_NS))
        STATS_ADD(l->c.stats, backstop_rescues, 1);
}

static void nap(struct loop *l, uint64_t timeout_ns)
{
    l->c.ops->rest(l->c.gpu);
    ring_arm_all(l->c.pulse);
    if (!clients_arm(l->c.clients) && !l->w->ops->pending(l->w))
        sleep_armed(l, bells_until(&l->bells, timeout_ns));
    clients_disarm(l->c.clients);
    ring_disarm_all(l->c.pulse);
    l->now_ns = clock_ns();
}

/* ---- life ---- */

static void set_state(struct loop *l, enum llm_state state)
{
    order_release(&l->c.pulse->state, state);
    order_release(&l->c.board->map->state, state);
}

static void work_or_nap(struct loop *l)
{
    if (!work_round(l))
        nap(l, DRAIN_TICK_NS);
}

static bool can_go_on(const struct loop *l)
{
    return l->step_failures < STEP_FAILURES_MAX && !l->wait_failure;
}

/* The door is shut: what is known may end by itself, in its time. */
static void let_requests_end(struct loop *l)
{
    uint64_t end = l->now_ns + (uint64_t)l->c.drain_timeout_ms * 1000000;
    while (engine_has_work(l->c.engine) && can_go_on(l) && !signals_stop_now() && l->now_ns < end)
        work_or_nap(l);
}

static void cancel_the_rest(struct loop *l)
{
    clients_sweep(l->c.clients);
    engine_shutdown(l->c.engine);
    uint64_t end = l->now_ns + DELIVER_NS;
    work_round(l);
    while (clients_hold(l->c.clients) && l->now_ns < end)
        work_or_nap(l);
}

static void drain(struct loop *l)
{
    static const struct llm_reject stopping = {LLM_ESHUTDOWN, "the engine is stopping"};
    l->draining = true;
    if (l->c.hooks.stopping)
        l->c.hooks.stopping(l->c.hooks.context);
    clients_sweep(l->c.clients);
    engine_refuse_new(l->c.engine);
    set_state(l, LLM_STATE_DRAINING); /* who sees it is refused for certain */
    clients_turn_away(l->c.clients, &stopping);
    let_requests_end(l);
    cancel_the_rest(l);
    set_state(l, LLM_STATE_STOPPED);
    for (uint32_t i = 0; i < l->c.clients->high; i++)
        if (l->c.clients->slots[i].state == CLIENT_LIVE)
            clients_leave(l->c.clients, i);
    publish_and_wake(l);
}

void loop_open(struct loop *l)
{
    set_state(l, LLM_STATE_READY);
}

static int why_ended(const struct loop *l, struct fail *f)
{
    if (l->step_failures)
        return fail(f, -EIO, "%u steps in a row failed in the backend %s: the service ends",
                    l->step_failures, l->c.ops->name);
    if (l->wait_failure)
        return fail(f, l->wait_failure, "waiting with %s failed (%s): the service ends",
                    l->w->ops->name, strerror(-l->wait_failure));
    return 0;
}

static uint64_t until_tick(const struct loop *l)
{
    uint64_t since = l->now_ns - l->last_tick_ns;
    return since < l->tick_ns ? l->tick_ns - since : 0;
}

int loop_run(struct loop *l, struct fail *f)
{
    l->now_ns = l->last_tick_ns = l->last_work_ns = clock_ns();
    uint64_t spin_ns =
        l->c.idle_spin_us == LOOP_SPIN_FOREVER ? UINT64_MAX : (uint64_t)l->c.idle_spin_us * 1000;
    while (!signals_stop_asked() && can_go_on(l)) {
        if (work_round(l))
            continue;
        if (l->now_ns - l->last_work_ns >= spin_ns)
            nap(l, until_tick(l));
        else
            __builtin_ia32_pause();
    }
    int rc = signals_stop_asked() ? 0 : why_ended(l, f);
    drain(l);
    return rc;
}

int loop_create(struct loop **out, const struct loop_config *config, struct fail *notice,
                struct fail *f)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l)
        return fail(f, -ENOMEM, "no memory for the io loop");
    l->c = *config;
    l->tick_ns =
        config->hooks.tick_ns && config->hooks.tick_ns < TICK_NS ? config->hooks.tick_ns : TICK_NS;
    uint32_t waits = WAITS_A_CLIENT * config->clients->max + CONTROL_KNOCKS + 2;
    int rc = waiter_open(&l->w, config->waiter, waits, notice, f);
    if (rc < 0)
        loop_destroy(l);
    else
        *out = l;
    return rc;
}

void loop_destroy(struct loop *l)
{
    if (!l)
        return;
    waiter_close(l->w);
    free(l);
}
