/* ring_channel.h - both ends of a channel in one thread, over plain memory, for the tests of the
 * ring.
 *
 * The geometry is small so that every edge comes up often, and cursors start just below 2^32.
 */
#ifndef LLMD_TESTS_RING_CHANNEL_H
#define LLMD_TESTS_RING_CHANNEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../shm/ring.h"

enum { SQ = 8, CQ = 16, M = 5, ARENA = 100 }; /* ARENA: no power of two */
#define START 0xFFFFFFFAu

struct channel {
    struct ring_client c;
    struct ring_engine e;
    struct llm_up *up;
    struct llm_down *down;
    struct llm_pulse *pulse;
};

static inline void *pages(uint64_t bytes)
{
    size_t whole = (size_t)(bytes + 4095) / 4096 * 4096;
    void *p = aligned_alloc(4096, whole);
    assert_non_null(p);
    return memset(p, 0, whole);
}

static inline int join(struct channel *ch, uint32_t sq, uint32_t cq, uint32_t arena, uint32_t m)
{
    return ring_client_init(&ch->c, ch->up, ch->down, ch->pulse, sq, cq, arena, m);
}

/* Every cursor starts at START. */
static inline int setup(void **state)
{
    struct channel *ch = calloc(1, sizeof *ch);
    ch->up = pages(llm_up_bytes(SQ, ARENA));
    ch->down = pages(llm_down_bytes(CQ));
    ch->pulse = pages(sizeof *ch->pulse);
    ring_engine_init(&ch->e, ch->up, ch->down, SQ, CQ, ARENA, M, 3, 7, 99);
    assert_int_equal(join(ch, SQ, CQ, ARENA, M), 0);
    order_set(&ch->up->sq_tail, START);
    order_set(&ch->up->cq_head, START);
    order_set(&ch->down->sq_head, START);
    order_set(&ch->down->cq_tail, START);
    ch->c.sq_tail = ch->c.cq_head = ch->c.cq_released = ch->c.arena_freed_seq = START;
    ch->e.sq_head = ch->e.sq_tail = START;
    ch->e.cq_tail = ch->e.cq_published = ch->e.cq_head = START;
    *state = ch;
    return 0;
}

static inline int teardown(void **state)
{
    struct channel *ch = *state;
    free(ch->up);
    free(ch->down);
    free(ch->pulse);
    free(ch);
    return 0;
}

/* ---- the two sides, a step at a time ---- */

static inline bool submit(struct channel *ch, uint64_t id, uint32_t finals)
{
    struct llm_sqe *e = ring_next(&ch->c, finals);
    if (!e)
        return false;
    e->op = LLM_OP_NOP;
    e->user_data = id;
    ring_commit(&ch->c, finals);
    ring_submit(&ch->c);
    return true;
}

/* A prompt of n tokens: id, id + 1, ... */
static inline bool submit_prompt(struct channel *ch, uint64_t id, uint32_t n)
{
    int32_t *tokens = ring_reserve(&ch->c, n);
    struct llm_sqe *e = tokens ? ring_next(&ch->c, 1) : NULL;
    if (!e)
        return false;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)id + (int32_t)i;
    e->op = LLM_OP_GENERATE;
    e->user_data = id;
    e->tokens_off = (uint32_t)((uint8_t *)tokens - ch->c.arena);
    e->tokens_len = n;
    ring_commit(&ch->c, 1);
    ring_submit(&ch->c);
    return true;
}

/* Takes one entry that ring_sweep has counted and checks its prompt. */
static inline uint64_t take(struct channel *ch, uint32_t finals)
{
    const char *why = NULL;
    struct llm_sqe sqe;
    int32_t tokens[ARENA / 4];
    assert_int_equal(ring_take(&ch->e, &sqe, &why), 0);
    assert_int_equal(ring_take_tokens(&ch->e, &sqe, tokens, &why), 0);
    for (uint32_t i = 0; i < sqe.tokens_len; i++)
        assert_int_equal(tokens[i], (int32_t)sqe.user_data + (int32_t)i);
    assert_int_equal(ring_taken(&ch->e, finals, &why), 0);
    return sqe.user_data;
}

static inline int sweep(struct channel *ch)
{
    const char *why = NULL;
    int n = ring_sweep(&ch->e, &why);
    assert_true(n >= 0 || why);
    return n;
}

static inline void put(struct channel *ch, uint16_t type, uint64_t id, uint32_t position)
{
    struct llm_cqe cqe = {.user_data = id, .type = type, .position = position};
    cqe.count = type == LLM_CQE_TOKENS;
    cqe.tokens[0] = (int32_t)position;
    ring_put(&ch->e, &cqe, NULL);
}

static inline void expect(struct channel *ch, uint16_t type, uint64_t id, uint32_t position)
{
    struct llm_cqe cqe;
    struct llm_result result;
    assert_true(ring_poll(&ch->c, &cqe, &result));
    assert_int_equal(cqe.type, type);
    assert_int_equal(cqe.user_data, id);
    assert_int_equal(cqe.position, position);
}

static inline void expect_nothing(struct channel *ch)
{
    struct llm_cqe cqe;
    struct llm_result result;
    assert_false(ring_poll(&ch->c, &cqe, &result));
    assert_null(ch->c.broken);
}

/* One request is with the engine, and its tokens fill the ring. */
static inline void fill_with_tokens(struct channel *ch)
{
    assert_true(submit(ch, 1, 1));
    assert_int_equal(sweep(ch), 1);
    take(ch, 1);
    for (uint32_t i = 0; ring_token_room(&ch->e); i++)
        put(ch, LLM_CQE_TOKENS, 1, i);
    ring_publish(&ch->e);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
