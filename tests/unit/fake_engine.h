/* fake_engine.h - an engine for the tests of the client: the real protocol over real sockets and
 * sealed memory, driven by the test a step at a time. No model, no loop.
 *
 * Only the handshake needs a thread, because llm_connect waits for the answer; afterwards the test
 * is both sides in turn, so that nothing depends on timing.
 */
#ifndef LLMD_TESTS_FAKE_ENGINE_H
#define LLMD_TESTS_FAKE_ENGINE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../client/llmclient.h"
#include "../../shm/control.h"
#include "../../shm/ring.h"
#include "../../shm/vocab.h"

enum {
    FAKE_SQ = 8,
    FAKE_CQ = 16,
    FAKE_ARENA = 400,
    FAKE_INFLIGHT = 6,
    FAKE_VOCAB = 100,
    FAKE_MAX_LEN = 90
};
#define FAKE_EPOCH 0x1234567890ull

/* What the handshake does wrong. */
enum fake_fault {
    FAKE_FINE,
    FAKE_REJECT,
    FAKE_REJECT_EARLY, /* before the HELLO was read, and the socket is closed */
    FAKE_MAJOR,
    FAKE_MINOR,
    FAKE_NO_VOCAB,
    FAKE_UP_UNSEALED,
    FAKE_DOWN_UNSEALED,
    FAKE_PULSE_UNSEALED,
    FAKE_VOCABULARY_WRITABLE,
    FAKE_VOCABULARY_DAMAGED,
    FAKE_DOWN_SHORT,
    FAKE_DOWN_OTHER,  /* another geometry than in WELCOME */
    FAKE_DOWN_CLIENT, /* of another client */
    FAKE_PULSE_EPOCH,
    FAKE_NOT_MEMFD,
    FAKE_THREE_FDS,
    FAKE_BELL_OTHER, /* no datagram socket */
    FAKE_GARBAGE,
    FAKE_HELLO,
    FAKE_SILENT,
    FAKE_HANG_UP,
    FAKE_FAULTS
};

struct fake_segment {
    int fd;
    void *at;
    size_t bytes;
};

struct fake {
    char dir[64], path[100];
    int listener, socket, bell; /* -1: closed; bell: our end */
    enum fake_fault fault;
    struct fake_segment up, down, pulse, vocabulary;
    struct ring_engine ring;
    struct llm_pulse *p;
    struct llm_hello hello; /* what the client said */
    int hang_ups;           /* so many connections end unanswered before the handshake */
    uint32_t older;         /* the engine's minor version is so much below ours */
    uint32_t more_inflight; /* it grants so many more than FAKE_INFLIGHT */
    uint32_t top;           /* candidates that it grants, whatever was asked for */
    bool other_bits, other_vocabulary;
};

/* For threads, where cmocka's assertions may not fail. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline int fake_open_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    REQUIRE(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ---- opening and closing ---- */

static inline int fake_listen(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    REQUIRE(strlen(path) < sizeof address.sun_path);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof address) && !listen(fd, 4));
    return fd;
}

static inline int fake_setup(void **state)
{
    struct fake *f = calloc(1, sizeof *f);
    const char *tmp = getenv("TMPDIR"); /* unless a socket's name could not hold it */
    snprintf(f->dir, sizeof f->dir, "%.40s/llmd-client-XXXXXX",
             tmp && *tmp && strlen(tmp) <= 40 ? tmp : "/tmp");
    REQUIRE(mkdtemp(f->dir));
    setenv("LLMD_RUNTIME_DIR", f->dir, 1);
    REQUIRE(!llm_socket_path("fake", f->path, sizeof f->path));
    f->listener = fake_listen(f->path);
    f->socket = f->bell = -1;
    alarm(120); /* a call that never returns ends the test, not the day */
    *state = f;
    return 0;
}

static inline void fake_segment_free(struct fake_segment *s)
{
    if (s->at) {
        munmap(s->at, s->bytes);
        close(s->fd);
    }
    s->at = NULL;
}

