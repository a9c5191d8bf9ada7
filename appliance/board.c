/* board.c - see board.h. */
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../shm/control.h"

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

/* Returns the descriptor, or -errno. */
static int open_new(const char *name)
{
    if (shm_unlink(name) < 0 && errno != ENOENT)
        return -errno;
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0640);
    return fd < 0 ? -errno : fd;
}

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
    *b = (struct board){0};
    int rc = llm_board_name(instance, b->name, sizeof b->name);
    if (rc < 0)
        return fail(f, rc, "the instance name '%.64s' makes no name for a board", instance);
    int fd = open_new(b->name);
    if (fd < 0)
        return fail(f, fd, "cannot create the board /dev/shm%s: %s", b->name, strerror(-fd));
    rc = map_new(fd, &b->map);
    close(fd);
    if (rc < 0) {
        shm_unlink(b->name);
        return fail(f, rc, "cannot set up the board /dev/shm%s of %d bytes: %s", b->name,
                    LLM_BOARD_BYTES, strerror(-rc));
    }
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
    shm_unlink(b->name);
    guarded = NULL;
    munmap(b->map, LLM_BOARD_BYTES);
    b->map = NULL;
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
