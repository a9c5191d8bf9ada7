/* waiter.c - chooses the kind. */
#include "waiter.h"

#include <stddef.h>

int waiter_open(struct waiter **out, enum waiter_kind kind, uint32_t max_waits, struct fail *notice,
                struct fail *f)
{
    if (kind == WAITER_EPOLL)
        return waiter_epoll_open(out, max_waits, f);
    if (kind == WAITER_URING)
        return waiter_uring_open(out, max_waits, f);
    struct fail why = {0};
    int rc = waiter_uring_open(out, max_waits, &why);
    if (rc < 0) {
        fail(notice, rc,
             "%s; until then epoll stands in, and a request to an idle engine may wait "
             "two milliseconds",
             why.text);
        rc = waiter_epoll_open(out, max_waits, f);
    }
    return rc;
}

void waiter_close(struct waiter *w)
{
    if (w)
        w->ops->close(w);
}
