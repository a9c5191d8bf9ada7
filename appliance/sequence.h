/* sequence.h - the sequences that the engine knows: slots, histories, owners. One choice of one
 * request is one sequence; a session is one too, for as long as it is open.
 *
 * A slot's memory, one stride of a single mapping made at start and touched only as far as it is
 * used:
 *     tokens s32[max_len] | logprobs f32[max_len] | hashes of full blocks, 16 bytes [max_len / 16]
 *     | stop strings | biases [LLM_BIASES_MAX] | candidates [SEQUENCE_TOP_WINDOW][top of the request]
 *
 * Invariants
 *   1. Free slots form a stack: the one used last is used next, so that few pages are ever touched.
 *   2. tokens[] has the history but for its last n_tail tokens, and those only of a lazy sequence
 *      that decodes: of such a one the last token always stands in the tail, too.
 *      0 <= n_computed <= n_tokens <= max_len; the KV of positions below n_computed is in the pool,
 *      in blocks[]; n_hashed <= n_computed / 16 blocks have their hash in hashes[].
 *   3. Tokens of the history below `ready` may be delivered; `sent` of them, counted from `base`,
 *      were. Neither ever shrinks while a request runs.
 *      Of a generation with stop strings the tokens from `ready` on may be part of one.
 *   4. An owner exists exactly while its client has a sequence; a domain while it has an owner or a
 *      session. An idle session has no owner.
 */
#ifndef LLMD_SEQUENCE_H
#define LLMD_SEQUENCE_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../gpu/fail.h"
#include "../gpu/gpu.h"
#include "../shm/llm_abi.h"
#include "domain.h"
#include "kv_pool.h"
#include "list.h"
#include "stop_match.h"

enum sequence_state {
    SEQUENCE_FREE,
    SEQUENCE_IDLE,    /* a session that nobody uses now */
    SEQUENCE_WAITING, /* in the queue, or among the followers of a leader */
    SEQUENCE_PREFILL, /* running; the history is not yet in the pool */
    SEQUENCE_DECODE,  /* running; everything but the last token is in the pool */
    SEQUENCE_ENDING   /* tokens wait for ring room */
    /* Blocks that one which does not run holds are a lease: it may lose them at any time. */
};

enum {
    SEQUENCE_CLASSES = 3,       /* of priority; 0 goes first */
    SEQUENCE_TOP_WINDOW = 1024, /* tokens with candidates that may wait for ring room */
    SEQUENCE_TAIL = 16          /* drawn tokens that may stand in the tail alone */
};

struct session;
struct ngram;

/* A client, as far as it has sequences. */
struct sequence_owner {
    uint32_t client;
    struct domain *domain;
    uint32_t n_all, n_news; /* lengths of the lists */
    uint32_t n_running;
    uint32_t unread;    /* tokens that may be delivered and were not */
    uint64_t served;    /* rows that were computed for it, on the queue's scale (queue.h) */
    struct list hungry; /* node: owners with something in the queue */
    struct list waiting[SEQUENCE_CLASSES]; /* its own of each class, the most urgent first */
    struct list hash;                      /* the bucket's chain, or the free owners */
    struct list all;                       /* its sequences */
    struct list news; /* those with tokens to deliver, the one whose turn is next first */
    struct list due;  /* node: owners that the end of this step delivers to */
};

/* What every step looks at comes first, in three cache lines: a step of the backend leaves none of
 * them in the caches, and the slots' memory lies on huge pages. What lies elsewhere is touched when
 * it changes: the history once in a block (`tail`). */
struct sequence {
    alignas(64) struct sequence_owner *owner;
    uint32_t *blocks; /* (n_blocks) block table */
    uint64_t user_data;
    uint64_t t_last;    /* of its last token; 0: none yet */
    uint64_t admission; /* number of its last admission */
    uint32_t n_tokens, n_computed;
    uint32_t n_blocks, n_hashed; /* lengths of blocks[], hashes[] */
    uint32_t ready, sent;

