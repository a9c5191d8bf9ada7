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

/* ---- what was asked ---- */

/* llm_options ended here in 1.0. */
enum { OPTIONS_1_0 = offsetof(struct llm_options, max_top_logprobs) };

static int read_options(struct wish *w, const struct llm_options *options)
{
    w->options = (struct llm_options)LLM_OPTIONS_INIT;
    if (!options)
        return 0;
    bool old = options->size == OPTIONS_1_0;
    if (!old && client_struct_check(options, options->size, sizeof *options))
        return refuse(-EINVAL, "llm_options.size is %u: start from LLM_OPTIONS_INIT",
                      options->size);
    if (options->name && strlen(options->name) >= sizeof w->name)
        return refuse(-EINVAL, "llm_options.name is longer than 63 bytes");
    if (!old && options->max_top_logprobs > LLM_TOP_MAX)
        return refuse(LLM_EPARAM, "llm_options.max_top_logprobs is %u, over %d",
                      options->max_top_logprobs, LLM_TOP_MAX);
    memcpy(&w->options, options, old ? (size_t)OPTIONS_1_0 : sizeof *options);
    return 0;
}

/* A directory that a stranger owns holds a stranger's engine. Whoever names the directory has
 * decided that. */
static int check_directory(const struct wish *w)
{
    struct stat st;
    if (getenv("LLMD_RUNTIME_DIR") || stat(w->directory, &st) < 0)
        return 0;
    if (st.st_uid == 0 || st.st_uid == geteuid())
        return 0;
    return refuse(-EACCES,
                  "the runtime directory %s belongs to another user (uid %lu); if its engine is to "
                  "be used, name the directory in LLMD_RUNTIME_DIR",
                  w->directory, (unsigned long)st.st_uid);
}

static int prepare(struct wish *w, const char *instance, const struct llm_options *options)
{
    if (!instance)
        instance = "default";
    if (!llm_instance_ok(instance))
        return refuse(
            -EINVAL,
            "'%.64s' is no instance name: 1 to %d of A-Z a-z 0-9 . _ -, not starting with "
            "a dot",
            instance, LLM_INSTANCE_MAX);
    snprintf(w->instance, sizeof w->instance, "%s", instance);
    int rc = read_options(w, options);
    if (rc)
        return rc;
    if (llm_runtime_dir(w->directory, sizeof w->directory) ||
        llm_socket_path(w->instance, w->path, sizeof w->path))
        return refuse(-ENAMETOOLONG,
                      "the path of the socket is longer than the %zu bytes of a socket address: "
                      "set LLMD_RUNTIME_DIR to a shorter directory",
                      sizeof w->path - 1);
    snprintf(w->name, sizeof w->name, "%s",
             w->options.name ? w->options.name : program_invocation_short_name);
    w->options.name = NULL; /* the caller's memory */
    return check_directory(w);
}

/* ---- the socket ---- */

static int no_engine(const struct wish *w, int error)
{
    char others[256];
    const char *state =
        error == ECONNREFUSED ? "nobody listens there any more" : strerrordesc_np(error);
    if (instances_list(w->directory, w->instance, others, sizeof others))
        return refuse(LLM_ENOENGINE, "no engine '%s' is running (tried %s: %s); running here: %s",
                      w->instance, w->path, state, others);
    bool system = strcmp(w->directory, LLM_SYSTEM_DIR) &&
                  instances_list(LLM_SYSTEM_DIR, "", others, sizeof others);
    return refuse(LLM_ENOENGINE,
                  "no engine '%s' is running (tried %s: %s); start one with: llmd --model FILE "
                  "--instance %s%s%s",
                  w->instance, w->path, state, w->instance,
                  system ? "; or set LLMD_RUNTIME_DIR=" LLM_SYSTEM_DIR " for those of the system: "
                         : "",
                  others);
}

