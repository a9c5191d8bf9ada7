/* test_door.c - strangers at a living engine: what comes of each, and that the clients beside them
 * notice nothing. Also a client whose shared memory says something impossible.
 */
#include "../../client/llmclient.h"
#include "../support/by_hand.h"
#include "../support/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
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

static int knock(void)
{
    int fd = hand_knock(engine.instance);
    assert_true(fd >= 0);
    return fd;
}

static struct hand open_channel(void)
{
    struct hand h;
    assert_true(hand_open(&h, engine.instance, NULL));
    return h;
}

/* ---- scenarios ---- */

static void versions(void **state)
{
    (void)state;
    struct llm_message m = hand_hello();
    m.hello.major = LLM_ABI_MAJOR + 1;
    int fd = knock();
    assert_true(hand_say(fd, &m));
    hand_expect_reject(fd, LLM_EPROTO, "build both from the same release");
    hand_expect_end(fd);
}

static void sizes_of_entries(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct llm_message m = hand_hello();
        *(i ? &m.hello.sqe_bytes : &m.hello.cqe_bytes) = 96;
        int fd = knock();
        assert_true(hand_say(fd, &m));
        hand_expect_reject(fd, LLM_EPROTO, "96");
        hand_expect_end(fd);
    }
}

/* Of a newer client and of an older one: both speak what both know. */
static void minors(void **state)
{
    (void)state;
    const uint32_t said[] = {0, LLM_ABI_MINOR, LLM_ABI_MINOR + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        struct llm_message m = hand_hello();
        struct hand h;
        m.hello.minor = said[i];
        assert_true(hand_open(&h, engine.instance, &m));
        assert_int_equal(h.welcome.minor, said[i] < LLM_ABI_MINOR ? said[i] : LLM_ABI_MINOR);
        assert_true(hand_nop(&h));
        hand_close(&h);
    }
}

static uint32_t descriptors_of_engine(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)engine.pid);
    DIR *d = opendir(path);
    uint32_t n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* A connection is closed a moment after its end is seen here. */
static void no_more_descriptors_than(uint32_t before)
{
    uint64_t end = test_now_ns() + 20000000000u;
    while (descriptors_of_engine() > before)
        assert_true(test_now_ns() < end);
}

/* With a HELLO that is sound otherwise. The engine has none of them, not for a moment. */
static void foreign_descriptors(void **state)
{
    (void)state;
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message m = hand_hello();
    int n = control_encode(&m, packet, sizeof packet);
    const int fds[LLM_CONTROL_FDS] = {0, 1, 2, 0, 1};
    uint32_t before = descriptors_of_engine();
    for (int i = 0; i < 20; i++) {
        int fd = knock();
        assert_int_equal(control_send(fd, packet, (size_t)n, fds, 1 + i % LLM_CONTROL_FDS), 0);
        hand_expect_end(fd);
    }
    no_more_descriptors_than(before);
}

static void packets_of_other_lengths(void **state)
{
    (void)state;
    static uint8_t large[4 * LLM_CONTROL_MAX];
    struct llm_message m = hand_hello();
    int n = control_encode(&m, large, sizeof large);
    const size_t lengths[] = {1, (size_t)n - 1, (size_t)n + 1, LLM_CONTROL_MAX + 1, sizeof large};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int fd = knock();
        assert_int_equal(send(fd, large, lengths[i], MSG_NOSIGNAL), lengths[i]);
        hand_expect_end(fd);
    }
}

/* failure test (10): segments may not grow so far. The library says the engine's sentence. */
static void no_memory(void **state)
{
    (void)state;
    struct rlimit was, now;
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    assert_int_equal(prlimit(engine.pid, RLIMIT_FSIZE, NULL, &was), 0);
    now = (struct rlimit){8 << 20, was.rlim_max};
    assert_int_equal(prlimit(engine.pid, RLIMIT_FSIZE, &now, NULL), 0);
    uint32_t before = descriptors_of_engine();
    o.arena_bytes = 32 << 20;
    assert_int_equal(llm_connect(&c, engine.instance, &o), -ENOMEM);
    assert_non_null(strstr(llm_connect_error(), "no memory for this client"));
    assert_non_null(strstr(llm_connect_error(), "llmd-up"));
    no_more_descriptors_than(before);
    assert_int_equal(llm_connect(&c, engine.instance, NULL), 0); /* a smaller one is served */
    llm_close(c);
    assert_int_equal(prlimit(engine.pid, RLIMIT_FSIZE, &was, NULL), 0);
    assert_int_equal(llm_connect(&c, engine.instance, &o), 0);
    llm_close(c);
}

