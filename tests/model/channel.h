/* channel.h - the model of an engine and its clients over their rings: submit and sleep, complete
 * and wait, drain and held, full rings, cursors that wrap.
 *
 * One engine thread runs the loop of appliance/loop.c, each client a loop of llm_submit and
 * llm_wait; each function here has the name of the one that it stands for, and does to shared words
 * what handshakes.h lists for it. A request makes `tokens` tokens, one a step of the engine, then
 * its final.
 *
 * Properties
 *   1. No lost wake-up: nobody sleeps for ever while there is something for it to do.
 *   2. Every entry is taken once, in order, as it was written; none is overwritten before it was
 *      read; no token is lost, repeated or out of order; the final comes last, once.
 *   3. There is room for every final, and no honest client is found guilty.
 *
 * Limits: one or two clients, one to four requests of up to three tokens, rings of two and four
 * entries, cursors modulo 8. What hostile clients write is the validators' matter. That a thread
 * which spins gets on at all is the scheduler's.
 */
#ifndef LLMD_TESTS_MODEL_CHANNEL_H
#define LLMD_TESTS_MODEL_CHANNEL_H

#include "explore.h"
#include "handshakes.h"

enum {
    CLIENTS_MAX = 2,
    REQUESTS_MAX = 4,
    SQ_MAX = 2,
    CQ_MAX = 8,
    CURSORS = 8, /* stands for 2^32 */
    FINAL = 7    /* event number of a final; tokens are 1, 2, ... */
};

enum { ENGINE_THREAD, CLIENT_THREAD /* + client */ };

/* How the engine sleeps. */
enum engine_wait {
    WAIT_LEFTOVER, /* loop.c over io_uring: futex waits that did not fire stay armed */
    WAIT_FRESH,    /* no code: every futex wait is armed anew for each sleep */
    WAIT_SOCKETS,  /* no code: no futex, each client rings a bell of the engine's */
    WAIT_LOOKS     /* loop.c over epoll: it looks at the words every now and then */
};

/* How clients sleep. */
enum client_wait {
    WAIT_FUTEX,  /* sleep_on_futex */
    WAIT_BELL,   /* sleep_on_bell, llm_arm */
    WAIT_EITHER, /* the one or the other, as it comes */
    WAIT_SPIN
};

/* Faults that are not a change of the table. */
enum {
    FAULT_SOCKET_LATE = 1 << 0, /* engine: sockets are emptied between the last look and the wait */
    FAULT_BELL_LATE = 1 << 1,   /* client: the same with its bell */
    FAULT_BELL_FUTEX = 1 << 2,  /* engine: wakes the futex of a client that waits for its bell */
    FAULT_LOOK_FIRST = 1 << 3,  /* cq_wait is read before the tail is published */
    FAULT_WAKE_ONCE = 1 << 4,   /* every second publish goes without a wake */
    FAULT_NO_DRAIN = 1 << 5,    /* client: no look at cq_held after cq_head, no wake */
    FAULT_WAKE_WORD = 1 << 6,   /* client: progress of cq_head wakes sq_tail */
    FAULT_WAIT_WORD = 1 << 7,   /* engine: holds tokens and waits on sq_tail alone */
    FAULT_NO_RESERVE = 1 << 8,  /* tokens fill the whole ring */
    FAULT_FEW_RESERVED = 1 << 9, /* room is kept for the finals owed, not for max_inflight */
    FAULT_NO_RELEASE = 1 << 10,  /* client: the head is not published when the ring is empty */
    FAULT_HALF_ARMED = 1 << 11   /* engine: sleeps though the last wait was not handed over */
};

struct channel {
    unsigned clients, requests[CLIENTS_MAX], tokens;
    bool silent;    /* requests bring no completions at all: submissions alone */
    bool submitted; /* they were submitted and taken before: completions alone */
    unsigned batch; /* entries that are committed before one ring_submit */
    unsigned sq_entries, cq_entries, max_inflight;
    unsigned release_every; /* llm_poll publishes the head after so many completions */
    uint8_t start;          /* of all cursors */
    enum engine_wait engine_wait;
    enum client_wait client_wait;
    unsigned faults;
    struct handshake_op op[HANDSHAKES][HANDSHAKE_OPS]; /* handshake_table, or a changed one */
    /* locations, set by channel_model; NOWHERE: the word is constant in this configuration */
    unsigned word[WORDS][CLIENTS_MAX];
    unsigned sq_entry[CLIENTS_MAX][SQ_MAX], sq_reads[CLIENTS_MAX][SQ_MAX];
    unsigned cq_entry[CLIENTS_MAX][CQ_MAX], cq_reads[CLIENTS_MAX][CQ_MAX];
};

