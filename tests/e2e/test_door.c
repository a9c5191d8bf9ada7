/* test_door.c - strangers at a living engine: what comes of each, and that the clients beside them
 * notice nothing. Also a client whose shared memory says something impossible.
 */
#include "../../client/llmclient.h"
#include "../../shm/control.h"
#include "../../shm/ring.h"
#include "../support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static struct engine_process engine;
static struct llm_client *neighbour;
static int32_t expected[100];
static const int32_t prompt[5] = {1, 2, 3, 4, 5};

static void stream(int32_t *tokens)
{
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event e;
    uint32_t n = 0;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = 100, r.flags = LLM_SQE_IGNORE_EOS;
    if (llm_submit(neighbour, &r, NULL) < 0)
        fail_msg("%s", llm_errmsg(neighbour));
    for (;;) {
        assert_int_equal(llm_wait(neighbour, &e, 60000), 1);
        if (e.type != LLM_EVENT_TOKENS)
            break;
        assert_true(n + e.n_tokens <= 100);
        memcpy(tokens + n, e.tokens, e.n_tokens * sizeof *tokens);
        n += e.n_tokens;
    }
    assert_int_equal(e.type, LLM_EVENT_DONE);
    assert_int_equal(n, 100);
}

static void start_with(const char *io)
{
    engine = (struct engine_process){0};
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", "--io", io,
                 NULL);
    if (llm_connect(&neighbour, engine.instance, NULL) < 0)
        fail_msg("%s", llm_connect_error());
    stream(expected);
}

static int start_io_uring(void **state)
{
    (void)state;
    start_with("io_uring");
    return 0;
}

static int start_epoll(void **state)
{
    (void)state;
    start_with("epoll");
    return 0;
}

static int finish(void **state)
{
    (void)state;
    llm_close(neighbour);
    assert_int_equal(engine_stop(&engine), 0);
    return 0;
}

/* After each scenario. */
static int nobody_noticed(void **state)
{
    (void)state;
    int32_t now[100];
    stream(now);
    assert_memory_equal(now, expected, sizeof now);
    return 0;
}

/* ---- by hand, without the library ---- */

static int knock(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    assert_int_equal(llm_socket_path(engine.instance, address.sun_path, sizeof address.sun_path),
                     0);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static struct llm_message hello(void)
{
    return (struct llm_message){.kind = LLM_MSG_HELLO,
                                .hello = {.major = LLM_ABI_MAJOR,
                                          .sqe_bytes = sizeof(struct llm_sqe),
                                          .cqe_bytes = sizeof(struct llm_cqe),
                                          .sq_entries = 8,
                                          .cq_entries = 64,
                                          .arena_bytes = 4096,
                                          .max_inflight = 8,
                                          .name = "by \x1b[31m hand"}};
}

static void say(int fd, const struct llm_message *m)
{
    uint8_t packet[LLM_CONTROL_MAX];
    int n = control_encode(m, packet, sizeof packet);
    assert_true(n > 0);
    assert_int_equal(send(fd, packet, (size_t)n, MSG_NOSIGNAL), n);
}

static void wait_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 20000), 1);
}

static void expect_reject(int fd, int code, const char *sentence)
{
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message m;
    wait_readable(fd);
    int n = control_receive(fd, packet, sizeof packet, NULL, NULL);
    assert_true(n > 0);
    assert_int_equal(control_decode(packet, (size_t)n, &m), 0);
    assert_int_equal(m.kind, LLM_MSG_REJECT);
    assert_int_equal(m.reject.code, code);
    if (!strstr(m.reject.text, sentence))
        fail_msg("it says: %s", m.reject.text);
}

static void expect_end(int fd)
{
    char c;
    wait_readable(fd);
    ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);
    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
    close(fd);
}

struct channel {
    int socket, bell;
    struct llm_welcome welcome;
    struct llm_up *up;
    const struct llm_down *down;
    const struct llm_pulse *pulse;
    struct ring_client ring;
};