    alignas(64) struct list news; /* node of owner->news */
    enum sequence_state state : 8;
    enum llm_op op : 8;
    uint8_t flags;
    uint8_t class; /* of priority */
    bool fresh;    /* has brought nothing since its last admission: is not thrown out lightly */
    bool fork;     /* in a step: its first token is drawn from the leader's last row */
    bool lazy;     /* nobody looks at the whole history between two steps (sequence_append) */
    uint8_t n_top; /* candidates of a token; 0: not asked for */
    uint32_t rows; /* in the step that is being formed or run */
    uint32_t n_prompt, max_tokens;
    uint32_t base;
    uint32_t choice;
    uint32_t n_forks;    /* of a leader in a step */
    uint32_t max_itl_us; /* promised gap; 0: none */
    uint32_t n_tail;     /* tokens at the end of the history that stand in the tail alone */
    struct domain *domain;

    alignas(64) int32_t tail[SEQUENCE_TAIL]; /* of position p at p % SEQUENCE_TAIL */

    alignas(64) int32_t *tokens; /* (n_tokens - n_tail) the history, prompt first */
    float *logprobs; /* (n_tokens) of the same tokens, where somebody asked for them; not of a
                        GENERATE's prompt */
    struct kv_hash *hashes;  /* (n_hashed) of the first full blocks */
    struct session *session; /* NULL: none */
    uint64_t due_ns;         /* when its first token is due; UINT64_MAX: at no time */
    uint64_t t_first;
    uint32_t was_computed; /* the most that n_computed ever was when it lost some of it: below it
                              rows are computed again */
    uint32_t n_stops;
    struct gpu_sampling sampling;

    struct list kin;   /* node of owner->all */
    struct list queue; /* node of the waiting queue or of a leader's followers */
    struct list turn;  /* node of owner->waiting[class] */
    struct list lease; /* node of the schedule's leases */
    uint64_t order;    /* of arrival: no two alike */
    uint64_t expires_ns, queue_expires_ns; /* total and queue timeout; UINT64_MAX: none */
    uint64_t t_arrival, t_admit;
    uint32_t would_fit;     /* what its ERROR says in `position` */
    enum llm_finish finish; /* ENDING */
    uint32_t preemptions;
    uint32_t n_cached; /* prompt tokens that the prefix cache or the session had, first admission */
    uint32_t n_admitted;  /* tokens when it was admitted last: what a preemption would throw away */
    uint32_t n_brought;   /* tokens that its entry brought: what a quota of the queue counts */
    struct ngram *lookup; /* of one that runs and speculates (speculate.h), else NULL */

    struct stop_set *stops; /* where n_stops is not 0 */
    struct stop_state stop_state;
    uint32_t withheld; /* bytes of the tokens from `ready` on */
    uint32_t stop;     /* which string ended it, from 1; 0: none */
    uint32_t stop_cut; /* bytes of the delivered tokens that belong to it */
    struct gpu_bias *biases;
    struct gpu_candidate *top; /* (SEQUENCE_TOP_WINDOW, n_top) of token base + i at i % WINDOW */

    /* choices: the first one computes the prompt for all; the others wait on its list */
    struct sequence *leader; /* of a follower, and of a fork until the end of its step */
    struct list followers;   /* of a leader */
    uint32_t spare;      /* of such a fork: the block that becomes its last one, or KV_NO_BLOCK */
    uint32_t n_promised; /* of such a fork: blocks that it will share, counted in the domain's */
};

enum { SEQUENCE_HOT = offsetof(struct sequence, tokens) }; /* bytes that every step looks at */
_Static_assert(SEQUENCE_HOT == 3 * 64, "three lines");

struct sequence_table {
    uint32_t max_requests, max_len, n_free;
    uint32_t *free_stack;          /* (max_requests) slot numbers, the next one last */
    struct sequence *slots;        /* (max_requests) */
    uint32_t *tables;              /* (max_requests, blocks of max_len) block tables, behind them */
    uint8_t *memory;               /* (max_requests, stride) */
    uint64_t stride;               /* bytes */
    void *slots_memory;            /* mapping that slots and tables lie in */
    uint64_t slots_bytes;          /* of it, less a huge page */
    struct sequence_owner *owners; /* (max_requests) */
    struct list free_owners;
    struct list *buckets; /* (n_buckets) a power of two */
    uint32_t n_buckets;
    struct domains domains;
    uint64_t arrivals;
    uint64_t served; /* where a new owner's count begins */
};

