/* Pure logits through the scheduler, on the CPU backend: random workloads over all operations (see
 * engine_load.h), then each request alone, without cache, batch, sessions, preemption or
 * speculation, on a backend of one thread. Tokens and log-probabilities must be the same bits. A failing seed
 * is printed; run it alone with SEED=n. */
#include "../support/engine_load.h"
#include "../support/gpu_rig.h"
#include "../support/support.h"
#include "../support/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 60, SEEDS = 30, SEEDS_SANITIZED = 5, SEEDS_EXHAUSTIVE = 1000 };

static struct load loaded;
static struct rig alone;
static struct tiny_model model;
static uint32_t compared; /* streams, in all */
static uint64_t accepted; /* tokens of drafts, in all */

static void open_backend(struct gpu_rig *g, struct rig *r, uint32_t threads, uint32_t seed)
{
    struct gpu_config c = {.threads = threads,
                           .max_rows = r->config.max_num_batched_tokens,
                           .max_seqs = r->config.max_num_seqs,
                           .max_outputs = r->config.max_num_batched_tokens,
                           .max_len = r->config.max_model_len,
                           .kv_type = (enum gpu_kv_type)(seed % GPU_KV_TYPES)};
    struct gpu_source source = tiny_source(&model);
    gpu_rig_open(g, &c, &model.net, &source, r->config.n_blocks);
    r->config.vocab = g->vocab;
    r->ops = g->ops;
    r->device = g->gpu;
    rig_open(r);
}

/* The request that the stream was of, with its history for a prompt. */
static struct llm_sqe request_of(const struct rig_stream *s, uint64_t id)
{
    struct llm_sqe q = rig_score(id, s->n_known);
    if (s->op != LLM_OP_GENERATE)
        return q;
    q = rig_generate(id, s->n_known, s->q.max_tokens);
    q.flags = s->q.flags & (LLM_SQE_IGNORE_EOS | LLM_SQE_LOGPROBS);
    q.seed = s->q.seed;
    q.temperature = s->q.temperature;
    q.repetition = s->q.repetition;
    q.presence = s->q.presence;
    q.frequency = s->q.frequency;
    q.first_choice = (uint16_t)s->choice;
    q.output_from = s->q.output_from;
    return q;
}

static void expect_same(const struct rig_stream *s, const struct rig_stream *a)
{
    uint32_t first = s->op == LLM_OP_CHOOSE ? s->q.tokens_len - 1 : 0;
    assert_true(first + s->n <= a->n);
    assert_memory_equal(s->tokens, a->tokens + first, s->n * sizeof *s->tokens);
    assert_memory_equal(s->logprob, a->logprob + first, s->n * sizeof *s->logprob);
    assert_memory_equal(s->candidates, a->candidates + first, s->n * sizeof *s->candidates);
    if (!s->finals || load_cut_short(s))
        return;
    assert_int_equal(first + s->n, a->n);
    assert_int_equal(s->final.finish, a->final.finish);
    assert_int_equal(s->result.stop, a->result.stop);
    assert_int_equal(s->result.stop_cut, a->result.stop_cut);
}

static bool brought_something(const struct rig_stream *s)
{
    return s->n && s->op != LLM_OP_CANCEL && !load_refused(s);
}

static void run_alone(uint32_t seed)
{
    struct gpu_rig backend;
    rig_init(&alone);
    alone.config.n_blocks = 40;
    alone.config.text = &loaded.text;
    alone.top[0] = LLM_TOP_MAX;
    open_backend(&backend, &alone, 1, seed);
    for (uint32_t i = 0; i < loaded.r.n_streams; i++) {
        const struct rig_stream *s = &loaded.r.streams[i];
        if (!brought_something(s))
            continue;
        struct llm_sqe q = request_of(s, i + 1);
        struct rig_wish wish = s->wish;
        if (!s->finals || load_cut_short(s)) /* then it may have brought tokens of a string */
            wish.n_stops = 0;
        q.options_len = rig_wish(&alone, &wish);
        assert_true(rig_submit(&alone, 0, &q, s->known));
        rig_run(&alone);
        expect_same(s, rig_stream(&alone, 0, i + 1, q.first_choice));
        compared++;
    }
    rig_close(&alone);
    gpu_rig_close(&backend);
}

static void one_seed(uint32_t seed)
{
    struct gpu_rig backend;
    load_begin(&loaded, seed);
    loaded.audited = true;
    open_backend(&backend, &loaded.r, seed % 5 ? 1 : 2, seed);
    load_run(&loaded, ENTRIES);
    accepted += rig_figure(&loaded.r.board->spec_accepted_tokens);
    run_alone(seed);
    rig_close(&loaded.r);
    gpu_rig_close(&backend);
}

static uint32_t seed_now;

static void random_seeds(void **state)
{
    (void)state;
    struct tiny_config config = tiny_mixed();
    const char *one = getenv("SEED");
    uint32_t first = one ? (uint32_t)atoi(one) : 1, n = one ? 1 : SEEDS;
    tiny_make(&model, &config);
    if (!one && test_sanitized())
        n = SEEDS_SANITIZED;
    else if (!one && test_exhaustive())
        n = SEEDS_EXHAUSTIVE;
    for (seed_now = first; seed_now < first + n; seed_now++)
        one_seed(seed_now);
    seed_now = 0;
    assert_true(one || (compared > n * ENTRIES / 4 && accepted > n));
    tiny_free(&model);
}

static int say_failed_seed(void **state)
{
    (void)state;
    if (seed_now)
        fprintf(stderr, "seed %u\n", seed_now);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(random_seeds, say_failed_seed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
