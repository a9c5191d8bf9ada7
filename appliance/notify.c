/* notify.c - see notify.h. */
#include "notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MESSAGE_MAX = 512 };

/* "/path", or "@name" in the abstract namespace. Returns the address's bytes, or -EINVAL. */
static int address_of(const char *name, struct sockaddr_un *out)
{
    size_t bytes = strlen(name);
    if ((*name != '/' && *name != '@') || bytes < 2 || bytes >= sizeof out->sun_path)
        return -EINVAL;
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path, name, bytes);
    if (*name == '@')
        out->sun_path[0] = 0;
    return (int)(offsetof(struct sockaddr_un, sun_path) + bytes);
}

static int connect_to(const char *name)
{
    struct sockaddr_un to;
    int bytes = address_of(name, &to);
    if (bytes < 0)
        return bytes;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&to, (socklen_t)bytes)) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

/* WATCHDOG_PID names the process that is meant, if not whoever inherits the environment. */
static uint64_t watchdog_ns(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    char *end;
    if (!usec || (pid && strtoull(pid, NULL, 10) != (unsigned long long)getpid()))
        return 0;
    errno = 0;
    unsigned long long n = strtoull(usec, &end, 10);
    if (errno || *end || end == usec || *usec == '-' || n > UINT64_MAX / 1000)
        return 0;
    return n * 1000;
}

int notify_open(struct notify *n, struct fail *f)
{
    *n = (struct notify){.fd = -1};
    const char *name = getenv("NOTIFY_SOCKET");
    if (!name || !*name)
        return 0;
    int fd = connect_to(name);
    if (fd < 0)
        return fail(
            f, fd,
            "the service manager's socket '%.100s' (NOTIFY_SOCKET) cannot be reached: %s; it "
            "is told nothing: start llmd without that variable, or through the manager",
            name, strerror(-fd));
    n->fd = fd;
    n->watchdog_ns = watchdog_ns();
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return 0;
}

void notify_close(struct notify *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

void notify_send(const struct notify *n, const char *format, ...)
{
    if (n->fd < 0)
        return;
    char message[MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (bytes < 0)
        return;
    if (bytes >= MESSAGE_MAX)
        bytes = MESSAGE_MAX - 1;
    (void)send(n->fd, message, (size_t)bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

uint64_t notify_period_ns(const struct notify *n, uint64_t most_ns)
{
    uint64_t half = n->watchdog_ns / 2;
    return n->fd >= 0 && half && half < most_ns ? half : most_ns;
}

void notify_begin(struct notify *n, uint64_t now_ns)
{
    n->progress_ns = n->sent_ns = now_ns;
}

bool notify_tick(struct notify *n, uint64_t steps, bool busy, uint64_t now_ns)
{
    if (n->fd < 0 || !n->watchdog_ns)
        return false;
    if (!busy || steps != n->steps)
        n->progress_ns = now_ns;
    n->steps = steps;
    if (now_ns - n->progress_ns >= n->watchdog_ns || now_ns - n->sent_ns < n->watchdog_ns / 2)
        return false;
    notify_send(n, "WATCHDOG=1");
    n->sent_ns = now_ns;
    return true;
}
