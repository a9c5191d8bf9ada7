/* test_waiter.c - both kinds of waiting keep the same promises: each wait one completion, cancelled
 * ones too; wakes and bells reach the other side; a sleep ends in time.
 */
#include "../../appliance/waiter.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WAITS = 40 };
#define SECOND 1000000000ull

static struct waiter *w;

static void open_kind(enum waiter_kind kind)
{
    struct fail f = {0};
    if (waiter_open(&w, kind, MAX_WAITS, NULL, &f))
        fail_msg("%s", f.text);
}

static int open_uring(void **state)
{
    (void)state;
    open_kind(WAITER_URING);
    return 0;
}

static int open_epoll(void **state)
{
    (void)state;
    open_kind(WAITER_EPOLL);
    return 0;
}

static int close_it(void **state)
{
    (void)state;
    waiter_close(w);
    return 0;
}

/* Sleeps until there is a completion, for at most 20 s. */
static void take(uint64_t *tag, int *result)
{
    uint64_t end = test_now_ns() + 20 * SECOND;
    while (!w->ops->next(w, test_now_ns(), tag, result)) {
        assert_true(test_now_ns() < end);
        int rc = w->ops->wait(w, SECOND);
        assert_true(rc == 0 || rc == -ETIME);
    }
}

static void expect_one(uint64_t tag, int result)
{
    uint64_t t;
    int r;
    take(&t, &r);
    assert_true(t == tag);
    if (result < 0)
        assert_int_equal(r, result);
    else
        assert_int_equal(r & result, result);
}

static void expect_none(void)
{
    uint64_t t;
    int r;
    w->ops->flush(w);
    assert_false(w->ops->next(w, test_now_ns() + SECOND, &t, &r));
}

static void descriptors(void **state)
{
    (void)state;
    int a[2], b[2];
    assert_int_equal(pipe(a), 0);
    assert_int_equal(pipe(b), 0);
    w->ops->poll(w, a[0], POLLIN, 11);
    w->ops->poll(w, b[0], POLLIN, 22);
    expect_none();
    assert_int_equal(write(b[1], "x", 1), 1);
    expect_one(22, POLLIN);
    expect_none(); /* one shot */
    w->ops->poll(w, b[0], POLLIN, 23);
    expect_one(23, POLLIN); /* still readable */
    close(a[1]);
    expect_one(11, POLLHUP);
    close(a[0]);
    close(b[0]);
    close(b[1]);
    expect_none();
}

static void a_bad_descriptor_completes_too(void **state)
{
    (void)state;
    w->ops->poll(w, 9999, POLLIN, 5);
    expect_one(5, -EBADF);
}

static void cancelled_ones_complete(void **state)
{
    (void)state;
    int a[2];
    assert_int_equal(pipe(a), 0);
    w->ops->poll(w, a[0], POLLIN, 1ull << 60 | 7);
    w->ops->cancel(w, 99); /* nobody's: nothing comes of it */
    expect_none();
    w->ops->cancel(w, 1ull << 60 | 7);
    expect_one(1ull << 60 | 7, -ECANCELED);
    assert_int_equal(write(a[1], "x", 1), 1);
    expect_none();
    w->ops->poll(w, a[0], POLLIN, 8); /* the descriptor can be waited on again */
    expect_one(8, POLLIN);
    close(a[0]);
    close(a[1]);
}

static void as_many_as_were_announced(void **state)
{
    (void)state;
    int a[MAX_WAITS][2];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MAX_WAITS; i++) {
            assert_int_equal(pipe(a[i]), 0);
            w->ops->poll(w, a[i][0], POLLIN, (uint64_t)i);
        }
        w->ops->flush(w);
        for (int i = 0; i < MAX_WAITS; i++)
            if (i % 2)
                w->ops->cancel(w, (uint64_t)i);
            else
                assert_int_equal(write(a[i][1], "x", 1), 1);
        bool seen[MAX_WAITS] = {false};
        for (int i = 0; i < MAX_WAITS; i++) {
            uint64_t tag;
            int result;
            take(&tag, &result);
            assert_true(tag < MAX_WAITS && !seen[tag]);
            seen[tag] = true;
            if (tag % 2)
                assert_int_equal(result, -ECANCELED);
            else
                assert_true(result & POLLIN);
        }
        expect_none();
        for (int i = 0; i < MAX_WAITS; i++) {
            close(a[i][0]);
            close(a[i][1]);
        }
    }
}

