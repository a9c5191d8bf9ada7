/* test_ring.c - honest use of a channel: cursors that wrap, rings that fill, the arena, the flags
 * of the handshakes.
 */
#include "ring_channel.h"

/* ---- honest traffic ---- */

static void entries_keep_order_over_the_wrap(void **state)
{
    struct channel *ch = *state;
    for (uint64_t id = 1; id <= 40; id++) {
        assert_true(submit_prompt(ch, id, 1 + (uint32_t)id % 9));
        assert_int_equal(sweep(ch), 1);
        assert_int_equal(take(ch, 1), id);
        put(ch, LLM_CQE_TOKENS, id, 0);
        put(ch, LLM_CQE_TOKENS, id, 1);
        put(ch, LLM_CQE_DONE, id, 2);
        assert_true(ring_publish(&ch->e));
        assert_false(ring_publish(&ch->e));
        expect(ch, LLM_CQE_TOKENS, id, 0);
        expect(ch, LLM_CQE_TOKENS, id, 1);
        expect(ch, LLM_CQE_DONE, id, 2);
        expect_nothing(ch);
        ring_drained(&ch->c);
    }
    assert_true(ch->c.cq_head < START); /* wrapped indeed */
    assert_int_equal(ch->c.inflight, 0);
    assert_int_equal(ch->e.inflight, 0);
}

static void nothing_is_seen_before_it_is_published(void **state)
{
    struct channel *ch = *state;
    struct llm_sqe *e = ring_next(&ch->c, 1);
    e->op = LLM_OP_NOP;
    ring_commit(&ch->c, 1);
    assert_int_equal(sweep(ch), 0);
    ring_submit(&ch->c);
    assert_int_equal(sweep(ch), 1);
    take(ch, 1);
    put(ch, LLM_CQE_DONE, 0, 0);
    expect_nothing(ch);
    ring_publish(&ch->e);
    expect(ch, LLM_CQE_DONE, 0, 0);
}

static void a_full_submission_ring_refuses_locally(void **state)
{
    struct channel *ch = *state;
    for (uint64_t id = 1; id <= SQ; id++)
        assert_true(submit(ch, id, 0));
    assert_false(submit(ch, 9, 0));
    assert_int_equal(sweep(ch), SQ);
    take(ch, 0);
    assert_true(submit(ch, 9, 0));
    assert_false(submit(ch, 10, 0));
}

static void entries_start_zeroed(void **state)
{
    struct channel *ch = *state;
    static const struct llm_sqe zero;
    memset(ch->up->entries, 0xFF, SQ * sizeof *ch->up->entries);
    struct llm_sqe *e = ring_next(&ch->c, 1);
    assert_memory_equal(e, &zero, sizeof zero);
}

static void finals_in_flight_are_limited(void **state)
{
    struct channel *ch = *state;
    assert_null(ring_next(&ch->c, M + 1));
    assert_true(submit(ch, 1, 3));
    assert_false(submit(ch, 2, 3));
    assert_true(submit(ch, 2, 2));
    assert_false(submit(ch, 3, 1));
    assert_int_equal(sweep(ch), 2);
    take(ch, 3);
    put(ch, LLM_CQE_DONE, 1, 0);
    ring_publish(&ch->e);
    expect(ch, LLM_CQE_DONE, 1, 0);
    assert_true(submit(ch, 3, 1));
    assert_int_equal(sweep(ch), 2);
    take(ch, 2);
    take(ch, 1);
}

static void tokens_leave_room_for_finals(void **state)
{
    struct channel *ch = *state;
    for (uint64_t id = 1; id <= M; id++)
        assert_true(submit(ch, id, 1));
    assert_int_equal(sweep(ch), M);
    for (uint64_t id = 1; id <= M; id++)
        take(ch, 1);
    uint32_t n = 0;
    for (uint32_t room; (room = ring_token_room(&ch->e)) > 0; n++) {
        assert_int_equal(room, CQ - M - n);
        put(ch, LLM_CQE_TOKENS, 1, n);
    }
    assert_int_equal(n, CQ - M);
    for (uint64_t id = 1; id <= M; id++)
        put(ch, LLM_CQE_DONE, id, 0);
    ring_publish(&ch->e);
    for (uint32_t i = 0; i < n; i++)
        expect(ch, LLM_CQE_TOKENS, 1, i);
    for (uint64_t id = 1; id <= M; id++)
        expect(ch, LLM_CQE_DONE, id, 0);
    expect_nothing(ch);
}

