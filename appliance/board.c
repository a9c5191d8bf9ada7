/* board.c - see board.h. */
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../shm/control.h"

enum { LOCK_TRIES = 50, LOCK_PAUSE_NS = 2000000 };

/* What the SIGBUS handler knows. */
static struct llm_board *volatile guarded;
static volatile uint64_t lost;

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr, start = (uintptr_t)guarded;
    int saved = errno;
    if (start && at >= start && at - start < LLM_BOARD_BYTES &&
        mmap((void *)start, LLM_BOARD_BYTES, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
        lost++;
        order_set64(&((struct llm_board *)start)->board_lost, lost);
        errno = saved;
        return;
    }
    signal(number, SIG_DFL); /* not ours: the access is repeated and ends the process */
}

static int guard(struct llm_board *map)
{
    guarded = map;
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    return sigaction(SIGBUS, &action, NULL) ? -errno : 0;
}

/* ---- whose it is ---- */

static bool is_at(int fd, const char *name)
{
    struct stat a, b;
    int other = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    bool same = other >= 0 && !fstat(fd, &a) && !fstat(other, &b) && a.st_dev == b.st_dev &&
                a.st_ino == b.st_ino;
    if (other >= 0)
        close(other);
    return same;
}

static int lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno == EWOULDBLOCK ? -EBUSY : -errno;
}

/* Unlinks the board that is there, if no engine holds it. 0: look again. */
static int clear_stale(const char *name)
{
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    int rc = lock(fd);
    if (!rc && is_at(fd, name) && shm_unlink(name) < 0 && errno != ENOENT)
        rc = -errno;
    close(fd);
    return rc;
}

/* Returns the descriptor of a new object, locked, or -errno; -EBUSY: somebody holds the old one,
 * or looks at it (llmctl status), which passes. */
static int open_new(const char *name)
{
    int rc = -EBUSY;
    for (int tries = 0; tries < LOCK_TRIES && (!rc || rc == -EBUSY); tries++) {
        if (tries && rc)
            nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
        int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0640);
        if (fd >= 0 && (rc = lock(fd)) == 0 && is_at(fd, name))
            return fd;
        if (fd >= 0)
            close(fd); /* another engine took it for a stale one before it was locked */
        else
            rc = errno == EEXIST ? clear_stale(name) : -errno;
    }
    return rc ? rc : -EBUSY;
}

static uint32_t pid_at(const char *name)
{
    uint32_t pid = 0;
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0 || pread(fd, &pid, sizeof pid, offsetof(struct llm_board, pid)) != sizeof pid)
        pid = 0;
    if (fd >= 0)
        close(fd);
    return pid;
}

static int not_opened(const struct board *b, const char *instance, int rc, struct fail *f)
{
    if (rc == -EBUSY)
        return fail(f, rc,
                    "the board /dev/shm%s is that of process %u: an engine '%s' runs in another "
                    "runtime directory; stop it, or choose another --instance",
                    b->name, pid_at(b->name), instance);
    if (rc == -EACCES || rc == -EPERM)
        return fail(f, rc,
                    "the board /dev/shm%s belongs to another user, who has an engine '%s': choose "
                    "another --instance",
                    b->name, instance);
    return fail(f, rc, "cannot create the board /dev/shm%s: %s", b->name, strerror(-rc));
}

/* ---- life ---- */

/* Maps the new object; on failure nothing stays mapped. */
static int map_new(int fd, struct llm_board **out)
{
    if (fchmod(fd, 0640) < 0) /* whatever the umask is */
        return -errno;
    int rc = posix_fallocate(fd, 0, LLM_BOARD_BYTES);
    if (rc)
        return -rc;
    void *at =
        mmap(NULL, LLM_BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    rc = guard(at);
    if (rc)
        munmap(at, LLM_BOARD_BYTES);
    else
        *out = at;
    return rc;
}

int board_create(struct board *b, const char *instance, struct fail *f)
{
    *b = (struct board){.fd = -1};
    int rc = llm_board_name(instance, b->name, sizeof b->name);
    if (rc < 0)
        return fail(f, rc, "the instance name '%.64s' makes no name for a board", instance);
    int fd = open_new(b->name);
    if (fd < 0)
        return not_opened(b, instance, fd, f);
    rc = map_new(fd, &b->map);
    if (rc < 0) {
        shm_unlink(b->name);
        close(fd);
        if (rc == -ENOSPC)
            return fail(f, rc,
                        "/dev/shm is full: the board /dev/shm%s needs %d bytes there; remove what "
                        "is left over (ls -l /dev/shm), or mount it larger",
                        b->name, LLM_BOARD_BYTES);
        return fail(f, rc, "cannot set up the board /dev/shm%s of %d bytes: %s", b->name,
                    LLM_BOARD_BYTES, strerror(-rc));
    }
    b->fd = fd;
    return 0;
}

void board_publish(struct board *b)
{
    order_release64(&b->map->magic, LLM_MAGIC_BOARD);
}

void board_remove(struct board *b)
{
    if (!b->map)
        return;
    if (is_at(b->fd, b->name))
        shm_unlink(b->name);
    guarded = NULL;
    munmap(b->map, LLM_BOARD_BYTES);
    close(b->fd);
    b->map = NULL;
    b->fd = -1;
}

void board_error(struct board *b, int64_t code, const char *format, ...)
{
    struct llm_board_error *e = &b->map->errors[b->errors++ % LLM_BOARD_ERRORS];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);

    order_set64(&e->t_ns, 0); /* an observer skips the entry while it changes */
    order_fence();
    e->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    order_release64(&e->t_ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    order_release64(&b->map->errors_written, b->errors);
}
