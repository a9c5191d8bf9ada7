/* test_ring_stress.c - a client and an engine in two threads that really sleep, both ways, over
 * rings that keep filling up.
 *
 * Three sleeps are met: the engine on sq_tail, the engine on cq_head while it holds tokens for a
 * full ring, the client on cq_tail. No sleep has a timeout that the protocol needs: a watchdog ends
 * one only to look whether the word had changed, which is a lost wake-up. Runs under TSan too; the
 * fences themselves are the business of a model checker, because a stress finds them missing only
 * by luck.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../shm/ring.h"

enum {
    SQ = 8,
    CQ = 16,
    M = 4,
    ARENA = 212,
    ENTRIES = 200000, /* completions in all */
    TOKENS_MAX = 20,  /* of a request: more than the ring holds */
    STALL_EVERY = 500,
    WATCHDOG_S = 10,
    PATIENCE = 12, /* watchdogs in a row that find nothing: both sides sleep for ever */
    STOP = 1       /* in llm_sqe.priority */
};
#define START 0xFFFFFF00u

/* What one side did and what went wrong; read after the thread was joined. */
struct side {
    uint64_t rnd, sleeps, held_sleeps, lost, idle, faults;
    const char *why;
};

struct stress {
    struct ring_client c;
    struct ring_engine e;
    struct llm_up *up;
    struct llm_down *down;
    struct llm_pulse *pulse;
    struct side client, engine;
    atomic_bool given_up;
};

static uint32_t below(struct side *s, uint32_t n)
{
    s->rnd = s->rnd * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s->rnd >> 33) % n;
}

/* Now and then a side is slow, so that the other one overtakes it. */
static void dawdle(struct side *s)
{
    if (below(s, 16))
        return;
    for (volatile uint32_t i = below(s, 4000); i; i--)
        ;
}

static void give_up(struct stress *t, struct side *s, const char *why)
{
    s->faults++;
    s->why = why;
    atomic_store(&t->given_up, true);
}

