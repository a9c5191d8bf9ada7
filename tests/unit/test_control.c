/* test_control.c - the control messages: round trips, damaged bytes, descriptors that nobody asked
 * for; and the paths of an instance.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../shm/control.h"

static const struct llm_message hello = {
    .kind = LLM_MSG_HELLO, .hello = {1, 0, 128, 64, 256, 1024, 1 << 20, 32, "a phone bot"}};
static const struct llm_message welcome = {.kind = LLM_MSG_WELCOME,
                                           .welcome = {1, 0, 3, 0xFFFFFFFF, 256, 1024, 1 << 20, 32,
                                                       8192, 49152, UINT64_MAX, 1ull << 63,
                                                       "SmolLM2 135M"}};
static const struct llm_message reject = {
    .kind = LLM_MSG_REJECT, .reject = {LLM_EBUSY, "64 clients are connected: raise --max-clients"}};

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

/* The largest block that was asked for: glibc lets a program stand in front of malloc; sanitizers
 * do it themselves, and would stop at a monstrous request. */
static size_t largest;
#ifndef SANITIZED
extern void *__libc_malloc(size_t size);
void *malloc(size_t size)
{
    largest = size > largest ? size : largest;
    return __libc_malloc(size);
}
#endif

static int open_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ---- messages ---- */

/* Decodes a copy of exactly that size, so that a sanitizer sees every read beyond it. */
static int decode(const void *data, size_t bytes, struct llm_message *out)
{
    void *exact = malloc(bytes ? bytes : 1);
    memcpy(exact, data, bytes);
    int rc = control_decode(exact, bytes, out);
    free(exact);
    return rc;
}

static void expect_round_trip(const struct llm_message *m)
{
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message back;
    int n = control_encode(m, packet, sizeof packet);
    assert_true(n > 0);
    assert_int_equal(decode(packet, (size_t)n, &back), 0);
    assert_int_equal(back.kind, m->kind);
    if (m->kind == LLM_MSG_HELLO)
        assert_memory_equal(&back.hello, &m->hello, sizeof m->hello);
    if (m->kind == LLM_MSG_WELCOME)
        assert_memory_equal(&back.welcome, &m->welcome, sizeof m->welcome);
    if (m->kind == LLM_MSG_REJECT)
        assert_memory_equal(&back.reject, &m->reject, sizeof m->reject);
    for (size_t size = 0; size < (size_t)n; size++)
        assert_int_equal(control_encode(m, packet, size), -EMSGSIZE);
}

static void messages_survive_the_round_trip(void **state)
{
    (void)state;
    expect_round_trip(&hello);
    expect_round_trip(&welcome);
    expect_round_trip(&reject);
    struct llm_message m = {.kind = LLM_MSG_REJECT, .reject = {INT32_MIN, ""}};
    expect_round_trip(&m);
    memset(&m.hello, 0xFF, sizeof m.hello);
    m.kind = LLM_MSG_HELLO;
    memset(m.hello.name, 'n', sizeof m.hello.name);
    m.hello.name[sizeof m.hello.name - 1] = 0;
    expect_round_trip(&m);
}

static void a_text_without_end_is_cut(void **state)
{
    (void)state;
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message m = hello, back;
    memset(m.hello.name, 'n', sizeof m.hello.name);
    int n = control_encode(&m, packet, sizeof packet);
    assert_int_equal(decode(packet, (size_t)n, &back), 0);
    assert_int_equal(strlen(back.hello.name), sizeof back.hello.name - 1);
}

static void truncated_and_padded_messages_are_refused(void **state)
{
    (void)state;
    const struct llm_message *all[] = {&hello, &welcome, &reject};
    uint8_t packet[LLM_CONTROL_MAX + 1] = {0};
    struct llm_message back;
    for (int k = 0; k < 3; k++) {
        size_t n = (size_t)control_encode(all[k], packet, LLM_CONTROL_MAX);
        for (size_t cut = 0; cut < n; cut++)
            assert_int_equal(decode(packet, cut, &back), LLM_EPROTO);
        packet[n] = 0;
        assert_int_equal(decode(packet, n + 1, &back), LLM_EPROTO);
        assert_int_equal(decode(packet, LLM_CONTROL_MAX + 1, &back), LLM_EPROTO);
    }
}

