/* fuzz_rings.c - libFuzzer: a hostile client writes what it likes into its `up` segment, between
 * any two calls of the engine's io loop; a second client is honest. Whatever the first one does:
 *
 *   1. the engine reads and writes inside the segments (ASan: they are blocks of their exact size),
 *      and nothing of a client that has left;
 *   2. its private cursors keep their order, and a final always has room;
 *   3. every entry that was taken brings exactly its finals, to everyone;
 *   4. the honest client is never evicted, and its tokens are those of the model;
 *   5. when nobody has work, and the sessions have expired, no KV block is missing.
 *
 * Driven are the loop's own calls (appliance/clients.h) over the scheduling core and a backend that
 * checks every step (tests/support/fake_gpu.h), with prefix cache, sessions and quotas; each client
 * is a user of its own. The engine's clock stands still until the end. Failure test (8): cursors
 * start at 0 or just below 2^32. Input: data[0] says where the cursors start, then
 * commands of a byte each with their operands (tape.h); see enum command.
 */
#include "../../appliance/clients.h"
#include "../support/fake_gpu.h"
#include "tape.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SQ = 8, CQ = 16, M = 5, ARENA = 400, MAX_LEN = 64, VOCAB = 97, BLOCKS = 20 };
enum {
    MAX_UNREAD = 2 * MAX_LEN, /* what the honest client may have, who reads seldom */
    MAP_BYTES = 37
};
enum { HOSTILE, HONEST, CLIENTS };

enum command {
    C_CURSOR,   /* u8 which | how << 2, u32 value: writes sq_tail, cq_head or cq_wait */
    C_SCRIBBLE, /* u16 offset, u32 value: any word of the up segment */
    C_BYTE,     /* u16 offset, u8 value: any byte of it */
    C_ENTRY,    /* a whole entry at the tail, its usual fields from the tape; the tail moves on */
    C_TOKENS,   /* u8 at, u8 n, u8 first: ids into the arena */
    C_PUBLISH,  /* u8 n: sq_tail is that much further */
    C_DRAIN,    /* u8 n: cq_head is that much further, or where the engine's tail is */
    C_SWEEP,
    C_STEP,
    C_PUBLISH_ALL, /* the engine's clients_publish */
    C_SLEEP,       /* arms, rescans, disarms */
    C_HONEST,      /* the honest client submits what fits */
    C_POLL,        /* ... takes what came */
    C_LEAVE,       /* the hostile client dies */
    C_JOIN,        /* ... and comes again, if its slot is free */
    C_GPU_FAILS,   /* the next step fails on the device */
    COMMANDS
};

/* One client's memory, and what it is owed by the entries that the engine has taken. */
struct side {
    struct llm_up *up;
    struct llm_down *down;
    uint64_t owed, finals, seen; /* seen: cursor, completions looked at */
};

struct world {
    struct tape tape;
    struct fake_gpu gpu;
    struct engine *engine;
    struct clients cs;
    struct stats stats;
    struct board board;
    struct llm_pulse *pulse;
    struct side side[CLIENTS];
    uint32_t start; /* of the cursors */
    uint64_t now_ns;
    bool gpu_failed;
    /* the honest client: one request at a time */
    struct ring_client ring;
    struct llm_sqe request;
    int32_t history[MAX_LEN];
    uint32_t n_history, n_choices_done;
    bool waiting;
    uint64_t honest_requests;
};

/* ---- seats ---- */

static void set_engine_cursors(struct ring_engine *r, uint32_t start)
{
    r->sq_head = r->sq_tail = start;
    r->cq_head = r->cq_tail = r->cq_published = start;
    order_set(&r->down->sq_head, start);
    order_set(&r->down->cq_tail, start);
}

/* What clients_admit makes, without its system calls. */
static void seat(struct world *w, uint32_t slot)
{
    struct client *c = &w->cs.slots[slot];
    struct side *s = &w->side[slot];
    DEMAND(c->state == CLIENT_FREE);
    *s = (struct side){.up = exact_pages(llm_up_bytes(SQ, ARENA)),
                       .down = exact_pages(llm_down_bytes(CQ)),
                       .seen = w->start};
    uint32_t generation = c->generation;
    *c = (struct client){.state = CLIENT_LIVE, .generation = generation, .socket = -1};
    c->process = c->bell = -1;
    c->up = c->down = SEGMENT_NONE;
    c->uid = slot;
    ring_engine_init(&c->ring, s->up, s->down, SQ, CQ, ARENA, M, slot, generation, 99);
    set_engine_cursors(&c->ring, w->start);
    order_set(&s->up->sq_tail, w->start);
    order_set(&s->up->cq_head, w->start);
    w->cs.n_live++;
}

