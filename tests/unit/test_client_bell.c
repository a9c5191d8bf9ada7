/* test_client_bell.c - the pollable descriptor: readable for events and for the end, never silent
 * when there is something; and long waits, which sleep on the same bell.
 */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>

#include "fake_engine.h"

static uint64_t submit(struct llm_client *c)
{
    struct llm_request r = LLM_REQUEST_INIT;
    uint64_t id;
    r.op = LLM_OP_NOP;
    if (llm_submit(c, &r, &id))
        fail_msg("%s", llm_errmsg(c));
    return id;
}

static bool readable(struct llm_client *c)
{
    struct pollfd p = {llm_fd(c), POLLIN, 0};
    assert_true(p.fd >= 0);
    int n = poll(&p, 1, 0);
    assert_true(n >= 0);
    return n;
}

static enum llm_wait announced(const struct fake *f)
{
    return ring_wants_wake(&f->ring);
}

/* Ends the request and rings for it, as the engine does. */
static void finish(struct fake *f, uint64_t id)
{
    fake_done(f, id, 0, LLM_FINISH_STOP);
    fake_wake(f, fake_publish(f));
}

static void expect_final(struct llm_client *c, uint64_t id)
{
    struct llm_event e;
    assert_int_equal(llm_poll(c, &e), 1);
    assert_int_equal(e.type, LLM_EVENT_DONE);
    assert_int_equal(e.id, id);
}

static void expect_nothing(struct llm_client *c)
{
    struct llm_event e;
    assert_int_equal(llm_poll(c, &e), 0);
}

/* Nobody who has a heart that beats in the future is asked whether he lives, but for a reason. */
static void beat_in_the_future(struct fake *f)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    order_set64(&f->p->heartbeat_ns, (uint64_t)(t.tv_sec + 1000) * 1000000000);
}

/* ---- events ---- */

static void it_is_the_handles_own(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    int fds = fake_open_fds(), fd = llm_fd(c);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(llm_fd(c), fd);
    assert_int_equal(fake_open_fds(), fds + 1);
    llm_close(c);
    assert_int_equal(fake_open_fds(), fds - 2); /* socket and bell */
    assert_int_equal(fcntl(fd, F_GETFD), -1);
}

static void it_rings_once_for_an_event(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    for (int round = 0; round < 3; round++) {
        uint64_t id = submit(c);
        fake_take_quietly(f);
        assert_int_equal(llm_arm(c), 0);
        assert_int_equal(announced(f), LLM_WAIT_BELL);
        assert_false(readable(c));
        finish(f, id);
        assert_true(readable(c));
        expect_final(c, id);
        assert_int_equal(announced(f), LLM_WAIT_NONE); /* more of it would ring in vain */
        expect_nothing(c);
    }
    assert_int_equal(llm_arm(c), 0);
    assert_false(readable(c));
    llm_close(c);
}

static void who_arms_too_late_is_told(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    uint64_t id = submit(c);
    fake_take_quietly(f);
    finish(f, id);
    assert_int_equal(llm_arm(c), 1);
    assert_int_equal(announced(f), LLM_WAIT_NONE);
    expect_final(c, id);
    assert_int_equal(llm_arm(c), 0);
    llm_close(c);
}

static void arming_twice_loses_nothing(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    uint64_t id = submit(c);
    fake_take_quietly(f);
    assert_int_equal(llm_arm(c), 0);
    finish(f, id);
    assert_int_equal(llm_arm(c), 1); /* it has emptied the bell, and says why it rang */
    expect_final(c, id);
    llm_close(c);
}

/* The engine looked at cq_wait before the client took it back. */
static void a_late_byte_wakes_once_for_nothing(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    uint64_t id = submit(c);
    fake_take_quietly(f);
    assert_int_equal(llm_arm(c), 0);
    fake_done(f, id, 0, LLM_FINISH_STOP);
    enum llm_wait how = fake_publish(f);
    expect_final(c, id);
    fake_wake(f, how);
    assert_true(readable(c));
    expect_nothing(c);
    assert_int_equal(llm_arm(c), 0);
    assert_false(readable(c));
    llm_close(c);
}

static void a_bell_that_rang_often_is_emptied_at_once(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    assert_int_equal(llm_arm(c), 0);
    for (int i = 0; i < 40; i++)
        fake_wake(f, LLM_WAIT_BELL);
    expect_nothing(c);
    assert_int_equal(llm_arm(c), 0);
    assert_false(readable(c));
    llm_close(c);
}

/* Who arms with events taken, but not told, gives the room back: else both would wait. */
static void arming_gives_room_back(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    uint64_t id = submit(c);
    fake_take_quietly(f);
    finish(f, id);
    ring_arm(&f->ring, true);
    expect_final(c, id);
    assert_false(ring_rescan(&f->ring, true));
    assert_int_equal(llm_arm(c), 0);
    assert_true(ring_rescan(&f->ring, true));
    llm_close(c);
}

