/* call.h - one request for generation, between the thread of its connection and the thread of its
 * instance.
 *
 *   connection's thread                       instance's thread
 *   call_create, its fields
 *   instance_submit(call) ------------------> llm_submit for each prompt
 *   call_wait: suspends the connection        events -> answer.c
 *                       <-------------------- call_open (a stream has begun), call_add: text for it,
 *   call_read, or suspends again              call_end: all is said
 *   call_leave (connection done or gone) ---> cancels what still runs
 *
 * Invariants
 *   1. The delivery fields are touched under `lock` alone; the request's fields are not written after
 *      instance_submit; the answer's belong to the instance's thread.
 *   2. A connection is suspended and resumed under the lock: `suspended` says which of the two came
 *      last, and after call_leave neither happens.
 *   3. What waits for a slow reader is bounded by CALL_UNREAD_MAX; beyond it the call ends.
 *   4. Two references: of the connection, until call_leave and its response are done, and of the
 *      instance's thread, until the last final.
 */
#ifndef LLMD_GATEWAY_CALL_H
#define LLMD_GATEWAY_CALL_H

#include <microhttpd.h>
#include <pthread.h>

#include "model.h"
#include "params.h"

struct instance;
struct choice;
struct key;

enum { CALL_UNREAD_MAX = 1 << 20 /* bytes */, CALL_PROMPTS_MAX = 64, CALL_CHOICES_MAX = 128 };

struct prompt {
    int32_t *tokens; /* (n), malloc'ed */
    uint32_t n;
    char *text; /* for `echo`, malloc'ed, or NULL */
    size_t bytes;
};

/* What the headers of the request promise and ask for; 0: nothing. */
struct promises {
    uint32_t deadline_us, timeout_ms, queue_timeout_ms, max_itl_us, priority;
};

enum call_state { CALL_WAITING, CALL_STREAMING, CALL_ENDED };

struct call {
    /* ---- the request ---- */
    struct params params;
    json_t *body; /* params borrow from it */
    struct model *model;
    struct instance *instance;
    struct prompt *prompts; /* (n_prompts) */
    uint32_t n_prompts, prompt_tokens;
    struct promises promises;
    char id[48];
    int64_t created;
    char *
        forced; /* text that the prompt already begins the answer with (a forced tool call), or NULL */
    size_t max_answer_bytes; /* of one that is not a stream */
    struct key *key;         /* entered: it pays at the end; or NULL */
    int socket;              /* of the connection: watched for its end */

    /* ---- delivery ---- */
    pthread_mutex_t lock;
    unsigned refs;
    struct MHD_Connection *connection;
    enum call_state state;
    bool suspended, gone, overflow;
    struct problem problem; /* CALL_ENDED with status != 0: no answer */
    struct buffer out;      /* the whole answer, or what is to be sent of the stream */

    /* ---- the answer ---- */
    uint64_t serial;        /* among the instance's calls */
    struct choice *choices; /* (n_prompts * params.n) */
    uint32_t owed;          /* choices that are not over */
    size_t answer_bytes;    /* of all choices, while they are not sent */
    /* Units are what is submitted: 0 .. n_prompts - 1 scores the prompts, where their
     * log-probabilities are wanted; the other n_prompts generate behind them. */
    uint32_t next_unit, end_unit; /* those that are not submitted yet */
    uint32_t scores_owed;         /* none of the others begins before they are there */
    uint64_t *part_ids;           /* (2 * n_prompts) of llm_submit, by unit; 0: over */
    bool told;                    /* the connection has its end; what still runs is cancelled */
    bool opened;                  /* call_open was called */
    uint32_t cached_tokens;
    uint64_t numerics_id;
    struct call *next, *before; /* in the instance's list */
    struct call *queued;        /* in its mailbox */
};

/* With one reference. NULL when out of memory. */
struct call *call_create(void);
struct call *call_ref(struct call *c);
void call_unref(struct call *c); /* NULL is allowed */

uint32_t call_choices(const struct call *c);

/* ---- the connection's side ---- */

/* True: the connection is suspended until the state changes. False: there is something to send. */
bool call_wait(struct call *c);
/* The next bytes of a stream: how many, 0 after the connection was suspended, -1 at its end, -2 at an
 * end that is none of the stream's. */
long call_read(struct call *c, char *out, size_t max);
/* The connection is through with it, or lost. True if it still ran. */
bool call_leave(struct call *c);

/* ---- the instance's side ---- */

/* False: nobody reads any more. */
bool call_wanted(struct call *c);
/* Begins a stream. */
void call_open(struct call *c);
/* Adds to the stream, from `more`, which is emptied. False: it is over, nobody reads (fast enough). */
bool call_add(struct call *c, struct buffer *more);
/* The end: `more` is the answer, or the rest of the stream; with a problem and no stream yet, that is
 * the answer. */
void call_end(struct call *c, struct buffer *more, const struct problem *problem);
/* Runs `what` while the connection's socket is certainly open; not at all when it is gone. */
void call_with_socket(struct call *c, void (*what)(void *context, int socket), void *context);

#endif
