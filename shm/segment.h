/* segment.h - the segments: who writes what, byte by byte. Layout and static asserts only.
 *
 *   segment     object                       written by   mapped by            seals
 *   up          memfd, one a client          client       engine PROT_READ     SHRINK GROW SEAL
 *   down        memfd, one a client          engine       client PROT_READ     + FUTURE_WRITE
 *   pulse       memfd, one an engine         engine       clients PROT_READ    + FUTURE_WRITE
 *   vocabulary  memfd, one an engine         (sealed)     clients PROT_READ    + WRITE (vocab.h)
 *   board       POSIX shm /llmd.<instance>   engine       observers PROT_READ  none: outlives a
 * crash (board.h)
 *
 * up (bytes)                               down (bytes)
 *   0x0000  header, unused, zero             0x0000  header: magic, abi, geometry (immutable)
 *   0x0040  sq_tail                          0x0040  sq_head
 *   0x0080  cq_head                          0x0080  cq_tail
 *   0x00C0  cq_wait                          0x00C0  cq_held
 *   0x1000  llm_sqe [sq_entries]             0x0100  evicted: code and sentence
 *   then    arena [arena_bytes]              0x1000  llm_cqe [cq_entries]
 *                                            then    llm_result [cq_entries]
 *                                            then    llm_candidate [cq_entries][top], if granted;
 *                                                    the likeliest first, then token -1
 *
 * pulse    0x0000 header (immutable)   0x0040 state   0x0080 need_wakeup   0x00C0 heartbeat_ns
 *
 * Cursors are free-running u32, masked on access; sq_entries and cq_entries are powers of two. A
 * cursor is alone on its 64-byte line and is its own futex word.
 */
#ifndef LLMD_SEGMENT_H
#define LLMD_SEGMENT_H

#include <stdalign.h>

#include "llm_abi.h"
#include "order.h"

#define LLM_MAGIC_DOWN  0x4e574f44444d4c4cULL /* "LLMDDOWN" */
#define LLM_MAGIC_PULSE 0x534c5550444d4c4cULL /* "LLMDPULS" */

enum {
    LLM_LINE = 64,
    LLM_HEADER_BYTES = 4096,
    LLM_SQ_ENTRIES_MAX = 4096,
    LLM_CQ_ENTRIES_MAX = 65536,
    LLM_ARENA_BYTES_MAX = 64 << 20,
    LLM_EVICT_TEXT = 240
};

enum llm_state {
    LLM_STATE_STARTING = 0,
    LLM_STATE_READY = 1,
    LLM_STATE_DRAINING = 2, /* SIGTERM came: refuses new requests, lets the others end */
    LLM_STATE_STOPPED = 3
};

enum llm_wait { LLM_WAIT_NONE = 0, LLM_WAIT_FUTEX = 1, LLM_WAIT_BELL = 2 };

struct llm_up {
    uint8_t header[LLM_LINE];
    alignas(64) order_u32 sq_tail;          /* entries submitted */
    alignas(64) order_u32 cq_head;          /* completions taken */
    alignas(64) order_u32 cq_wait;          /* enum llm_wait: how the client sleeps */
    alignas(4096) struct llm_sqe entries[]; /* then the arena */
};

struct llm_down {
    uint64_t magic;
    uint16_t abi_major, abi_minor;
    uint32_t client; /* slot */
    uint32_t generation;
    uint32_t sq_entries, cq_entries;
    uint32_t max_inflight; /* M: finals that may be owed; tokens use cq_entries - M */
    uint32_t arena_bytes;
    uint32_t top;                  /* candidates of a token; 0: no room for any (minor 0: always) */
    uint64_t epoch;                /* of the engine, random */
    alignas(64) order_u32 sq_head; /* entries copied; their arena bytes are free */
    alignas(64) order_u32 cq_tail; /* completions published */
    alignas(64) order_u32 cq_held; /* 1: the engine sleeps holding tokens for this full ring */
    alignas(64) order_u32
        evicted; /* 0, or 1: the engine reads this channel no more (text before, release) */
    int32_t evict_code;
    char evict_text[LLM_EVICT_TEXT];
    alignas(4096) struct llm_cqe entries[]; /* then results, then candidates */
};

struct llm_pulse {
    uint64_t magic;
    uint16_t abi_major, abi_minor;
    uint32_t pid;
    uint64_t epoch;
    uint32_t vocab, max_model_len;
    alignas(64) order_u32 state;       /* enum llm_state */
    alignas(64) order_u32 need_wakeup; /* 1: the engine sleeps or is about to */
    alignas(64) order_u64 heartbeat_ns;
};

_Static_assert(offsetof(struct llm_up, sq_tail) == 0x40 &&
                   offsetof(struct llm_up, cq_head) == 0x80 &&
                   offsetof(struct llm_up, cq_wait) == 0xC0 &&
                   offsetof(struct llm_up, entries) == 0x1000,
               "up layout");
_Static_assert(offsetof(struct llm_down, top) == 0x24 && offsetof(struct llm_down, epoch) == 0x28 &&
                   offsetof(struct llm_down, sq_head) == 0x40 &&
                   offsetof(struct llm_down, cq_tail) == 0x80 &&
                   offsetof(struct llm_down, cq_held) == 0xC0 &&
                   offsetof(struct llm_down, evicted) == 0x100 &&
                   offsetof(struct llm_down, entries) == 0x1000,
               "down layout");
_Static_assert(offsetof(struct llm_pulse, state) == 0x40 &&
                   offsetof(struct llm_pulse, need_wakeup) == 0x80 &&
                   offsetof(struct llm_pulse, heartbeat_ns) == 0xC0,
               "pulse layout");

static inline uint64_t llm_up_bytes(uint32_t sq_entries, uint32_t arena_bytes)
{
    return LLM_HEADER_BYTES + (uint64_t)sq_entries * sizeof(struct llm_sqe) + arena_bytes;
}
static inline uint64_t llm_down_bytes(uint32_t cq_entries)
{
    return LLM_HEADER_BYTES +
           (uint64_t)cq_entries * (sizeof(struct llm_cqe) + sizeof(struct llm_result));
}
/* The candidates behind them. */
static inline uint64_t llm_top_bytes(uint32_t cq_entries, uint32_t top)
{
    return (uint64_t)cq_entries * top * sizeof(struct llm_candidate);
}

#endif
