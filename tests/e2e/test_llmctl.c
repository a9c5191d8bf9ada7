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
        json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(o);
        assert_int_equal(json_integer_value(json_object_get(o, "id")), i);
        assert_int_equal(json_array_size(json_object_get(o, "tokens")), 1 + i % 7);
        assert_int_equal(json_array_size(json_object_get(o, "logprobs")), 1 + i % 7);
        json_decref(o);
    }
    assert_int_equal(i, N);
    free(out);
}

static json_t *ctl_lines(const char *command, const char *lines, const char *flags)
{
    char arguments[700];
    snprintf(arguments, sizeof arguments, "%s --jsonl %s %s", command,
             write_file("lines.jsonl", lines, strlen(lines)), flags);
    int status;
    char *out = ctl(&status, arguments);
    json_t *all = json_array();
    for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"))
        json_array_append_new(all, json_loads(line, JSON_ALLOW_NUL, NULL));
    if (status)
        fail_msg("llmctl %s: status %d", arguments, status);
    free(out);
    return all;
}

/* Also more of them than a connection of the default size takes. */
static void choices_of_all_lines(void **state)
{
    (void)state;
    char text[2000];
    size_t used = 0;
    for (int i = 0; i < 20; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"tokens\": [%d, 7]}\n", i);
    json_t *all = ctl_lines("complete", text, "--choices 20 -n 2 --ignore-eos --temperature 1"), *o;
    size_t i;
    assert_int_equal(json_array_size(all), 20);
    json_array_foreach(all, i, o)
    {
        const json_t *choices = json_object_get(o, "choices");
        assert_int_equal(json_array_size(choices), 20);
        for (size_t k = 0; k < 20; k++) {
            const json_t *tokens = json_object_get(json_array_get(choices, k), "tokens");
            assert_int_equal(json_array_size(tokens), 2);
        }
    }
    json_decref(all);
}