/* The engine's end of a connection goes away, as when its process ends. */
static inline void fake_die(struct fake *f)
{
    if (f->socket >= 0)
        close(f->socket);
    if (f->bell >= 0)
        close(f->bell);
    f->socket = f->bell = -1;
    fake_segment_free(&f->up);
    fake_segment_free(&f->down);
    fake_segment_free(&f->pulse);
    fake_segment_free(&f->vocabulary);
}

static inline int fake_teardown(void **state)
{
    struct fake *f = *state;
    fake_die(f);
    close(f->listener);
    unlink(f->path);
    rmdir(f->dir);
    free(f);
    return 0;
}

/* ---- the handshake ---- */

static inline void fake_segment_make(struct fake_segment *s, size_t bytes)
{
    s->bytes = bytes;
    s->fd = memfd_create("fake", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    REQUIRE(s->fd >= 0 && !ftruncate(s->fd, (off_t)bytes));
    s->at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    REQUIRE(s->at != MAP_FAILED);
}

/* The smallest vocabulary: the tokens "a" and "b". */
static inline void fake_vocabulary_fill(void *at, size_t bytes)
{
    struct llm_vocab *v = at;
    size_t off = (sizeof *v + 7) / 8 * 8;
    *v = (struct llm_vocab){.magic = LLM_MAGIC_VOCAB,
                            .version = 1,
                            .kind = LLM_VOCAB_BPE,
                            .bytes = bytes,
                            .n_tokens = 2,
                            .text_end_off = off,
                            .types_off = off + 8,
                            .strings_off = off + 16,
                            .strings_bytes = 2};
    v->bos = v->eos = v->eot = v->eom = v->unk = v->pad = -1;
    memcpy((char *)at + off, &(uint32_t[]){1, 2}, 8);
    memcpy((char *)at + off + 8, "\1\1", 2);
    memcpy((char *)at + off + 16, "ab", 2);
}

static inline void fake_make_vocabulary(struct fake *f)
{
    struct fake_segment *s = &f->vocabulary;
    size_t bytes = (sizeof(struct llm_vocab) + 7) / 8 * 8 + 24;
    fake_segment_make(s, bytes);
    fake_vocabulary_fill(s->at, bytes);
    if (f->other_vocabulary)
        ((char *)s->at)[bytes - 7] = 'c'; /* the text of token 1, "b" */
    if (f->fault == FAKE_VOCABULARY_DAMAGED)
        ((struct llm_vocab *)s->at)->strings_bytes = 1000;
    munmap(s->at, s->bytes); /* a writable mapping forbids the seal */
    int seals = F_SEAL_SHRINK | (f->fault == FAKE_VOCABULARY_WRITABLE ? 0 : F_SEAL_WRITE);
    REQUIRE(!fcntl(s->fd, F_ADD_SEALS, seals));
    s->at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, s->fd, 0);
    REQUIRE(s->at != MAP_FAILED);
}

static inline void fake_seal(const struct fake *f, const struct fake_segment *s,
                             enum fake_fault unsealed, int more)
{
    if (f->fault != unsealed)
        REQUIRE(!fcntl(s->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | more));
}

static inline void fake_make_segments(struct fake *f)
{
    fake_segment_make(&f->up, llm_up_bytes(FAKE_SQ, FAKE_ARENA));
    fake_segment_make(&f->down, llm_down_bytes(FAKE_CQ) + llm_top_bytes(FAKE_CQ, f->top));
    fake_segment_make(&f->pulse, sizeof(struct llm_pulse));
    ring_engine_init(&f->ring, f->up.at, f->down.at, FAKE_SQ, FAKE_CQ, FAKE_ARENA,
                     FAKE_INFLIGHT + f->more_inflight, 5, f->fault == FAKE_DOWN_CLIENT ? 10 : 9,
                     FAKE_EPOCH);
    ring_engine_top(&f->ring, f->top);
    if (f->fault == FAKE_DOWN_OTHER)
        f->ring.down->max_inflight--;
    if (f->fault == FAKE_DOWN_SHORT)
        REQUIRE(!ftruncate(f->down.fd, (off_t)f->down.bytes - 1));
    f->p = f->pulse.at;
    *f->p = (struct llm_pulse){.magic = LLM_MAGIC_PULSE,
                               .abi_major = LLM_ABI_MAJOR,
                               .pid = (uint32_t)getpid(),
                               .epoch = FAKE_EPOCH + (f->fault == FAKE_PULSE_EPOCH),
                               .state = LLM_STATE_READY};
    fake_seal(f, &f->up, FAKE_UP_UNSEALED, 0);
    fake_seal(f, &f->down, FAKE_DOWN_UNSEALED, F_SEAL_FUTURE_WRITE);
    fake_seal(f, &f->pulse, FAKE_PULSE_UNSEALED, F_SEAL_FUTURE_WRITE);
    fake_make_vocabulary(f);
}

