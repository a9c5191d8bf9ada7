/* connect.c - building a handle: find the engine, shake hands, check and map what it sent.
 *
 *   connect -> HELLO -> WELCOME + 5 descriptors | REJECT
 *           -> seals and sizes, before anything is mapped -> up, down, pulse, vocabulary
 *           -> headers agree with WELCOME -> ring, table, seeds -> the bell
 *
 * Invariants
 *   1. A descriptor is mapped only if it is sealed against shrinking and as long as WELCOME's
 *      geometry says: no later act of the engine can make an access here fault.
 *   2. The vocabulary is sealed against writing too, before llm_vocab_check judges it: what was
 *      checked stays true.
 *   3. A failure leaves nothing behind but its sentence.
 *
 * Sources: fcntl(2) F_GET_SEALS, unix(7).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../shm/vocab.h"
#include "handle.h"

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#endif

enum { DEFAULT_TIMEOUT_MS = 5000, RETRY_MS = 5 };
enum { SHUT_OUT = -2000 }; /* stays in this file: the connection ended before an answer came */

static _Thread_local char connect_text[640];

const char *llm_connect_error(void)
{
    return connect_text;
}

/* Records the sentence of a failed connect and returns its code. */
__attribute__((format(printf, 2, 3))) static int refuse(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(connect_text, sizeof connect_text, format, args);
    va_end(args);
    return code;
}

/* What one llm_connect works with. */
struct attempt {
    const char *instance;
    struct llm_options options;
    char directory[256], path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    uint64_t end_ns;
};

static int left_ms(const struct attempt *a)
{
    uint64_t now = client_now_ns();
    return now < a->end_ns ? (int)((a->end_ns - now + 999999) / 1000000) : 0;
}

/* ---- what was asked ---- */

static int read_options(struct attempt *a, const struct llm_options *options)
{
    a->options = (struct llm_options)LLM_OPTIONS_INIT;
    if (!options)
        return 0;
    if (client_struct_check(options, options->size, sizeof *options))
        return refuse(-EINVAL, "llm_options.size is %u: start from LLM_OPTIONS_INIT",
                      options->size);
    if (options->name && strlen(options->name) >= sizeof(((struct llm_hello *)0)->name))
        return refuse(-EINVAL, "llm_options.name is longer than 63 bytes");
    a->options = *options;
    return 0;
}

/* A directory that a stranger owns holds a stranger's engine. Whoever names the directory has
 * decided that. */
static int check_directory(const struct attempt *a)
{
    struct stat st;
    if (getenv("LLMD_RUNTIME_DIR") || stat(a->directory, &st) < 0)
        return 0;
    if (st.st_uid == 0 || st.st_uid == geteuid())
        return 0;
    return refuse(-EACCES,
                  "the runtime directory %s belongs to another user (uid %lu); if its engine is to "
                  "be used, name the directory in LLMD_RUNTIME_DIR",
                  a->directory, (unsigned long)st.st_uid);
}

static int prepare(struct attempt *a, const char *instance, const struct llm_options *options)
{
    a->instance = instance ? instance : "default";
    if (!llm_instance_ok(a->instance))
        return refuse(
            -EINVAL,
            "'%.64s' is no instance name: 1 to %d of A-Z a-z 0-9 . _ -, not starting with "
            "a dot",
            a->instance, LLM_INSTANCE_MAX);
    int rc = read_options(a, options);
    if (rc)
        return rc;
    if (llm_runtime_dir(a->directory, sizeof a->directory) ||
        llm_socket_path(a->instance, a->path, sizeof a->path))
        return refuse(-ENAMETOOLONG,
                      "the path of the socket is longer than the %zu bytes of a socket address: "
                      "set LLMD_RUNTIME_DIR to a shorter directory",
                      sizeof a->path - 1);
    uint32_t ms = a->options.connect_timeout_ms;
    a->end_ns = client_now_ns() + (uint64_t)(ms ? ms : DEFAULT_TIMEOUT_MS) * 1000000;
    return check_directory(a);
}

/* ---- the socket ---- */

static int no_engine(const struct attempt *a, int error)
{
    char others[256];
    const char *state =
        error == ECONNREFUSED ? "nobody listens there any more" : strerrordesc_np(error);
    if (instances_list(a->directory, a->instance, others, sizeof others))
        return refuse(LLM_ENOENGINE, "no engine '%s' is running (tried %s: %s); running here: %s",
                      a->instance, a->path, state, others);
    return refuse(LLM_ENOENGINE,
                  "no engine '%s' is running (tried %s: %s); start one with: llmd --instance %s",
                  a->instance, a->path, state, a->instance);
}