static void ids_come_back(void **state)
{
    (void)state;
    static const char *const ids[] = {"7", "-1732900000.1234567", "\"seven\\u0000\"",
                                      "[1, {\"a\": null}]", "true"};
    char text[1000];
    size_t used = 0;
    for (size_t i = 0; i < 5; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "{\"id\": %s, \"tokens\": [1], \"n\": 1}\n", ids[i]);
    snprintf(text + used, sizeof text - used, "{\"tokens\": [1], \"n\": 1}\n");
    json_t *all = ctl_lines("complete", text, "");
    assert_int_equal(json_array_size(all), 6);
    for (size_t i = 0; i < 5; i++) {
        json_t *want = json_loads(ids[i], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(want);
        assert_true(json_equal(json_object_get(json_array_get(all, i), "id"), want));
        json_decref(want);
    }
    assert_true(json_is_null(json_object_get(json_array_get(all, 5), "id")));
    json_decref(all);
}

/* A key means what its flag means, a seed of 64 bits too. */
static void keys_as_flags(void **state)
{
    (void)state;
    json_t *lines = ctl_lines("complete",
                              "{\"tokens\": [5, 6], \"max_tokens\": 9, \"ignore_eos\": true, "
                              "\"temperature\": 1, \"top_k\": 300, \"top_p\": 0.9, \"min_p\": "
                              "0.001, \"seed\": \"18446744073709551614\"}\n",
                              "");
    json_t *flags = ctl_json("complete --tokens 5,6 -n 9 --ignore-eos --temperature 1 --top-k 300 "
                             "--top-p 0.9 --min-p 0.001 --seed 18446744073709551614 --json");
    const json_t *tokens = json_object_get(json_array_get(lines, 0), "tokens");
    assert_int_equal(json_array_size(tokens), 9);
    assert_true(json_equal(tokens, json_object_get(flags, "tokens")));
    json_decref(lines), json_decref(flags);
}

/* Nothing on stdout, not even the end of a line. */
static void a_refused_stream_prints_nothing(void **state)
{
    (void)state;
    int status;
    char *out = ctl(&status, "complete --tokens 1 -n 5000 2>/dev/null");
    assert_int_equal(status, 1);
    assert_string_equal(out, "");
    free(out);
}

/* Every command: getopt's message, then where the options stand. */
/* In one line, which names the help. */
static void unknown_options(void **state)
{
    (void)state;
    static const char *const commands[] = {"complete", "score", "tokenize", "detokenize", "status",
                                           "run",      "chat",  "render",   "session",    "choose",
                                           "top",      "drain", "plan",     "serve"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char arguments[64], help[64];
        int status;
        snprintf(arguments, sizeof arguments, "%s --bogus 2>&1", commands[i]);
        snprintf(help, sizeof help, "; see llmctl %s --help\n", commands[i]);
        char *out = ctl(&status, arguments);
        assert_int_equal(status, 2);
        assert_non_null(strstr(out, " --bogus; "));
        assert_string_equal(strchr(out, '\n') - strlen(help) + 1, help);
        free(out);
    }
    refuses("--bogus", 2, "see llmctl --help\n");
}

/* Whatever the command, before it is looked for. */
static void no_instance_name(void **state)
{
    (void)state;
    static const char rule[] = "1 to 48 letters, digits, '.', '_' or '-'";
    refuses("-i a/b status", 2, rule);
    refuses("-i '' complete x", 2, rule);
    refuses("-i .a top --once", 2, rule);
    refuses("-i $(printf %049d 0) drain", 2, rule);
    refuses("serve --instance a/b", 2, rule);
    int status;
    char *out = run_command(&status, "LLMD_INSTANCE=a/b '%s' status 2>&1", built("llmctl"));
    assert_int_equal(status, 2);
    assert_non_null(strstr(out, "LLMD_INSTANCE \"a/b\" is no instance name"));
    free(out);
}

static void refusals(void **state)
{
    (void)state;
    refuses("complete", 2, "what is the prompt");
    refuses("complete", 2, "see llmctl complete --help");
    refuses("complete --bogus", 2, "unknown option --bogus; see llmctl complete --help");
    refuses("complete -x", 2, "unknown option -x; see llmctl complete --help");
    refuses("complete --json -xn", 2, "unknown option -x; see llmctl complete --help");
    refuses("complete --json=3", 2, "--json takes no value; see llmctl complete --help");
    refuses("complete --lo", 2, "--lo may be more than one option; see ");
    refuses("complete --tokens", 2, "--tokens needs a value; see llmctl complete --help");
    refuses("complete -n", 2, "-n needs a value; see llmctl complete --help");
    refuses("--bogus", 2, "unknown option --bogus; see llmctl --help");
    static const char *const commands[] = {"run",   "chat",       "complete", "session", "choose",
                                           "score", "tokenize",   "render",   "status",  "top",
                                           "drain", "detokenize", "plan"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char line[128], sentence[128];
        snprintf(line, sizeof line, "%s --bogus", commands[i]);
        snprintf(sentence, sizeof sentence, "unknown option --bogus; see llmctl %s --help",
                 commands[i]);
        refuses(line, 2, sentence);
        snprintf(line, sizeof line, "%s -i other", commands[i]);
        refuses(line, 2, "-i goes before the command: llmctl -i INSTANCE COMMAND; see ");
        snprintf(line, sizeof line, "%s --instance other", commands[i]);
        refuses(line, 2, "--instance goes before the command");
    }
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
    refuses("complete --tokens 1,2 --top-p 1.0000001", 1, "1.00000012");
    refuses("score --tokens 1", 1, "at least 2");
    refuses("score --tokens 1,2 --choices 3", 2, "choices");
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
                 {"{\"tokens\": [1], \"n\": 5, \"max_tokens\": 5}\n", "max_tokens"},
                 {"{\"tokens\": [1], \"seed\": \"18446744073709551615\"}\n", "seed"},
                 {"[1]\n", "object"}};
    char arguments[700];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(arguments, sizeof arguments, "complete --jsonl %s",
                 write_file("bad.jsonl", cases[i].line, strlen(cases[i].line)));
        refuses(arguments, 1, cases[i].word);
    }
    snprintf(arguments, sizeof arguments, "score --jsonl %s",
             write_file("bad.jsonl", "{\"tokens\": [1, 2], \"choices\": 2}\n", 33));
    refuses(arguments, 1, "choices");
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
    assert_memory_equal(json_string_value(json_object_get(o, "backend")), "cpu-", 4);
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
        cmocka_unit_test(complete_json),
        cmocka_unit_test(sources_agree),
        cmocka_unit_test(seeds),
        cmocka_unit_test(choices_fork),
        cmocka_unit_test(score_json),
        cmocka_unit_test(jsonl_in_order),
        cmocka_unit_test(choices_of_all_lines),
        cmocka_unit_test(ids_come_back),
        cmocka_unit_test(keys_as_flags),
        cmocka_unit_test(a_refused_stream_prints_nothing),
        cmocka_unit_test(unknown_options),
        cmocka_unit_test(no_instance_name),
        cmocka_unit_test(refusals),
        cmocka_unit_test(bad_lines),
        cmocka_unit_test(status_figures),
    };
    return cmocka_run_group_tests_name("llmctl", tests, start, stop);
}