static inline void fake_send(struct fake *f, const struct llm_message *m, const int *fds, int n)
{
    uint8_t packet[LLM_CONTROL_MAX];
    int bytes = control_encode(m, packet, sizeof packet);
    REQUIRE(bytes > 0 && !control_send(f->socket, packet, (size_t)bytes, fds, n));
}

/* Keeps our end; returns the client's. */
static inline int fake_make_bell(struct fake *f)
{
    int pair[2], type = f->fault == FAKE_BELL_OTHER ? SOCK_STREAM : SOCK_DGRAM;
    REQUIRE(!socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair));
    f->bell = pair[0];
    return pair[1];
}

static inline void fake_welcome(struct fake *f)
{
    fake_make_segments(f);
    struct llm_message m = {
        .kind = LLM_MSG_WELCOME,
        .welcome = {.major = LLM_ABI_MAJOR + (f->fault == FAKE_MAJOR),
                    .minor = LLM_ABI_MINOR + (f->fault == FAKE_MINOR) - f->older,
                    .client = 5,
                    .generation = 9,
                    .sq_entries = FAKE_SQ,
                    .cq_entries = FAKE_CQ,
                    .arena_bytes = FAKE_ARENA,
                    .max_inflight = FAKE_INFLIGHT + f->more_inflight,
                    .max_len = FAKE_MAX_LEN,
                    .vocab = f->fault == FAKE_NO_VOCAB ? 0 : FAKE_VOCAB,
                    .epoch = FAKE_EPOCH,
                    .numerics_id = 77 + f->other_bits,
                    .top = f->top,
                    .model = "a model"}};
    int zero = f->fault == FAKE_NOT_MEMFD ? open("/dev/zero", O_RDWR | O_CLOEXEC) : -1;
    int bell = fake_make_bell(f);
    int fds[] = {f->up.fd, zero < 0 ? f->down.fd : zero, f->pulse.fd, f->vocabulary.fd, bell};
    fake_send(f, &m, fds, f->fault == FAKE_THREE_FDS ? 3 : LLM_CONTROL_FDS);
    close(bell);
    if (zero >= 0)
        close(zero);
}

static inline void fake_hear(struct fake *f)
{
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message m;
    struct pollfd p = {f->socket, POLLIN, 0};
    REQUIRE(poll(&p, 1, -1) == 1);
    int n = control_receive(f->socket, packet, sizeof packet, NULL, NULL);
    REQUIRE(n > 0 && !control_decode(packet, (size_t)n, &m) && m.kind == LLM_MSG_HELLO);
    f->hello = m.hello;
}

static inline void fake_answer(struct fake *f)
{
    struct llm_message no = {.kind = LLM_MSG_REJECT, .reject = {LLM_EBUSY, "the house is full"}};
    struct llm_message hello = {.kind = LLM_MSG_HELLO};
    switch (f->fault) {
    case FAKE_REJECT:
    case FAKE_REJECT_EARLY:
        fake_send(f, &no, NULL, 0);
        break;
    case FAKE_GARBAGE:
        REQUIRE(!control_send(f->socket, "\xC1\xC1", 2, NULL, 0));
        break;
    case FAKE_HELLO:
        fake_send(f, &hello, NULL, 0);
        break;
    case FAKE_SILENT:
    case FAKE_HANG_UP:
        break;
    default:
        fake_welcome(f);
    }
}

