/* The scheduling core under random loads, limits, rings, cancels, departures and backend failures,
 * seed by seed. LLMD_EXHAUSTIVE in the environment: many seeds. A failing seed is printed; run it
 * alone with SEED=n. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/engine_rig.h"

enum { REQUESTS = 90, SEEDS = 60, SEEDS_EXHAUSTIVE = 5000 };

struct soak {
    struct rig r;
    uint64_t random;
    uint32_t n; /* requests so far, cancels included */
    uint32_t client_of[2 * REQUESTS];
    struct llm_sqe q[2 * REQUESTS];
    bool failed; /* a step has failed */
};

static uint32_t below(struct soak *k, uint32_t n)
{
    k->random ^= k->random << 13;
    k->random ^= k->random >> 7;
    k->random ^= k->random << 17;
    return (uint32_t)((k->random >> 16) % n);
}

static uint32_t one_of(struct soak *k, const uint32_t *values, uint32_t n)
{
    return values[below(k, n)];
}

static void random_limits(struct soak *k)
{
    static const uint32_t chunks[] = {0, 1, 5, 16, 64}, budgets[] = {1, 2, 7, 16, 64, 300},
                          places[] = {1, 2, 5, 16, 64}, blocks[] = {9, 12, 16, 30, 300},
                          requests[] = {8, 20, 100};
    struct engine_config *c = &k->r.config;
    c->prefill_chunk = one_of(k, chunks, 5);
    c->max_num_batched_tokens = one_of(k, budgets, 6);
    c->max_num_seqs = one_of(k, places, 5);
    c->n_blocks = one_of(k, blocks, 5);
    c->max_requests = one_of(k, requests, 3);
}

static struct llm_sqe random_request(struct soak *k, uint64_t id)
{
    uint32_t n_prompt = 2 + below(k, below(k, 4) ? 30 : 90);
    if (below(k, 6) == 0)
        return rig_score(id, n_prompt);
    struct llm_sqe q = rig_generate(id, n_prompt, 1 + below(k, 50));
    q.choices = below(k, 4) ? 1 : (uint16_t)(1 + below(k, 8));
    q.temperature = below(k, 2) ? 0.8f : 0.0f;
    q.flags = (uint8_t)below(k, 4);
    if (below(k, 30) == 0)
        q.max_tokens = 0; /* to be refused */
    return q;
}

static void send_one(struct soak *k)
{
    uint32_t client = below(k, RIG_CLIENTS);
    if (k->n == 2 * REQUESTS || k->r.gone[client])
        return;
    uint64_t id = k->n + 1;
    struct llm_sqe q =
        below(k, 5) ? random_request(k, id) : rig_cancel(id, 1 + below(k, (uint32_t)id));
    int32_t tokens[RIG_TOKENS];
    rig_prompt(&k->r, id, tokens, q.tokens_len);
    if (!rig_submit(&k->r, client, &q, tokens))
        return;
    k->client_of[k->n] = client;
    k->q[k->n++] = q;
}

static void random_event(struct soak *k)
{
    uint32_t client = below(k, RIG_CLIENTS);
    switch (below(k, 12)) {
    case 0:
    case 1:
    case 2:
    case 3:
        send_one(k);
        break;
    case 4:
        k->r.room[client] = below(k, 4) ? below(k, 6) : RIG_ROOM_ENDLESS;
        break;
    case 5:
        if (!k->r.gone[client])
            engine_deliver(k->r.engine, client);
        break;
    case 6:
        if (client && below(k, 30) == 0) /* client 0 stays */
            rig_drop(&k->r, client);
        break;
    default:
        k->failed |= engine_step(k->r.engine) < 0;
    }
}

static void settle(struct soak *k)
{
    for (uint32_t i = 0; i < RIG_CLIENTS; i++)
        k->r.room[i] = RIG_ROOM_ENDLESS;
    for (uint32_t i = 0; engine_has_work(k->r.engine); i++) {
        assert_true(i < 100000);
        k->failed |= engine_step(k->r.engine) < 0;
    }
    for (uint32_t i = 0; i < RIG_CLIENTS; i++) {
        if (!k->r.gone[i])
            engine_deliver(k->r.engine, i);
        assert_false(engine_holds(k->r.engine, i));
    }
}

/* Was it ended from outside: a cancel that came after it, or a failed step? */
static bool cut_short(struct soak *k, uint32_t i, uint32_t choice)
{
    const struct rig_stream *s = rig_stream(&k->r, k->client_of[i], k->q[i].user_data, choice);
    return s->final.finish == LLM_FINISH_CANCELLED || s->final.status == LLM_EENGINE;
}

static void check_request(struct soak *k, uint32_t i)
{
    const struct llm_sqe *q = &k->q[i];
    bool cut = false;
    for (uint32_t choice = 0; choice < engine_finals(q); choice++) {
        const struct rig_stream *s = rig_stream(&k->r, k->client_of[i], q->user_data, choice);
        assert_int_equal(s->finals, 1);
        if (s->final.finish == LLM_FINISH_ERROR)
            assert_true(k->failed);
        cut |= cut_short(k, i, choice);
    }
    if (q->op == LLM_OP_CANCEL)
        return;
    if (q->op == LLM_OP_GENERATE && !q->max_tokens)
        rig_expect_refused(&k->r, k->client_of[i], q, LLM_EPARAM, 0);
    else if (cut)
        rig_expect_prefix(&k->r, k->client_of[i], q);
    else
        rig_expect_whole(&k->r, k->client_of[i], q);
}

static void soak(uint32_t seed)
{
    static struct soak k;
    memset(&k, 0, sizeof k);
    k.random = seed * 0x9e3779b97f4a7c15u + 1;
    rig_init(&k.r);
    random_limits(&k);
    rig_open(&k.r);
    if (seed % 4 == 0)
        k.r.gpu.fail_wait_at = 1 + below(&k, 200);
    while (k.n < REQUESTS)
        random_event(&k);
    settle(&k);
    for (uint32_t i = 0; i < k.n; i++)
        if (k.r.gone[k.client_of[i]])
            rig_expect_prefix(&k.r, k.client_of[i], &k.q[i]);
        else
            check_request(&k, i);
    rig_close(&k.r);
}

static uint32_t seed_now;

static void say_seed(int signal_number)
{
    (void)signal_number;
    fprintf(stderr, "seed %u\n", seed_now);
}

static void random_seeds(void **state)
{
    (void)state;
    const char *one = getenv("SEED");
    uint32_t first = one ? (uint32_t)atoi(one) : 1;
    uint32_t n = one ? 1 : getenv("LLMD_EXHAUSTIVE") ? SEEDS_EXHAUSTIVE : SEEDS;
    signal(SIGABRT, say_seed);
    for (seed_now = first; seed_now < first + n; seed_now++)
        soak(seed_now);
    seed_now = 0;
}

static int say_failed_seed(void **state)
{
    (void)state;
    if (seed_now)
        say_seed(0);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(random_seeds, say_failed_seed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
