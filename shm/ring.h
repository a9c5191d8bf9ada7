/* ring.h - both ends of a channel: the handshakes over segment.h. No system call but the futex
 * ones, which live with their callers' loops; no allocation; no knowledge of what a request means.
 *
 * Invariants
 *   1. A side trusts only its own cursors and geometry: it keeps private copies and writes the
 * shared ones.
 *   2. The engine reads each byte that a client may write once, into its own memory, and judges the
 * copy.
 *   3. Tokens fill the completion ring to cq_entries - M; the last M entries are for finals.
 *   4. A side that is about to sleep says so, fences, and looks once more (order.h names the
 * fences).
 *
 * One thread a struct.
 */
#ifndef LLMD_RING_H
#define LLMD_RING_H

#include <stdbool.h>

#include "segment.h"

/* ---- client's end ---- */

struct ring_client {
    struct llm_up *up;             /* mapped read-write */
    const struct llm_down *down;   /* mapped read-only */
    const struct llm_pulse *pulse; /* mapped read-only */
    uint8_t *arena;                /* inside up */
    uint32_t sq_entries, cq_entries, max_inflight, arena_bytes;
    uint32_t sq_tail;     /* private; entries written */
    uint32_t cq_head;     /* private; completions taken */
    uint32_t cq_released; /* cq_head as last published */
    uint32_t arena_head;  /* byte cursor of the arena, modulo 2 * arena_bytes: next to hand out */
    uint32_t arena_tail;  /* ... first byte still owned by the engine */
    uint32_t arena_freed_seq;               /* sq entries whose arena bytes were given back */
    uint32_t arena_end[LLM_SQ_ENTRIES_MAX]; /* per entry: arena_head after it */
    uint32_t inflight;                      /* finals owed to us */
    uint32_t reserved_at, reserved_bytes; /* the span of the last ring_reserve, not yet submitted */
    uint32_t top;                         /* candidates of a token that there is room for */
    uint32_t n_candidates;                /* of the token that ring_poll handed out last */
    struct llm_candidate candidates[LLM_TOP_MAX];
    const char *broken; /* NULL, or a sentence: what the engine wrote makes no sense, and nothing
                         * more is taken or submitted */
};

/* Sets the struct up over mapped segments. LLM_EPROTO if the down header does not agree with the
 * geometry. */
int ring_client_init(struct ring_client *r, struct llm_up *up, const struct llm_down *down,
                     const struct llm_pulse *pulse, uint32_t sq_entries, uint32_t cq_entries,
                     uint32_t arena_bytes, uint32_t max_inflight);

/* With room for candidates: the down segment is mapped that much longer (llm_top_bytes). LLM_EPROTO
 * if the down header does not agree. */
int ring_client_top(struct ring_client *r, uint32_t top);

/* `tokens` contiguous s32 in the arena, to be written in place, or NULL while there is no room
 * (poll completions, try again; never if tokens * 4 > arena_bytes). A later reserve without a
 * submit replaces it. */
int32_t *ring_reserve(struct ring_client *r, uint32_t tokens);

/* The entry at the tail, zeroed, to be filled in place, or NULL while the ring or max_inflight is
 * full (finals: how many completions other than tokens this entry will bring). */
struct llm_sqe *ring_next(struct ring_client *r, uint32_t finals);

/* Publishes the entry of ring_next: release sq_tail, C1, need_wakeup. Returns true if the engine
 * must be woken with FUTEX_WAKE(&up->sq_tail, 1): the caller does it. Many entries may be filled
 * before one ring_submit: ring_commit closes each. An entry with tokens names (a front part of) the
 * span of the last ring_reserve; an option map lies directly behind them in the same span. */
void ring_commit(struct ring_client *r, uint32_t finals);
bool ring_submit(struct ring_client *r);

/* Copies the next completion and its result record (for DONE and ERROR, else zeros) and takes it;
 * false if there is none or the ring is `broken`. What it hands out has a known type, 1 ..
 * LLM_CQE_TOKENS_MAX tokens in a TOKENS, and a choice below LLM_CHOICES_MAX. Of one that has
 * candidates they are in r->candidates, their ids unchecked. The head is published
 * by ring_drained, at the latest when the ring is found empty. */
bool ring_poll(struct ring_client *r, struct llm_cqe *cqe, struct llm_result *result);

/* Publishes cq_head: release, C3, cq_held. Returns true if the engine must be woken with
 * FUTEX_WAKE(&up->cq_head, 1). */
bool ring_drained(struct ring_client *r);

/* Announces a sleep of the kind: cq_wait = kind, C2, recheck. The head must be published:
 * ring_drained first. Who waits for its bell has emptied it before: what is emptied after the
 * recheck is lost. Returns true if the caller may now wait: for its bell, or on down->cq_tail with
 * the value *expected; false if there is something to take (cq_wait is NONE again). */
