/* serve.c - `serve`: an engine and a gateway as one command.
 *
 *   LOADING --the board says ready--> OPENING --the gateway listens--> SERVING
 *      |  the engine leaves              |  it leaves
 *      +--------> STOPPING <-------------+    what never ran does not run at the second try either
 *   SERVING: one that dies is started again, after 1, 2, 4 ... 30 s; after --restarts in a row, or
 *   when the engine leaves in order (`llmctl drain`): STOPPING
 *   any --SIGTERM, SIGINT, SIGHUP--> STOPPING: the gateway ends first, so that its streams have an
 *   engine to the end; then the engine drains; who takes longer than allowed is killed
 *
 * Both live in process groups of their own: an interrupt at the terminal comes here alone, and the
 * order is kept.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "board_view.h"
#include "serve.h"

enum {
    TICK_MS = 100,
    SAY_EVERY_MS = 5000,
    STEADY_MS = 60000, /* after so long, earlier deaths are forgotten */
    LONGEST_PAUSE_MS = 30000,
    GRACE_MS = 3000, /* beyond the drain timeout: to leave in order */
};

enum stage { LOADING, OPENING, SERVING, STOPPING };

struct serve {
    struct serve_options o;
    struct serve_process engine, gateway;
    struct board_view *view;
    int signals; /* signalfd */
    enum stage stage;
    uint64_t since_ms, said_ms, turn_ms; /* turn_ms: of the process that is to end next */
    unsigned asked;                      /* signals to stop */
    int rc;
};

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("llmctl: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static void enter(struct serve *s, enum stage stage)
{
    s->stage = stage;
    s->since_ms = s->said_ms = s->turn_ms = serve_now_ms();
}

static void stop(struct serve *s, int rc)
{
    if (s->stage == STOPPING)
        return;
    s->rc = rc;
    enter(s, STOPPING);
    serve_process_signal(&s->gateway, SIGTERM);
    if (!s->gateway.pid)
        serve_process_signal(&s->engine, SIGTERM);
}

/* ---- addresses ---- */

static struct addrinfo *addresses(const struct serve_options *o, bool to_listen)
{
    struct addrinfo *all = NULL,
                    hints = {.ai_socktype = SOCK_STREAM, .ai_flags = to_listen ? AI_PASSIVE : 0};
    char host[256], port[8];
    size_t n = strlen(o->host);
    bool brackets = n > 2 && *o->host == '[' && o->host[n - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(n - 2 * brackets), o->host + brackets);
    snprintf(port, sizeof port, "%u", (unsigned)o->port);
    int rc = getaddrinfo(host, port, &hints, &all);
    if (rc)
        ctl_error("--host %.200s is not known: %s", o->host, gai_strerror(rc));
    return all;
}

/* Whether the gateway will find its port free: better said before the model is loaded. */
static int check_port(const struct serve_options *o)
{
    struct addrinfo *all = addresses(o, true);
    if (!all)
        return 1;
    int fd = socket(all->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, rc = 0;
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, all->ai_addr, all->ai_addrlen) || listen(fd, 1))
        rc = ctl_error("cannot listen on %s port %u: %s; choose another --host or --port", o->host,
                       (unsigned)o->port, strerror(errno));
    if (fd >= 0)
        close(fd);
    freeaddrinfo(all);
    return rc;
}

/* Somebody takes connections there: the port was free before, so it is the gateway. */
static bool listens(const struct serve_options *o)
{
    struct addrinfo *all = addresses(o, false);
    bool yes = false;
    for (struct addrinfo *a = all; a && !yes; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        yes = fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen);
        if (fd >= 0)
            close(fd);
    }
    if (all)
        freeaddrinfo(all);
    return yes;
}

static void say_ready(struct serve *s)
{
    const char *host = s->o.host;
    if (!strcmp(host, "0.0.0.0") || !strcmp(host, "::") || !strcmp(host, "[::]"))
        host = "localhost";
    bool six = strchr(host, ':') && *host != '[';
    printf("llmctl: ready: %s://%s%s%s:%u/v1 serves '%.127s'\n",
           s->o.certificate ? "https" : "http", six ? "[" : "", host, six ? "]" : "",
           (unsigned)s->o.port, board_view_read_quiet(s->view) ? "" : s->view->board.model);
    fflush(stdout);
}