/* What the loop does with a slot that is LEAVING. From here on the segments are gone. */
static void let_go(struct world *w)
{
    while (w->cs.n_leaving) {
        uint32_t slot = w->cs.leaving[--w->cs.n_leaving];
        w->cs.slots[slot].state = CLIENT_DRAINING;
        clients_free(&w->cs, slot);
        free(w->side[slot].up);
        free(w->side[slot].down);
        w->side[slot] = (struct side){0};
    }
}

static bool live(const struct world *w, uint32_t slot)
{
    return w->cs.slots[slot].state == CLIENT_LIVE;
}

/* ---- opening and closing ---- */

static uint64_t now(void *context)
{
    return ((const struct world *)context)->now_ns;
}

static void open_engine(struct world *w)
{
    static const int32_t end_tokens[] = {5, 11};
    w->board.map = exact_pages(LLM_BOARD_BYTES);
    struct engine_config config = {.max_model_len = MAX_LEN,
                                   .max_num_seqs = 4,
                                   .max_num_batched_tokens = 16,
                                   .max_requests = 12,
                                   .n_blocks = BLOCKS,
                                   .vocab = VOCAB,
                                   .eog = end_tokens,
                                   .n_eog = 2,
                                   .prefix_cache = true,
                                   .max_unread = MAX_UNREAD,
                                   .max_sessions = 3,
                                   .session_idle_ms = 1000,
                                   .quota = {.requests = 8, .sessions = 2, .pinned_blocks = 4},
                                   .clock = now,
                                   .clock_context = w};
    struct clients_config cc = {
        .max_clients = CLIENTS, .welcome.max_len = MAX_LEN, .board = &w->board, .stats = &w->stats};
    struct fail f = {0};
    fake_gpu_open(&w->gpu, VOCAB, BLOCKS, 16, 4, 16);
    DEMAND(!stats_create(&w->stats, NULL) && !clients_create(&w->cs, &cc, &f));
    struct engine_sink sink = clients_sink(&w->cs);
    DEMAND(!engine_create(&w->engine, &config, fake_gpu_ops(), fake_gpu_handle(&w->gpu),
                          w->board.map, &sink, &f));
    clients_attach(&w->cs, w->engine);
    w->cs.high = CLIENTS;
}

static void open_world(struct world *w)
{
    w->start = tape_u8(&w->tape) & 1 ? 0xFFFFFFFAu : 0;
    open_engine(w);
    w->pulse = exact_pages(sizeof *w->pulse);
    seat(w, HOSTILE);
    seat(w, HONEST);
    struct side *s = &w->side[HONEST];
    DEMAND(!ring_client_init(&w->ring, s->up, s->down, w->pulse, SQ, CQ, ARENA, M));
    w->ring.sq_tail = w->ring.cq_head = w->ring.cq_released = w->ring.arena_freed_seq = w->start;
}

static void close_world(struct world *w)
{
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (live(w, i))
            clients_leave(&w->cs, i);
    let_go(w);
    w->now_ns = UINT64_MAX / 2; /* sessions outlive their clients, for a while */
    engine_tick(w->engine, w->now_ns);
    DEMAND(!engine_has_work(w->engine) && w->cs.n_live == 0);
    DEMAND(order_read64(&w->board.map->sessions) == 0);
    DEMAND(order_read64(&w->board.map->kv_blocks_free) == BLOCKS);
    engine_destroy(w->engine);
    fake_gpu_close(&w->gpu);
    clients_destroy(&w->cs);
    stats_destroy(&w->stats);
    free(w->board.map);
    free(w->pulse);
}

/* ---- what must hold ---- */

static void check_cursors(const struct ring_engine *r)
{
    DEMAND(r->sq_tail - r->sq_head <= r->sq_entries);
    DEMAND(r->cq_published - r->cq_head <= r->cq_tail - r->cq_head);
    DEMAND(r->inflight <= r->max_inflight);
    DEMAND(r->cq_tail - r->cq_head + r->inflight <= r->cq_entries);
    DEMAND(r->sq_entries == SQ && r->cq_entries == CQ && r->arena_bytes == ARENA);
}

