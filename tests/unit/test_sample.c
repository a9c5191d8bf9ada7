/* test_sample.c - sampling: the reference data, the draw's distribution, purity, both bodies alike.
 */
#include "../../gpu/cpu/math.h"
#include "../../gpu/cpu/rng.h"
#include "../../gpu/cpu/sample_pass.h"
#include "../support/support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct gpu_sampling as_it_is = {.temperature = 1.0f, .top_p = 1.0f};

static bool have_avx2(void)
{
    return sample_avx2.row && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static void *scratch_of(uint32_t vocab)
{
    void *p = aligned_alloc(64, (sample_scratch_bytes(vocab) + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xff, sample_scratch_bytes(vocab));
    return p;
}

/* ---- reference data ---- */

static double number(const json_t *params, const char *key, double otherwise)
{
    const json_t *v = json_object_get(params, key);
    return v ? json_number_value(v) : otherwise;
}

/* What a case's parameters say; the history and biases are freed by the caller. */
struct reference {
    struct gpu_output out;
    int32_t *history;
    struct gpu_bias *biases;
};

static void read_history(struct reference *r, const json_t *params)
{
    const json_t *prompt = json_object_get(params, "prompt_ids");
    const json_t *output = json_object_get(params, "output_ids"), *one;
    size_t i, n = json_array_size(prompt) + json_array_size(output);
    r->history = calloc(n + 1, sizeof *r->history);
    json_array_foreach(prompt, i, one) r->history[r->out.n_history++] =
        (int32_t)json_integer_value(one);
    r->out.n_prompt = r->out.n_history;
    json_array_foreach(output, i, one) r->history[r->out.n_history++] =
        (int32_t)json_integer_value(one);
    r->out.history = r->history;
}

static void read_biases(struct reference *r, json_t *params)
{
    json_t *biases = json_object_get(params, "logit_bias"), *one;
    const char *token;
    r->biases = calloc(json_object_size(biases) + 1, sizeof *r->biases);
    json_object_foreach(biases, token, one) r->biases[r->out.sampling.n_biases++] =
        (struct gpu_bias){atoi(token), (float)json_number_value(one)};
    r->out.sampling.biases = r->biases;
}

static struct reference read_params(json_t *params)
{
    struct reference r = {.out.target = -1};
    r.out.sampling =
        (struct gpu_sampling){.temperature = (float)number(params, "temperature", 1.0),
                              .top_p = (float)number(params, "top_p", 1.0),
                              .min_p = (float)number(params, "min_p", 0.0),
                              .top_k = (uint32_t)number(params, "top_k", 0.0),
                              .repetition = (float)number(params, "repetition_penalty", 1.0),
                              .presence = (float)number(params, "presence_penalty", 0.0),
                              .frequency = (float)number(params, "frequency_penalty", 0.0)};
    read_history(&r, params);
    read_biases(&r, params);
    return r;
}

/* -infinity is written as the text "-inf". */
static float logit_of(const json_t *v)
{
    return json_is_number(v) ? (float)json_number_value(v) : -INFINITY;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Within 1e-5 each; probability of tokens that only one of the two kept: at most `apart`. */
static void same_distribution(const float *got, const float *want, size_t n, float apart,
                              const char *name)
{
    float alone = 0.0f;
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(got[i] - want[i]) <= 1e-5f))
            fail_msg("%s: token %zu has %g, not %g", name, i, (double)got[i], (double)want[i]);
        if ((got[i] > 1e-30f) != (want[i] > 1e-30f))
            alone += got[i] + want[i];
    }
    if (alone > apart)
        fail_msg("%s: the supports differ by %g", name, (double)alone);
}