/* 0; -EINVAL, -ENOMEM. */
int sequence_table_create(struct sequence_table *t, uint32_t max_requests, uint32_t max_len,
                          struct fail *f);
void sequence_table_destroy(struct sequence_table *t);

/* The token memory (max_len) of the slot that sequence_take hands out next; a slot must be free. */
int32_t *sequence_next_tokens(struct sequence_table *t);

/* s, a copy that is only looked at, gets that slot's memory for what its entry's options say: the
 * original's is left alone. */
void sequence_borrow(const struct sequence_table *t, struct sequence *s);

/* A slot for that client, state WAITING, zero but for owner, order and memory. Its tokens are what
 * sequence_next_tokens was filled with. A slot must be free. `domain` is looked at where the client
 * has no sequence yet. */
struct sequence *sequence_take(struct sequence_table *t, uint32_t client, uint32_t domain);

/* Gives the slot back; the sequence holds no blocks and is in no queue. Frees the owner with its
 * last sequence. */
void sequence_release(struct sequence_table *t, struct sequence *s);

/* An idle session's sequence is used by a client: as if it had been taken by it, order and all. */
void sequence_attach(struct sequence_table *t, struct sequence *s, uint32_t client,
                     uint32_t domain);
/* The opposite: state IDLE, no owner; the domain stays. */
void sequence_detach(struct sequence_table *t, struct sequence *s);

/* NULL where the client has no sequence. */
struct sequence_owner *sequence_owner(const struct sequence_table *t, uint32_t client);
/* Sequences of an owner; next is taken before `s` is released. NULL at the end. */
struct sequence *sequence_first(const struct sequence_owner *o);
struct sequence *sequence_next(const struct sequence_owner *o, const struct sequence *s);

static inline bool sequence_running(const struct sequence *s)
{
    return s->state == SEQUENCE_PREFILL || s->state == SEQUENCE_DECODE;
}

/* What a request asks for: log-probabilities of tokens that are known. */
static inline bool sequence_scores(const struct sequence *s)
{
    return s->op == LLM_OP_SCORE || s->op == LLM_OP_CHOOSE;
}

/* Tokens of the history whose KV is needed before its next result. Only a generation needs that of
 * the last one: in a session it waits until the generation begins. */
static inline uint32_t sequence_inputs(const struct sequence *s)
{
    return s->op == LLM_OP_GENERATE || !s->n_tokens ? s->n_tokens : s->n_tokens - 1;
}

/* Tokens whose KV will be needed in its whole life: the last token is never an input. */
static inline uint32_t sequence_inputs_in_all(const struct sequence *s)
{
    return s->op == LLM_OP_GENERATE ? s->n_prompt + s->max_tokens - 1 : sequence_inputs(s);
}

/* Tokens whose KV may come from elsewhere: every row behind them has still to say something. */
static inline uint32_t sequence_reusable(const struct sequence *s)
{
    if (sequence_scores(s))
        return s->ready - 1;
    return s->n_tokens ? s->n_tokens - 1 : 0;
}

/* The token at a position of the history. */
static inline int32_t sequence_token(const struct sequence *s, uint32_t position)
{
    bool behind = position >= s->n_tokens - s->n_tail;
    return behind ? s->tail[position % SEQUENCE_TAIL] : s->tokens[position];
}

/* Into the history with what stands in the tail alone. */
void sequence_settle(struct sequence *s);

/* A drawn token. That of a lazy sequence goes into the tail, and later with others into the
 * history. */
static inline void sequence_append(struct sequence *s, int32_t token)
{
    if (!s->lazy)
        s->tokens[s->n_tokens++] = token;
    else {
        if (s->n_tail == SEQUENCE_TAIL)
            sequence_settle(s);
        s->tail[s->n_tokens++ % SEQUENCE_TAIL] = token;
        s->n_tail++;
    }
}

/* The candidates of output token i. */
static inline struct gpu_candidate *sequence_top(const struct sequence *s, uint32_t i)
{
    return s->top + (size_t)(i % SEQUENCE_TOP_WINDOW) * s->n_top;
}

static inline uint32_t sequence_unsent(const struct sequence *s)
{
    return s->ready - s->base - s->sent;
}

#endif
