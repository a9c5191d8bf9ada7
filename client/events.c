/* events.c - events in: taking completions, sleeping for them, and what happens when the engine is
 * gone.
 *
 * Invariants
 *   1. The head is published when a quarter of the ring was taken, and whenever the ring is found
 *      empty: an engine that holds tokens for a full ring is never left waiting.
 *   2. Whoever learns that the engine is gone looks at the ring once more before it says so: what
 *      the engine published before its end is handed out.
 *   3. No wake of a futex comes from an engine that died: a sleep there is short, and what lasts
 *      longer is slept through in poll(2), over the bell and the socket.
 *
 * Fences C2 and C3 stand in shm/ring_client.c; here are the futex calls that go with them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "handle.h"

enum { SPIN_BATCH = 64 };

/* The longest sleep on a futex, which wakes faster than the bell by a few microseconds; and how
 * often a poller asks whether the engine lives. So nobody learns of its death more than twice this
 * later. */
#define SLICE_NS 50000000ull

uint64_t client_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void client_wake(order_u32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* 0 when woken or the word is not `expected`; else -ETIMEDOUT, -EINTR, ... */
static int futex_wait(const order_u32 *word, uint32_t expected, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    if (!syscall(SYS_futex, word, FUTEX_WAIT, expected, &t, NULL, 0) || errno == EAGAIN)
        return 0;
    return -errno;
}

/* ---- the end of a handle ---- */

void client_end(struct llm_client *c, int code, const char *format, ...)
{
    if (c->ended)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(c->ended_text, sizeof c->ended_text, format, args);
    va_end(args);
    c->ended = code;
}

/* The engine's sentence, in one line of printable bytes. */
static void evicted(struct llm_client *c)
{
    char text[LLM_EVICT_TEXT];
    memcpy(text, c->ring.down->evict_text, sizeof text);
    text[sizeof text - 1] = 0;
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7F)
            *p = '?';
    client_end(c, LLM_EEVICTED, "the engine has closed this client: %s", text);
}

static void look_at_memory(struct llm_client *c)
{
    if (c->ended || c->socket < 0) /* what a dead engine left says nothing any more */
        return;
    if (order_acquire(&c->ring.down->evicted)) /* pairs with ring_evict: its text came before */
        evicted(c);
    else if (c->ring.broken)
        client_end(c, LLM_EPROTO, "%s", c->ring.broken);
}

int client_ended(struct llm_client *c)
{
    look_at_memory(c);
    if (c->ended)
        client_fail(c, c->ended, "%s", c->ended_text);
    return c->ended;
}

/* Asks the socket whether the engine is still there. It says nothing after WELCOME: packets are
 * dropped, a few at most. */
static void look_at_socket(struct llm_client *c)
{
    uint8_t packet[LLM_CONTROL_MAX];
    int n = 1;
    for (int i = 0; i < 8 && (n > 0 || n == LLM_EPROTO); i++)
        n = control_receive(c->socket, packet, sizeof packet, NULL, NULL);
    if (n > 0 || n == LLM_EPROTO || n == -EAGAIN)
        return;
    look_at_memory(c); /* an eviction is the better reason: the engine closes the socket after it */
    bool stopped = order_acquire(&c->ring.pulse->state) >= LLM_STATE_DRAINING;
    const char *how = stopped ? "was stopped" : "died";
    if (!client_lost(c, how))
        client_end(c, LLM_EOWNERDEAD, "the engine (process %u) %s", c->limits.engine_pid, how);
}

/* For a poller: one system call in a SLICE_NS at most, and none while the engine's heart beats. */
static void look_at_engine(struct llm_client *c)
{
    look_at_memory(c);
    uint64_t now = client_now_ns();
    if (c->ended || resume_is_away(c) || now - c->peer_looked_ns < SLICE_NS)
        return;
    c->peer_looked_ns = now;
    if (now - order_read64(&c->ring.pulse->heartbeat_ns) >= SLICE_NS)
        look_at_socket(c);
}

/* ---- completions ---- */

void client_release_head(struct llm_client *c)
{
    if (ring_drained(&c->ring))
        client_wake(&c->ring.up->cq_head);
}

static const char *top_fault(const struct llm_client *c)
{
    for (uint32_t i = 0; i < c->ring.n_candidates; i++)
        if ((uint32_t)c->ring.candidates[i].token >= c->limits.vocab)
            return "a candidate of the engine's is outside the vocabulary";
    return NULL;
}

static const char *completion_fault(const struct llm_client *c, const struct inflight *f,
                                    const struct llm_cqe *cqe)
{
    if (!f || !(f->owed >> cqe->choice & 1))
        return "the engine completed a request that is not in flight";
    if (f->cancel && cqe->type == LLM_CQE_TOKENS)
        return "the engine sent tokens for a cancel";
    if (cqe->type == LLM_CQE_ERROR && cqe->status >= 0)
        return "the engine reported an error without a code";
    return cqe->flags & LLM_CQE_HAS_TOP ? top_fault(c) : NULL;
}

