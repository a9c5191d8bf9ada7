/* clients.c - see clients.h. */
#include "clients.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* Entries of one client in one sweep: a flood of small requests does not make the others wait. */
enum { SWEEP_MAX = 64 };

int clients_create(struct clients *cs, const struct clients_config *c, struct fail *f)
{
    *cs = (struct clients){.max = c->max_clients,
                           .max_model_len = c->welcome.max_len,
                           .welcome = c->welcome,
                           .pulse_fd = c->pulse_fd,
                           .vocab_fd = c->vocab_fd,
                           .board = c->board,
                           .stats = c->stats};
    cs->slots = calloc(cs->max, sizeof *cs->slots);
    cs->leaving = calloc(cs->max, sizeof *cs->leaving);
    cs->wake = calloc(cs->max, sizeof *cs->wake);
    if (cs->slots && cs->leaving && cs->wake)
        return 0;
    clients_destroy(cs);
    return fail(f, -ENOMEM, "no memory for the slots of %u clients", c->max_clients);
}

static void release(struct client *c)
{
    segment_free(&c->up);
    segment_free(&c->down);
    if (c->socket >= 0)
        close(c->socket);
    if (c->process >= 0)
        close(c->process);
    if (c->bell >= 0)
        close(c->bell);
    c->socket = c->process = c->bell = -1;
}

void clients_destroy(struct clients *cs)
{
    for (uint32_t i = 0; cs->slots && i < cs->high; i++)
        if (cs->slots[i].state != CLIENT_FREE)
            release(&cs->slots[i]);
    free(cs->slots);
    free(cs->leaving);
    free(cs->wake);
    cs->slots = NULL;
    cs->leaving = NULL;
    cs->wake = NULL;
}

/* ---- the core's sink ---- */

static uint32_t token_room(void *context, uint32_t client)
{
    struct clients *cs = context;
    assert(cs->slots[client].state == CLIENT_LIVE);
    return ring_token_room(&cs->slots[client].ring);
}

static void put(void *context, uint32_t client, const struct llm_cqe *cqe,
                const struct llm_result *result)
{
    struct clients *cs = context;
    assert(cs->slots[client].state == CLIENT_LIVE);
    ring_put(&cs->slots[client].ring, cqe, result);
}

struct engine_sink clients_sink(struct clients *cs)
{
    return (struct engine_sink){.context = cs, .token_room = token_room, .put = put};
}

void clients_attach(struct clients *cs, struct engine *engine)
{
    cs->engine = engine;
}

/* ---- admission ---- */

__attribute__((format(printf, 3, 4))) static int refuse(struct llm_reject *r, int code,
                                                        const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->text, sizeof r->text, format, args);
    va_end(args);
    r->code = code;
    return code;
}

static int free_slot(struct clients *cs)
{
    for (uint32_t i = 0; i < cs->high; i++)
        if (cs->slots[i].state == CLIENT_FREE)
            return (int)i;
    return cs->high < cs->max ? (int)cs->high++ : -1;
}

/* A descriptor that names the process at the other end, or -1: then the socket alone tells of its
 * death. The fallback may name another process if the pid was reused since connect. */
static int peer_process(int socket)
{
    int fd;
    socklen_t bytes = sizeof fd;
    if (!getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes))
        return fd;
    struct ucred peer;
    bytes = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) || peer.pid <= 0)
        return -1;
    return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

static int make_segments(struct client *c, const struct control_grant *g, struct llm_reject *r)
{
    struct fail f = {0};
    int rc =
        segment_from_client(&c->up, "llmd-up", llm_up_bytes(g->sq_entries, g->arena_bytes), &f);
    if (!rc)
        rc = segment_to_client(&c->down, "llmd-down", llm_down_bytes(g->cq_entries), &f);
    return rc ? refuse(r, -ENOMEM, "the engine has no memory for this client: %.160s", f.text) : 0;
}

/* A bell: our end into the slot, the client's to *theirs. What the client could do to it is cut
 * off: no blocking flag is shared, it cannot send to us, and few bytes fit, so that it is emptied
 * in a few calls. */
static int make_bell(struct client *c, int *theirs, struct llm_reject *r)
{
    int pair[2], least = 0;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) < 0)
        return refuse(r, -errno, "the engine cannot make this client's bell: %s", strerror(errno));
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &least, sizeof least);
    shutdown(pair[0], SHUT_RD);
    c->bell = pair[0];
    *theirs = pair[1];
    return 0;
}