static void a_wait_disarms(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_event e;
    uint64_t id = submit(c);
    fake_take_quietly(f);
    assert_int_equal(llm_arm(c), 0);
    assert_int_equal(llm_wait(c, &e, 1), 0);
    assert_int_equal(announced(f), LLM_WAIT_NONE);
    assert_int_equal(llm_arm(c), 0);
    finish(f, id);
    assert_int_equal(llm_wait(c, &e, -1), 1);
    assert_int_equal(e.id, id);
    llm_close(c);
}

static void without_a_descriptor_left_it_says_so(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int next = dup(0);
    close(next);
    none = (struct rlimit){(rlim_t)next, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = llm_fd(c);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(rc, -EMFILE);
    assert_int_equal(llm_errcode(c), -EMFILE);
    assert_true(llm_fd(c) >= 0);
    llm_close(c);
}

/* ---- the end ---- */

static void expect_end(struct llm_client *c, uint64_t id, int code)
{
    struct llm_event e;
    assert_true(readable(c));
    assert_int_equal(llm_poll(c, &e), 1);
    assert_int_equal(e.type, LLM_EVENT_ERROR);
    assert_int_equal(e.id, id);
    assert_int_equal(e.status, code);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(llm_arm(c), 1);
        assert_int_equal(llm_poll(c, &e), code);
    }
}

static void a_death_is_told_at_once(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    uint64_t id = submit(c);
    beat_in_the_future(f);
    expect_nothing(c);
    assert_int_equal(llm_arm(c), 0);
    assert_false(readable(c));
    fake_die(f);
    expect_end(c, id, LLM_EOWNERDEAD);
    llm_close(c);
}

/* Before the client has ever asked for a descriptor, and with nothing in flight. */
static void a_death_before_the_descriptor(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_event e;
    beat_in_the_future(f);
    fake_die(f);
    assert_int_equal(llm_arm(c), 0);
    assert_true(readable(c));
    assert_int_equal(llm_poll(c, &e), LLM_EOWNERDEAD);
    llm_close(c);
}

static void what_came_before_the_death_comes_first(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    uint64_t first = submit(c), second = submit(c);
    fake_take_quietly(f);
    beat_in_the_future(f);
    assert_int_equal(llm_arm(c), 0);
    finish(f, first);
    fake_die(f);
    assert_true(readable(c));
    expect_final(c, first);
    assert_int_equal(llm_arm(c), 0);
    expect_end(c, second, LLM_EOWNERDEAD);
    llm_close(c);
}

static void an_eviction_is_told_at_once(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    uint64_t id = submit(c);
    assert_int_equal(llm_arm(c), 0);
    ring_evict(&f->ring, LLM_EPROTO, "for a test");
    shutdown(f->socket, SHUT_RDWR);
    expect_end(c, id, LLM_EEVICTED);
    llm_close(c);
}

static void unknown_packets_wake_for_nothing(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    beat_in_the_future(f);
    submit(c);
    for (int i = 0; i < 20; i++)
        assert_int_equal(control_send(f->socket, "hello?", 6, NULL, 0), 0);
    int rounds = 0;
    do {
        assert_int_equal(llm_arm(c), 0);
        expect_nothing(c);
    } while (readable(c) && ++rounds < 10);
    assert_false(readable(c));
    llm_close(c);
}

/* ---- long waits ---- */

struct helper {
    struct fake *f;
    pthread_t waiter;
    uint64_t id;
    atomic_bool stop;
};

/* Ends the request once the client, which slept on its futex at first, sleeps on the bell. */
static void *finish_when_on_the_bell(void *arg)
{
    struct helper *h = arg;
    while (announced(h->f) != LLM_WAIT_BELL)
        ;
    finish(h->f, h->id);
    return NULL;
}

static void a_long_wait_ends_with_the_bell(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    for (int round = 0; round < 3; round++) {
        struct helper h = {.f = f, .id = submit(c)};
        struct llm_event e;
        pthread_t thread;
        fake_take_quietly(f);
        assert_int_equal(pthread_create(&thread, NULL, finish_when_on_the_bell, &h), 0);
        int rc = llm_wait(c, &e, -1);
        pthread_join(thread, NULL);
        assert_int_equal(rc, 1);
        assert_int_equal(e.id, h.id);
        assert_int_equal(announced(f), LLM_WAIT_NONE);
    }
    llm_close(c);
}

static void *die_when_on_the_bell(void *arg)
{
    struct helper *h = arg;
    while (announced(h->f) != LLM_WAIT_BELL)
        ;
    shutdown(h->f->socket, SHUT_RDWR);
    return NULL;
}