/* Takes the final off the books. True if the user waits for it. */
static bool settle(struct llm_client *c, struct inflight *f, uint32_t choice)
{
    bool shown = !f->cancel;
    f->owed &= ~(1ull << choice);
    if (!f->owed)
        inflight_remove(&c->inflight, f);
    c->owed -= shown;
    c->cancels -= !shown;
    return shown;
}

/* The same with llm_resume: what the engine owed, it may owe under an alias; and a label whose final
 * the user has had may be scored again. */
static bool settle_record(struct llm_client *c, struct inflight *f, uint32_t choice)
{
    struct record *r = f->record;
    uint64_t bit = 1ull << choice;
    bool shown = r->owed & bit, alias = inflight_is_alias(f);
    f->owed &= ~bit;
    if (alias && !f->owed) {
        inflight_remove(&c->inflight, f);
        r->aliases--;
    }
    r->owed &= ~bit;
    c->owed -= shown;
    if (shown && !r->owed)
        record_told(c, r);
    else if (!r->owed && !r->aliases)
        record_free(c, r);
    return shown;
}

/* What a completion of a request with a record shows to the user, under the user's id. False:
 * nothing, or the ring is broken now. */
static bool take_recorded(struct llm_client *c, struct inflight *f, struct llm_cqe *cqe)
{
    cqe->user_data = f->record->entry.user_data;
    if (cqe->type == LLM_CQE_TOKENS)
        return record_tokens(f->record, cqe->choice, cqe, &c->ring.broken);
    return settle_record(c, f, cqe->choice);
}

/* False: the completion is not shown, or the ring is broken now. */
static bool account(struct llm_client *c, struct llm_cqe *cqe)
{
    struct inflight *f = inflight_find(&c->inflight, cqe->user_data);
    c->ring.broken = completion_fault(c, f, cqe);
    if (c->ring.broken)
        return false;
    if (f->record)
        return take_recorded(c, f, cqe);
    return cqe->type == LLM_CQE_TOKENS || settle(c, f, cqe->choice);
}

static void fill_event(struct llm_event *e, const struct llm_cqe *cqe,
                       const struct llm_result *result)
{
    *e = (struct llm_event){
        .id = cqe->user_data,
        .type = cqe->type,
        .choice = cqe->choice,
        .status = cqe->type == LLM_CQE_ERROR ? cqe->status : 0,
        .finish = cqe->type == LLM_CQE_TOKENS ? LLM_FINISH_NONE : cqe->finish,
        .position = cqe->position,
        .n_tokens = cqe->type == LLM_CQE_TOKENS ? cqe->count : 0,
        .result = *result,
    };
    memcpy(e->tokens, cqe->tokens, e->n_tokens * sizeof *e->tokens);
    if (cqe->flags & LLM_CQE_HAS_LOGPROBS)
        memcpy(e->logprobs, cqe->logprobs, e->n_tokens * sizeof *e->logprobs);
}

/* The candidates are copied out: their place in the ring is the engine's again. */
static void keep_top(struct llm_client *c, const struct llm_cqe *cqe)
{
    c->n_top = cqe->flags & LLM_CQE_HAS_TOP ? c->ring.n_candidates : 0;
    memcpy(c->top, c->ring.candidates, c->n_top * sizeof *c->top);
}

uint32_t llm_event_top(const struct llm_client *c, uint32_t i, struct llm_candidate *out,
                       uint32_t max)
{
    if (i)
        return 0;
    for (uint32_t k = 0; k < c->n_top && k < max; k++)
        out[k] = c->top[k];
    return c->n_top;
}

/* The next completion that the user shall see. */
static bool take(struct llm_client *c, struct llm_event *e)
{
    struct llm_cqe cqe;
    struct llm_result result;
    while (c->socket >= 0 && ring_poll(&c->ring, &cqe, &result)) {
        if (c->ring.cq_head - c->ring.cq_released >= c->ring.cq_entries / 4)
            client_release_head(c);
        if (account(c, &cqe)) {
            fill_event(e, &cqe, &result);
            keep_top(c, &cqe);
            return true;
        }
    }
    return false;
}

/* After the end: an ERROR event for each final still owed, then the reason. The ring is closed, so
 * that the table no longer changes under the walk. */
