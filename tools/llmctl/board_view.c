/* board_view.c - see board_view.h. */
#include "board_view.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../shm/control.h"

struct board_view *board_view_create(void)
{
    size_t align = _Alignof(struct board_view),
           bytes = (sizeof(struct board_view) + align - 1) / align * align;
    struct board_view *v = aligned_alloc(align, bytes);
    if (!v)
        ctl_error("out of memory for the board");
    else
        memset(v, 0, bytes);
    return v;
}

/* ---- reading ---- */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The board's lock is held for an engine's life: free means dead. */
static bool engine_lives(int fd)
{
    return flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static int check(const struct llm_board *b, const char *name, ssize_t got, bool quiet)
{
    if (got != (ssize_t)sizeof *b || order_acquire64(&b->magic) != LLM_MAGIC_BOARD)
        return quiet ? 1
                     : ctl_error("the board %s is not complete: the engine is starting, or it was "
                                 "never one of llmd",
                                 name);
    if (b->abi_major != LLM_ABI_MAJOR)
        return quiet ? 1
                     : ctl_error("the engine's board has version %u, this llmctl reads %u",
                                 b->abi_major, LLM_ABI_MAJOR);
    return 0;
}

/* "; there are: a, b", or "" where there are none; ends with ", ..." where not all fit. */
static void other_boards(char *out, size_t size)
{
    static const char prefix[] = "llmd.", more[] = ", ...";
    *out = 0;
    DIR *d = opendir("/dev/shm");
    size_t used = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *name = e->d_name + sizeof prefix - 1;
        if (strncmp(e->d_name, prefix, sizeof prefix - 1) || !llm_instance_ok(name))
            continue;
        if (used + strlen(name) + 16 > size - sizeof more) {
            strcpy(out + used, more);
            break;
        }
        used += (size_t)sprintf(out + used, "%s%s", used ? ", " : "; there are: ", name);
    }
    if (d)
        closedir(d);
}

static int not_opened(const char *name, int error, bool quiet)
{
    if (quiet)
        return error == ENOENT ? -ENOENT : 1;
    if (error != ENOENT)
        return ctl_error("cannot open the board /dev/shm%s: %s", name, strerror(error));
    char others[256];
    other_boards(others, sizeof others);
    return ctl_error("there is no engine \"%s\" (no board /dev/shm%s)%s", ctl_instance, name,
                     others);
}

static int read_board(struct board_view *v, bool quiet)
{
    char name[128];
    if (llm_board_name(ctl_instance, name, sizeof name) < 0)
        return quiet ? 1 : ctl_error("\"%.60s\" makes no name for a board", ctl_instance);
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return not_opened(name, errno, quiet);
    v->lives = engine_lives(fd);
    ssize_t got = pread(fd, &v->board, sizeof v->board, 0);
    close(fd);
    v->now_ns = clock_ns(CLOCK_MONOTONIC);
    v->real_ns = clock_ns(CLOCK_REALTIME);
    return check(&v->board, name, got, quiet);
}

int board_view_read(struct board_view *v)
{
    return read_board(v, false);
}

int board_view_read_quiet(struct board_view *v)
{
    return read_board(v, true);
}

/* ---- what it says ---- */

const char *board_view_state(const struct board_view *v)
{
    static const char *const names[] = {"starting", "ready", "draining", "stopped"};
    uint32_t state = order_relaxed(&v->board.state);
    if (state != LLM_STATE_STOPPED && !v->lives)
        return "dead";
    return state < 4 ? names[state] : "unknown";
}

uint64_t board_view_since(const struct board_view *v, const order_u64 *moment)
{
    uint64_t at = order_read64(moment);
    if (!at)
        return UINT64_MAX;
    return v->now_ns > at ? v->now_ns - at : 0;
}

double board_view_uptime_s(const struct board_view *v)
{
    double s = v->real_ns > v->board.started_ns ? (double)(v->real_ns - v->board.started_ns) : 0;
    uint64_t silent = board_view_since(v, &v->board.heartbeat_ns);
    if (!v->lives && silent != UINT64_MAX)
        s -= (double)silent;
    return s > 0 ? s * 1e-9 : 0;
}

const char *board_refusal_name(unsigned i)
{
    static const char *const names[LLM_REFUSALS] = {"malformed", "length",  "queue",   "quota",
                                                    "deadline",  "session", "shutdown"};
    return names[i];
}

void board_view_errors(const struct board_view *v,
                       void (*each)(void *context, uint64_t t_ns, const char *text), void *context)
{
    uint64_t written = order_read64(&v->board.errors_written);
    for (uint64_t i = written > LLM_BOARD_ERRORS ? written - LLM_BOARD_ERRORS : 0; i < written;
         i++) {
        const struct llm_board_error *e = &v->board.errors[i % LLM_BOARD_ERRORS];
        char text[LLM_BOARD_ERROR_TEXT + 1];
        size_t n = strnlen(e->text, sizeof e->text);
        memcpy(text, e->text, n);
        text[n] = 0;
        each(context, order_read64(&e->t_ns), text);
    }
}

/* ---- histograms ---- */

void histogram_between(struct histogram *out, const struct llm_histogram *late,
                       const struct llm_histogram *early)
{
    uint64_t count = order_read64(&late->count);
    if (early && order_read64(&early->count) > count)
        early = NULL;
    *out = (struct histogram){.max_ns = order_read64(&late->max_ns)};
    out->sum_ns = order_read64(&late->sum_ns) - (early ? order_read64(&early->sum_ns) : 0);
    for (uint32_t i = 0; i < LLM_HIST_BUCKETS; i++) {
        uint64_t n = order_read64(&late->bucket[i]);
        uint64_t before = early ? order_read64(&early->bucket[i]) : 0;
        out->bucket[i] = n > before ? n - before : 0;
        out->count += out->bucket[i]; /* of this copy's buckets: the total is another moment's */
    }
}

static uint32_t quantile_bucket(const struct histogram *h, double q)
{
    uint64_t seen = 0;
    uint32_t i = 0;
    while (i + 1 < LLM_HIST_BUCKETS) {
        seen += h->bucket[i];
        if ((double)seen >= q * (double)h->count && seen)
            break;
        i++;
    }
    return i;
}

double histogram_quantile_us(const struct histogram *h, double q)
{
    if (!h->count)
        return 0;
    uint64_t edge = llm_histogram_edge(quantile_bucket(h, q) + 1);
    return (double)(h->max_ns && h->max_ns < edge ? h->max_ns : edge) * 1e-3;
}

double histogram_floor_us(const struct histogram *h, double q)
{
    return h->count ? (double)llm_histogram_edge(quantile_bucket(h, q)) * 1e-3 : 0;
}
