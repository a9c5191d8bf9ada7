/* control_server.c - see control_server.h. */
#include "control_server.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../shm/segment.h"

enum {
    DEFAULT_SQ = 256,
    DEFAULT_CQ = 1024,
    DEFAULT_ARENA = 1 << 20,
    DEFAULT_INFLIGHT = 256,
    PAGE = 4096,
    BACKLOG = 64
};

void control_server_init(struct control_server *s)
{
    *s = (struct control_server){.lock_fd = -1, .listen_fd = -1};
    for (int i = 0; i < CONTROL_KNOCKS; i++)
        s->knock[i].fd = -1;
}

/* ---- the lock ---- */

/* Others may pass through a directory that an operator made or named; one that lies in a place open
 * to all must be ours alone. */
static int make_directory(const char *path, struct fail *f)
{
    bool named = getenv("LLMD_RUNTIME_DIR") || geteuid() == 0;
    if (mkdir(path, named ? 0755 : 0700) < 0 && errno != EEXIST)
        return fail(f, -errno, "cannot make the runtime directory %s: %s", path, strerror(errno));
    struct stat st;
    if (lstat(path, &st) < 0)
        return fail(f, -errno, "cannot look at the runtime directory %s: %s", path,
                    strerror(errno));
    bool ours = S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & S_IWOTH);
    if (!named && !ours)
        return fail(f, -EPERM,
                    "the runtime directory %s is not a directory of this user alone: remove it, or "
                    "set LLMD_RUNTIME_DIR to another place",
                    path);
    return 0;
}

/* Reads who holds the lock into the sentence. */
static int held_by_another(int fd, const char *instance, const char *path, struct fail *f)
{
    char text[32] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    if (pid > 0)
        return fail(f, -EBUSY,
                    "instance '%s' is served by process %ld (it holds %s): stop it, or choose "
                    "another --instance",
                    instance, pid, path);
    return fail(f, -EBUSY,
                "instance '%s' is served by another process (it holds %s): stop it, or choose "
                "another --instance",
                instance, path);
}

static bool is_file_at(int fd, const char *path)
{
    struct stat a, b;
    return !fstat(fd, &a) && !stat(path, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Opens and locks the file. Returns the descriptor, -EAGAIN if the file was removed by its owner in
 * between, or another code with the sentence. */
static int try_lock(const char *instance, const char *path, struct fail *f)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return fail(f, -errno, "cannot open the lock file %s: %s", path, strerror(errno));
    int rc = 0;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        rc = errno == EWOULDBLOCK ? held_by_another(fd, instance, path, f)
                                  : fail(f, -errno, "cannot lock %s: %s", path, strerror(errno));
    else if (!is_file_at(fd, path))
        rc = -EAGAIN;
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

static int write_pid(int fd, const char *path, struct fail *f)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n)
        return fail(f, -EIO, "cannot write the process id into %s", path);
    return 0;
}

/* Found out before a model is loaded, not when the socket is bound. */
static int name_paths(struct control_server *s, const char *instance, struct fail *f)
{
    enum { SOCKET_BYTES = sizeof(((struct sockaddr_un *)0)->sun_path) };
    int rc = llm_lock_path(instance, s->lock_path, sizeof s->lock_path);
    if (!rc)
        rc = llm_socket_path(instance, s->socket_path, SOCKET_BYTES);
    if (rc < 0)
        return fail(f, rc,
                    "the path of the socket of instance '%.64s' is longer than the %d bytes of a "
                    "socket address: set LLMD_RUNTIME_DIR to a shorter directory",
                    instance, SOCKET_BYTES - 1);
    return 0;
}

int control_lock(struct control_server *s, const char *instance, struct fail *f)
{
    char directory[sizeof s->lock_path];
    int rc = name_paths(s, instance, f);
    if (!rc)
        rc = llm_runtime_dir(directory, sizeof directory);
    if (!rc)
        rc = make_directory(directory, f);
    if (rc < 0)
        return rc;
    int fd = -EAGAIN;
    for (int tries = 0; fd == -EAGAIN && tries < 100; tries++)
        fd = try_lock(instance, s->lock_path, f);
    if (fd < 0)
        return fail(f, fd, "the lock file %s keeps being replaced", s->lock_path);
    s->lock_fd = fd;
    return write_pid(fd, s->lock_path, f);
}

