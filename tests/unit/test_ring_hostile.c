/* test_ring_hostile.c - what either end of a channel does with nonsense from the other.
 * Failure test (8), with the fuzzers of both ends (tests/fuzz/fuzz_rings.c, fuzz_completions.c).
 */
#include "ring_channel.h"

/* ---- a hostile client ---- */

static void expect_guilty(struct channel *ch)
{
    const char *why = NULL;
    assert_int_equal(ring_sweep(&ch->e, &why), LLM_EPROTO);
    assert_non_null(why);
}

static void tail_jumps_are_refused(void **state)
{
    struct channel *ch = *state;
    const uint32_t wrong[] = {START + SQ + 1, START - 1, START + 0x80000000u, 0x7FFFFFFF, 1000};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        order_set(&ch->up->sq_tail, wrong[i]);
        expect_guilty(ch);
    }
    order_set(&ch->up->sq_tail, START + SQ);
    assert_int_equal(sweep(ch), SQ);
    order_set(&ch->up->sq_tail, START + SQ - 1); /* within the ring, but backwards */
    expect_guilty(ch);
}

static void head_jumps_are_refused(void **state)
{
    struct channel *ch = *state;
    submit(ch, 1, 1);
    sweep(ch);
    take(ch, 1);
    for (int i = 0; i < 4; i++)
        put(ch, LLM_CQE_TOKENS, 1, 0);
    order_set(&ch->up->cq_head, START + 1); /* put, but not published */
    expect_guilty(ch);
    ring_publish(&ch->e);
    order_set(&ch->up->cq_head, START + 5);
    expect_guilty(ch);
    order_set(&ch->up->cq_head, START + 4);
    assert_int_equal(sweep(ch), 0);
    order_set(&ch->up->cq_head, START + 3);
    expect_guilty(ch);
}

/* A lie about cq_head gains no room, whoever reads it. */
static void a_false_head_makes_no_room(void **state)
{
    struct channel *ch = *state;
    fill_with_tokens(ch);
    order_set(&ch->up->cq_head, ch->e.cq_tail + 1);
    assert_int_equal(ring_token_room(&ch->e), 0);
    order_set(&ch->up->cq_head, ch->e.cq_head - 1);
    assert_int_equal(ring_token_room(&ch->e), 0);
    order_set(&ch->up->cq_head, ch->e.cq_tail);
    assert_int_equal(ring_token_room(&ch->e), CQ - M);
}

static void a_wrong_sequence_number_is_refused(void **state)
{
    struct channel *ch = *state;
    const char *why = NULL;
    struct llm_sqe sqe;
    submit(ch, 1, 1);
    sweep(ch);
    ch->up->entries[START % SQ].seq++;
    assert_int_equal(ring_take(&ch->e, &sqe, &why), LLM_EPROTO);
    assert_non_null(why);
}

static void spans_outside_the_arena_are_refused(void **state)
{
    struct channel *ch = *state;
    static const struct {
        uint32_t off, len;
        bool ok;
    } span[] = {
        {0, ARENA / 4, true},
        {ARENA, 0, true},
        {ARENA - 4, 1, true},
        {0, ARENA / 4 + 1, false},
        {4, ARENA / 4, false},
        {ARENA, 1, false},
        {ARENA + 4, 0, false},
        {2, 1, false},
        {0xFFFFFFFC, 1, false},
        {0xFFFFFFFC, 0xFFFFFFFF, false},
        {0, 0x40000000, false},
        {4, 0x3FFFFFFF, false},
        {0x80000000, 0x80000000, false},
    };
    int32_t tokens[ARENA / 4];
    for (size_t i = 0; i < sizeof span / sizeof *span; i++) {
        const char *why = NULL;
        struct llm_sqe sqe = {.tokens_off = span[i].off, .tokens_len = span[i].len};
        int rc = ring_take_tokens(&ch->e, &sqe, tokens, &why);
        assert_int_equal(rc, span[i].ok ? 0 : LLM_EPROTO);
        assert_true(span[i].ok == !why);
    }
}

static void too_many_in_flight_are_refused(void **state)
{
    struct channel *ch = *state;
    const char *why = NULL;
    submit(ch, 1, 1);
    sweep(ch);
    assert_int_equal(ring_taken(&ch->e, M + 1, &why), LLM_EPROTO);
    assert_int_equal(ring_taken(&ch->e, UINT32_MAX, &why), LLM_EPROTO);
    assert_int_equal(ch->e.inflight, 0);
    assert_int_equal(ring_taken(&ch->e, M, &why), 0);
}

