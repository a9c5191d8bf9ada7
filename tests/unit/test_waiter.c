/* test_waiter.c - all kinds of waiting keep the same promises: each wait one completion, cancelled
 * ones too; wakes and bells reach the other side; a sleep ends in time, and no wake of a word is
 * lost. Kinds: io_uring; epoll with helper threads for the words; epoll where the system has no
 * futex_waitv and the loop looks itself (in a process of its own).
 */
#include "../../appliance/waiter.h"
#include "../support/forbid.h"
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

enum { MAX_WAITS = 600, WORDS = MAX_WAITS / 2, POLLS = 40 };
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

static void many_at_a_time(void **state)
{
    (void)state;
    int a[POLLS][2];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < POLLS; i++) {
            assert_int_equal(pipe(a[i]), 0);
            w->ops->poll(w, a[i][0], POLLIN, (uint64_t)i);
        }
        w->ops->flush(w);
        for (int i = 0; i < POLLS; i++)
            if (i % 2)
                w->ops->cancel(w, (uint64_t)i);
            else
                assert_int_equal(write(a[i][1], "x", 1), 1);
        bool seen[POLLS] = {false};
        for (int i = 0; i < POLLS; i++) {
            uint64_t tag;
            int result;
            take(&tag, &result);
            assert_true(tag < POLLS && !seen[tag]);
            seen[tag] = true;
            if (tag % 2)
                assert_int_equal(result, -ECANCELED);
            else
                assert_true(result & POLLIN);
        }
        expect_none();
        for (int i = 0; i < POLLS; i++) {
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

static void wake_in_flush(void)
{
    w->ops->wake(w, word);
    w->ops->flush(w);
}

static void wake_now(void)
{
    waiter_wake(word);
}

/* It sleeps by then, as far as time tells, so that nothing but a wake ends it. */
static void expect_a_wake_by(void (*wake)(void))
{
    order_u32 done = 0;
    pthread_t t;
    assert_int_equal(map_word(), 0);
    assert_int_equal(pthread_create(&t, NULL, sleeper, &done), 0);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    order_release(word, 1);
    uint64_t start = test_now_ns();
    while (!order_acquire(&done)) {
        assert_true(test_now_ns() - start < 20 * SECOND);
        wake();
    }
    pthread_join(t, NULL);
    expect_none(); /* wakes complete silently */
    munmap(word, 4096);
}

static void wakes_a_sleeper(void **state)
{
    (void)state;
    expect_a_wake_by(wake_in_flush);
    expect_a_wake_by(wake_now);
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
    bool completes = w->ops->futex(w, word, 0, 77);
    w->ops->flush(w);
    assert_int_equal(pthread_create(&t, NULL, changer, NULL), 0);
    if (completes)
        expect_one(77, 0);
    else if (w->ops->wakes)
        assert_int_equal(w->ops->wait(w, 60 * SECOND), 0);
    else
        while (w->ops->wait(w, 60 * SECOND) == -ETIME && order_acquire(word) == 0)
            w->ops->futex(w, word, 0, 77);
    assert_int_equal(order_acquire(word), 1);
    order_release(word, 2);
    pthread_join(t, NULL);
    munmap(word, 4096);
}

static void a_word_that_has_changed_ends_it_at_once(void **state)
{
    (void)state;
    assert_int_equal(map_word(), 0);
    if (w->ops->futex(w, word, 1, 78))
        expect_one(78, -EAGAIN);
    else if (w->ops->wakes)
        assert_int_equal(w->ops->wait(w, 60 * SECOND), 0);
    munmap(word, 4096);
}

static void a_wait_for_a_word_can_be_cancelled(void **state)
{
    (void)state;
    uint64_t tag;
    int result;
    assert_int_equal(map_word(), 0);
    if (w->ops->futex(w, word, 0, 79)) {
        w->ops->flush(w);
        w->ops->cancel(w, 79);
        take(&tag, &result);
        assert_true(tag == 79);
    }
    munmap(word, 4096);
}

static void *waker(void *over)
{
    while (!order_acquire(over)) {
        syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return NULL;
}

/* The wait ends, and says for whom: nothing had changed before, the wake alone can have ended it.
 */
static void ends_by(uint64_t tag)
{
    uint64_t t;
    int result;
    for (int i = 0; i < 100 && !w->ops->pending(w); i++) /* a sleep may end for nothing, too */
        assert_int_equal(w->ops->wait(w, 20 * SECOND), 0);
    assert_true(w->ops->pending(w));
    assert_true(w->ops->next(w, test_now_ns(), &t, &result));
    assert_true(t == tag);
    assert_int_equal(result, 0);
    assert_false(w->ops->pending(w));
}

/* A sleep for the words that were named ends by a wake of this one that comes without a change. */
static void ends_by_a_wake(bool completes, uint64_t tag)
{
    order_u32 over = 0;
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, waker, &over), 0);
    if (completes)
        expect_one(tag, 0);
    else if (w->ops->wakes)
        ends_by(tag);
    order_release(&over, 1);
    pthread_join(t, NULL);
}

