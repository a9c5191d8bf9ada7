/* test_clients.c - what clients wait for, who is held up by whom and who is not, and how they leave.
 */
#include "clients_rig.h"

/* ---- scenarios ---- */

static void more_than_the_core_knows_wait_in_the_ring(void **state)
{
    (void)state;
    struct peer a = join(), b = join();
    for (int i = 0; i < 100; i++) {
        request(&a, LLM_OP_GENERATE, 1, 2);
        request(&b, LLM_OP_GENERATE, 1, 2);
    }
    sweep();
    sweep(); /* a sweep takes 64 of a client at most */
    assert_true(sequences() > MAX_REQUESTS / 2 && sequences() <= MAX_REQUESTS);
    assert_false(clients_sweep(&rig.clients)); /* nothing moves: the loop may sleep */
    assert_false(clients_rescan(&rig.clients));
    for (int i = 0; i < 2000 && a.finals + b.finals < 200; i++) {
        step();
        take(&a);
        take(&b);
    }
    assert_int_equal(a.finals, 100);
    assert_int_equal(b.finals, 100);
    assert_int_equal(a.errors + b.errors, 0);
    assert_int_equal(a.tokens, 200);
    assert_int_equal(b.tokens, 200);
    part(&a);
    part(&b);
}

/* A request arrives after it was submitted, and not only when the core finds room for it. */
static void arrival_is_when_the_entry_was_taken(void **state)
{
    (void)state;
    struct peer p = join();
    uint64_t start = test_now_ns(), seen[MAX_REQUESTS + 16] = {0};
    for (int i = 0; i < MAX_REQUESTS + 10; i++)
        request(&p, LLM_OP_GENERATE, 1, 2);
    sweep();
    sweep();
    uint32_t known = sequences();
    assert_true(known < MAX_REQUESTS + 10);
    uint64_t swept = test_now_ns();
    for (int i = 0; i < 2000 && p.finals < MAX_REQUESTS + 10; i++) {
        struct llm_cqe c;
        struct llm_result r;
        step();
        while (ring_poll(&p.ring, &c, &r)) {
            if (c.type != LLM_CQE_DONE)
                continue;
            p.finals++;
            seen[c.user_data] = r.t_arrival;
        }
        ring_drained(&p.ring);
    }
    assert_int_equal(p.finals, MAX_REQUESTS + 10);
    for (uint32_t i = 1; i <= known + 1; i++) /* one more was taken, and waited */
        assert_true(seen[i] >= start && seen[i] <= swept);
    assert_true(seen[known + 2] > swept);
    part(&p);
}

static void a_hoarder_does_not_shut_others_out(void **state)
{
    (void)state;
    struct peer hoarder = join(), other = join();
    for (int i = 0; i < 120; i++)
        request(&hoarder, LLM_OP_GENERATE, 1, 40);
    for (int i = 0; i < 2000; i++)
        step(); /* it takes nothing: its ring is full, its sequences stay */
    assert_false(engine_has_work(rig.engine));
    assert_true(engine_holds(rig.engine, hoarder.slot));
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 5; i++)
            request(&other, LLM_OP_GENERATE, 1, 3);
        for (int i = 0; i < 100; i++) {
            step();
            take(&other);
        }
        assert_int_equal(other.finals, 5 * (round + 1));
    }
    assert_int_equal(other.errors, 0);
    /* and in the end it gets all of its own */
    for (int i = 0; i < 5000 && hoarder.finals < 120; i++) {
        take(&hoarder);
        step();
    }
    assert_int_equal(hoarder.finals, 120);
    assert_int_equal(hoarder.tokens, 120 * 40);
    part(&hoarder);
    part(&other);
}

/* Small things pass while a request waits: they need no sequence. */
static void others_pass_a_waiting_request(void **state)
{
    (void)state;
    struct peer a = join(), b = join();
    request(&a, LLM_OP_GENERATE, 64, 1);
    request(&a, LLM_OP_GENERATE, 64, 1);
    sweep();
    assert_int_equal(sequences(), 64);
    assert_true(rig.clients.slots[a.slot].has_pending);
    request(&b, LLM_OP_NOP, 1, 0);
    sweep();
    take(&b);
    assert_int_equal(b.finals, 1);
    for (int i = 0; i < 200 && a.finals < 128; i++) {
        step();
        take(&a);
    }
    assert_int_equal(a.finals, 128);
    part(&a);
    part(&b);
}

