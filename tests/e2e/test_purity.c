/* test_purity.c - pure logits through the whole engine: 64 prompts one after the other, then
 * together under random arrival, with other prefill chunks, thread counts and budgets. Tokens and
 * log-probabilities must be the same bits. */
#include "../../client/llmclient.h"
#include "../support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPTS = 64, PROMPT_MAX = 60, OUT_MAX = 24 };

struct answer {
    int32_t tokens[OUT_MAX];
    uint32_t logprobs[OUT_MAX]; /* their bits */
    uint32_t n, finish;
    bool done;
};

struct prompt {
    int32_t ids[PROMPT_MAX];
    uint32_t n, out;
    uint64_t seed;
    float temperature, top_p;
    uint32_t top_k;
};

static struct prompt prompts[PROMPTS];
static struct answer alone[PROMPTS], together[PROMPTS];

static struct llm_client *connect_to(const struct engine_process *e)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    o.spin_us = 20;
    if (llm_connect(&c, e->instance, &o) < 0)
        fail_msg("%s", llm_connect_error());
    return c;
}

static void make_prompts(uint32_t vocab)
{
    struct rnd r = {77};
    for (int i = 0; i < PROMPTS; i++) {
        struct prompt *p = &prompts[i];
        p->n = i < 4 ? (uint32_t)i + 1 : 5 + rnd_below(&r, PROMPT_MAX - 5);
        p->out = 8 + rnd_below(&r, OUT_MAX - 8);
        if (i == 5)
            p->n = PROMPT_MAX, p->out = OUT_MAX; /* six blocks */
        for (uint32_t j = 0; j < p->n; j++)
            p->ids[j] = (int32_t)rnd_below(&r, vocab);
        p->seed = rnd_u32(&r);
        p->temperature = i % 2 ? 0.8f : 0;
        p->top_k = i % 4 == 1 ? 40 : 0;
        p->top_p = i % 4 == 3 ? 0.9f : 1;
    }
}

static void submit(struct llm_client *c, int i)
{
    struct llm_request q = LLM_REQUEST_INIT;
    const struct prompt *p = &prompts[i];
    q.tokens = p->ids, q.n_tokens = p->n, q.max_tokens = p->out;
    q.flags = LLM_SQE_LOGPROBS | (i % 8 ? LLM_SQE_IGNORE_EOS : 0);
    q.seed = p->seed, q.temperature = p->temperature, q.top_p = p->top_p, q.top_k = p->top_k;
    q.user_data = (uint64_t)i + 1;
    if (llm_submit(c, &q, NULL) < 0)
        fail_msg("%s", llm_errmsg(c));
}

static void take(struct answer *answers, const struct llm_event *e)
{
    struct answer *a = &answers[e->id - 1];
    assert_false(a->done);
    assert_int_not_equal(e->type, LLM_EVENT_ERROR);
    if (e->type == LLM_EVENT_DONE) {
        a->done = true;
        a->finish = e->finish;
        return;
    }
    assert_int_equal(e->position, a->n);
    for (uint32_t i = 0; i < e->n_tokens; i++, a->n++) {
        assert_true(a->n < OUT_MAX);
        a->tokens[a->n] = e->tokens[i];
        memcpy(&a->logprobs[a->n], &e->logprobs[i], 4);
    }
}

static void wait_one(struct llm_client *c, struct answer *answers)
{
    struct llm_event e;
    if (llm_wait(c, &e, 120000) != 1)
        fail_msg("no event: %s", llm_errmsg(c));
    take(answers, &e);
}

static void run_alone(const char *model)
{
    struct engine_process e = {0};
    engine_start(&e, model, "--max-model-len", "128", NULL);
    struct llm_client *c = connect_to(&e);
    struct llm_limits limits;
    llm_get_limits(c, &limits);
    make_prompts(limits.vocab);
    memset(alone, 0, sizeof alone);
    for (int i = 0; i < PROMPTS; i++)
        for (submit(c, i); !alone[i].done;)
            wait_one(c, alone);
    llm_close(c);
    assert_int_equal(engine_figure(&e, "max_seqs_in_step"), 1);
    assert_int_equal(engine_stop(&e), 0);
}

static void run_together(const char *model, const char *chunk, const char *threads,
                         const char *budget, const char *blocks)
{
    struct engine_process e = {0};
    engine_start(&e, model, "--max-model-len", "128", "--prefill-chunk", chunk, "--threads",
                 threads, "--max-num-batched-tokens", budget, blocks ? "--num-kv-blocks" : NULL,
                 blocks, NULL);
    struct llm_client *c = connect_to(&e);
    struct rnd r = {(uint64_t)atoi(chunk) * 1000 + (uint64_t)atoi(threads)};
    memset(together, 0, sizeof together);
    for (int i = 0, done = 0; done < PROMPTS;) {
        for (uint32_t n = rnd_below(&r, 6); i < PROMPTS && n; n--)
            submit(c, i++);
        if (llm_inflight(c))
            wait_one(c, together);
        done = 0;
        for (int j = 0; j < PROMPTS; j++)
            done += together[j].done;
    }
    llm_close(c);
    for (int i = 0; i < PROMPTS; i++) {
        if (memcmp(&alone[i], &together[i], sizeof alone[i]))
            fail_msg("prompt %d differs with chunk %s, threads %s, budget %s", i, chunk, threads,
                     budget);
        assert_true(alone[i].n > 0);
    }
    assert_true(engine_figure(&e, "mixed_steps") > 0);
    assert_true(engine_figure(&e, "max_seqs_in_step") >= 8);
    if (blocks)
        assert_true(engine_figure(&e, "preemptions") > 0);
    else
        assert_int_equal(engine_figure(&e, "preemptions"), 0);
    assert_int_equal(engine_figure(&e, "kv_blocks_free"), engine_figure(&e, "kv_blocks_total"));
    assert_int_equal(engine_figure(&e, "backstop_rescues"), 0);
    assert_int_equal(engine_stop(&e), 0);
}

static void check_model(const char *model)
{
    run_alone(model);
    static const char *const chunks[] = {"1", "7", "64", "512"};
    for (int i = 0; i < 4; i++)
        for (int threads = 1; threads <= 2; threads++)
            run_together(model, chunks[i], threads == 1 ? "1" : "2", "512", NULL);
    run_together(model, "512", "2", "16", NULL);
    run_together(model, "64", "2", "512",
                 "40"); /* so few blocks that sequences are preempted and computed again */
}

static void small_model(void **state)
{
    (void)state;
    check_model(golden_path("tiny_gguf/llama.Q4_1.gguf"));
}

static void smollm2(void **state)
{
    (void)state;
    if (test_sanitized())
        skip(); /* it would take too long: the small one walks the same code */
    check_model(real_model_path());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(small_model), cmocka_unit_test(smollm2)};
    return cmocka_run_group_tests_name("purity", tests, NULL, NULL);
}