static void a_needless_wake_leaves_the_next_sleep_watched(void **state)
{
    (void)state;
    assert_int_equal(map_word(), 0);
    for (int i = 0; i < 3; i++)
        ends_by_a_wake(w->ops->futex(w, word, 0, 5), 5);
    munmap(word, 4096);
}

/* Another client's segment may lie where the last one's lay, with the same value. */
static void the_same_address_is_another_word(void **state)
{
    (void)state;
    assert_int_equal(map_word(), 0);
    if (w->ops->wakes && !w->ops->futex(w, word, 0, 1)) {
        assert_int_equal(w->ops->wait(w, SECOND / 20), -ETIME);
        assert_ptr_equal(
            mmap(word, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            word);
        ends_by_a_wake(w->ops->futex(w, word, 0, 2), 2);
    }
    munmap(word, 4096);
}

/* First and last ones of each helper's part, with all others asleep. */
static void words_of_all_helpers_are_heard(void **state)
{
    (void)state;
    static const uint32_t at[] = {0, 1, 126, 127, 128, 253, 254, WORDS - 1};
    order_u32 *many =
        mmap(NULL, WORDS * sizeof *many, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(many, MAP_FAILED);
    for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
        for (uint32_t i = 0; i < WORDS; i++)
            assert_false(w->ops->futex(w, &many[i], 0, i));
        word = &many[at[k]];
        ends_by_a_wake(false, at[k]);
    }
    munmap(many, WORDS * sizeof *many);
}

/* What the list names may be gone when a helper comes to it. */
static void memory_that_is_gone_hurts_nobody(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        assert_int_equal(map_word(), 0);
        if (w->ops->futex(w, word, 0, (uint64_t)i)) {
            munmap(word, 4096);
            expect_one((uint64_t)i, -EFAULT);
            continue;
        }
        w->ops->wait(w, 0);
        munmap(word, 4096);
        w->ops->wait(w, 0); /* whatever comes of it */
    }
    assert_int_equal(map_word(), 0); /* and the next ones are heard */
    if (!w->ops->futex(w, word, 1, 99) && w->ops->wakes)
        assert_int_equal(w->ops->wait(w, 60 * SECOND), 0);
    munmap(word, 4096);
}

/* ---- no wake is lost: the handshake of the rings, with as many words as there may be ---- */

enum { SUBMITTERS = 3, ROUNDS = 6000 };

struct mesh {
    order_u32 need_wakeup, over;
    struct {
        order_u32 tail;
        uint8_t line[60];
    } ring[WORDS];
};

static struct mesh *mesh;

/* Moves words in turn, and wakes as a client does: only where the flag says so. */
static void *submitter(void *number)
{
    struct rnd r = {.state = (uintptr_t)number + 1};
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t at = rnd_below(&r, WORDS / SUBMITTERS) * SUBMITTERS + (uint32_t)(uintptr_t)number;
        order_u32 *tail = &mesh->ring[at].tail;
        order_release(tail, order_relaxed(tail) + 1);
        order_fence(); /* C1 */
        if (order_relaxed(&mesh->need_wakeup))
            syscall(SYS_futex, tail, FUTEX_WAKE, 1, NULL, NULL, 0);
        for (uint32_t k = rnd_below(&r, 3000); k; k--)
            __builtin_ia32_pause();
    }
    return NULL;
}