struct bytes {
    const char *data;
    size_t n;
};
#define BYTES(s)                                                                                   \
    {                                                                                              \
        s, sizeof(s) - 1                                                                           \
    }

static void ill_formed_messages_are_refused(void **state)
{
    (void)state;
    static const struct bytes wrong[] = {
        BYTES(""),
        BYTES("\x80"),                                /* no "t" */
        BYTES("\xC0"),                                /* nil */
        BYTES("\xC1"),                                /* never used */
        BYTES("\x90"),                                /* an array */
        BYTES("\x81\xA1t\xA4hell"),                   /* no kind of message */
        BYTES("\x81\xA1t\xA5hello"),                  /* without "magic" */
        BYTES("\x82\xA1t\xA5hello\xA5magic\xA4llmx"), /* another's */
        BYTES("\x82\xA1t\xA6reject\xA4"
              "code\xCE\x80\x00\x00\x00"), /* beyond i32 */
        BYTES("\x82\xA1t\xA6reject\xA4"
              "code\xCA\x00\x00\x00\x00"),                                      /* a float */
        BYTES("\x82\xA1t\xA6reject\xA4text\xA3x\0y"),                           /* a NUL inside */
        BYTES("\x82\xA1t\xA6reject\xA4text\x01"),                               /* no text */
        BYTES("\x83\xA1t\xA5hello\xA5magic\xA4llmd\xA2sq\xCF\0\0\0\1\0\0\0\0"), /* beyond u32 */
        BYTES("\x83\xA1t\xA5hello\xA5magic\xA4llmd\xA2sq\xFF"),                 /* negative */
        BYTES("\x82\xA1t\xA6reject\xA1x\x91\x91\x01"),                          /* too deep */
    };
    struct llm_message back;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(decode(wrong[i].data, wrong[i].n, &back), LLM_EPROTO);
}

static void unknown_keys_are_skipped(void **state)
{
    (void)state;
    static const struct bytes fine[] = {
        BYTES("\x81\xA1t\xA6reject"),
        BYTES("\x82\xA1x\x92\x01\xC0\xA1t\xA6reject"),
        BYTES("\x82\xA1x\x81\xA1y\xC3\xA1t\xA6reject"),
        BYTES("\x82\x01\x02\xA1t\xA6reject"),
        BYTES("\x82\xA1x\xC7\x02\x05"
              "ab\xA1t\xA6reject"),
        BYTES("\x82\xA1x\xD6\x05"
              "abcd\xA1t\xA6reject"),
        BYTES("\x82\xA1x\xC4\x02"
              "ab\xA1t\xA6reject"),
        BYTES("\xDE\x00\x01\xA1t\xA6reject"),
    };
    struct llm_message back;
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        assert_int_equal(decode(fine[i].data, fine[i].n, &back), 0);
        assert_int_equal(back.kind, LLM_MSG_REJECT);
        assert_int_equal(back.reject.code, 0);
        assert_string_equal(back.reject.text, "");
    }
}

static void maps_are_wide_only_to_a_limit(void **state)
{
    (void)state;
    uint8_t packet[256] = "\xDE\x00\x40\xA1t\xA6reject"; /* then 63 or 64 pairs of 1 and 1 */
    size_t head = 3 + 2 + 7;
    struct llm_message back;
    memset(packet + head, 1, sizeof packet - head);
    assert_int_equal(decode(packet, head + 63 * 2, &back), 0);
    packet[2]++;
    assert_int_equal(decode(packet, head + 64 * 2, &back), LLM_EPROTO);
}

