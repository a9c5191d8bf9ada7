/* segments.c - see segments.h. */
#include "segments.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22 /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

static int open_memfd(const char *name)
{
    unsigned flags = MFD_ALLOW_SEALING | MFD_CLOEXEC;
    int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, flags);
    return fd < 0 ? -errno : fd;
}

/* `what` failed with the code rc: undoes the segment. */
static int give_up(struct segment *s, const char *what, const char *name, int rc, struct fail *f)
{
    size_t bytes = s->bytes;
    segment_free(s);
    return fail(f, rc, "cannot %s the shared memory %s of %zu bytes: %s", what, name, bytes,
                strerror(-rc));
}

/* A segment of that size without pages. */
static int create(struct segment *s, const char *name, size_t bytes, struct fail *f)
{
    *s = (struct segment){.fd = open_memfd(name), .bytes = bytes};
    if (s->fd < 0)
        return give_up(s, "create", name, s->fd, f);
    return ftruncate(s->fd, (off_t)bytes) < 0 ? give_up(s, "allocate", name, -errno, f) : 0;
}

/* The pages of `bytes` more bytes. */
static int allocate(struct segment *s, const char *name, size_t bytes, struct fail *f)
{
    int rc = posix_fallocate(s->fd, (off_t)s->there, (off_t)bytes);
    if (rc)
        return give_up(s, "allocate", name, -rc, f);
    s->there += bytes;
    return 0;
}

static int map(struct segment *s, const char *name, int protection, struct fail *f)
{
    void *at = mmap(NULL, s->bytes, protection, MAP_SHARED, s->fd, 0);
    if (at == MAP_FAILED)
        return give_up(s, "map", name, -errno, f);
    s->map = at;
    return 0;
}

static int seal(struct segment *s, const char *name, int more, struct fail *f)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | more;
    return fcntl(s->fd, F_ADD_SEALS, seals) < 0 ? give_up(s, "seal", name, -errno, f) : 0;
}

int segment_begin(struct segment *s, enum segment_side side, const char *name, size_t bytes,
                  struct fail *f)
{
    bool ours = side == SEGMENT_TO_CLIENT;
    int rc = create(s, name, bytes, f);
    if (!rc)
        rc = map(s, name, ours ? PROT_READ | PROT_WRITE : PROT_READ, f);
    if (!rc)
        rc = seal(s, name, ours ? F_SEAL_FUTURE_WRITE : 0, f);
    s->ready = ours || bytes < SEGMENT_READY ? bytes : (size_t)SEGMENT_READY;
    return rc;
}

int segment_grow(struct segment *s, const char *name, size_t *budget, struct fail *f)
{
    size_t left = s->ready - s->there, from = s->there, n = left < *budget ? left : *budget;
    int rc = n ? allocate(s, name, n, f) : 0;
    if (rc < 0)
        return rc;
    *budget -= n;
    /* without it (kernels before 5.14) the first accesses take a fault each */
    if (n && madvise((char *)s->map + from, n, MADV_POPULATE_WRITE))
        madvise((char *)s->map + from, n, MADV_POPULATE_READ); /* a mapping to read */
    return s->there == s->ready;
}

static int make(struct segment *s, enum segment_side side, const char *name, size_t bytes,
                struct fail *f)
{
    size_t all = bytes;
    int rc = segment_begin(s, side, name, bytes, f);
    if (!rc)
        rc = segment_grow(s, name, &all, f);
    return rc < 0 ? rc : 0;
}

int segment_from_client(struct segment *s, const char *name, size_t bytes, struct fail *f)
{
    return make(s, SEGMENT_FROM_CLIENT, name, bytes, f);
}

int segment_to_client(struct segment *s, const char *name, size_t bytes, struct fail *f)
{
    return make(s, SEGMENT_TO_CLIENT, name, bytes, f);
}

int segment_frozen(struct segment *s, const char *name, const void *image, size_t bytes,
                   struct fail *f)
{
    int rc = create(s, name, bytes, f);
    if (!rc)
        rc = allocate(s, name, bytes, f);
    if (rc)
        return rc;
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(s->fd, (const char *)image + done, bytes - done, (off_t)done);
        if (n < 0 && errno != EINTR)
            return give_up(s, "fill", name, -errno, f);
        done += n > 0 ? (size_t)n : 0;
    }
    return seal(s, name, F_SEAL_WRITE, f);
}

void segment_close_fd(struct segment *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

void segment_free(struct segment *s)
{
    segment_close_fd(s);
    if (s->map)
        munmap(s->map, s->bytes);
    s->map = NULL;
}
