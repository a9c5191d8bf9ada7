/* test_clients_quota.c - what one user may have: its clients and their memory are counted together,
 * a refusal says what is in use and which option raises it. Also what else is agreed on at
 * admission: the user goes to the core, the lesser version holds.
 */
#include "clients_rig.h"

static const struct llm_hello hello = {.minor = LLM_ABI_MINOR,
                                       .sq_entries = 256,
                                       .cq_entries = 256,
                                       .arena_bytes = 65536,
                                       .max_inflight = 128,
                                       .name = "user"};

static uint64_t bytes_each(void)
{
    return llm_up_bytes(256, 65536) + llm_down_bytes(256);
}

/* Returns the slot or the code; the other end stays open. As root: for another user. */
static int come(uid_t user, struct llm_reject *refusal)
{
    int pair[2];
    assert_int_equal(seteuid(user), 0);
    int made = socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
    assert_int_equal(seteuid(getuid()), 0);
    assert_int_equal(made, 0);
    *refusal = (struct llm_reject){0};
    return clients_admit(&rig.clients, pair[0], &hello, refusal);
}

static void go(uint32_t slot)
{
    clients_leave(&rig.clients, slot);
    let_leave(slot);
}

static int two_clients(void **state)
{
    quota = (struct clients_quota){.clients = 2};
    return open_rig(state);
}

static int two_clients_memory(void **state)
{
    quota = (struct clients_quota){.bytes = 2 * bytes_each() + 100};
    return open_rig(state);
}

static int no_quota(void **state)
{
    quota = (struct clients_quota){0};
    return open_rig(state);
}

static void expect_refused(uid_t user, const char *sentence)
{
    struct llm_reject r;
    assert_int_equal(come(user, &r), LLM_EQUOTA);
    assert_int_equal(r.code, LLM_EQUOTA);
    if (strcmp(r.text, sentence))
        fail_msg("it says: %s", r.text);
}

static void clients_of_a_user(void **state)
{
    (void)state;
    struct llm_reject r;
    char sentence[240];
    assert_int_equal(come(geteuid(), &r), 0);
    assert_int_equal(come(geteuid(), &r), 1);
    snprintf(sentence, sizeof sentence,
             "user %u has 2 clients, the quota is 2: close one, or raise --quota-clients",
             geteuid());
    expect_refused(geteuid(), sentence);
    go(0);
    assert_int_equal(come(geteuid(), &r), 0);
    expect_refused(geteuid(), sentence);
    if (getuid() == 0) /* others have their own */
        assert_int_equal(come(12345, &r), 2);
}

static void memory_of_a_user(void **state)
{
    (void)state;
    struct llm_reject r;
    char sentence[240];
    assert_int_equal(come(geteuid(), &r), 0);
    assert_int_equal(come(geteuid(), &r), 1);
    snprintf(sentence, sizeof sentence,
             "this client needs %llu bytes of shared memory; user %u uses %llu of a quota of %llu: "
             "ask for smaller rings, or raise --quota-memory",
             (unsigned long long)bytes_each(), geteuid(), (unsigned long long)bytes_each() * 2,
             (unsigned long long)bytes_each() * 2 + 100);
    expect_refused(geteuid(), sentence);
    clients_leave(&rig.clients, 1);
    expect_refused(geteuid(), sentence); /* its memory is there until the slot is free */
    let_leave(1);
    assert_int_equal(come(geteuid(), &r), 1);
    if (getuid() == 0)
        assert_int_equal(come(12345, &r), 2);
}

static void the_core_learns_the_user(void **state)
{
    (void)state;
    struct llm_reject r;
    struct engine_sink sink = clients_sink(&rig.clients);
    assert_int_equal(come(geteuid(), &r), 0);
    assert_int_equal(sink.domain(sink.context, 0), geteuid());
    if (getuid() == 0) {
        assert_int_equal(come(4711, &r), 1);
        assert_int_equal(sink.domain(sink.context, 1), 4711);
    }
}

static uint32_t minor_agreed_on(uint32_t theirs)
{
    struct llm_hello h = hello;
    struct llm_reject r;
    struct llm_message m;
    uint8_t packet[LLM_CONTROL_MAX];
    int pair[2], fds[LLM_CONTROL_FDS], n = LLM_CONTROL_FDS;
    h.minor = theirs;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    int slot = clients_admit(&rig.clients, pair[0], &h, &r);
    assert_true(slot >= 0);
    int bytes = control_receive(pair[1], packet, sizeof packet, fds, &n);
    assert_true(bytes > 0);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    assert_int_equal(control_decode(packet, (size_t)bytes, &m), 0);
    go((uint32_t)slot);
    close(pair[1]);
    return m.welcome.minor;
}

static void the_lesser_minor_holds(void **state)
{
    (void)state;
    assert_int_equal(minor_agreed_on(0), 0);
    assert_int_equal(minor_agreed_on(LLM_ABI_MINOR), LLM_ABI_MINOR);
    assert_int_equal(minor_agreed_on(LLM_ABI_MINOR + 1), LLM_ABI_MINOR);
    assert_int_equal(minor_agreed_on(UINT32_MAX), LLM_ABI_MINOR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(clients_of_a_user, two_clients, close_rig),
        cmocka_unit_test_setup_teardown(memory_of_a_user, two_clients_memory, close_rig),
        cmocka_unit_test_setup_teardown(the_core_learns_the_user, no_quota, close_rig),
        cmocka_unit_test_setup_teardown(the_lesser_minor_holds, no_quota, close_rig),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
