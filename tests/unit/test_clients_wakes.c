/* test_clients_wakes.c - a client that wakes the engine for nothing is not listened to until the
 * next tick; one whose wakes bring something always is, however many. And what stands behind the
 * entries of one sweep is bounded; so is how many the engine wakes when it evicts.
 */
#include "../../appliance/waiter.h"
#include "clients_rig.h"

static const struct client *slot_of(const struct peer *p)
{
    return &rig.clients.slots[p->slot];
}

static void wakes_in_vain_end(void **state)
{
    (void)state;
    struct peer storm = join(), other = join();
    for (int i = 0; i < CLIENTS_VAIN_WAKES; i++) {
        clients_woken(&rig.clients, storm.slot);
        assert_false(clients_muted(slot_of(&storm)));
    }
    for (int i = 0; i < 1000; i++) {
        clients_woken(&rig.clients, storm.slot);
        assert_true(clients_muted(slot_of(&storm)));
    }
    assert_false(clients_muted(slot_of(&other)));
    assert_int_equal(order_read64(&rig.board.map->errors_written), 1);
    assert_non_null(strstr(rig.board.map->errors[0].text, "client 0 (peer) woke the engine"));

    /* not waited for, so no lost wake when it comes to light late; the others' still counts */
    request(&storm, LLM_OP_NOP, 1, 0);
    assert_false(clients_rescan(&rig.clients));
    request(&other, LLM_OP_NOP, 1, 0);
    assert_true(clients_rescan(&rig.clients));
    step();
    take(&storm), take(&other);
    assert_int_equal(storm.finals + other.finals, 2); /* whoever looks sees both */

    clients_tick(&rig.clients);
    assert_false(clients_muted(slot_of(&storm)));
    request(&storm, LLM_OP_NOP, 1, 0);
    assert_true(clients_rescan(&rig.clients));
    step();
    for (int i = 0; i <= CLIENTS_VAIN_WAKES + 1; i++) /* one is for the NOP */
        clients_woken(&rig.clients, storm.slot);
    assert_true(clients_muted(slot_of(&storm)));
    assert_int_equal(order_read64(&rig.board.map->errors_written), 1); /* said once */
    part(&storm);
    part(&other);
}

/* The next one in the slot begins afresh. */
static void a_successor_is_heard(void **state)
{
    (void)state;
    struct peer p = join();
    for (int i = 0; i < 100; i++)
        clients_woken(&rig.clients, p.slot);
    assert_true(clients_muted(slot_of(&p)));
    clients_leave(&rig.clients, p.slot);
    let_leave(p.slot);
    part(&p);
    p = join();
    assert_int_equal(p.slot, 0);
    assert_false(clients_muted(slot_of(&p)));
    part(&p);
}

/* Whether the engine saw the work first or the wake. */
static void wakes_with_something_behind_them_are_heard(void **state)
{
    (void)state;
    struct peer p = join();
    for (int i = 0; i < 200; i++) {
        request(&p, LLM_OP_NOP, 1, 0);
        if (i % 2)
            clients_woken(&rig.clients, p.slot);
        step();
        if (i % 2 == 0)
            clients_woken(&rig.clients, p.slot);
        assert_false(clients_muted(slot_of(&p)));
        if (i == 99)
            take(&p);
    }
    for (int i = 0; i < 50; i++) { /* nothing but room for completions */
        struct llm_cqe c;
        struct llm_result r;
        assert_true(ring_poll(&p.ring, &c, &r));
        ring_drained(&p.ring);
        clients_woken(&rig.clients, p.slot);
        step();
        assert_false(clients_muted(slot_of(&p)));
    }
    assert_int_equal(slot_of(&p)->vain_wakes, 0);
    part(&p);
}

/* Ten maps of 60,000 bytes, five of which are more than a sweep copies. */
static void a_sweep_copies_so_much_and_no_more(void **state)
{
    (void)state;
    struct peer p = join(), other = join();
    for (int i = 0; i < 10; i++) {
        struct llm_sqe *q = ring_next(&p.ring, 1);
        q->user_data = (uint64_t)i;
        q->op = LLM_OP_NOP;
        ring_commit(&p.ring, 1);
        q->options_len = 60000; /* which nobody reserved */
    }
    ring_submit(&p.ring);
    request(&other, LLM_OP_NOP, 1, 0);
    assert_true(clients_sweep(&rig.clients));
    assert_int_equal(slot_of(&p)->ring.sq_head, 5);
    assert_int_equal(slot_of(&other)->ring.sq_head, 1);
    assert_true(clients_sweep(&rig.clients));
    assert_int_equal(slot_of(&p)->ring.sq_head, 10);
    part(&p);
    part(&other);
}

/* Waits of the kernel's, as many as a client likes: they cost it no thread. */
static void an_eviction_wakes_no_crowd(void **state)
{
    (void)state;
    enum { CROWD = 500, FEW = 64 };
    struct fail f = {0};
    struct waiter *w;
    uint64_t tag;
    int result;
    unsigned woken = 0;
    if (waiter_open(&w, WAITER_URING, CROWD, NULL, &f))
        skip();
    struct peer p = join();
    for (uint64_t i = 0; i < CROWD; i++)
        w->ops->futex(w, &p.down->cq_tail, 0, i);
    w->ops->flush(w);
    clients_evict(&rig.clients, p.slot, LLM_EPROTO, "it is in the way");
    for (uint64_t i = 0; i < CROWD; i++)
        w->ops->cancel(w, i);
    for (unsigned n = 0; n < CROWD;)
        if (w->ops->next(w, test_now_ns(), &tag, &result)) {
            woken += result == 0;
            n++;
        } else
            w->ops->wait(w, 1000000000u);
    assert_in_range(woken, 1, FEW);
    waiter_close(w);
    let_leave(p.slot);
    part(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {SCENARIO(wakes_in_vain_end), SCENARIO(a_successor_is_heard),
                                       SCENARIO(wakes_with_something_behind_them_are_heard),
                                       SCENARIO(a_sweep_copies_so_much_and_no_more),
                                       SCENARIO(an_eviction_wakes_no_crowd)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