/* Looks at what was published since, before anybody can overwrite it. */
static void look_at_completions(struct side *s, const struct ring_engine *r)
{
    for (; (uint32_t)s->seen != r->cq_tail; s->seen++) {
        const struct llm_cqe *c = &s->down->entries[s->seen & (CQ - 1)];
        DEMAND(c->seq == (uint32_t)s->seen);
        DEMAND(c->type >= LLM_CQE_TOKENS && c->type <= LLM_CQE_ERROR);
        DEMAND(c->type == LLM_CQE_ERROR ? c->status < 0 : c->status == 0);
        if (c->type != LLM_CQE_TOKENS)
            s->finals++;
        else
            DEMAND(c->count >= 1 && c->count <= LLM_CQE_TOKENS_MAX);
    }
    DEMAND(s->finals <= s->owed && s->owed - s->finals == r->inflight);
}

static void check(struct world *w)
{
    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (!live(w, i))
            continue;
        check_cursors(&w->cs.slots[i].ring);
        look_at_completions(&w->side[i], &w->cs.slots[i].ring);
    }
    DEMAND(live(w, HONEST));
}

/* ---- the engine's turns ---- */

/* Entry that the engine will read at that cursor, or has already read. */
static struct llm_sqe entry_at(const struct world *w, uint32_t slot, uint32_t cursor)
{
    const struct client *c = &w->cs.slots[slot];
    if (c->has_pending && cursor == c->ring.sq_head)
        return c->pending;
    return w->side[slot].up->entries[cursor & (SQ - 1)];
}

/* Every entry that this sweep takes is owed its finals, by what it says, not by the ring's count.
 */
static void sweep(struct world *w)
{
    uint32_t head[CLIENTS];
    struct llm_sqe entry[CLIENTS][SQ];
    for (uint32_t i = 0; i < CLIENTS; i++) {
        head[i] = w->cs.slots[i].ring.sq_head;
        for (uint32_t k = 0; live(w, i) && k < SQ; k++)
            entry[i][k] = entry_at(w, i, head[i] + k);
    }
    clients_sweep(&w->cs);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        uint32_t taken = w->cs.slots[i].ring.sq_head - head[i];
        DEMAND(taken <= SQ);
        for (uint32_t k = 0; live(w, i) && k < taken; k++)
            w->side[i].owed += engine_finals(&entry[i][k]);
    }
    check(w);
    let_go(w);
}

static void step(struct world *w)
{
    if (engine_step(w->engine) < 0)
        w->gpu_failed = true;
    check(w);
}

static void fall_asleep(struct world *w)
{
    ring_arm_all(w->pulse);
    clients_arm(&w->cs);
    clients_disarm(&w->cs);
    ring_disarm_all(w->pulse);
    check(w);
}

/* ---- the hostile client ---- */

static uint32_t up_words(void)
{
    return (uint32_t)(llm_up_bytes(SQ, ARENA) / 4);
}

static void write_cursor(struct world *w)
{
    struct side *s = &w->side[HOSTILE];
    uint8_t how = tape_u8(&w->tape);
    uint32_t value = tape_u32(&w->tape);
    const order_u32 *base = how & 4 ? &s->down->cq_tail : &s->down->sq_head;
    order_u32 *const cursor[] = {&s->up->sq_tail, &s->up->cq_head, &s->up->cq_wait,
                                 &s->up->sq_tail};
    order_set(cursor[how & 3], how & 8 ? order_relaxed(base) + value : value);
}

static void move_tail(struct side *s, uint32_t n)
{
    order_set(&s->up->sq_tail, order_relaxed(&s->up->sq_tail) + n);
}

/* Sessions, cache, priorities, choices of a resumed request, and an option map: its bytes stand at
 * the arena's end, two labels of three tokens unless something else was written there. */
