/* segments.c - see segments.h. */
#include "segments.h"

#include <errno.h>
#include <fcntl.h>
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

/* A segment of that size, the pages of its first `ready` bytes there. */
static int allocate(struct segment *s, const char *name, size_t bytes, size_t ready, struct fail *f)
{
    *s = (struct segment){.fd = open_memfd(name), .bytes = bytes};
    if (s->fd < 0)
        return give_up(s, "create", name, s->fd, f);
    int rc = ftruncate(s->fd, (off_t)bytes) < 0 ? errno : 0;
    if (!rc)
        rc = posix_fallocate(s->fd, 0, (off_t)ready);
    return rc ? give_up(s, "allocate", name, -rc, f) : 0;
}

static int map(struct segment *s, const char *name, int protection, size_t ready, struct fail *f)
{
    void *at = mmap(NULL, s->bytes, protection, MAP_SHARED, s->fd, 0);
    if (at == MAP_FAILED)
        return give_up(s, "map", name, -errno, f);
    s->map = at;
    /* without it (kernels before 5.14) the first accesses take a fault each */
    madvise(at, ready, protection & PROT_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    return 0;
}

static int seal(struct segment *s, const char *name, int more, struct fail *f)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | more;
    return fcntl(s->fd, F_ADD_SEALS, seals) < 0 ? give_up(s, "seal", name, -errno, f) : 0;
}

int segment_from_client(struct segment *s, const char *name, size_t bytes, struct fail *f)
{
    size_t ready = bytes < SEGMENT_READY ? bytes : (size_t)SEGMENT_READY;
    int rc = allocate(s, name, bytes, ready, f);
    if (!rc)
        rc = map(s, name, PROT_READ, ready, f);
    return rc ? rc : seal(s, name, 0, f);
}

int segment_to_client(struct segment *s, const char *name, size_t bytes, struct fail *f)
{
    int rc = allocate(s, name, bytes, bytes, f);
    if (!rc)
        rc = map(s, name, PROT_READ | PROT_WRITE, bytes, f);
    return rc ? rc : seal(s, name, F_SEAL_FUTURE_WRITE, f);
}

int segment_frozen(struct segment *s, const char *name, const void *image, size_t bytes,
                   struct fail *f)
{
    int rc = allocate(s, name, bytes, bytes, f);
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
