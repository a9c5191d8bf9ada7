/* test_clients.c - clients between real rings and the real core, over a fake backend, all in one
 * thread: so that what waits, who is held up and who is not can be said exactly.
 */
#include "../../appliance/clients.h"
#include "../support/fake_gpu.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CLIENTS = 4, MAX_REQUESTS = 104, VOCAB = 97, MAX_LEN = 64 };

static struct {
    struct fake_gpu gpu;
    struct engine *engine;
    struct clients clients;
    struct board board;
    struct stats stats;
    struct segment pulse, vocab;
} rig;

static int open_rig(void **state)
{
    (void)state;
    struct fail f = {0};
    fake_gpu_open(&rig.gpu, VOCAB, 64, 32, 8, 32);
    rig.board.map = aligned_alloc(4096, LLM_BOARD_BYTES);
    memset(rig.board.map, 0, LLM_BOARD_BYTES);
    assert_int_equal(stats_create(&rig.stats, rig.board.map), 0);
    assert_int_equal(segment_to_client(&rig.pulse, "test-pulse", LLM_HEADER_BYTES, &f), 0);
    assert_int_equal(segment_frozen(&rig.vocab, "test-vocab", "none", 4, &f), 0);
    struct clients_config c = {.max_clients = MAX_CLIENTS,
                               .welcome = {.max_len = MAX_LEN, .vocab = VOCAB, .epoch = 9},
                               .pulse_fd = rig.pulse.fd,
                               .vocab_fd = rig.vocab.fd,
                               .board = &rig.board,
                               .stats = &rig.stats};
    assert_int_equal(clients_create(&rig.clients, &c, &f), 0);
    struct engine_config e = {.max_model_len = MAX_LEN,
                              .max_num_seqs = 8,
                              .max_num_batched_tokens = 32,
                              .max_requests = MAX_REQUESTS,
                              .n_blocks = 64,
                              .vocab = VOCAB};
    struct engine_sink sink = clients_sink(&rig.clients);
    if (engine_create(&rig.engine, &e, fake_gpu_ops(), fake_gpu_handle(&rig.gpu), rig.board.map,
                      &sink, &f))
        fail_msg("%s", f.text);
    clients_attach(&rig.clients, rig.engine);
    return 0;
}

static int close_rig(void **state)
{
    (void)state;
    clients_destroy(&rig.clients);
    engine_destroy(rig.engine);
    stats_destroy(&rig.stats);
    segment_free(&rig.pulse);
    segment_free(&rig.vocab);
    free(rig.board.map);
    fake_gpu_close(&rig.gpu);
    return 0;
}

/* ---- the other side ---- */

struct peer {
    int socket;
    uint32_t slot;
    struct llm_up *up;
    struct llm_down *down;
    struct llm_pulse *pulse;
    struct ring_client ring;
    uint32_t sent, tokens, finals, errors;
    uint64_t last_done; /* user_data */
};

static uint32_t inflight = 128; /* what the next peer agrees on */

static int admit(int socket, struct llm_reject *refusal)
{
    const struct llm_hello hello = {.sq_entries = 256,
                                    .cq_entries = 256,
                                    .arena_bytes = 65536,
                                    .max_inflight = inflight,
                                    .name = "peer"};
    return clients_admit(&rig.clients, socket, &hello, refusal);
}

