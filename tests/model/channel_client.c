/* channel_client.c - the clients of channel.h: shm/ring_client.c under client/submit.c and
 * client/events.c. */
#include "../../shm/segment.h"
#include "channel.h"

static unsigned index_of(const struct run *x)
{
    return x->thread - CLIENT_THREAD;
}

static struct client_end *end_of(const struct run *x)
{
    return &channel_own(x)->end[index_of(x)];
}

/* Where a function keeps what it stores to the word, or loads from it. By the word, not by the
 * number of the operation: so the model goes on when the table loses one. */
static uint8_t *kept(const struct run *x, enum handshake h, unsigned at)
{
    struct client_end *c = end_of(x);
    switch (channel_of(x)->op[h][at].word) {
    case SQ_TAIL:
        return &c->sq_tail;
    case SQ_HEAD:
        return &c->freed;
    case CQ_HEAD:
        return &c->cq_head;
    case CQ_WAIT:
        return &c->kind;
    default:
        return &c->value;
    }
}

#define DO(h, at) ORDER(h, at, index_of(x), kept(x, h, at))

/* ---- submissions ---- */

static bool sq_full(const struct run *x)
{
    const struct client_end *c = end_of(x);
    return distance(c->sq_tail, c->freed) >= channel_of(x)->sq_entries;
}

/* What ring_next asks first: finals that may still be owed. */
static bool may_submit(const struct run *x)
{
    const struct channel *ch = channel_of(x);
    const struct client_end *c = end_of(x);
    return c->sent < ch->requests[index_of(x)] && c->committed < ch->batch &&
           (ch->silent || c->inflight < ch->max_inflight);
}

static bool write_entry(struct run *x)
{
    const struct channel *ch = channel_of(x);
    struct client_end *c = end_of(x);
    unsigned i = index_of(x), slot = c->sq_tail % ch->sq_entries;
    machine_write(x, ch->sq_entry[i][slot], ch->sq_reads[i][slot], c->sent + 1);
    machine_tell(x, "ring_next", "writes sq[%u] = request %u", slot, c->sent + 1);
    return true;
}

static void ring_commit(struct run *x)
{
    struct client_end *c = end_of(x);
    c->sq_tail = (uint8_t)((c->sq_tail + 1) % CURSORS);
    c->sent++;
    c->committed++;
    c->inflight = (uint8_t)(c->inflight + !channel_of(x)->silent);
}

static enum progress ring_submit(struct run *x)
{
    struct client_end *c = end_of(x);
    BEGIN
    if (c->cq_released != c->cq_head) {
        DO(RING_SUBMIT, 0);
        c->cq_released = c->cq_head;
    }
    c->value = 0;
    DO(RING_SUBMIT, 1);
    DO(RING_SUBMIT, 2);
    DO(RING_SUBMIT, 3);
    if (c->value)
        STEP(kernel_wake_engine(x, index_of(x), OBJECT_SUBMIT, "publish"));
    END
}

/* As many as may be, then one ring_submit. Nothing, if there is no room. */
static enum progress submit(struct run *x)
{
    struct client_end *c = end_of(x);
    BEGIN
    while (may_submit(x)) {
        if (sq_full(x)) {
            DO(RECLAIM, 0);
            if (sq_full(x) && channel_of(x)->silent && !c->committed)
                return BLOCKED; /* nothing else to wait for: the caller tries again and again */
            if (sq_full(x))
                break;
        }
        STEP_IF(channel_data_noticed(x, true), write_entry(x));
        ring_commit(x);
    }
    if (c->committed) {
        CALL(ring_submit(x));
        c->committed = 0;
        c->value = 1;
    } else {
        c->value = 0;
    }
    END
}

/* ---- completions ---- */

/* The event lies in the entry as request * 8 + number. */
static void judge_event(struct run *x, uint8_t value)
{
    const struct channel *ch = channel_of(x);
    struct client_end *c = end_of(x);
    unsigned request = value / 8, event = value % 8;
    machine_check(x, request < c->sent, "a completion of no request");
    if (x->violation)
        return;
    if (event == FINAL) {
        machine_check(x, c->got[request] == ch->tokens, "a final before all tokens, or twice");
        c->finals++;
        c->inflight--;
    } else {
        machine_check(x, event == c->got[request] + 1u,
                      "a token was lost, repeated or out of order");
    }
    c->got[request] = (uint8_t)event;
}

static bool read_completion(struct run *x)
{
    const struct channel *ch = channel_of(x);
    struct client_end *c = end_of(x);
    unsigned i = index_of(x), slot = c->cq_head % ch->cq_entries;
    uint8_t value = machine_read(x, ch->cq_entry[i][slot], ch->cq_reads[i][slot]);
    machine_tell(x, "ring_poll", "reads cq[%u]: request %u, %s %u", slot, value / 8u + 1,
                 value % 8 == FINAL ? "final" : "token", value % 8u);
    judge_event(x, value);
    c->cq_head = (uint8_t)((c->cq_head + 1) % CURSORS);
    return true;
}

