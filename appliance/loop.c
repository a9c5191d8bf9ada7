/* loop.c - see loop.h. */
#include "loop.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "signals.h"

/* liburing 2.3 knows neither the operations nor their flags. */
enum { OP_FUTEX_WAIT = 51, OP_FUTEX_WAKE = 52, FUTEX_SIZE_U32 = 2 };

enum event {
    EVENT_NONE, /* wakes and cancels: nobody waits for them */
    EVENT_ACCEPT,
    EVENT_STOP,
    EVENT_KNOCK,
    EVENT_CLIENT /* EVENT_CLIENT + an enum client_wait bit */
};

#define TICK_NS       1000000000ull
#define GRACE_NS      20000000ull /* a wake that is on its way arrives within it */
#define DRAIN_NS      2000000000ull
#define DRAIN_TICK_NS 10000000ull

enum { STEP_FAILURES_MAX = 3 };

struct loop {
    struct loop_config c;
    struct io_uring ring;
    bool accept_armed, stop_armed;
    bool
        accept_later; /* no descriptor or slot for the one who waits: look again at the next tick */
    bool draining;
    unsigned step_failures;
    int ring_failure; /* io_uring_enter failed in a way that will not pass */
    uint64_t now_ns, last_work_ns, last_tick_ns;
};

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- entries ---- */

static uint64_t tag(unsigned event, uint32_t slot, uint32_t generation)
{
    return (uint64_t)event << 56 | (uint64_t)slot << 32 | generation;
}

/* The ring has an entry for every wait that may be asked for in a round, so it runs full only when
 * the kernel took fewer than it was given; then what is there is handed over first. */
static struct io_uring_sqe *next_entry(struct loop *l)
{
    struct io_uring_sqe *e = io_uring_get_sqe(&l->ring);
    for (int tries = 0; !e && tries < 1000; tries++) {
        io_uring_submit(&l->ring);
        e = io_uring_get_sqe(&l->ring);
    }
    assert(e);
    return e;
}

static void poll_on(struct loop *l, int fd, unsigned mask, uint64_t user_data)
{
    struct io_uring_sqe *e = next_entry(l);
    io_uring_prep_poll_add(e, fd, mask);
    e->user_data = user_data;
}

static void futex_entry(struct io_uring_sqe *e, int op, const order_u32 *word, uint64_t value,
                        uint64_t user_data)
{
    memset(e, 0, sizeof *e);
    e->opcode = (uint8_t)op;
    e->fd = FUTEX_SIZE_U32; /* shared: the other side has the word at another address */
    e->addr = (uintptr_t)word;
    e->addr2 = value;
    e->addr3 = UINT32_MAX;
    e->user_data = user_data;
}

static void wake_word(struct loop *l, const order_u32 *word)
{
    struct io_uring_sqe *e = next_entry(l);
    futex_entry(e, OP_FUTEX_WAKE, word, 1, tag(EVENT_NONE, 0, 0));
    e->flags = IOSQE_CQE_SKIP_SUCCESS;
}