/* A head that announces millions of entries must not be believed before they are there. */
static void announced_sizes_allocate_nothing(void **state)
{
    (void)state;
    static const struct bytes greedy[] = {
        BYTES("\xDF\xFF\xFF\xFF\xFF"),
        BYTES("\xDD\x7F\xFF\xFF\xFF"),
        BYTES("\xDE\xFF\xFF"),
        BYTES("\xDE\x00\x41"),
        BYTES("\x81\xA1t\xDD\x0F\xFF\xFF\xFF"),
        BYTES("\x81\xA1t\xDB\xFF\xFF\xFF\xFF"),
        BYTES("\x81\xDF\x00\xFF\xFF\xFF"),
        BYTES("\x81\xC9\xFF\xFF\xFF\xFF\x01"),
    };
    struct llm_message back;
    for (size_t i = 0; i < sizeof greedy / sizeof *greedy; i++) {
        largest = 0;
        assert_int_equal(control_decode(greedy[i].data, greedy[i].n, &back), LLM_EPROTO);
        assert_in_range(largest, 0, 1 << 14);
    }
}

static void decoding_leaves_nothing_allocated(void **state)
{
    (void)state;
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message back;
    size_t n = (size_t)control_encode(&welcome, packet, sizeof packet);
    assert_int_equal(control_decode(packet, n, &back), 0);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 100; i++) {
        packet[n - 1] = i % 2 ? 'x' : 0; /* fine, or a NUL inside a text */
        control_decode(packet, n, &back);
    }
    assert_int_equal(mallinfo2().uordblks, before);
}

static uint32_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* What was accepted is whole: it can be written again, and says the same. */
static void expect_sound(const struct llm_message *m)
{
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message back;
    int n = control_encode(m, packet, sizeof packet);
    assert_true(n > 0);
    assert_int_equal(control_decode(packet, (size_t)n, &back), 0);
    assert_memory_equal(&back, m, sizeof back);
}

static void random_mutations_never_confuse(void **state)
{
    (void)state;
    const struct llm_message *all[] = {&hello, &welcome, &reject};
    uint64_t rnd = 7;
    int accepted = 0;
    for (int round = 0; round < 20000; round++) {
        uint8_t packet[LLM_CONTROL_MAX];
        struct llm_message back;
        size_t n = (size_t)control_encode(all[round % 3], packet, sizeof packet);
        for (uint32_t edits = 1 + next_random(&rnd) % 4; edits; edits--)
            packet[next_random(&rnd) % n] = (uint8_t)next_random(&rnd);
        if (next_random(&rnd) % 4 == 0)
            n = next_random(&rnd) % (n + 1);
        int rc = decode(packet, n, &back);
        assert_true(rc == 0 || rc == LLM_EPROTO);
        if (rc == 0) {
            expect_sound(&back);
            accepted++;
        }
    }
    assert_in_range(accepted, 100, 19000); /* else this test tries nothing */
}

/* ---- packets ---- */

struct pair {
    int a, b;
};

static int open_pair(void **state)
{
    struct pair *p = malloc(sizeof *p);
    int sv[2];
    if (!p || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv))
        return -1;
    *p = (struct pair){sv[0], sv[1]};
    *state = p;
    return 0;
}

static int close_pair(void **state)
{
    struct pair *p = *state;
    close(p->a);
    close(p->b);
    free(p);
    return 0;
}