static void room_returns_when_the_head_is_published(void **state)
{
    struct channel *ch = *state;
    fill_with_tokens(ch);
    for (uint32_t i = 0; i < 4; i++)
        expect(ch, LLM_CQE_TOKENS, 1, i);
    assert_int_equal(ring_token_room(&ch->e), 0);
    ring_drained(&ch->c);
    assert_int_equal(ring_token_room(&ch->e), 4);
}

/* A submission says first how far completions were taken: else the engine would miss the room. */
static void a_submission_publishes_the_head_first(void **state)
{
    struct channel *ch = *state;
    for (uint64_t id = 1; id <= 3 * CQ; id++) {
        assert_true(submit(ch, id, M));
        assert_int_equal(sweep(ch), 1);
        take(ch, M);
        for (uint32_t i = 0; i < M; i++)
            put(ch, LLM_CQE_DONE, id, i);
        ring_publish(&ch->e);
        for (uint32_t i = 0; i < M; i++)
            expect(ch, LLM_CQE_DONE, id, i);
    }
}

static void results_ride_beside_finals(void **state)
{
    struct channel *ch = *state;
    struct llm_result result = {.t_first = 11, .numerics_id = 12};
    struct llm_cqe done = {.type = LLM_CQE_DONE}, got;
    for (int round = 0; round < 2 * CQ; round++) {
        assert_true(submit(ch, 1, 2));
        sweep(ch);
        take(ch, 2);
        ring_put(&ch->e, &done, round % 2 ? NULL : &result);
        ring_put(&ch->e, &done, round % 2 ? &result : NULL);
        ring_publish(&ch->e);
        for (int i = 0; i < 2; i++) {
            struct llm_result r;
            assert_true(ring_poll(&ch->c, &got, &r));
            assert_int_equal(r.t_first, i == round % 2 ? 11 : 0);
            assert_int_equal(r.numerics_id, i == round % 2 ? 12 : 0);
        }
    }
}

/* ---- the arena ---- */

static uint32_t offset_of(const struct channel *ch, const int32_t *tokens)
{
    assert_non_null(tokens);
    return (uint32_t)((const uint8_t *)tokens - ch->c.arena);
}

static void a_reserve_is_replaced_by_the_next(void **state)
{
    struct channel *ch = *state;
    int32_t *first = ring_reserve(&ch->c, 10), *second = ring_reserve(&ch->c, ARENA / 4);
    assert_non_null(first);
    assert_ptr_equal(first, second);
    assert_null(ring_reserve(&ch->c, ARENA / 4 + 1));
    assert_null(ring_reserve(&ch->c, UINT32_MAX));
}

static void an_entry_without_tokens_keeps_the_reserve(void **state)
{
    struct channel *ch = *state;
    int32_t *tokens = ring_reserve(&ch->c, 5);
    assert_true(submit(ch, 1, 1)); /* such as a cancel */
    struct llm_sqe *e = ring_next(&ch->c, 1);
    for (int i = 0; i < 3; i++)
        tokens[i] = 2 + i;
    e->user_data = 2;
    e->tokens_off = offset_of(ch, tokens);
    e->tokens_len = 3; /* fewer than were reserved: the rest stays free */
    ring_commit(&ch->c, 1);
    ring_submit(&ch->c);
    assert_int_equal(offset_of(ch, ring_reserve(&ch->c, 1)), 12);
    assert_int_equal(sweep(ch), 2);
    take(ch, 1);
    assert_int_equal(take(ch, 1), 2);
}

static void spans_stay_whole_at_the_arenas_end(void **state)
{
    struct channel *ch = *state;
    assert_true(submit_prompt(ch, 1, 10)); /* bytes 0 .. 40 */
    assert_true(submit_prompt(ch, 2, 10)); /* 40 .. 80 */
    assert_false(submit_prompt(ch, 3, 6)); /* 24 bytes: neither behind nor before */
    assert_int_equal(sweep(ch), 2);
    take(ch, 1);
    assert_true(submit_prompt(ch, 3, 6)); /* skips 80 .. 100, lies at 0 .. 24 */
    assert_int_equal(ch->up->entries[(START + 2) % SQ].tokens_off, 0);
    assert_null(ring_reserve(&ch->c, 5)); /* 24 .. 44: the second prompt starts at 40 */
    assert_int_equal(offset_of(ch, ring_reserve(&ch->c, 4)), 24);
    take(ch, 1);
    assert_int_equal(sweep(ch), 1);
    take(ch, 1);
    assert_non_null(ring_reserve(&ch->c, ARENA / 4)); /* all of it, once nothing is left */
}

