/* test_sample_penalties.c - biases and penalties against a simple reference, candidates, and what
 * they must leave alone: log-probabilities, purity, draws without them.
 */
#include "../../gpu/cpu/sample_pass.h"
#include "../support/support.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 3100, HISTORY = 700, BIASES = 40 };

static bool have_avx2(void)
{
    return sample_avx2.row && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

struct row {
    struct rnd random;
    float x[VOCAB];
    int32_t history[HISTORY];
    struct gpu_bias biases[BIASES];
    void *scratch;
    struct gpu_candidate top[GPU_TOP_LOGPROBS_MAX];
};

static struct row *row_made(uint64_t seed)
{
    struct row *r = calloc(1, sizeof *r);
    r->random = (struct rnd){seed};
    r->scratch = aligned_alloc(64, (sample_scratch_bytes(VOCAB) + 63) / 64 * 64);
    assert_non_null(r->scratch);
    for (int i = 0; i < VOCAB; i++)
        r->x[i] = 12.0f * (rnd_float(&r->random) - 0.5f);
    for (int i = 0; i < HISTORY; i++) /* many of them several times */
        r->history[i] = (int32_t)rnd_below(&r->random, i % 3 ? 60 : VOCAB);
    for (uint32_t i = 0; i < BIASES; i++) /* each token once */
        r->biases[i] = (struct gpu_bias){(int32_t)(i * 70 + rnd_below(&r->random, 70)),
                                         20.0f * (rnd_float(&r->random) - 0.5f)};
    return r;
}

static void row_free(struct row *r)
{
    free(r->scratch);
    free(r);
}

/* All parameters vary with `i`. */
static struct gpu_output output(struct row *r, uint32_t i)
{
    static const float repetition[] = {1.0f, 1.3f, 0.7f, 0.0f}, presence[] = {0.0f, 1.5f, -2.0f};
    static const float frequency[] = {0.0f, 0.4f, -0.1f};
    return (struct gpu_output){
        .target = -1,
        .position = i,
        .history = r->history,
        .n_history = rnd_below(&r->random, HISTORY + 1) / (i % 5 + 1),
        .sampling = {.temperature = i % 2 ? 0.0f : 0.9f,
                     .top_p = i % 7 ? 1.0f : 0.9f,
                     .top_k = i % 11 ? 0 : 40,
                     .seed = 5,
                     .repetition = repetition[i % 4],
                     .presence = presence[i / 4 % 3],
                     .frequency = frequency[i / 12 % 3],
                     .biases = r->biases,
                     .n_biases = i % 3 ? rnd_below(&r->random, BIASES + 1) : 0}};
}

/* As gpu.h words it: token by token, over the whole history for each. */
static void reference(const struct row *r, const struct gpu_output *out, float *to)
{
    const struct gpu_sampling *s = &out->sampling;
    memcpy(to, r->x, sizeof r->x);
    for (uint32_t i = 0; i < s->n_biases; i++)
        to[s->biases[i].token] += s->biases[i].bias;
    for (int32_t t = 0; t < VOCAB; t++) {
        uint32_t all = 0, generated = 0;
        for (uint32_t i = 0; i < out->n_history; i++) {
            all += out->history[i] == t;
            generated += out->history[i] == t && i >= out->n_prompt;
        }
        if (all && s->repetition > 0)
            to[t] = to[t] > 0 ? to[t] / s->repetition : to[t] * s->repetition;
        to[t] -= (float)generated * s->frequency + (generated ? s->presence : 0.0f);
    }
}

/* A draw from changed logits is a draw from those logits without parameters. */
static void as_the_reference_has_it(void **state)
{
    (void)state;
    struct row *r = row_made(1);
    float changed[VOCAB];
    int differs = 0;
    for (uint32_t i = 0; i < 400; i++) {
        struct gpu_output out = output(r, i), bare = out;
        out.n_prompt = rnd_below(&r->random, out.n_history + 1);
        bare.sampling.repetition = bare.sampling.presence = bare.sampling.frequency = 0;
        bare.sampling.n_biases = 0;
        reference(r, &out, changed);
        memset(r->scratch, (int)i, sample_scratch_bytes(VOCAB));
        struct gpu_result got = sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch);
        struct gpu_result want = sample_plain.row(changed, NULL, VOCAB, &bare, r->scratch);
        assert_int_equal(got.token, want.token);
        differs += got.token != sample_plain.row(r->x, NULL, VOCAB, &bare, r->scratch).token;
        out.target = got.token; /* a score says nothing of parameters */
        bare.target = got.token;
        assert_true(got.logprob == sample_plain.row(r->x, NULL, VOCAB, &bare, r->scratch).logprob);
        assert_true(got.logprob == sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch).logprob);
    }
    assert_in_range(differs, 100, 400); /* they had an effect */
    row_free(r);
}

