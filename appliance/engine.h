/* engine.h - the scheduling core: requests in, completions out. No file descriptor, no socket, no
 * clock of its own but clock_gettime; the io loop (appliance/loop.h) drives it, tests drive it with
 * a backend of their own.
 *
 *     engine_create(&e, &config, ops, gpu, board, &sink, &f);
 *     for each entry that was swept in, if engine_can_take_from(e, client, &sqe):
 *         copy its tokens to engine_token_buffer(e), its options to engine_option_buffer(e)
 *         engine_submit(e, client, &sqe, now);
 *     engine_publish(e);
 *     if (engine_has_work(e))
 *         engine_step(e);             // forms a step, runs it, hands results to the sink
 *
 * States of a sequence (F: free, W: waiting, P: prefill, D: decode, E: ending)
 *
 *     F -> W   engine_submit
 *     W -> P   admitted: a running place and blocks for the known history are free
 *     W -> D   forked: a further choice takes over the computed prompt of the first
 *     P -> D   the whole known history is computed, a token was drawn
 *     P -> W, D -> W   preempted: blocks freed, tokens kept
 *     W, P, D -> E     stop, length, cancel, error: no blocks; tokens that wait for ring room keep
 *                      the slot
 *     E -> F   the final is out; any -> F  the client is gone
 *
 * Invariants
 *   1. Exactly one final per choice, always.
 *   2. A step holds every running decode first (rotating where max_num_batched_tokens is below
 *      their number), then prefill chunks in the queue's order, each at most prefill_chunk rows,
 *      then drafts (speculate.h). Where decodes alone would fill every step, every second one leaves
 *      prompts a quarter; some streams of a crowd wait a step for another's first token (schedule.h).
 *   3. A token is in the sequence's history before it is offered to the ring; `sent` only grows. A
 * full ring loses nothing and stalls nobody else.
 *   4. A block with references > 1 is never written.
 *   5. No allocation after engine_create.
 */
#ifndef LLMD_ENGINE_H
#define LLMD_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "../gpu/gpu.h"
#include "../shm/board.h"
#include "../shm/llm_abi.h"

struct engine;
struct token_text;

/* What the requests of one user may hold at once. */
struct engine_quota {
    uint32_t requests;      /* choices counted each, waiting or running */
    uint32_t prompt_tokens; /* in the queue */
    uint32_t kv_blocks;     /* referenced by its sequences, shared ones counted each time */
    uint32_t sessions;
    uint32_t pinned_blocks;
};

/* Prompt lookup: what a request repeats of its own history is computed several tokens a step
 * (speculate.h). It changes no token. */
struct engine_speculation {
    bool by_default;               /* generations that say nothing speculate; LLM_SQE_SPECULATE and
                            LLM_SQE_NO_SPECULATION say otherwise */
    uint32_t max_tokens;           /* of a draft, at most GPU_KV_BLOCK; 0: nobody speculates */
    uint32_t min_match, max_match; /* tokens by which a place is looked up, and compared */
};

/* In which order requests are served. */
enum engine_policy {
    ENGINE_FAIR,      /* class, deadline, fair shares, ageing (queue.h) */
    ENGINE_FIRST_COME /* order of arrival; no promise of a gap, no deadline is refused */
};

struct engine_config {
    uint32_t max_model_len;          /* prompt + output, tokens */
    uint32_t max_num_seqs;           /* running at once */
    uint32_t max_num_batched_tokens; /* rows of a step */
    uint32_t prefill_chunk; /* rows of one sequence's prefill in a step; 0: no cap of its own */
    uint32_t max_requests;  /* sequences known at once, waiting ones included */
    uint32_t n_blocks;      /* KV blocks of the pool */
    uint32_t vocab;
    const int32_t *eog; /* (n_eog) ascending */
    uint32_t n_eog;
    uint64_t numerics_id;
    const struct token_text *text; /* for stop strings; NULL: they are refused (LLM_ENOTEXT) */

    enum engine_policy policy;

    /* promises; 0: off */
    uint32_t max_itl_us;       /* the gap between two tokens of a stream */
    uint32_t max_step_us;      /* prompts make no step longer, so that nobody who comes waits for a
                                    long one (schedule.h) */
    uint32_t queue_timeout_ms; /* of requests that state none */
    uint32_t timeout_ms;       /* the same, in all */
    uint32_t max_waiting;      /* requests in the queue */
    uint32_t max_waiting_tokens; /* prompt tokens in the queue */
    uint32_t max_unread;         /* tokens that a client may leave unread: then its requests end */

    bool prefix_cache;
    uint32_t max_sessions;    /* 0: none can be opened */
    uint32_t session_idle_ms; /* a session that was not used for so long is closed; 0: never */

    struct engine_speculation speculation;

    struct engine_quota quota; /* of each domain (user); 0: no limit of its own */