void control_unlock(struct control_server *s)
{
    if (s->lock_fd < 0)
        return;
    unlink(s->lock_path);
    close(s->lock_fd);
    s->lock_fd = -1;
}

/* ---- the socket ---- */

static int bind_and_listen(int fd, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (unlink(path) < 0 && errno != ENOENT)
        return -errno;
    /* the mode is right from the start: nobody connects between bind and chmod */
    mode_t mask = umask(0117);
    int rc = bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
    umask(mask);
    if (!rc && listen(fd, BACKLOG) < 0)
        rc = -errno;
    return rc;
}

int control_listen(struct control_server *s, struct fail *f)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail(f, -errno, "cannot create the control socket: %s", strerror(errno));
    int rc = bind_and_listen(fd, s->socket_path);
    if (rc < 0) {
        close(fd);
        return fail(f, rc, "cannot listen on %s: %s", s->socket_path, strerror(-rc));
    }
    s->listen_fd = fd;
    return 0;
}

/* A slot for one more, shutting out whoever has waited longest if all are taken. -1: none yet. */
static int find_slot(struct control_server *s)
{
    int oldest = -1;
    for (int i = 0; i < CONTROL_KNOCKS; i++) {
        const struct knock *k = &s->knock[i];
        if (k->fd < 0)
            return i;
        if (!k->closing && (oldest < 0 || k->since_ns < s->knock[oldest].since_ns))
            oldest = i;
    }
    if (oldest < 0)
        return -1;
    control_shut(s, (uint32_t)oldest);
    return s->knock[oldest].fd < 0 ? oldest : -1;
}

int control_accept(struct control_server *s, uint64_t now_ns)
{
    int slot = find_slot(s);
    if (slot < 0)
        return -EBUSY;
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno == ECONNABORTED || errno == EINTR ? -EAGAIN : -errno;
    struct knock *k = &s->knock[slot];
    k->fd = fd;
    k->generation++;
    k->waits = false;
    k->since_ns = now_ns;
    return slot;
}

int control_overdue(const struct control_server *s, uint64_t now_ns)
{
    for (int i = 0; i < CONTROL_KNOCKS; i++)
        if (s->knock[i].fd >= 0 && now_ns - s->knock[i].since_ns > CONTROL_HELLO_NS)
            return i;
    return -1;
}

static void close_knock(struct knock *k)
{
    close(k->fd);
    k->fd = -1;
    k->closing = false;
}

bool control_polled(struct control_server *s, uint32_t knock)
{
    struct knock *k = &s->knock[knock];
    k->armed = false;
    if (k->closing)
        close_knock(k);
    return k->fd >= 0;
}

int control_take(struct control_server *s, uint32_t knock)
{
    assert(!s->knock[knock].armed);
    int fd = s->knock[knock].fd;
    s->knock[knock].fd = -1;
    return fd;
}

void control_shut(struct control_server *s, uint32_t knock)
{
    struct knock *k = &s->knock[knock];
    shutdown(k->fd, SHUT_RDWR);
    k->closing = true;
    if (!k->armed)
        close_knock(k);
}

void control_close(struct control_server *s)
{
    if (s->listen_fd >= 0) {
        unlink(s->socket_path);
        close(s->listen_fd);
        s->listen_fd = -1;
    }
    for (int i = 0; i < CONTROL_KNOCKS; i++)
        if (s->knock[i].fd >= 0)
            close_knock(&s->knock[i]);
}

/* ---- what is said ---- */

__attribute__((format(printf, 3, 4))) static bool refuse(struct llm_reject *r, int code,
                                                         const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->text, sizeof r->text, format, args);
    va_end(args);
    r->code = code;
    return false;
}