static void an_arena_can_be_filled_to_the_last_byte(void **state)
{
    struct channel *ch = *state;
    for (int round = 0; round < 20; round++) {
        assert_true(submit_prompt(ch, 1, ARENA / 4));
        assert_null(ring_reserve(&ch->c, 1));
        sweep(ch);
        take(ch, 1);
        put(ch, LLM_CQE_DONE, 1, 0);
        ring_publish(&ch->e);
        expect(ch, LLM_CQE_DONE, 1, 0);
    }
}

/* ---- random honest traffic: the engine must find no fault, nothing is lost ---- */

struct request {
    uint64_t id;
    uint32_t tokens, sent, seen; /* to generate, put in the ring, taken by the client */
    bool taken, finished;
};

struct traffic {
    struct channel *ch;
    uint64_t rnd;
    struct request ring[64]; /* by id % 64 */
    uint64_t submitted, taken, done;
};

static uint32_t below(struct traffic *t, uint32_t n)
{
    t->rnd = t->rnd * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(t->rnd >> 33) % n;
}

static void client_submits(struct traffic *t)
{
    uint32_t n = below(t, 3) ? below(t, ARENA / 4) + 1 : 0;
    uint64_t id = t->submitted + 1;
    if (n ? submit_prompt(t->ch, id, n) : submit(t->ch, id, 1)) {
        t->ring[id % 64] = (struct request){.id = id, .tokens = below(t, 12)};
        t->submitted++;
    }
}

static void client_polls(struct traffic *t)
{
    struct llm_cqe cqe;
    struct llm_result result;
    if (!ring_poll(&t->ch->c, &cqe, &result)) {
        assert_null(t->ch->c.broken);
        return;
    }
    struct request *r = &t->ring[cqe.user_data % 64];
    assert_int_equal(r->id, cqe.user_data);
    assert_false(r->finished);
    if (cqe.type == LLM_CQE_TOKENS) {
        assert_int_equal(cqe.tokens[0], (int32_t)r->seen++);
        return;
    }
    assert_int_equal(r->seen, r->tokens);
    r->finished = true;
    t->done++;
}

static void engine_takes(struct traffic *t)
{
    int n = sweep(t->ch);
    assert_true(n >= 0);
    for (uint32_t i = below(t, SQ + 1); n && i; n--, i--) {
        uint64_t id = take(t->ch, 1);
        assert_int_equal(id, ++t->taken);
        t->ring[id % 64].taken = true;
    }
}

static void engine_delivers(struct traffic *t)
{
    struct request *r = &t->ring[below(t, 64)];
    if (!r->taken || r->sent > r->tokens)
        return;
    while (r->sent < r->tokens && below(t, 8) && ring_token_room(&t->ch->e))
        put(t->ch, LLM_CQE_TOKENS, r->id, r->sent++);
    if (r->sent == r->tokens) {
        put(t->ch, LLM_CQE_DONE, r->id, 0);
        r->sent++;
    }
}

static void random_honest_traffic_is_never_guilty(void **state)
{
    struct traffic t = {.ch = *state, .rnd = 42};
    for (int i = 0; i < 400000; i++) {
        switch (below(&t, 8)) {
        case 0:
            client_submits(&t);
            break;
        case 1:
            ring_drained(&t.ch->c);
            break;
        case 2:
            engine_takes(&t);
            break;
        case 3:
            ring_publish(&t.ch->e);
            break;
        case 4:
        case 5:
            engine_delivers(&t);
            break;
        default:
            client_polls(&t);
        }
    }
    assert_true(t.done > 1000);
    assert_int_equal(t.submitted - t.done, t.ch->c.inflight);
}

/* ---- the handshakes ---- */

static bool ring_once(struct channel *ch)
{
    assert_non_null(ring_next(&ch->c, 1));
    ring_commit(&ch->c, 1);
    return ring_submit(&ch->c);
}

