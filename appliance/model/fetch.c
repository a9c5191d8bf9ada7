/* fetch.c - reading with many requests in flight.
 *
 * A job is cut into chunks. A window of `depth` chunks moves over it: chunk c uses slot c % depth,
 * and the slot is free again once every chunk up to c has arrived.
 *
 *      |--- arrived ---|--- window: in flight or complete ---|--- not asked for ---|
 *      0             whole                                  asked                bytes
 *
 * Invariants
 *   1. No read is in flight when fetch_read returns, also after a failure: the memory is the
 * caller's.
 *   2. `arrived` sees the bytes in order, each once.
 *   3. What io_uring cannot do (no ring, a kernel without the operation, an error) is tried once
 * more with pread, which has the last word and names the error.
 */
#include "fetch.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct slot {
    uint64_t at; /* of the chunk, bytes from the job's start */
    uint32_t bytes, done;
};

struct fetch {
    const struct gguf *g;
    unsigned depth; /* 0: no ring */
    struct io_uring ring;
    struct slot slots[FETCH_DEPTH];
    unsigned prepared; /* entries that the kernel has not taken yet */
    unsigned flying;   /* entries that it has taken and not completed */
};

struct window {
    const struct fetch_job *job;
    uint64_t whole, asked; /* bytes; whole <= asked <= job->bytes */
};

int fetch_open(struct fetch **out, const struct gguf *g, unsigned depth, struct fail *f)
{
    assert(depth <= FETCH_DEPTH);
    struct fetch *x = calloc(1, sizeof *x);
    *out = x;
    if (!x)
        return gguf_refuse(g, f, -ENOMEM, "no memory to read it");
    x->g = g;
    if (depth && io_uring_queue_init(depth, &x->ring, 0) == 0)
        x->depth = depth;
    return 0;
}

static void drop_ring(struct fetch *x)
{
    if (x->depth)
        io_uring_queue_exit(&x->ring);
    x->depth = 0;
}

void fetch_close(struct fetch *x)
{
    if (!x)
        return;
    drop_ring(x);
    free(x);
}

/* ---- one after the other ---- */

static int ended(struct fetch *x, const struct fetch_job *job, uint64_t at, struct fail *f)
{
    return gguf_refuse(x->g, f, -EIO,
                       "ends at byte %" PRIu64
                       ", inside tensor '%s': it became shorter while it was "
                       "read; fetch the file again",
                       job->offset + at, job->what);
}