static bool version_fits(const struct llm_hello *h, struct llm_reject *r)
{
    if (h->major != LLM_ABI_MAJOR)
        return refuse(r, LLM_EPROTO,
                      "the engine speaks version %d of the protocol, the client %u: build both "
                      "from the same release",
                      LLM_ABI_MAJOR, h->major);
    if (h->sqe_bytes != sizeof(struct llm_sqe) || h->cqe_bytes != sizeof(struct llm_cqe))
        return refuse(r, LLM_EPROTO,
                      "entries of %u and %u bytes are expected by the client, the engine's have "
                      "%zu and %zu: build both from the same release",
                      h->sqe_bytes, h->cqe_bytes, sizeof(struct llm_sqe), sizeof(struct llm_cqe));
    return true;
}

int control_hear(struct control_server *s, uint32_t knock, struct llm_hello *hello,
                 struct llm_reject *refusal)
{
    uint8_t packet[LLM_CONTROL_MAX];
    refusal->text[0] = 0;
    int n = control_receive(s->knock[knock].fd, packet, sizeof packet, NULL, NULL);
    if (n <= 0)
        return n ? n : -ECONNRESET;
    struct llm_message m;
    int rc = control_decode(packet, (size_t)n, &m);
    if (rc < 0)
        return rc;
    if (m.kind != LLM_MSG_HELLO)
        return LLM_EPROTO;
    *hello = m.hello;
    return version_fits(hello, refusal) ? 0 : LLM_EPROTO;
}

void control_refuse(int socket, const struct llm_reject *refusal)
{
    struct llm_message m = {.kind = LLM_MSG_REJECT, .reject = *refusal};
    uint8_t packet[LLM_CONTROL_MAX];
    int n = control_encode(&m, packet, sizeof packet);
    if (n > 0)
        control_send(socket, packet, (size_t)n, NULL, 0);
}

/* The least power of two that is at least v, for v in 1 .. 2^31. */
static uint32_t power_of_two(uint32_t v)
{
    return v <= 1 ? 1 : 1u << (32 - __builtin_clz(v - 1));
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

bool control_grant(const struct llm_hello *h, struct control_grant *g, struct llm_reject *r)
{
    if (h->sq_entries > LLM_SQ_ENTRIES_MAX)
        return refuse(r, LLM_EPARAM, "%u submission entries are too many: at most %d",
                      h->sq_entries, LLM_SQ_ENTRIES_MAX);
    if (h->cq_entries > LLM_CQ_ENTRIES_MAX)
        return refuse(r, LLM_EPARAM, "%u completion entries are too many: at most %d",
                      h->cq_entries, LLM_CQ_ENTRIES_MAX);
    if (h->arena_bytes > LLM_ARENA_BYTES_MAX)
        return refuse(r, LLM_EPARAM, "an arena of %u bytes is too large: at most %d",
                      h->arena_bytes, LLM_ARENA_BYTES_MAX);
    if (h->max_inflight > LLM_CQ_ENTRIES_MAX / 2)
        return refuse(r, LLM_EPARAM, "%u requests in flight are too many: at most %d",
                      h->max_inflight, LLM_CQ_ENTRIES_MAX / 2);
    if (h->top > LLM_TOP_MAX)
        return refuse(r, LLM_EPARAM, "%u candidates of each token are too many: at most %d", h->top,
                      LLM_TOP_MAX);

    uint32_t inflight = h->max_inflight ? h->max_inflight : DEFAULT_INFLIGHT;
    g->sq_entries = power_of_two(h->sq_entries ? h->sq_entries : DEFAULT_SQ);
    if (h->cq_entries)
        g->cq_entries = power_of_two(h->cq_entries);
    else /* room for finals and as much again for tokens, or more */
        g->cq_entries = power_of_two(inflight > DEFAULT_CQ / 2 ? 2 * inflight : DEFAULT_CQ);
    g->max_inflight = h->max_inflight ? inflight : least(inflight, (g->cq_entries + 1) / 2);
    g->top = h->minor ? h->top : 0;
    g->arena_bytes = ((h->arena_bytes ? h->arena_bytes : DEFAULT_ARENA) + PAGE - 1) / PAGE * PAGE;
    if (g->max_inflight >= g->cq_entries)
        return refuse(r, LLM_EPARAM,
                      "%u completion entries leave no room for tokens beside the finals of %u "
                      "requests in flight: ask for more entries or fewer requests",
                      g->cq_entries, g->max_inflight);
    return true;
}