static int not_connected(const struct wish *w, int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        return no_engine(w, error);
    case EACCES:
    case EPERM:
        return refuse(-EACCES,
                      "permission denied for %s: the engine's user and its group may connect; join "
                      "the group, or run as that user",
                      w->path);
    case EAGAIN:
        return refuse(-ETIMEDOUT,
                      "the engine '%s' accepts no connection (%s): it is stopped or overloaded",
                      w->instance, w->path);
    case EPROTOTYPE:
        return refuse(LLM_EPROTO, "%s is a socket of another kind, not of llmd", w->path);
    }
    return refuse(-error, "cannot connect to %s: %s", w->path, strerrordesc_np(error));
}

/* ATTEMPT_AGAIN where the backlog is full. */
static int open_socket(struct llm_client *c, const struct wish *w)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, w->path, sizeof address.sun_path);
    c->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->socket < 0)
        return refuse(-errno, "cannot create a socket: %s", strerrordesc_np(errno));
    if (!connect(c->socket, (const struct sockaddr *)&address, sizeof address))
        return 0;
    int error = errno, rc = not_connected(w, error);
    return error == EAGAIN || error == EINTR ? ATTEMPT_AGAIN : rc;
}

/* An engine that has refused us before it heard us has closed its end: the refusal can still be
 * read. */
static int say_hello(const struct llm_client *c, const struct wish *w)
{
    const struct llm_options *o = &w->options;
    struct llm_message m = {.kind = LLM_MSG_HELLO,
                            .hello = {.major = LLM_ABI_MAJOR,
                                      .minor = LLM_ABI_MINOR,
                                      .sqe_bytes = sizeof(struct llm_sqe),
                                      .cqe_bytes = sizeof(struct llm_cqe),
                                      .sq_entries = o->sq_entries,
                                      .cq_entries = o->cq_entries,
                                      .arena_bytes = o->arena_bytes,
                                      .max_inflight = o->max_inflight,
                                      .top = o->max_top_logprobs}};
    memcpy(m.hello.name, w->name, sizeof m.hello.name);
    uint8_t packet[LLM_CONTROL_MAX];
    int n = control_encode(&m, packet, sizeof packet);
    int rc = n < 0 ? n : control_send(c->socket, packet, (size_t)n, NULL, 0);
    if (!rc || rc == -EPIPE || rc == -ECONNRESET)
        return 0;
    return refuse(rc, "cannot greet the engine '%s': %s", w->instance, llm_strerror(rc));
}

static void close_socket(struct llm_client *c)
{
    if (c->socket >= 0)
        close(c->socket);
    c->socket = -1;
}