static int send_welcome(struct clients *cs, uint32_t slot, int socket, int bell)
{
    const struct client *c = &cs->slots[slot];
    struct llm_message m = {.kind = LLM_MSG_WELCOME, .welcome = cs->welcome};
    m.welcome.client = slot;
    m.welcome.generation = c->generation;
    m.welcome.sq_entries = c->ring.sq_entries;
    m.welcome.cq_entries = c->ring.cq_entries;
    m.welcome.arena_bytes = c->ring.arena_bytes;
    m.welcome.max_inflight = c->ring.max_inflight;
    uint8_t packet[LLM_CONTROL_MAX];
    int n = control_encode(&m, packet, sizeof packet);
    if (n < 0)
        return n;
    int fds[LLM_CONTROL_FDS] = {c->up.fd, c->down.fd, cs->pulse_fd, cs->vocab_fd, bell};
    return control_send(socket, packet, (size_t)n, fds, LLM_CONTROL_FDS);
}

/* Sets the slot up and greets; on failure everything but the socket is undone. */
static int set_up(struct clients *cs, uint32_t slot, int socket, const struct control_grant *g,
                  struct llm_reject *refusal)
{
    struct client *c = &cs->slots[slot];
    int bell = -1;
    c->up = c->down = SEGMENT_NONE;
    c->process = c->socket = c->bell = -1;
    int rc = make_segments(c, g, refusal);
    if (!rc)
        rc = make_bell(c, &bell, refusal);
    if (!rc) {
        ring_engine_init(&c->ring, c->up.map, c->down.map, g->sq_entries, g->cq_entries,
                         g->arena_bytes, g->max_inflight, slot, c->generation, cs->welcome.epoch);
        rc = send_welcome(cs, slot, socket, bell);
        if (rc < 0)
            refuse(refusal, rc, "the WELCOME could not be sent: %s", strerror(-rc));
    }
    if (bell >= 0)
        close(bell);
    if (rc < 0)
        release(c);
    return rc;
}

/* The name goes to operators' terminals: printable ASCII only. */
static void keep_name(struct client *c, const char *name)
{
    size_t i = 0;
    for (; i < sizeof c->name - 1 && name[i]; i++)
        c->name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    c->name[i] = 0;
}

int clients_admit(struct clients *cs, int socket, const struct llm_hello *hello,
                  struct llm_reject *refusal)
{
    struct control_grant g;
    if (!control_grant(hello, &g, refusal))
        return refusal->code;
    int slot = free_slot(cs);
    if (slot < 0)
        return refuse(refusal, LLM_EBUSY,
                      "the engine serves %u clients, its limit: raise --max-clients", cs->max);
    int rc = set_up(cs, (uint32_t)slot, socket, &g, refusal);
    if (rc < 0)
        return rc;
    struct client *c = &cs->slots[slot];
    segment_close_fd(&c->up);
    segment_close_fd(&c->down);
    c->socket = socket;
    c->process = peer_process(socket);
    c->armed = 0;
    c->held = c->has_pending = false;
    keep_name(c, hello->name);
    c->state = CLIENT_LIVE;
    cs->n_live++;
    STATS_SET(cs->stats, clients, cs->n_live);
    STATS_ADD(cs->stats, clients_total, 1);
    return slot;
}

/* ---- the way in ---- */

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Tokens are copied for what carries a prompt, and only up to what fits: the core refuses a longer
 * one by its stated length. */
static bool wants_tokens(const struct clients *cs, const struct llm_sqe *copy)
{
    return engine_carries_tokens(copy) && copy->tokens_len && copy->tokens_len <= cs->max_model_len;
}

static bool wants_options(const struct llm_sqe *copy)
{
    return copy->options_len && copy->options_len <= LLM_OPTIONS_MAX;
}

/* Hands the pending entry to the core. 1: done; 0: the core has no room now; or LLM_EPROTO. */
static int submit_pending(struct clients *cs, uint32_t slot, const char **why)
{
    struct client *c = &cs->slots[slot];
    if (!engine_can_take_from(cs->engine, slot, &c->pending))
        return 0;
    int rc = 0;
    if (wants_tokens(cs, &c->pending))
        rc = ring_take_tokens(&c->ring, &c->pending, engine_token_buffer(cs->engine), why);
    if (!rc && wants_options(&c->pending))
        rc = ring_take_options(&c->ring, &c->pending, engine_option_buffer(cs->engine), why);
    if (!rc)
        rc = ring_taken(&c->ring, engine_finals(&c->pending), why);
    if (rc < 0)
        return rc;
    c->has_pending = false;
    engine_submit(cs->engine, slot, &c->pending, c->arrival_ns);
    return 1;
}