static struct peer join(void)
{
    struct peer p = {0};
    struct llm_reject refusal = {0};
    struct llm_message m;
    int pair[2], fds[LLM_CONTROL_FDS], n = LLM_CONTROL_FDS;
    uint8_t packet[LLM_CONTROL_MAX];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    int slot = admit(pair[0], &refusal);
    if (slot < 0)
        fail_msg("%s", refusal.text);
    int bytes = control_receive(pair[1], packet, sizeof packet, fds, &n);
    assert_true(bytes > 0);
    assert_int_equal(n, LLM_CONTROL_FDS);
    assert_int_equal(control_decode(packet, (size_t)bytes, &m), 0);
    assert_int_equal(m.welcome.client, slot);
    p.socket = pair[1];
    p.slot = (uint32_t)slot;
    p.up = mmap(NULL, llm_up_bytes(256, 65536), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    p.down = mmap(NULL, llm_down_bytes(256), PROT_READ, MAP_SHARED, fds[1], 0);
    p.pulse = mmap(NULL, LLM_HEADER_BYTES, PROT_READ, MAP_SHARED, fds[2], 0);
    assert_true(p.up != MAP_FAILED && p.down != MAP_FAILED && p.pulse != MAP_FAILED);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    assert_int_equal(ring_client_init(&p.ring, p.up, p.down, p.pulse, 256, 256, 65536, inflight),
                     0);
    return p;
}

static void part(struct peer *p)
{
    munmap(p->up, llm_up_bytes(256, 65536));
    munmap(p->down, llm_down_bytes(256));
    munmap(p->pulse, LLM_HEADER_BYTES);
    close(p->socket);
}

/* The engine's side of a client's end, as the loop does it. */
static void let_leave(uint32_t slot)
{
    assert_int_equal(rig.clients.slots[slot].state, CLIENT_LEAVING);
    assert_int_equal(rig.clients.n_leaving, 1);
    assert_int_equal(rig.clients.leaving[0], slot);
    rig.clients.n_leaving = 0;
    rig.clients.slots[slot].state = CLIENT_DRAINING;
    clients_free(&rig.clients, slot);
}

static void request(struct peer *p, uint8_t op, uint16_t choices, uint32_t max_tokens)
{
    uint32_t n = op == LLM_OP_GENERATE ? 4 : 0;
    int32_t *tokens = n ? ring_reserve(&p->ring, n) : NULL;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(10 + i);
    struct llm_sqe *q = ring_next(&p->ring, choices);
    assert_non_null(q);
    q->user_data = ++p->sent;
    q->op = op;
    q->flags = LLM_SQE_IGNORE_EOS * (op == LLM_OP_GENERATE);
    q->tokens_off = n ? (uint32_t)((uint8_t *)tokens - p->ring.arena) : 0;
    q->tokens_len = n;
    q->max_tokens = op == LLM_OP_GENERATE ? max_tokens : 0;
    q->choices = op == LLM_OP_GENERATE ? choices : 0;
    q->top_p = 1;
    q->repetition = 1;
    ring_commit(&p->ring, choices);
    ring_submit(&p->ring);
}

static void take(struct peer *p)
{
    struct llm_cqe c;
    struct llm_result r;
    while (ring_poll(&p->ring, &c, &r)) {
        p->tokens += c.type == LLM_CQE_TOKENS ? c.count : 0;
        p->finals += c.type != LLM_CQE_TOKENS;
        p->errors += c.type == LLM_CQE_ERROR;
        if (c.type == LLM_CQE_DONE)
            p->last_done = c.user_data;
    }
    ring_drained(&p->ring);
}

static void sweep(void)
{
    clients_sweep(&rig.clients);
    clients_publish(&rig.clients);
}

static void step(void)
{
    sweep();
    if (engine_has_work(rig.engine))
        assert_int_equal(engine_step(rig.engine), 0);
    clients_publish(&rig.clients);
}

static uint32_t sequences(void)
{
    return engine_running(rig.engine) + engine_waiting(rig.engine);
}

/* ---- scenarios ---- */

static void more_than_the_core_knows_wait_in_the_ring(void **state)
{
    (void)state;
    struct peer a = join(), b = join();
    for (int i = 0; i < 100; i++) {
        request(&a, LLM_OP_GENERATE, 1, 2);
        request(&b, LLM_OP_GENERATE, 1, 2);
    }
    sweep();
    sweep(); /* a sweep takes 64 of a client at most */
    assert_true(sequences() > MAX_REQUESTS / 2 && sequences() <= MAX_REQUESTS);
    assert_false(clients_sweep(&rig.clients)); /* nothing moves: the loop may sleep */
    assert_false(clients_rescan(&rig.clients));
    for (int i = 0; i < 2000 && a.finals + b.finals < 200; i++) {
        step();
        take(&a);
        take(&b);
    }
    assert_int_equal(a.finals, 100);
    assert_int_equal(b.finals, 100);
    assert_int_equal(a.errors + b.errors, 0);
    assert_int_equal(a.tokens, 200);
    assert_int_equal(b.tokens, 200);
    part(&a);
    part(&b);
}

/* A request arrives after it was submitted, and not only when the core finds room for it. */
static void arrival_is_when_the_entry_was_taken(void **state)
{
    (void)state;
    struct peer p = join();
    uint64_t start = test_now_ns(), seen[MAX_REQUESTS + 16] = {0};
    for (int i = 0; i < MAX_REQUESTS + 10; i++)
        request(&p, LLM_OP_GENERATE, 1, 2);
    sweep();
    sweep();
    uint32_t known = sequences();
    assert_true(known < MAX_REQUESTS + 10);
    uint64_t swept = test_now_ns();
    for (int i = 0; i < 2000 && p.finals < MAX_REQUESTS + 10; i++) {
        struct llm_cqe c;
        struct llm_result r;
        step();
        while (ring_poll(&p.ring, &c, &r)) {
            if (c.type != LLM_CQE_DONE)
                continue;
            p.finals++;
            seen[c.user_data] = r.t_arrival;
        }
        ring_drained(&p.ring);
    }
    assert_int_equal(p.finals, MAX_REQUESTS + 10);
    for (uint32_t i = 1; i <= known + 1; i++) /* one more was taken, and waited */
        assert_true(seen[i] >= start && seen[i] <= swept);
    assert_true(seen[known + 2] > swept);
    part(&p);
}

static void a_hoarder_does_not_shut_others_out(void **state)
{
    (void)state;
    struct peer hoarder = join(), other = join();
    for (int i = 0; i < 120; i++)
        request(&hoarder, LLM_OP_GENERATE, 1, 40);
    for (int i = 0; i < 2000; i++)
        step(); /* it takes nothing: its ring is full, its sequences stay */
    assert_false(engine_has_work(rig.engine));
    assert_true(engine_holds(rig.engine, hoarder.slot));
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 5; i++)
            request(&other, LLM_OP_GENERATE, 1, 3);
        for (int i = 0; i < 100; i++) {
            step();
            take(&other);
        }
        assert_int_equal(other.finals, 5 * (round + 1));
    }
    assert_int_equal(other.errors, 0);
    /* and in the end it gets all of its own */
    for (int i = 0; i < 5000 && hoarder.finals < 120; i++) {
        take(&hoarder);
        step();
    }
    assert_int_equal(hoarder.finals, 120);
    assert_int_equal(hoarder.tokens, 120 * 40);
    part(&hoarder);
    part(&other);
}

