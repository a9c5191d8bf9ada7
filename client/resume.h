/* resume.h - going on after the engine's death: see llm_resume. Internal.
 *
 *   records   what each request in flight needs to be sent again (record.c)
 *   resume    the way to a new engine, taken a step with each llm_poll (resume.c)
 *
 * States, edges with the function that takes them
 *
 *          client_lost           resume_drive         knock           answer: adopt
 *   UP ------------------> LOST ---------------> DOWN ----------> GREETED -----------> UP
 *                           ring not yet empty     ^                 |
 *                                                  +-----------------+  refused, late, closed
 *   DOWN, GREETED -> the handle ENDs: the time is over, other bits, another version
 *
 * Invariants
 *   1. A choice is in one place: owed by the engine (a bit of the in-flight table), to be sent
 *      (`unsent`), or ended here and to be told (`over`); or the user has had its final.
 *   2. What a record counts as delivered was handed to the user, in order, without a gap.
 *   3. An alias holds its record: it is freed when the user is owed nothing and no alias is left.
 */
#ifndef LLMD_CLIENT_RESUME_H
#define LLMD_CLIENT_RESUME_H

#include "attempt.h"
#include "llmclient.h"

/* ---- record.c ---- */

enum { RECORD_WHOLE = -1 }; /* all choices in one entry */

struct record_choice {
    uint64_t alias;  /* id by which the engine knows it; 0: by the user's */
    uint32_t n;      /* delivered, or (score, choose) the position that comes next */
    uint32_t finish; /* of one that is over: enum llm_finish */
    int32_t status;  /* ... and its code, 0: DONE */
    int32_t *tokens; /* GENERATE: (n) those delivered, room for all */
};

struct record {
    struct record *next, *before;
    struct llm_sqe entry; /* as the user meant it; places in the arena mean nothing */
    uint64_t submitted_ns;
    uint64_t owed;   /* finals that the user waits for; bits as in struct llm_cqe's `choice` */
    uint64_t unsent; /* of these: to be sent (again) */
    uint64_t over;   /* of these: ended here, to be told */
    uint32_t base;   /* position of the first token that the engine delivers */
    uint32_t aliases;
    bool sent; /* an engine has had it */
    int32_t *prompt;
    uint8_t *options;
    struct record_choice *choices; /* [bit - entry.first_choice] */
};

/* For the entry, whose ids and parameters are filled in, with the prompt from where it lies now;
 * NULL: -ENOMEM, recorded. It is in the list of c->resume, all of it owed. */
struct record *record_create(struct llm_client *c, const struct llm_sqe *e,
                             const struct llm_request *r, const int32_t *tokens);
void record_free(struct llm_client *c, struct record *r);
struct record_choice *record_choice(const struct record *r, uint32_t bit);

/* Takes a TOKENS completion of that choice into account, and cuts off what the user has had. True:
 * show what is left; false: nothing is left, or *fault is set. */
bool record_tokens(struct record *r, uint32_t bit, struct llm_cqe *cqe, const char **fault);

/* ---- resume.c ---- */

struct resume;

/* True from the death on until a new engine has been found. */
bool resume_is_away(const struct llm_client *c);
/* True if a new request has to wait behind what is to be sent again, or for the engine. */
bool resume_is_behind(const struct llm_client *c);
void resume_send_later(struct llm_client *c, struct record *r);
int resume_cancel(struct llm_client *c, struct record *r);
void resume_forget_arena(
    struct llm_client *c); /* an llm_reserve of the last engine's is replaced */
void resume_destroy(struct llm_client *c);

/* The engine is gone: true if this is no end, because llm_resume was called. */
bool client_lost(struct llm_client *c, const char *how);

/* A step on the way, when the ring of the dead engine is empty; sends what is to be sent. Does not
 * block. May end the handle. */
void resume_drive(struct llm_client *c);
/* The user has had all finals of the request: its id is free. */
void record_told(struct llm_client *c, struct record *r);
/* The next event that was made here. */
bool resume_event(struct llm_client *c, struct llm_event *e);

/* Sleeps until the next step is due, for at most `ns`. 0 or -errno. */
int resume_sleep(struct llm_client *c, uint64_t ns);
/* True if there is something to do or to tell at once. */
bool resume_is_due(const struct llm_client *c);
/* Puts what an absent engine is waited for with into a new descriptor of llm_fd. 0 or -errno. */
int resume_watch(struct llm_client *c);

#endif