/* Takes up to SWEEP_MAX entries. Returns how many moved on, or LLM_EPROTO. */
static int take_entries(struct clients *cs, uint32_t slot, const char **why)
{
    struct client *c = &cs->slots[slot];
    int n = ring_sweep(&c->ring, why), moved = 0;
    while (moved < n && moved < SWEEP_MAX) {
        if (!c->has_pending) {
            int rc = ring_take(&c->ring, &c->pending, why);
            if (rc < 0)
                return rc;
            c->has_pending = true;
            c->arrival_ns = clock_ns(); /* not the round's: clients may come in, in between */
        }
        int rc = submit_pending(cs, slot, why);
        if (rc < 0)
            return rc;
        if (!rc)
            break;
        moved++;
    }
    return n < 0 ? n : moved;
}

static bool sweep_one(struct clients *cs, uint32_t slot)
{
    struct client *c = &cs->slots[slot];
    const char *why = "it broke the protocol";
    int moved = take_entries(cs, slot, &why);
    if (moved < 0) {
        clients_evict(cs, slot, moved, why);
        return true;
    }
    if (engine_holds(cs->engine, slot) && ring_token_room(&c->ring)) {
        engine_deliver(cs->engine, slot);
        return true;
    }
    return moved > 0;
}

bool clients_sweep(struct clients *cs)
{
    bool moved = false;
    if (!cs->n_live)
        return false;
    uint32_t first = cs->first++ % cs->high;
    for (uint32_t i = 0; i < cs->high; i++) {
        uint32_t slot = first + i < cs->high ? first + i : first + i - cs->high;
        if (cs->slots[slot].state == CLIENT_LIVE)
            moved |= sweep_one(cs, slot);
    }
    return moved;
}

/* ---- the way out ---- */

void clients_publish(struct clients *cs)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < cs->high; i++)
        if (cs->slots[i].state == CLIENT_LIVE && ring_publish(&cs->slots[i].ring))
            cs->wake[n++] = i;
    cs->n_wake = 0;
    if (!n)
        return;
    ring_after_publish();
    for (uint32_t i = 0; i < n; i++) {
        struct client *c = &cs->slots[cs->wake[i]];
        c->wait = ring_wants_wake(&c->ring);
        if (c->wait != LLM_WAIT_NONE)
            cs->wake[cs->n_wake++] = cs->wake[i];
    }
    if (cs->n_wake)
        STATS_ADD(cs->stats, wakes, cs->n_wake);
}

/* ---- sleeping ---- */

bool clients_rescan(const struct clients *cs)
{
    for (uint32_t i = 0; i < cs->high; i++) {
        const struct client *c = &cs->slots[i];
        if (c->state == CLIENT_LIVE && ring_rescan((struct ring_engine *)&c->ring, c->held))
            return true;
    }
    return false;
}

bool clients_arm(struct clients *cs)
{
    for (uint32_t i = 0; i < cs->high; i++) {
        struct client *c = &cs->slots[i];
        if (c->state != CLIENT_LIVE)
            continue;
        c->held = engine_holds(cs->engine, i);
        ring_arm(&c->ring, c->held);
    }
    ring_arm_fence();
    return clients_rescan(cs);
}

void clients_disarm(struct clients *cs)
{
    for (uint32_t i = 0; i < cs->high; i++)
        if (cs->slots[i].state == CLIENT_LIVE && cs->slots[i].held)
            ring_disarm(&cs->slots[i].ring);
}

bool clients_hold(const struct clients *cs)
{
    for (uint32_t i = 0; i < cs->high; i++)
        if (cs->slots[i].state == CLIENT_LIVE && engine_holds(cs->engine, i))
            return true;
    return false;
}

/* ---- leaving ---- */

void clients_leave(struct clients *cs, uint32_t slot)
{
    struct client *c = &cs->slots[slot];
    assert(c->state == CLIENT_LIVE);
    engine_drop_client(cs->engine, slot);
    shutdown(c->socket, SHUT_RDWR); /* the other side sees its end now, not when the poll is gone */
    c->state = CLIENT_LEAVING;
    cs->n_live--;
    cs->leaving[cs->n_leaving++] = slot;
    STATS_SET(cs->stats, clients, cs->n_live);
}

void clients_evict(struct clients *cs, uint32_t slot, int code, const char *why)
{
    struct client *c = &cs->slots[slot];
    ring_evict(&c->ring, code, why);
    syscall(SYS_futex, &c->ring.down->cq_tail, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    STATS_ADD(cs->stats, evictions, 1);
    board_error(cs->board, code, "client %u (%.40s) was evicted: %.120s", slot, c->name, why);
    clients_leave(cs, slot);
}

void clients_free(struct clients *cs, uint32_t slot)
{
    struct client *c = &cs->slots[slot];
    assert(c->state == CLIENT_DRAINING && !c->armed);
    release(c);
    c->generation++;
    c->state = CLIENT_FREE;
}