/* Small things pass while a request waits: they need no sequence. */
static void others_pass_a_waiting_request(void **state)
{
    (void)state;
    struct peer a = join(), b = join();
    request(&a, LLM_OP_GENERATE, 64, 1);
    request(&a, LLM_OP_GENERATE, 64, 1);
    sweep();
    assert_int_equal(sequences(), 64);
    assert_true(rig.clients.slots[a.slot].has_pending);
    request(&b, LLM_OP_NOP, 1, 0);
    sweep();
    take(&b);
    assert_int_equal(b.finals, 1);
    for (int i = 0; i < 200 && a.finals < 128; i++) {
        step();
        take(&a);
    }
    assert_int_equal(a.finals, 128);
    part(&a);
    part(&b);
}

static void who_leaves_gives_everything_back(void **state)
{
    (void)state;
    struct peer a = join(), b = join();
    for (int i = 0; i < 120; i++)
        request(&a, LLM_OP_GENERATE, 1, 40);
    request(&b, LLM_OP_GENERATE, 1, 40);
    for (int i = 0; i < 20; i++)
        step();
    uint32_t generation = rig.clients.slots[a.slot].generation;
    clients_leave(&rig.clients, a.slot);
    assert_true(sequences() <= 1);
    let_leave(a.slot);
    assert_int_equal(rig.clients.slots[a.slot].generation, generation + 1);
    assert_int_equal(order_read64(&rig.board.map->clients), 1);
    part(&a);
    a = join();
    assert_int_equal(a.slot, 0); /* the slot again, and nothing old in it */
    request(&a, LLM_OP_GENERATE, 1, 5);
    for (int i = 0; i < 200; i++) {
        step();
        take(&a);
        take(&b);
    }
    assert_int_equal(a.tokens, 5);
    assert_int_equal(a.finals, 1);
    assert_int_equal(b.tokens, 40);
    assert_int_equal(order_read64(&rig.board.map->kv_blocks_free), 64);
    part(&a);
    part(&b);
}