static void write_newer_fields(struct tape *t, struct llm_sqe *e)
{
    uint8_t what = tape_u8(t);
    e->op = tape_u8(t) % (LLM_OP_LAST + 2);
    e->flags = tape_u8(t) % 64;
    e->session = tape_u8(t) % 4;
    e->target = what & 1 ? LLM_SESSION_ALL : tape_u8(t);
    e->priority = what & 2 ? tape_u8(t) : 0;
    e->output_from = what & 4 ? tape_u8(t) : 0;
    e->first_choice = what & 8 ? tape_u8(t) : 0;
    e->deadline_us = what & 16 ? tape_u32(t) : 0;
    e->timeout_ms = what & 32 ? tape_u32(t) : 0;
    e->options_len = what & 64 ? MAP_BYTES : what & 128 ? tape_u8(t) : 0;
    e->options_off = what & 64 ? ARENA - MAP_BYTES : what & 128 ? tape_u16(t) : 0;
}

static void write_map(struct side *s)
{
    static const uint8_t map[MAP_BYTES] = "\x81\xa6labels\x92"
                                          "\xc4\x0c\1\0\0\0\2\0\0\0\3\0\0\0"
                                          "\xc4\x0c\4\0\0\0\x05\0\0\0\6\0\0";
    memcpy((uint8_t *)&s->up->entries[SQ] + ARENA - MAP_BYTES, map, MAP_BYTES);
}

static void write_entry(struct world *w)
{
    struct side *s = &w->side[HOSTILE];
    struct tape *t = &w->tape;
    uint32_t tail = order_relaxed(&s->up->sq_tail);
    uint8_t kind = tape_u8(t);
    struct llm_sqe e = {.seq = tail, .op = kind & 3, .flags = kind >> 2 & 3, .top_p = 1};
    e.repetition = 1;
    e.user_data = tape_u8(t);
    e.tokens_off = (uint32_t)tape_u8(t) * 4;
    e.tokens_len = tape_u8(t);
    e.max_tokens = tape_u8(t);
    e.choices = kind & 16 ? tape_u8(t) : 1;
    e.target = e.op == LLM_OP_CANCEL ? tape_u8(t) : 0;
    e.temperature = kind & 32 ? 1.0f : 0.0f;
    if (kind & 64)
        write_newer_fields(t, &e);
    if (kind & 128)
        write_map(s);
    s->up->entries[tail & (SQ - 1)] = e;
    move_tail(s, 1);
}

static void write_tokens(struct world *w)
{
    uint32_t at = tape_u8(&w->tape), n = tape_u8(&w->tape), first = tape_u8(&w->tape);
    int32_t *arena = (int32_t *)(void *)&w->side[HOSTILE].up->entries[SQ];
    for (uint32_t i = 0; i < n; i++)
        arena[(at + i) % (ARENA / 4)] = (int32_t)((first + i) % VOCAB);
}

static void drain(struct world *w)
{
    struct side *s = &w->side[HOSTILE];
    uint8_t n = tape_u8(&w->tape);
    uint32_t head = order_relaxed(&s->up->cq_head);
    order_set(&s->up->cq_head, n ? head + n : order_relaxed(&s->down->cq_tail));
}

static void write_word(struct world *w)
{
    uint32_t at = tape_u16(&w->tape) % up_words(), value = tape_u32(&w->tape);
    memcpy((uint8_t *)w->side[HOSTILE].up + (size_t)at * 4, &value, 4);
}

static void write_byte(struct world *w)
{
    uint32_t at = tape_u16(&w->tape) % (up_words() * 4);
    ((uint8_t *)w->side[HOSTILE].up)[at] = tape_u8(&w->tape);
}

static void hostile(struct world *w, enum command c)
{
    if (!live(w, HOSTILE))
        return;
    switch (c) {
    case C_CURSOR:
        write_cursor(w);
        break;
    case C_SCRIBBLE:
        write_word(w);
        break;
    case C_BYTE:
        write_byte(w);
        break;
    case C_ENTRY:
        write_entry(w);
        break;
    case C_TOKENS:
        write_tokens(w);
        break;
    case C_PUBLISH:
        move_tail(&w->side[HOSTILE], tape_u8(&w->tape));
        break;
    case C_DRAIN:
        drain(w);
        break;
    default:
        clients_leave(&w->cs, HOSTILE);
        let_go(w);
    }
}

/* ---- the honest client ---- */

