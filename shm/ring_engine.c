/* ring_engine.c - the engine's end of a channel: judges what a client wrote, publishes completions.
 *
 * Invariants
 *   1. Cursors and geometry are private: `down` is only written, `up` is only read.
 *   2. A client's byte is read once, into our memory, and the copy is judged. After each copy
 * stands a compiler barrier: the compiler may not fetch the source again.
 *   3. (cq_tail - cq_head) + inflight <= cq_entries: ring_taken refuses what would break it, tokens
 *      leave the last max_inflight entries alone, and cq_head only grows. So a final always fits.
 *   4. cq_head <= cq_published <= cq_tail and sq_head <= sq_tail <= sq_head + sq_entries, as
 *      distances of free-running cursors.
 *
 * Fences: see order.h.
 */
#include <assert.h>
#include <string.h>

#include "ring.h"

static void copied(void)
{
    __asm__ volatile("" ::: "memory");
}

/* True if the free-running cursor lies in from .. to. */
static bool cursor_in(uint32_t cursor, uint32_t from, uint32_t to)
{
    return cursor - from <= to - from;
}

void ring_engine_init(struct ring_engine *r, const struct llm_up *up, struct llm_down *down,
                      uint32_t sq_entries, uint32_t cq_entries, uint32_t arena_bytes,
                      uint32_t max_inflight, uint32_t client, uint32_t generation, uint64_t epoch)
{
    assert(sq_entries && !(sq_entries & (sq_entries - 1)) && sq_entries <= LLM_SQ_ENTRIES_MAX);
    assert(cq_entries && !(cq_entries & (cq_entries - 1)) && cq_entries <= LLM_CQ_ENTRIES_MAX);
    assert(max_inflight && max_inflight < cq_entries);
    assert(arena_bytes && arena_bytes % sizeof(int32_t) == 0 && arena_bytes <= LLM_ARENA_BYTES_MAX);
    memset(down, 0, LLM_HEADER_BYTES);
    down->abi_major = LLM_ABI_MAJOR;
    down->abi_minor = LLM_ABI_MINOR;
    down->client = client;
    down->generation = generation;
    down->sq_entries = sq_entries;
    down->cq_entries = cq_entries;
    down->max_inflight = max_inflight;
    down->arena_bytes = arena_bytes;
    down->epoch = epoch;
    down->magic = LLM_MAGIC_DOWN;
    memset(r, 0, sizeof *r);
    r->up = up;
    r->down = down;
    r->arena = (const uint8_t *)&up->entries[sq_entries];
    r->sq_entries = sq_entries;
    r->cq_entries = cq_entries;
    r->arena_bytes = arena_bytes;
    r->max_inflight = max_inflight;
}

void ring_engine_top(struct ring_engine *r, uint32_t top)
{
    assert(top <= LLM_TOP_MAX);
    r->down->top = r->top = top;
}

/* ---- submissions ---- */

/* sq_tail first: reading cq_head before it would make an honest client look guilty, because the
 * head that made room for an entry is published before the entry. */
int ring_sweep(struct ring_engine *r, const char **why)
{
    uint32_t tail = order_acquire(&r->up->sq_tail); /* pairs with ring_submit */
    uint32_t head = order_acquire(&r->up->cq_head); /* pairs with ring_drained, ring_submit */
    if (tail - r->sq_head > r->sq_entries) {
        *why = "sq_tail jumped beyond the submission ring";
        return LLM_EPROTO;
    }
    if (!cursor_in(r->sq_tail, r->sq_head, tail)) {
        *why = "sq_tail moved backwards";
        return LLM_EPROTO;
    }
    if (!cursor_in(head, r->cq_head, r->cq_published)) {
        *why = "cq_head moved backwards or beyond the published completions";
        return LLM_EPROTO;
    }
    r->sq_tail = tail;
    r->cq_head = head;
    return (int)(tail - r->sq_head);
}

int ring_take(struct ring_engine *r, struct llm_sqe *out, const char **why)
{
    assert(r->sq_head != r->sq_tail);
    memcpy(out, &r->up->entries[r->sq_head & (r->sq_entries - 1)], sizeof *out);
    copied();
    if (out->seq != r->sq_head) {
        *why = "a submission entry carries the wrong sequence number";
        return LLM_EPROTO;
    }
    return 0;
}

int ring_take_tokens(struct ring_engine *r, const struct llm_sqe *copy, int32_t *dst,
                     const char **why)
{
    uint64_t bytes = (uint64_t)copy->tokens_len * sizeof *dst;
    if (copy->tokens_off % sizeof *dst) {
        *why = "tokens_off is not a multiple of 4";
        return LLM_EPROTO;
    }
    if (copy->tokens_off + bytes > r->arena_bytes) {
        *why = "the prompt's tokens lie outside the arena";
        return LLM_EPROTO;
    }
    memcpy(dst, r->arena + copy->tokens_off, bytes);
    copied();
    return 0;
}

int ring_take_options(struct ring_engine *r, const struct llm_sqe *copy, uint8_t *dst,
                      const char **why)
{
    if ((uint64_t)copy->options_off + copy->options_len > r->arena_bytes) {
        *why = "the option map lies outside the arena";
        return LLM_EPROTO;
    }
    memcpy(dst, r->arena + copy->options_off, copy->options_len);
    copied();
    return 0;
}

