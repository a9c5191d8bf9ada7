/* test_llmctl_sampling.c - stop strings, biases, penalties and candidates from the command line
 * through client, rings, engine and device, on a real engine.
 */
#include "llmctl_rig.h"

#include <math.h>

#define PROMPT "complete --tokens 1,2,3,4,5,6,7 --ignore-eos "

static void same_tokens(const json_t *a, const json_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_true(json_equal(json_array_get(json_object_get(a, "tokens"), i),
                               json_array_get(json_object_get(b, "tokens"), i)));
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static bool plain(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] < ' ' || text[i] > '~' || strchr("'\"\\", text[i]))
            return false;
    return true;
}

/* Whatever part of an answer is the stop string: the answer ends before where it stands first, and
 * nothing of it is printed. */
static void any_part_of_an_answer(void **state)
{
    (void)state;
    json_t *whole = ctl_json(PROMPT "-n 40 --json");
    const char *text = text_of(whole, "text");
    size_t length = strlen(text);
    int tried = 0;
    for (size_t at = 0; at < length; at += 3) {
        size_t bytes = 2 + at % 5;
        char arguments[256], want[16];
        if (at + bytes > length || !plain(text + at, bytes))
            continue;
        snprintf(want, sizeof want, "%.*s", (int)bytes, text + at);
        size_t ends = (size_t)(strstr(text, want) - text);
        snprintf(arguments, sizeof arguments,
                 PROMPT "-n 40 --json --stop 'never there' --stop '%s'", want);
        json_t *o = ctl_json(arguments);
        assert_string_equal(text_of(o, "finish_reason"), "stop");
        assert_string_equal(text_of(o, "stop_reason"), want);
        if (strlen(text_of(o, "text")) != ends || strncmp(text_of(o, "text"), text, ends))
            fail_msg("'%s' ended at '%s'", want, text_of(o, "text"));
        same_tokens(o, whole, json_array_size(json_object_get(o, "tokens")));
        json_decref(o);
        snprintf(arguments, sizeof arguments, PROMPT "-n 40 --stop '%s'", want);
        char *stream = ctl_text(0, arguments); /* as it comes */
        assert_int_equal(strlen(stream), ends + 1);
        assert_memory_equal(stream, text, ends);
        free(stream);
        tried++;
    }
    assert_in_range(tried, 3, 100);
    json_decref(whole);
}

/* With what does not stand in it, it is whole, however late that is known. */
static void no_part_of_it(void **state)
{
    (void)state;
    json_t *whole = ctl_json(PROMPT "-n 30 --json --logprobs");
    json_t *o = ctl_json(PROMPT "-n 30 --json --logprobs --stop '@@@ not there @@@'");
    assert_true(json_equal(json_object_get(o, "tokens"), json_object_get(whole, "tokens")));
    assert_true(json_equal(json_object_get(o, "text"), json_object_get(whole, "text")));
    assert_true(json_equal(json_object_get(o, "logprobs"), json_object_get(whole, "logprobs")));
    assert_null(json_object_get(o, "stop_reason"));
    json_decref(o);
    json_decref(whole);
}

static json_int_t token(const json_t *o, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(o, "tokens"), i));
}

static double logprob(const json_t *o, size_t i)
{
    return json_number_value(json_array_get(json_object_get(o, "logprobs"), i));
}

static void bans_and_forces(void **state)
{
    (void)state;
    char arguments[256];
    json_t *free_one = ctl_json(PROMPT "-n 5 --json --logprobs"), *o;
    json_int_t first = token(free_one, 0);
    snprintf(arguments, sizeof arguments, PROMPT "-n 5 --json --logit-bias %lld=-100",
             (long long)first);
    o = ctl_json(arguments);
    for (size_t i = 0; i < 5; i++)
        assert_int_not_equal(token(o, i), first);
    json_decref(o);
    snprintf(arguments, sizeof arguments,
             PROMPT "-n 5 --json --logprobs --top-logprobs 3 --temperature 1 --logit-bias 9=100 "
                    "--logit-bias %lld=-1",
             (long long)first);
    o = ctl_json(arguments);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(token(o, i), 9);
    assert_true(logprob(o, 0) < logprob(free_one, 0)); /* by the model's own distribution */
    json_t *top = json_array_get(json_object_get(o, "top_logprobs"), 0);
    assert_int_equal(json_array_size(top), 3);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(top, 0), "token")), first);
    json_decref(o);
    json_decref(free_one);
}

/* Sorted, no more than 1 together, and the greedy token is the first. */
static void candidates(void **state)
{
    (void)state;
    json_t *bare = ctl_json(PROMPT "-n 12 --json --logprobs");
    json_t *o = ctl_json(PROMPT "-n 12 --json --top-logprobs 20");
    json_t *all = json_object_get(o, "top_logprobs");
    assert_int_equal(json_array_size(all), 12);
    assert_true(json_equal(json_object_get(o, "logprobs"), json_object_get(bare, "logprobs")));
    for (size_t i = 0; i < 12; i++) {
        json_t *top = json_array_get(all, i);
        double sum = 0, before = 1;
        assert_int_equal(json_array_size(top), 20);
        for (size_t k = 0; k < 20; k++) {
            double p = json_number_value(json_object_get(json_array_get(top, k), "logprob"));
            assert_true(p <= before);
            before = p;
            sum += exp(p);
        }
        assert_true(sum <= 1.0001);
        assert_int_equal(json_integer_value(json_object_get(json_array_get(top, 0), "token")),
                         token(o, i));
        assert_true(json_number_value(json_object_get(json_array_get(top, 0), "logprob")) ==
                    logprob(o, i));
    }
    json_decref(o);
    json_decref(bare);
}