/* ---- one that has ended ---- */

static const char *how_it_ended(char *out, size_t size, int status)
{
    if (status > 128)
        snprintf(out, size, "was killed by signal %d (%s)", status - 128, strsignal(status - 128));
    else
        snprintf(out, size, "has ended with status %d", status);
    return out;
}

static uint64_t pause_ms(const struct serve_process *p)
{
    if (!p->failures)
        return 0;
    unsigned doubled = p->failures < 6 ? p->failures - 1 : 5;
    uint64_t ms = 1000ull << doubled;
    return ms < LONGEST_PAUSE_MS ? ms : LONGEST_PAUSE_MS;
}

/* While serving: it is started again, or all ends. */
static void lost(struct serve *s, struct serve_process *p, int status)
{
    char how[80];
    how_it_ended(how, sizeof how, status);
    if (p == &s->engine && status == 0) {
        say("the engine has stopped in order: so does the gateway");
        stop(s, 0);
        return;
    }
    if (serve_now_ms() - p->started_ms >= STEADY_MS)
        p->failures = 0;
    p->failures++;
    p->started_ms = serve_now_ms();
    if (status == 2 || p->failures > s->o.restarts) {
        ctl_error("%s %s%s", p->name, how,
                  status == 2 ? ": its command line is wrong" : "; it is not started again");
        stop(s, 1);
        return;
    }
    say("%s %s; it is started again in %llu s (%u of %llu)", p->name, how,
        (unsigned long long)pause_ms(p) / 1000, p->failures, (unsigned long long)s->o.restarts);
}

static void ended(struct serve *s, struct serve_process *p, int status)
{
    char how[80];
    if (s->stage == SERVING) {
        lost(s, p, status);
    } else if (s->stage != STOPPING) {
        ctl_error("%s %s before it was ready", p->name, how_it_ended(how, sizeof how, status));
        stop(s, status == 2 ? 2 : 1);
    } else {
        if (p == &s->gateway) { /* nobody is served any more */
            s->turn_ms = serve_now_ms();
            serve_process_signal(&s->engine, SIGTERM);
        }
        if (status == 128 + SIGTERM) /* it had not come to handling it yet */
            return;
        if (status)
            say("%s %s while it was stopped", p->name, how_it_ended(how, sizeof how, status));
        if (status && !s->rc && p == &s->engine)
            s->rc = 1;
    }
}

static void look_for_ends(struct serve *s)
{
    int status;
    if (serve_process_ended(&s->engine, &status))
        ended(s, &s->engine, status);
    if (serve_process_ended(&s->gateway, &status))
        ended(s, &s->gateway, status);
}

/* ---- stages ---- */

static bool engine_ready(struct serve *s)
{
    return !board_view_read_quiet(s->view) && s->view->lives &&
           s->view->board.pid == (uint32_t)s->engine.pid &&
           order_relaxed(&s->view->board.state) == LLM_STATE_READY;
}

static void say_waiting(struct serve *s, const char *what)
{
    uint64_t now = serve_now_ms();
    if (now - s->said_ms < SAY_EVERY_MS)
        return;
    s->said_ms = now;
    say("%s (%.0f s)", what, (double)(now - s->since_ms) * 1e-3);
}

static void start(struct serve *s, struct serve_process *p)
{
    if (serve_process_start(p))
        stop(s, 1);
}

static void start_again(struct serve *s, struct serve_process *p)
{
    if (!p->pid && serve_now_ms() - p->started_ms >= pause_ms(p))
        start(s, p);
}

/* Who takes longer than allowed is killed: the gateway, then the engine. */
static void hurry(struct serve *s)
{
    struct serve_process *p = s->gateway.pid ? &s->gateway : &s->engine;
    uint64_t allowed_ms = (uint64_t)(s->o.drain_s * 1e3) + GRACE_MS;
    say_waiting(s, "stopping: what runs comes to its end");
    if (!p->pid || (s->asked < 2 && serve_now_ms() - s->turn_ms < allowed_ms))
        return;
    ctl_error("%s is killed: %s", p->name,
              s->asked < 2 ? "it did not stop in time" : "told twice to stop");
    s->rc = 1;
    serve_process_signal(p, SIGKILL);
}