static void send_with_fds(int socket, int n)
{
    int fds[LLM_CONTROL_FDS] = {0};
    for (int i = 0; i < n; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(control_send(socket, "hi", 2, fds, n), 0);
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

static void descriptors_arrive_close_on_exec(void **state)
{
    struct pair *p = *state;
    int before = open_fds(), fds[LLM_CONTROL_FDS], n = LLM_CONTROL_FDS;
    char buffer[16];
    send_with_fds(p->a, 4);
    assert_int_equal(control_receive(p->b, buffer, sizeof buffer, fds, &n), 2);
    assert_int_equal(n, 4);
    assert_int_equal(open_fds(), before + 4);
    for (int i = 0; i < n; i++) {
        assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
        close(fds[i]);
    }
}

static void unwanted_descriptors_are_never_installed(void **state)
{
    struct pair *p = *state;
    int before = open_fds();
    char buffer[16];
    for (int n = 1; n <= LLM_CONTROL_FDS; n++) {
        send_with_fds(p->a, n);
        assert_int_equal(control_receive(p->b, buffer, sizeof buffer, NULL, NULL), LLM_EPROTO);
        assert_int_equal(open_fds(), before);
    }
    assert_int_equal(control_send(p->a, "ok", 2, NULL, 0), 0);
    assert_int_equal(control_receive(p->b, buffer, sizeof buffer, NULL, NULL), 2);
}

static void too_many_descriptors_are_closed(void **state)
{
    struct pair *p = *state;
    int before = open_fds(), fds[LLM_CONTROL_FDS], n = 3;
    char buffer[16];
    send_with_fds(p->a, 4);
    assert_int_equal(control_receive(p->b, buffer, sizeof buffer, fds, &n), LLM_EPROTO);
    assert_int_equal(n, 0);
    assert_int_equal(open_fds(), before);
}

/* More than the five that this protocol knows: sent past control_send. */
static void a_flood_of_descriptors_is_closed(void **state)
{
    struct pair *p = *state;
    enum { MANY = 100 };
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int) * MANY)];
    } control = {0};
    struct iovec iov = {"hi", 2};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control};
    m.msg_controllen = sizeof control;
    control.head = (struct cmsghdr){CMSG_LEN(sizeof(int) * MANY), SOL_SOCKET, SCM_RIGHTS};
    int zero = 0, before = open_fds();
    for (int i = 0; i < MANY; i++)
        memcpy(CMSG_DATA(&control.head) + i * sizeof zero, &p->a, sizeof p->a);
    for (int wanted = 0; wanted < 2; wanted++) {
        int fds[LLM_CONTROL_FDS], n = LLM_CONTROL_FDS;
        char buffer[16];
        assert_int_equal(sendmsg(p->a, &m, 0), 2);
        int rc = wanted ? control_receive(p->b, buffer, sizeof buffer, fds, &n)
                        : control_receive(p->b, buffer, sizeof buffer, NULL, NULL);
        assert_int_equal(rc, LLM_EPROTO);
        assert_int_equal(open_fds(), before);
    }
}

static void an_oversized_packet_is_refused_and_its_descriptors_closed(void **state)
{
    struct pair *p = *state;
    int before = open_fds(), fds[LLM_CONTROL_FDS], n = LLM_CONTROL_FDS;
    char buffer[8], big[9] = {0};
    int fd = p->a;
    assert_int_equal(control_send(p->a, big, sizeof big, &fd, 1), 0);
    assert_int_equal(control_receive(p->b, buffer, sizeof buffer, fds, &n), LLM_EPROTO);
    assert_int_equal(n, 0);
    assert_int_equal(open_fds(), before);
    assert_int_equal(control_send(p->a, big, sizeof big, NULL, 0), 0);
    assert_int_equal(control_receive(p->b, buffer, sizeof buffer, NULL, NULL), LLM_EPROTO);
}

static void nothing_blocks_and_nothing_signals(void **state)
{
    struct pair *p = *state;
    char buffer[LLM_CONTROL_MAX] = {0};
    int rc;
    assert_int_equal(control_receive(p->b, buffer, sizeof buffer, NULL, NULL), -EAGAIN);
    while ((rc = control_send(p->a, buffer, sizeof buffer, NULL, 0)) == 0)
        ;
    assert_int_equal(rc, -EAGAIN);
    while (control_receive(p->b, buffer, sizeof buffer, NULL, NULL) > 0)
        ;
    close(p->a);
    p->a = dup(0);
    assert_int_equal(control_receive(p->b, buffer, sizeof buffer, NULL, NULL), 0);
    assert_int_equal(control_send(p->b, buffer, 1, NULL, 0), -EPIPE);
    assert_int_equal(control_send(p->b, buffer, 1, &p->b, LLM_CONTROL_FDS + 1), -EINVAL);
}