static int not_connected(const struct attempt *a, int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        return no_engine(a, error);
    case EACCES:
    case EPERM:
        return refuse(-EACCES,
                      "permission denied for %s: the engine's user and its group may connect; join "
                      "the group, or run as that user",
                      a->path);
    case EAGAIN:
        return refuse(-ETIMEDOUT,
                      "the engine '%s' accepts no connection (%s): it is stopped or overloaded",
                      a->instance, a->path);
    case EPROTOTYPE:
        return refuse(LLM_EPROTO, "%s is a socket of another kind, not of llmd", a->path);
    }
    return refuse(-error, "cannot connect to %s: %s", a->path, strerrordesc_np(error));
}

/* A full backlog says EAGAIN: then it is tried again until the time is over. */
static int open_socket(struct llm_client *c, const struct attempt *a)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, a->path, sizeof address.sun_path);
    c->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->socket < 0)
        return refuse(-errno, "cannot create a socket: %s", strerrordesc_np(errno));
    while (connect(c->socket, (const struct sockaddr *)&address, sizeof address) < 0) {
        int error = errno;
        if (error == EINTR || (error == EAGAIN && left_ms(a)))
            poll(NULL, 0, RETRY_MS);
        else
            return not_connected(a, error);
    }
    return 0;
}

/* An engine that has refused us before it heard us has closed its end: the refusal can still be
 * read. */
static int say_hello(const struct llm_client *c, const struct attempt *a)
{
    const struct llm_options *o = &a->options;
    struct llm_message m = {.kind = LLM_MSG_HELLO,
                            .hello = {.major = LLM_ABI_MAJOR,
                                      .minor = LLM_ABI_MINOR,
                                      .sqe_bytes = sizeof(struct llm_sqe),
                                      .cqe_bytes = sizeof(struct llm_cqe),
                                      .sq_entries = o->sq_entries,
                                      .cq_entries = o->cq_entries,
                                      .arena_bytes = o->arena_bytes,
                                      .max_inflight = o->max_inflight}};
    snprintf(m.hello.name, sizeof m.hello.name, "%s",
             o->name ? o->name : program_invocation_short_name);
    uint8_t packet[LLM_CONTROL_MAX];
    int n = control_encode(&m, packet, sizeof packet);
    int rc = n < 0 ? n : control_send(c->socket, packet, (size_t)n, NULL, 0);
    if (!rc || rc == -EPIPE || rc == -ECONNRESET)
        return 0;
    return refuse(rc, "cannot greet the engine '%s': %s", a->instance, llm_strerror(rc));
}

