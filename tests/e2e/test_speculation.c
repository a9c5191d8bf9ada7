/* test_speculation.c - speculation from the command line through rings, engine and device, on SmolLM2: a
 * prompt whose answer repeats it brings the same text, tokens and log-probabilities, and drafts hold;
 * a request may have it where the engine does not by default, and the other way round. (Whether a draft
 * pays depends on the machine and the build; the first one of an engine is a try in any case, but where the machine is busy it may not be taken.)
 */
#include "llmctl_rig.h"

#define LIST                                                                                       \
    "[{\\\"id\\\": 1, \\\"unit\\\": \\\"celsius\\\", \\\"status\\\": \\\"ok\\\"},\\n"              \
    "{\\\"id\\\": 2, \\\"unit\\\": \\\"celsius\\\", \\\"status\\\": \\\"ok\\\"},\\n"               \
    "{\\\"id\\\": 3, \\\"unit\\\": \\\"celsius\\\", \\\"status\\\": \\\"ok\\\"},\\n"
/* A line of requests on it: the tokens, and what is added. */
#define LINE(more) "{\"prompt\": \"" LIST "\", \"n\": 60, \"logprobs\": true" more "}\n"

static void same(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"tokens", "text", "logprobs", "finish_reason",
                                       "top_logprobs"};
    assert_true(json_array_size(json_object_get(a, "tokens")) > 0);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *x = json_object_get(a, keys[i]), *y = json_object_get(b, keys[i]);
        if (x || y)
            assert_true(json_equal(x, y));
    }
}

static int64_t drafted(void)
{
    return engine_figure(&engine, "spec_draft_tokens");
}

static int64_t accepted(void)
{
    return engine_figure(&engine, "spec_accepted_tokens");
}

/* Both lines' results; the second one may be drafted, the first one not. */
static void expect_pair(const char *lines)
{
    json_t *all = ctl_lines(lines, "");
    assert_int_equal(json_array_size(all), 2);
    same(json_array_get(all, 0), json_array_get(all, 1));
    json_decref(all);
}

/* Where steps take now this long, now that, no draft promises to pay: until one did. */
static void expect_pair_with_drafts(const char *lines)
{
    for (int i = 0; i < 20 && !accepted(); i++)
        expect_pair(lines);
    int64_t before = accepted();
    assert_true(before > 0 && drafted() >= before);
}

static void a_request_switches_it_on(void **state)
{
    (void)state;
    engine_start(&engine, real_model_path(), "--max-model-len", "512", "--num-kv-blocks", "128",
                 NULL);
    json_decref(ctl_lines(LINE("") LINE(", \"speculative\": \"off\""), ""));
    assert_int_equal(drafted(), 0);
    expect_pair_with_drafts(LINE("") LINE(", \"speculative\": \"ngram\""));
    expect_pair(LINE(", \"temperature\": 0.7, \"seed\": 5, \"top_p\": 0.9")
                    LINE(", \"temperature\": 0.7, \"seed\": 5, \"top_p\": 0.9, \"speculative\": "
                         "\"ngram\""));
    expect_pair(LINE(", \"frequency_penalty\": 0.3, \"top_logprobs\": 3, \"stop\": \"celsius\"")
                    LINE(", \"frequency_penalty\": 0.3, \"top_logprobs\": 3, \"stop\": "
                         "\"celsius\", \"speculative\": \"ngram\""));

    int64_t before = drafted();
    char *plain =
        ctl_text(0, "complete 'one two three, one two three, one two' -n 40 --ignore-eos");
    assert_int_equal(drafted(), before);
    char *text = ctl_text(0, "complete 'one two three, one two three, one two' -n 40 --ignore-eos "
                             "--speculative ngram");
    assert_string_equal(text, plain);
    free(text);
    free(plain);
    assert_int_equal(engine_stop(&engine), 0);
}

static void a_request_switches_it_off(void **state)
{
    (void)state;
    engine_start(&engine, real_model_path(), "--max-model-len", "512", "--num-kv-blocks", "128",
                 "--speculative", "ngram", "--speculative-tokens", "4", NULL);
    json_decref(ctl_lines(LINE(", \"speculative\": \"off\""), ""));
    assert_int_equal(drafted(), 0);
    expect_pair_with_drafts(LINE(", \"speculative\": \"off\"") LINE(""));
    assert_true(drafted() <= 4 * engine_figure(&engine, "spec_drafts"));

    /* several choices, each by itself */
    json_t *all = ctl_lines(LINE(", \"choices\": 3, \"temperature\": 0.5, \"seed\": 1, "
                                 "\"speculative\": \"off\"")
                                LINE(", \"choices\": 3, \"temperature\": 0.5, \"seed\": 1"),
                            "");
    const json_t *plain = json_object_get(json_array_get(all, 0), "choices"),
                 *choices = json_object_get(json_array_get(all, 1), "choices");
    assert_int_equal(json_array_size(plain), 3);
    for (size_t i = 0; i < 3; i++)
        same(json_array_get(plain, i), json_array_get(choices, i));
    json_decref(all);
    assert_int_equal(engine_stop(&engine), 0);
}

static void what_is_refused(void **state)
{
    (void)state;
    engine_start(&engine, tiny_model(), NULL);
    refuses("complete --tokens 5,6 --speculative eagle", 2, "neither ngram nor off");
    refuses("score --tokens 5,6 --speculative ngram", 2, "a score has no --speculative");
    char arguments[512];
    snprintf(arguments, sizeof arguments, "complete --jsonl %s",
             lines_file("bad.jsonl", "{\"tokens\": [5], \"speculative\": true}\n"));
    refuses(arguments, 1, "must be \"ngram\" or \"off\"");
    assert_int_equal(engine_stop(&engine), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_switches_it_on),
        cmocka_unit_test(a_request_switches_it_off),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests_name("speculation", tests, NULL, NULL);
}
