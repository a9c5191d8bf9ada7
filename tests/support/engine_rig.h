/* engine_rig.h - the scheduling core on a bench: a fake backend under it, arrays in place of rings
 * above it, time that passes only when a step is computed or the test says so (with a backend of the
 * test's own: a microsecond at each look). Every completion is checked as it comes (order of positions,
 * one final, room kept). The rig keeps a book of the
 * sessions, what each one's history must be; what a request should have brought is computed from
 * that and the fake's model alone.
 *
 * engine_rig.c: sink, entries, steps. engine_book.c: histories and expectations. engine_wish.c: option
 * maps, stop strings. engine_audit.c: the
 * engine's own books. */
#ifndef LLMD_TESTS_ENGINE_RIG_H
#define LLMD_TESTS_ENGINE_RIG_H

/* before cmocka.h, whose fail() is a macro */
#include "../../appliance/engine.h"
#include "../../shm/board.h"
#include "fake_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { RIG_CLIENTS = 8, RIG_STREAMS = 1024, RIG_TOKENS = 2304, RIG_SESSIONS = 32 };

#define RIG_ROOM_ENDLESS UINT32_MAX

/* A session as it should be. */
struct rig_session {
    bool open;
    uint32_t domain, n;
    uint64_t key;
    int32_t tokens[RIG_TOKENS];
};

enum { RIG_BIASES = 4, RIG_STOPS = 3, RIG_STOP_BYTES = 8 };

/* What a GENERATE says in its option map. */
struct rig_wish {
    uint32_t top; /* candidates of every token */
    uint32_t n_biases, n_stops;
    struct gpu_bias biases[RIG_BIASES];
    char stops[RIG_STOPS][RIG_STOP_BYTES]; /* ended by a zero */
};

/* What one choice of one entry has brought so far. */
struct rig_stream {
    struct llm_sqe q; /* the entry */
    struct rig_wish wish;
    uint32_t client, choice;
    uint64_t user_data;
    uint8_t op;
    bool logprobs;
    uint32_t n_top;              /* candidates of every token */
    struct rig_session *session; /* of a GENERATE that was taken, until its final */
    uint32_t n_known;            /* tokens in known[]: a GENERATE's whole history before its first
                                    token, a SCORE's tokens, a CHOOSE's prompt and label */
    uint32_t first;              /* of a resumed GENERATE: tokens that were generated before */
    uint32_t n, puts;
    uint32_t finals;
    struct llm_cqe final;
    struct llm_result result;
    int32_t known[RIG_TOKENS];
    int32_t tokens[RIG_TOKENS];
    float logprob[RIG_TOKENS];
    uint64_t candidates[RIG_TOKENS]; /* a digest of each token's */
};

struct rig {
    struct engine_config config; /* to be changed between rig_init and rig_open */
    const struct gpu_ops *ops;   /* NULL: the fake; else a backend of the test's, open */
    struct gpu *device;
    struct fake_gpu gpu;
    struct engine *engine;
    struct llm_board *board;
    uint64_t clock_ns; /* now */
    /* one client more, the rig's own: it closes what is open at the end */
    uint32_t room[RIG_CLIENTS + 1];   /* token entries that fit */
    bool gone[RIG_CLIENTS + 1];       /* dropped: nothing may come any more */
    uint32_t domain[RIG_CLIENTS + 1]; /* whose client it is */
    uint32_t top[RIG_CLIENTS + 1];    /* candidates that its channel has room for */
    uint8_t options[8192];            /* the option map of a GENERATE with options_len */
    struct rig_wish wish;             /* the same, if rig_wish wrote it */
    struct llm_candidate candidates[LLM_TOP_MAX]; /* of the token that comes next */
    uint32_t n_candidates;                        /* 0: none came */
    uint32_t label_tokens;        /* of every label of a CHOOSE; 0: of different lengths */
    struct rig_session *sessions; /* (RIG_SESSIONS) */
    struct rig_stream *streams;   /* (RIG_STREAMS) in order of submission */
    uint32_t n_streams;
    uint64_t puts; /* completions of all kinds */
    uint64_t last_put_of[RIG_CLIENTS + 1];
};

/* Defaults: 512 tokens, 8 sequences, 64 rows, no chunk cap, 64 requests, 256 blocks, 97 tokens in
 * the vocabulary, of which 5 and 11 end a generation. */
void rig_init(struct rig *r);
void rig_open(struct rig *r);
/* Closes the sessions, checks that no block is missing once nothing runs or waits, and frees all. */
void rig_close(struct rig *r);

