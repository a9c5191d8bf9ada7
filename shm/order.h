/* order.h - every atomic access to shared memory goes through here, and names its partner.
 *
 *   word           writer                 reader                 orders
 *   up.sq_tail     client  order_release  engine  order_acquire  entries and arena before the tail
 *   down.sq_head   engine  order_release  client  order_acquire  the copy taken before the head
 *   down.cq_tail   engine  order_release  client  order_acquire  completions before the tail
 *   up.cq_head     client  order_release  engine  order_acquire  completions read before the head
 *   pulse.need_wakeup, up.cq_wait, down.cq_held   order_relaxed on both sides: the fences give them
 *                                                 their meaning
 *
 *   fence   side     between                                     pairs with   stands in
 *   C1      client   sq_tail -> need_wakeup                      E1           ring_submit
 *   E1      engine   need_wakeup, cq_held -> sq_tail, cq_head    C1, C3       ring_arm_fence
 *   E2      engine   cq_tail -> cq_wait                          C2           ring_after_publish
 *   C2      client   cq_wait -> cq_tail                          E2           ring_wait_begin
 *   C3      client   cq_head -> cq_held                          E1           ring_drained
 *
 * Words are u32 and naturally aligned, alone on their cache line.
 */
#ifndef LLMD_ORDER_H
#define LLMD_ORDER_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint32_t order_u32;
typedef _Atomic uint64_t order_u64;

static inline uint32_t order_acquire(const order_u32 *p)
{
    return atomic_load_explicit((order_u32 *)p, memory_order_acquire);
}
static inline void order_release(order_u32 *p, uint32_t v)
{
    atomic_store_explicit(p, v, memory_order_release);
}
static inline uint32_t order_relaxed(const order_u32 *p)
{
    return atomic_load_explicit((order_u32 *)p, memory_order_relaxed);
}
static inline void order_set(order_u32 *p, uint32_t v)
{
    atomic_store_explicit(p, v, memory_order_relaxed);
}

/* TSan does not model fences, and gcc warns of each. The cursors' acquire and release carry all
 * data here; the fences only order flags, so TSan misses nothing and reports nothing false. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
static inline void order_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

/* Counters with one writer: readers may see any recent value. */
static inline uint64_t order_read64(const order_u64 *p)
{
    return atomic_load_explicit((order_u64 *)p, memory_order_relaxed);
}
static inline void order_set64(order_u64 *p, uint64_t v)
{
    atomic_store_explicit(p, v, memory_order_relaxed);
}
static inline uint64_t order_acquire64(const order_u64 *p)
{
    return atomic_load_explicit((order_u64 *)p, memory_order_acquire);
}
static inline void order_release64(order_u64 *p, uint64_t v)
{
    atomic_store_explicit(p, v, memory_order_release);
}

#endif