    /* The time that the engine lives by, CLOCK_MONOTONIC where NULL (a simulator has its own). */
    uint64_t (*clock)(void *context);
    void *clock_context;
};

/* Where completions go: implemented by appliance/clients.c over ring_engine, by tests over an
 * array. `client` is the slot that was given to engine_submit; the core calls these only between
 * engine_create and the client's drop. */
struct engine_sink {
    void *context;
    uint32_t (*token_room)(void *context, uint32_t client); /* token completions that fit now */
    void (*put)(void *context, uint32_t client, const struct llm_cqe *cqe,
                const struct llm_result *result);
    uint32_t (*top)(void *context, uint32_t client); /* candidates that a token may have; NULL: 0 */
    void (*put_top)(void *context, uint32_t client, const struct llm_candidate *top,
                    uint32_t n); /* right before the put of the token; NULL where `top` is */
    /* the n-th completion from now, from 0, will be put soon: its place may come into the caches,
       and with the first what its publication needs; NULL: they do not */
    void (*fetch)(void *context, uint32_t client, uint32_t n);
    uint32_t (*domain)(void *context, uint32_t client); /* whose client it is: quotas, sessions and
                                                           the prefix cache go by it; NULL: 0 */
};

/* Allocates everything. `board` may be NULL (tests). The backend is open, loaded, and its pool
 * made: max_rows and max_outputs are at least max_num_batched_tokens, max_seqs at least
 * max_num_seqs, max_len at least max_model_len. */
int engine_create(struct engine **out, const struct engine_config *config,
                  const struct gpu_ops *ops, struct gpu *gpu, struct llm_board *board,
                  const struct engine_sink *sink, struct fail *f);
void engine_destroy(struct engine *e);

/* Finals that this entry will bring (for ring_taken): 1, or `choices` for GENERATE, at least 1. */
uint32_t engine_finals(const struct llm_sqe *copy);

/* True if the sequences that this entry needs can be taken now. False: leave it in the ring
 * (back-pressure). */
bool engine_can_take(const struct engine *e, const struct llm_sqe *copy);

/* The same, and the client keeps to its share: what it would have then is no more than what stays
 * free for all others (its first entry is always within it). So one client that sends without end,
 * or does not read, takes at most half of the slots, the next half of the rest. */
bool engine_can_take_from(struct engine *e, uint32_t client, const struct llm_sqe *copy);

/* A buffer of max_model_len tokens for the next engine_submit: the tokens are copied straight into
 * the history. Valid after engine_can_take said true for what carries tokens. Entries whose
 * tokens_len exceeds max_model_len are submitted without copying: they are refused unread. */
int32_t *engine_token_buffer(struct engine *e);

/* True for an operation that brings tokens from the arena. */
bool engine_carries_tokens(const struct llm_sqe *copy);

/* LLM_OPTIONS_MAX bytes for the option map of the next engine_submit. Entries whose options_len
 * exceeds that are submitted without copying: they are refused unread. */
uint8_t *engine_option_buffer(struct engine *e);

/* Takes a validated-in-copy entry over: parameters are checked here, and a bad one is answered with
 * ERROR completions through the sink, at once. Entries of op NOP and CANCEL are answered at once
 * too. A cancelled request ends within this call: tokens that the ring has no room for are dropped,
 * and its final counts those that were put. */
void engine_submit(struct engine *e, uint32_t client, const struct llm_sqe *copy, uint64_t now_ns);

/* Publishes the figures that entries have changed, after any number of them; a step does it too. */
void engine_publish(struct engine *e);

/* The client is gone: its sequences end without completions; their blocks are free when this
 * returns (no step is in flight between calls). */
void engine_drop_client(struct engine *e, uint32_t client);

/* True if a step could be run now. */
bool engine_has_work(const struct engine *e);

/* From time to time, also while nothing runs: ends what is out of time. */
void engine_tick(struct engine *e, uint64_t now_ns);

/* One step. 0, or the backend's code: then every running request has ended with LLM_EENGINE. */
int engine_step(struct engine *e);

/* Offers waiting tokens and finals to the rings again: all of `client`. Call when the client made
 * room. */
void engine_deliver(struct engine *e, uint32_t client);
/* True if tokens or finals of this client wait for ring room. */
bool engine_holds(const struct engine *e, uint32_t client);

/* From now on new requests are refused (LLM_ESHUTDOWN); what runs and waits goes on. */
void engine_refuse_new(struct engine *e);

/* SIGTERM: ends everything with CANCELLED finals (what is waiting: ERROR LLM_ESHUTDOWN). */
void engine_shutdown(struct engine *e);

uint64_t engine_steps(const struct engine *e); /* completed so far */
uint32_t engine_running(const struct engine *e);
uint32_t engine_waiting(const struct engine *e);

#endif