/* Never taking a completion and submitting on: in flight stays low, but the ring fills. */
static void a_full_ring_of_finals_is_refused(void **state)
{
    struct channel *ch = *state;
    const char *why = NULL;
    for (int i = 0; i < CQ; i++) {
        ch->c.inflight = 0; /* the client forgets what it is owed */
        assert_true(submit(ch, 1, 1));
        assert_int_equal(sweep(ch), 1);
        take(ch, 1);
        put(ch, LLM_CQE_DONE, 1, 0);
        ring_publish(&ch->e);
    }
    ch->c.inflight = 0;
    assert_true(submit(ch, 1, 1));
    assert_int_equal(sweep(ch), 1);
    assert_int_equal(ring_taken(&ch->e, 1, &why), LLM_EPROTO);
    assert_non_null(why);
}

/* ---- a broken engine ---- */

static void expect_broken(struct channel *ch)
{
    struct llm_cqe cqe;
    struct llm_result result;
    assert_false(ring_poll(&ch->c, &cqe, &result));
    assert_non_null(ch->c.broken);
    assert_null(ring_next(&ch->c, 1));
    assert_null(ring_reserve(&ch->c, 1));
    ch->c.broken = NULL;
}

static void a_client_believes_no_cursor(void **state)
{
    struct channel *ch = *state;
    order_set(&ch->down->cq_tail, START + CQ + 1);
    expect_broken(ch);
    order_set(&ch->down->cq_tail, START - 1);
    expect_broken(ch);
    order_set(&ch->down->cq_tail, START);
    order_set(&ch->down->sq_head, START + 1);
    assert_null(ring_reserve(&ch->c, 1));
    assert_null(ring_next(&ch->c, 1));
    assert_non_null(ch->c.broken);
    ch->c.broken = NULL;
    order_set(&ch->down->sq_head, START);
    for (int i = 0; i < SQ; i++)
        assert_true(submit(ch, 1, 0));
    order_set(&ch->down->sq_head, START + SQ + 1);
    assert_null(ring_next(&ch->c, 0));
    assert_non_null(ch->c.broken);
}

static void a_client_believes_no_completion(void **state)
{
    struct channel *ch = *state;
    const struct llm_cqe wrong[] = {
        {.type = 0},
        {.type = 4},
        {.type = LLM_CQE_TOKENS, .count = 0},
        {.type = LLM_CQE_TOKENS, .count = LLM_CQE_TOKENS_MAX + 1},
        {.type = LLM_CQE_TOKENS, .count = 0xFFFF},
        {.type = LLM_CQE_DONE, .choice = LLM_CHOICES_MAX},
        {.type = LLM_CQE_DONE, .seq = 1},
    };
    submit(ch, 1, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct llm_cqe *slot = &ch->down->entries[START % CQ];
        *slot = wrong[i];
        slot->seq += START;
        order_set(&ch->down->cq_tail, START + 1);
        expect_broken(ch);
        assert_int_equal(ch->c.cq_head, START);
    }
}

static void a_client_refuses_finals_that_nobody_owes(void **state)
{
    struct channel *ch = *state;
    ch->down->entries[START % CQ] = (struct llm_cqe){.type = LLM_CQE_DONE, .seq = START};
    order_set(&ch->down->cq_tail, START + 1);
    expect_broken(ch);
}

static void a_client_refuses_odd_geometry(void **state)
{
    struct channel *ch = *state;
    assert_int_equal(join(ch, SQ + 1, CQ, ARENA, M), LLM_EPROTO);
    assert_int_equal(join(ch, SQ, CQ, ARENA + 2, M), LLM_EPROTO);
    assert_int_equal(join(ch, SQ, CQ, ARENA, CQ), LLM_EPROTO);
    assert_int_equal(join(ch, SQ, CQ, ARENA, 0), LLM_EPROTO);
    assert_int_equal(join(ch, 2 * SQ, CQ, ARENA, M), LLM_EPROTO);
    assert_int_equal(join(ch, SQ, 2 * CQ, ARENA, M), LLM_EPROTO);
    ch->down->sq_entries = 2 * LLM_SQ_ENTRIES_MAX;
    assert_int_equal(join(ch, 2 * LLM_SQ_ENTRIES_MAX, CQ, ARENA, M), LLM_EPROTO);
    ch->down->sq_entries = SQ;
    assert_int_equal(join(ch, SQ, CQ, ARENA, M), 0);
    ch->down->magic++;
    assert_int_equal(join(ch, SQ, CQ, ARENA, M), LLM_EPROTO);
    ch->down->magic--;
    ch->down->abi_major++;
    assert_int_equal(join(ch, SQ, CQ, ARENA, M), LLM_EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tail_jumps_are_refused),
        TEST(head_jumps_are_refused),
        TEST(a_false_head_makes_no_room),
        TEST(a_wrong_sequence_number_is_refused),
        TEST(spans_outside_the_arena_are_refused),
        TEST(too_many_in_flight_are_refused),
        TEST(a_full_ring_of_finals_is_refused),
        TEST(a_client_believes_no_cursor),
        TEST(a_client_believes_no_completion),
        TEST(a_client_refuses_finals_that_nobody_owes),
        TEST(a_client_refuses_odd_geometry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