/* ---- paths ---- */

static void instance_names_are_checked(void **state)
{
    (void)state;
    char longest[LLM_INSTANCE_MAX + 2];
    memset(longest, 'a', sizeof longest);
    longest[LLM_INSTANCE_MAX] = 0;
    assert_true(llm_instance_ok(longest));
    longest[LLM_INSTANCE_MAX] = 'a';
    longest[LLM_INSTANCE_MAX + 1] = 0;
    assert_false(llm_instance_ok(longest));
    assert_true(llm_instance_ok("A.b_c-9"));
    const char *wrong[] = {"", ".", "..", ".hidden", "a/b", "a b", "a\n", "\xC3\xA9", "a:b"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(llm_instance_ok(wrong[i]));
}

static void paths_follow_the_environment(void **state)
{
    (void)state;
    char out[64];
    setenv("LLMD_RUNTIME_DIR", "/x/y", 1);
    assert_int_equal(llm_socket_path("one", out, sizeof out), 0);
    assert_string_equal(out, "/x/y/one.sock");
    assert_int_equal(llm_lock_path("one", out, sizeof out), 0);
    assert_string_equal(out, "/x/y/one.lock");
    assert_int_equal(llm_board_name("one", out, sizeof out), 0);
    assert_string_equal(out, "/llmd.one");
    assert_int_equal(llm_socket_path("one", out, 13), -ENAMETOOLONG);
    assert_int_equal(llm_socket_path("one", out, 14), 0);
    assert_int_equal(llm_socket_path("one", out, 4), -ENAMETOOLONG);
    assert_int_equal(llm_board_name("one", out, 9), -ENAMETOOLONG);
    assert_int_equal(llm_socket_path("../one", out, sizeof out), -EINVAL);
    assert_int_equal(llm_board_name("a/b", out, sizeof out), -EINVAL);
    unsetenv("LLMD_RUNTIME_DIR");
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    assert_int_equal(llm_runtime_dir(out, sizeof out), 0);
    assert_string_equal(out, geteuid() ? "/run/user/7/llmd" : "/run/llmd");
    unsetenv("XDG_RUNTIME_DIR");
    char fallback[64];
    snprintf(fallback, sizeof fallback, "/tmp/llmd-%lu", (unsigned long)geteuid());
    assert_int_equal(llm_runtime_dir(out, sizeof out), 0);
    assert_string_equal(out, geteuid() ? fallback : "/run/llmd");
}

#define PAIR(f) cmocka_unit_test_setup_teardown(f, open_pair, close_pair)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_survive_the_round_trip),
        cmocka_unit_test(a_text_without_end_is_cut),
        cmocka_unit_test(truncated_and_padded_messages_are_refused),
        cmocka_unit_test(ill_formed_messages_are_refused),
        cmocka_unit_test(unknown_keys_are_skipped),
        cmocka_unit_test(maps_are_wide_only_to_a_limit),
        cmocka_unit_test(announced_sizes_allocate_nothing),
        cmocka_unit_test(decoding_leaves_nothing_allocated),
        cmocka_unit_test(random_mutations_never_confuse),
        PAIR(descriptors_arrive_close_on_exec),
        PAIR(unwanted_descriptors_are_never_installed),
        PAIR(too_many_descriptors_are_closed),
        PAIR(a_flood_of_descriptors_is_closed),
        PAIR(an_oversized_packet_is_refused_and_its_descriptors_closed),
        PAIR(nothing_blocks_and_nothing_signals),
        cmocka_unit_test(instance_names_are_checked),
        cmocka_unit_test(paths_follow_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
