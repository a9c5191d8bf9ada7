/* test_control_server.c - the door without an engine behind it: what sizes are granted, who holds
 * the lock, what is heard, and that waiting strangers have an end.
 */
#include "../../appliance/control_server.h"
#include "../../shm/segment.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct llm_reject refusal;

/* ---- sizes ---- */

static bool grant(struct llm_hello wish, struct control_grant *g)
{
    refusal = (struct llm_reject){0};
    return control_grant(&wish, g, &refusal);
}

static void zeros_get_the_defaults(void **state)
{
    (void)state;
    struct control_grant g;
    assert_true(grant((struct llm_hello){0}, &g));
    assert_int_equal(g.sq_entries, 256);
    assert_int_equal(g.cq_entries, 1024);
    assert_int_equal(g.arena_bytes, 1 << 20);
    assert_int_equal(g.max_inflight, 256);
}

static void wishes_are_rounded_up(void **state)
{
    (void)state;
    struct control_grant g;
    assert_true(grant(
        (struct llm_hello){
            .sq_entries = 5, .cq_entries = 33, .arena_bytes = 4097, .max_inflight = 3},
        &g));
    assert_int_equal(g.sq_entries, 8);
    assert_int_equal(g.cq_entries, 64);
    assert_int_equal(g.arena_bytes, 8192);
    assert_int_equal(g.max_inflight, 3);
    assert_true(grant((struct llm_hello){.sq_entries = 1, .arena_bytes = 1}, &g));
    assert_int_equal(g.sq_entries, 1);
    assert_int_equal(g.arena_bytes, 4096);
    assert_true(grant((struct llm_hello){.sq_entries = LLM_SQ_ENTRIES_MAX,
                                         .cq_entries = LLM_CQ_ENTRIES_MAX,
                                         .arena_bytes = LLM_ARENA_BYTES_MAX,
                                         .max_inflight = LLM_CQ_ENTRIES_MAX / 2},
                      &g));
    assert_int_equal(g.arena_bytes, LLM_ARENA_BYTES_MAX);
    /* room for tokens beside the finals, where only the finals were asked for */
    assert_true(grant((struct llm_hello){.max_inflight = 3000}, &g));
    assert_int_equal(g.cq_entries, 8192);
    /* and fewer finals, where only a small ring was */
    assert_true(grant((struct llm_hello){.cq_entries = 16}, &g));
    assert_int_equal(g.max_inflight, 8);
}