int ring_taken(struct ring_engine *r, uint32_t finals, const char **why)
{
    assert(r->sq_head != r->sq_tail);
    if ((uint64_t)r->inflight + finals > r->max_inflight) {
        *why = "more completions are in flight than max_inflight allows";
        return LLM_EPROTO;
    }
    if ((uint64_t)(r->cq_tail - r->cq_head) + r->inflight + finals > r->cq_entries) {
        *why = "a request was submitted while the completion ring has no room for its end";
        return LLM_EPROTO;
    }
    r->inflight += finals;
    r->sq_head++;
    order_release(&r->down->sq_head, r->sq_head); /* our copies were taken before; pairs with the
                                                     client's reclaim */
    return 0;
}

/* ---- completions ---- */

/* A cq_head that makes no sense is ignored here; the next ring_sweep evicts its writer. */
static void refresh_cq_head(struct ring_engine *r)
{
    uint32_t head = order_acquire(&r->up->cq_head); /* pairs with ring_drained, ring_submit */
    if (cursor_in(head, r->cq_head, r->cq_published))
        r->cq_head = head;
}

static uint32_t room_left(const struct ring_engine *r)
{
    uint32_t used = r->cq_tail - r->cq_head, limit = r->cq_entries - r->max_inflight;
    return used < limit ? limit - used : 0;
}

uint32_t ring_token_room(struct ring_engine *r)
{
    uint32_t room = room_left(r);
    if (room)
        return room;
    refresh_cq_head(r);
    return room_left(r);
}

void ring_put(struct ring_engine *r, const struct llm_cqe *cqe, const struct llm_result *result)
{
    static const struct llm_result none;
    bool final = cqe->type != LLM_CQE_TOKENS;
    assert(final ? r->inflight && r->cq_tail - r->cq_head < r->cq_entries : room_left(r));
    uint32_t slot = r->cq_tail & (r->cq_entries - 1);
    struct llm_result *results = (void *)&r->down->entries[r->cq_entries];
    r->down->entries[slot] = *cqe;
    r->down->entries[slot].seq = r->cq_tail;
    if (final)
        results[slot] = result ? *result : none;
    r->inflight -= final;
    r->cq_tail++;
}

void ring_put_top(struct ring_engine *r, const struct llm_candidate *top, uint32_t n)
{
    static const struct llm_candidate end = {.token = -1};
    assert(n <= r->top);
    struct llm_result *results = (void *)&r->down->entries[r->cq_entries];
    struct llm_candidate *to = (void *)&results[r->cq_entries];
    to += (uint64_t)(r->cq_tail & (r->cq_entries - 1)) * r->top;
    memcpy(to, top, n * sizeof *top);
    if (n < r->top)
        to[n] = end;
}

void ring_fetch(const struct ring_engine *r, uint32_t n)
{
    __builtin_prefetch(&r->down->entries[(r->cq_tail + n) & (r->cq_entries - 1)], 1);
    if (n)
        return;
    __builtin_prefetch(&r->down->cq_tail, 1);
    __builtin_prefetch(&r->up->cq_wait);
    __builtin_prefetch(&r->up->cq_head);
    __builtin_prefetch(&r->up->sq_tail);
}

bool ring_publish(struct ring_engine *r)
{
    if (r->cq_published == r->cq_tail)
        return false;
    r->cq_published = r->cq_tail;
    order_release(&r->down->cq_tail,
                  r->cq_tail); /* entries before the tail; pairs with ring_poll */
    return true;
}

/* E2: every cq_tail is stored before any cq_wait is read. Pairs with C2 (ring_wait_begin): either
 * we see that the client sleeps, or its recheck sees the completion. */
void ring_after_publish(void)
{
    order_fence();
}

enum llm_wait ring_wants_wake(const struct ring_engine *r)
{
    uint32_t wait = order_relaxed(&r->up->cq_wait);
    return wait == LLM_WAIT_FUTEX || wait == LLM_WAIT_BELL ? (enum llm_wait)wait : LLM_WAIT_NONE;
}

/* ---- sleeping ---- */

void ring_arm_all(struct llm_pulse *pulse)
{
    order_set(&pulse->need_wakeup, 1);
}

void ring_arm(struct ring_engine *r, bool held)
{
    order_set(&r->down->cq_held, held);
}

/* E1: need_wakeup and cq_held are stored before sq_tail and cq_head are read again. Pairs with C1
 * (ring_submit) and C3 (ring_drained): either the client sees the flag and wakes us, or ring_rescan
 * sees what it did. */
void ring_arm_fence(void)
{
    order_fence();
}

bool ring_rescan(struct ring_engine *r, bool held)
{
    return order_acquire(&r->up->sq_tail) != r->sq_tail ||
           (held && order_acquire(&r->up->cq_head) != r->cq_head);
}

void ring_disarm(struct ring_engine *r)
{
    order_set(&r->down->cq_held, 0);
}

void ring_disarm_all(struct llm_pulse *pulse)
{
    order_set(&pulse->need_wakeup, 0);
}

/* ---- eviction ---- */

void ring_evict(struct ring_engine *r, int code, const char *text)
{
    struct llm_down *down = r->down;
    size_t n = strnlen(text, sizeof down->evict_text - 1);
    memcpy(down->evict_text, text, n);
    down->evict_text[n] = 0;
    down->evict_code = code;
    order_release(&down->evicted, 1); /* code and text before; pairs with the client's acquire */
}
