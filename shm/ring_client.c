/* ring_client.c - the client's end of a channel: submissions and the arena out, completions in.
 *
 * Invariants
 *   1. Cursors are private here and only stored to shared memory; what is read back from `down` is
 *      checked against them. Nonsense sets `broken` and is never followed.
 *   2. arena_tail .. arena_head are the bytes that the engine may still read; spans lie in it in
 *      submission order, each contiguous. `inflight` never exceeds max_inflight.
 *   3. Every cq_head that made room for a submission is visible to the engine before it (sq_tail).
 *
 * The arena: cursors run modulo twice its size, so that full and empty differ for any size.
 *
 *       0         tail             head   reserve(n)          A
 *       |  free   |  engine's spans |  free  |    does not fit |
 *       |<-- n -->|                          |<--- skipped --->|    the span starts anew at 0
 *
 * A skipped end is given back with the entry behind it. Fences: see order.h.
 */
#include <assert.h>
#include <string.h>

#include "ring.h"

static bool power_of_two(uint32_t n)
{
    return n && !(n & (n - 1));
}

static bool geometry_ok(uint32_t sq_entries, uint32_t cq_entries, uint32_t arena_bytes,
                        uint32_t max_inflight)
{
    return power_of_two(sq_entries) && sq_entries <= LLM_SQ_ENTRIES_MAX &&
           power_of_two(cq_entries) && cq_entries <= LLM_CQ_ENTRIES_MAX && arena_bytes &&
           arena_bytes % sizeof(int32_t) == 0 && arena_bytes <= LLM_ARENA_BYTES_MAX &&
           max_inflight && max_inflight < cq_entries;
}

int ring_client_init(struct ring_client *r, struct llm_up *up, const struct llm_down *down,
                     const struct llm_pulse *pulse, uint32_t sq_entries, uint32_t cq_entries,
                     uint32_t arena_bytes, uint32_t max_inflight)
{
    if (!geometry_ok(sq_entries, cq_entries, arena_bytes, max_inflight))
        return LLM_EPROTO;
    if (down->magic != LLM_MAGIC_DOWN || down->abi_major != LLM_ABI_MAJOR ||
        down->sq_entries != sq_entries || down->cq_entries != cq_entries ||
        down->arena_bytes != arena_bytes || down->max_inflight != max_inflight)
        return LLM_EPROTO;
    memset(r, 0, sizeof *r);
    r->up = up;
    r->down = down;
    r->pulse = pulse;
    r->arena = (uint8_t *)&up->entries[sq_entries];
    r->sq_entries = sq_entries;
    r->cq_entries = cq_entries;
    r->arena_bytes = arena_bytes;
    r->max_inflight = max_inflight;
    return 0;
}

int ring_client_top(struct ring_client *r, uint32_t top)
{
    if (top > LLM_TOP_MAX || r->down->top != top)
        return LLM_EPROTO;
    r->top = top;
    return 0;
}

/* ---- submissions ---- */

/* Bytes from cursor a on to cursor b. */
static uint32_t arena_distance(const struct ring_client *r, uint32_t a, uint32_t b)
{
    return (b + 2 * r->arena_bytes - a) % (2 * r->arena_bytes);
}

/* Learns how far the engine has copied, and takes the arena bytes of those entries back. The
 * acquire pairs with the release in ring_taken: the engine's reads came before. */
static void reclaim(struct ring_client *r)
{
    uint32_t head = order_acquire(&r->down->sq_head);
    if (head - r->arena_freed_seq > r->sq_tail - r->arena_freed_seq) {
        r->broken = "the engine claims to have taken entries that were never submitted";
        return;
    }
    if (head == r->arena_freed_seq)
        return;
    r->arena_tail = r->arena_end[(head - 1) & (r->sq_entries - 1)];
    r->arena_freed_seq = head;
}