static void a_sleep_ends(void **state)
{
    (void)state;
    uint64_t start = test_now_ns();
    int rc = 0;
    while (!rc) /* the kernel's own work for a ring that was closed may end one early */
        rc = w->ops->wait(w, 30000000);
    assert_int_equal(rc, -ETIME);
    assert_true(test_now_ns() - start >= 29000000);
}

/* ---- words, in memory shared as between processes ---- */

static order_u32 *word;

static int map_word(void)
{
    word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return word == MAP_FAILED ? -1 : 0;
}

static void *sleeper(void *done)
{
    while (order_acquire(word) == 0)
        syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
    order_release(done, 1);
    return NULL;
}

static void wakes_a_sleeper(void **state)
{
    (void)state;
    order_u32 done = 0;
    pthread_t t;
    assert_int_equal(map_word(), 0);
    assert_int_equal(pthread_create(&t, NULL, sleeper, &done), 0);
    order_release(word, 1);
    while (!order_acquire(&done)) {
        w->ops->wake(w, word);
        w->ops->flush(w);
    }
    pthread_join(t, NULL);
    expect_none(); /* wakes complete silently */
    munmap(word, 4096);
}

static void *changer(void *unused)
{
    (void)unused;
    order_release(word, 1);
    while (order_acquire(word) != 2) { /* until the waiter has seen it */
        syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return NULL;
}

static void is_woken_by_a_word(void **state)
{
    (void)state;
    pthread_t t;
    assert_int_equal(map_word(), 0);
    if (!w->ops->futex(w, word, 0, 77)) {
        assert_false(w->ops->wakes);
        uint64_t start = test_now_ns();
        w->ops->wait(w, 60 * SECOND); /* cut short: the loop looks */
        assert_true(test_now_ns() - start < 30 * SECOND);
        munmap(word, 4096);
        return;
    }
    assert_true(w->ops->wakes);
    w->ops->flush(w);
    assert_int_equal(pthread_create(&t, NULL, changer, NULL), 0);
    expect_one(77, 0);
    order_release(word, 2);
    pthread_join(t, NULL);

    w->ops->futex(w, word, 1, 78); /* has another value: comes back at once */
    expect_one(78, -EAGAIN);
    w->ops->futex(w, word, 2, 79);
    w->ops->flush(w);
    w->ops->cancel(w, 79);
    uint64_t tag;
    int result;
    take(&tag, &result);
    assert_true(tag == 79);
    munmap(word, 4096);
}

static void a_full_bell_does_not_block(void **state)
{
    (void)state;
    int pair[2], rung = 0;
    char c;
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
    for (int i = 0; i < 1000; i++) {
        w->ops->bell(w, pair[0]);
        w->ops->flush(w);
    }
    while (recv(pair[1], &c, 1, MSG_DONTWAIT) == 1)
        rung++;
    assert_true(rung > 0 && rung < 1000);
    close(pair[1]);
    w->ops->bell(w, pair[0]); /* nobody there: no signal, no completion */
    expect_none();
    close(pair[0]);
}

#define BOTH(f)                                                                                    \
    {#f " (io_uring)", f, open_uring, close_it, NULL},                                             \
    {                                                                                              \
#f " (epoll)", f, open_epoll, close_it, NULL                                               \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {BOTH(descriptors),
                                       BOTH(a_bad_descriptor_completes_too),
                                       BOTH(cancelled_ones_complete),
                                       BOTH(as_many_as_were_announced),
                                       BOTH(a_sleep_ends),
                                       BOTH(wakes_a_sleeper),
                                       BOTH(is_woken_by_a_word),
                                       BOTH(a_full_bell_does_not_block)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