static struct channel open_channel(void)
{
    struct channel c = {.socket = knock()};
    struct llm_message m = hello();
    uint8_t packet[LLM_CONTROL_MAX];
    int fds[LLM_CONTROL_FDS], n_fds = LLM_CONTROL_FDS;
    say(c.socket, &m);
    wait_readable(c.socket);
    int n = control_receive(c.socket, packet, sizeof packet, fds, &n_fds);
    assert_true(n > 0);
    assert_int_equal(n_fds, LLM_CONTROL_FDS);
    assert_int_equal(control_decode(packet, (size_t)n, &m), 0);
    assert_int_equal(m.kind, LLM_MSG_WELCOME);
    c.welcome = m.welcome;
    c.up = mmap(NULL, llm_up_bytes(8, 4096), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    c.down = mmap(NULL, llm_down_bytes(64), PROT_READ, MAP_SHARED, fds[1], 0);
    c.pulse = mmap(NULL, LLM_HEADER_BYTES, PROT_READ, MAP_SHARED, fds[2], 0);
    assert_true(c.up != MAP_FAILED && c.down != MAP_FAILED && c.pulse != MAP_FAILED);
    for (int i = 0; i < LLM_CONTROL_BELL; i++)
        close(fds[i]);
    c.bell = fds[LLM_CONTROL_BELL];
    assert_int_equal(ring_client_init(&c.ring, c.up, c.down, c.pulse, 8, 64, 4096, 8), 0);
    return c;
}

static void wake(order_u32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void close_channel(struct channel *c)
{
    munmap(c->up, llm_up_bytes(8, 4096));
    munmap((void *)c->down, llm_down_bytes(64));
    munmap((void *)c->pulse, LLM_HEADER_BYTES);
    close(c->bell);
}

static void expect_eviction(struct channel *c, const char *sentence)
{
    wake(&c->up->sq_tail);
    expect_end(c->socket);
    assert_int_equal(order_acquire(&c->down->evicted), 1);
    assert_int_equal(c->down->evict_code, LLM_EPROTO);
    if (!strstr(c->down->evict_text, sentence))
        fail_msg("it says: %s", c->down->evict_text);
    close_channel(c);
}

/* ---- scenarios ---- */

static void versions(void **state)
{
    (void)state;
    struct llm_message m = hello();
    m.hello.major = LLM_ABI_MAJOR + 1;
    int fd = knock();
    say(fd, &m);
    expect_reject(fd, LLM_EPROTO, "build both from the same release");
    expect_end(fd);
}

static void sizes(void **state)
{
    (void)state;
    struct llm_message m = hello();
    m.hello.arena_bytes = UINT32_MAX;
    int fd = knock();
    say(fd, &m);
    expect_reject(fd, LLM_EPARAM, "too large");
    expect_end(fd);
}

static void nonsense(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        int fd = knock();
        assert_int_equal(send(fd, "\x81\xa1t\xa5hello", 9, 0), 9);
        expect_end(fd);
    }
}

/* More strangers at once than the door has room for: the first are shut out, a client still gets
 * in. */
static void a_crowd_of_silent_strangers(void **state)
{
    (void)state;
    int fds[100];
    for (int i = 0; i < 100; i++)
        fds[i] = knock();
    struct llm_client *c;
    if (llm_connect(&c, engine.instance, NULL) < 0)
        fail_msg("%s", llm_connect_error());
    llm_close(c);
    for (int i = 0; i < 100; i++)
        close(fds[i]);
}

static void speaks_after_welcome(void **state)
{
    (void)state;
    struct channel c = open_channel();
    assert_int_equal(send(c.socket, "x", 1, 0), 1);
    expect_eviction(&c, "after WELCOME");
}

static void tail_jumps(void **state)
{
    (void)state;
    struct channel c = open_channel();
    order_release(&c.up->sq_tail, 9);
    expect_eviction(&c, "sq_tail");
    c = open_channel();
    order_release(&c.up->sq_tail, UINT32_MAX);
    expect_eviction(&c, "sq_tail");
}

static void head_jumps(void **state)
{
    (void)state;
    struct channel c = open_channel();
    order_release(&c.up->cq_head, 1);
    expect_eviction(&c, "cq_head");
}

/* An entry in the first place of the ring, committed by the library's rules and yet unpublished:
 * the scenario spoils it. */
static struct llm_sqe *committed_entry(struct channel *c)
{
    struct llm_sqe *q = ring_next(&c->ring, 1);
    assert_non_null(q);
    q->user_data = 7;
    q->op = LLM_OP_GENERATE;
    q->max_tokens = 1;
    q->choices = 1;
    q->top_p = 1;
    q->repetition = 1;
    ring_commit(&c->ring, 1);
    return q;
}

static void spans_outside_the_arena(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct channel c = open_channel();
        struct llm_sqe *q = committed_entry(&c);
        q->tokens_off = i == 0 ? 4096 : i == 1 ? 4092 : 2;
        q->tokens_len = i == 1 ? 2 : 1;
        ring_submit(&c.ring);
        expect_eviction(&c, i == 2 ? "multiple of 4" : "outside the arena");
    }
}