int32_t *ring_reserve(struct ring_client *r, uint32_t tokens)
{
    uint64_t bytes = (uint64_t)tokens * sizeof(int32_t);
    if (bytes > r->arena_bytes || r->broken)
        return NULL;
    reclaim(r);
    if (r->broken)
        return NULL;
    /* Only when no entry is left may the cursors jump: each entry ends at one of them. */
    if (r->arena_freed_seq == r->sq_tail)
        r->arena_head = r->arena_tail = 0;
    uint32_t offset = r->arena_head % r->arena_bytes;
    uint32_t skip = bytes > r->arena_bytes - offset ? r->arena_bytes - offset : 0;
    if (arena_distance(r, r->arena_tail, r->arena_head) + skip + bytes > r->arena_bytes)
        return NULL;
    r->reserved_at = (r->arena_head + skip) % (2 * r->arena_bytes);
    r->reserved_bytes = (uint32_t)bytes;
    return (int32_t *)(void *)(r->arena + r->reserved_at % r->arena_bytes);
}

struct llm_sqe *ring_next(struct ring_client *r, uint32_t finals)
{
    if (r->broken || finals > r->max_inflight - r->inflight)
        return NULL;
    if (r->sq_tail - r->arena_freed_seq == r->sq_entries)
        reclaim(r);
    if (r->broken || r->sq_tail - r->arena_freed_seq == r->sq_entries)
        return NULL;
    struct llm_sqe *e = &r->up->entries[r->sq_tail & (r->sq_entries - 1)];
    memset(e, 0, sizeof *e);
    return e;
}

/* Bytes of an entry in the arena: its tokens, and the option map directly behind them. */
static uint64_t span_bytes(const struct llm_sqe *e)
{
    uint64_t tokens = (uint64_t)e->tokens_len * sizeof(int32_t);
    assert(!e->options_len || e->options_off == e->tokens_off + tokens);
    return tokens + ((uint64_t)e->options_len + 3) / 4 * 4;
}

void ring_commit(struct ring_client *r, uint32_t finals)
{
    assert(r->sq_tail - r->arena_freed_seq < r->sq_entries);
    assert(finals <= r->max_inflight - r->inflight);
    struct llm_sqe *e = &r->up->entries[r->sq_tail & (r->sq_entries - 1)];
    uint64_t bytes = span_bytes(e);
    if (bytes) {
        assert(bytes <= r->reserved_bytes && e->tokens_off == r->reserved_at % r->arena_bytes);
        r->arena_head = (r->reserved_at + (uint32_t)bytes) % (2 * r->arena_bytes);
        r->reserved_bytes = 0;
    }
    e->seq = r->sq_tail;
    r->arena_end[r->sq_tail & (r->sq_entries - 1)] = r->arena_head;
    r->sq_tail++;
    r->inflight += finals;
}

/* C1: sq_tail is stored before need_wakeup is read. Pairs with E1 (ring_arm_fence): either this
 * read sees the flag, or the engine's rescan sees the tail. cq_head goes first, because the engine
 * judges the room for our finals by it; if the engine sleeps with held tokens, the wake for sq_tail
 * makes it look at cq_head too. */
bool ring_submit(struct ring_client *r)
{
    if (r->cq_released != r->cq_head) {
        order_release(&r->up->cq_head, r->cq_head);
        r->cq_released = r->cq_head;
    }
    order_release(&r->up->sq_tail, r->sq_tail);
    order_fence();
    return order_relaxed(&r->pulse->need_wakeup) != 0;
}

/* ---- completions ---- */

