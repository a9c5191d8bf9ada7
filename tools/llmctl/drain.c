/* drain.c - `drain`: asks an engine to finish what runs and to stop, and waits until it has.
 *
 * The board names the process; the process may be gone and its number taken by another. So: a
 * descriptor of the process is opened first (pidfd), and then the board is read again. While its
 * lock is held by the same start of the engine (epoch, pid), that engine is alive, its number is
 * nobody else's, and the descriptor, which was opened before, means it. From then on signals go
 * through the descriptor.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "board_view.h"

enum { TICK_MS = 250, SAY_EVERY = 4 /* ticks */ };

static int open_process(uint32_t pid)
{
    return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

static int signal_process(int fd, int number)
{
    return syscall(SYS_pidfd_send_signal, fd, number, NULL, 0) ? -errno : 0;
}

static int not_alive(const struct board_view *v)
{
    return ctl_error("the engine \"%s\" is %s already (process %u): nothing to drain", ctl_instance,
                     board_view_state(v), v->board.pid);
}

/* A descriptor of the engine's process, or -1 after a message. */
static int open_engine(struct board_view *v)
{
    if (board_view_read(v))
        return -1;
    uint32_t pid = v->board.pid;
    uint64_t epoch = v->board.epoch;
    if (!v->lives) {
        not_alive(v);
        return -1;
    }
    int fd = pid > 1 && pid <= INT32_MAX ? open_process(pid) : (errno = ESRCH, -1);
    if (fd < 0) {
        ctl_error("the board says that the engine \"%s\" is process %u, which cannot be seen from "
                  "here (%s): it may run in another container; send it SIGTERM there",
                  ctl_instance, pid, strerror(errno));
        return -1;
    }
    if (board_view_read(v))
        goto fail;
    if (v->lives && v->board.pid == pid && v->board.epoch == epoch)
        return fd;
    ctl_error("the engine \"%s\" has just ended: nothing to drain", ctl_instance);
fail:
    close(fd);
    return -1;
}

/* ---- waiting ---- */

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static bool ended(int fd, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, wait_ms) > 0;
}

static void say_progress(struct board_view *v, uint64_t since_ms, bool quiet)
{
    if (quiet || board_view_read_quiet(v))
        return;
    fprintf(stderr, "llmctl: draining for %.1f s: %llu running, %llu waiting\n",
            (double)(now_ms() - since_ms) * 1e-3,
            (unsigned long long)order_read64(&v->board.running),
            (unsigned long long)order_read64(&v->board.waiting));
}

/* 0: it has ended; 1 after a message: the time is over. */
static int wait_end(struct board_view *v, int fd, double timeout_s, bool quiet)
{
    uint64_t start = now_ms();
    for (unsigned tick = 0; !ended(fd, TICK_MS); tick++) {
        if (tick % SAY_EVERY == 0)
            say_progress(v, start, quiet);
        if (timeout_s > 0 && (double)(now_ms() - start) >= timeout_s * 1e3)
            return ctl_error("the engine \"%s\" is still draining after %.1f s; it goes on "
                             "(its --drain-timeout says for how long)",
                             ctl_instance, timeout_s);
    }
    return 0;
}

static int drain(struct board_view *v, double timeout_s, bool quiet)
{
    int fd = open_engine(v);
    if (fd < 0)
        return 1;
    uint32_t pid = v->board.pid;
    uint64_t epoch = v->board.epoch, running = order_read64(&v->board.running);
    bool draining = order_relaxed(&v->board.state) == LLM_STATE_DRAINING;
    int rc = draining ? 0 : signal_process(fd, SIGTERM);
    if (rc < 0)
        rc = ctl_error("cannot signal process %u: %s", pid, strerror(-rc));
    else
        rc = wait_end(v, fd, timeout_s, quiet);
    close(fd);
    if (rc)
        return rc;
    /* an orderly end takes the board away */
    if (!board_view_read_quiet(v) && v->board.epoch == epoch)
        return ctl_error("the engine \"%s\" has ended, but not in order: see llmctl -i %s status "
                         "and its log",
                         ctl_instance, ctl_instance);
    printf("%s: process %u has stopped; %llu requests were running\n", ctl_instance, pid,
           (unsigned long long)running);
    return fflush(stdout) ? ctl_error("cannot write to standard output") : 0;
}

int cmd_drain(int argc, char **argv)
{
    static const struct option options[] = {{"timeout", required_argument, NULL, 't'},
                                            {"quiet", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    double timeout_s = 0;
    bool quiet = false;
    int c, rc = 0;
    while (!rc && (c = ctl_getopt(argc, argv, ":h", options)) != -1)
        switch (c) {
        case 't':
            rc = ctl_parse_amount("--timeout", optarg, &timeout_s);
            break;
        case 'q':
            quiet = true;
            break;
        case 'h':
            puts("usage: llmctl [-i INSTANCE] drain [--timeout SECONDS] [--quiet]\n\n"
                 "The engine takes no new requests, finishes what runs within its --drain-timeout, "
                 "and stops;\nprogress comes on standard error.\n"
                 "  --timeout SECONDS     stop waiting then; the engine drains on (0: no limit)\n"
                 "  --quiet               no progress");
            return 0;
        default:
            return 2;
        }
    if (rc)
        return rc;
    if (optind < argc)
        return ctl_usage("unexpected \"%.40s\"", argv[optind]);
    struct board_view *v = board_view_create();
    rc = v ? drain(v, timeout_s, quiet) : 1;
    free(v);
    return rc;
}