static void reference_case(const json_t *one)
{
    json_t *params = json_object_get(one, "params");
    const json_t *logits = json_object_get(one, "logits"), *probs = json_object_get(one, "probs");
    uint32_t n = (uint32_t)json_array_size(logits);
    float *x = calloc(n, sizeof *x), *want = calloc(n, sizeof *x), *got = calloc(n, sizeof *x);
    struct reference r = read_params(params);
    char *text = json_dumps(params, JSON_COMPACT);
    void *scratch = scratch_of(n);
    assert_int_equal(json_array_size(probs), n);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = logit_of(json_array_get(logits, i));
        want[i] = (float)json_number_value(json_array_get(probs, i));
    }
    sample_distribution(x, n, &r.out, got, scratch);
    bool ties = !strcmp(json_string_value(json_object_get(params, "kind")), "ties");
    if (ties) { /* where top_p cuts equal ones, which of them stay is the oracle's sort's choice */
        qsort(got, n, sizeof *got, descending);
        qsort(want, n, sizeof *want, descending);
    }
    same_distribution(got, want, n, 0.0f, text);
    free(r.history);
    free(r.biases);
    free(scratch);
    free(text);
    free(x);
    free(want);
    free(got);
}

static void reference_data(void **state)
{
    (void)state;
    size_t bytes;
    int checked = 0;
    char *text = golden_read("sampling/cases.jsonl", &bytes), *at = text, *line;
    while ((line = strsep(&at, "\n"))) {
        if (!*line)
            continue;
        json_error_t error;
        json_t *one = json_loads(line, 0, &error);
        if (!one)
            fail_msg("%s in %.60s", error.text, line);
        if (!json_object_get(json_object_get(one, "params"), "typical_p")) { /* not offered */
            reference_case(one);
            checked++;
        }
        json_decref(one);
    }
    assert_in_range(checked, 60, 100000);
    free(text);
}

/* ---- the same, done the simple way ---- */

struct token {
    uint32_t id;
    float logit;
    double weight;
};

