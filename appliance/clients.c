/* clients.c - see clients.h. */
#include "clients.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* Entries of one client in one sweep, and bytes behind them: a flood of requests, small or large,
 * does not make the others wait. */
enum { SWEEP_MAX = 64, SWEEP_BYTES = 256 << 10 };

/* Of segments, at once when a client comes, and when it goes: what a client has that asks for
 * nothing special. */
enum { ADMIT_BYTES = 512 << 10, FREE_BYTES = 2 << 20 };

enum { TELL_MOST = 64 };

static const char *const up_name = "llmd-up", *const down_name = "llmd-down";

int clients_create(struct clients *cs, const struct clients_config *c, struct fail *f)
{
    *cs = (struct clients){.max = c->max_clients,
                           .max_model_len = c->welcome.max_len,
                           .welcome = c->welcome,
                           .pulse_fd = c->pulse_fd,
                           .vocab_fd = c->vocab_fd,
                           .quota = c->quota,
                           .board = c->board,
                           .stats = c->stats};
    cs->slots = calloc(cs->max, sizeof *cs->slots);
    cs->leaving = calloc(cs->max, sizeof *cs->leaving);
    cs->wake = calloc(cs->max, sizeof *cs->wake);
    if (cs->slots && cs->leaving && cs->wake && !reaper_start(&cs->reaper, cs->max))
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
    reaper_stop(&cs->reaper);
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

static void fetch(void *context, uint32_t client, uint32_t n)
{
    const struct clients *cs = context;
    ring_fetch(&cs->slots[client].ring, n);
}

static uint32_t top(void *context, uint32_t client)
{
    const struct clients *cs = context;
    assert(cs->slots[client].state == CLIENT_LIVE);
    return cs->slots[client].ring.top;
}

static void put_top(void *context, uint32_t client, const struct llm_candidate *candidates,
                    uint32_t n)
{
    struct clients *cs = context;
    assert(cs->slots[client].state == CLIENT_LIVE);
    ring_put_top(&cs->slots[client].ring, candidates, n);
}

static uint32_t domain(void *context, uint32_t client)
{
    const struct clients *cs = context;
    assert(cs->slots[client].state == CLIENT_LIVE);
    return cs->slots[client].uid;
}

struct engine_sink clients_sink(struct clients *cs)
{
    return (struct engine_sink){.context = cs,
                                .token_room = token_room,
                                .put = put,
                                .fetch = fetch,
                                .top = top,
                                .put_top = put_top,
                                .domain = domain};
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

/* DRAINING -> FREE where the memory is gone. */
static void collect(struct clients *cs)
{
    for (uint32_t i = 0; i < cs->high; i++) {
        struct client *c = &cs->slots[i];
        if (c->state != CLIENT_DRAINING || !c->reaping || !reaper_done(&cs->reaper, i))
            continue;
        c->reaping = false;
        c->state = CLIENT_FREE;
    }
}

/* Gives the memory of one that is gone back now, where its slot or its bytes are wanted: on a busy
 * machine the reaper may not come to it for long. `uid` NULL: anybody's. False: there is none. */
static bool reap_one(struct clients *cs, const uint32_t *uid)
{
    for (uint32_t i = 0; i < cs->high; i++) {
        struct client *c = &cs->slots[i];
        if (c->state == CLIENT_DRAINING && c->reaping && (!uid || c->uid == *uid) &&
            reaper_help(&cs->reaper, i)) {
            c->reaping = false;
            c->state = CLIENT_FREE;
            return true;
        }
    }
    return false;
}

static int find_free(struct clients *cs)
{
    for (uint32_t i = 0; i < cs->high; i++)
        if (cs->slots[i].state == CLIENT_FREE)
            return (int)i;
    return cs->high < cs->max ? (int)cs->high++ : -1;
}

static int free_slot(struct clients *cs)
{
    int slot = find_free(cs);
    return slot < 0 && reap_one(cs, NULL) ? find_free(cs) : slot;
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

static int no_memory(struct llm_reject *r, const struct fail *f)
{
    return refuse(r, -ENOMEM, "the engine has no memory for this client: %.160s", f->text);
}

static uint64_t down_bytes(const struct control_grant *g)
{
    return llm_down_bytes(g->cq_entries) + llm_top_bytes(g->cq_entries, g->top);
}

static int begin_segments(struct client *c, struct llm_reject *r)
{
    struct fail f = {0};
    const struct control_grant *g = &c->grant;
    int rc = segment_begin(&c->up, SEGMENT_FROM_CLIENT, up_name,
                           llm_up_bytes(g->sq_entries, g->arena_bytes), &f);
    if (!rc)
        rc = segment_begin(&c->down, SEGMENT_TO_CLIENT, down_name, down_bytes(g), &f);
    return rc ? no_memory(r, &f) : 0;
}

/* 1: both are whole, 0: there is more to come, or a code. */
static int grow_segments(struct client *c, size_t budget, struct llm_reject *r)
{
    struct fail f = {0};
    int rc = segment_grow(&c->up, up_name, &budget, &f);
    if (rc == 1)
        rc = segment_grow(&c->down, down_name, &budget, &f);
    return rc < 0 ? no_memory(r, &f) : rc;
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

static int send_welcome(struct clients *cs, uint32_t slot, int bell)
{
    const struct client *c = &cs->slots[slot];
    struct llm_message m = {.kind = LLM_MSG_WELCOME, .welcome = cs->welcome};
    m.welcome.minor = c->minor;
    m.welcome.client = slot;
    m.welcome.generation = c->generation;
    m.welcome.sq_entries = c->ring.sq_entries;
    m.welcome.cq_entries = c->ring.cq_entries;
    m.welcome.arena_bytes = c->ring.arena_bytes;
    m.welcome.max_inflight = c->ring.max_inflight;
    m.welcome.top = c->ring.top;
    uint8_t packet[LLM_CONTROL_MAX];
    int n = control_encode(&m, packet, sizeof packet);
    if (n < 0)
        return n;
    int fds[LLM_CONTROL_FDS] = {c->up.fd, c->down.fd, cs->pulse_fd, cs->vocab_fd, bell};
    return control_send(c->socket, packet, (size_t)n, fds, LLM_CONTROL_FDS);
}

/* The segments are whole: ring, bell, WELCOME. */
static int greet(struct clients *cs, uint32_t slot, struct llm_reject *refusal)
{
    struct client *c = &cs->slots[slot];
    const struct control_grant *g = &c->grant;
    int bell = -1, rc = make_bell(c, &bell, refusal);
    if (rc < 0)
        return rc;
    ring_engine_init(&c->ring, c->up.map, c->down.map, g->sq_entries, g->cq_entries, g->arena_bytes,
                     g->max_inflight, slot, c->generation, cs->welcome.epoch);
    ring_engine_top(&c->ring, g->top);
    rc = send_welcome(cs, slot, bell);
    close(bell);
    return rc < 0 ? refuse(refusal, rc, "the WELCOME could not be sent: %s", strerror(-rc)) : 0;
}

/* ARRIVING -> LIVE */
static void settle(struct clients *cs, struct client *c)
{
    segment_close_fd(&c->up);
    segment_close_fd(&c->down);
    c->process = peer_process(c->socket);
    c->state = CLIENT_LIVE;
    cs->n_arriving--;
    cs->n_live++;
    STATS_SET(cs->stats, clients, cs->n_live);
    STATS_ADD(cs->stats, clients_total, 1);
}

/* ARRIVING -> FREE. The socket is closed unless it was taken out. */
static void give_up(struct clients *cs, struct client *c)
{
    assert(c->state == CLIENT_ARRIVING);
    release(c);
    c->generation++;
    c->state = CLIENT_FREE;
    cs->n_arriving--;
}

/* 1: LIVE now, 0: still ARRIVING, or a code. */
static int go_on(struct clients *cs, uint32_t slot, size_t budget, struct llm_reject *refusal)
{
    struct client *c = &cs->slots[slot];
    int rc = grow_segments(c, budget, refusal);
    if (rc == 1 && (rc = greet(cs, slot, refusal)) == 0) {
        settle(cs, c);
        rc = 1;
    }
    return rc;
}

static uint32_t peer_user(int socket)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) ? UINT32_MAX : peer.uid;
}

/* The name goes to operators' terminals: printable ASCII only. */
static void keep_name(struct client *c, const char *name)
{
    size_t i = 0;
    for (; i < sizeof c->name - 1 && name[i]; i++)
        c->name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    c->name[i] = 0;
}

/* Whether the user may have one more client of so many bytes. */
static int check_quota(const struct clients *cs, uint32_t uid, uint64_t bytes, struct llm_reject *r)
{
    uint32_t n = 0;
    uint64_t used = 0;
    for (uint32_t i = 0; i < cs->high; i++) {
        const struct client *c = &cs->slots[i];
        if (c->state == CLIENT_FREE || c->uid != uid)
            continue;
        n += c->state == CLIENT_LIVE || c->state == CLIENT_ARRIVING;
        used += c->bytes;
    }
    if (cs->quota.clients && n >= cs->quota.clients)
        return refuse(r, LLM_EQUOTA,
                      "user %u has %u clients, the quota is %u: close one, or raise "
                      "--quota-clients",
                      uid, n, cs->quota.clients);
    if (cs->quota.bytes && used + bytes > cs->quota.bytes)
        return refuse(r, LLM_EQUOTA,
                      "this client needs %llu bytes of shared memory; user %u uses %llu of a quota "
                      "of %llu: ask for smaller rings, or raise --quota-memory",
                      (unsigned long long)bytes, uid, (unsigned long long)used,
                      (unsigned long long)cs->quota.bytes);
    return 0;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* FREE -> ARRIVING, with its segments begun. */
static void begin(struct clients *cs, struct client *c, int socket, const struct llm_hello *hello,
                  const struct control_grant *g)
{
    *c = (struct client){.state = CLIENT_ARRIVING,
                         .generation = c->generation,
                         .socket = socket,
                         .process = -1,
                         .bell = -1,
                         .up = SEGMENT_NONE,
                         .down = SEGMENT_NONE,
                         .bytes = llm_up_bytes(g->sq_entries, g->arena_bytes) + down_bytes(g),
                         .grant = *g,
                         .uid = peer_user(socket),
                         .minor = least(hello->minor, LLM_ABI_MINOR)};
    keep_name(c, hello->name);
    cs->n_arriving++;
}

int clients_admit(struct clients *cs, int socket, const struct llm_hello *hello,
                  struct llm_reject *refusal)
{
    struct control_grant g;
    if (!control_grant(hello, &g, refusal))
        return refusal->code;
    uint64_t bytes = llm_up_bytes(g.sq_entries, g.arena_bytes) + down_bytes(&g);
    collect(cs);
    uint32_t uid = peer_user(socket);
    int rc = check_quota(cs, uid, bytes, refusal);
    while (rc < 0 && reap_one(cs, &uid))
        rc = check_quota(cs, uid, bytes, refusal);
    if (rc < 0)
        return rc;
    int slot = free_slot(cs);
    if (slot < 0)
        return refuse(refusal, LLM_EBUSY,
                      "the engine serves %u clients, its limit: raise --max-clients", cs->max);
    struct client *c = &cs->slots[slot];
    begin(cs, c, socket, hello, &g);
    rc = begin_segments(c, refusal);
    if (!rc)
        rc = go_on(cs, (uint32_t)slot, ADMIT_BYTES, refusal);
    if (rc >= 0)
        return slot;
    c->socket = -1;
    give_up(cs, c);
    return rc;
}

static void turn_away(struct clients *cs, uint32_t slot, const struct llm_reject *refusal)
{
    control_refuse(cs->slots[slot].socket, refusal);
    give_up(cs, &cs->slots[slot]);
}

int clients_prepare(struct clients *cs)
{
    for (uint32_t i = 0; cs->n_arriving && i < cs->high; i++) {
        struct llm_reject refusal = {0};
        if (cs->slots[i].state != CLIENT_ARRIVING)
            continue;
        int rc = go_on(cs, i, CLIENTS_SLICE, &refusal);
        if (rc < 0)
            turn_away(cs, i, &refusal);
        return rc == 1 ? (int)i : -EAGAIN;
    }
    return -EAGAIN;
}

void clients_turn_away(struct clients *cs, const struct llm_reject *refusal)
{
    for (uint32_t i = 0; cs->n_arriving && i < cs->high; i++)
        if (cs->slots[i].state == CLIENT_ARRIVING)
            turn_away(cs, i, refusal);
}

/* ---- the way in ---- */

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

/* What stands behind an entry in the arena and was copied. */
static uint64_t bytes_of(const struct clients *cs, const struct llm_sqe *copy)
{
    return (wants_tokens(cs, copy) ? copy->tokens_len * sizeof(int32_t) : 0) +
           (wants_options(copy) ? copy->options_len : 0);
}

/* Takes up to SWEEP_MAX entries. Returns how many moved on, or LLM_EPROTO. */
static int take_entries(struct clients *cs, uint32_t slot, const char **why)
{
    struct client *c = &cs->slots[slot];
    int n = ring_sweep(&c->ring, why), moved = 0;
    uint64_t bytes = 0;
    while (moved < n && moved < SWEEP_MAX && bytes < SWEEP_BYTES) {
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
        bytes += bytes_of(cs, &c->pending);
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
    engine_publish(cs->engine);
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
        if (c->state == CLIENT_LIVE && !clients_muted(c) &&
            ring_rescan((struct ring_engine *)&c->ring, c->held))
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

bool clients_muted(const struct client *c)
{
    return c->vain_wakes > CLIENTS_VAIN_WAKES;
}

void clients_woken(struct clients *cs, uint32_t slot)
{
    struct client *c = &cs->slots[slot];
    uint32_t moved = c->ring.sq_tail + c->ring.cq_head;
    bool vain = moved == c->moved && !ring_rescan(&c->ring, true);
    c->moved = moved;
    c->vain_wakes += vain;
    if (!clients_muted(c) || c->told_vain)
        return;
    c->told_vain = true;
    board_error(cs->board, LLM_EPROTO,
                "client %u (%.40s) woke the engine %u times in vain: until the next tick it is "
                "not listened to",
                slot, c->name, c->vain_wakes);
}

void clients_tick(struct clients *cs)
{
    for (uint32_t i = 0; i < cs->high; i++)
        cs->slots[i].vain_wakes = 0;
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
    c->state = CLIENT_LEAVING;
    cs->n_live--;
    cs->leaving[cs->n_leaving++] = slot;
    STATS_SET(cs->stats, clients, cs->n_live);
}

/* Into the rings, for who looks at nothing else, and to who sleeps on them. Not to a crowd without
 * end, at everybody's cost: the library sleeps there for SLICE_NS at most and looks again. */
static void tell_end(struct client *c, int code, const char *why)
{
    ring_evict(&c->ring, code, why);
    syscall(SYS_futex, &c->ring.down->cq_tail, FUTEX_WAKE, TELL_MOST, NULL, NULL, 0);
}

void clients_orphan(struct clients *cs, uint32_t slot)
{
    tell_end(&cs->slots[slot], LLM_EEVICTED,
             "the process that connected has ended; one that it forked connects for itself");
    clients_leave(cs, slot);
}

void clients_evict(struct clients *cs, uint32_t slot, int code, const char *why)
{
    struct client *c = &cs->slots[slot];
    tell_end(c, code, why);
    STATS_ADD(cs->stats, evictions, 1);
    board_error(cs->board, code, "client %u (%.40s) was evicted: %.120s", slot, c->name, why);
    clients_leave(cs, slot);
}

void clients_free(struct clients *cs, uint32_t slot)
{
    struct client *c = &cs->slots[slot];
    assert(c->state == CLIENT_DRAINING && !c->armed && !c->reaping);
    c->reaping = c->bytes > FREE_BYTES;
    if (c->reaping)
        reaper_take(&cs->reaper, slot, &c->up, &c->down);
    release(c);
    c->generation++;
    if (!c->reaping)
        c->state = CLIENT_FREE;
}