static void a_death_ends_a_long_wait(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct helper h = {.f = f, .id = submit(c)};
    struct llm_event e;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, die_when_on_the_bell, &h), 0);
    int rc = llm_wait(c, &e, -1);
    pthread_join(thread, NULL);
    assert_int_equal(rc, 1);
    assert_int_equal(e.status, LLM_EOWNERDEAD);
    assert_int_equal(llm_wait(c, &e, -1), LLM_EOWNERDEAD);
    llm_close(c);
}

static void on_signal(int number)
{
    (void)number;
}

static void *signal_when_on_the_bell(void *arg)
{
    struct helper *h = arg;
    while (!atomic_load(&h->stop))
        if (announced(h->f) == LLM_WAIT_BELL)
            pthread_kill(h->waiter, SIGUSR1);
    return NULL;
}

static void a_signal_interrupts_a_long_wait(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct helper h = {.f = f, .waiter = pthread_self(), .id = submit(c)};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct llm_event e;
    pthread_t thread;
    sigaction(SIGUSR1, &action, NULL);
    assert_int_equal(pthread_create(&thread, NULL, signal_when_on_the_bell, &h), 0);
    int rc = llm_wait(c, &e, -1);
    atomic_store(&h.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(rc, -EINTR);
    assert_int_equal(llm_errcode(c), -EINTR);
    assert_int_equal(announced(f), LLM_WAIT_NONE);
    llm_close(c);
}

static void a_long_wait_has_its_timeout(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_event e;
    submit(c);
    assert_int_equal(llm_wait(c, &e, 120), 0);
    assert_int_equal(announced(f), LLM_WAIT_NONE);
    llm_close(c);
}

/* ---- both sides at once ---- */

enum { ROUNDS = 20000 };

/* An engine that ends what it finds, and rings for it as the rule says. */
static void *serve(void *arg)
{
    struct helper *h = arg;
    struct fake *f = h->f;
    const char *why = "";
    for (int served = 0; served < ROUNDS;) {
        int n = ring_sweep(&f->ring, &why);
        REQUIRE(n >= 0);
        for (; n; n--, served++) {
            struct llm_sqe sqe;
            REQUIRE(!ring_take(&f->ring, &sqe, &why) && !ring_taken(&f->ring, 1, &why));
            fake_done(f, sqe.user_data, 0, LLM_FINISH_STOP);
        }
        for (int i = served % 4; i; i--)
            sched_yield();
        if (ring_publish(&f->ring)) {
            ring_after_publish();
            fake_wake(f, ring_wants_wake(&f->ring));
        }
    }
    return NULL;
}

/* A lost ring would leave the client in epoll_wait; fake_setup's alarm ends that. */
static void no_ring_is_lost(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct helper h = {.f = f};
    pthread_t thread;
    int loop = epoll_create1(EPOLL_CLOEXEC), sent = 0, sleeps = 0;
    struct epoll_event ev = {.events = EPOLLIN};
    assert_int_equal(epoll_ctl(loop, EPOLL_CTL_ADD, llm_fd(c), &ev), 0);
    assert_int_equal(pthread_create(&thread, NULL, serve, &h), 0);
    for (int taken = 0; taken < ROUNDS;) {
        struct llm_event e;
        while (sent < ROUNDS && (int)llm_inflight(c) < 1 + taken % 3) {
            submit(c);
            sent++;
        }
        while (llm_poll(c, &e) == 1)
            taken++;
        if (sent - taken && !llm_arm(c)) {
            assert_int_equal(epoll_wait(loop, &ev, 1, -1), 1);
            sleeps++;
        }
    }
    pthread_join(thread, NULL);
    print_message("%d requests, %d waits\n", ROUNDS, sleeps);
    close(loop);
    llm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAKE_TEST(it_is_the_handles_own),
        FAKE_TEST(it_rings_once_for_an_event),
        FAKE_TEST(who_arms_too_late_is_told),
        FAKE_TEST(arming_twice_loses_nothing),
        FAKE_TEST(a_late_byte_wakes_once_for_nothing),
        FAKE_TEST(a_bell_that_rang_often_is_emptied_at_once),
        FAKE_TEST(arming_gives_room_back),
        FAKE_TEST(a_wait_disarms),
        FAKE_TEST(without_a_descriptor_left_it_says_so),
        FAKE_TEST(a_death_is_told_at_once),
        FAKE_TEST(a_death_before_the_descriptor),
        FAKE_TEST(what_came_before_the_death_comes_first),
        FAKE_TEST(an_eviction_is_told_at_once),
        FAKE_TEST(unknown_packets_wake_for_nothing),
        FAKE_TEST(a_long_wait_ends_with_the_bell),
        FAKE_TEST(a_death_ends_a_long_wait),
        FAKE_TEST(a_signal_interrupts_a_long_wait),
        FAKE_TEST(a_long_wait_has_its_timeout),
        FAKE_TEST(no_ring_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
