/* test_waiter_overflow.c - failure test (13): more completions come than io_uring's completion queue
 * has room for, because the loop was away and wakes fail. Every wait still brings
 * its one completion, and can be armed again.
 */
#include "../../appliance/waiter.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { POLLS = 2, WORDS = 2, WAITS = POLLS + WORDS, FAILURES = 400, ROUNDS = 20 };

static struct {
    struct waiter *w;
    int poll[POLLS][2];
    order_u32 *nowhere; /* every wake there fails */
    order_u32 word[WORDS];
} rig;

static int open_rig(void **state)
{
    (void)state;
    struct fail f = {0};
    if (waiter_open(&rig.w, WAITER_URING, WAITS, NULL, &f))
        fail_msg("%s", f.text);
    for (int i = 0; i < POLLS; i++)
        assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, rig.poll[i]), 0);
    rig.nowhere = mmap(NULL, 4096, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(rig.nowhere, MAP_FAILED);
    return 0;
}

static int close_rig(void **state)
{
    (void)state;
    waiter_close(rig.w);
    for (int i = 0; i < POLLS; i++)
        close(rig.poll[i][0]), close(rig.poll[i][1]);
    munmap(rig.nowhere, 4096);
    return 0;
}

static void arm_all(void)
{
    for (uint64_t i = 0; i < POLLS; i++)
        rig.w->ops->poll(rig.w, rig.poll[i][0], POLLIN, i);
    for (uint64_t i = 0; i < WORDS; i++)
        assert_true(rig.w->ops->futex(rig.w, &rig.word[i], order_relaxed(&rig.word[i]), POLLS + i));
    rig.w->ops->flush(rig.w);
}

static void fail_often(void)
{
    for (int i = 0; i < FAILURES; i++) {
        rig.w->ops->wake(rig.w, rig.nowhere);
        if (i % 3 == 0)
            rig.w->ops->flush(rig.w);
    }
    rig.w->ops->flush(rig.w);
}

static void fire_all(void)
{
    for (int i = 0; i < POLLS; i++)
        assert_int_equal(send(rig.poll[i][1], "", 1, 0), 1);
    for (int i = 0; i < WORDS; i++) {
        order_release(&rig.word[i], order_relaxed(&rig.word[i]) + 1);
        syscall(SYS_futex, &rig.word[i], FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

/* Nothing was there: a sleeping loop sleeps, a busy one has one more wake to do. A completion
 * that was lost shows as a sleep to its end, or as turns without end. */
static void turn(bool busy)
{
    static uint32_t turns;
    if (!busy) {
        assert_int_equal(rig.w->ops->wait(rig.w, 10000000000u), 0);
        return;
    }
    rig.w->ops->wake(rig.w, rig.nowhere);
    rig.w->ops->flush(rig.w);
    assert_true(++turns < 1000000);
}

static void take_all(bool busy, uint32_t seen[WAITS])
{
    uint64_t tag;
    int result;
    for (uint32_t n = 0; n < WAITS;) {
        if (!rig.w->ops->next(rig.w, 0, &tag, &result)) {
            turn(busy);
            continue;
        }
        assert_true(tag < WAITS && result >= 0);
        seen[tag]++;
        n++;
    }
    for (int i = 0; i < POLLS; i++) {
        char c;
        assert_int_equal(recv(rig.poll[i][0], &c, 1, MSG_DONTWAIT), 1);
    }
}

static void nothing_is_lost(void **state)
{
    (void)state;
    for (int round = 1; round <= ROUNDS; round++) {
        uint32_t seen[WAITS] = {0};
        arm_all();
        fail_often();
        fire_all();
        if (round % 2)
            fail_often(); /* behind what matters */
        take_all(round % 4 < 2, seen);
        for (int i = 0; i < WAITS; i++)
            assert_int_equal(seen[i], 1);
    }
    uint64_t tag;
    int result;
    while (rig.w->ops->wait(rig.w, 1000000) != -ETIME) /* wakes; nobody waits for anything */
        assert_false(rig.w->ops->next(rig.w, 0, &tag, &result));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_lost, open_rig, close_rig)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
