/* handle.h - the client handle: what it owns, and how its parts call each other.
 *
 *   connect.c    builds one: handshake, mappings           client.c   takes it apart; limits
 *   instances.c  names the engines that run                error.c    codes and sentences
 *   inflight.c   which finals are owed, by id              seeds.c    random seeds without a call
 *   check.c      what a request must be like               submit.c   requests out
 *   options.c    its option map                            choose.c   labels, and their sums
 *   session.c    sessions by name
 *   events.c     events in, sleep, death                   bell.c     waiting in somebody else's loop
 *   resume.c     a new engine in the place of a dead one   record.c   what a request needs for that
 *
 * States of a handle, edges with the function that takes them
 *
 *   (none) --llm_connect--> LIVE --client_end--> ENDED --llm_close--> (none)
 *                            | ^                  ^                      ^
 *                 client_lost| |resume_drive      |client_end            |
 *                            v |                  |                      |
 *                           AWAY -----------------+    LIVE, AWAY -------+
 *
 *   ENDED has a reason (`ended`: LLM_EOWNERDEAD, LLM_EEVICTED, LLM_EPROTO, LLM_ENUMERICS). What the
 *   ring still holds is handed out first, then an ERROR event for every final still owed, then the
 *   reason. AWAY is only after llm_resume; resume.h has its own states.
 *
 * Invariants
 *   1. Every final that the engine owes has its bit in the in-flight table, and nothing else has
 *      one. Without llm_resume these are the finals that the user waits for.
 *   2. ring.inflight = owed + cancels: cancels in flight are counted against max_inflight, but
 *      their completions are not shown. (With llm_resume: the bits of the table.)
 *   3. Nothing is allocated after llm_connect, unless llm_resume was called.
 */
#ifndef LLMD_CLIENT_HANDLE_H
#define LLMD_CLIENT_HANDLE_H

#include "../shm/control.h"
#include "../shm/ring.h"
#include "attempt.h"
#include "internal.h"
#include "resume.h"

/* ---- inflight.c: a hash table of ids, open addressing, never full ---- */

struct inflight {
    uint64_t id;    /* 0: the slot is free */
    uint64_t owed;  /* bit i: the final of choice i has not come */
    bool cancel;    /* the entry is a CANCEL of our own: its completion is swallowed */
    bool cancelled; /* a CANCEL for it was sent */

    /* with llm_resume; else NULL. The entry of the user's id, or, where the engine knows another
     * id, of that one: an alias */
    struct record *record;
    int choice; /* of an alias: the choice that it continues, or RECORD_WHOLE */
};

struct inflight_table {
    struct inflight *slots;
    uint32_t mask; /* slots - 1; at least twice max_inflight slots */
};

int inflight_create(struct inflight_table *t, uint32_t max_inflight); /* 0 or -ENOMEM */
void inflight_destroy(struct inflight_table *t);
struct inflight *inflight_find(struct inflight_table *t, uint64_t id); /* NULL: not in flight */
/* Takes a slot for an id that is not in flight. */
struct inflight *inflight_add(struct inflight_table *t, uint64_t id, uint32_t finals);
void inflight_remove(struct inflight_table *t, struct inflight *slot); /* other slots may move */

bool inflight_is_alias(const struct inflight *f);

/* ---- seeds.c ---- */

struct seeds {
    uint64_t key[2], counter;
};
int seeds_init(struct seeds *s); /* draws the key from the kernel: 0 or -errno */
uint64_t seeds_next(struct seeds *s);

/* ---- the handle ---- */

enum { CLIENT_KNOCKS = 8 }; /* how often llm_connect tries where no answer comes */

struct mapping {
    void *at; /* NULL: none */
    size_t bytes;
};

struct llm_client {
    struct ring_client ring;
    struct inflight_table inflight;
    uint64_t next_id; /* of the ids that the library chooses */
    uint32_t owed;    /* finals that the user waits for */
    uint32_t cancels; /* CANCEL entries in flight */
    uint32_t spin_us;
    int ended;           /* 0, or the reason that every call returns from now on */
    uint32_t ended_slot; /* after the end: slots before this one owe nothing */
    char ended_text[320];
    uint64_t peer_looked_ns; /* when poll last asked whether the engine lives */
    struct seeds seeds;
    struct wish wish;      /* what llm_connect was asked for */
    struct resume *resume; /* NULL: llm_resume was not called */
    int socket;
    int bell;       /* our end: read from */
    int descriptor; /* what llm_fd gave: an epoll instance; -1: not asked for yet */
    bool armed;     /* cq_wait is BELL */
    struct mapping up, down, pulse, vocabulary;
    struct llm_limits limits;
    uint32_t n_top; /* candidates of the last event's token */
    struct llm_candidate top[LLM_TOP_MAX];
    int code;
    char text[512];
};

void client_unmap(struct mapping *m); /* nothing, where there is none */

/* CLOCK_MONOTONIC; answered by the vDSO, not by a system call. */
uint64_t client_now_ns(void);

/* Wakes the engine where it waits on a cursor of ours. */
void client_wake(order_u32 *word);

/* Publishes the head, and wakes the engine if it waits for that. */
void client_release_head(struct llm_client *c);

/* ---- check.c ---- */

/* 0, or a failure with its sentence recorded. */
int request_check(struct llm_client *c, const struct llm_request *r);
uint32_t request_finals(const struct llm_request *r); /* of one that was checked */

/* A struct of the caller that states its own size: 0 if this library understands all of it (what is
 * behind the `known` bytes is zero), else -EINVAL. */
int client_struct_check(const void *s, uint32_t size, size_t known);

/* ---- submit.c ---- */

uint64_t request_span(const struct llm_request *r); /* bytes in the arena, a multiple of 4 */

/* The next entry with the fields that every operation has, or NULL: no room, or the ring is broken;
 * the failure is recorded. */
struct llm_sqe *submit_next(struct llm_client *c, uint32_t finals);
uint64_t submit_id(struct llm_client *c); /* one that is not in flight */
void submit_publish(struct llm_client *c, uint32_t finals);
/* Sends a CANCEL for what the engine knows by that id, once. 0, -EAGAIN. */
int submit_cancel(struct llm_client *c, uint64_t target);

/* ---- options.c: the option map ---- */

uint64_t request_options_bytes(const struct llm_request *r); /* 0: it needs none */
void request_options_write(const struct llm_request *r, uint8_t *to);

/* ---- bell.c ---- */

/* Takes what lies in the bell. Only between the taking of events and ring_wait_begin. */
void client_bell_empty(const struct llm_client *c);

/* armed -> not. Returns whether it was. */
bool client_disarm(struct llm_client *c);

/* Adds or removes one of the handle's descriptors in what llm_fd gave; nothing if there is none.
 * 0 or -errno. */
int client_watch(const struct llm_client *c, int fd, uint32_t events);
void client_unwatch(const struct llm_client *c, int fd);

/* ---- the end ---- */

/* LIVE -> ENDED with a sentence; the first reason stays. */
void client_end(struct llm_client *c, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* 0 while the handle is live; else the reason, also recorded as the latest failure. Looks at what
 * shared memory says (eviction, a broken ring), without a system call. */
int client_ended(struct llm_client *c);

/* ---- instances.c ---- */

/* Writes the names of the other instances that listen in `directory`, separated by ", ", into out;
 * "" if there are none or they cannot be seen from here. Returns how many were found. */
unsigned instances_list(const char *directory, const char *except, char *out, size_t size);

#endif
