/* waiter_uring.c - waiting with io_uring: one enter hands everything over and sleeps.
 *
 * The ring is made without DEFER_TASKRUN, so that the kernel posts completions while this thread
 * runs and they are seen by looking at memory. liburing 2.3 knows no futex operations: the entries
 * are filled by hand (fd = FUTEX2 flags, addr, addr2 = value or count, addr3 = mask; Linux 6.7).
 *
 * Sources: io_uring(7), io_uring_setup(2), io_uring_enter(2), futex(2), getrlimit(2).
 */
#include "waiter.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { OP_FUTEX_WAIT = 51, OP_FUTEX_WAKE = 52, FUTEX_SIZE_U32 = 2 };

/* Completions that nobody waits for: of wakes and cancels. */
#define NOBODY UINT64_MAX

struct uring {
    struct waiter waiter;
    struct io_uring ring;
};

static struct uring *uring(struct waiter *w)
{
    return (struct uring *)w;
}

/* The ring has an entry for everything that a round may ask for, so it runs full only when the
 * kernel took fewer than it was given; then what is there is handed over first. */
static struct io_uring_sqe *next_entry(struct uring *u)
{
    struct io_uring_sqe *e = io_uring_get_sqe(&u->ring);
    for (int tries = 0; !e && tries < 1000; tries++) {
        io_uring_submit(&u->ring);
        e = io_uring_get_sqe(&u->ring);
    }
    assert(e);
    return e;
}

static void uring_poll(struct waiter *w, int fd, unsigned events, uint64_t tag)
{
    struct io_uring_sqe *e = next_entry(uring(w));
    io_uring_prep_poll_add(e, fd, events);
    e->user_data = tag;
}

static void futex_entry(struct io_uring_sqe *e, int op, const order_u32 *word, uint64_t value,
                        uint64_t tag)
{
    memset(e, 0, sizeof *e);
    e->opcode = (uint8_t)op;
    e->fd = FUTEX_SIZE_U32; /* shared: the other side has the word at another address */
    e->addr = (uintptr_t)word;
    e->addr2 = value;
    e->addr3 = UINT32_MAX;
    e->user_data = tag;
}

static bool uring_futex(struct waiter *w, const order_u32 *word, uint32_t last, uint64_t tag)
{
    futex_entry(next_entry(uring(w)), OP_FUTEX_WAIT, word, last, tag);
    return true;
}

static void uring_wake(struct waiter *w, const order_u32 *word)
{
    struct io_uring_sqe *e = next_entry(uring(w));
    futex_entry(e, OP_FUTEX_WAKE, word, 1, NOBODY);
    e->flags = IOSQE_CQE_SKIP_SUCCESS;
}

static void uring_cancel(struct waiter *w, uint64_t tag)
{
    struct io_uring_sqe *e = next_entry(uring(w));
    io_uring_prep_cancel64(e, tag, 0);
    e->flags = IOSQE_CQE_SKIP_SUCCESS;
    e->user_data = NOBODY;
}

static void uring_flush(struct waiter *w)
{
    if (io_uring_sq_ready(&uring(w)->ring))
        io_uring_submit(&uring(w)->ring);
}

static bool uring_next(struct waiter *w, uint64_t now_ns, uint64_t *tag, int *result)
{
    (void)now_ns;
    struct io_uring *ring = &uring(w)->ring;
    struct io_uring_cqe *e;
    while (io_uring_cq_ready(ring) && !io_uring_peek_cqe(ring, &e)) {
        *tag = e->user_data;
        *result = e->res;
        io_uring_cqe_seen(ring, e);
        if (*tag != NOBODY)
            return true;
    }
    return false;
}

static bool uring_pending(struct waiter *w)
{
    return io_uring_cq_ready(&uring(w)->ring);
}

static int uring_wait(struct waiter *w, uint64_t timeout_ns)
{
    struct io_uring *ring = &uring(w)->ring;
    struct __kernel_timespec t = {.tv_sec = (long long)(timeout_ns / 1000000000u),
                                  .tv_nsec = (long long)(timeout_ns % 1000000000u)};
    struct io_uring_cqe *e;
    int rc = io_uring_submit_and_wait_timeout(ring, &e, 1, &t, NULL);
    if (rc == -ETIME)
        return io_uring_sq_ready(ring) ? 0 : rc; /* not all was handed over: that was no sleep */
    return rc >= 0 || rc == -EINTR || rc == -EAGAIN || rc == -EBUSY ? 0 : rc;
}