/* What the engine's loop does. Returns what it took. */
static uint32_t sweep(uint32_t last[WORDS])
{
    uint32_t taken = 0;
    for (int i = 0; i < WORDS; i++) {
        uint32_t now = order_acquire(&mesh->ring[i].tail);
        taken += now - last[i];
        last[i] = now;
    }
    return taken;
}

static bool moved(const uint32_t last[WORDS])
{
    for (int i = 0; i < WORDS; i++)
        if (order_acquire(&mesh->ring[i].tail) != last[i])
            return true;
    return false;
}

/* Waits that said true stay armed until they complete. */
static void sleep_on(const uint32_t last[WORDS], bool armed[WORDS])
{
    for (int i = 0; i < WORDS; i++)
        armed[i] = armed[i] || w->ops->futex(w, &mesh->ring[i].tail, last[i], (uint64_t)i);
    int rc = w->ops->wait(w, 20 * SECOND);
    if (w->ops->wakes)
        assert_int_equal(rc, 0); /* else it took 20 seconds: a wake was lost */
}

static void no_wake_is_lost(void **state)
{
    (void)state;
    static uint32_t last[WORDS];
    static bool armed[WORDS];
    pthread_t t[SUBMITTERS];
    memset(last, 0, sizeof last);
    memset(armed, 0, sizeof armed);
    mesh = mmap(NULL, sizeof *mesh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(mesh, MAP_FAILED);
    for (uintptr_t i = 0; i < SUBMITTERS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, submitter, (void *)i), 0);
    uint32_t left = SUBMITTERS * ROUNDS;
    while ((left -= sweep(last)) > 0) {
        uint64_t tag;
        int result;
        while (w->ops->next(w, test_now_ns(), &tag, &result))
            armed[tag] = false;
        order_set(&mesh->need_wakeup, 1);
        order_fence(); /* E1 */
        if (!moved(last))
            sleep_on(last, armed);
        order_set(&mesh->need_wakeup, 0);
    }
    for (int i = 0; i < SUBMITTERS; i++)
        pthread_join(t[i], NULL);
    for (uint64_t i = 0; i < WORDS; i++)
        if (armed[i])
            w->ops->cancel(w, i);
    munmap(mesh, sizeof *mesh);
}

/* A full one is still readable; where nobody is there, no signal comes. */
static void a_full_bell_does_not_block(void **state)
{
    (void)state;
    int pair[2], rung = 0;
    char c;
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
    for (int i = 0; i < 1000; i++)
        waiter_bell(pair[0]);
    while (recv(pair[1], &c, 1, MSG_DONTWAIT) == 1)
        rung++;
    assert_true(rung > 0 && rung < 1000);
    close(pair[1]);
    waiter_bell(pair[0]);
    close(pair[0]);
}

/* ---- what is said of a fallback ---- */

static void expect_notice(enum waiter_kind kind, const char *sentence)
{
    struct fail f = {0}, notice = {0};
    struct waiter *other;
    assert_int_equal(waiter_open(&other, kind, MAX_WAITS, &notice, &f), 0);
    if (!strstr(notice.text, sentence))
        fail_msg("says: %s\nnot: %s", notice.text, sentence);
    waiter_close(other);
}

static void silent_where_all_is_there(void **state)
{
    (void)state;
    struct fail f = {0}, notice = {0};
    struct waiter *other;
    assert_int_equal(waiter_open(&other, WAITER_EPOLL, MAX_WAITS, &notice, &f), 0);
    assert_int_equal(notice.code, 0);
    assert_true(other->ops->wakes);
    waiter_close(other);
}

static void says_that_it_looks(void **state)
{
    (void)state;
    assert_false(w->ops->wakes);
    expect_notice(WAITER_EPOLL, "futex_waitv cannot be used (Operation not permitted): use Linux "
                                "5.16 or later, in a container also a seccomp profile that permits "
                                "it; until then an idle engine looks for requests every 2 to 50 "
                                "milliseconds, and each may wait that long");
}

static void says_that_io_uring_is_too_old(void **state)
{
    (void)state;
    struct fail f = {0};
    assert_int_equal(waiter_open(&w, WAITER_URING, MAX_WAITS, NULL, &f), -ENOSYS);
    expect_notice(WAITER_AUTO, "this kernel's io_uring has no futex operations: use Linux 6.7 or "
                               "later; until then epoll and helper threads stand in");
}