static void too_much_is_refused(void **state)
{
    (void)state;
    struct control_grant g;
    static const struct {
        struct llm_hello wish;
        const char *sentence;
    } cases[] = {
        {{.sq_entries = LLM_SQ_ENTRIES_MAX + 1},
         "4097 submission entries are too many: at most 4096"},
        {{.cq_entries = LLM_CQ_ENTRIES_MAX + 1}, "at most 65536"},
        {{.arena_bytes = LLM_ARENA_BYTES_MAX + 1}, "at most 67108864"},
        {{.max_inflight = LLM_CQ_ENTRIES_MAX / 2 + 1}, "at most 32768"},
        {{.sq_entries = UINT32_MAX}, "too many"},
        {{.cq_entries = UINT32_MAX}, "too many"},
        {{.arena_bytes = UINT32_MAX}, "too large"},
        {{.max_inflight = UINT32_MAX}, "too many"},
        {{.cq_entries = 16, .max_inflight = 16}, "no room for tokens"},
        {{.cq_entries = 1}, "no room for tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_false(grant(cases[i].wish, &g));
        assert_int_equal(refusal.code, LLM_EPARAM);
        if (!strstr(refusal.text, cases[i].sentence))
            fail_msg("case %zu says: %s", i, refusal.text);
    }
}

/* ---- the lock ---- */

static void the_lock_is_held_for_life(void **state)
{
    (void)state;
    scratch_dir(); /* sets LLMD_RUNTIME_DIR */
    struct control_server s, other;
    struct fail f = {0}, g = {0};
    control_server_init(&s);
    control_server_init(&other);
    assert_int_equal(control_lock(&s, "one", &f), 0);
    assert_int_equal(control_lock(&other, "one", &g), -EBUSY);
    char pid[32];
    snprintf(pid, sizeof pid, "process %d ", (int)getpid());
    assert_non_null(strstr(g.text, pid));
    assert_int_equal(control_lock(&other, "two", &f), 0); /* another instance: no matter */
    control_unlock(&other);
    assert_int_equal(access(other.lock_path, F_OK), -1);
    control_unlock(&s);
    assert_int_equal(access(s.lock_path, F_OK), -1);

    /* a file that a killed engine left, longer than a pid */
    FILE *stale = fopen(s.lock_path, "w");
    fprintf(stale, "99999999999999999\nand more\n");
    fclose(stale);
    assert_int_equal(control_lock(&s, "one", &f), 0);
    struct stat st;
    assert_int_equal(stat(s.lock_path, &st), 0);
    assert_true(st.st_size < 12);
    control_unlock(&s);
}

static void a_link_is_no_lock_file(void **state)
{
    (void)state;
    char path[512], target[512];
    struct fail f = {0};
    struct control_server s;
    assert_int_equal(llm_lock_path("linked", path, sizeof path), 0);
    snprintf(target, sizeof target, "%s/precious", scratch_dir());
    FILE *precious = fopen(target, "w");
    fputs("keep", precious);
    fclose(precious);
    assert_int_equal(symlink(target, path), 0);
    control_server_init(&s);
    assert_true(control_lock(&s, "linked", &f) < 0);
    struct stat st;
    assert_int_equal(stat(target, &st), 0);
    assert_int_equal(st.st_size, 4);
}

static void a_path_too_long_for_a_socket(void **state)
{
    (void)state;
    struct control_server s;
    struct fail f = {0};
    char was[512], path[640];
    snprintf(was, sizeof was, "%s", scratch_dir());
    snprintf(path, sizeof path, "%s/%0100d", was, 1);
    setenv("LLMD_RUNTIME_DIR", path, 1);
    control_server_init(&s);
    assert_int_equal(control_lock(&s, "long", &f), -ENAMETOOLONG);
    assert_non_null(strstr(f.text, "107 bytes"));
    assert_int_equal(access(path, F_OK), -1); /* nothing was made */
    setenv("LLMD_RUNTIME_DIR", was, 1);
}

/* ---- the socket ---- */

static void opens(struct control_server *s, const char *instance)
{
    struct fail f = {0};
    control_server_init(s);
    if (control_lock(s, instance, &f) || control_listen(s, &f))
        fail_msg("%s", f.text);
}

static int knocks(const struct control_server *s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    assert_true(strlen(s->socket_path) < sizeof address.sun_path);
    strcpy(address.sun_path, s->socket_path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static bool is_shut(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno == ECONNRESET);
}

static struct llm_hello good_hello(void)
{
    return (struct llm_hello){.major = LLM_ABI_MAJOR,
                              .minor = LLM_ABI_MINOR,
                              .sqe_bytes = sizeof(struct llm_sqe),
                              .cqe_bytes = sizeof(struct llm_cqe),
                              .arena_bytes = 4096,
                              .name = "test"};
}

static void says(int fd, struct llm_message m)
{
    uint8_t packet[LLM_CONTROL_MAX];
    int n = control_encode(&m, packet, sizeof packet);
    assert_true(n > 0);
    assert_int_equal(send(fd, packet, (size_t)n, MSG_NOSIGNAL), n);
}

static void the_socket_replaces_a_stale_one(void **state)
{
    (void)state;
    struct control_server s;
    opens(&s, "stale");
    char path[256];
    snprintf(path, sizeof path, "%s", s.socket_path);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0660);
    close(s.listen_fd); /* as a crash would */
    struct fail f = {0};
    assert_int_equal(control_listen(&s, &f), 0);
    close(knocks(&s));
    control_close(&s);
    assert_int_equal(access(path, F_OK), -1);
    control_unlock(&s);
}

static void hears_a_hello(void **state)
{
    (void)state;
    struct control_server s;
    struct llm_hello hello;
    opens(&s, "hello");
    assert_int_equal(control_accept(&s, 1), -EAGAIN);
    int fd = knocks(&s), k = control_accept(&s, 1);
    assert_true(k >= 0);
    assert_int_equal(control_hear(&s, (uint32_t)k, &hello, &refusal), -EAGAIN);
    says(fd, (struct llm_message){.kind = LLM_MSG_HELLO, .hello = good_hello()});
    assert_int_equal(control_hear(&s, (uint32_t)k, &hello, &refusal), 0);
    assert_int_equal(hello.arena_bytes, 4096);
    assert_string_equal(hello.name, "test");
    close(control_take(&s, (uint32_t)k));
    close(fd);
    control_close(&s);
    control_unlock(&s);
}

static void refuses_other_versions(void **state)
{
    (void)state;
    struct control_server s;
    struct llm_hello hello;
    opens(&s, "version");
    for (int i = 0; i < 3; i++) {
        struct llm_hello h = good_hello();
        h.major += i == 0;
        h.sqe_bytes += i == 1;
        h.cqe_bytes -= i == 2;
        int fd = knocks(&s), k = control_accept(&s, 1);
        says(fd, (struct llm_message){.kind = LLM_MSG_HELLO, .hello = h});
        assert_int_equal(control_hear(&s, (uint32_t)k, &hello, &refusal), LLM_EPROTO);
        assert_int_equal(refusal.code, LLM_EPROTO);
        assert_non_null(strstr(refusal.text, i ? "128 and 64" : "version 1"));
        control_shut(&s, (uint32_t)k);
        assert_true(is_shut(fd));
        close(fd);
    }
    control_close(&s);
    control_unlock(&s);
}

static void nonsense_gets_no_answer(void **state)
{
    (void)state;
    struct control_server s;
    struct llm_hello hello;
    opens(&s, "nonsense");
    static const char big[LLM_CONTROL_MAX + 1] = {0};
    for (int i = 0; i < 4; i++) {
        int fd = knocks(&s), k = control_accept(&s, 1);
        if (i == 0)
            assert_int_equal(send(fd, "GET / HTTP/1.1\r\n", 16, 0), 16);
        if (i == 1)
            assert_int_equal(send(fd, big, sizeof big, 0), sizeof big);
        if (i == 2)
            says(fd, (struct llm_message){.kind = LLM_MSG_REJECT, .reject = {.code = -1}});
        if (i == 3)
            shutdown(fd, SHUT_WR);
        int rc = control_hear(&s, (uint32_t)k, &hello, &refusal);
        assert_true(rc < 0 && rc != -EAGAIN);
        assert_int_equal(refusal.text[0], 0);
        control_shut(&s, (uint32_t)k);
        close(fd);
    }
    control_close(&s);
    control_unlock(&s);
}

static void takes_no_descriptors(void **state)
{
    (void)state;
    struct control_server s;
    struct llm_hello hello;
    opens(&s, "fds");
    int fd = knocks(&s), k = control_accept(&s, 1);
    int next_free = dup(0);
    close(next_free);
    struct llm_message m = {.kind = LLM_MSG_HELLO, .hello = good_hello()};
    uint8_t packet[LLM_CONTROL_MAX];
    int n = control_encode(&m, packet, sizeof packet), fds[2] = {0, fd};
    assert_int_equal(control_send(fd, packet, (size_t)n, fds, 2), 0);
    assert_true(control_hear(&s, (uint32_t)k, &hello, &refusal) < 0);
    int now_free = dup(0);
    close(now_free);
    assert_int_equal(now_free, next_free);
    close(fd);
    control_close(&s);
    control_unlock(&s);
}

static void silent_strangers_are_shut_out(void **state)
{
    (void)state;
    struct control_server s;
    opens(&s, "silent");
    int fd = knocks(&s), k = control_accept(&s, 1000);
    assert_int_equal(control_overdue(&s, 1000 + CONTROL_HELLO_NS), -1);
    assert_int_equal(control_overdue(&s, 1001 + CONTROL_HELLO_NS), k);
    control_shut(&s, (uint32_t)k);
    assert_true(is_shut(fd));
    assert_int_equal(control_overdue(&s, 1001 + CONTROL_HELLO_NS), -1);
    close(fd);
    control_close(&s);
    control_unlock(&s);
}

static void the_oldest_makes_room(void **state)
{
    (void)state;
    struct control_server s;
    opens(&s, "crowd");
    int fds[CONTROL_KNOCKS + 2];
    for (int i = 0; i < CONTROL_KNOCKS; i++) {
        fds[i] = knocks(&s);
        assert_int_equal(control_accept(&s, (uint64_t)(100 + i)), i);
    }
    /* no poll is armed: the slot of the oldest is free at once */
    fds[CONTROL_KNOCKS] = knocks(&s);
    assert_int_equal(control_accept(&s, 999), 0);
    assert_true(is_shut(fds[0]));
    assert_int_equal(s.knock[0].generation, 2);
    /* one is: the slot is free only when its completion came */
    for (int i = 0; i < CONTROL_KNOCKS; i++)
        s.knock[i].armed = true;
    fds[CONTROL_KNOCKS + 1] = knocks(&s);
    assert_int_equal(control_accept(&s, 1000), -EBUSY);
    assert_true(is_shut(fds[1]));
    assert_int_equal(control_accept(&s, 1000), -EBUSY); /* the next oldest */
    assert_true(is_shut(fds[2]));
    assert_false(control_polled(&s, 1));
    assert_int_equal(control_accept(&s, 1000), 1);
    control_close(&s);
    control_unlock(&s);
    for (int i = 0; i < CONTROL_KNOCKS + 2; i++) {
        assert_true(is_shut(fds[i]));
        close(fds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(zeros_get_the_defaults),
                                       cmocka_unit_test(wishes_are_rounded_up),
                                       cmocka_unit_test(too_much_is_refused),
                                       cmocka_unit_test(the_lock_is_held_for_life),
                                       cmocka_unit_test(a_link_is_no_lock_file),
                                       cmocka_unit_test(a_path_too_long_for_a_socket),
                                       cmocka_unit_test(the_socket_replaces_a_stale_one),
                                       cmocka_unit_test(hears_a_hello),
                                       cmocka_unit_test(refuses_other_versions),
                                       cmocka_unit_test(nonsense_gets_no_answer),
                                       cmocka_unit_test(takes_no_descriptors),
                                       cmocka_unit_test(silent_strangers_are_shut_out),
                                       cmocka_unit_test(the_oldest_makes_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