/* As large as can be asked for: it comes in pieces, while others go on. */
static void the_largest_client(void **state)
{
    (void)state;
    struct llm_message m = hand_hello();
    struct hand h;
    m.hello.sq_entries = LLM_SQ_ENTRIES_MAX;
    m.hello.cq_entries = LLM_CQ_ENTRIES_MAX;
    m.hello.arena_bytes = LLM_ARENA_BYTES_MAX;
    assert_true(hand_open(&h, engine.instance, &m));
    assert_int_equal(h.welcome.cq_entries, LLM_CQ_ENTRIES_MAX);
    assert_true(hand_nop(&h));
    hand_close(&h);
}

static void sizes(void **state)
{
    (void)state;
    struct llm_message m = hand_hello();
    m.hello.arena_bytes = UINT32_MAX;
    int fd = knock();
    assert_true(hand_say(fd, &m));
    hand_expect_reject(fd, LLM_EPARAM, "too large");
    hand_expect_end(fd);
}

static void nonsense(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        int fd = knock();
        assert_int_equal(send(fd, "\x81\xa1t\xa5hello", 9, 0), 9);
        hand_expect_end(fd);
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
    struct hand c = open_channel();
    assert_int_equal(send(c.socket, "x", 1, 0), 1);
    hand_expect_eviction(&c, "after WELCOME");
}

static void tail_jumps(void **state)
{
    (void)state;
    struct hand c = open_channel();
    order_release(&c.up->sq_tail, 9);
    hand_expect_eviction(&c, "sq_tail");
    c = open_channel();
    order_release(&c.up->sq_tail, UINT32_MAX);
    hand_expect_eviction(&c, "sq_tail");
}

static void head_jumps(void **state)
{
    (void)state;
    struct hand c = open_channel();
    order_release(&c.up->cq_head, 1);
    hand_expect_eviction(&c, "cq_head");
}

static void spans_outside_the_arena(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct hand c = open_channel();
        struct llm_sqe *q = hand_entry(&c);
        q->tokens_off = i == 0 ? 4096 : i == 1 ? 4092 : 2;
        q->tokens_len = i == 1 ? 2 : 1;
        ring_submit(&c.ring);
        hand_expect_eviction(&c, i == 2 ? "multiple of 4" : "outside the arena");
    }
}

static void entries_out_of_sequence(void **state)
{
    (void)state;
    struct hand c = open_channel();
    hand_entry(&c)->seq = 5;
    ring_submit(&c.ring);
    hand_expect_eviction(&c, "sequence number");
}

/* A length beyond the model is answered, not evicted: nothing was read for it. */
static void an_overlong_prompt_is_answered(void **state)
{
    (void)state;
    struct hand c = open_channel();
    hand_entry(&c)->tokens_len = UINT32_MAX;
    ring_submit(&c.ring);
    hand_wake(&c.up->sq_tail);
    struct llm_cqe cqe;
    assert_true(hand_take(&c, &cqe));
    assert_int_equal(cqe.type, LLM_CQE_ERROR);
    assert_int_equal(cqe.status, LLM_ETOOLONG);
    assert_int_equal(order_acquire(&c.down->evicted), 0);
    hand_close(&c);
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
        struct hand c = open_channel();
        order_set(&c.up->cq_wait, how < SPOILED ? LLM_WAIT_BELL : 77);
        spoil(c.fds[LLM_CONTROL_BELL], how);
        for (int i = 0; i < 50; i++)
            assert_true(hand_nop(&c));
        assert_int_equal(order_acquire(&c.down->evicted), 0);
        hand_close(&c);
    }
}

#define SCENARIO(f) cmocka_unit_test_teardown(f, nobody_noticed)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENARIO(versions),
        SCENARIO(minors),
        SCENARIO(sizes_of_entries),
        SCENARIO(sizes),
        SCENARIO(the_largest_client),
        SCENARIO(no_memory),
        SCENARIO(foreign_descriptors),
        SCENARIO(packets_of_other_lengths),
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
