/* waiter_epoll.c - waiting with epoll, where io_uring cannot be had. Words are not waited for: a
 * sleep for which a word was named is cut short, then the loop looks itself.
 *
 * Invariants
 *   1. An entry is in the epoll set exactly while it is WAITING; DONE ones are handed out by `next`
 *      and become FREE.
 *
 * Sources: epoll(7), epoll_ctl(2), futex(2).
 */
#include "waiter.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BATCH = 64,
    SLEEP_MS = 2,     /* of a sleep for which a word was named: idle costs less than 1 % of a CPU */
    LOOK_NS = 5000000 /* between two looks while the loop is busy */
};

enum entry_state { FREE, WAITING, DONE };

struct entry {
    enum entry_state state;
    int fd, result;
    uint64_t tag;
};

struct epoll {
    struct waiter waiter;
    int fd;
    bool words; /* named for the next sleep */
    uint32_t n, n_done;
    uint64_t looked_ns;
    struct entry *entries; /* (n) */
};

static struct epoll *epoll(struct waiter *w)
{
    return (struct epoll *)w;
}

static void done(struct epoll *p, struct entry *e, int result)
{
    epoll_ctl(p->fd, EPOLL_CTL_DEL, e->fd, NULL);
    e->state = DONE;
    e->result = result;
    p->n_done++;
}

static struct entry *free_entry(struct epoll *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->entries[i].state == FREE)
            return &p->entries[i];
    assert(!"more waits than were announced");
    return NULL;
}

/* EPOLLIN and its kin have the values of POLLIN and its kin. */
static void epoll_poll(struct waiter *w, int fd, unsigned events, uint64_t tag)
{
    struct epoll *p = epoll(w);
    struct entry *e = free_entry(p);
    *e = (struct entry){.state = WAITING, .fd = fd, .tag = tag};
    struct epoll_event ev = {.events = events, .data.u32 = (uint32_t)(e - p->entries)};
    if (epoll_ctl(p->fd, EPOLL_CTL_ADD, fd, &ev) < 0)
        done(p, e, -errno);
}

static bool epoll_futex(struct waiter *w, const order_u32 *word, uint32_t last, uint64_t tag)
{
    (void)word, (void)last, (void)tag;
    epoll(w)->words = true;
    return false;
}

static void epoll_cancel(struct waiter *w, uint64_t tag)
{
    struct epoll *p = epoll(w);
    for (uint32_t i = 0; i < p->n; i++)
        if (p->entries[i].state == WAITING && p->entries[i].tag == tag)
            done(p, &p->entries[i], -ECANCELED);
}

static void epoll_wake(struct waiter *w, const order_u32 *word)
{
    (void)w;
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void epoll_bell(struct waiter *w, int fd)
{
    (void)w;
    send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void epoll_flush(struct waiter *w)
{
    (void)w;
}

/* Moves what has happened to DONE. Returns how many, or -errno. */
static int look(struct epoll *p, int timeout_ms)
{
    struct epoll_event events[BATCH];
    int n = epoll_wait(p->fd, events, BATCH, timeout_ms);
    for (int i = 0; i < n; i++)
        done(p, &p->entries[events[i].data.u32], (int)events[i].events);
    return n < 0 ? -errno : n;
}

static bool epoll_next(struct waiter *w, uint64_t now_ns, uint64_t *tag, int *result)
{
    struct epoll *p = epoll(w);
    if (now_ns - p->looked_ns >= LOOK_NS) {
        p->looked_ns = now_ns;
        look(p, 0);
    }
    for (uint32_t i = 0; p->n_done && i < p->n; i++) {
        struct entry *e = &p->entries[i];
        if (e->state != DONE)
            continue;
        *tag = e->tag;
        *result = e->result;
        e->state = FREE;
        p->n_done--;
        return true;
    }
    return false;
}

static bool epoll_pending(struct waiter *w)
{
    return epoll(w)->n_done;
}

static int epoll_sleep(struct waiter *w, uint64_t timeout_ns)
{
    struct epoll *p = epoll(w);
    uint64_t ms = p->words ? SLEEP_MS : timeout_ns / 1000000;
    p->words = false;
    int rc = look(p, ms < INT_MAX ? (int)ms : INT_MAX);
    return rc > 0 || rc == -EINTR ? 0 : rc ? rc : -ETIME;
}

static void epoll_close(struct waiter *w)
{
    struct epoll *p = epoll(w);
    if (p->fd >= 0)
        close(p->fd);
    free(p->entries);
    free(p);
}

static const struct waiter_ops epoll_ops = {.name = "epoll",
                                            .poll = epoll_poll,
                                            .futex = epoll_futex,
                                            .cancel = epoll_cancel,
                                            .wake = epoll_wake,
                                            .bell = epoll_bell,
                                            .flush = epoll_flush,
                                            .next = epoll_next,
                                            .pending = epoll_pending,
                                            .wait = epoll_sleep,
                                            .close = epoll_close};

int waiter_epoll_open(struct waiter **out, uint32_t max_waits, struct fail *f)
{
    struct epoll *p = calloc(1, sizeof *p);
    if (!p)
        return fail(f, -ENOMEM, "no memory for epoll");
    p->waiter.ops = &epoll_ops;
    p->n = max_waits;
    p->fd = epoll_create1(EPOLL_CLOEXEC);
    int code = p->fd < 0 ? -errno : 0;
    p->entries = calloc(max_waits, sizeof *p->entries);
    if (!code && !p->entries)
        code = -ENOMEM;
    if (code) {
        epoll_close(&p->waiter);
        return fail(f, code, "cannot make an epoll set for %u waits: %s", max_waits,
                    strerror(-code));
    }
    *out = &p->waiter;
    return 0;
}