bool ring_wait_begin(struct ring_client *r, enum llm_wait kind, uint32_t *expected);
void ring_wait_end(struct ring_client *r); /* cq_wait = NONE */

/* ---- engine's end ---- */

struct ring_engine {
    const struct llm_up *up; /* mapped read-only */
    struct llm_down *down;   /* mapped read-write */
    const uint8_t *arena;
    uint32_t sq_entries, cq_entries, max_inflight, arena_bytes;
    uint32_t sq_head;      /* private; entries taken */
    uint32_t sq_tail;      /* last value read */
    uint32_t cq_tail;      /* private; completions written */
    uint32_t cq_published; /* cq_tail as last published */
    uint32_t cq_head;      /* last value read */
    uint32_t inflight;     /* finals owed to the client */
    uint32_t top;          /* candidates of a token that there is room for */
};

/* Fills the down header (cursors zero) and the struct. Sizes were checked by the caller. */
void ring_engine_init(struct ring_engine *r, const struct llm_up *up, struct llm_down *down,
                      uint32_t sq_entries, uint32_t cq_entries, uint32_t arena_bytes,
                      uint32_t max_inflight, uint32_t client, uint32_t generation, uint64_t epoch);

/* Before the channel is handed out: `down` has llm_top_bytes more. */
void ring_engine_top(struct ring_engine *r, uint32_t top);

/* Reads sq_tail, then cq_head (both acquire), and judges them. Returns the number of entries to
 * take, or LLM_EPROTO with *why a sentence for the client that must be evicted. */
int ring_sweep(struct ring_engine *r, const char **why);

/* Copies the entry at sq_head into *out, once. Call only after ring_sweep counted it. LLM_EPROTO if
 * its seq is not the cursor. */
int ring_take(struct ring_engine *r, struct llm_sqe *out, const char **why);

/* Copies copy->tokens_len tokens from the arena into dst, whose room the caller has checked.
 * LLM_EPROTO if the span is outside or not aligned. */
int ring_take_tokens(struct ring_engine *r, const struct llm_sqe *copy, int32_t *dst,
                     const char **why);

/* The same for the option map: copy->options_len bytes, at any offset. */
int ring_take_options(struct ring_engine *r, const struct llm_sqe *copy, uint8_t *dst,
                      const char **why);

/* Ends a take: sq_head + 1, release: entry and arena bytes belong to the client again. `finals` are
 * added to inflight; LLM_EPROTO if that exceeds max_inflight, or if completions that the client has
 * not taken leave no room for them. */
int ring_taken(struct ring_engine *r, uint32_t finals, const char **why);

/* Entries that token completions may use now: never counts the last max_inflight ones. Reads
 * cq_head (acquire) only when the last known value leaves no room. */
uint32_t ring_token_room(struct ring_engine *r);

/* Writes a completion at cq_tail (cqe->seq is set here), with its result record if not NULL. A
 * final takes one from inflight. The caller checked the room for tokens; for finals it is always
 * there. */
void ring_put(struct ring_engine *r, const struct llm_cqe *cqe, const struct llm_result *result);

/* The candidates of the completion that is put next: n of them, at most r->top. */
void ring_put_top(struct ring_engine *r, const struct llm_candidate *top, uint32_t n);

/* The place of the n-th completion from now comes into the caches, and with n = 0 the words that
 * publication and the next sweep look at. Reads nothing of them. */
void ring_fetch(const struct ring_engine *r, uint32_t n);

/* Publishes what was put: release cq_tail. True if anything was new. */
bool ring_publish(struct ring_engine *r);

/* E2: one fence after the publishes of all clients; then ring_wants_wake for each that was
 * published. */
void ring_after_publish(void);
/* Reads cq_wait, once: FUTEX -> wake &down->cq_tail; BELL -> ring the client's bell; NONE (0), also
 * for what is no kind -> nothing. */
enum llm_wait ring_wants_wake(const struct ring_engine *r);

/* Going to sleep: ring_arm_all sets need_wakeup; ring_arm sets cq_held where tokens are held; then
 * ring_arm_fence (E1); then ring_rescan for every client: true if there is something to do after
 * all. ring_disarm* take it back. */
void ring_arm_all(struct llm_pulse *pulse);
void ring_arm(struct ring_engine *r, bool held);
void ring_arm_fence(void);
bool ring_rescan(struct ring_engine *r, bool held);
void ring_disarm(struct ring_engine *r);
void ring_disarm_all(struct llm_pulse *pulse);

/* Tells the client why it is evicted: text, then release `evicted`. The caller wakes it. */
void ring_evict(struct ring_engine *r, int code, const char *text);

#endif