static void both_bodies_alike(void **state)
{
    (void)state;
    if (!have_avx2())
        skip();
    struct row *r = row_made(2);
    struct gpu_candidate top[GPU_TOP_LOGPROBS_MAX];
    for (uint32_t i = 0; i < 600; i++) {
        struct gpu_output out = output(r, i);
        if (i % 9 == 0)
            r->x[rnd_below(&r->random, VOCAB)] = i % 2 ? NAN : INFINITY;
        out.top = r->top;
        out.n_top = i % (GPU_TOP_LOGPROBS_MAX + 1);
        struct gpu_result a = sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch);
        out.top = top;
        struct gpu_result b = sample_avx2.row(r->x, NULL, VOCAB, &out, r->scratch);
        assert_memory_equal(&a, &b, sizeof a);
        assert_memory_equal(r->top, top, a.n_top * sizeof *top);
    }
    row_free(r);
}

static void a_ban_and_a_force(void **state)
{
    (void)state;
    struct row *r = row_made(3);
    struct gpu_output out = {.target = -1, .sampling = {.temperature = 0.0f, .biases = r->biases}};
    int32_t first = sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch).token;
    r->biases[0] = (struct gpu_bias){first, -100.0f};
    out.sampling.n_biases = 1;
    assert_int_not_equal(sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch).token, first);
    r->biases[0] = (struct gpu_bias){77, 100.0f};
    out.sampling.temperature = 1.0f;
    for (uint32_t i = 0; i < 50; i++) {
        out.position = i;
        out.top = r->top, out.n_top = 5;
        struct gpu_result got = sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch);
        assert_int_equal(got.token, 77); /* outside its candidates, by the model's distribution */
        for (uint32_t k = 0; k < 5; k++) {
            assert_int_not_equal(r->top[k].token, 77);
            assert_true(r->top[k].logprob > got.logprob);
        }
    }
    row_free(r);
}

/* What is infinite or no number stays harmless. */
static void extremes(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0.0f, -0.0f};
    struct row *r = row_made(4);
    for (uint32_t i = 0; i < 300; i++) {
        struct gpu_output out = output(r, i);
        out.sampling.repetition = i % 2 ? 1e-30f : 1e30f;
        for (int k = 0; k < 20; k++)
            r->x[rnd_below(&r->random, 60)] = values[rnd_below(&r->random, 7)];
        struct gpu_result got = sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch);
        assert_in_range(got.token, 0, VOCAB - 1);
        assert_true(got.logprob <= 0.0f);
    }
    for (int i = 0; i < VOCAB; i++)
        r->x[i] = -INFINITY;
    struct gpu_output out = output(r, 1);
    out.top = r->top, out.n_top = 3;
    assert_int_equal(sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch).n_top, 0);
    row_free(r);
}

/* ---- candidates ---- */

static bool before(const struct row *r, int32_t a, int32_t b)
{
    return r->x[a] > r->x[b] || (r->x[a] == r->x[b] && a < b);
}

/* Sorted, and nothing outside goes before the last. */
static void check_top(const struct row *r, const struct gpu_result *got, uint32_t n, uint32_t vocab)
{
    bool in[VOCAB] = {false};
    double sum = 0;
    assert_int_equal(got->n_top, n < vocab ? n : vocab);
    for (uint32_t k = 0; k < got->n_top; k++) {
        in[r->top[k].token] = true;
        sum += exp((double)r->top[k].logprob);
        assert_true(!k || before(r, r->top[k - 1].token, r->top[k].token));
    }
    for (int32_t t = 0; t < (int32_t)vocab; t++)
        assert_true(in[t] || before(r, r->top[got->n_top - 1].token, t));
    assert_true(sum < 1.00001);
    if (got->n_top == vocab)
        assert_true(sum > 0.99999);
}

static void candidates_are_the_likeliest(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {1, 2, 7, 19, 20, 21, 300, 1024, 1025, VOCAB};
    struct row *r = row_made(5);
    for (int coarse = 0; coarse < 2; coarse++) {
        for (int i = 0; coarse && i < VOCAB; i++)
            r->x[i] = rintf(r->x[i]); /* many are equal */
        for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
            for (uint32_t n = 1; n <= GPU_TOP_LOGPROBS_MAX; n++) {
                struct gpu_output out = {.target = -1, .top = r->top, .n_top = n};
                struct gpu_result got = sample_plain.row(r->x, NULL, vocabs[v], &out, r->scratch);
                check_top(r, &got, n, vocabs[v]);
                assert_int_equal(got.token, r->top[0].token); /* greedy */
                assert_true(got.logprob == r->top[0].logprob);
            }
    }
    row_free(r);
}

/* Asking for candidates changes no draw. */
static void candidates_change_nothing(void **state)
{
    (void)state;
    struct row *r = row_made(6);
    for (uint32_t i = 0; i < 200; i++) {
        struct gpu_output out = output(r, i);
        struct gpu_result bare = sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch);
        out.top = r->top, out.n_top = 20;
        struct gpu_result got = sample_plain.row(r->x, NULL, VOCAB, &out, r->scratch);
        assert_int_equal(got.token, bare.token);
        assert_true(got.logprob == bare.logprob);
    }
    row_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_reference_has_it),
        cmocka_unit_test(both_bodies_alike),
        cmocka_unit_test(a_ban_and_a_force),
        cmocka_unit_test(extremes),
        cmocka_unit_test(candidates_are_the_likeliest),
        cmocka_unit_test(candidates_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
