/* clients.h - the clients that are connected: their slots, segments and rings, between the rings
 * (shm/ring.h) and the scheduling core (engine.h).
 *
 *        clients_admit           clients_admit, _prepare         clients_leave, _evict
 *   FREE --------------> ARRIVING ---------------------> LIVE ----------------------> LEAVING
 *    ^                      | no memory, turned away                                     | let_go
 *    +----------------------+------------------------------------------------------ DRAINING
 *                  clients_free, once no wait in the kernel names the slot; generation + 1
 *
 * An ARRIVING client has its socket and no more: its segments come into being piece by piece, so
 * that a large one holds up nobody's step. A small one is LIVE when clients_admit returns.
 *
 * Large segments are freed by a thread of their own (reaper.h); their slot is DRAINING until then,
 * and counts in the quotas: clients_admit looks, and frees them itself where nobody could come else.
 *
 * LEAVING slots stand in `leaving` until the loop cancels their waits; a slot is in that list at
 * most once, because only DRAINING ones become free.
 *
 * Invariants
 *   1. Only LIVE slots are read, written, or known to the core: clients_leave drops the client
 *      there, and no step is in flight between calls.
 *   2. `armed` has a bit for each wait that the kernel still holds for the slot; segments are
 *      unmapped and descriptors closed only when it is 0.
 *   3. An entry that was taken is either submitted or pending; the ring is not read on while one is
 *      pending, so each byte is read once and the order is kept.
 *   4. Nothing is allocated after clients_create but a client's own segments.
 *   5. Wakes are honoured while they bring something: a client that wakes the engine in vain more
 *      than CLIENTS_VAIN_WAKES times between two ticks is muted until the next one. The library
 *      wakes only after it moved a cursor, so it is never muted.
 *   6. A user's quotas hold for all slots of the uid that the kernel names at the other end.
 *
 * No system call but in admit, prepare, leave, evict and free.
 */
#ifndef LLMD_CLIENTS_H
#define LLMD_CLIENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "../shm/control.h"
#include "../shm/ring.h"
#include "board.h"
#include "control_server.h"
#include "engine.h"
#include "reaper.h"
#include "segments.h"
#include "stats.h"

enum {
    CLIENTS_VAIN_WAKES = 16,
    CLIENTS_SLICE = 128 << 10 /* bytes of an arriving client's segments at a time */
};

enum client_state { CLIENT_FREE, CLIENT_ARRIVING, CLIENT_LIVE, CLIENT_LEAVING, CLIENT_DRAINING };

enum client_wait {
    CLIENT_WAIT_SOCKET = 1, /* poll: the other end closed, or spoke */
    CLIENT_WAIT_PROCESS = 2 /* poll on the pidfd */,
    CLIENT_WAIT_SUBMIT = 4, /* futex: up.sq_tail */
    CLIENT_WAIT_DRAIN = 8   /* futex: up.cq_head */
};

struct client {
    enum client_state state;
    uint32_t generation;
    unsigned armed;     /* enum client_wait bits */
    bool held;          /* while arming: tokens wait for ring room */
    enum llm_wait wait; /* while it stands in `wake`: how it sleeps */
    bool has_pending;
    int socket, process; /* process: pidfd, or -1 */
    int bell;            /* our end: written to, never read */
    bool bell_slow;      /* many have listened there: rung in its time */
    bool bell_owed;      /* and it is to be rung */
    struct ring_engine ring;
    struct llm_sqe pending; /* taken, waiting for the core to have room */
    uint64_t arrival_ns;    /* when pending was taken */
    struct segment up, down;
    uint64_t bytes; /* of both */
    struct control_grant grant;
    uint32_t uid, minor; /* of the other side; minor: what both speak */
    uint32_t vain_wakes; /* since the last tick */
    uint32_t moved;      /* sq_tail + cq_head at its last wake: both only grow */
    bool reaping;        /* DRAINING, the generation is the next one's: the reaper has its memory */
    bool told_vain;      /* the board knows that it was muted */
    char name[64];
};

/* What one user may have; 0: no quota. */
struct clients_quota {
    uint32_t clients;
    uint64_t bytes; /* of segments */
};

struct clients {
    uint32_t max, high; /* slots; slots ever used */
    uint32_t n_live, n_arriving;
    uint32_t first; /* where the next sweep starts: nobody is always first */
    struct client *slots;
    uint32_t *leaving, n_leaving; /* slots in state LEAVING */
    uint32_t *wake, n_wake;       /* slots whose clients sleep and have news */
    uint32_t max_model_len;
    struct llm_welcome welcome; /* what is the same for all */
    int pulse_fd, vocab_fd;
    struct clients_quota quota;
    struct reaper reaper;
    struct engine *engine;
    struct board *board;
    struct stats *stats;
};

struct clients_config {
    uint32_t max_clients;
    struct llm_welcome welcome; /* client, generation and sizes are filled in for each */
    int pulse_fd, vocab_fd;     /* stay the caller's */
    struct clients_quota quota;
    struct board *board;
    struct stats *stats;
};

int clients_create(struct clients *cs, const struct clients_config *config, struct fail *f);
/* All slots are FREE, or the waits in the kernel are gone (the ring was closed). */
void clients_destroy(struct clients *cs);

/* Core and clients know each other: the sink goes into engine_create, the engine comes back. */
struct engine_sink clients_sink(struct clients *cs);
void clients_attach(struct clients *cs, struct engine *engine);

/* A new client on that socket. Returns the slot, which owns the socket: LIVE, its WELCOME sent, or
 * ARRIVING; or a negative code with the refusal to send, the socket stays the caller's. */
int clients_admit(struct clients *cs, int socket, const struct llm_hello *hello,
                  struct llm_reject *refusal);

/* The next CLIENTS_SLICE bytes for those who arrive. The slot that is LIVE now, or -EAGAIN: nobody;
 * who cannot be served is told and gone. */
int clients_prepare(struct clients *cs);
/* Whoever arrives is refused. */
void clients_turn_away(struct clients *cs, const struct llm_reject *refusal);

/* Takes what was submitted to the core and offers what is held, for every client. True if anything
 * moved. Clients that broke the protocol are evicted on the way. */
bool clients_sweep(struct clients *cs);

/* Publishes what was put, E2, and lists in `wake` those who sleep. */
void clients_publish(struct clients *cs);

/* About to sleep: cq_held, E1, the last look. True if there is something to do after all. `held` of
 * each client says which cq_head is to be waited on. The caller has set need_wakeup. */
bool clients_arm(struct clients *cs);
bool clients_rescan(const struct clients *cs); /* the last look again, at those not muted */
void clients_disarm(struct clients *cs);

/* A wake of that client's has ended a wait. */
void clients_woken(struct clients *cs, uint32_t slot);
/* True if no wait is to be armed on its words. */
bool clients_muted(const struct client *c);
/* Time has passed: whoever was muted is heard again. */
void clients_tick(struct clients *cs);

/* True if tokens or finals of somebody wait for ring room. */
bool clients_hold(const struct clients *cs);

/* LIVE -> LEAVING, appended to `leaving`. */
void clients_leave(struct clients *cs, uint32_t slot);
/* The same where the process that connected has ended: one that it forked may still look at the
 * rings, and is told. */
void clients_orphan(struct clients *cs, uint32_t slot);
/* The same with a reason that the client, the board and its errors are told. */
void clients_evict(struct clients *cs, uint32_t slot, int code, const char *why);
/* DRAINING -> FREE, or, with large segments, soon. */
void clients_free(struct clients *cs, uint32_t slot);

#endif
