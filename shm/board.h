/* board.h - the board: POSIX shared memory /llmd.<instance>, mode 0640, LLM_BOARD_BYTES long.
 *
 * Written by the engine alone, never read back by it; for observers (status, top, metrics) and the
 * post-mortem: it outlives a crash. `magic` is stored last, with release; an observer loads it
 * first, with acquire. Counters are relaxed u64 with one writer. The engine holds an exclusive
 * flock on the object for as long as it lives: where a shared one can be had, the board is a dead
 * engine's.
 *
 *   0x0000  identity: immutable once magic is set
 *   0x0800  state, heartbeat
 *   0x0840  counters
 *   0x1000  histograms
 *   0x4000  last errors: a ring of texts
 */
#ifndef LLMD_BOARD_H
#define LLMD_BOARD_H

#include "segment.h"

#define LLM_MAGIC_BOARD 0x4452414f424d4c4cULL /* "LLMBOARD" */

enum { LLM_BOARD_BYTES = 65536, LLM_BOARD_ERRORS = 16, LLM_BOARD_ERROR_TEXT = 240 };

/* Log-linear: 8 buckets an octave from 2^10 ns (1.024 us) to 2^37 ns (137 s); bucket 0 holds what
 * is below, the last what is above. Bucket of v: order_read board_bucket(). */
enum {
    LLM_HIST_SUB = 8,
    LLM_HIST_MIN_LOG2 = 10,
    LLM_HIST_MAX_LOG2 = 37,
    LLM_HIST_BUCKETS = (LLM_HIST_MAX_LOG2 - LLM_HIST_MIN_LOG2) * LLM_HIST_SUB + 2
};

struct llm_histogram {
    order_u64 count, sum_ns, max_ns;
    order_u64 bucket[LLM_HIST_BUCKETS];
};

static inline uint32_t llm_histogram_bucket(uint64_t ns)
{
    if (ns < 1ull << LLM_HIST_MIN_LOG2)
        return 0;
    uint32_t log2 = 63 - (uint32_t)__builtin_clzll(ns);
    if (log2 >= LLM_HIST_MAX_LOG2)
        return LLM_HIST_BUCKETS - 1;
    return 1 + (log2 - LLM_HIST_MIN_LOG2) * LLM_HIST_SUB + (uint32_t)(ns >> (log2 - 3) & 7);
}
/* Lower edge of bucket i, nanoseconds. */
static inline uint64_t llm_histogram_edge(uint32_t i)
{
    if (!i)
        return 0;
    uint32_t octave = (i - 1) / LLM_HIST_SUB + LLM_HIST_MIN_LOG2, sub = (i - 1) % LLM_HIST_SUB;
    return (uint64_t)(LLM_HIST_SUB + sub) << (octave - 3);
}

/* Why a request was refused. */
enum llm_refusal {
    LLM_REFUSED_MALFORMED, /* -EINVAL, LLM_EPARAM, LLM_ETOKEN */
    LLM_REFUSED_LENGTH,
    LLM_REFUSED_QUEUE, /* the queue's limits: LLM_EBUSY */
    LLM_REFUSED_QUOTA,
    LLM_REFUSED_DEADLINE,
    LLM_REFUSED_SESSION, /* but not where tokens came for one that is not there: it is opened then */
    LLM_REFUSED_SHUTDOWN,
    LLM_REFUSALS
};

enum { LLM_FINISHES = LLM_FINISH_ERROR + 1 };

struct llm_board_error {
    order_u64 t_ns; /* CLOCK_REALTIME, 0: empty; stored last */
    int64_t code;
    char text[LLM_BOARD_ERROR_TEXT];
};

struct llm_board {
    order_u64 magic;
    uint16_t abi_major, abi_minor;
    uint32_t pid;
    uint64_t epoch, numerics_id, started_ns; /* CLOCK_REALTIME */
    uint8_t model_digest[16], vocab_digest[16];
    char instance[64], model[128], quantization[32], backend[32], numerics[96], version[32];
    uint32_t vocab, max_model_len, max_num_seqs, max_num_batched_tokens, prefill_chunk, threads;
    uint32_t kv_block_size, kv_blocks_total;
    uint64_t weights_bytes, kv_bytes, workspace_bytes;
    /* since ABI 1.1 */
    char weights_pages[16];      /* what the weights lie on: "thp" */
    uint64_t weights_huge_bytes; /* of them on huge pages */

    alignas(0x800) order_u32 state; /* enum llm_state */
    order_u32 reserved;
    order_u64 heartbeat_ns, last_step_ns; /* CLOCK_MONOTONIC */

    alignas(64) order_u64 running, waiting, clients; /* gauges */
    order_u64 kv_blocks_free;                        /* unreferenced blocks, cached or not */
    order_u64 steps, mixed_steps, rows, prefill_rows, decode_rows;
    order_u64 max_rows_in_step, max_seqs_in_step;
    order_u64 requests, refused, finished, cancelled, preemptions, prompt_tokens, output_tokens;
    order_u64 clients_total, evictions, wakes, sleeps, backstop_rescues, board_lost;
    order_u64 heap_allocated, heap_resident; /* bytes, of the engine's own heap; 0: not known */

    /* since ABI 1.1 */
    order_u64 kv_blocks_cached; /* of the free ones: findable in the prefix cache */
    order_u64 sessions, sessions_idle, pinned_blocks; /* gauges */
    order_u64 backlog_tokens, backlog_us;             /* prompt tokens not computed, and how long */
    order_u64 prefix_queries, prefix_hits;            /* prompt tokens looked up, and found */
    order_u64 deadline_misses, timeouts, queue_timeouts, unread_cancels;
    order_u64 recomputed_tokens; /* rows that a preemption or eviction made necessary again */
    order_u64 sessions_expired, session_evictions;
    order_u64 step_predicted_ns;          /* what the cost model said of the last step */
    order_u64 refused_for[LLM_REFUSALS];  /* by enum llm_refusal */
    order_u64 finished_for[LLM_FINISHES]; /* choices that were accepted, by enum llm_finish */
    order_u64 threads_in_use; /* gauge: fewer than `threads` while others' work holds some up */
    /* speculation: drafts, their tokens (a row each, among decode_rows), and those of them that were
     * drawn */
    order_u64 spec_drafts, spec_draft_tokens, spec_accepted_tokens;

    alignas(0x1000) struct llm_histogram step; /* one step of the backend */
    struct llm_histogram overhead;             /* the engine's own part between two busy steps */
    struct llm_histogram ttft, itl,
        queue; /* arrival to first token, between tokens, arrival to admission */
    /* since ABI 1.1: arrival to the end of what was generated; without cancelled ones */
    struct llm_histogram e2e;

    /* padding, not alignas: an object of 0x4000 alignment could not be mapped at any page */
    uint8_t reserved1[0x3000 - 6 * sizeof(struct llm_histogram)];
    order_u64 errors_written;
    struct llm_board_error errors[LLM_BOARD_ERRORS];
};

_Static_assert(offsetof(struct llm_board, state) == 0x800 &&
                   offsetof(struct llm_board, running) == 0x840 &&
                   offsetof(struct llm_board, spec_accepted_tokens) + 8 <= 0x1000 &&
                   offsetof(struct llm_board, step) == 0x1000 &&
                   offsetof(struct llm_board, errors_written) == 0x4000,
               "board layout");
_Static_assert(sizeof(struct llm_board) <= LLM_BOARD_BYTES, "board size");

#endif