/* Bytes at .. at + bytes of the job. */
static int read_plain(struct fetch *x, const struct fetch_job *job, uint64_t at, uint64_t bytes,
                      struct fail *f)
{
    char *dst = job->dst;
    while (bytes) {
        size_t want = bytes < FETCH_CHUNK ? bytes : FETCH_CHUNK;
        ssize_t n = pread(x->g->fd, dst + at, want, (off_t)(job->offset + at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return gguf_refuse(x->g, f, -errno,
                               "tensor '%s' cannot be read at byte %" PRIu64 ": %s", job->what,
                               job->offset + at, strerror(errno));
        if (n == 0)
            return ended(x, job, at, f);
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* From `at` on to the job's end, telling of each chunk. */
static int finish_plain(struct fetch *x, const struct fetch_job *job, uint64_t at, struct fail *f)
{
    while (at < job->bytes) {
        uint64_t n = job->bytes - at < FETCH_CHUNK ? job->bytes - at : FETCH_CHUNK;
        int rc = read_plain(x, job, at, n, f);
        if (rc < 0)
            return rc;
        job->arrived(job->context, (char *)job->dst + at, n);
        at += n;
    }
    return 0;
}

/* ---- many in flight ---- */

/* Asks for what the slot still lacks. */
static void ask(struct fetch *x, const struct fetch_job *job, unsigned index)
{
    struct slot *s = &x->slots[index];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&x->ring);
    assert(sqe); /* the ring has an entry for every slot, and a slot has one request at a time */
    io_uring_prep_read(sqe, x->g->fd, (char *)job->dst + s->at + s->done, s->bytes - s->done,
                       job->offset + s->at + s->done);
    sqe->user_data = index;
    x->prepared++;
}

static void fill_window(struct fetch *x, struct window *w)
{
    const struct fetch_job *job = w->job;
    while (w->asked < job->bytes && w->asked - w->whole < (uint64_t)x->depth * FETCH_CHUNK) {
        unsigned index = (unsigned)(w->asked / FETCH_CHUNK % x->depth);
        uint64_t left = job->bytes - w->asked;
        x->slots[index] = (struct slot){
            .at = w->asked, .bytes = (uint32_t)(left < FETCH_CHUNK ? left : FETCH_CHUNK)};
        w->asked += x->slots[index].bytes;
        ask(x, job, index);
    }
}

/* Submits what is prepared and waits for at least one completion. */
static int submit(struct fetch *x)
{
    int n = io_uring_submit_and_wait(&x->ring, 1);
    if (n >= 0) {
        x->prepared -= (unsigned)n;
        x->flying += (unsigned)n;
        return 0;
    }
    /* the kernel is short of something: completions give it back */
    if (n == -EINTR || ((n == -EAGAIN || n == -EBUSY) && x->flying))
        return 0;
    return n;
}

static int completed(struct fetch *x, const struct fetch_job *job, unsigned index, int32_t result,
                     struct fail *f)
{
    struct slot *s = &x->slots[index];
    if (result == 0)
        return ended(x, job, s->at + s->done, f);
    if (result < 0 && result != -EAGAIN && result != -EINTR) {
        int rc = read_plain(x, job, s->at + s->done, s->bytes - s->done, f);
        if (rc < 0)
            return rc;
        s->done = s->bytes;
    }
    if (result > 0)
        s->done += (uint32_t)result;
    if (s->done < s->bytes)
        ask(x, job, index);
    return 0;
}

static int take_completions(struct fetch *x, const struct fetch_job *job, struct fail *f)
{
    struct io_uring_cqe *cqe;
    int rc = 0;
    while (rc == 0 && io_uring_peek_cqe(&x->ring, &cqe) == 0) {
        unsigned index = (unsigned)cqe->user_data;
        int32_t result = cqe->res;
        io_uring_cqe_seen(&x->ring, cqe);
        x->flying--;
        rc = completed(x, job, index, result, f);
    }
    return rc;
}

/* Tells of the chunks at the window's start that are complete. */
static void advance(struct fetch *x, struct window *w)
{
    while (w->whole < w->asked) {
        const struct slot *s = &x->slots[w->whole / FETCH_CHUNK % x->depth];
        if (s->done < s->bytes)
            return;
        w->job->arrived(w->job->context, (char *)w->job->dst + s->at, s->bytes);
        w->whole += s->bytes;
    }
}

/* After a failure: waits until the kernel writes no more into the caller's memory, and gives the
 * ring up, with what was prepared in it. */
static void abandon_ring(struct fetch *x)
{
    struct io_uring_cqe *cqe;
    while (x->flying) {
        int rc = io_uring_wait_cqe(&x->ring, &cqe);
        if (rc == -EINTR)
            continue;
        assert(rc == 0); /* a ring of ours with entries in flight can be waited for */
        io_uring_cqe_seen(&x->ring, cqe);
        x->flying--;
    }
    x->prepared = 0;
    drop_ring(x);
}

int fetch_read(struct fetch *x, const struct fetch_job *job, struct fail *f)
{
    struct window w = {.job = job};
    int rc = 0;
    while (x->depth && rc == 0 && w.whole < job->bytes) {
        fill_window(x, &w);
        if (submit(x) < 0) {
            abandon_ring(x);
            break;
        }
        rc = take_completions(x, job, f);
        advance(x, &w);
    }
    if (rc < 0) {
        abandon_ring(x);
        return rc;
    }
    assert(x->flying == 0 && x->prepared == 0);
    return finish_plain(x, job, w.whole, f);
}
