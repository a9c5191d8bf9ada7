/* waiter.c - chooses the kind; wakes by calls. Sources: futex(2), send(2). */
#define _GNU_SOURCE
#include "waiter.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Epoll in place of io_uring: one sentence for both. */
static int stand_in(struct waiter **out, uint32_t max_waits, const struct fail *why,
                    struct fail *notice, struct fail *f)
{
    struct fail looks = {0};
    int rc = waiter_epoll_open(out, max_waits, &looks, f);
    if (!rc && looks.code)
        fail(notice, why->code, "%s; until then epoll stands in, and %s", why->text, looks.text);
    else if (!rc)
        fail(notice, why->code,
             "%s; until then epoll and helper threads stand in: a request to an idle engine is "
             "seen some tens of microseconds later",
             why->text);
    return rc;
}

int waiter_open(struct waiter **out, enum waiter_kind kind, uint32_t max_waits, struct fail *notice,
                struct fail *f)
{
    if (kind == WAITER_EPOLL)
        return waiter_epoll_open(out, max_waits, notice, f);
    if (kind == WAITER_URING)
        return waiter_uring_open(out, max_waits, f);
    struct fail why = {0};
    int rc = waiter_uring_open(out, max_waits, &why);
    return rc < 0 ? stand_in(out, max_waits, &why, notice, f) : 0;
}

void waiter_wake(const order_u32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void waiter_bell(int fd)
{
    /* the flags are the call's own: what the client does to its end cannot make this wait */
    send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void waiter_close(struct waiter *w)
{
    if (w)
        w->ops->close(w);
}
