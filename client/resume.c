/* resume.c - a new engine in the place of a dead one: see llm_resume, and resume.h for states and
 * invariants.
 *
 * How a request is sent again
 *   generate         each choice by itself, under an id of ours (an alias): its prompt and the
 *                    tokens delivered so far, output_from between them, the seed as it was. By the
 *                    purity of logits and the counter-based random numbers (seed, position, choice)
 *                    what comes is what would have come.
 *   score, choose    from the start; what the user has had is cut off (record.c)
 *   nop              again
 *   of a session     not: it died with its engine
 *   cancelled        not: it ends with what there is
 *
 * Where a final was lost behind the last token, max_tokens tell that the choice is over; behind an
 * end token or a stop string the engine says so again: it generates nothing behind one.
 */
#define _GNU_SOURCE
#include "../shm/vocab.h"
#include "resume_state.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MS 1000000ull

enum { DEFAULT_TIMEOUT_MS = 30000, ANSWER_MS = 5000 };
#define PAUSE_MIN_NS (2 * MS)
#define PAUSE_MAX_NS (100 * MS)

/* Records the failure and returns its code. */
#define FAIL(c, code, ...) (client_fail(c, code, __VA_ARGS__), (code))

/* ---- the list of records ---- */

void records_append(struct resume *s, struct record *r)
{
    r->before = s->last;
    *(s->last ? &s->last->next : &s->first) = r;
    s->last = r;
}

void records_remove(struct resume *s, struct record *r)
{
    *(r->before ? &r->before->next : &s->first) = r->next;
    *(r->next ? &r->next->before : &s->last) = r->before;
}

static void set_unsent(struct resume *s, struct record *r, uint64_t bits)
{
    s->n_unsent += (bits != 0) - (r->unsent != 0);
    r->unsent = bits;
}

static void set_over(struct resume *s, struct record *r, uint64_t bits)
{
    s->n_over += (bits != 0) - (r->over != 0);
    r->over = bits;
}

/* Ends those choices here; they are told by resume_event. */
static void end_here(struct resume *s, struct record *r, uint64_t bits, uint32_t finish,
                     int32_t status)
{
    set_unsent(s, r, r->unsent & ~bits);
    set_over(s, r, r->over | bits);
    for (; bits; bits &= bits - 1) {
        struct record_choice *k = record_choice(r, (uint32_t)__builtin_ctzll(bits));
        k->finish = finish;
        k->status = status;
    }
}

/* ---- opting in ---- */

int llm_resume(struct llm_client *c, uint32_t timeout_ms, unsigned flags)
{
    int rc = client_ended(c);
    if (rc)
        return rc;
    if (c->resume)
        return FAIL(c, -EALREADY, "llm_resume was called for this handle already");
    if (flags & ~(unsigned)LLM_RESUME_ANY_NUMERICS)
        return FAIL(c, -EINVAL, "flags %#x has bits that this library does not know", flags);
    if (c->owed || c->cancels)
        return FAIL(c, -EBUSY, "requests are in flight: call llm_resume before the first one");
    if (c->limits.abi_minor < 1)
        return FAIL(c, -ENOTSUP,
                    "the engine speaks version %d.%u of the protocol; to resume needs 1.1: update "
                    "llmd",
                    LLM_ABI_MAJOR, c->limits.abi_minor);
    struct resume *s = calloc(1, sizeof *s);
    struct llm_client *next = calloc(1, sizeof *next);
    struct inflight_table table = {0};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    rc = !s || !next ? -ENOMEM : timer < 0 ? -errno : 0;
    if (!rc)
        rc = client_watch(c, timer, EPOLLIN);
    if (!rc) /* the user's ids, and as many aliases and cancels */
        rc = inflight_create(&table, 2 * c->limits.max_inflight);
    if (rc) {
        free(s), free(next);
        if (timer >= 0)
            close(timer);
        return FAIL(c, rc, "llm_resume cannot be prepared: %s", llm_strerror(rc));
    }
    inflight_destroy(&c->inflight);
    c->inflight = table;
    next->socket = next->bell = next->descriptor = -1;
    *s = (struct resume){.flags = flags,
                         .timeout_ns = (timeout_ms ? timeout_ms : DEFAULT_TIMEOUT_MS) * MS,
                         .timer = timer,
                         .next = next};
    c->resume = s;
    return 0;
}