/* NULL, or what is wrong with a completion that was copied from the ring. */
static const char *completion_fault(const struct ring_client *r, const struct llm_cqe *cqe)
{
    if (cqe->seq != r->cq_head)
        return "a completion of the engine carries the wrong sequence number";
    if (cqe->type < LLM_CQE_TOKENS || cqe->type > LLM_CQE_ERROR || cqe->choice >= LLM_CHOICES_MAX)
        return "a completion of the engine has an unknown type or choice";
    if (cqe->type == LLM_CQE_TOKENS && (cqe->count < 1 || cqe->count > LLM_CQE_TOKENS_MAX))
        return "a completion of the engine counts more tokens than it can hold";
    if (cqe->flags & LLM_CQE_HAS_TOP && (!r->top || cqe->type != LLM_CQE_TOKENS || cqe->count != 1))
        return "a completion of the engine has candidates where none can be";
    if (cqe->type != LLM_CQE_TOKENS && !r->inflight)
        return "the engine completed more requests than were submitted";
    return NULL;
}

/* They end with a token of -1, or where their place does. */
static void copy_candidates(struct ring_client *r, uint32_t slot)
{
    const struct llm_result *results = (const void *)&r->down->entries[r->cq_entries];
    const struct llm_candidate *top = (const void *)&results[r->cq_entries];
    memcpy(r->candidates, top + (uint64_t)slot * r->top, r->top * sizeof *top);
    __asm__ volatile("" ::: "memory"); /* as in copy_completion */
    r->n_candidates = 0;
    while (r->n_candidates < r->top && r->candidates[r->n_candidates].token != -1)
        r->n_candidates++;
}

static void copy_completion(const struct ring_client *r, struct llm_cqe *cqe,
                            struct llm_result *result)
{
    uint32_t slot = r->cq_head & (r->cq_entries - 1);
    const struct llm_result *results = (const void *)&r->down->entries[r->cq_entries];
    memcpy(cqe, &r->down->entries[slot], sizeof *cqe);
    if (cqe->type == LLM_CQE_TOKENS)
        memset(result, 0, sizeof *result);
    else
        memcpy(result, &results[slot], sizeof *result);
    __asm__ volatile("" ::: "memory"); /* what is judged below is the copy, never a second read */
}

bool ring_poll(struct ring_client *r, struct llm_cqe *cqe, struct llm_result *result)
{
    if (r->broken)
        return false;
    uint32_t tail = order_acquire(&r->down->cq_tail); /* pairs with ring_publish */
    if (tail == r->cq_head)
        return false;
    if (tail - r->cq_head > r->cq_entries) {
        r->broken = "the engine's completion cursor jumped beyond the ring";
        return false;
    }
    copy_completion(r, cqe, result);
    r->broken = completion_fault(r, cqe);
    if (r->broken)
        return false;
    if (cqe->flags & LLM_CQE_HAS_TOP)
        copy_candidates(r, r->cq_head & (r->cq_entries - 1));
    r->inflight -= cqe->type != LLM_CQE_TOKENS;
    r->cq_head++;
    return true;
}

/* C3: cq_head is stored before cq_held is read. Pairs with E1 (ring_arm_fence): either this read
 * sees that tokens are held, or the engine's rescan sees the new head. */
bool ring_drained(struct ring_client *r)
{
    if (r->cq_released == r->cq_head)
        return false;
    order_release(&r->up->cq_head, r->cq_head);
    r->cq_released = r->cq_head;
    order_fence();
    return order_relaxed(&r->down->cq_held) != 0;
}

/* C2: cq_wait is stored before cq_tail is read again. Pairs with E2 (ring_after_publish): either
 * this recheck sees the completion, or the engine sees that we sleep. */
bool ring_wait_begin(struct ring_client *r, enum llm_wait kind, uint32_t *expected)
{
    assert(r->cq_released == r->cq_head); /* else both sides might sleep: C3 was left out */
    order_set(&r->up->cq_wait, kind);
    order_fence();
    *expected = r->cq_head;
    if (order_acquire(&r->down->cq_tail) == r->cq_head)
        return true;
    order_set(&r->up->cq_wait, LLM_WAIT_NONE);
    return false;
}

void ring_wait_end(struct ring_client *r)
{
    order_set(&r->up->cq_wait, LLM_WAIT_NONE);
}