static void penalties(void **state)
{
    (void)state;
    json_t *bare = ctl_json(PROMPT "-n 60 --json");
    json_t *o = ctl_json(PROMPT "-n 60 --json --presence-penalty 2 --frequency-penalty 2 "
                                "--repetition-penalty 2.5");
    size_t seen[2] = {0};
    for (size_t i = 0; i < 60; i++)
        for (size_t k = 0; k < i; k++) {
            seen[0] += token(bare, i) == token(bare, k);
            seen[1] += token(o, i) == token(o, k);
        }
    assert_true(seen[1] < seen[0]); /* it repeats itself less */
    json_decref(o);
    o = ctl_json(PROMPT "-n 60 --json --repetition-penalty 1 --presence-penalty 0");
    same_tokens(o, bare, 60);
    json_decref(o);
    json_decref(bare);
}

/* The same by the keys of a line; a line's replace the flags'. */
static void keys_as_flags(void **state)
{
    (void)state;
    json_t *o = ctl_json(PROMPT "-n 6 --json --logit-bias 9=100 --top-logprobs 2 "
                                "--repetition-penalty 1.5");
    json_t *lines =
        ctl_lines("{\"tokens\":[1,2,3,4,5,6,7],\"logit_bias\":{\"9\":100},\"top_logprobs\":2,"
                  "\"repetition_penalty\":1.5}\n"
                  "{\"tokens\":[1,2,3,4,5,6,7]}\n"
                  "{\"tokens\":[1,2,3,4,5,6,7],\"stop\":[\"x\",\"y\"]}\n",
                  "-n 6 --ignore-eos --logit-bias 8=100");
    json_t *by_line = json_array_get(lines, 0);
    assert_true(json_equal(json_object_get(o, "tokens"), json_object_get(by_line, "tokens")));
    assert_true(
        json_equal(json_object_get(o, "top_logprobs"), json_object_get(by_line, "top_logprobs")));
    assert_int_equal(token(json_array_get(lines, 1), 0), 8);
    assert_null(json_object_get(json_array_get(lines, 1), "top_logprobs"));
    assert_int_equal(token(json_array_get(lines, 2), 0), 8);
    json_decref(lines);
    json_decref(o);
}

static void refused(const char *line, const char *word)
{
    char arguments[600];
    snprintf(arguments, sizeof arguments, "complete --jsonl %s", lines_file("bad.jsonl", line));
    refuses(arguments, 1, word);
}

static void refusals(void **state)
{
    (void)state;
    refuses(PROMPT "--stop ''", 2, "1 to 256 bytes");
    refuses(PROMPT "--logit-bias 9", 2, "ID=BIAS");
    refuses(PROMPT "--logit-bias =9", 2, "ID=BIAS");
    refuses(PROMPT "--logit-bias -1=9", 2, "ID=BIAS");
    refuses(PROMPT "--logit-bias 9=101", 2, "-100 to 100");
    refuses(PROMPT "--logit-bias 9=nan", 2, "finite");
    refuses(PROMPT "--logit-bias 999999=1", 1, "outside the vocabulary");
    refuses(PROMPT "--logit-bias 9=1 --logit-bias 9=2", 1, "out of");
    refuses(PROMPT "--top-logprobs 21", 2, "0 to 20");
    refuses(PROMPT "--top-logprobs 2", 2, "--top-logprobs needs --json");
    refuses(PROMPT "--logprobs", 2, "--logprobs needs --json");
    refuses("score --tokens 1,2,3 --logprobs", 2, "--logprobs needs --json");
    json_decref(ctl_json(PROMPT "-n 1 --choices 2 --logprobs")); /* is JSON anyway */
    json_decref(ctl_lines("{\"tokens\":[1]}\n", "-n 1 --logprobs"));
    refuses(PROMPT "--repetition-penalty -1", 2,
            "--repetition-penalty: \"-1\" is no number over 0 (1: off)");
    refuses(PROMPT "--repetition-penalty 0", 2, "--repetition-penalty: \"0\" is no number over 0");
    refuses(PROMPT "--presence-penalty 3", 2,
            "--presence-penalty: \"3\" is no number from -2 to 2 (0: off)");
    refuses(PROMPT "--frequency-penalty -2.1", 2,
            "--frequency-penalty: \"-2.1\" is no number from -2 to 2");
    refuses("complete ''", 1, "the prompt is empty");
    refuses("score --tokens 1,2,3 --stop x", 2, "--stop");
    refused("{\"tokens\":[1],\"stop\":[\"\"]}", "\"stop\"");
    refused("{\"tokens\":[1],\"stop\":7}", "\"stop\"");
    refused("{\"tokens\":[1],\"logit_bias\":[]}", "\"logit_bias\"");
    refused("{\"tokens\":[1],\"logit_bias\":{\"x\":1}}", "\"logit_bias\"");
    refused("{\"tokens\":[1],\"logit_bias\":{\"1\":1e9}}", "\"logit_bias\"");
    refused("{\"tokens\":[1],\"top_logprobs\":21}", "\"top_logprobs\"");
    refused("{\"tokens\":[1],\"repetition_penalty\":0}",
            "\"repetition_penalty\" must be a number over 0");
    refused("{\"tokens\":[1],\"presence_penalty\":3}",
            "\"presence_penalty\" must be a number from -2 to 2");
    refused("{\"tokens\":[1],\"frequency_penalty\":-3}", "\"frequency_penalty\" must be a number");
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, tiny_model(), NULL);
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
        cmocka_unit_test(any_part_of_an_answer),
        cmocka_unit_test(no_part_of_it),
        cmocka_unit_test(bans_and_forces),
        cmocka_unit_test(candidates),
        cmocka_unit_test(penalties),
        cmocka_unit_test(keys_as_flags),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
