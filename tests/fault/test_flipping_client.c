/* test_flipping_client.c - failure test (7): a thread of the client flips lengths, offsets, ids and
 * all else in its memory while the engine reads it. The engine judges the copy that it took: no id
 * outside the vocabulary and no bad step reaches the backend (tests/support/fake_gpu.h checks each),
 * a neighbour's tokens stay the model's own, also where its prompt begins as the flipped ones do and
 * may be found in the prefix cache.
 */
#include "../unit/clients_rig.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { PROMPT = 40, OUTPUT = 8, REQUESTS = 300, ROUNDS_MOST = 20000000 };

static atomic_bool stop;
static atomic_uint flips;

/* ---- the thread ---- */

/* Mostly what could be meant, so that much is taken; now and then anything. */
static uint32_t odd(struct rnd *r, uint32_t usual)
{
    return rnd_below(r, 256) ? rnd_below(r, usual) : rnd_u32(r);
}

static void flip_entry(struct rnd *r, volatile struct llm_sqe *q)
{
    switch (rnd_below(r, 10)) {
    case 0:
        q->tokens_off = odd(r, 65536 / 4) * (rnd_below(r, 64) ? 4 : 1);
        break;
    case 1:
    case 2:
        q->tokens_len = odd(r, PROMPT + 1);
        break;
    case 3:
        q->max_tokens = odd(r, OUTPUT);
        break;
    case 4:
        q->choices = (uint16_t)odd(r, 3);
        break;
    case 5:
        q->op = (uint8_t)odd(r, LLM_OP_LAST + 1);
        break;
    case 6:
        q->options_len = odd(r, 2);
        q->options_off = odd(r, 65536);
        break;
    case 7:
        q->session = rnd_below(r, 2);
        q->target = rnd_below(r, 4);
        break;
    case 8:
        q->flags = (uint8_t)rnd_below(r, 64);
        q->temperature = rnd_below(r, 4) ? 0.0f : (float)(int32_t)rnd_u32(r) * __builtin_inff();
        break;
    default:
        q->user_data = rnd_below(r, 4);
    }
}

static void *flip(void *argument)
{
    struct peer *p = argument;
    struct rnd r = {p->sent + 77};
    volatile int32_t *arena = (volatile int32_t *)(void *)p->ring.arena;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint32_t tail = order_relaxed(&p->up->sq_tail);
        flip_entry(&r, &p->up->entries[(tail - rnd_below(&r, 3)) % 256]);
        arena[rnd_below(&r, 4 * PROMPT)] = (int32_t)odd(&r, VOCAB);
        order_set(&p->up->cq_wait, rnd_below(&r, 4));
        atomic_fetch_add_explicit(&flips, 1, memory_order_relaxed);
    }
    return NULL;
}

/* ---- the flipped client ---- */

struct flipper {
    struct peer peer;
    pthread_t thread;
    uint32_t evicted;
};

static void begin(struct flipper *f)
{
    f->peer = join();
    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&f->thread, NULL, flip, &f->peer), 0);
}

static void end(struct flipper *f)
{
    atomic_store(&stop, true);
    pthread_join(f->thread, NULL);
}

/* Something was flipped since. */
static void wait_for_flips(unsigned seen, unsigned more)
{
    while (atomic_load_explicit(&flips, memory_order_relaxed) - seen < more)
        sched_yield();
}

static void begin_again(struct flipper *f)
{
    if (rig.clients.slots[f->peer.slot].state == CLIENT_LIVE)
        return;
    end(f);
    assert_int_equal(order_acquire(&f->peer.down->evicted), 1);
    assert_true(strlen(f->peer.down->evict_text) > 10);
    let_leave(f->peer.slot);
    part(&f->peer);
    f->evicted++;
    begin(f);
}

/* As a sound client would, whatever happens to the entry then. Not by the library's end of the ring,
 * which would notice. */