static void close_all(int *fds, int n)
{
    for (int i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Takes the answer if it is there. If the engine closed its end while our greeting lay unread
 * there, unix(7) says ECONNRESET once before it hands out what the engine had sent. */
static int receive(const struct llm_client *c, void *packet, size_t size,
                   int fds[static LLM_CONTROL_FDS], int *n_fds)
{
    int n = -ECONNRESET;
    for (int i = 0; i < 2 && n == -ECONNRESET; i++) {
        *n_fds = LLM_CONTROL_FDS;
        n = control_receive(c->socket, packet, size, fds, n_fds);
    }
    return n;
}

/* Waits for the answer's packet. Returns its length; the caller owns the descriptors. */
static int hear(const struct llm_client *c, const struct attempt *a, void *packet, size_t size,
                int fds[static LLM_CONTROL_FDS], int *n_fds)
{
    int n = -EAGAIN;
    while (n == -EAGAIN) {
        struct pollfd p = {c->socket, POLLIN, 0};
        if (poll(&p, 1, left_ms(a)) == 0)
            return refuse(-ETIMEDOUT,
                          "the engine '%s' did not answer in time: it is stopped or overloaded",
                          a->instance);
        n = receive(c, packet, size, fds, n_fds);
    }
    if (n == LLM_EPROTO)
        return refuse(n,
                      "the answer of the engine '%s' was cut: it speaks another version, or this "
                      "process may open no more files",
                      a->instance);
    if (n <= 0)
        return refuse(SHUT_OUT, "the engine '%s' closed the connection without an answer",
                      a->instance);
    return n;
}

static int rejected(const struct attempt *a, const struct llm_reject *r)
{
    int code = r->code < 0 ? r->code : LLM_EPROTO;
    return refuse(code, "the engine '%s' refused the connection: %s", a->instance,
                  r->text[0] ? r->text : llm_strerror(code));
}

/* ---- what the engine granted ---- */

static int check_welcome(const struct attempt *a, const struct llm_welcome *w)
{
    if (w->major != LLM_ABI_MAJOR || w->minor > LLM_ABI_MINOR)
        return refuse(LLM_EPROTO,
                      "the engine '%s' speaks version %u.%u of the protocol, this library %d.%d: "
                      "use both from one release",
                      a->instance, w->major, w->minor, LLM_ABI_MAJOR, LLM_ABI_MINOR);
    if (!w->vocab || w->vocab > INT32_MAX || !w->max_len)
        return refuse(LLM_EPROTO, "the engine '%s' names a vocabulary of %u and a length of %u",
                      a->instance, w->vocab, w->max_len);
    return 0;
}

struct segment_wish {
    const char *name;
    uint64_t bytes; /* at least; `whole`: the file's own size */
    bool whole;
    int seals, protection, flags;
};

static int map_segment(struct mapping *m, int fd, const struct segment_wish *w)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & w->seals) != w->seals)
        return refuse(LLM_EPROTO, "the engine's segment '%s' is not sealed", w->name);
    if (fstat(fd, &st) < 0 || (uint64_t)st.st_size < w->bytes)
        return refuse(LLM_EPROTO, "the engine's segment '%s' is smaller than its geometry",
                      w->name);
    size_t bytes = w->whole ? (size_t)st.st_size : (size_t)w->bytes;
    void *at = mmap(NULL, bytes, w->protection, w->flags, fd, 0);
    if (at == MAP_FAILED)
        return refuse(-errno, "cannot map the segment '%s' of %zu bytes: %s", w->name, bytes,
                      strerrordesc_np(errno));
    *m = (struct mapping){at, bytes};
    return 0;
}

/* Sealed against writing, a private mapping of the vocabulary is the same bytes; kernels before 6.7
 * refuse a shared one. */
static int map_all(struct llm_client *c, const struct llm_welcome *w,
                   const int fds[static LLM_CONTROL_FDS])
{
    const struct segment_wish wish[LLM_CONTROL_BELL] = {
        {"up", llm_up_bytes(w->sq_entries, w->arena_bytes), false, F_SEAL_SHRINK,
         PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE},
        {"down", llm_down_bytes(w->cq_entries), false, F_SEAL_SHRINK, PROT_READ,
         MAP_SHARED | MAP_POPULATE},
        {"pulse", sizeof(struct llm_pulse), false, F_SEAL_SHRINK, PROT_READ,
         MAP_SHARED | MAP_POPULATE},
        {"vocabulary", sizeof(struct llm_vocab), true, F_SEAL_SHRINK | F_SEAL_WRITE, PROT_READ,
         MAP_PRIVATE},
    };
    struct mapping *to[LLM_CONTROL_BELL] = {&c->up, &c->down, &c->pulse, &c->vocabulary};
    int rc = 0;
    for (int i = 0; i < LLM_CONTROL_BELL && !rc; i++)
        rc = map_segment(to[i], fds[i], &wish[i]);
    return rc;
}

static int check_headers(struct llm_client *c, const struct llm_welcome *w)
{
    const struct llm_down *down = c->down.at;
    const struct llm_pulse *pulse = c->pulse.at;
    if (ring_client_init(&c->ring, c->up.at, down, pulse, w->sq_entries, w->cq_entries,
                         w->arena_bytes, w->max_inflight))
        return refuse(LLM_EPROTO, "the engine's rings do not agree with its welcome, or are of "
                                  "another version");
    if (down->epoch != w->epoch || down->client != w->client || down->generation != w->generation)
        return refuse(LLM_EPROTO, "the engine sent the segments of another client");
    if (pulse->magic != LLM_MAGIC_PULSE || pulse->abi_major != LLM_ABI_MAJOR ||
        pulse->epoch != w->epoch)
        return refuse(LLM_EPROTO, "the engine's pulse is not its own, or of another version");
    if (llm_vocab_check(c->vocabulary.at, c->vocabulary.bytes))
        return refuse(LLM_EPROTO,
                      "the engine's vocabulary image is damaged, or of another version");
    return 0;
}

