/* test_clients_arriving.c - a client that asks for large rings gets them piece by piece; one that
 * cannot be served is told, and nothing of it stays. failure test (10)
 */
#include "clients_rig.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>

enum { LARGE_CQ = LLM_CQ_ENTRIES_MAX };

static const struct llm_hello large = {
    .sq_entries = 256, .cq_entries = LARGE_CQ, .arena_bytes = 1 << 20, .name = "large"};

struct guest {
    int ours, theirs, slot;
    struct llm_reject refusal;
};

static struct guest knock(const struct llm_hello *hello)
{
    struct guest g;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    g = (struct guest){.ours = pair[0], .theirs = pair[1]};
    g.slot = clients_admit(&rig.clients, pair[0], hello, &g.refusal);
    return g;
}

/* What the guest was sent, with its descriptors closed; kind 0: nothing. */
static struct llm_message heard(const struct guest *g)
{
    uint8_t packet[LLM_CONTROL_MAX];
    struct llm_message m = {0};
    int fds[LLM_CONTROL_FDS], n = LLM_CONTROL_FDS;
    int bytes = control_receive(g->theirs, packet, sizeof packet, fds, &n);
    if (bytes <= 0)
        return m;
    assert_int_equal(control_decode(packet, (size_t)bytes, &m), 0);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    return m;
}

static uint32_t descriptors(void)
{
    uint32_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void a_large_one_comes_piece_by_piece(void **state)
{
    (void)state;
    struct peer small = join();
    struct guest g = knock(&large);
    assert_true(g.slot > 0);
    const struct client *c = &rig.clients.slots[g.slot];
    uint32_t pieces = 0;
    int live = -EAGAIN;
    while (c->state == CLIENT_ARRIVING && pieces < 1000) {
        size_t there = c->down.there;
        assert_int_equal(heard(&g).kind, 0);
        live = clients_prepare(&rig.clients);
        assert_true(c->down.there - there <= CLIENTS_SLICE);
        pieces++;
        request(&small, LLM_OP_NOP, 1, 0); /* the others go on meanwhile */
        step();
        take(&small);
        assert_int_equal(small.finals, pieces);
    }
    assert_int_equal(live, g.slot);
    assert_int_equal(c->state, CLIENT_LIVE);
    assert_true(pieces > 40);
    assert_true(c->down.there >= llm_down_bytes(LARGE_CQ));
    struct llm_message m = heard(&g);
    assert_int_equal(m.kind, LLM_MSG_WELCOME);
    assert_int_equal(m.welcome.cq_entries, LARGE_CQ);
    assert_int_equal(rig.clients.n_live, 2);
    assert_int_equal(rig.clients.n_arriving, 0);
    assert_int_equal(clients_prepare(&rig.clients), -EAGAIN);
    close(g.theirs);
    part(&small);
}

static void who_dies_while_it_arrives_leaves_nothing(void **state)
{
    (void)state;
    uint32_t before = descriptors();
    for (int i = 0; i < 3 * MAX_CLIENTS; i++) {
        struct guest g = knock(&large);
        assert_int_equal(g.slot, 0);
        uint32_t generation = rig.clients.slots[0].generation;
        close(g.theirs);
        for (int n = 0; n < 1000 && rig.clients.n_arriving; n++)
            assert_int_equal(clients_prepare(&rig.clients), -EAGAIN);
        assert_int_equal(rig.clients.slots[0].state, CLIENT_FREE);
        assert_int_equal(rig.clients.slots[0].generation, generation + 1);
    }
    assert_int_equal(rig.clients.n_live, 0);
    assert_int_equal(descriptors(), before);
}

static void who_arrives_at_the_end_is_told(void **state)
{
    (void)state;
    static const struct llm_reject stopping = {LLM_ESHUTDOWN, "the engine is stopping"};
    struct guest a = knock(&large), b = knock(&large);
    clients_prepare(&rig.clients);
    clients_turn_away(&rig.clients, &stopping);
    assert_int_equal(rig.clients.n_arriving, 0);
    struct guest *both[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        struct llm_message m = heard(both[i]);
        assert_int_equal(m.kind, LLM_MSG_REJECT);
        assert_int_equal(m.reject.code, LLM_ESHUTDOWN);
        char c;
        assert_int_equal(recv(both[i]->theirs, &c, 1, 0), 0);
        close(both[i]->theirs);
    }
}

static void limit(int resource, rlim_t to, struct rlimit *was)
{
    assert_int_equal(getrlimit(resource, was), 0);
    struct rlimit now = {to, was->rlim_max};
    assert_int_equal(setrlimit(resource, &now), 0);
}

/* Each of the first descriptors that an admission needs is missing once. */
static void without_descriptors_it_is_refused(void **state)
{
    (void)state;
    struct peer neighbour = join();
    struct rlimit was;
    uint32_t refused = 0, before = descriptors();
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    for (rlim_t room = 1; room < 6; room++) {
        struct llm_reject refusal = {0};
        limit(RLIMIT_NOFILE, (rlim_t)pair[1] + room, &was);
        int slot = admit(pair[0], &refusal);
        setrlimit(RLIMIT_NOFILE, &was);
        if (slot >= 0) {
            clients_leave(&rig.clients, (uint32_t)slot);
            let_leave((uint32_t)slot);
            break;
        }
        refused++;
        assert_int_equal(refusal.code, slot);
        assert_true(strstr(refusal.text, "the engine has no memory for this client") ||
                    strstr(refusal.text, "the engine cannot make this client's bell"));
        assert_int_equal(descriptors(), before + 2);
        assert_int_equal(rig.clients.n_arriving, 0);
    }
    assert_in_range(refused, 3, 4);
    close(pair[1]);
    request(&neighbour, LLM_OP_NOP, 1, 0);
    step();
    take(&neighbour);
    assert_int_equal(neighbour.finals, 1);
    part(&neighbour);
}

/* The size of a segment is more than the system grants to a file. */
static void without_memory_it_is_refused(void **state)
{
    (void)state;
    struct rlimit was;
    uint32_t before = descriptors();
    signal(SIGXFSZ, SIG_IGN);
    limit(RLIMIT_FSIZE, 4 << 20, &was);
    struct guest g = knock(&large); /* its up would fit, its down not */
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(g.slot, -ENOMEM);
    assert_int_equal(g.refusal.code, -ENOMEM);
    assert_non_null(strstr(g.refusal.text, "no memory for this client"));
    assert_int_equal(descriptors(), before + 2);
    assert_int_equal(rig.clients.n_arriving, 0);
    assert_int_equal(clients_admit(&rig.clients, g.ours, &large, &g.refusal), 0);
    close(g.theirs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENARIO(a_large_one_comes_piece_by_piece),
        SCENARIO(who_dies_while_it_arrives_leaves_nothing),
        SCENARIO(who_arrives_at_the_end_is_told),
        SCENARIO(without_descriptors_it_is_refused),
        SCENARIO(without_memory_it_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
