/* fuzz_completions.c - libFuzzer: a broken engine writes what it likes into `down` and the pulse,
 * between any two calls of the client library. Whatever it writes:
 *
 *   1. the library reads and writes inside the segments (ASan: they are blocks of their exact
 * size);
 *   2. its cursors keep their order and its books agree (handle.h, invariant 2);
 *   3. an event belongs to a request that is in flight and says nothing out of range;
 *   4. every choice brings exactly one final, when the end comes at the latest.
 *
 * Failure test (8), the client's side: cursors start at 0 or just below 2^32.
 *
 * The handle is built here as llm_connect builds it, but for the handshake. Input: data[0] says
 * where the cursors start, whether llm_resume was called, and whether there is room for candidates;
 * then commands of a byte each with their operands (tape.h); see enum command.
 */
#include <errno.h>
#include <sys/socket.h>

#include "../../client/handle.h"
#include "tape.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SQ = 8, CQ = 16, M = 6, ARENA = 400, VOCAB = 97, MAX_LEN = 90, IDS = 64, TOP = 3 };

enum command {
    C_SUBMIT,  /* u8 id, u8 tokens, u8 choices: what is refused is refused */
    C_RESERVE, /* u8 tokens: written in place by the next submit */
    C_CANCEL,  /* u8 id */
    C_POLL,
    C_ARM,        /* as before a sleep on the descriptor */
    C_TAKE,       /* the engine takes all entries, as an honest one does */
    C_COMPLETION, /* the engine puts one that may be right: u8 kind, u8 id, u8 position */
    C_PUBLISH,    /* u8 n: cq_tail is that much further, or as many as were put */
    C_CURSOR,     /* u8 which | how << 2, u32 value: sq_head, cq_tail, cq_held or evicted */
    C_SCRIBBLE,   /* u16 offset, u32 value: any word of down */
    C_BYTE,       /* u16 offset, u8 value: any byte of it */
    C_PULSE,      /* u8 offset, u32 value: any word of the pulse */
    COMMANDS
};

struct request {
    bool sent;
    uint32_t choices;
    uint64_t finals; /* bit i: the final of choice i has come */
};

struct world {
    struct tape tape;
    struct llm_client c;
    struct llm_up *up;
    struct llm_down *down;
    uint64_t down_bytes;
    uint32_t top;
    struct llm_pulse *pulse;
    uint32_t put; /* the engine's cursor: completions written */
    int32_t *reserved;
    uint32_t reserved_tokens;
    struct request request[IDS]; /* by id; 0 is not used */
};

/* ---- opening and closing ---- */