static void uring_close(struct waiter *w)
{
    struct uring *u = uring(w);
    if (u->ring.ring_fd >= 0)
        io_uring_queue_exit(&u->ring);
    free(u);
}

static const struct waiter_ops uring_ops = {.name = "io_uring",
                                            .wakes = true,
                                            .poll = uring_poll,
                                            .futex = uring_futex,
                                            .cancel = uring_cancel,
                                            .wake = uring_wake,
                                            .flush = uring_flush,
                                            .next = uring_next,
                                            .pending = uring_pending,
                                            .wait = uring_wait,
                                            .close = uring_close};

static int check_operations(struct uring *u, struct fail *f)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
    bool known = probe && io_uring_opcode_supported(probe, OP_FUTEX_WAIT) &&
                 io_uring_opcode_supported(probe, OP_FUTEX_WAKE);
    io_uring_free_probe(probe);
    if (known)
        return 0;
    return fail(f, -ENOSYS,
                "this kernel's io_uring has no futex operations: use Linux 6.7 or later");
}

/* As far as it may. */
static uint64_t raise_locked_memory(void)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_MEMLOCK, &limit);
    return limit.rlim_cur;
}

/* Newer kernels count rings as locked memory of the user. */
static int init_ring(struct uring *u, uint32_t entries)
{
    struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_SUBMIT_ALL |
                                         IORING_SETUP_CLAMP};
    int rc = io_uring_queue_init_params(entries, &u->ring, &p);
    if (rc == -ENOMEM && raise_locked_memory())
        rc = io_uring_queue_init_params(entries, &u->ring, &p);
    return rc;
}

static int no_memory(uint32_t entries, struct fail *f)
{
    uint64_t kib =
        (entries * sizeof(struct io_uring_sqe) + 2 * entries * sizeof(struct io_uring_cqe)) >> 10;
    uint64_t may_kib = raise_locked_memory() >> 10;
    if (may_kib < 16 * kib)
        return fail(f, -ENOMEM,
                    "io_uring cannot be used: its rings of %llu KiB count as locked memory, of "
                    "which this user may have %llu KiB; raise the limit (ulimit -l, "
                    "LimitMEMLOCK=), grant CAP_IPC_LOCK or lower --max-clients",
                    (unsigned long long)kib, (unsigned long long)may_kib);
    return fail(f, -ENOMEM,
                "io_uring cannot be used: the kernel has no memory for its rings of %llu KiB; "
                "raise the limit of the control group (memory.max, MemoryMax=)",
                (unsigned long long)kib);
}

static int no_ring(int rc, uint32_t entries, struct fail *f)
{
    switch (rc) {
    case -EINVAL:
    case -ENOSYS:
        return fail(f, rc, "this kernel's io_uring is too old (%s): use Linux 6.7 or later",
                    strerror(-rc));
    case -ENOMEM:
        return no_memory(entries, f);
    case -EMFILE:
    case -ENFILE:
        return fail(f, rc, "io_uring cannot be used (%s): raise the limit of open files (%s)",
                    strerror(-rc), rc == -EMFILE ? "ulimit -n, LimitNOFILE=" : "fs.file-max");
    }
    return fail(
        f, rc,
        "io_uring cannot be used (%s): allow it with the sysctl kernel.io_uring_disabled=0, "
        "in a container also with a seccomp profile that permits io_uring",
        strerror(-rc));
}

static int make_ring(struct uring *u, uint32_t max_waits, struct fail *f)
{
    /* each wait may be asked for and cancelled in a round; wakes are fewer than waits */
    uint32_t entries = 3 * max_waits;
    int rc = init_ring(u, entries);
    if (!rc)
        return check_operations(u, f);
    u->ring.ring_fd = -1;
    return no_ring(rc, entries, f);
}

int waiter_uring_open(struct waiter **out, uint32_t max_waits, struct fail *f)
{
    struct uring *u = calloc(1, sizeof *u);
    if (!u)
        return fail(f, -ENOMEM, "no memory for io_uring");
    u->waiter.ops = &uring_ops;
    u->ring.ring_fd = -1;
    int rc = make_ring(u, max_waits, f);
    if (rc < 0)
        uring_close(&u->waiter);
    else
        *out = &u->waiter;
    return rc;
}
