/* signals.c - see signals.h. The handler uses only async-signal-safe calls. */
#include "signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct {
    atomic_bool serving, stop, now;
    _Atomic(const char *) path;
    int event;
} signals = {.event = -1};

static void ask(int number)
{
    (void)number;
    int saved = errno;
    if (atomic_exchange(&signals.stop, true))
        atomic_store(&signals.now, true);
    if (!atomic_load(&signals.serving)) {
        const char *path = atomic_load(&signals.path);
        if (path)
            unlink(path);
        _exit(0);
    }
    uint64_t one = 1;
    ssize_t n = write(signals.event, &one, sizeof one);
    (void)n; /* a full counter is readable as well */
    errno = saved;
}

/* A terminal that is closed ends what runs in it, unless that was started with nohup. */
static int handle_hangup(const struct sigaction *handle)
{
    struct sigaction was;
    if (sigaction(SIGHUP, NULL, &was))
        return -1;
    return was.sa_handler == SIG_IGN ? 0 : sigaction(SIGHUP, handle, NULL);
}

int signals_install(struct fail *f)
{
    signals.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (signals.event < 0)
        return fail(f, -errno, "cannot create an eventfd for signals: %s", strerror(errno));

    struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct sigaction handle = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigaddset(&handle.sa_mask, SIGINT);
    sigaddset(&handle.sa_mask, SIGTERM);
    sigaddset(&handle.sa_mask, SIGHUP);
    if (sigaction(SIGPIPE, &ignore, NULL) || sigaction(SIGXFSZ, &ignore, NULL) ||
        sigaction(SIGTERM, &handle, NULL) || sigaction(SIGINT, &handle, NULL) ||
        handle_hangup(&handle))
        return fail(f, -errno, "cannot install the signal handlers: %s", strerror(errno));
    return 0;
}

void signals_remove_on_exit(const char *path)
{
    atomic_store(&signals.path, path);
}

int signals_serve(void)
{
    atomic_store(&signals.serving, true);
    return signals.event;
}

bool signals_stop_asked(void)
{
    return atomic_load_explicit(&signals.stop, memory_order_relaxed);
}

bool signals_stop_now(void)
{
    return atomic_load_explicit(&signals.now, memory_order_relaxed);
}