/* The flags are the request's own: what the client does to its end cannot make this wait. */
static void ring_bell(struct loop *l, int bell)
{
    struct io_uring_sqe *e = next_entry(l);
    io_uring_prep_send(e, bell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    e->flags = IOSQE_CQE_SKIP_SUCCESS;
    e->user_data = tag(EVENT_NONE, 0, 0);
}

static void cancel(struct loop *l, uint64_t user_data)
{
    struct io_uring_sqe *e = next_entry(l);
    io_uring_prep_cancel64(e, user_data, 0);
    e->flags = IOSQE_CQE_SKIP_SUCCESS;
    e->user_data = tag(EVENT_NONE, 0, 0);
}

static void hand_over(struct loop *l)
{
    if (io_uring_sq_ready(&l->ring))
        io_uring_submit(&l->ring);
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
    if (c->armed & wait)
        return;
    futex_entry(next_entry(l), OP_FUTEX_WAIT, word, last, client_tag(l, slot, wait));
    c->armed |= wait;
}

static void arm_client_futexes(struct loop *l, uint32_t slot)
{
    const struct client *c = &l->c.clients->slots[slot];
    arm_futex(l, slot, CLIENT_WAIT_SUBMIT, &c->ring.up->sq_tail, c->ring.sq_tail);
    if (c->held)
        arm_futex(l, slot, CLIENT_WAIT_DRAIN, &c->ring.up->cq_head, c->ring.cq_head);
}

/* LEAVING -> DRAINING: the slot is free once the kernel has let go of everything. */
static void let_go(struct loop *l, uint32_t slot)
{
    struct client *c = &l->c.clients->slots[slot];
    assert(c->state == CLIENT_LEAVING);
    c->state = CLIENT_DRAINING;
    for (unsigned wait = CLIENT_WAIT_SOCKET; wait <= CLIENT_WAIT_DRAIN; wait <<= 1)
        if (c->armed & wait)
            cancel(l, client_tag(l, slot, wait));
    if (!c->armed)
        clients_free(l->c.clients, slot);
}

static void on_client(struct loop *l, uint32_t slot, uint32_t generation, unsigned wait, int result)
{
    struct clients *cs = l->c.clients;
    struct client *c = &cs->slots[slot];
    if (c->generation != generation || !(c->armed & wait))
        return;
    c->armed &= ~wait;
    if (c->state != CLIENT_LIVE) { /* both the socket and the process tell of a death */
        if (c->state == CLIENT_DRAINING && !c->armed)
            clients_free(cs, slot);
        return;
    }
    bool spoke =
        wait == CLIENT_WAIT_SOCKET && result > 0 && !(result & (POLLHUP | POLLERR | POLLRDHUP));
    if (spoke)
        clients_evict(cs, slot, LLM_EPROTO, "it sent something after WELCOME");
    else if (wait == CLIENT_WAIT_SOCKET || wait == CLIENT_WAIT_PROCESS)
        clients_leave(cs, slot);
}

/* ---- the door ---- */

static void arm_door(struct loop *l)
{
    if (!l->accept_armed && !l->accept_later) {
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

static void on_accept(struct loop *l)
{
    l->accept_armed = false;
    int i;
    while ((i = control_accept(l->c.server, l->now_ns)) >= 0)
        arm_knock(l, (uint32_t)i);
    l->accept_later = i != -EAGAIN;
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
    arm_client_polls(l, (uint32_t)slot);
}

static void on_knock(struct loop *l, uint32_t i, uint32_t generation)
{
    struct knock *k = &l->c.server->knock[i];
    if (i >= CONTROL_KNOCKS || k->generation != generation || !k->armed)
        return;
    k->armed = false;
    l->accept_later = false;
    if (k->fd < 0)
        return;
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
        control_refuse(k->fd, &refusal);
    control_shut(l->c.server, i);
}

/* ---- a round ---- */

static void on_event(struct loop *l, uint64_t user_data, int result)
{
    unsigned event = (unsigned)(user_data >> 56);
    uint32_t slot = (uint32_t)(user_data >> 32) & 0xffffff, generation = (uint32_t)user_data;
    switch (event) {
    case EVENT_NONE:
        break;
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

/* Takes the completions that lie in memory. */
static void take_events(struct loop *l)
{
    struct io_uring_cqe *e;
    while (io_uring_cq_ready(&l->ring) && !io_uring_peek_cqe(&l->ring, &e)) {
        uint64_t user_data = e->user_data;
        int result = e->res;
        io_uring_cqe_seen(&l->ring, e);
        on_event(l, user_data, result);
    }
}

static void wake_client(struct loop *l, const struct client *c)
{
    if (c->wait == LLM_WAIT_BELL)
        ring_bell(l, c->bell);
    else
        wake_word(l, &c->ring.down->cq_tail);
}

static void publish_and_wake(struct loop *l)
{
    struct clients *cs = l->c.clients;
    clients_publish(cs);
    for (uint32_t i = 0; i < cs->n_wake; i++)
        wake_client(l, &cs->slots[cs->wake[i]]);
    while (cs->n_leaving)
        let_go(l, cs->leaving[--cs->n_leaving]);
    arm_door(l);
    hand_over(l);
}

static void tick(struct loop *l)
{
    l->last_tick_ns = l->now_ns;
    l->accept_later = false;
    int late;
    while ((late = control_overdue(l->c.server, l->now_ns)) >= 0)
        control_shut(l->c.server, (uint32_t)late);
}

static void beat(struct loop *l)
{
    l->now_ns = clock_ns();
    order_set64(&l->c.pulse->heartbeat_ns, l->now_ns);
    order_set64(&l->c.board->map->heartbeat_ns, l->now_ns);
    if (l->now_ns - l->last_tick_ns >= TICK_NS)
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
    take_events(l);
    bool worked = clients_sweep(l->c.clients, l->now_ns);
    if (engine_has_work(l->c.engine)) {
        step(l);
        worked = true;
    }
    publish_and_wake(l);
    beat(l);
    if (worked)
        l->last_work_ns = l->now_ns;
    return worked;
}

/* ---- sleeping ---- */

/* Hands everything over and waits for a completion. -ETIME: none came in time. 0: look again. */
static int wait_for_event(struct loop *l, uint64_t timeout_ns)
{
    struct __kernel_timespec t = {.tv_sec = (long long)(timeout_ns / 1000000000u),
                                  .tv_nsec = (long long)(timeout_ns % 1000000000u)};
    struct io_uring_cqe *e;
    int rc = io_uring_submit_and_wait_timeout(&l->ring, &e, 1, &t, NULL);
    if (rc == -ETIME && io_uring_sq_ready(&l->ring))
        return 0; /* not all waits were armed: that was no sleep */
    if (rc < 0 && rc != -ETIME && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
        l->ring_failure = rc;
    return rc == -ETIME ? rc : 0;
}

static void sleep_armed(struct loop *l, uint64_t timeout_ns)
{
    const struct clients *cs = l->c.clients;
    for (uint32_t i = 0; i < cs->high; i++)
        if (cs->slots[i].state == CLIENT_LIVE)
            arm_client_futexes(l, i);
    STATS_ADD(l->c.stats, sleeps, 1);
    if (wait_for_event(l, timeout_ns) == -ETIME && clients_rescan(cs) &&
        wait_for_event(l, GRACE_NS) == -ETIME)
        STATS_ADD(l->c.stats, backstop_rescues, 1);
}

static void nap(struct loop *l, uint64_t timeout_ns)
{
    l->c.ops->rest(l->c.gpu);
    ring_arm_all(l->c.pulse);
    if (!clients_arm(l->c.clients) && !io_uring_cq_ready(&l->ring))
        sleep_armed(l, timeout_ns);
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

static void drain(struct loop *l)
{
    l->draining = true;
    set_state(l, LLM_STATE_DRAINING);
    clients_sweep(l->c.clients, l->now_ns);
    engine_shutdown(l->c.engine);
    uint64_t end = l->now_ns + DRAIN_NS;
    work_round(l);
    while (clients_hold(l->c.clients) && l->now_ns < end)
        if (!work_round(l))
            nap(l, DRAIN_TICK_NS);
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
    if (l->ring_failure)
        return fail(f, l->ring_failure, "io_uring_enter failed (%s): the service ends",
                    strerror(-l->ring_failure));
    return 0;
}

int loop_run(struct loop *l, struct fail *f)
{
    l->now_ns = l->last_tick_ns = l->last_work_ns = clock_ns();
    uint64_t spin_ns = (uint64_t)l->c.idle_spin_us * 1000;
    while (!signals_stop_asked() && l->step_failures < STEP_FAILURES_MAX && !l->ring_failure) {
        if (work_round(l))
            continue;
        if (l->now_ns - l->last_work_ns >= spin_ns)
            nap(l, TICK_NS);
        else
            __builtin_ia32_pause();
    }
    int rc = signals_stop_asked() ? 0 : why_ended(l, f);
    drain(l);
    return rc;
}

static int check_operations(struct loop *l, struct fail *f)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(&l->ring);
    bool known = probe && io_uring_opcode_supported(probe, OP_FUTEX_WAIT) &&
                 io_uring_opcode_supported(probe, OP_FUTEX_WAKE);
    io_uring_free_probe(probe);
    if (!known)
        return fail(f, -ENOSYS,
                    "this kernel's io_uring has no futex operations: llmd needs Linux 6.7 or "
                    "later");
    return 0;
}

static int make_ring(struct loop *l, struct fail *f)
{
    /* a round may ask for: two polls, two futex waits, four cancels or a wake a client; the door */
    unsigned entries = 8 * l->c.clients->max + 2 * CONTROL_KNOCKS + 16;
    struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_SUBMIT_ALL |
                                         IORING_SETUP_CLAMP};
    int rc = io_uring_queue_init_params(entries, &l->ring, &p);
    if (rc < 0)
        return fail(f, rc,
                    "io_uring cannot be used (%s): allow it with the sysctl "
                    "kernel.io_uring_disabled=0, and in a container with a seccomp profile that "
                    "permits io_uring_setup and io_uring_enter",
                    strerror(-rc));
    return check_operations(l, f);
}

int loop_create(struct loop **out, const struct loop_config *config, struct fail *f)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l)
        return fail(f, -ENOMEM, "no memory for the io loop");
    l->c = *config;
    l->ring.ring_fd = -1;
    int rc = make_ring(l, f);
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
    if (l->ring.ring_fd >= 0)
        io_uring_queue_exit(&l->ring);
    free(l);
}
