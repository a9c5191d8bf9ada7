/* test_notify.c - what the service manager is told: the protocol's datagrams, and a watchdog that
 * is fed by progress only.
 */
#include "../../appliance/notify.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const uint64_t second = 1000000000;
static int manager = -1;

/* A manager's socket, a path or an abstract name; its name goes into the environment. */
static void listen_as(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    memcpy(at.sun_path, name, strlen(name));
    if (*name == '@')
        at.sun_path[0] = 0;
    else
        unlink(name);
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(manager, (struct sockaddr *)&at,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
                     0);
    setenv("NOTIFY_SOCKET", name, 1);
}

/* The next datagram, "" where there is none. */
static const char *heard(void)
{
    static char text[1024];
    ssize_t n = recv(manager, text, sizeof text - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static struct notify opened(const char *watchdog_usec)
{
    struct notify n;
    struct fail f = {0};
    char name[64];
    snprintf(name, sizeof name, "@llmd-test-notify-%d", (int)getpid());
    listen_as(name);
    if (watchdog_usec)
        setenv("WATCHDOG_USEC", watchdog_usec, 1);
    if (notify_open(&n, &f))
        fail_msg("%s", f.text);
    return n;
}

static void closed(struct notify *n)
{
    notify_close(n);
    close(manager);
    assert_int_equal(n->fd, -1);
}

static void nobody_wants_to_know(void **state)
{
    (void)state;
    struct notify n;
    unsetenv("NOTIFY_SOCKET");
    setenv("WATCHDOG_USEC", "1000000", 1);
    assert_int_equal(notify_open(&n, NULL), 0);
    notify_send(&n, "READY=1");
    notify_begin(&n, 0);
    assert_false(notify_tick(&n, 1, true, 100 * second));
    assert_true(notify_period_ns(&n, second) == second);
    notify_close(&n);
    setenv("NOTIFY_SOCKET", "", 1);
    assert_int_equal(notify_open(&n, NULL), 0);
    unsetenv("WATCHDOG_USEC");
}

static void messages_arrive(void **state)
{
    (void)state;
    struct notify n = opened(NULL);
    assert_null(getenv("NOTIFY_SOCKET")); /* not for children */
    notify_send(&n, "READY=1\nSTATUS=serving %s", "m");
    assert_string_equal(heard(), "READY=1\nSTATUS=serving m");
    char long_text[2000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    notify_send(&n, "STATUS=%s", long_text);
    assert_int_equal(strlen(heard()), 511); /* cut */
    for (int i = 0; i < 1000; i++) /* a manager that does not listen: nobody waits for it */
        notify_send(&n, "STATUS=%s", long_text);
    closed(&n);

    char path[108];
    snprintf(path, sizeof path, "%.80s/notify.sock", scratch_dir());
    listen_as(path);
    assert_int_equal(notify_open(&n, NULL), 0);
    notify_send(&n, "STOPPING=1");
    assert_string_equal(heard(), "STOPPING=1");
    closed(&n);
}

static void wrong_sockets_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int code;
    } cases[] = {{"relative", -EINVAL},
                 {"/nonexistent/socket", -ENOENT},
                 {"@", -EINVAL},
                 {"@llmd-nobody-has-this-name", -ECONNREFUSED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct notify n;
        struct fail f = {0};
        setenv("NOTIFY_SOCKET", cases[i].name, 1);
        assert_int_equal(notify_open(&n, &f), cases[i].code);
        assert_non_null(strstr(f.text, cases[i].name));
        assert_int_equal(n.fd, -1);
    }
    char path[200] = "/";
    memset(path + 1, 'a', 150);
    setenv("NOTIFY_SOCKET", path, 1);
    struct notify n;
    assert_int_equal(notify_open(&n, NULL), -EINVAL);
    unsetenv("NOTIFY_SOCKET");
}

static void the_watchdog_belongs_to_one_process(void **state)
{
    (void)state;
    char pid[32];
    setenv("WATCHDOG_PID", "1", 1);
    struct notify n = opened("4000000");
    assert_true(n.watchdog_ns == 0);
    closed(&n);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    n = opened("4000000");
    assert_true(n.watchdog_ns == 4 * second);
    assert_true(notify_period_ns(&n, second) == second);
    assert_true(notify_period_ns(&n, 3 * second) == 2 * second);
    closed(&n);
    static const char *const bad[] = {"", "-5", "x", "5x", "99999999999999999999999", "0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        n = opened(bad[i]);
        assert_true(n.watchdog_ns == 0);
        assert_false(notify_tick(&n, 1, false, 100 * second));
        closed(&n);
    }
}

/* Period 4 s, ticks each second. */
static void the_watchdog_is_fed_by_progress(void **state)
{
    (void)state;
    struct notify n = opened("4000000");
    uint64_t t = 1000 * second;
    notify_begin(&n, t);
    assert_false(notify_tick(&n, 0, false, t += second));
    assert_true(notify_tick(&n, 0, false, t += second)); /* half of it: idle is fine */
    assert_string_equal(heard(), "WATCHDOG=1");
    assert_string_equal(heard(), "");
    assert_false(notify_tick(&n, 7, true, t += second));
    assert_true(notify_tick(&n, 8, true, t += second)); /* steps are completed */

    assert_false(notify_tick(&n, 8, true, t += second)); /* work, but no step */
    assert_true(notify_tick(&n, 8, true, t += second));  /* not yet for a whole period */
    assert_false(notify_tick(&n, 8, true, t += second));
    for (int i = 0; i < 10; i++)
        assert_false(notify_tick(&n, 8, true, t += second)); /* stuck */
    assert_true(notify_tick(&n, 9, true, t += second));      /* it moves again */
    for (int i = 0; i < 10; i++)
        notify_tick(&n, 9, true, t += second);
    assert_true(notify_tick(&n, 9, false, t += second)); /* nothing to do is no hang */
    closed(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_wants_to_know),
        cmocka_unit_test(messages_arrive),
        cmocka_unit_test(wrong_sockets_are_refused),
        cmocka_unit_test(the_watchdog_belongs_to_one_process),
        cmocka_unit_test(the_watchdog_is_fed_by_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