/* The engine lives and says nothing: one pair for all runs. */
static int silent_socket(void)
{
    static int pair[2] = {-1, -1};
    if (pair[0] < 0)
        DEMAND(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
    return pair[0];
}

static void open_world(struct world *w)
{
    struct llm_client *c = &w->c;
    uint8_t how = tape_u8(&w->tape);
    uint32_t start = how & 1 ? 0xFFFFFFFAu : 0;
    w->up = exact_pages(llm_up_bytes(SQ, ARENA));
    w->top = how & 4 ? TOP : 0;
    w->down_bytes = llm_down_bytes(CQ) + llm_top_bytes(CQ, w->top);
    w->down = exact_pages(w->down_bytes);
    w->pulse = exact_pages(sizeof *w->pulse);
    struct ring_engine honest;
    ring_engine_init(&honest, w->up, w->down, SQ, CQ, ARENA, M, 0, 1, 99);
    ring_engine_top(&honest, w->top);
    DEMAND(!ring_client_init(&c->ring, w->up, w->down, w->pulse, SQ, CQ, ARENA, M));
    DEMAND(!ring_client_top(&c->ring, w->top));
    DEMAND(!inflight_create(&c->inflight, M));
    c->ring.sq_tail = c->ring.cq_head = c->ring.cq_released = c->ring.arena_freed_seq = start;
    order_set(&w->down->sq_head, start);
    order_set(&w->down->cq_tail, start);
    w->put = start;
    c->next_id = 1;
    c->seeds.key[0] = 1;
    c->socket = c->bell = silent_socket();
    c->descriptor = -1;
    c->limits = (struct llm_limits){.vocab = VOCAB,
                                    .max_model_len = MAX_LEN,
                                    .max_inflight = M,
                                    .arena_bytes = ARENA,
                                    .sq_entries = SQ,
                                    .cq_entries = CQ,
                                    .abi_minor = LLM_ABI_MINOR};
    if (how & 2)
        DEMAND(!llm_resume(c, 0, 0));
}

static void close_world(struct world *w)
{
    resume_destroy(&w->c);
    inflight_destroy(&w->c.inflight);
    free(w->up);
    free(w->down);
    free(w->pulse);
}

/* ---- what must hold ---- */

static void check(const struct world *w)
{
    const struct ring_client *r = &w->c.ring;
    DEMAND(r->sq_entries == SQ && r->cq_entries == CQ && r->arena_bytes == ARENA);
    DEMAND(r->sq_tail - r->arena_freed_seq <= SQ);
    DEMAND(r->cq_head - r->cq_released <= CQ);
    DEMAND(r->inflight <= M);
    DEMAND(w->c.ended || r->broken || w->c.owed + w->c.cancels == r->inflight);
}

static void take_final(struct world *w, const struct llm_event *e)
{
    struct request *q = &w->request[e->id];
    DEMAND(!(q->finals >> e->choice & 1));
    q->finals |= 1ull << e->choice;
    if (q->finals == UINT64_MAX >> (64 - q->choices))
        q->sent = false;
}

/* Ids of the vocabulary, of the first token of an event alone. */
static void take_candidates(const struct world *w, const struct llm_event *e)
{
    struct llm_candidate top[TOP + 1];
    uint32_t n = llm_event_top(&w->c, 0, top, TOP + 1);
    DEMAND(n <= w->top && (!n || e->n_tokens == 1));
    DEMAND(!llm_event_top(&w->c, 1, top + n, TOP + 1 - n));
    for (uint32_t i = 0; i < n; i++)
        DEMAND(top[i].token >= 0 && top[i].token < VOCAB);
}

static void take_event(struct world *w, const struct llm_event *e)
{
    DEMAND(e->id > 0 && e->id < IDS && w->request[e->id].sent);
    DEMAND(e->choice < w->request[e->id].choices);
    DEMAND(e->n_tokens <= LLM_CQE_TOKENS_MAX);
    DEMAND((e->type == LLM_EVENT_TOKENS) == (e->n_tokens > 0));
    DEMAND((e->type == LLM_EVENT_ERROR) == (e->status < 0));
    DEMAND(e->type >= LLM_EVENT_TOKENS && e->type <= LLM_EVENT_ERROR);
    take_candidates(w, e);
    if (e->type == LLM_EVENT_TOKENS)
        DEMAND(!(w->request[e->id].finals >> e->choice & 1));
    else
        take_final(w, e);
}

/* ---- the client ---- */

static void submit(struct world *w)
{
    static const int32_t prompt[ARENA];
    uint8_t id = tape_u8(&w->tape) % IDS, n = tape_u8(&w->tape), choices = tape_u8(&w->tape);
    struct llm_request r = LLM_REQUEST_INIT;
    r.user_data = id ? id : 1;
    r.tokens = w->reserved ? w->reserved : prompt;
    r.n_tokens = w->reserved ? w->reserved_tokens : n;
    r.op = choices & 0x40 ? LLM_OP_SCORE : choices & 0x80 ? LLM_OP_NOP : LLM_OP_GENERATE;
    if (r.op == LLM_OP_NOP)
        r.n_tokens = 0;
    r.choices = choices & 7;
    r.max_tokens = 4;
    r.seed = 1;
    struct request *q = &w->request[r.user_data];
    bool sent = q->sent;
    uint64_t got;
    int rc = llm_submit(&w->c, &r, &got);
    DEMAND(rc < 0 || (!sent && got == r.user_data));
    if (rc == 0)
        *q = (struct request){.sent = true, .choices = r.op == LLM_OP_GENERATE ? r.choices : 1};
    if (rc == 0 || rc != -EAGAIN)
        w->reserved = NULL;
}

static void reserve(struct world *w)
{
    uint32_t n = tape_u8(&w->tape);
    w->reserved = llm_reserve(&w->c, n);
    w->reserved_tokens = n;
    if (w->reserved) /* ours to write, every token of it */
        memset(w->reserved, 0, n * sizeof *w->reserved);
}

static int poll_all(struct world *w)
{
    struct llm_event e;
    int rc;
    for (int i = 0; (rc = llm_poll(&w->c, &e)) > 0; i++) {
        DEMAND(i < 100000);
        take_event(w, &e);
        check(w);
    }
    return rc;
}

/* ---- the engine ---- */

static void take_entries(struct world *w)
{
    order_set(&w->down->sq_head, order_relaxed(&w->up->sq_tail));
}

/* Mostly right, so that much happens before the client has had enough. */
static void put_completion(struct world *w)
{
    static const uint16_t counts[] = {1, 2, 3, 4, 1, 0, 5, 7};
    static const uint32_t choices[] = {0, 1, 2, 3, 4, 5, 63, 64};
    uint8_t kind = tape_u8(&w->tape), id = tape_u8(&w->tape), position = tape_u8(&w->tape);
    struct llm_cqe c = {.user_data = id % IDS, .seq = w->put, .type = 1 + (kind & 3) % 3};
    c.count = c.type == LLM_CQE_TOKENS ? counts[kind >> 2 & 7] : 0;
    c.status = c.type == LLM_CQE_ERROR ? -(kind >> 2 & 7) : 0;
    c.choice = choices[kind >> 5];
    c.flags = position & (LLM_CQE_HAS_LOGPROBS | LLM_CQE_HAS_TOP);
    c.position = position;
    w->down->entries[w->put++ & (CQ - 1)] = c;
}

static void publish(struct world *w)
{
    uint8_t n = tape_u8(&w->tape);
    order_set(&w->down->cq_tail, n ? order_relaxed(&w->down->cq_tail) + n : w->put);
}

static void write_cursor(struct world *w)
{
    uint8_t how = tape_u8(&w->tape);
    uint32_t value = tape_u32(&w->tape);
    const order_u32 *base = how & 4 ? &w->up->cq_head : &w->up->sq_tail;
    order_u32 *const cursor[] = {&w->down->sq_head, &w->down->cq_tail, &w->down->cq_held,
                                 &w->down->evicted};
    order_set(cursor[how & 3], how & 8 ? order_relaxed(base) + value : value);
}

static void write_word(struct world *w)
{
    uint32_t at = tape_u16(&w->tape) % (uint32_t)(w->down_bytes / 4);
    uint32_t value = tape_u32(&w->tape);
    memcpy((uint8_t *)w->down + (size_t)at * 4, &value, 4);
}

static void write_byte(struct world *w)
{
    uint32_t at = tape_u16(&w->tape) % (uint32_t)w->down_bytes;
    ((uint8_t *)w->down)[at] = tape_u8(&w->tape);
}

static void write_pulse(struct world *w)
{
    uint32_t at = tape_u8(&w->tape) % (uint32_t)(sizeof *w->pulse / 4);
    uint32_t value = tape_u32(&w->tape);
    memcpy((uint8_t *)w->pulse + (size_t)at * 4, &value, 4);
}

/* ---- a run ---- */

static void engine_does(struct world *w, enum command c)
{
    switch (c) {
    case C_TAKE:
        take_entries(w);
        break;
    case C_COMPLETION:
        put_completion(w);
        break;
    case C_PUBLISH:
        publish(w);
        break;
    case C_CURSOR:
        write_cursor(w);
        break;
    case C_SCRIBBLE:
        write_word(w);
        break;
    case C_BYTE:
        write_byte(w);
        break;
    default:
        write_pulse(w);
    }
}

static void perform(struct world *w, enum command c)
{
    switch (c) {
    case C_SUBMIT:
        submit(w);
        break;
    case C_RESERVE:
        reserve(w);
        break;
    case C_CANCEL:
        llm_cancel(&w->c, tape_u8(&w->tape) % IDS);
        break;
    case C_POLL:
        poll_all(w);
        break;
    case C_ARM:
        llm_arm(&w->c);
        break;
    default:
        engine_does(w, c);
    }
    check(w);
}

/* Now the engine ends, and every request that is not answered is told. */
static void settle(struct world *w)
{
    order_set(&w->down->evicted, 1);
    poll_all(w); /* one that was armed asks its socket first, and ours is silent */
    DEMAND(poll_all(w) < 0);
    DEMAND(!w->c.owed);
    for (uint32_t i = 0; i < IDS; i++)
        DEMAND(!w->request[i].sent);
    struct llm_event e;
    DEMAND(llm_poll(&w->c, &e) < 0 && *llm_errmsg(&w->c));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    memset(&w, 0, sizeof w);
    w.tape = (struct tape){data, size};
    open_world(&w);
    while (w.tape.left)
        perform(&w, (enum command)(tape_u8(&w.tape) % COMMANDS));
    settle(&w);
    close_world(&w);
    return 0;
}