struct llm_sqe rig_generate(uint64_t user_data, uint32_t n_prompt, uint32_t max_tokens);
struct llm_sqe rig_score(uint64_t user_data, uint32_t n_prompt);
struct llm_sqe rig_cancel(uint64_t user_data, uint64_t target);
/* Labels: rig_label. */
struct llm_sqe rig_choose(uint64_t user_data, uint32_t n_prompt, uint32_t n_labels);
struct llm_sqe rig_session_open(uint64_t user_data, uint64_t key, uint32_t n_tokens);
struct llm_sqe rig_append(uint64_t user_data, uint64_t key, uint64_t keep, uint32_t n_tokens);
struct llm_sqe rig_fork(uint64_t user_data, uint64_t key, uint64_t new_key);
struct llm_sqe rig_session_close(uint64_t user_data, uint64_t key);
/* A GENERATE on a session. */
struct llm_sqe rig_continue(uint64_t user_data, uint64_t key, uint64_t keep, uint32_t n_tokens,
                            uint32_t max_tokens);

/* What the next GENERATE has in its option map; all zero: none. Returns its options_len. */
uint32_t rig_wish(struct rig *r, const struct rig_wish *wish);

/* A prompt that depends on `seed` alone. */
void rig_prompt(const struct rig *r, uint64_t seed, int32_t *tokens, uint32_t n);
/* Label i of that CHOOSE: its length; the tokens, if not NULL. */
uint32_t rig_label(const struct rig *r, uint64_t user_data, uint32_t i, int32_t *tokens);

/* Submits as the io loop does. False if the engine cannot take it now. */
bool rig_submit(struct rig *r, uint32_t client, const struct llm_sqe *q, const int32_t *tokens);
/* The same with rig_prompt(user_data); must be taken. */
void rig_send(struct rig *r, uint32_t client, const struct llm_sqe *q);

void rig_step(struct rig *r);
void rig_run(struct rig *r); /* until there is no work */
void rig_drop(struct rig *r, uint32_t client);

struct rig_stream *rig_stream(struct rig *r, uint32_t client, uint64_t user_data, uint32_t choice);

/* NULL: not open. */
struct rig_session *rig_session(struct rig *r, uint32_t domain, uint64_t key);

/* The stream is what the request should have brought: every token and log-probability, the finish,
 * the counts. */
void rig_expect_whole(struct rig *r, uint32_t client, const struct llm_sqe *q);
/* What there is of it is a right beginning (cancelled, or not at its end). */
void rig_expect_prefix(struct rig *r, uint32_t client, const struct llm_sqe *q);
/* It was refused, every choice of it, with that code and number. */
void rig_expect_refused(struct rig *r, uint32_t client, const struct llm_sqe *q, int32_t code,
                        uint32_t fits);
/* The same of one stream that was not refused; what has whole false may have ended at any token. */
void rig_expect_stream(const struct rig *r, const struct rig_stream *s, bool whole);

/* True if the engine has that session open. */
bool rig_engine_has(const struct rig *r, uint32_t domain, uint64_t key);
/* engine_audit.c: the engine's books against each other, between two steps: every block's
 * references, what is free and cached, the counts of users, clients, queue and leases, the waste. */
void rig_audit(const struct rig *r);

/* Behind engine_shutdown: it takes entries again, as no engine does, so that sessions can be closed. */
void rig_restart(struct rig *r);

/* DONE without an error, for what has no tokens of its own. */
void rig_expect_done(struct rig *r, uint32_t client, const struct llm_sqe *q);

/* The number that choice i of it has in completions. */
uint32_t rig_choice(const struct llm_sqe *q, uint32_t i);

/* ---- between engine_rig.c and engine_book.c ---- */

/* engine_wish.c: what stop strings make of the n output tokens, of which `given` came with the entry:
 * true if one is complete. */
struct rig_stop {
    uint32_t which;   /* from 1 */
    uint32_t n;       /* output tokens that were drawn, the last one completes it */
    uint32_t deliver; /* of them those that the client gets or has */
    uint32_t cut;     /* bytes of these that belong to the string */
};
bool rig_stops(const struct rig *r, const struct rig_wish *wish, const int32_t *output, uint32_t n,
               uint32_t given, struct rig_stop *stop);

/* The entry was handed to the engine, and what it brought at once has been taken: what its streams
 * have to bring, what it made of its session. */
void rig_book_entry(struct rig *r, uint32_t client, const struct llm_sqe *q, const int32_t *tokens);
/* A stream has its final, or its client is gone: its session has what was delivered. */
void rig_book_end(struct rig_stream *s);

static inline uint64_t rig_figure(const order_u64 *p)
{
    return order_read64(p);
}

#endif