static void honest_submits(struct world *w)
{
    if (w->waiting)
        return;
    uint64_t id = ++w->honest_requests;
    uint32_t n = 1 + (uint32_t)(id * 7 % 40);
    int32_t *tokens = ring_reserve(&w->ring, n);
    struct llm_sqe *e = tokens ? ring_next(&w->ring, 2) : NULL;
    DEMAND(e); /* with one request at a time there is always room */
    for (uint32_t i = 0; i < n; i++)
        w->history[i] = tokens[i] = (int32_t)((id * 31 + i * i) % VOCAB);
    e->op = LLM_OP_GENERATE;
    e->user_data = id;
    e->tokens_off = (uint32_t)((uint8_t *)tokens - w->ring.arena);
    e->tokens_len = n;
    e->max_tokens = 1 + (uint32_t)(id * 5 % (MAX_LEN - n));
    e->choices = 2; /* greedy: both say the same */
    e->top_p = e->repetition = 1;
    w->request = *e;
    w->n_history = n;
    w->n_choices_done = 0;
    w->waiting = true;
    ring_commit(&w->ring, 2);
    ring_submit(&w->ring);
}

/* The model's own words for the request, once for both choices. */
static void think(struct world *w)
{
    struct gpu_sampling greedy = {0};
    uint32_t end = w->request.tokens_len + w->request.max_tokens;
    for (uint32_t n = w->request.tokens_len; n < end; n++) {
        w->history[n] = fake_model_next(w->history, n, &greedy, VOCAB);
        w->n_history = n + 1;
        if (w->history[n] == 5 || w->history[n] == 11)
            return;
    }
}

static void honest_takes(struct world *w, const struct llm_cqe *c)
{
    DEMAND(w->waiting && c->user_data == w->request.user_data && c->choice < 2);
    if (w->n_history == w->request.tokens_len)
        think(w);
    if (c->type == LLM_CQE_TOKENS) {
        uint32_t at = w->request.tokens_len + c->position;
        DEMAND(at + c->count <= w->n_history);
        DEMAND(!memcmp(c->tokens, w->history + at, c->count * sizeof *c->tokens));
        return;
    }
    if (c->type == LLM_CQE_ERROR)
        DEMAND(w->gpu_failed && c->status == LLM_EENGINE);
    else
        DEMAND(w->request.tokens_len + c->position == w->n_history);
    w->waiting = ++w->n_choices_done < 2;
}

static void honest_polls(struct world *w)
{
    struct llm_cqe c;
    struct llm_result result;
    while (ring_poll(&w->ring, &c, &result))
        honest_takes(w, &c);
    DEMAND(!w->ring.broken);
    ring_drained(&w->ring);
}

/* ---- a run ---- */

static void perform(struct world *w, enum command c)
{
    switch (c) {
    case C_SWEEP:
        sweep(w);
        break;
    case C_STEP:
        step(w);
        break;
    case C_PUBLISH_ALL:
        clients_publish(&w->cs);
        break;
    case C_SLEEP:
        fall_asleep(w);
        break;
    case C_HONEST:
        honest_submits(w);
        break;
    case C_POLL:
        honest_polls(w);
        break;
    case C_JOIN:
        if (!live(w, HOSTILE))
            seat(w, HOSTILE);
        break;
    case C_GPU_FAILS:
        w->gpu.fail_wait_at = w->gpu.steps + 1;
        break;
    default:
        hostile(w, c);
    }
}

/* The hostile client reads at last, so that its own requests can end. */
static bool settle_once(struct world *w)
{
    sweep(w);
    step(w);
    clients_publish(&w->cs);
    honest_polls(w);
    bool work = engine_has_work(w->engine) || w->waiting;
    for (uint32_t i = 0; i < CLIENTS; i++)
        work |= live(w, i) && (engine_holds(w->engine, i) || w->cs.slots[i].has_pending ||
                               w->cs.slots[i].ring.sq_head != w->cs.slots[i].ring.sq_tail);
    if (live(w, HOSTILE))
        order_set(&w->side[HOSTILE].up->cq_head, w->cs.slots[HOSTILE].ring.cq_published);
    return work;
}

static void settle(struct world *w)
{
    for (int rounds = 0; settle_once(w); rounds++)
        DEMAND(rounds < 10000);
    for (uint32_t i = 0; i < CLIENTS; i++)
        DEMAND(!live(w, i) || w->cs.slots[i].ring.inflight == 0);
    DEMAND(!w->waiting);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    memset(&w, 0, sizeof w);
    w.tape = (struct tape){data, size};
    open_world(&w);
    honest_submits(&w);
    while (w.tape.left)
        perform(&w, (enum command)(tape_u8(&w.tape) % COMMANDS));
    settle(&w);
    close_world(&w);
    return 0;
}