enum { NOWHERE = 255 };

/* The kernel's side of a client: each is waited on by one side and woken by the other. */
enum object { OBJECT_SUBMIT, OBJECT_DRAIN, OBJECT_COMPLETE, OBJECTS };

/* struct state's own bytes. */
struct channel_own {
    struct engine_end {
        uint8_t sq_tail, sq_head; /* as in struct ring_engine */
        uint8_t cq_tail, cq_published, cq_head, inflight;
        uint8_t new_tail, new_head; /* as swept, not judged yet */
        uint8_t taken;              /* requests */
        uint8_t made[REQUESTS_MAX],
            sent[REQUESTS_MAX]; /* tokens; sent: tokens + 1 with the final */
        uint8_t held, fresh, wants_wake, publishes;
    } engine[CLIENTS_MAX];
    uint8_t client, request, value, worked, found; /* the engine's other registers */
    struct client_end {
        uint8_t sq_tail, freed; /* as in struct ring_client */
        uint8_t cq_head, cq_released, inflight;
        uint8_t committed; /* since the last ring_submit */
        uint8_t sent, finals, got[REQUESTS_MAX];
        uint8_t value, kind, sleeps;
    } end[CLIENTS_MAX];
    struct kernel_end {
        uint8_t armed[2], fired[2]; /* the engine's waits, by OBJECT_SUBMIT and OBJECT_DRAIN */
        uint8_t socket;             /* bell to the engine */
        uint8_t asleep, bell;       /* the client in FUTEX_WAIT; its bell */
    } kernel[CLIENTS_MAX];
};

/* Completes `c` (sizes, waits and faults are set; see channel_defaults) and makes the model of it,
 * which refers to `c`. */
void channel_defaults(struct channel *c);
void channel_model(struct channel *c, enum memory memory, struct model *m);
extern const char channel_trapped[]; /* the violation that OP_TRAP is */

/* ---- for channel_client.c and channel_engine.c ---- */

enum progress channel_engine(struct run *x);
enum progress channel_client(struct run *x);

static inline const struct channel *channel_of(const struct run *x)
{
    return (const struct channel *)x->model;
}
static inline struct channel_own *channel_own(const struct run *x)
{
    return (struct channel_own *)x->s->own;
}
static inline bool channel_faulty(const struct run *x, unsigned fault)
{
    return channel_of(x)->faults & fault;
}
/* From cursor b on to cursor a. */
static inline uint8_t distance(unsigned a, unsigned b)
{
    return (uint8_t)((a + 2 * CURSORS - b) % CURSORS);
}

/* Operation `at` of the function, on the words of that client. Loads go to *value, stores come from
 * it; an operation that was taken out, and one on a constant word, leave it as it is. False: the
 * fence must wait. */
bool channel_order(struct run *x, enum handshake h, unsigned at, unsigned client, uint8_t *value);
/* True if other threads can notice it. */
bool channel_noticed(const struct run *x, enum handshake h, unsigned at, unsigned client);
bool channel_data_noticed(const struct run *x, bool write);

#define ORDER(h, at, client, value)                                                                \
    STEP_IF(channel_noticed(x, h, at, client), channel_order(x, h, at, client, value))

/* The kernel. False: the store buffer must be empty first. `function` makes the call. */
bool kernel_wait_engine(struct run *x, unsigned client, enum object o, uint8_t expected);
bool kernel_wake_engine(struct run *x, unsigned client, enum object o, const char *function);
bool kernel_wait_client(struct run *x, unsigned client, uint8_t expected);
bool kernel_wake_client(struct run *x, unsigned client, bool bell);
bool kernel_empty_socket(struct run *x, unsigned client);
bool kernel_empty_bell(struct run *x, unsigned client);

#endif
