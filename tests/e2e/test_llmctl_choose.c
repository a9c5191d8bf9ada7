/* test_llmctl_choose.c - label choice: a label's log-probabilities are those that `score` gives its
 * tokens behind the prompt, to the last digit, and the best sum wins.
 */
#include "llmctl_rig.h"

#include <math.h>

static const json_t *label_of(const json_t *o, size_t i)
{
    return json_array_get(json_object_get(o, "labels"), i);
}

/* The last `n` log-probabilities of a score equal the label's. */
static void as_scored(const json_t *label, const char *all_tokens, size_t n)
{
    char arguments[256];
    snprintf(arguments, sizeof arguments, "score --tokens %s --json", all_tokens);
    json_t *score = ctl_json(arguments);
    const json_t *want = json_object_get(score, "logprobs"),
                 *got = json_object_get(label, "logprobs");
    assert_int_equal(json_array_size(got), n);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(got, i);
        assert_true(json_equal(one, json_array_get(want, json_array_size(want) - n + i)));
        sum += json_real_value(one);
    }
    assert_true(fabs(real(label, "logprob") - sum) < 1e-6);
    assert_true(fabs(real(label, "mean_logprob") - sum / (double)n) < 1e-6);
    json_decref(score);
}

static void labels_as_scores(void **state)
{
    (void)state;
    json_t *o = ctl_json("choose --tokens 5,6,7 --label-tokens 8 --label-tokens 9,10 "
                         "--label-tokens 11,12,13 --json");
    assert_int_equal(whole(o, "prompt_tokens"), 3);
    assert_int_equal(json_array_size(json_object_get(o, "labels")), 3);
    as_scored(label_of(o, 0), "5,6,7,8", 1);
    as_scored(label_of(o, 1), "5,6,7,9,10", 2);
    as_scored(label_of(o, 2), "5,6,7,11,12,13", 3);
    int64_t best = whole(o, "best");
    double total = 0;
    for (size_t i = 0; i < 3; i++) {
        assert_true(real(label_of(o, (size_t)best), "logprob") >= real(label_of(o, i), "logprob"));
        total += real(label_of(o, i), "probability");
    }
    assert_true(fabs(total - 1) < 1e-6);
    assert_string_equal(word(o, "label"), word(label_of(o, (size_t)best), "label"));
    assert_true(real(json_object_get(o, "timing"), "ttft_us") > 0);
    json_decref(o);
}

/* A label's tokens are those that it adds to the prompt's text. */
static void text_labels(void **state)
{
    (void)state;
    json_t *o = ctl_json("choose 'hello wor' --label ' one' --label ' two'"), *all, *prompt;
    for (size_t i = 0; i < 2; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, "tokenize 'hello wor%s' --json", i ? " two" : " one");
        prompt = ctl_json("tokenize 'hello wor' --json");
        json_array_extend(prompt, json_object_get(label_of(o, i), "tokens"));
        all = ctl_json(arguments);
        assert_true(json_equal(all, prompt));
        json_decref(all), json_decref(prompt);
    }
    json_decref(o);
}

static void wrong_command_lines(void **state)
{
    (void)state;
    refuses("choose text", 2, "--label");
    refuses("choose --label a", 2, "what is the prompt");
    refuses("choose text more --label a", 2, "unexpected");
    refuses("choose text --label ''", 2, "empty");
    refuses("choose --tokens 5 --label-tokens 99999", 1, "vocabulary");
    refuses("choose --tokens 5 --label-tokens x", 2, "token ids");
    refuses("choose --tokens 5 --label-tokens 6 --deadline-ms 5", 2, "deadline-ms");
    char many[1536] = "choose --tokens 5";
    for (int i = 0; i < 65; i++)
        strcat(many, " --label-tokens 6");
    refuses(many, 2, "64");
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, tiny_model(), "--threads", "1", NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return engine_stop(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_as_scores),
        cmocka_unit_test(text_labels),
        cmocka_unit_test(wrong_command_lines),
    };
    return cmocka_run_group_tests_name("llmctl_choose", tests, start, stop);
}
