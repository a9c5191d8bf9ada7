/* clients_rig.h - clients between real rings and the real core, over a fake backend, all in one
 * thread: so that what waits, who is held up and who is not can be said exactly.
 */
#ifndef LLMD_TESTS_CLIENTS_RIG_H
#define LLMD_TESTS_CLIENTS_RIG_H

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

static uint32_t inflight = 128;    /* what the next peer agrees on */
static struct clients_quota quota; /* of the next rig */

static inline int open_rig(void **state)
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
                               .quota = quota,
                               .board = &rig.board,
                               .stats = &rig.stats};
    assert_int_equal(clients_create(&rig.clients, &c, &f), 0);
    struct engine_config e = {.max_model_len = MAX_LEN,
                              .max_num_seqs = 8,
                              .max_num_batched_tokens = 32,
                              .max_requests = MAX_REQUESTS,
                              .n_blocks = 64,
                              .vocab = VOCAB,
                              .prefix_cache = true};
    struct engine_sink sink = clients_sink(&rig.clients);
    if (engine_create(&rig.engine, &e, fake_gpu_ops(), fake_gpu_handle(&rig.gpu), rig.board.map,
                      &sink, &f))
        fail_msg("%s", f.text);
    clients_attach(&rig.clients, rig.engine);
    return 0;
}

static inline int close_rig(void **state)
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

static inline int admit(int socket, struct llm_reject *refusal)
{
    const struct llm_hello hello = {.sq_entries = 256,
                                    .cq_entries = 256,
                                    .arena_bytes = 65536,
                                    .max_inflight = inflight,
                                    .name = "peer"};
    return clients_admit(&rig.clients, socket, &hello, refusal);
}

static inline struct peer join(void)
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

static inline void part(struct peer *p)
{
    munmap(p->up, llm_up_bytes(256, 65536));
    munmap(p->down, llm_down_bytes(256));
    munmap(p->pulse, LLM_HEADER_BYTES);
    close(p->socket);
}

/* The engine's side of a client's end, as the loop does it. */
static inline void let_leave(uint32_t slot)
{
    assert_int_equal(rig.clients.slots[slot].state, CLIENT_LEAVING);
    assert_int_equal(rig.clients.n_leaving, 1);
    assert_int_equal(rig.clients.leaving[0], slot);
    rig.clients.n_leaving = 0;
    rig.clients.slots[slot].state = CLIENT_DRAINING;
    clients_free(&rig.clients, slot);
}

static inline void request(struct peer *p, uint8_t op, uint16_t choices, uint32_t max_tokens)
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

static inline void take(struct peer *p)
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

static inline void sweep(void)
{
    clients_sweep(&rig.clients);
    clients_publish(&rig.clients);
}

static inline void step(void)
{
    sweep();
    if (engine_has_work(rig.engine))
        assert_int_equal(engine_step(rig.engine), 0);
    clients_publish(&rig.clients);
}

static inline uint32_t sequences(void)
{
    return engine_running(rig.engine) + engine_waiting(rig.engine);
}

#define SCENARIO(f) cmocka_unit_test_setup_teardown(f, open_rig, close_rig)

#endif