static void says_that_io_uring_is_forbidden(void **state)
{
    (void)state;
    forbid_io_uring();
    expect_notice(WAITER_AUTO, "io_uring cannot be used (Operation not permitted)");
    expect_notice(WAITER_AUTO, "until then epoll and helper threads stand in");
    forbid_futex_waitv();
    expect_notice(WAITER_AUTO, "until then epoll stands in, and futex_waitv cannot be used");
}

static void says_that_there_are_no_threads(void **state)
{
    (void)state;
    expect_notice(WAITER_EPOLL,
                  "the threads that sleep on the clients' words cannot be started (Resource "
                  "temporarily unavailable): raise the limit of threads (ulimit -u, TasksMax=); "
                  "until then an idle engine looks for requests every 2 to 50 milliseconds");
}

/* Nothing is asked for: the sleep is as long as it was told. */
static void looks_become_rare(void **state)
{
    (void)state;
    assert_int_equal(map_word(), 0);
    uint64_t start = test_now_ns();
    unsigned looks = 0;
    for (; test_now_ns() - start < SECOND; looks++) {
        w->ops->futex(w, word, 0, 1);
        w->ops->wait(w, SECOND);
    }
    assert_in_range(looks, 1, 40); /* 2, 4, 8, 16, 32, then every 50 ms */
    munmap(word, 4096);
}

#define KIND(f, open) cmocka_unit_test_setup_teardown(f, open, close_it)
#define PROMISES(open)                                                                             \
    KIND(descriptors, open), KIND(a_bad_descriptor_completes_too, open),                           \
        KIND(cancelled_ones_complete, open), KIND(many_at_a_time, open), KIND(a_sleep_ends, open), \
        KIND(wakes_a_sleeper, open), KIND(is_woken_by_a_word, open),                               \
        KIND(a_word_that_has_changed_ends_it_at_once, open),                                       \
        KIND(a_wait_for_a_word_can_be_cancelled, open),                                            \
        KIND(a_needless_wake_leaves_the_next_sleep_watched, open),                                 \
        KIND(the_same_address_is_another_word, open),                                              \
        KIND(memory_that_is_gone_hurts_nobody, open), KIND(no_wake_is_lost, open),                 \
        KIND(a_full_bell_does_not_block, open)

static int without_waitv(void)
{
    const struct CMUnitTest tests[] = {PROMISES(open_epoll), KIND(says_that_it_looks, open_epoll),
                                       KIND(looks_become_rare, open_epoll)};
    forbid_futex_waitv();
    return cmocka_run_group_tests_name("epoll that looks", tests, NULL, NULL);
}

static int without_threads(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_that_there_are_no_threads),
                                       KIND(descriptors, open_epoll),
                                       KIND(a_sleep_ends, open_epoll)};
    forbid_threads();
    return cmocka_run_group_tests_name("no threads", tests, NULL, NULL);
}

static int with_an_old_io_uring(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_that_io_uring_is_too_old),
                                       cmocka_unit_test(says_that_io_uring_is_forbidden)};
    forbid_io_uring_futexes();
    return cmocka_run_group_tests_name("no io_uring", tests, NULL, NULL);
}

static int with_helpers(void)
{
    const struct CMUnitTest tests[] = {PROMISES(open_epoll),
                                       cmocka_unit_test(silent_where_all_is_there),
                                       KIND(words_of_all_helpers_are_heard, open_epoll)};
    return cmocka_run_group_tests_name("epoll with helpers", tests, NULL, NULL);
}

static int with_io_uring(void)
{
    const struct CMUnitTest tests[] = {PROMISES(open_uring)};
    return cmocka_run_group_tests_name("io_uring", tests, NULL, NULL);
}

/* Each in a process of its own: a ring that was closed still interrupts its process now and then.
 */
int main(void)
{
    static int (*const groups[])(void) = {with_io_uring, with_helpers, without_waitv,
                                          without_threads, with_an_old_io_uring};
    int failed = 0;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        failed |= in_a_process(groups[i]);
    return failed != 0;
}