static int by_logit(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* Sorts everything, sums in double. How many of the sorted tokens are left. */
static uint32_t naive_filter(struct token *t, uint32_t n, const struct gpu_sampling *s)
{
    double total = 0, sum = 0;
    uint32_t left = 0, k = n;
    qsort(t, n, sizeof *t, by_logit);
    if (s->top_k && s->top_k < n)
        for (k = s->top_k; k < n && t[k].logit == t[k - 1].logit;)
            k++;
    for (uint32_t i = 0; i < n; i++)
        t[i].weight = exp(((double)t[i].logit - (double)t[0].logit) / (double)s->temperature);
    for (uint32_t i = 0; i < k; i++)
        total += t[i].weight;
    while (left < k && (left == 0 || s->top_p >= 1.0f || sum < total * (double)s->top_p))
        sum += t[left++].weight;
    while (left > 1 && t[left - 1].weight < (double)s->min_p)
        left--;
    return left;
}

static void naive_distribution(const float *x, uint32_t n, const struct gpu_sampling *s,
                               float *probs)
{
    struct token *t = calloc(n, sizeof *t);
    for (uint32_t i = 0; i < n; i++)
        t[i] = (struct token){i, x[i], 0};
    uint32_t left = naive_filter(t, n, s);
    double total = 0;
    for (uint32_t i = 0; i < left; i++)
        total += t[i].weight;
    memset(probs, 0, n * sizeof *probs);
    for (uint32_t i = 0; i < left; i++)
        probs[t[i].id] = (float)(t[i].weight / total);
    free(t);
}

/* A few tokens of a language model's shape: most far below, some near the top. With coarse > 0
 * logits are multiples of it, so that many tie. */
static void random_logits(struct rnd *r, float *x, uint32_t n, float spread, float coarse)
{
    for (uint32_t i = 0; i < n; i++) {
        float u = rnd_float(r), v = rnd_float(r);
        x[i] = spread * (u + v * v * v * 2.0f);
        if (coarse > 0.0f)
            x[i] = rintf(x[i] / coarse) * coarse;
    }
}

static const struct gpu_sampling settings[] = {
    {.temperature = 1.0f, .top_p = 1.0f},
    {.temperature = 0.7f, .top_p = 0.9f},
    {.temperature = 1.3f, .top_p = 1.0f, .top_k = 40},
    {.temperature = 0.8f, .top_p = 0.95f, .top_k = 50},
    {.temperature = 2.0f, .top_p = 0.999f},
    {.temperature = 5.0f, .top_p = 0.9f, .min_p = 0.05f},
    {.temperature = 1.0f, .top_p = 1.0f, .min_p = 0.1f},
    {.temperature = 1.0f, .top_p = 1.0f, .min_p = 1e-6f},
    {.temperature = 1.0f, .top_p = 0.5f, .top_k = 5000, .min_p = 0.01f},
    {.temperature = 1.0f, .top_p = 1.0f, .top_k = 1},
    {.temperature = 1.0f, .top_p = 1e-9f},
    {.temperature = 0.05f, .top_p = 0.9f, .top_k = 1000000},
    {.temperature = 30.0f, .top_p = 0.3f},
    {.temperature = 1.0f, .top_p = 1.0f, .min_p = 1.0f},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static const uint32_t vocabs[] = {1, 7, 300, 1024, 1025, 5000, 49152};
enum { N_VOCABS = sizeof vocabs / sizeof *vocabs };

/* At the boundary of top_p float sums and double ones may part by a rare token. */
static void filters_without_sorting(void **state)
{
    (void)state;
    struct rnd r = {11};
    for (int v = 0; v < N_VOCABS; v++)
        for (int coarse = 0; coarse < 2; coarse++) {
            uint32_t n = vocabs[v];
            float *x = calloc(n, sizeof *x), *want = calloc(n, sizeof *x);
            float *got = calloc(n, sizeof *x);
            void *scratch = scratch_of(n);
            random_logits(&r, x, n, 8.0f, coarse ? 0.5f : 0.0f);
            for (int i = 0; i < N_SETTINGS; i++) {
                char name[64];
                snprintf(name, sizeof name, "vocab %u, setting %d, coarse %d", n, i, coarse);
                naive_distribution(x, n, &settings[i], want);
                sample_distribution(x, n, &(struct gpu_output){.sampling = settings[i]}, got,
                                    scratch);
                same_distribution(got, want, n, settings[i].top_p < 1.0f ? 5e-6f : 0.0f, name);
            }
            free(scratch);
            free(x);
            free(want);
            free(got);
        }
}

/* ---- draws ---- */

/* Chi-square of draws against the distribution; rare tokens are counted together. Returns the
 * statistic in standard deviations above its mean. */
static double chi_square(const struct sample_kernels *kernels, const float *x, uint32_t vocab,
                         const struct gpu_sampling *s, uint32_t draws)
{
    float *probs = calloc(vocab, sizeof *probs);
    uint32_t *seen = calloc(vocab, sizeof *seen), rare_seen = 0;
    void *scratch = scratch_of(vocab);
    double statistic = 0, rare = 0;
    int cells = 0;
    sample_distribution(x, vocab, &(struct gpu_output){.sampling = *s}, probs, scratch);
    for (uint32_t i = 0; i < draws; i++) {
        struct gpu_output out = {.target = -1, .position = i, .sampling = *s};
        int32_t t = kernels->row(x, NULL, vocab, &out, scratch).token;
        assert_in_range(t, 0, vocab - 1);
        assert_true(probs[t] > 0.0f);
        seen[t]++;
    }
    for (uint32_t t = 0; t < vocab; t++) {
        double expect = (double)probs[t] * draws;
        if (expect < 8.0) {
            rare += expect;
            rare_seen += seen[t];
            continue;
        }
        statistic += (seen[t] - expect) * (seen[t] - expect) / expect;
        cells++;
    }
    if (rare >= 8.0) {
        statistic += (rare_seen - rare) * (rare_seen - rare) / rare;
        cells++;
    }
    free(scratch);
    free(probs);
    free(seen);
    return cells < 2 ? 0.0 : (statistic - (cells - 1)) / sqrt(2.0 * (cells - 1));
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { VOCAB = 2500, DRAWS = 4000 };
    struct rnd r = {5};
    float *x = calloc(VOCAB, sizeof *x);
    random_logits(&r, x, VOCAB, 4.0f, 0.0f);
    const struct sample_kernels *kernels = have_avx2() ? &sample_avx2 : &sample_plain;
    for (int i = 0; i < N_SETTINGS; i++) {
        struct gpu_sampling s = settings[i];
        s.seed = 1000 + (uint64_t)i;
        double z = chi_square(kernels, x, VOCAB, &s, DRAWS);
        if (!(z < 4.0))
            fail_msg("setting %d: %g standard deviations off", i, z);
    }
    free(x);
}

/* The token is the inverse of the running sum in id order at rng.h's number. */
static void draw_is_the_documented_one(void **state)
{
    (void)state;
    const float x[4] = {logf(0.1f), logf(0.2f), logf(0.3f), logf(0.4f)};
    void *scratch = scratch_of(4);
    for (uint32_t i = 0; i < 500; i++) {
        struct gpu_output out = {.target = -1, .position = i, .sampling = as_it_is};
        out.sampling.seed = 77;
        out.sampling.choice = i % 3;
        double u = rng_uniform(77, i, i % 3);
        int32_t want = u < 0.1 ? 0 : u < 0.3 ? 1 : u < 0.6 ? 2 : 3;
        assert_int_equal(sample_plain.row(x, NULL, 4, &out, scratch).token, want);
    }
    free(scratch);
}

/* The greatest u must not fall off the end, nor onto a token that was cut. */
static void weightless_tokens_are_never_drawn(void **state)
{
    (void)state;
    float x[3000];
    void *scratch = scratch_of(3000);
    for (int i = 0; i < 3000; i++)
        x[i] = i == 1500 ? 0.0f : -INFINITY;
    for (uint32_t i = 0; i < 200; i++) {
        struct gpu_output out = {.target = -1, .position = i, .sampling = as_it_is};
        out.sampling.top_k = i % 2 ? 20 : 0;
        out.sampling.top_p = i % 4 > 1 ? 0.9999f : 1.0f;
        struct gpu_result got = sample_plain.row(x, NULL, 3000, &out, scratch);
        assert_int_equal(got.token, 1500);
        assert_true(got.logprob == 0.0f);
    }
    free(scratch);
}

/* ---- greedy, scoring, log-probabilities ---- */

static void logprob_is_log_softmax(void **state)
{
    (void)state;
    struct rnd r = {3};
    for (int v = 0; v < N_VOCABS; v++) {
        uint32_t n = vocabs[v];
        float *x = calloc(n, sizeof *x);
        void *scratch = scratch_of(n);
        double sum = 0;
        random_logits(&r, x, n, 15.0f, 0.0f);
        for (uint32_t i = 0; i < n; i++)
            sum += exp((double)x[i]);
        for (uint32_t i = 0; i < n; i += 1 + n / 50) {
            struct gpu_output out = {.target = (int32_t)i, .sampling = as_it_is};
            out.sampling.temperature = 0.3f; /* must not matter */
            struct gpu_result got = sample_plain.row(x, NULL, n, &out, scratch);
            assert_int_equal(got.token, i);
            assert_true(fabs((double)got.logprob - ((double)x[i] - log(sum))) < 1e-5);
        }
        free(scratch);
        free(x);
    }
}

static void greedy_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    float x[2600];
    void *scratch = scratch_of(2600);
    struct gpu_output out = {.target = -1};
    const struct sample_kernels *kernels[] = {&sample_plain, &sample_avx2};
    for (int k = 0; k < 1 + have_avx2(); k++) {
        for (int i = 0; i < 2600; i++)
            x[i] = -1.0f - (float)(i % 3);
        x[2599] = x[2000] = x[1999] = 3.0f;
        assert_int_equal(kernels[k]->row(x, NULL, 2600, &out, scratch).token, 1999);
        x[2599] = 3.5f;
        assert_int_equal(kernels[k]->row(x, NULL, 2600, &out, scratch).token, 2599);
        for (int i = 0; i < 2600; i++)
            x[i] = i < 1100 ? -0.0f : 0.0f;
        assert_int_equal(kernels[k]->row(x, NULL, 2600, &out, scratch).token, 0);
    }
    free(scratch);
}

/* ---- bad numbers ---- */

static void bad_logits(void **state)
{
    (void)state;
    float x[1500];
    void *scratch = scratch_of(1500);
    struct gpu_output out = {.target = -1};
    for (int i = 0; i < 1500; i++)
        x[i] = NAN;
    assert_int_equal(sample_plain.row(x, NULL, 1500, &out, scratch).token, 0);
    assert_true(sample_plain.row(x, NULL, 1500, &out, scratch).logprob == -INFINITY);
    out.target = 3;
    assert_int_equal(sample_plain.row(x, NULL, 1500, &out, scratch).token, 3);
    assert_true(sample_plain.row(x, NULL, 1500, &out, scratch).logprob == -INFINITY);
    out.target = -1;

    x[1200] = -5.0f;
    for (int i = 0; i < N_SETTINGS; i++) {
        out.sampling = settings[i];
        assert_int_equal(sample_plain.row(x, NULL, 1500, &out, scratch).token, 1200);
        assert_true(sample_plain.row(x, NULL, 1500, &out, scratch).logprob == 0.0f);
    }
    x[7] = INFINITY;
    for (int i = 0; i < N_SETTINGS; i++) {
        out.sampling = settings[i];
        assert_int_equal(sample_plain.row(x, NULL, 1500, &out, scratch).token, 7);
        assert_true(sample_plain.row(x, NULL, 1500, &out, scratch).logprob == 0.0f);
    }
    free(scratch);
}

/* Temperatures and thresholds far outside: still a token with a probability. */
static void extreme_settings(void **state)
{
    (void)state;
    enum { VOCAB = 3000 };
    static const float values[] = {1e-45f, 1e-6f, 1e-3f, 1e6f, FLT_MAX, INFINITY, 0.0f, -1.0f, NAN};
    struct rnd r = {9};
    float x[VOCAB], probs[VOCAB];
    void *scratch = scratch_of(VOCAB);
    random_logits(&r, x, VOCAB, 10.0f, 0.0f);
    x[5] = FLT_MAX;
    x[6] = -FLT_MAX;
    x[17] = NAN;
    for (int huge = 1; huge >= 0; huge--, x[5] = x[6] = 0.0f)
        for (int i = 0; i < 9 * 9 * 9; i++) {
            struct gpu_output out = {.target = -1, .position = (uint32_t)i};
            out.sampling = (struct gpu_sampling){.temperature = values[i % 9],
                                                 .top_p = values[i / 9 % 9],
                                                 .min_p = values[i / 81],
                                                 .top_k = (uint32_t)i % 5 * 700};
            int32_t t = sample_plain.row(x, NULL, VOCAB, &out, scratch).token;
            sample_distribution(x, VOCAB, &out, probs, scratch);
            double sum = 0;
            for (int j = 0; j < VOCAB; j++)
                sum += (double)probs[j];
            assert_true(fabs(sum - 1.0) < 1e-4);
            assert_in_range(t, 0, VOCAB - 1);
            assert_true(probs[t] > 0.0f);
        }
    free(scratch);
}

/* ---- purity ---- */

/* What a backend collects while it computes the logits. */
static struct sample_slice *slices_of(const struct sample_kernels *kernels, const float *x,
                                      uint32_t n)
{
    struct sample_slice *slices = calloc(sample_slices(n), sizeof *slices);
    assert_non_null(slices);
    for (uint32_t i = 0; i < n; i += SAMPLE_SLICE)
        kernels->slice(x + i, n - i < SAMPLE_SLICE ? n - i : SAMPLE_SLICE,
                       &slices[i / SAMPLE_SLICE]);
    return slices;
}

static void avx2_same_bits(void **state)
{
    (void)state;
    if (!have_avx2())
        skip();
    struct rnd r = {21};
    for (int v = 0; v < N_VOCABS; v++) {
        uint32_t n = vocabs[v];
        float *x = calloc(n, sizeof *x);
        void *scratch = scratch_of(n);
        for (int round = 0; round < 8; round++) {
            random_logits(&r, x, n, 1.0f + 4.0f * (float)round, round % 2 ? 0.25f : 0.0f);
            for (uint32_t bad = 0; bad < n / 100; bad++)
                x[rnd_below(&r, n)] = bad % 3 == 0 ? NAN : bad % 3 == 1 ? -INFINITY : -0.0f;
            struct sample_slice *slices = slices_of(round % 2 ? &sample_plain : &sample_avx2, x, n);
            for (int i = 0; i < N_SETTINGS; i++) {
                struct gpu_output out = {.target = i == 3 ? (int32_t)rnd_below(&r, n) : -1,
                                         .position = rnd_u32(&r),
                                         .sampling = settings[i]};
                struct gpu_result a = sample_plain.row(x, NULL, n, &out, scratch);
                struct gpu_result b = sample_avx2.row(x, NULL, n, &out, scratch);
                assert_int_equal(a.token, b.token);
                assert_int_equal(math_bits(a.logprob), math_bits(b.logprob));
                b = (i % 2 ? sample_plain : sample_avx2).row(x, slices, n, &out, scratch);
                assert_int_equal(a.token, b.token);
                assert_int_equal(math_bits(a.logprob), math_bits(b.logprob));
            }
            free(slices);
        }
        free(scratch);
        free(x);
    }
}

/* The passes alone, where a token may hide a difference in the last bit. */
static void avx2_same_passes(void **state)
{
    (void)state;
    if (!have_avx2())
        skip();
    const struct sample_pass *plain = &sample_pass_plain, *fast = &sample_pass_avx2;
    struct rnd r = {8};
    float x[SAMPLE_SLICE], w[2][SAMPLE_SLICE], lane[2][SAMPLE_LANES];
    uint32_t ids[2][SAMPLE_SLICE];
    for (uint32_t n = 1; n <= SAMPLE_SLICE; n += n < 40 ? 1 : 41) {
        random_logits(&r, x, n, 10.0f, n % 2 ? 0.5f : 0.0f);
        for (uint32_t i = 0; i < n / 20; i++)
            x[rnd_below(&r, n)] = i % 3 == 0 ? NAN : i % 3 == 1 ? -INFINITY : INFINITY;
        float top = rnd_float(&r) * 5.0f + 10.0f, temperature = 0.3f + (float)(n % 7);
        plain->highest(x, n, lane[0]);
        fast->highest(x, n, lane[1]);
        for (int i = 0; i < SAMPLE_LANES; i++)
            assert_true(lane[0][i] == lane[1][i]);
        plain->weigh(x, n, top, temperature, w[0]);
        fast->weigh(x, n, top, temperature, w[1]);
        assert_memory_equal(w[0], w[1], n * sizeof *x);
        assert_int_equal(math_bits(plain->sum(x, n, top, temperature)),
                         math_bits(fast->sum(x, n, top, temperature)));
        uint32_t found = plain->collect(x, n, x[0] == x[0] ? x[0] : 1.0f, 5, ids[0]);
        assert_int_equal(fast->collect(x, n, x[0] == x[0] ? x[0] : 1.0f, 5, ids[1]), found);
        assert_memory_equal(ids[0], ids[1], found * sizeof **ids);
    }
}

/* What was in the scratch, and other rows' work in between, do not matter. */
static void scratch_carries_nothing(void **state)
{
    (void)state;
    enum { VOCAB = 5000 };
    struct rnd r = {33};
    float *x = calloc(2 * VOCAB, sizeof *x);
    void *scratch = scratch_of(VOCAB);
    random_logits(&r, x, 2 * VOCAB, 6.0f, 0.0f);
    for (int i = 0; i < N_SETTINGS; i++)
        for (uint32_t position = 0; position < 20; position++) {
            struct gpu_output out = {.target = -1, .position = position, .sampling = settings[i]};
            struct gpu_result a = sample_plain.row(x, NULL, VOCAB, &out, scratch);
            sample_plain.row(x + VOCAB, NULL, VOCAB, &out, scratch);
            struct gpu_result b = sample_plain.row(x, NULL, VOCAB, &out, scratch);
            memset(scratch, 0xff, sample_scratch_bytes(VOCAB));
            struct gpu_result c = sample_plain.row(x, NULL, VOCAB, &out, scratch);
            assert_int_equal(a.token, b.token);
            assert_int_equal(a.token, c.token);
            assert_int_equal(math_bits(a.logprob), math_bits(b.logprob));
            assert_int_equal(math_bits(a.logprob), math_bits(c.logprob));
        }
    free(scratch);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_data),
        cmocka_unit_test(filters_without_sorting),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(draw_is_the_documented_one),
        cmocka_unit_test(weightless_tokens_are_never_drawn),
        cmocka_unit_test(logprob_is_log_softmax),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(bad_logits),
        cmocka_unit_test(extreme_settings),
        cmocka_unit_test(avx2_same_bits),
        cmocka_unit_test(avx2_same_passes),
        cmocka_unit_test(scratch_carries_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
