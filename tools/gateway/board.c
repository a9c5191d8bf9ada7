/* board.c - see board.h. The lock and the name: shm/board.h, shm/path.c. */
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../shm/control.h"

/* The board's lock is held for an engine's life: free means dead. */
static bool is_locked(int fd)
{
    if (flock(fd, LOCK_SH | LOCK_NB) < 0)
        return errno == EWOULDBLOCK;
    flock(fd, LOCK_UN);
    return false;
}

void board_watch_open(struct board_watch *w, const char *instance)
{
    w->fd = -1;
    if (llm_board_name(instance, w->name, sizeof w->name) < 0)
        w->name[0] = 0;
}

void board_watch_close(struct board_watch *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

bool board_watch_lives(struct board_watch *w)
{
    if (w->fd >= 0 && is_locked(w->fd))
        return true;
    board_watch_close(w); /* a new engine makes a new board */
    w->fd = shm_open(w->name, O_RDONLY | O_CLOEXEC, 0);
    return w->fd >= 0 && is_locked(w->fd);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct board_copy *copy_board(int fd)
{
    size_t align = _Alignof(struct board_copy);
    size_t bytes = (sizeof(struct board_copy) + align - 1) / align * align;
    struct board_copy *b = aligned_alloc(align, bytes);
    if (!b)
        return NULL;
    b->lives = is_locked(fd);
    ssize_t got = pread(fd, &b->board, sizeof b->board, 0);
    b->now_ns = clock_ns(CLOCK_MONOTONIC);
    b->real_ns = clock_ns(CLOCK_REALTIME);
    if (got == (ssize_t)sizeof b->board && order_acquire64(&b->board.magic) == LLM_MAGIC_BOARD &&
        b->board.abi_major == LLM_ABI_MAJOR)
        return b;
    free(b);
    return NULL;
}

struct board_copy *board_read(const char *instance)
{
    char name[64];
    if (llm_board_name(instance, name, sizeof name) < 0)
        return NULL;
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return NULL;
    struct board_copy *b = copy_board(fd);
    close(fd);
    return b;
}

static uint64_t since(const struct board_copy *b, const order_u64 *moment)
{
    uint64_t at = order_read64(moment);
    return b->now_ns > at ? b->now_ns - at : 0;
}

/* The idle engine beats as well: one that is stuck cannot say whether anybody waits for it. */
bool board_makes_progress(const struct board_copy *b)
{
    if (order_relaxed(&b->board.state) == LLM_STATE_STARTING)
        return true; /* loading takes as long as it takes */
    uint64_t beat = since(b, &b->board.heartbeat_ns), step = since(b, &b->board.last_step_ns);
    return (beat < step ? beat : step) < BOARD_STUCK_S * 1000000000ull;
}