/* ring_drained, and the wake that goes with it. */
static enum progress client_release_head(struct run *x)
{
    struct client_end *c = end_of(x);
    bool wrong = channel_faulty(x, FAULT_WAKE_WORD);
    BEGIN
    if (c->cq_released == c->cq_head)
        return DONE;
    DO(RING_DRAINED, 0);
    c->cq_released = c->cq_head;
    c->value = 0;
    if (!channel_faulty(x, FAULT_NO_DRAIN)) {
        DO(RING_DRAINED, 1);
        DO(RING_DRAINED, 2);
    }
    if (c->value)
        STEP(kernel_wake_engine(x, index_of(x), wrong ? OBJECT_SUBMIT : OBJECT_DRAIN,
                                "client_release_head"));
    END
}

/* value: a completion was taken. */
static enum progress take(struct run *x)
{
    struct client_end *c = end_of(x);
    BEGIN
    DO(RING_POLL, 0);
    if (c->value == c->cq_head) {
        c->value = 0;
        if (channel_of(x)->client_wait == WAIT_SPIN && c->cq_released == c->cq_head)
            return BLOCKED; /* it looks again and again */
        return PC = 0, DONE;
    }
    STEP_IF(channel_data_noticed(x, false), read_completion(x));
    if (distance(c->cq_head, c->cq_released) >= channel_of(x)->release_every)
        CALL(client_release_head(x));
    c->value = 1;
    END
}

/* ---- sleeping ---- */

static enum progress ring_wait_begin(struct run *x)
{
    struct client_end *c = end_of(x);
    static uint8_t none = 0;
    BEGIN
    c->value = c->cq_head;
    DO(RING_WAIT_BEGIN, 0);
    DO(RING_WAIT_BEGIN, 1);
    DO(RING_WAIT_BEGIN, 2);
    c->sleeps = c->value == c->cq_head;
    if (!c->sleeps)
        ORDER(RING_WAIT_BEGIN, 3, index_of(x), &none);
    END
}

static enum progress futex_wait(struct run *x)
{
    BEGIN
    STEP(kernel_wait_client(x, index_of(x), end_of(x)->cq_head));
    if (channel_own(x)->kernel[index_of(x)].asleep) {
        STEP(!channel_own(x)->kernel[index_of(x)].asleep);
        machine_see(x, index_of(x) * OBJECTS + OBJECT_COMPLETE);
        machine_tell(x, "sleep_on_futex", "woken");
    }
    END
}

/* poll(2) */
static enum progress bell_wait(struct run *x)
{
    BEGIN
    if (channel_faulty(x, FAULT_BELL_LATE))
        STEP(kernel_empty_bell(x, index_of(x)));
    STEP(channel_own(x)->kernel[index_of(x)].bell);
    machine_see(x, index_of(x) * OBJECTS + OBJECT_COMPLETE);
    machine_tell(x, "sleep_on_bell", "the bell has rung");
    END
}

static uint8_t choose_kind(struct run *x)
{
    enum client_wait wait = channel_of(x)->client_wait;
    bool bell = wait == WAIT_BELL || (wait == WAIT_EITHER && machine_choose(x, 2));
    return bell ? LLM_WAIT_BELL : LLM_WAIT_FUTEX;
}

/* sleep_on_futex, sleep_on_bell. An empty bell is not read: that orders nothing. */
static enum progress sleep_once(struct run *x)
{
    struct client_end *c = end_of(x);
    static uint8_t none = LLM_WAIT_NONE;
    BEGIN
    c->kind = choose_kind(x);
    if (c->kind == LLM_WAIT_BELL && channel_own(x)->kernel[index_of(x)].bell)
        STEP(kernel_empty_bell(x, index_of(x)));
    CALL(ring_wait_begin(x));
    if (c->sleeps) {
        if (c->kind == LLM_WAIT_FUTEX)
            CALL(futex_wait(x));
        else
            CALL(bell_wait(x));
        ORDER(RING_WAIT_END, 0, index_of(x), &none);
    }
    END
}

/* Until an event was taken. */
static enum progress llm_wait(struct run *x)
{
    struct client_end *c = end_of(x);
    BEGIN
    for (;;) {
        CALL(take(x));
        if (c->value)
            break;
        if (!channel_faulty(x, FAULT_NO_RELEASE))
            CALL(client_release_head(x));
        if (channel_of(x)->client_wait != WAIT_SPIN)
            CALL(sleep_once(x));
    }
    END
}

/* ---- the program ---- */

static bool satisfied(const struct run *x)
{
    const struct channel *ch = channel_of(x);
    const struct client_end *c = end_of(x);
    return c->sent == ch->requests[index_of(x)] && (ch->silent || c->finals == c->sent);
}

enum progress channel_client(struct run *x)
{
    struct client_end *c = end_of(x);
    BEGIN
    while (!satisfied(x)) {
        CALL(submit(x));
        if (!c->value && !satisfied(x))
            CALL(llm_wait(x));
    }
    END
}