static void entries_out_of_sequence(void **state)
{
    (void)state;
    struct channel c = open_channel();
    committed_entry(&c)->seq = 5;
    ring_submit(&c.ring);
    expect_eviction(&c, "sequence number");
}

/* A length beyond the model is answered, not evicted: nothing was read for it. */
static void an_overlong_prompt_is_answered(void **state)
{
    (void)state;
    struct channel c = open_channel();
    committed_entry(&c)->tokens_len = UINT32_MAX;
    ring_submit(&c.ring);
    wake(&c.up->sq_tail);
    struct llm_cqe cqe;
    struct llm_result result;
    uint64_t end = test_now_ns() + 20000000000u;
    while (!ring_poll(&c.ring, &cqe, &result))
        assert_true(test_now_ns() < end);
    assert_int_equal(cqe.type, LLM_CQE_ERROR);
    assert_int_equal(cqe.status, LLM_ETOOLONG);
    assert_int_equal(order_acquire(&c.down->evicted), 0);
    close(c.socket);
    close_channel(&c);
}

/* A round trip that waits by looking, whatever cq_wait says. */
static void nop(struct channel *c)
{
    struct llm_cqe cqe;
    struct llm_result result;
    committed_entry(c)->op = LLM_OP_NOP;
    if (ring_submit(&c->ring))
        wake(&c->up->sq_tail);
    uint64_t end = test_now_ns() + 20000000000u;
    while (!ring_poll(&c->ring, &cqe, &result))
        assert_true(test_now_ns() < end);
    if (ring_drained(&c->ring))
        wake(&c->up->cq_head);
}

enum spoiled { UNREAD, SHUT, CONNECTED_AWAY, CLOSED, SPOILED };

static void spoil(int bell, enum spoiled how)
{
    int other;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof name;
    assert_int_equal(send(bell, "x", 1, MSG_NOSIGNAL), -1); /* nothing goes the other way */
    assert_int_equal(errno, EPIPE);
    switch (how) {
    case SHUT:
        assert_int_equal(shutdown(bell, SHUT_RDWR), 0);
        break;
    case CONNECTED_AWAY:
        other = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(other, (struct sockaddr *)&name, sizeof name.sun_family), 0);
        assert_int_equal(getsockname(other, (struct sockaddr *)&name, &bytes), 0);
        assert_int_equal(connect(bell, (struct sockaddr *)&name, bytes), 0);
        close(other);
        break;
    case CLOSED:
        other = open("/dev/null", O_RDWR | O_CLOEXEC);
        assert_int_equal(dup2(other, bell), bell);
        close(other);
        break;
    default:
        break;
    }
}

/* Each completion rings at a bell that nobody hears; or cq_wait says what is no way to wait. */
static void a_spoiled_bell_is_its_owners_matter(void **state)
{
    (void)state;
    for (int how = UNREAD; how <= SPOILED; how++) {
        struct channel c = open_channel();
        order_set(&c.up->cq_wait, how < SPOILED ? LLM_WAIT_BELL : 77);
        spoil(c.bell, how);
        for (int i = 0; i < 50; i++)
            nop(&c);
        assert_int_equal(order_acquire(&c.down->evicted), 0);
        close(c.socket);
        close_channel(&c);
    }
}

#define SCENARIO(f) cmocka_unit_test_teardown(f, nobody_noticed)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENARIO(versions),
        SCENARIO(sizes),
        SCENARIO(nonsense),
        SCENARIO(a_crowd_of_silent_strangers),
        SCENARIO(speaks_after_welcome),
        SCENARIO(tail_jumps),
        SCENARIO(head_jumps),
        SCENARIO(spans_outside_the_arena),
        SCENARIO(entries_out_of_sequence),
        SCENARIO(an_overlong_prompt_is_answered),
        SCENARIO(a_spoiled_bell_is_its_owners_matter),
    };
    int failed = cmocka_run_group_tests_name("io_uring", tests, start_io_uring, finish);
    return failed + cmocka_run_group_tests_name("epoll", tests, start_epoll, finish);
}