static void a_sleeping_engine_is_rung(void **state)
{
    struct channel *ch = *state;
    assert_false(ring_once(ch));
    sweep(ch);
    take(ch, 1);
    ring_arm_all(ch->pulse);
    ring_arm(&ch->e, false);
    ring_arm_fence();
    assert_false(ring_rescan(&ch->e, false));
    assert_true(ring_once(ch));
    assert_true(ring_rescan(&ch->e, false));
    ring_disarm(&ch->e);
    ring_disarm_all(ch->pulse);
    assert_false(ring_once(ch));
}

static void an_engine_that_holds_tokens_is_rung_for_room(void **state)
{
    struct channel *ch = *state;
    fill_with_tokens(ch);
    expect(ch, LLM_CQE_TOKENS, 1, 0);
    assert_false(ring_drained(&ch->c)); /* awake: nobody to ring for */
    sweep(ch);
    ring_arm_all(ch->pulse);
    ring_arm(&ch->e, true);
    ring_arm_fence();
    assert_false(ring_rescan(&ch->e, true));
    assert_false(ring_drained(&ch->c)); /* no progress, no ring */
    expect(ch, LLM_CQE_TOKENS, 1, 1);
    assert_false(ring_rescan(&ch->e, true)); /* taken, but not said */
    assert_true(ring_drained(&ch->c));
    assert_true(ring_rescan(&ch->e, true));
    assert_false(ring_rescan(&ch->e, false));
    ring_disarm(&ch->e);
    expect(ch, LLM_CQE_TOKENS, 1, 2);
    assert_false(ring_drained(&ch->c));
}

static void a_sleeping_client_is_woken(void **state)
{
    struct channel *ch = *state;
    uint32_t expected;
    submit(ch, 1, 1);
    sweep(ch);
    take(ch, 1);
    assert_false(ring_wants_wake(&ch->e));
    assert_true(ring_wait_begin(&ch->c, LLM_WAIT_FUTEX, &expected));
    assert_int_equal(expected, order_relaxed(&ch->down->cq_tail));
    assert_int_equal(ring_wants_wake(&ch->e), LLM_WAIT_FUTEX);
    ring_wait_end(&ch->c);
    assert_int_equal(ring_wants_wake(&ch->e), LLM_WAIT_NONE);
    assert_true(ring_wait_begin(&ch->c, LLM_WAIT_BELL, &expected));
    assert_int_equal(ring_wants_wake(&ch->e), LLM_WAIT_BELL);
    order_set(&ch->up->cq_wait, 3); /* nothing that this version knows */
    assert_int_equal(ring_wants_wake(&ch->e), LLM_WAIT_NONE);
    ring_wait_end(&ch->c);
    put(ch, LLM_CQE_DONE, 1, 0);
    ring_publish(&ch->e);
    ring_after_publish();
    assert_false(ring_wait_begin(&ch->c, LLM_WAIT_FUTEX, &expected));
    assert_int_equal(order_relaxed(&ch->up->cq_wait), LLM_WAIT_NONE);
}

static void an_eviction_carries_its_sentence(void **state)
{
    struct channel *ch = *state;
    char text[1000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    ring_evict(&ch->e, LLM_EPROTO, text);
    assert_int_equal(order_acquire(&ch->down->evicted), 1);
    assert_int_equal(ch->down->evict_code, LLM_EPROTO);
    assert_int_equal(strlen(ch->down->evict_text), LLM_EVICT_TEXT - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(entries_keep_order_over_the_wrap),
        TEST(nothing_is_seen_before_it_is_published),
        TEST(a_full_submission_ring_refuses_locally),
        TEST(entries_start_zeroed),
        TEST(finals_in_flight_are_limited),
        TEST(tokens_leave_room_for_finals),
        TEST(room_returns_when_the_head_is_published),
        TEST(a_submission_publishes_the_head_first),
        TEST(results_ride_beside_finals),
        TEST(a_reserve_is_replaced_by_the_next),
        TEST(an_entry_without_tokens_keeps_the_reserve),
        TEST(spans_stay_whole_at_the_arenas_end),
        TEST(an_arena_can_be_filled_to_the_last_byte),
        TEST(random_honest_traffic_is_never_guilty),
        TEST(a_sleeping_engine_is_rung),
        TEST(an_engine_that_holds_tokens_is_rung_for_room),
        TEST(a_sleeping_client_is_woken),
        TEST(an_eviction_carries_its_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
