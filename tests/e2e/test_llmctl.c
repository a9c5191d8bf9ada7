/* test_llmctl.c - the command line's contract: sources, flags, JSON results, errors. */
#include "../support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct engine_process engine;

static char *ctl(int *status, const char *arguments)
{
    return run_command(status, "'%s' -i %s %s", built("llmctl"), engine.instance, arguments);
}

static json_t *ctl_json(const char *arguments)
{
    int status;
    char *out = ctl(&status, arguments);
    json_error_t error;
    json_t *v = json_loads(out, JSON_DECODE_ANY, &error);
    if (status || !v)
        fail_msg("llmctl %s: status %d, output %s", arguments, status, out);
    free(out);
    return v;
}

/* The command fails with that status and says something that holds `word`. */
static void refuses(const char *arguments, int want, const char *word)
{
    char all[1024];
    int status;
    snprintf(all, sizeof all, "%s 2>&1", arguments);
    char *out = ctl(&status, all);
    if (status != want || !strstr(out, word))
        fail_msg("llmctl %s: status %d, said: %s", arguments, status, out);
    free(out);
}

static const char *write_file(const char *name, const void *data, size_t bytes)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_dir(), name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
    return path;
}

static void complete_json(void **state)
{
    (void)state;
    json_t *o = ctl_json("complete --tokens 5,6,7 -n 9 --ignore-eos --logprobs --json");
    assert_int_equal(json_integer_value(json_object_get(o, "prompt_tokens")), 3);
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), 9);
    assert_int_equal(json_array_size(json_object_get(o, "logprobs")), 9);
    assert_string_equal(json_string_value(json_object_get(o, "finish_reason")), "length");
    for (size_t i = 0; i < 9; i++) {
        double p = json_real_value(json_array_get(json_object_get(o, "logprobs"), i));
        assert_true(p < 0 && p > -30);
    }
    const json_t *timing = json_object_get(o, "timing"), *itl = json_object_get(timing, "itl_us");
    assert_true(json_real_value(json_object_get(timing, "ttft_us")) > 0);
    assert_true(json_is_real(json_object_get(timing, "queue_us")));
    assert_true(json_real_value(json_object_get(itl, "p50")) <=
                json_real_value(json_object_get(itl, "p95")));
    assert_true(json_real_value(json_object_get(itl, "p99")) <=
                json_real_value(json_object_get(itl, "max")));
    json_decref(o);
}

static void sources_agree(void **state)
{
    (void)state;
    static const int32_t ids[] = {5, 6, 7, 300};
    char arguments[700];
    json_t *a = ctl_json("complete --tokens 5,6,7,300 -n 5 --ignore-eos --json");
    snprintf(arguments, sizeof arguments, "complete --tokens-file %s -n 5 --ignore-eos --json",
             write_file("ids.bin", ids, sizeof ids));
    json_t *b = ctl_json(arguments);
    snprintf(arguments, sizeof arguments, "complete --tokens-file %s -n 5 --ignore-eos --json",
             write_file("ids.json", "[5, 6,\n7, 300]\n", 15));
    json_t *c = ctl_json(arguments);
    assert_true(json_equal(json_object_get(a, "tokens"), json_object_get(b, "tokens")));
    assert_true(json_equal(json_object_get(a, "tokens"), json_object_get(c, "tokens")));
    json_decref(a), json_decref(b), json_decref(c);
}

static void seeds(void **state)
{
    (void)state;
    json_t *a =
        ctl_json("complete --tokens 5,6 -n 20 --ignore-eos --temperature 1 --seed 3 --json");
    json_t *b =
        ctl_json("complete --tokens 5,6 -n 20 --ignore-eos --temperature 1 --seed 3 --json");
    json_t *c =
        ctl_json("complete --tokens 5,6 -n 20 --ignore-eos --temperature 1 --seed 4 --json");
    assert_true(json_equal(json_object_get(a, "tokens"), json_object_get(b, "tokens")));
    assert_false(json_equal(json_object_get(a, "tokens"), json_object_get(c, "tokens")));
    json_decref(a), json_decref(b), json_decref(c);
}

static void choices_fork(void **state)
{
    (void)state;
    json_t *many = ctl_json(
        "complete --tokens 5,6,9,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 -n 20 --ignore-eos "
        "--temperature 1 --seed 3 --choices 4 --json");
    json_t *one = ctl_json(
        "complete --tokens 5,6,9,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 -n 20 --ignore-eos "
        "--temperature 1 --seed 3 --json");
    const json_t *all = json_object_get(many, "choices");
    assert_int_equal(json_array_size(all), 4);
    const json_t *first = json_object_get(json_array_get(all, 0), "tokens");
    assert_true(json_equal(first, json_object_get(one, "tokens")));
    for (size_t i = 1; i < 4; i++) {
        const json_t *tokens = json_object_get(json_array_get(all, i), "tokens");
        assert_int_equal(json_array_size(tokens), 20);
        assert_false(json_equal(first, tokens));
    }
    json_decref(many), json_decref(one);
}