static void wake(order_u32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Sleeps until one of the words is not what is expected, or is woken. Returns false if only the
 * watchdog ended it. */
static bool sleep_on(const order_u32 *const *words, const uint32_t *expected, unsigned n)
{
    struct futex_waitv w[2] = {0};
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += WATCHDOG_S;
    for (unsigned i = 0; i < n; i++) {
        w[i].val = expected[i];
        w[i].uaddr = (uintptr_t)words[i];
        w[i].flags = FUTEX_32;
    }
    return syscall(SYS_futex_waitv, w, n, 0, &end, CLOCK_MONOTONIC) >= 0 || errno != ETIMEDOUT;
}

/* After a sleep: if the watchdog ended it although a word had changed, a wake was lost. */
static void judge_sleep(struct stress *t, struct side *s, bool woken, bool changed)
{
    s->sleeps++;
    if (woken) {
        s->idle = 0;
        return;
    }
    s->lost += changed;
    if (changed)
        give_up(t, s, "a wake-up was lost");
    else if (++s->idle == PATIENCE)
        give_up(t, s, "both sides sleep for ever");
}

/* ---- the engine ---- */

struct sequence {
    uint64_t id;
    uint32_t tokens, sent; /* sent == tokens + 1: free */
};

struct served {
    struct sequence seq[M];
    bool stop;
};

static bool serve_entry(struct stress *t, struct served *v)
{
    struct llm_sqe sqe;
    int32_t tokens[ARENA / 4];
    const char *why = "";
    if (ring_take(&t->e, &sqe, &why) || ring_take_tokens(&t->e, &sqe, tokens, &why) ||
        ring_taken(&t->e, 1, &why)) {
        give_up(t, &t->engine, why);
        return false;
    }
    for (uint32_t i = 0; i < sqe.tokens_len; i++)
        if (tokens[i] != (int32_t)(sqe.user_data + i))
            give_up(t, &t->engine, "a prompt arrived damaged");
    v->stop |= sqe.priority == STOP;
    for (int i = 0; i < M; i++) {
        if (v->seq[i].id)
            continue;
        v->seq[i] = (struct sequence){sqe.user_data, sqe.max_tokens, 0};
        return true;
    }
    give_up(t, &t->engine, "more requests than max_inflight");
    return false;
}

static bool serve_submissions(struct stress *t, struct served *v)
{
    const char *why = "";
    int n = ring_sweep(&t->e, &why);
    if (n < 0) {
        give_up(t, &t->engine, why);
        return false;
    }
    for (int i = 0; i < n; i++)
        if (!serve_entry(t, v))
            return false;
    return n > 0;
}

static void put(struct stress *t, const struct sequence *q, uint16_t type)
{
    struct llm_cqe cqe = {.user_data = q->id, .type = type, .count = 1, .position = q->sent};
    struct llm_result result = {.t_last = q->id};
    ring_put(&t->e, &cqe, &result);
}

/* A step: up to `burst` tokens of every request, and the finals that are due. */
static bool serve_step(struct stress *t, struct served *v, uint32_t burst)
{
    bool any = false;
    for (int i = 0; i < M; i++) {
        struct sequence *q = &v->seq[i];
        for (uint32_t n = burst; q->id && n && q->sent < q->tokens && ring_token_room(&t->e); n--) {
            put(t, q, LLM_CQE_TOKENS);
            q->sent++;
            any = true;
        }
        if (q->id && q->sent == q->tokens) {
            put(t, q, LLM_CQE_DONE);
            q->id = 0;
            any = true;
        }
    }
    if (ring_publish(&t->e)) {
        ring_after_publish();
        if (ring_wants_wake(&t->e))
            wake(&t->down->cq_tail);
    }
    return any;
}

static bool holds(const struct served *v)
{
    bool any = false;
    for (int i = 0; i < M; i++)
        any |= v->seq[i].id != 0;
    return any;
}

static void engine_sleep(struct stress *t, bool held)
{
    ring_arm_all(t->pulse);
    ring_arm(&t->e, held);
    ring_arm_fence();
    if (!ring_rescan(&t->e, held)) {
        const order_u32 *words[] = {&t->up->sq_tail, &t->up->cq_head};
        const uint32_t expected[] = {t->e.sq_tail, t->e.cq_head};
        bool woken = sleep_on(words, expected, held ? 2 : 1);
        t->engine.held_sleeps += held;
        judge_sleep(t, &t->engine, woken, ring_rescan(&t->e, held));
    }
    ring_disarm(&t->e);
    ring_disarm_all(t->pulse);
}

static void *engine_thread(void *arg)
{
    struct stress *t = arg;
    struct served v = {0};
    while (!atomic_load(&t->given_up)) {
        bool got = serve_submissions(t, &v);
        got |= serve_step(t, &v, 1 + below(&t->engine, 6));
        dawdle(&t->engine);
        if (got)
            continue;
        if (v.stop && !holds(&v))
            break;
        engine_sleep(t, holds(&v));
    }
    return NULL;
}

/* ---- the client ---- */

struct owed {
    uint64_t id;
    uint32_t tokens, seen;
};

struct asker {
    struct owed owed[M];
    uint64_t next_id, entries;
    uint32_t inflight;
};

static void ask(struct stress *t, struct asker *a, uint32_t tokens, uint16_t priority)
{
    uint32_t n = below(&t->client, ARENA / 4) + 1;
    int32_t *prompt = ring_reserve(&t->c, n);
    struct llm_sqe *e = prompt ? ring_next(&t->c, 1) : NULL;
    if (!e)
        return;
    uint64_t id = a->next_id++;
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (int32_t)(id + i);
    e->user_data = id;
    e->tokens_off = (uint32_t)((uint8_t *)prompt - t->c.arena);
    e->tokens_len = n;
    e->max_tokens = tokens;
    e->priority = priority;
    for (int i = 0; i < M; i++)
        if (!a->owed[i].id) {
            a->owed[i] = (struct owed){id, tokens, 0};
            break;
        }
    a->inflight++;
    ring_commit(&t->c, 1);
    if (ring_submit(&t->c))
        wake(&t->up->sq_tail);
}

static struct owed *find(struct asker *a, uint64_t id)
{
    for (int i = 0; i < M; i++)
        if (a->owed[i].id == id)
            return &a->owed[i];
    return NULL;
}

/* Takes one completion, if there is one, and checks it. */
static bool answer(struct stress *t, struct asker *a)
{
    struct llm_cqe cqe;
    struct llm_result result;
    if (!ring_poll(&t->c, &cqe, &result)) {
        if (t->c.broken)
            give_up(t, &t->client, t->c.broken);
        return false;
    }
    struct owed *o = find(a, cqe.user_data);
    a->entries++;
    if (!o || cqe.position != o->seen)
        give_up(t, &t->client, "a token was lost, repeated or out of order");
    else if (cqe.type == LLM_CQE_TOKENS)
        o->seen++;
    else if (o->seen != o->tokens || result.t_last != o->id)
        give_up(t, &t->client, "a final came early, or with another's result");
    else
        *o = (struct owed){0}, a->inflight--;
    return true;
}

static void drained(struct stress *t)
{
    if (ring_drained(&t->c))
        wake(&t->up->cq_head);
}

static void client_sleep(struct stress *t)
{
    uint32_t expected;
    drained(t);
    if (!ring_wait_begin(&t->c, LLM_WAIT_FUTEX, &expected))
        return;
    const order_u32 *word = &t->down->cq_tail;
    bool woken = sleep_on(&word, &expected, 1);
    ring_wait_end(&t->c);
    judge_sleep(t, &t->client, woken, order_acquire(word) != expected);
}

/* Leaves the ring full until the engine sleeps with what it holds. */
static void stall(struct stress *t, struct asker *a)
{
    while (a->inflight && answer(t, a))
        ;
    drained(t);
    if (a->inflight)
        return;
    ask(t, a, TOKENS_MAX, 0);
    while (!(order_relaxed(&t->down->cq_held) && order_relaxed(&t->pulse->need_wakeup)) &&
           !atomic_load(&t->given_up))
        sched_yield();
}

static void client_turn(struct stress *t, struct asker *a)
{
    while (a->inflight < M && below(&t->client, 3))
        ask(t, a, below(&t->client, TOKENS_MAX + 1), 0);
    dawdle(&t->client);
    for (uint32_t n = below(&t->client, CQ); n && answer(t, a); n--)
        ;
    if (below(&t->client, STALL_EVERY) == 0)
        stall(t, a);
    else if (a->inflight && !below(&t->client, 3))
        while (answer(t, a))
            ;
    if (a->inflight && order_acquire(&t->down->cq_tail) == t->c.cq_head)
        client_sleep(t);
}

/* Waits for everything that is owed, then sends the engine home. */
static void client_leave(struct stress *t, struct asker *a)
{
    bool stopped = false;
    while ((a->inflight || !stopped) && !atomic_load(&t->given_up)) {
        if (!a->inflight)
            ask(t, a, 0, STOP), stopped = a->inflight;
        if (!answer(t, a) && a->inflight)
            client_sleep(t);
    }
}

static void client_run(struct stress *t)
{
    struct asker a = {.next_id = 1};
    while (a.entries < ENTRIES && !atomic_load(&t->given_up))
        client_turn(t, &a);
    client_leave(t, &a);
    if (!atomic_load(&t->given_up))
        assert_true(a.entries >= ENTRIES);
}

/* ---- the scenario ---- */

static void *pages(uint64_t bytes)
{
    size_t whole = (size_t)(bytes + 4095) / 4096 * 4096;
    void *p = aligned_alloc(4096, whole);
    assert_non_null(p);
    return memset(p, 0, whole);
}

static void open_channel(struct stress *t)
{
    t->up = pages(llm_up_bytes(SQ, ARENA));
    t->down = pages(llm_down_bytes(CQ));
    t->pulse = pages(sizeof *t->pulse);
    ring_engine_init(&t->e, t->up, t->down, SQ, CQ, ARENA, M, 0, 0, 1);
    assert_int_equal(ring_client_init(&t->c, t->up, t->down, t->pulse, SQ, CQ, ARENA, M), 0);
    order_set(&t->up->sq_tail, START);
    order_set(&t->up->cq_head, START);
    order_set(&t->down->sq_head, START);
    order_set(&t->down->cq_tail, START);
    t->c.sq_tail = t->c.cq_head = t->c.cq_released = t->c.arena_freed_seq = START;
    t->e.sq_head = t->e.sq_tail = START;
    t->e.cq_tail = t->e.cq_published = t->e.cq_head = START;
}

static bool has_futex_waitv(void)
{
    return syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) < 0 && errno == EINVAL;
}

static void no_wake_is_lost_and_no_entry(void **state)
{
    (void)state;
    if (!has_futex_waitv())
        skip(); /* the engine's sleep on two words needs it, or io_uring */
    struct stress *t = calloc(1, sizeof *t);
    pthread_t engine;
    t->client.rnd = 1;
    t->engine.rnd = 2;
    open_channel(t);
    assert_int_equal(pthread_create(&engine, NULL, engine_thread, t), 0);
    client_run(t);
    pthread_join(engine, NULL);
    print_message("sleeps: client %llu, engine %llu (%llu with held tokens)\n",
                  (unsigned long long)t->client.sleeps, (unsigned long long)t->engine.sleeps,
                  (unsigned long long)t->engine.held_sleeps);
    if (t->client.faults || t->engine.faults)
        fail_msg("client: %s; engine: %s", t->client.why ? t->client.why : "fine",
                 t->engine.why ? t->engine.why : "fine");
    assert_int_equal(t->client.lost + t->engine.lost, 0);
    assert_true(t->client.sleeps && t->engine.sleeps && t->engine.held_sleeps);
    free(t->up);
    free(t->down);
    free(t->pulse);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_wake_is_lost_and_no_entry)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