static int take_after_end(struct llm_client *c, struct llm_event *e)
{
    c->ring.broken = c->ended_text;
    for (; c->ended_slot <= c->inflight.mask; c->ended_slot++) {
        struct inflight *f = &c->inflight.slots[c->ended_slot];
        uint64_t *owed = f->record ? &f->record->owed : &f->owed;
        if (!f->id || f->cancel || inflight_is_alias(f) || !*owed)
            continue;
        *e = (struct llm_event){.id = f->id,
                                .type = LLM_EVENT_ERROR,
                                .choice = (uint32_t)__builtin_ctzll(*owed),
                                .status = c->ended,
                                .finish = LLM_FINISH_ERROR};
        *owed &= *owed - 1;
        c->owed--;
        return 1;
    }
    return client_ended(c);
}

/* With llm_resume: what the dead engine left, then a step on the way to a new one. */
static bool poll_resume(struct llm_client *c, struct llm_event *e)
{
    if (take(c, e))
        return true;
    look_at_memory(c); /* what was left may have made no sense */
    if (!c->ended)
        resume_drive(c);
    return resume_event(c, e);
}

/* An armed client may have been told of an end by its descriptor: then the socket is asked. */
int llm_poll(struct llm_client *c, struct llm_event *e)
{
    bool told = client_disarm(c);
    c->n_top = 0;
    if (take(c, e))
        return 1;
    client_release_head(c);
    if (told && !c->ended)
        look_at_socket(c);
    else
        look_at_engine(c);
    if (c->resume && poll_resume(c, e))
        return 1;
    if (!c->ended)
        return 0;
    return take(c, e) ? 1 : take_after_end(c, e);
}

/* ---- waiting ---- */

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until `end`. As llm_poll; 0: the time is over. */
static int spin(struct llm_client *c, struct llm_event *e, uint64_t end)
{
    do {
        for (int i = 0; i < SPIN_BATCH; i++) {
            if (order_acquire(&c->ring.down->cq_tail) != c->ring.cq_head)
                break;
            relax();
        }
        int rc = llm_poll(c, e);
        if (rc)
            return rc;
    } while (client_now_ns() < end && !resume_is_away(c));
    return 0;
}

/* Sleeps for at most `ns` unless there is something to take. 0, or -errno from the futex. */
static int sleep_on_futex(struct llm_client *c, uint64_t ns)
{
    uint32_t expected;
    if (!ring_wait_begin(&c->ring, LLM_WAIT_FUTEX, &expected))
        return 0;
    int rc = futex_wait(&c->ring.down->cq_tail, expected, ns < SLICE_NS ? ns : SLICE_NS);
    ring_wait_end(&c->ring);
    return rc;
}

/* The same on bell and socket: -ETIMEDOUT also where the socket has something to say. */
static int sleep_on_bell(struct llm_client *c, uint64_t ns)
{
    struct pollfd p[2] = {{c->bell, POLLIN, 0}, {c->socket, POLLIN | POLLRDHUP, 0}};
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    uint32_t expected;
    client_bell_empty(c);
    if (!ring_wait_begin(&c->ring, LLM_WAIT_BELL, &expected))
        return 0;
    int rc = ppoll(p, 2, &t, NULL) < 0 ? -errno : p[0].revents ? 0 : -ETIMEDOUT;
    ring_wait_end(&c->ring);
    return rc;
}

/* -ETIMEDOUT: the socket is to be asked. */
static int sleep_somehow(struct llm_client *c, bool long_wait, uint64_t ns)
{
    if (resume_is_away(c))
        return resume_sleep(c, ns);
    return long_wait ? sleep_on_bell(c, ns) : sleep_on_futex(c, ns);
}

static int sleep_until(struct llm_client *c, struct llm_event *e, uint64_t end)
{
    bool long_wait = false;
    for (;;) {
        uint64_t now = client_now_ns();
        if (now >= end)
            return 0;
        int slept = sleep_somehow(c, long_wait, end - now);
        if (slept == -ETIMEDOUT) {
            long_wait = true;
            look_at_socket(c);
        }
        int rc = llm_poll(c, e);
        if (rc)
            return rc;
        if (slept && slept != -ETIMEDOUT) {
            client_fail(c, slept, "the wait was interrupted: %s", llm_strerror(slept));
            return slept;
        }
    }
}

static uint64_t after(uint64_t start, uint64_t ns, bool never)
{
    return never ? UINT64_MAX : start + ns;
}

int llm_wait(struct llm_client *c, struct llm_event *e, int timeout_ms)
{
    int rc = llm_poll(c, e);
    if (rc)
        return rc;
    if (!c->owed) {
        client_fail(c, -ENOENT, "nothing is in flight: no event can come");
        return -ENOENT;
    }
    if (!timeout_ms)
        return 0;
    uint64_t now = client_now_ns();
    uint64_t end = after(now, (uint64_t)timeout_ms * 1000000, timeout_ms < 0);
    uint64_t spin_end = after(now, (uint64_t)c->spin_us * 1000, c->spin_us == UINT32_MAX);
    if (c->spin_us)
        rc = spin(c, e, spin_end < end ? spin_end : end);
    return rc ? rc : sleep_until(c, e, end);
}