int attempt_knock(struct llm_client *c, const struct wish *w)
{
    int rc = open_socket(c, w);
    if (!rc)
        rc = say_hello(c, w);
    if (rc)
        close_socket(c);
    return rc;
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

/* True if an answer's descriptors find no place in this process. */
static bool no_room_for_descriptors(const struct llm_client *c)
{
    int fds[LLM_CONTROL_FDS], n = 0;
    while (n < LLM_CONTROL_FDS && (fds[n] = fcntl(c->socket, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    close_all(fds, n);
    return n < LLM_CONTROL_FDS;
}

/* The answer's packet: its length, ATTEMPT_WAIT, or a failure. The caller owns the descriptors. */
static int hear(const struct llm_client *c, const struct wish *w, void *packet, size_t size,
                int fds[static LLM_CONTROL_FDS], int *n_fds)
{
    int n = receive(c, packet, size, fds, n_fds);
    if (n > 0)
        return n;
    if (n == -EAGAIN)
        return ATTEMPT_WAIT;
    if (n == LLM_EPROTO && no_room_for_descriptors(c))
        return refuse(-EMFILE,
                      "the answer of the engine '%s' brings %d descriptors, and this process may "
                      "open no more files: raise the limit (ulimit -n, LimitNOFILE=)",
                      w->instance, LLM_CONTROL_FDS);
    if (n == LLM_EPROTO)
        return refuse(n, "the answer of the engine '%s' was cut: it speaks another version",
                      w->instance);
    return refuse(ATTEMPT_AGAIN, "the engine '%s' closed the connection without an answer",
                  w->instance);
}

static int rejected(const struct wish *w, const struct llm_reject *r)
{
    bool ours = r->code == ATTEMPT_WAIT || r->code == ATTEMPT_AGAIN;
    int code = r->code < 0 && !ours ? r->code : LLM_EPROTO;
    return refuse(code, "the engine '%s' refused the connection: %s", w->instance,
                  r->text[0] ? r->text : llm_strerror(code));
}

/* ---- what the engine granted ---- */

static int check_welcome(const struct wish *wish, const struct llm_welcome *w)
{
    if (w->major != LLM_ABI_MAJOR || w->minor > LLM_ABI_MINOR)
        return refuse(LLM_EPROTO,
                      "the engine '%s' speaks version %u.%u of the protocol, this library %d.%d: "
                      "use both from one release",
                      wish->instance, w->major, w->minor, LLM_ABI_MAJOR, LLM_ABI_MINOR);
    if (w->top > wish->options.max_top_logprobs || (w->top && !w->minor))
        return refuse(LLM_EPROTO, "the engine '%s' grants %u candidates, %u were asked for",
                      wish->instance, w->top, wish->options.max_top_logprobs);
    if (!w->vocab || w->vocab > INT32_MAX || !w->max_len)
        return refuse(LLM_EPROTO, "the engine '%s' names a vocabulary of %u and a length of %u",
                      wish->instance, w->vocab, w->max_len);
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
        {"down", llm_down_bytes(w->cq_entries) + llm_top_bytes(w->cq_entries, w->top), false,
         F_SEAL_SHRINK, PROT_READ, MAP_SHARED | MAP_POPULATE},
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
                         w->arena_bytes, w->max_inflight) ||
        ring_client_top(&c->ring, w->top))
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

static void note_limits(struct llm_client *c, const struct llm_welcome *w)
{
    c->limits = (struct llm_limits){.vocab = w->vocab,
                                    .max_model_len = w->max_len,
                                    .max_inflight = w->max_inflight,
                                    .arena_bytes = w->arena_bytes,
                                    .sq_entries = w->sq_entries,
                                    .cq_entries = w->cq_entries,
                                    .numerics_id = w->numerics_id,
                                    .engine_pid = c->ring.pulse->pid,
                                    .abi_minor = w->minor};
    memcpy(c->limits.model, w->model, sizeof c->limits.model);
}

/* Moves the bell into the handle. */
static int take_bell(struct llm_client *c, const struct wish *w, int *fd)
{
    int type = 0;
    socklen_t bytes = sizeof type;
    if (getsockopt(*fd, SOL_SOCKET, SO_TYPE, &type, &bytes) < 0 || type != SOCK_DGRAM)
        return refuse(LLM_EPROTO, "the bell of the engine '%s' is no datagram socket", w->instance);
    c->bell = *fd;
    *fd = -1;
    return 0;
}

static int adopt(struct llm_client *c, const struct wish *wish, const struct llm_welcome *w,
                 int *fds, int n_fds)
{
    int rc = check_welcome(wish, w);
    if (rc)
        return rc;
    if (n_fds != LLM_CONTROL_FDS)
        return refuse(LLM_EPROTO, "the engine '%s' sent %d descriptors, not %d", wish->instance,
                      n_fds, LLM_CONTROL_FDS);
    rc = map_all(c, w, fds);
    if (!rc)
        rc = check_headers(c, w);
    if (rc)
        return rc;
    note_limits(c, w);
    return take_bell(c, wish, &fds[LLM_CONTROL_BELL]);
}

int attempt_answer(struct llm_client *c, const struct wish *w)
{
    uint8_t packet[LLM_CONTROL_MAX];
    int fds[LLM_CONTROL_FDS], n_fds = 0;
    int n = hear(c, w, packet, sizeof packet, fds, &n_fds);
    if (n < 0)
        return n;
    struct llm_message m;
    int rc = control_decode(packet, (size_t)n, &m);
    if (rc || m.kind == LLM_MSG_HELLO)
        rc = refuse(LLM_EPROTO,
                    "the engine '%s' gave an answer that is no answer: it speaks another version",
                    w->instance);
    else if (m.kind == LLM_MSG_REJECT)
        rc = rejected(w, &m.reject);
    else
        rc = adopt(c, w, &m.welcome, fds, n_fds);
    close_all(fds, n_fds);
    return rc;
}

void attempt_undo(struct llm_client *c)
{
    close_socket(c);
    if (c->bell >= 0)
        close(c->bell);
    c->bell = -1;
    client_unmap(&c->up);
    client_unmap(&c->down);
    client_unmap(&c->pulse);
    client_unmap(&c->vocabulary);
}

/* ---- llm_connect: the steps, with waits between ---- */

static int left_ms(uint64_t end_ns)
{
    uint64_t now = client_now_ns();
    return now < end_ns ? (int)((end_ns - now + 999999) / 1000000) : 0;
}

/* A full backlog is waited for. */
static int knock_until(struct llm_client *c, uint64_t end_ns)
{
    int rc;
    while ((rc = attempt_knock(c, &c->wish)) == ATTEMPT_AGAIN && left_ms(end_ns))
        poll(NULL, 0, RETRY_MS);
    return rc == ATTEMPT_AGAIN ? -ETIMEDOUT : rc;
}

static int shake_hands(struct llm_client *c, uint64_t end_ns)
{
    int rc = knock_until(c, end_ns);
    if (rc)
        return rc;
    while ((rc = attempt_answer(c, &c->wish)) == ATTEMPT_WAIT) {
        struct pollfd p = {c->socket, POLLIN, 0};
        if (poll(&p, 1, left_ms(end_ns)) == 0)
            return refuse(-ETIMEDOUT,
                          "the engine '%s' did not answer in time: it is stopped or overloaded",
                          c->wish.instance);
    }
    return rc;
}

/* A crowd at the engine's door pushes out who was slow to greet: then we knock again. */
static int get_in(struct llm_client *c, uint64_t end_ns)
{
    for (int tries = 1;; tries++) {
        int rc = shake_hands(c, end_ns);
        if (rc != ATTEMPT_AGAIN)
            return rc;
        if (tries == CLIENT_KNOCKS || !left_ms(end_ns))
            return LLM_EPROTO;
        close_socket(c);
        poll(NULL, 0, RETRY_MS);
    }
}

/* What a handle has of its own, whatever engine it speaks with. */
static int furnish(struct llm_client *c)
{
    c->spin_us = c->wish.options.spin_us;
    c->next_id = 1ull << 63 | 1; /* far from the small numbers that users choose */
    int rc = inflight_create(&c->inflight, c->limits.max_inflight);
    if (rc)
        return refuse(rc, "no memory for %u requests in flight", c->limits.max_inflight);
    rc = seeds_init(&c->seeds);
    return rc ? refuse(rc, "the kernel gives no random bytes: %s", llm_strerror(rc)) : 0;
}

static int connect_handle(struct llm_client *c, const char *instance,
                          const struct llm_options *options)
{
    int rc = prepare(&c->wish, instance, options);
    if (rc)
        return rc;
    uint32_t ms = c->wish.options.connect_timeout_ms;
    rc = get_in(c, client_now_ns() + (uint64_t)(ms ? ms : DEFAULT_TIMEOUT_MS) * 1000000);
    return rc ? rc : furnish(c);
}

int llm_connect(struct llm_client **out, const char *instance, const struct llm_options *options)
{
    *out = NULL;
    struct llm_client *c = calloc(1, sizeof *c);
    if (!c)
        return refuse(-ENOMEM, "no memory for a client handle");
    c->socket = c->bell = c->descriptor = -1;
    int rc = connect_handle(c, instance, options);
    if (rc) {
        llm_close(c);
        return rc;
    }
    *out = c;
    return 0;
}
