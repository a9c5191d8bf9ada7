/* test_reaper.c - segments that are handed over are unmapped in time, each once, also at the end;
 * and a client with large ones leaves its slot when its memory is gone, not before; where the thread
 * does not come to it, the next one who needs the slot or the bytes gives the memory back.
 */
#include "clients_rig.h"

#include <sched.h>

enum { PLACES = 5, BYTES = 3 << 20, ROUNDS = 20 };

static void segments_of(struct segment *up, struct segment *down)
{
    struct fail f = {0};
    assert_int_equal(segment_from_client(up, "test-up", BYTES, &f), 0);
    assert_int_equal(segment_to_client(down, "test-down", BYTES, &f), 0);
}

static bool is_mapped(const void *at)
{
    unsigned char there;
    return !mincore((void *)at, 4096, &there);
}

static void until_done(const struct reaper *r, uint32_t place)
{
    uint64_t end = test_now_ns() + 60000000000u;
    while (!reaper_done(r, place)) {
        assert_true(test_now_ns() < end);
        sched_yield();
    }
}

static void what_is_handed_over_is_freed(void **state)
{
    (void)state;
    struct reaper r;
    assert_int_equal(reaper_start(&r, PLACES), 0);
    assert_true(r.running);
    for (int round = 0; round < ROUNDS; round++) {
        const void *at[PLACES];
        for (uint32_t i = 0; i < PLACES; i++) {
            struct segment up, down;
            assert_true(reaper_done(&r, i));
            segments_of(&up, &down);
            at[i] = down.map;
            reaper_take(&r, i, &up, &down);
            assert_null(up.map);
            assert_int_equal(down.fd, -1);
        }
        for (uint32_t i = 0; i < PLACES; i++)
            until_done(&r, i);
        for (uint32_t i = 0; i < PLACES; i++)
            assert_false(is_mapped(at[i]));
    }
    reaper_stop(&r);
    reaper_stop(&r); /* twice is allowed */
}

static void the_end_waits_for_no_job(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct reaper r;
        struct segment up, down;
        assert_int_equal(reaper_start(&r, PLACES), 0);
        segments_of(&up, &down);
        const void *at = up.map;
        reaper_take(&r, 3, &up, &down);
        reaper_stop(&r);
        assert_false(is_mapped(at));
    }
}

/* Large ones, until every slot was used more than once. */
static void a_slot_is_free_when_its_memory_is(void **state)
{
    (void)state;
    static const struct llm_hello large = {
        .sq_entries = 64, .cq_entries = 256, .arena_bytes = 4 << 20, .name = "large"};
    uint64_t end = test_now_ns() + 60000000000u;
    for (int left = 3 * MAX_CLIENTS; left;) {
        struct llm_reject refusal = {0};
        int pair[2];
        assert_true(test_now_ns() < end);
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
        int slot = clients_admit(&rig.clients, pair[0], &large, &refusal);
        close(pair[1]);
        if (slot < 0) { /* all are being freed */
            assert_int_equal(refusal.code, LLM_EBUSY);
            close(pair[0]);
            continue;
        }
        const struct client *c = &rig.clients.slots[slot];
        uint32_t generation = c->generation;
        assert_int_equal(c->state, CLIENT_LIVE);
        clients_leave(&rig.clients, (uint32_t)slot);
        let_leave((uint32_t)slot);
        assert_int_equal(c->state, CLIENT_DRAINING);
        assert_int_equal(c->generation, generation + 1);
        left--;
    }
    assert_int_equal(rig.clients.n_live, 0);
}

/* From here on the reaper's thread does nothing, as on a machine where no CPU is ever idle. */
static void starve(struct reaper *r)
{
    atomic_store(&r->stop, true);
    sem_post(&r->jobs_there);
    pthread_join(r->thread, NULL);
}

static void who_comes_does_not_wait_for_an_idle_cpu(void **state)
{
    (void)state;
    static const struct llm_hello large = {
        .sq_entries = 64, .cq_entries = 256, .arena_bytes = 4 << 20, .name = "large"};
    rig.clients.quota.bytes = 3ull * (llm_up_bytes(64, 4 << 20) + llm_down_bytes(256));
    starve(&rig.clients.reaper);
    for (int i = 0; i < 3 * MAX_CLIENTS; i++) {
        struct llm_reject refusal = {0};
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
        if (i == 2 * MAX_CLIENTS)
            rig.clients.quota.bytes = 0; /* then it is slots that are wanted */
        int slot = clients_admit(&rig.clients, pair[0], &large, &refusal);
        if (slot < 0)
            fail_msg("client %d: %s", i, refusal.text);
        close(pair[1]);
        clients_leave(&rig.clients, (uint32_t)slot);
        let_leave((uint32_t)slot);
        assert_int_equal(rig.clients.slots[slot].state, CLIENT_DRAINING);
    }
    rig.clients.reaper.running = false; /* it was joined */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_handed_over_is_freed),
                                       cmocka_unit_test(the_end_waits_for_no_job),
                                       SCENARIO(a_slot_is_free_when_its_memory_is),
                                       SCENARIO(who_comes_does_not_wait_for_an_idle_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