void resume_destroy(struct llm_client *c)
{
    struct resume *s = c->resume;
    if (!s)
        return;
    while (s->first)
        record_free(c, s->first);
    client_unmap(&s->old_up);
    attempt_undo(s->next);
    free(s->next);
    close(s->timer);
    free(s);
    c->resume = NULL;
}

bool resume_is_away(const struct llm_client *c)
{
    return c->resume && c->resume->state != LINK_UP;
}

bool resume_is_behind(const struct llm_client *c)
{
    return c->resume && (c->resume->state != LINK_UP || c->resume->n_unsent);
}

void resume_forget_arena(struct llm_client *c)
{
    if (c->resume)
        client_unmap(&c->resume->old_up);
}

/* ---- the timer ---- */

static void set_due(struct llm_client *c, uint64_t due_ns)
{
    struct resume *s = c->resume;
    s->due_ns = due_ns < s->give_up_ns ? due_ns : s->give_up_ns;
    struct itimerspec t = {
        .it_value = {(time_t)(s->due_ns / 1000000000), (long)(s->due_ns % 1000000000)}};
    if (c->descriptor >= 0)
        timerfd_settime(s->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static void disarm_timer(const struct llm_client *c)
{
    timerfd_settime(c->resume->timer, 0, &(struct itimerspec){0}, NULL);
}

static void pause_before_next(struct llm_client *c)
{
    struct resume *s = c->resume;
    s->state = LINK_DOWN;
    set_due(c, client_now_ns() + s->pause_ns);
    s->pause_ns = 2 * s->pause_ns < PAUSE_MAX_NS ? 2 * s->pause_ns : PAUSE_MAX_NS;
}

int resume_watch(struct llm_client *c)
{
    struct resume *s = c->resume;
    int rc = client_watch(c, s->timer, EPOLLIN);
    if (!rc && s->state == LINK_GREETED)
        rc = client_watch(c, s->next->socket, EPOLLIN | EPOLLRDHUP);
    if (s->state == LINK_DOWN || s->state == LINK_GREETED)
        set_due(c, s->due_ns);
    return rc;
}

bool resume_is_due(const struct llm_client *c)
{
    const struct resume *s = c->resume;
    return s && (s->n_over || s->state == LINK_LOST ||
                 (s->state != LINK_UP && client_now_ns() >= s->due_ns));
}

int resume_sleep(struct llm_client *c, uint64_t ns)
{
    struct resume *s = c->resume;
    uint64_t now = client_now_ns();
    uint64_t due = s->due_ns > now ? s->due_ns - now : 0;
    if (due < ns)
        ns = due;
    struct pollfd p = {s->next->socket, POLLIN | POLLRDHUP, 0};
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return ppoll(&p, s->state == LINK_GREETED, &t, NULL) < 0 ? -errno : 0;
}

/* ---- the engine is gone ---- */

bool client_lost(struct llm_client *c, const char *how)
{
    struct resume *s = c->resume;
    if (!s || c->ended || c->ring.broken)
        return false;
    if (s->state == LINK_UP) {
        s->state = LINK_LOST;
        snprintf(s->how, sizeof s->how, "%s", how);
    }
    return true;
}

static bool ends_generation(const struct llm_client *c, int32_t token)
{
    const uint8_t *image = c->vocabulary.at;
    const struct llm_vocab *v = c->vocabulary.at;
    const int32_t *eog = (const int32_t *)(const void *)(image + v->eog_off);
    for (uint32_t i = 0; i < v->n_eog; i++)
        if (eog[i] == token)
            return true;
    return false;
}

/* A generation that has all its tokens, and only lost its final. What only an engine can say of it,
 * it is asked: whether a stop string ended it, and where; and of what ended before it was sent. */
static bool has_all_tokens(const struct record *r, const struct record_choice *k)
{
    return r->entry.op == LLM_OP_GENERATE && k->n && !r->entry.options_len &&
           r->base + k->n >= r->entry.max_tokens;
}

static void end_of_all_tokens(struct llm_client *c, struct record *r, uint32_t bit)
{
    const struct record_choice *k = record_choice(r, bit);
    bool stop = !(r->entry.flags & LLM_SQE_IGNORE_EOS) && ends_generation(c, k->tokens[k->n - 1]);
    end_here(c->resume, r, 1ull << bit, stop ? LLM_FINISH_STOP : LLM_FINISH_LENGTH, 0);
}

/* What the dead engine owed of this request is to be sent again, or ends here. */
static void take_back(struct llm_client *c, struct record *r, bool cancelled)
{
    struct resume *s = c->resume;
    uint64_t open = r->owed & ~r->over;
    r->aliases = 0;
    if (r->sent && r->entry.session) {
        end_here(s, r, open, LLM_FINISH_ERROR, LLM_EOWNERDEAD);
        return;
    }
    if (cancelled) {
        end_here(s, r, open, LLM_FINISH_CANCELLED, 0);
        return;
    }
    set_unsent(s, r, open);
    for (uint64_t bits = open; bits; bits &= bits - 1) {
        uint32_t bit = (uint32_t)__builtin_ctzll(bits);
        record_choice(r, bit)->alias = 0;
        if (has_all_tokens(r, record_choice(r, bit)))
            end_of_all_tokens(c, r, bit);
    }
}

/* The table of a handle that no engine owes anything: only the users' ids. */
static void clear_table(struct llm_client *c)
{
    memset(c->inflight.slots, 0, (c->inflight.mask + 1ull) * sizeof *c->inflight.slots);
    for (struct record *r = c->resume->first, *next; r; r = next) {
        next = r->next;
        if (!r->owed) {
            record_free(c, r); /* only aliases held it */
            continue;
        }
        struct inflight *f = inflight_add(&c->inflight, r->entry.user_data, 1);
        f->owed = 0;
        f->record = r;
    }
    c->cancels = 0;
}

/* LOST -> DOWN. */
static void leave(struct llm_client *c)
{
    struct resume *s = c->resume;
    for (struct record *r = s->first; r; r = r->next) {
        const struct inflight *f = inflight_find(&c->inflight, r->entry.user_data);
        if (r->owed)
            take_back(c, r, f->cancelled);
    }
    clear_table(c);
    client_unwatch(c, c->socket);
    client_unwatch(c, c->bell);
    close(c->socket);
    close(c->bell);
    c->socket = c->bell = -1;
    snprintf(s->why, sizeof s->why, "nobody was asked yet");
    uint64_t now = client_now_ns();
    s->state = LINK_DOWN;
    s->pause_ns = PAUSE_MIN_NS;
    s->give_up_ns = now + s->timeout_ns;
    s->late = false;
    set_due(c, now);
}

/* ---- a new engine ---- */

static void give_up(struct llm_client *c)
{
    const struct resume *s = c->resume;
    client_end(c, LLM_EOWNERDEAD,
               "the engine (process %u) %s, and none came back within %.3f s: %s",
               c->limits.engine_pid, s->how, (double)s->timeout_ns * 1e-9, s->why);
}

/* A failed try: another one later, unless it would fail for ever. */
static void try_again(struct llm_client *c, int code, const char *why)
{
    struct resume *s = c->resume;
    if (s->state == LINK_GREETED)
        client_unwatch(c, s->next->socket);
    attempt_undo(s->next);
    snprintf(s->why, sizeof s->why, "%s", why);
    if (code == LLM_EPROTO)
        client_end(c, code, "the engine (process %u) %s; %s", c->limits.engine_pid, s->how, s->why);
    else
        pause_before_next(c);
}

static bool same_vocabulary(const struct llm_client *a, const struct llm_client *b)
{
    return a->vocabulary.bytes == b->vocabulary.bytes &&
           !memcmp(a->vocabulary.at, b->vocabulary.at, a->vocabulary.bytes);
}

/* NULL, or why the new engine cannot continue what the old one began. */
static const char *judge(const struct llm_client *c, int *code)
{
    const struct llm_client *next = c->resume->next;
    *code = LLM_EPROTO;
    if (next->limits.abi_minor < 1)
        return "the engine that came back speaks version 1.0 of the protocol; to resume needs 1.1";
    *code = LLM_ENUMERICS;
    bool any = c->resume->flags & LLM_RESUME_ANY_NUMERICS;
    if (!any && next->limits.numerics_id != c->limits.numerics_id)
        return "the engine that came back computes other bits (another model, weight format, "
               "KV type or instruction path): start the same one, or ask for "
               "LLM_RESUME_ANY_NUMERICS";
    return same_vocabulary(c, next) ? NULL : "the engine that came back has another vocabulary";
}

/* Room for the ids of both engines' limits. */
static int grow_table(struct llm_client *c, uint32_t max_inflight)
{
    struct inflight_table table, old = c->inflight;
    if (c->inflight.mask + 1ull >= 4ull * max_inflight)
        return 0;
    int rc = inflight_create(&table, 2 * max_inflight);
    if (rc)
        return rc;
    c->inflight = table;
    inflight_destroy(&old);
    clear_table(c);
    return 0;
}

/* The new connection becomes the handle's. What the user may still point to stays where it is: the
 * vocabulary, and the span of an llm_reserve. */
static void move_in(struct llm_client *c)
{
    struct resume *s = c->resume;
    struct llm_client *next = s->next;
    if (c->ring.reserved_bytes) {
        client_unmap(&s->old_up);
        s->old_up = c->up;
        c->up.at = NULL;
    }
    client_unmap(&c->up);
    client_unmap(&c->down);
    client_unmap(&c->pulse);
    client_unmap(&next->vocabulary);
    c->ring = next->ring;
    c->limits = next->limits;
    c->up = next->up, c->down = next->down, c->pulse = next->pulse;
    c->socket = next->socket, c->bell = next->bell;
    next->up.at = next->down.at = next->pulse.at = NULL;
    next->socket = next->bell = -1;
    c->peer_looked_ns = client_now_ns();
}

/* GREETED -> UP. The socket is watched already. */
static void adopt(struct llm_client *c)
{
    struct resume *s = c->resume;
    int code;
    const char *why = judge(c, &code);
    if (why) {
        client_end(c, code, "%s", why);
        return;
    }
    code = grow_table(c, s->next->limits.max_inflight);
    if (!code)
        code = client_watch(c, s->next->bell, EPOLLIN);
    if (code) {
        try_again(c, code, llm_strerror(code));
        return;
    }
    disarm_timer(c);
    move_in(c);
    s->state = LINK_UP;
}

/* A caller that comes back when the time is over has not looked for that long: the engine may be
 * back for long, too. It is asked once, and has the time to answer. */
static void knock_late(struct resume *s)
{
    if (client_now_ns() < s->give_up_ns || s->late)
        return;
    s->late = true;
    s->give_up_ns = client_now_ns() + ANSWER_MS * MS;
}

static void knock(struct llm_client *c)
{
    struct resume *s = c->resume;
    int rc = attempt_knock(s->next, &c->wish);
    if (rc) {
        try_again(c, rc, llm_connect_error());
        return;
    }
    rc = client_watch(c, s->next->socket, EPOLLIN | EPOLLRDHUP);
    if (rc) {
        try_again(c, rc, llm_strerror(rc));
        return;
    }
    knock_late(s);
    s->state = LINK_GREETED;
    set_due(c, client_now_ns() + ANSWER_MS * MS);
}

static void hear(struct llm_client *c)
{
    int rc = attempt_answer(c->resume->next, &c->wish);
    if (!rc)
        adopt(c);
    else if (rc != ATTEMPT_WAIT)
        try_again(c, rc, llm_connect_error());
    else if (client_now_ns() >= c->resume->due_ns)
        try_again(c, -ETIMEDOUT, "the new engine did not answer in time");
}

/* ---- sending again ---- */

static uint32_t reduced(uint64_t limit, uint64_t gone)
{
    return !limit ? 0 : limit > gone ? (uint32_t)(limit - gone) : 1;
}

/* What is left of the request's times: they count from when it was first sent. */
static void reduce_times(struct llm_sqe *e, const struct record *r, bool begun)
{
    uint64_t gone_us = (client_now_ns() - r->submitted_ns) / 1000;
    e->timeout_ms = reduced(r->entry.timeout_ms, gone_us / 1000);
    e->deadline_us = begun ? 0 : reduced(r->entry.deadline_us, gone_us);
    e->queue_timeout_ms = begun ? 0 : reduced(r->entry.queue_timeout_ms, gone_us / 1000);
}

static void fill_again(struct llm_sqe *e, const struct record *r, int bit, uint64_t id)
{
    uint32_t n = bit == RECORD_WHOLE ? 0 : record_choice(r, (uint32_t)bit)->n;
    *e = r->entry;
    e->user_data = id;
    e->tokens_len += n;
    if (bit != RECORD_WHOLE) {
        e->choices = 1;
        e->first_choice = (uint16_t)bit;
        e->output_from = n && !r->entry.output_from ? r->entry.tokens_len : r->entry.output_from;
    }
    reduce_times(e, r, n != 0);
}

/* The rest of the entry's span, in the arena. */
static void place_again(struct llm_client *c, struct llm_sqe *e, const struct record *r, int bit)
{
    uint8_t *at = c->ring.arena + c->ring.reserved_at % c->ring.arena_bytes;
    uint32_t prompt = r->entry.tokens_len * (uint32_t)sizeof(int32_t);
    if (!e->tokens_len && !e->options_len)
        return;
    e->tokens_off = c->ring.reserved_at % c->ring.arena_bytes;
    memcpy(at, r->prompt, prompt);
    if (bit != RECORD_WHOLE)
        memcpy(at + prompt, record_choice(r, (uint32_t)bit)->tokens,
               (e->tokens_len - r->entry.tokens_len) * sizeof(int32_t));
    if (e->options_len) {
        e->options_off = e->tokens_off + e->tokens_len * (uint32_t)sizeof(int32_t);
        memcpy(c->ring.arena + e->options_off, r->options, e->options_len);
    }
}

static void in_flight_again(struct llm_client *c, struct record *r, const struct llm_sqe *e,
                            int bit, uint32_t finals)
{
    struct inflight *f = inflight_add(&c->inflight, e->user_data, finals);
    f->owed <<= e->first_choice;
    f->record = r;
    f->choice = bit;
    r->aliases++;
    record_choice(r, bit == RECORD_WHOLE ? e->first_choice : (uint32_t)bit)->alias = e->user_data;
}

/* One entry: a choice, or the whole request. 0, -EAGAIN while there is no room, or the code of what
 * cannot be sent. */
static int send_again(struct llm_client *c, struct record *r, int bit)
{
    uint32_t finals = bit == RECORD_WHOLE && r->entry.choices ? r->entry.choices : 1;
    uint64_t id = submit_id(c);
    struct llm_sqe e;
    fill_again(&e, r, bit, id);
    uint64_t span =
        (uint64_t)e.tokens_len * sizeof(int32_t) + ((uint64_t)e.options_len + 3) / 4 * 4;
    if (finals > c->ring.max_inflight)
        return LLM_EPARAM;
    if (span > c->ring.arena_bytes)
        return -E2BIG;
    struct llm_sqe *to = ring_next(&c->ring, finals);
    if (!to || (span && !ring_reserve(&c->ring, (uint32_t)(span / sizeof(int32_t)))))
        return -EAGAIN;
    place_again(c, &e, r, bit);
    *to = e;
    in_flight_again(c, r, &e, bit, finals);
    submit_publish(c, finals);
    return 0;
}

/* Only a generation that has begun is sent a choice at a time. */
static bool goes_whole(const struct record *r)
{
    uint64_t all = UINT64_MAX >> (64 - (r->entry.choices ? r->entry.choices : 1));
    if (r->entry.op != LLM_OP_GENERATE)
        return true;
    bool begun = r->unsent != all << r->entry.first_choice;
    for (uint32_t i = 0; i < r->entry.choices && !begun; i++)
        begun = r->choices[i].n != 0;
    return !begun;
}

/* False while there is no room for the rest of it. */
static bool send_record(struct llm_client *c, struct record *r)
{
    struct resume *s = c->resume;
    bool whole = goes_whole(r);
    while (r->unsent) {
        int bit = whole ? RECORD_WHOLE : __builtin_ctzll(r->unsent);
        uint64_t bits = whole ? r->unsent : 1ull << bit;
        int rc = send_again(c, r, bit);
        if (rc == -EAGAIN)
            return false;
        r->sent = true;
        if (rc)
            end_here(s, r, bits, LLM_FINISH_REFUSED, rc);
        set_unsent(s, r, r->unsent & ~bits);
    }
    return true;
}

static void send_all(struct llm_client *c)
{
    for (struct record *r = c->resume->first; r && c->resume->n_unsent; r = r->next)
        if (r->unsent && !send_record(c, r))
            return;
}

void resume_send_later(struct llm_client *c, struct record *r)
{
    struct inflight *f = inflight_find(&c->inflight, r->entry.user_data);
    f->owed = 0; /* no engine owes it yet */
    r->sent = false;
    set_unsent(c->resume, r, r->owed);
}

void resume_drive(struct llm_client *c)
{
    struct resume *s = c->resume;
    if (s->state == LINK_LOST)
        leave(c);
    if (s->state == LINK_DOWN || s->state == LINK_GREETED) {
        uint64_t now = client_now_ns();
        if (s->state == LINK_GREETED)
            hear(c);
        else if (now >= s->due_ns)
            knock(c);
        if (s->state != LINK_UP && client_now_ns() >= s->give_up_ns)
            give_up(c);
    }
    if (s->state == LINK_UP && s->n_unsent)
        send_all(c);
}

/* ---- cancels and events ---- */

int resume_cancel(struct llm_client *c, struct record *r)
{
    end_here(c->resume, r, r->unsent, LLM_FINISH_CANCELLED, 0);
    struct inflight *f = inflight_find(&c->inflight, r->entry.user_data);
    if (resume_is_away(c)) { /* LOST: what the engine does not say any more */
        f->cancelled = true;
        return 0;
    }
    if (!r->aliases)
        return f->owed ? submit_cancel(c, r->entry.user_data) : 0;
    int rc = 0;
    uint32_t n = r->entry.choices ? r->entry.choices : 1;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = r->choices[i].alias ? submit_cancel(c, r->choices[i].alias) : 0;
    if (!rc) /* for the next engine's death; submitting moves nothing in the table */
        inflight_find(&c->inflight, r->entry.user_data)->cancelled = true;
    return rc;
}

void record_told(struct llm_client *c, struct record *r)
{
    inflight_remove(&c->inflight, inflight_find(&c->inflight, r->entry.user_data));
    if (!r->aliases)
        record_free(c, r);
}

static struct record *first_over(struct llm_client *c)
{
    struct record *r = c->resume->first;
    while (!r->over)
        r = r->next;
    return r;
}

bool resume_event(struct llm_client *c, struct llm_event *e)
{
    if (!c->resume->n_over)
        return false;
    struct record *r = first_over(c);
    uint32_t bit = (uint32_t)__builtin_ctzll(r->over);
    const struct record_choice *k = record_choice(r, bit);
    bool generated = r->entry.op == LLM_OP_GENERATE;
    *e = (struct llm_event){.id = r->entry.user_data,
                            .type = k->status ? LLM_EVENT_ERROR : LLM_EVENT_DONE,
                            .choice = bit,
                            .status = k->status,
                            .finish = k->finish,
                            .position = generated && !k->status ? r->base + k->n : 0,
                            .result = {.numerics_id = c->limits.numerics_id,
                                       .prompt_tokens = r->entry.tokens_len - r->base,
                                       .output_tokens = generated ? r->base + k->n : 0}};
    set_over(c->resume, r, r->over & (r->over - 1));
    r->owed &= ~(1ull << bit);
    c->owed--;
    if (!r->owed)
        record_told(c, r);
    return true;
}