static void send_one(struct flipper *f)
{
    const struct ring_engine *e = &rig.clients.slots[f->peer.slot].ring;
    uint32_t tail = f->peer.ring.sq_tail;
    if (e->inflight + 4 > e->max_inflight || tail - e->sq_head > 200)
        return;
    f->peer.up->entries[tail % 256] = (struct llm_sqe){.seq = tail,
                                                       .op = LLM_OP_GENERATE,
                                                       .tokens_len = PROMPT,
                                                       .max_tokens = OUTPUT,
                                                       .choices = 1,
                                                       .top_p = 1,
                                                       .repetition = 1};
    f->peer.ring.sq_tail = tail + 1;
    order_release(&f->peer.up->sq_tail, tail + 1);
}

/* Takes without judging: what it is owed is not what it asked for. */
static void take_blindly(struct flipper *f)
{
    const struct ring_engine *e = &rig.clients.slots[f->peer.slot].ring;
    f->peer.ring.cq_head = e->cq_published;
    order_release(&f->peer.up->cq_head, e->cq_published);
}

/* ---- the neighbour ---- */

static int32_t prompt_of_both(uint32_t i)
{
    return (int32_t)(i * 5 % VOCAB);
}

static void ask(struct peer *p)
{
    int32_t *tokens = ring_reserve(&p->ring, PROMPT);
    struct llm_sqe *q = ring_next(&p->ring, 1);
    assert_true(tokens && q);
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = prompt_of_both(i);
    q->op = LLM_OP_GENERATE;
    q->flags = LLM_SQE_IGNORE_EOS;
    q->user_data = ++p->sent;
    q->tokens_off = (uint32_t)((uint8_t *)tokens - p->ring.arena);
    q->tokens_len = PROMPT;
    q->max_tokens = OUTPUT;
    q->choices = 1;
    q->top_p = q->repetition = 1;
    ring_commit(&p->ring, 1);
    ring_submit(&p->ring);
}

/* Tokens as they come are those of the model. True at the end of a request. */
static bool hear(struct peer *p, const int32_t *expected)
{
    struct llm_cqe c;
    struct llm_result r;
    bool ended = false;
    while (ring_poll(&p->ring, &c, &r)) {
        assert_int_not_equal(c.type, LLM_CQE_ERROR);
        if (c.type == LLM_CQE_TOKENS)
            assert_memory_equal(c.tokens, expected + c.position, c.count * sizeof *c.tokens);
        ended |= c.type == LLM_CQE_DONE;
        p->tokens += c.type == LLM_CQE_TOKENS ? c.count : 0;
    }
    ring_drained(&p->ring);
    return ended;
}

static void think(int32_t *history)
{
    struct gpu_sampling greedy = {0};
    for (uint32_t i = 0; i < PROMPT; i++)
        history[i] = prompt_of_both(i);
    for (uint32_t n = PROMPT; n < PROMPT + OUTPUT; n++)
        history[n] = fake_model_next(history, n, &greedy, VOCAB);
}

static void nobody_else_is_told_lies(void **state)
{
    (void)state;
    static int32_t history[PROMPT + OUTPUT];
    struct flipper f = {0};
    struct peer honest = join();
    uint32_t finished = 0, steps = 0;
    think(history);
    begin(&f);
    ask(&honest);
    uint32_t evictions = test_sanitized() ? 6 : 20;
    for (int round = 0; f.evicted < evictions || finished < REQUESTS; round++) {
        assert_true(round < ROUNDS_MOST);
        for (uint32_t i = 0; i < PROMPT; i++) /* the same beginning, unless it is flipped */
            ((volatile int32_t *)(void *)f.peer.ring.arena)[i] = prompt_of_both(i);
        unsigned seen = atomic_load(&flips);
        send_one(&f);
        wait_for_flips(seen, (unsigned)round % 8);
        sweep();
        begin_again(&f);
        steps += engine_has_work(rig.engine);
        step();
        begin_again(&f);
        take_blindly(&f);
        if (hear(&honest, history + PROMPT)) {
            finished++;
            ask(&honest);
        }
    }
    end(&f);
    print_message("%u steps, %u evictions, %u requests of the neighbour\n", steps, f.evicted,
                  finished);
    assert_true(steps > REQUESTS);
    assert_int_equal(honest.tokens / OUTPUT, finished);
    assert_int_equal(order_read64(&rig.board.map->evictions), f.evicted);
    part(&f.peer);
    part(&honest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {SCENARIO(nobody_else_is_told_lies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