static void who_breaks_the_protocol_is_told(void **state)
{
    (void)state;
    struct peer a = join();
    request(&a, LLM_OP_GENERATE, 1, 40);
    step();
    order_release(&a.up->cq_head, 77);
    sweep();
    assert_int_equal(order_acquire(&a.down->evicted), 1);
    assert_non_null(strstr(a.down->evict_text, "cq_head"));
    char c;
    assert_int_equal(recv(a.socket, &c, 1, 0), 0); /* its socket has ended */
    assert_int_equal(order_read64(&rig.board.map->evictions), 1);
    assert_non_null(strstr(rig.board.map->errors[0].text, "client 0 (peer) was evicted"));
    let_leave(a.slot);
    part(&a);
}

static void more_finals_than_agreed_is_a_breach(void **state)
{
    (void)state;
    inflight = 8;
    struct peer a = join();
    inflight = 128;
    request(&a, LLM_OP_GENERATE, 8, 1);
    sweep();
    assert_int_equal(order_acquire(&a.down->evicted), 0);
    for (int i = 0; i < 20; i++) {
        step();
        take(&a);
    }
    assert_int_equal(a.finals, 8);
    request(&a, LLM_OP_GENERATE, 1, 1);
    a.up->entries[1].choices = 9;
    sweep();
    assert_int_equal(order_acquire(&a.down->evicted), 1);
    assert_non_null(strstr(a.down->evict_text, "max_inflight"));
    let_leave(a.slot);
    part(&a);
}

static void the_limit_is_stated(void **state)
{
    (void)state;
    struct peer p[MAX_CLIENTS];
    struct llm_reject refusal = {0};
    int pair[2];
    for (int i = 0; i < MAX_CLIENTS; i++)
        p[i] = join();
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    assert_int_equal(admit(pair[0], &refusal), LLM_EBUSY);
    assert_int_equal(refusal.code, LLM_EBUSY);
    assert_non_null(strstr(refusal.text, "4 clients"));
    clients_leave(&rig.clients, p[2].slot);
    assert_int_equal(admit(pair[0], &refusal), LLM_EBUSY); /* not before the slot is free */
    let_leave(p[2].slot);
    assert_int_equal(admit(pair[0], &refusal), p[2].slot);
    close(pair[1]);
    for (int i = 0; i < MAX_CLIENTS; i++)
        part(&p[i]);
}

static void sleepers_are_listed_for_waking(void **state)
{
    (void)state;
    struct peer a = join(), b = join();
    uint32_t expected;
    assert_true(ring_wait_begin(&a.ring, LLM_WAIT_FUTEX, &expected));
    request(&a, LLM_OP_NOP, 1, 0);
    request(&b, LLM_OP_NOP, 1, 0);
    clients_sweep(&rig.clients);
    clients_publish(&rig.clients);
    assert_int_equal(rig.clients.n_wake, 1);
    assert_int_equal(rig.clients.wake[0], a.slot);
    clients_publish(&rig.clients);
    assert_int_equal(rig.clients.n_wake, 0);
    part(&a);
    part(&b);
}

#define SCENARIO(f) cmocka_unit_test_setup_teardown(f, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {SCENARIO(more_than_the_core_knows_wait_in_the_ring),
                                       SCENARIO(arrival_is_when_the_entry_was_taken),
                                       SCENARIO(a_hoarder_does_not_shut_others_out),
                                       SCENARIO(others_pass_a_waiting_request),
                                       SCENARIO(who_leaves_gives_everything_back),
                                       SCENARIO(who_breaks_the_protocol_is_told),
                                       SCENARIO(more_finals_than_agreed_is_a_breach),
                                       SCENARIO(the_limit_is_stated),
                                       SCENARIO(sleepers_are_listed_for_waking)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