static void tick(struct serve *s)
{
    switch (s->stage) {
    case LOADING:
        say_waiting(s, "the engine loads its model");
        if (engine_ready(s)) {
            enter(s, OPENING);
            start(s, &s->gateway);
        }
        break;
    case OPENING:
        say_waiting(s, "the gateway starts");
        if (listens(&s->o) && s->gateway.pid) {
            enter(s, SERVING);
            say_ready(s);
        }
        break;
    case SERVING:
        start_again(s, &s->engine);
        if (s->stage == SERVING)
            start_again(s, &s->gateway);
        break;
    case STOPPING:
        hurry(s);
        break;
    }
}

static void take_signals(struct serve *s)
{
    struct signalfd_siginfo got;
    while (read(s->signals, &got, sizeof got) == sizeof got) {
        if (got.ssi_signo == SIGCHLD)
            continue;
        if (!s->asked++)
            say("stopping: no new requests; again to stop at once");
        stop(s, 0);
    }
}

static void wait_a_tick(struct serve *s)
{
    struct pollfd fds[] = {{.fd = s->signals, .events = POLLIN},
                           {.fd = s->engine.pid ? s->engine.fd : -1, .events = POLLIN},
                           {.fd = s->gateway.pid ? s->gateway.fd : -1, .events = POLLIN}};
    poll(fds, 3, TICK_MS);
}

static int supervise(struct serve *s)
{
    enter(s, LOADING);
    start(s, &s->engine);
    while (s->stage != STOPPING || s->engine.pid || s->gateway.pid) {
        wait_a_tick(s);
        take_signals(s);
        look_for_ends(s);
        tick(s);
    }
    return s->rc;
}

/* ---- the command ---- */

/* The keys of --api-key as the file that the gateway wants: memory that only it gets, so that they
 * do not stand in its command line too. -1: none, or after a message with *rc set. */
static int keys_file(struct serve_options *o, int *rc)
{
    if (!o->keys.n)
        return -1;
    int fd = memfd_create("llmctl-keys", MFD_CLOEXEC);
    for (size_t i = 0; fd >= 0 && i < o->keys.n; i++)
        if (dprintf(fd, "%s\n", o->keys.w[i]) < 0) {
            close(fd);
            fd = -1;
        }
    if (fd < 0) {
        *rc = ctl_error("cannot keep the keys: %s", strerror(errno));
        return -1;
    }
    args_add(&o->gateway, "--api-keys");
    args_add(&o->gateway, "/proc/self/fd/%d", fd);
    return fd;
}

static int open_signals(void)
{
    sigset_t all;
    sigemptyset(&all);
    sigaddset(&all, SIGTERM);
    sigaddset(&all, SIGINT);
    sigaddset(&all, SIGHUP);
    sigaddset(&all, SIGCHLD);
    sigprocmask(SIG_BLOCK, &all, NULL);
    return signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int serve(struct serve *s)
{
    int rc = check_port(&s->o), keys = -1;
    if (!rc)
        keys = keys_file(&s->o, &rc);
    if (rc)
        return rc;
    s->engine = (struct serve_process){"llmd", &s->o.engine, -1, 0, -1, 0, 0};
    s->gateway = (struct serve_process){"llm-gateway", &s->o.gateway, keys, 0, -1, 0, 0};
    s->signals = open_signals();
    s->view = board_view_create();
    if (s->signals < 0)
        rc = ctl_error("cannot wait for signals: %s", strerror(errno));
    else
        rc = s->view ? supervise(s) : 1;
    free(s->view);
    if (s->signals >= 0)
        close(s->signals);
    if (keys >= 0)
        close(keys);
    return rc;
}

int cmd_serve(int argc, char **argv)
{
    struct serve s = {0};
    int rc = serve_options_parse(&s.o, argc, argv);
    if (!rc && s.o.help)
        serve_options_help();
    else if (!rc)
        rc = serve(&s);
    serve_options_free(&s.o);
    return rc;
}