static void who_leaves_gives_everything_back(void **state)
{
    (void)state;
    struct peer a = join(), b = join();
    for (int i = 0; i < 120; i++)
        request(&a, LLM_OP_GENERATE, 1, 40);
    request(&b, LLM_OP_GENERATE, 1, 40);
    for (int i = 0; i < 20; i++)
        step();
    uint32_t generation = rig.clients.slots[a.slot].generation;
    clients_leave(&rig.clients, a.slot);
    assert_true(sequences() <= 1);
    let_leave(a.slot);
    assert_int_equal(rig.clients.slots[a.slot].generation, generation + 1);
    assert_int_equal(order_read64(&rig.board.map->clients), 1);
    part(&a);
    a = join();
    assert_int_equal(a.slot, 0); /* the slot again, and nothing old in it */
    request(&a, LLM_OP_GENERATE, 1, 5);
    for (int i = 0; i < 200; i++) {
        step();
        take(&a);
        take(&b);
    }
    assert_int_equal(a.tokens, 5);
    assert_int_equal(a.finals, 1);
    assert_int_equal(b.tokens, 40);
    assert_int_equal(order_read64(&rig.board.map->kv_blocks_free), 64);
    part(&a);
    part(&b);
}

static void who_breaks_the_protocol_is_told(void **state)
{
    (void)state;
    struct peer a = join();
    request(&a, LLM_OP_GENERATE, 1, 40);
    step();
    order_release(&a.up->cq_head, 77);
    sweep();
    assert_int_equal(order_acquire(&a.down->evicted), 1);
    assert_non_null(strstr(a.down->evict_text, "cq_head"));
    char c;
    let_leave(a.slot);
    assert_int_equal(recv(a.socket, &c, 1, 0), 0); /* its socket has ended */
    assert_int_equal(order_read64(&rig.board.map->evictions), 1);
    assert_non_null(strstr(rig.board.map->errors[0].text, "client 0 (peer) was evicted"));
    part(&a);
}

static void more_finals_than_agreed_is_a_breach(void **state)
{
    (void)state;
    inflight = 8;
    struct peer a = join();
    inflight = 128;
    request(&a, LLM_OP_GENERATE, 8, 1);
    sweep();
    assert_int_equal(order_acquire(&a.down->evicted), 0);
    for (int i = 0; i < 20; i++) {
        step();
        take(&a);
    }
    assert_int_equal(a.finals, 8);
    request(&a, LLM_OP_GENERATE, 1, 1);
    a.up->entries[1].choices = 9;
    sweep();
    assert_int_equal(order_acquire(&a.down->evicted), 1);
    assert_non_null(strstr(a.down->evict_text, "max_inflight"));
    let_leave(a.slot);
    part(&a);
}

static void the_limit_is_stated(void **state)
{
    (void)state;
    struct peer p[MAX_CLIENTS];
    struct llm_reject refusal = {0};
    int pair[2];
    for (int i = 0; i < MAX_CLIENTS; i++)
        p[i] = join();
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    assert_int_equal(admit(pair[0], &refusal), LLM_EBUSY);
    assert_int_equal(refusal.code, LLM_EBUSY);
    assert_non_null(strstr(refusal.text, "4 clients"));
    clients_leave(&rig.clients, p[2].slot);
    assert_int_equal(admit(pair[0], &refusal), LLM_EBUSY); /* not before the slot is free */
    let_leave(p[2].slot);
    assert_int_equal(admit(pair[0], &refusal), p[2].slot);
    close(pair[1]);
    for (int i = 0; i < MAX_CLIENTS; i++)
        part(&p[i]);
}

static void sleepers_are_listed_for_waking(void **state)
{
    (void)state;
    struct peer a = join(), b = join();
    uint32_t expected;
    assert_true(ring_wait_begin(&a.ring, LLM_WAIT_FUTEX, &expected));
    request(&a, LLM_OP_NOP, 1, 0);
    request(&b, LLM_OP_NOP, 1, 0);
    clients_sweep(&rig.clients);
    clients_publish(&rig.clients);
    assert_int_equal(rig.clients.n_wake, 1);
    assert_int_equal(rig.clients.wake[0], a.slot);
    clients_publish(&rig.clients);
    assert_int_equal(rig.clients.n_wake, 0);
    part(&a);
    part(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {SCENARIO(more_than_the_core_knows_wait_in_the_ring),
                                       SCENARIO(arrival_is_when_the_entry_was_taken),
                                       SCENARIO(a_hoarder_does_not_shut_others_out),
                                       SCENARIO(others_pass_a_waiting_request),
                                       SCENARIO(who_leaves_gives_everything_back),
                                       SCENARIO(who_breaks_the_protocol_is_told),
                                       SCENARIO(more_finals_than_agreed_is_a_breach),
                                       SCENARIO(the_limit_is_stated),
                                       SCENARIO(sleepers_are_listed_for_waking)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