static void score_json(void **state)
{
    (void)state;
    json_t *o = ctl_json("score --tokens 5,6,7,8,9 --json");
    const json_t *p = json_object_get(o, "logprobs");
    assert_int_equal(json_array_size(p), 4);
    double sum = 0;
    for (size_t i = 0; i < 4; i++)
        sum += json_real_value(json_array_get(p, i));
    double perplexity = json_real_value(json_object_get(o, "perplexity"));
    assert_true(fabs(perplexity - exp(-sum / 4)) < 1e-6 * perplexity);
    json_decref(o);
}

static void jsonl_in_order(void **state)
{
    (void)state;
    enum { N = 300 };
    static char text[N * 120];
    size_t used = 0;
    for (int i = 0; i < N; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "{\"id\": %d, \"tokens\": [%d, %d], \"n\": %d, \"ignore_eos\": "
                                 "true, \"logprobs\": true}\n",
                                 i, i, 2 * i % 384, 1 + i % 7);
    char arguments[700];
    snprintf(arguments, sizeof arguments, "complete --jsonl %s --json",
             write_file("many.jsonl", text, used));
    int status;
    char *out = ctl(&status, arguments);
    assert_int_equal(status, 0);
    int i = 0;
    for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"), i++) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        assert_int_equal(json_integer_value(json_object_get(o, "id")), i);
        assert_int_equal(json_array_size(json_object_get(o, "tokens")), 1 + i % 7);
        assert_int_equal(json_array_size(json_object_get(o, "logprobs")), 1 + i % 7);
        json_decref(o);
    }
    assert_int_equal(i, N);
    free(out);
}

static void refusals(void **state)
{
    (void)state;
    refuses("complete", 2, "what is the prompt");
    refuses("complete --tokens 1 text", 2, "one source");
    refuses("complete --tokens 1,x", 2, "token ids");
    refuses("complete --tokens 1,2 -n 0", 2, "-n");
    refuses("complete --tokens 1,2 --temperature nan", 2, "finite");
    refuses("complete --tokens 1,2 --temperature -1", 1, "temperature");
    refuses("complete --tokens 1,2 --top-p 1.5", 1, "top_p");
    refuses("complete --tokens 1,99999", 1, "vocabulary");
    refuses("complete --tokens -1,5", 1, "vocabulary");
    refuses("complete --tokens 1,2 -n 5000", 1, "length of 256");
    refuses("complete --tokens-file /nonexistent", 1, "/nonexistent");
    refuses("score --tokens 1", 1, "");
    refuses("status --bogus", 2, "bogus");
    refuses("bogus", 2, "bogus");
    int status;
    char *out = run_command(&status, "'%s' -i nobody-%s complete --tokens 1 2>&1", built("llmctl"),
                            engine.instance);
    assert_int_equal(status, 1);
    assert_non_null(strstr(out, "nobody"));
    free(out);
}

static void bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *word;
    } cases[] = {{"{\"tokens\": [1], \"temprature\": 1}\n", "temprature"},
                 {"{\"tokens\": [1], \"n\": \"5\"}\n", "\"n\""},
                 {"{\"n\": 5}\n", "prompt"},
                 {"{\"tokens\": [1]\n", "1:"},
                 {"[1]\n", "object"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char arguments[700];
        snprintf(arguments, sizeof arguments, "complete --jsonl %s",
                 write_file("bad.jsonl", cases[i].line, strlen(cases[i].line)));
        refuses(arguments, 1, cases[i].word);
    }
}

static void status_figures(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "pid",          "running",          "waiting",          "clients",        "steps",
        "mixed_steps",  "max_rows_in_step", "max_seqs_in_step", "kv_blocks_free", "kv_blocks_total",
        "kv_block_size"};
    json_t *o = ctl_json("status --json");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_is_integer(json_object_get(o, keys[i])))
            fail_msg("status has no %s", keys[i]);
    assert_string_equal(json_string_value(json_object_get(o, "state")), "ready");
    assert_string_equal(json_string_value(json_object_get(o, "backend")), "cpu");
    assert_int_equal(json_integer_value(json_object_get(o, "pid")), engine.pid);
    assert_int_equal(strlen(json_string_value(json_object_get(o, "numerics_id"))), 16);
    json_decref(o);
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q8_0.gguf"), NULL);
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
        cmocka_unit_test(complete_json),  cmocka_unit_test(sources_agree),
        cmocka_unit_test(seeds),          cmocka_unit_test(choices_fork),
        cmocka_unit_test(score_json),     cmocka_unit_test(jsonl_in_order),
        cmocka_unit_test(refusals),       cmocka_unit_test(bad_lines),
        cmocka_unit_test(status_figures),
    };
    return cmocka_run_group_tests_name("llmctl", tests, start, stop);
}