static int set_up(struct llm_client *c, const struct attempt *a, const struct llm_welcome *w)
{
    c->spin_us = a->options.spin_us;
    c->next_id = 1ull << 63 | 1; /* far from the small numbers that users choose */
    c->limits = (struct llm_limits){.vocab = w->vocab,
                                    .max_model_len = w->max_len,
                                    .max_inflight = w->max_inflight,
                                    .arena_bytes = w->arena_bytes,
                                    .sq_entries = w->sq_entries,
                                    .cq_entries = w->cq_entries,
                                    .numerics_id = w->numerics_id,
                                    .engine_pid = c->ring.pulse->pid};
    memcpy(c->limits.model, w->model, sizeof c->limits.model);
    int rc = inflight_create(&c->inflight, w->max_inflight);
    if (rc)
        return refuse(rc, "no memory for %u requests in flight", w->max_inflight);
    rc = seeds_init(&c->seeds);
    return rc ? refuse(rc, "the kernel gives no random bytes: %s", llm_strerror(rc)) : 0;
}

/* Moves the bell into the handle. */
static int take_bell(struct llm_client *c, const struct attempt *a, int *fd)
{
    int type = 0;
    socklen_t bytes = sizeof type;
    if (getsockopt(*fd, SOL_SOCKET, SO_TYPE, &type, &bytes) < 0 || type != SOCK_DGRAM)
        return refuse(LLM_EPROTO, "the bell of the engine '%s' is no datagram socket", a->instance);
    c->bell = *fd;
    *fd = -1;
    return 0;
}

static int adopt(struct llm_client *c, const struct attempt *a, const struct llm_welcome *w,
                 int *fds, int n_fds)
{
    int rc = check_welcome(a, w);
    if (rc)
        return rc;
    if (n_fds != LLM_CONTROL_FDS)
        return refuse(LLM_EPROTO, "the engine '%s' sent %d descriptors, not %d", a->instance, n_fds,
                      LLM_CONTROL_FDS);
    rc = map_all(c, w, fds);
    if (!rc)
        rc = check_headers(c, w);
    if (!rc)
        rc = set_up(c, a, w);
    return rc ? rc : take_bell(c, a, &fds[LLM_CONTROL_BELL]);
}

static int shake_hands(struct llm_client *c, const struct attempt *a)
{
    uint8_t packet[LLM_CONTROL_MAX];
    int fds[LLM_CONTROL_FDS], n_fds = 0;
    int rc = say_hello(c, a);
    int n = rc ? rc : hear(c, a, packet, sizeof packet, fds, &n_fds);
    if (n < 0)
        return n;
    struct llm_message m;
    rc = control_decode(packet, (size_t)n, &m);
    if (rc || m.kind == LLM_MSG_HELLO)
        rc = refuse(LLM_EPROTO,
                    "the engine '%s' gave an answer that is no answer: it speaks another version",
                    a->instance);
    else if (m.kind == LLM_MSG_REJECT)
        rc = rejected(a, &m.reject);
    else
        rc = adopt(c, a, &m.welcome, fds, n_fds);
    close_all(fds, n_fds);
    return rc;
}

/* A crowd at the engine's door pushes out who was slow to greet: then we knock again. */
static int knock(struct llm_client *c, const struct attempt *a)
{
    for (int tries = 1;; tries++) {
        int rc = open_socket(c, a);
        if (!rc)
            rc = shake_hands(c, a);
        if (rc != SHUT_OUT)
            return rc;
        if (tries == CLIENT_KNOCKS || !left_ms(a))
            return LLM_EPROTO;
        close(c->socket);
        c->socket = -1;
        poll(NULL, 0, RETRY_MS);
    }
}

int llm_connect(struct llm_client **out, const char *instance, const struct llm_options *options)
{
    struct attempt a = {0};
    *out = NULL;
    int rc = prepare(&a, instance, options);
    if (rc)
        return rc;
    struct llm_client *c = calloc(1, sizeof *c);
    if (!c)
        return refuse(-ENOMEM, "no memory for a client handle");
    c->socket = c->bell = c->descriptor = -1;
    rc = knock(c, &a);
    if (rc) {
        llm_close(c);
        return rc;
    }
    *out = c;
    return 0;
}
