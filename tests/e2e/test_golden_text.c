/* test_golden_text.c - SmolLM2 through the whole product: llmctl, rings, engine, backend, against
 * the reference data. */
#include "../support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *ctl(const struct engine_process *e, const char *arguments)
{
    int status;
    char *out = run_command(&status, "'%s' -i %s %s", built("llmctl"), e->instance, arguments);
    json_t *v = json_loads(out, JSON_DECODE_ANY, NULL);
    if (status || !v)
        fail_msg("llmctl %s: status %d, output %.500s", arguments, status, out);
    free(out);
    return v;
}

/* The 2,048-token text: mean |difference| of log-probabilities, and perplexity. */
static void check_score(const struct engine_process *e, double nat, double relative)
{
    char arguments[700];
    size_t bytes;
    char *reference = golden_read("pretrained/smollm2/ppl_logprobs.bin", &bytes);
    json_t *meta = golden_json("pretrained/smollm2/ppl.json");
    snprintf(arguments, sizeof arguments, "score --tokens-file %s --json",
             golden_path("pretrained/smollm2/ppl_ids.bin"));
    json_t *o = ctl(e, arguments);
    const json_t *p = json_object_get(o, "logprobs");
    size_t n = bytes / 4;
    assert_int_equal(json_array_size(p), n);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        float want;
        memcpy(&want, reference + 4 * i, 4);
        sum += fabs(json_real_value(json_array_get(p, i)) - (double)want);
    }
    double perplexity = json_real_value(json_object_get(o, "perplexity"));
    double want = json_real_value(json_object_get(meta, "perplexity"));
    print_message("mean |dlogprob| %.6f nat, perplexity %.6f against %.6f (%+.4f %%)\n",
                  sum / (double)n, perplexity, want, 100 * (perplexity / want - 1));
    assert_true(sum / (double)n <= nat);
    assert_true(fabs(perplexity / want - 1) <= relative);
    free(reference);
    json_decref(meta);
    json_decref(o);
}

/* Greedy continuations are the golden ones up to the first step whose margin is below the bound. */
static void check_greedy(const struct engine_process *e, double margin)
{
    json_t *golden = golden_json("pretrained/smollm2/logits.json");
    size_t i;
    json_t *one;
    int compared = 0;
    json_array_foreach(json_object_get(golden, "cases"), i, one)
    {
        const json_t *steps = json_object_get(one, "greedy");
        if (!json_is_array(steps))
            continue;
        char *ids = json_dumps(json_object_get(one, "ids"), JSON_COMPACT);
        static char arguments[65536];
        snprintf(arguments, sizeof arguments, "complete --tokens '%s' -n %zu --ignore-eos --json",
                 ids, json_array_size(steps));
        json_t *o = ctl(e, arguments);
        const json_t *tokens = json_object_get(o, "tokens");
        for (size_t j = 0; j < json_array_size(steps); j++) {
            const json_t *step = json_array_get(steps, j);
            if (json_number_value(json_object_get(step, "margin")) < margin)
                break;
            assert_int_equal(json_integer_value(json_array_get(tokens, j)),
                             json_integer_value(json_object_get(step, "id")));
            compared++;
        }
        json_decref(o);
        free(ids);
    }
    print_message("%d greedy steps compared\n", compared);
    assert_true(compared > 20);
    json_decref(golden);
}

static void run(const char *activations, const char *kv, double nat, double relative, double margin)
{
    struct engine_process e = {0};
    engine_start(&e, real_model_path(), "--activations", activations, "--kv-cache-dtype", kv,
                 "--max-model-len", "2304", NULL);
    check_score(&e, nat, relative);
    check_greedy(&e, margin);
    assert_int_equal(engine_stop(&e), 0);
}

static void exact(void **state)
{
    (void)state;
    run("f32", "f32", 0.003, 0.0005, 0.01);
}

/* What int8 keys and values cost by themselves: 0.0243 nat and 0.13 %. */
static void int8_cache(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, real_model_path(), "--activations", "f32", "--kv-cache-dtype", "int8",
                 "--max-model-len", "2304", NULL);
    check_score(&e, 0.027, 0.003);
    assert_int_equal(engine_stop(&e), 0);
}

static void as_shipped(void **state)
{
    (void)state;
    run("int8", "f16", 0.06, 0.01, 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact), cmocka_unit_test(int8_cache),
                                       cmocka_unit_test(as_shipped)};
    return cmocka_run_group_tests_name("golden_text", tests, NULL, NULL);
}