static inline void *fake_handshake(void *arg)
{
    struct fake *f = arg;
    for (; f->hang_ups; f->hang_ups--) {
        f->socket = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
        REQUIRE(f->socket >= 0);
        close(f->socket); /* its HELLO may lie there unread, or come too late */
    }
    f->socket = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
    REQUIRE(f->socket >= 0);
    if (f->fault != FAKE_REJECT_EARLY)
        fake_hear(f);
    fake_answer(f);
    if (f->fault == FAKE_HANG_UP || f->fault == FAKE_REJECT_EARLY) {
        close(f->socket);
        f->socket = -1;
    }
    return NULL;
}

/* llm_connect against the fake engine. */
static inline int fake_connect(struct fake *f, const struct llm_options *options,
                               struct llm_client **c)
{
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, fake_handshake, f));
    int rc = llm_connect(c, "fake", options);
    REQUIRE(!pthread_join(thread, NULL));
    return rc;
}

static inline struct llm_client *fake_client(struct fake *f)
{
    struct llm_client *c;
    if (fake_connect(f, NULL, &c))
        fail_msg("%s", llm_connect_error());
    return c;
}

/* ---- serving ---- */

/* Takes one submission, with its tokens and option map; fails the test if there is none or it is
 * ill-formed. */
static inline struct llm_sqe fake_take_all(struct fake *f, int32_t tokens[static FAKE_ARENA / 4],
                                           uint8_t options[static FAKE_ARENA])
{
    const char *why = "nothing was submitted";
    struct llm_sqe sqe = {0};
    if (ring_sweep(&f->ring, &why) < 1 || ring_take(&f->ring, &sqe, &why) ||
        ring_take_tokens(&f->ring, &sqe, tokens, &why) ||
        (sqe.options_len && ring_take_options(&f->ring, &sqe, options, &why)) ||
        ring_taken(&f->ring, sqe.choices ? sqe.choices : 1, &why))
        fail_msg("%s", why);
    return sqe;
}

static inline struct llm_sqe fake_take(struct fake *f, int32_t tokens[static FAKE_ARENA / 4])
{
    uint8_t options[FAKE_ARENA];
    return fake_take_all(f, tokens, options);
}

static inline struct llm_sqe fake_take_quietly(struct fake *f)
{
    int32_t tokens[FAKE_ARENA / 4];
    return fake_take(f, tokens);
}

static inline bool fake_nothing_came(struct fake *f)
{
    const char *why = "";
    return ring_sweep(&f->ring, &why) == 0;
}

/* Publishes, and returns how the client sleeps. */
static inline enum llm_wait fake_publish(struct fake *f)
{
    ring_publish(&f->ring);
    ring_after_publish();
    return ring_wants_wake(&f->ring);
}

/* Wakes a client that sleeps in this way, as the engine's loop does. */
static inline void fake_wake(struct fake *f, enum llm_wait how)
{
    if (how == LLM_WAIT_FUTEX)
        syscall(SYS_futex, &f->ring.down->cq_tail, FUTEX_WAKE, 1, NULL, NULL, 0);
    else if (how == LLM_WAIT_BELL)
        REQUIRE(send(f->bell, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 || errno == EAGAIN);
}

static inline void fake_token(struct fake *f, uint64_t id, uint32_t choice, uint32_t position,
                              int32_t token)
{
    struct llm_cqe cqe = {.user_data = id,
                          .type = LLM_CQE_TOKENS,
                          .count = 1,
                          .choice = choice,
                          .position = position,
                          .tokens = {token}};
    assert_true(ring_token_room(&f->ring));
    ring_put(&f->ring, &cqe, NULL);
}

static inline void fake_done(struct fake *f, uint64_t id, uint32_t choice, uint16_t finish)
{
    struct llm_cqe cqe = {
        .user_data = id, .type = LLM_CQE_DONE, .choice = choice, .finish = finish};
    struct llm_result result = {.t_last = id};
    ring_put(&f->ring, &cqe, &result);
}

static inline void fake_error(struct fake *f, uint64_t id, int code, uint32_t fits)
{
    struct llm_cqe cqe = {.user_data = id,
                          .type = LLM_CQE_ERROR,
                          .status = code,
                          .finish = LLM_FINISH_REFUSED,
                          .position = fits};
    ring_put(&f->ring, &cqe, NULL);
}

#define FAKE_TEST(f) cmocka_unit_test_setup_teardown(f, fake_setup, fake_teardown)

#endif
