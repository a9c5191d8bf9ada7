/* test_llmctl_sessions.c - sessions across processes: each command is one, and what it leaves the
 * next one finds. What is generated on a session is what is generated behind its tokens.
 */
#include "../../shm/llm_abi.h"
#include "llmctl_rig.h"

static int64_t length_after(const char *arguments)
{
    char all[512];
    snprintf(all, sizeof all, "session %s --json", arguments);
    json_t *o = ctl_json(all);
    int64_t n = whole(o, "length");
    json_decref(o);
    return n;
}

static void fails_with(const char *arguments, int code)
{
    char all[512];
    snprintf(all, sizeof all, "session %s --json 2>/dev/null", arguments);
    json_t *o = ctl_json_status(1, all);
    assert_int_equal(whole(json_object_get(o, "error"), "code"), code);
    json_decref(o);
}

/* The two commands generate the same tokens. */
static void same_tokens(const char *a, const char *b)
{
    json_t *x = ctl_json(a), *y = ctl_json(b);
    if (!json_equal(json_object_get(x, "tokens"), json_object_get(y, "tokens")))
        fail_msg("llmctl %s\nand llmctl %s differ", a, b);
    assert_true(json_array_size(json_object_get(x, "tokens")) > 0);
    json_decref(x), json_decref(y);
}

static void append_here_generate_there(void **state)
{
    (void)state;
    int64_t refused = engine_figure(&engine, "refused");
    assert_int_equal(length_after("append one --tokens 5,6,7"), 3);
    assert_int_equal(engine_figure(&engine, "refused"), refused); /* it opened it: no failure */
    assert_int_equal(length_after("append one --tokens 8,9"), 5);
    same_tokens("complete --session one -n 6 --ignore-eos --json",
                "complete --tokens 5,6,7,8,9 -n 6 --ignore-eos --json");
    assert_int_equal(length_after("append one --tokens 1"), 12);
    assert_int_equal(length_after("close one"), 12);
    fails_with("close one", LLM_ENOSESSION);
}

static void a_line_for_people(void **state)
{
    (void)state;
    char *out = ctl_text(0, "session append lines --tokens 5,6,7");
    assert_string_equal(out, "lines: 3 tokens\n");
    free(out);
    refuses("session fork lines lines", 1, "new key");
    assert_int_equal(length_after("close lines"), 3);
}

/* Arguments are bytes; what is printed is JSON. */
static void names_of_any_bytes(void **state)
{
    (void)state;
    assert_int_equal(length_after("open $(printf 'a\\377\\001') --tokens 5,6"), 2);
    json_t *o = ctl_json("session append $(printf 'a\\377\\001') --tokens 7 --json");
    assert_string_equal(json_string_value(json_object_get(o, "session")), "a\xef\xbf\xbd\1");
    json_decref(o);
    assert_int_equal(length_after("close $(printf 'a\\377\\001')"), 3);
    o = ctl_json("choose --tokens 5 --label $(printf 'b\\377')");
    assert_string_equal(json_string_value(json_object_get(o, "label")), "b\xef\xbf\xbd");
    json_decref(o);
    char all[512];
    snprintf(all, sizeof all, "complete --jsonl %s",
             lines_file("nul.jsonl", "{\"tokens\": [5], \"session\": \"a\\u0000b\"}\n"));
    refuses(all, 1, "must be a name");
}

static void opened_by_complete(void **state)
{
    (void)state;
    same_tokens("complete --session two --tokens 5,6,7 -n 4 --ignore-eos --json",
                "complete --tokens 5,6,7 -n 4 --ignore-eos --json");
    assert_int_equal(length_after("append two --tokens 9"), 8);
    /* without a prompt there is nothing to open it with */
    json_t *o = ctl_json_status(1, "complete --session three --json 2>/dev/null");
    assert_int_equal(whole(json_object_get(o, "error"), "code"), LLM_ENOSESSION);
    json_decref(o);
    assert_int_equal(length_after("close two"), 8);
}

static void rewind_and_replace(void **state)
{
    (void)state;
    assert_int_equal(length_after("open r --tokens 5,6,7,8,9"), 5);
    assert_int_equal(length_after("rewind r 3"), 3);
    assert_int_equal(length_after("replace r 2 --tokens 1,2"), 4);
    assert_int_equal(length_after("replace r --keep 3 --tokens 3"), 4);
    same_tokens("complete --session r -n 5 --ignore-eos --json",
                "complete --tokens 5,6,1,3 -n 5 --ignore-eos --json");
    same_tokens("complete --session r --keep 4 -n 5 --ignore-eos --json",
                "complete --tokens 5,6,1,3 -n 5 --ignore-eos --json");
    refuses("session rewind r 10", 1, "llmctl: the session has 9 tokens: keep at most 9\n");
    refuses("session replace r 99 --tokens 3", 1, "the session has 9 tokens: keep at most 9");
    refuses("complete --session r --keep 10 -n 5", 1, "the session has 9 tokens: keep at most 9");
    refuses("complete --session r --keep 10 -n 5 --json", 1, "keep at most 9");
    assert_int_equal(length_after("rewind r --keep 0 --interrupt"), 0);
    fails_with("rewind r 1", LLM_EPARAM);
    refuses("session rewind r 1", 1, "the session has 0 tokens: keep at most 0");
    assert_int_equal(length_after("close r"), 0);
}

static void forks(void **state)
{
    (void)state;
    assert_int_equal(length_after("append f --tokens 5,6,7"), 3);
    assert_int_equal(length_after("fork f g"), 3);
    assert_int_equal(length_after("append g --tokens 8"), 4);
    assert_int_equal(length_after("append f --tokens 9"), 4);
    same_tokens("complete --session g -n 5 --ignore-eos --json",
                "complete --tokens 5,6,7,8 -n 5 --ignore-eos --json");
    same_tokens("complete --session f -n 5 --ignore-eos --json",
                "complete --tokens 5,6,7,9 -n 5 --ignore-eos --json");
    fails_with("fork f g", LLM_ESESSION);
    fails_with("fork nobody h", LLM_ENOSESSION);
    fails_with("open f", LLM_ESESSION);
    length_after("close f"), length_after("close g");
}

/* Turns of one session follow each other, also in a batch, and other lines do not wait for them. */
static void turns_in_a_batch(void **state)
{
    (void)state;
    json_t *all = ctl_lines("{\"session\": \"t\", \"tokens\": [5, 6], \"n\": 4}\n"
                            "{\"tokens\": [1, 2], \"n\": 2}\n"
                            "{\"session\": \"t\", \"tokens\": [7], \"n\": 4}\n"
                            "{\"session\": \"t\", \"n\": 4}\n",
                            "--ignore-eos");
    assert_int_equal(json_array_size(all), 4);
    char arguments[512];
    size_t used = (size_t)snprintf(arguments, sizeof arguments, "complete --tokens 5,6"), i;
    json_t *token;
    json_array_foreach(json_object_get(json_array_get(all, 0), "tokens"), i, token)
    {
        used += (size_t)snprintf(arguments + used, sizeof arguments - used, ",%lld",
                                 (long long)json_integer_value(token));
    }
    snprintf(arguments + used, sizeof arguments - used, ",7 -n 8 --ignore-eos --json");
    json_t *o = ctl_json(arguments), *together = json_array();
    json_array_extend(together, json_object_get(json_array_get(all, 2), "tokens"));
    json_array_extend(together, json_object_get(json_array_get(all, 3), "tokens"));
    assert_true(json_equal(together, json_object_get(o, "tokens")));
    json_decref(o), json_decref(together), json_decref(all);
    assert_int_equal(length_after("close t"), 15);
}

static void text_joins_as_it_is(void **state)
{
    (void)state;
    int64_t n = length_after("append x 'hello world'");
    json_t *o = ctl_json("tokenize 'hello world' --json");
    assert_int_equal(json_array_size(o), n);
    json_decref(o);
    assert_int_equal(length_after("append x ''"), n);
    length_after("close x");
}

static void figures(void **state)
{
    (void)state;
    int64_t before = engine_figure(&engine, "sessions");
    length_after("open figure --tokens 5,6 --pin");
    assert_int_equal(engine_figure(&engine, "sessions"), before + 1);
    assert_int_equal(engine_figure(&engine, "pinned_blocks"), 1);
    length_after("close figure");
    assert_int_equal(engine_figure(&engine, "sessions"), before);
    assert_int_equal(engine_figure(&engine, "pinned_blocks"), 0);
}

static void wrong_command_lines(void **state)
{
    (void)state;
    refuses("session", 2, "append, replace, rewind");
    refuses("session burn x", 2, "burn");
    refuses("session append", 2, "NAME");
    refuses("session append x", 2, "what is the prompt");
    refuses("session append x --tokens 1 text", 2, "one source");
    refuses("session append x --keep 3 --tokens 1", 2, "--keep");
    refuses("session rewind x", 2, "how many tokens");
    refuses("session rewind x three", 2, "three");
    refuses("session rewind x 3 --tokens 1", 2, "takes no tokens");
    refuses("session rewind x 3 4", 2, "unexpected");
    refuses("session fork x", 2, "new session");
    refuses("complete --keep 3 --tokens 1", 2, "--session");
    refuses("complete --session '' --tokens 1", 2, "name");
    refuses("complete --session x --choices 2 --tokens 1", 1, "one choice");
    refuses("score --session x --tokens 1,2", 2, "--session");
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, tiny_model(), "--threads", "1", "--num-kv-blocks", "256", NULL);
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
        cmocka_unit_test(append_here_generate_there),
        cmocka_unit_test(a_line_for_people),
        cmocka_unit_test(names_of_any_bytes),
        cmocka_unit_test(opened_by_complete),
        cmocka_unit_test(rewind_and_replace),
        cmocka_unit_test(forks),
        cmocka_unit_test(turns_in_a_batch),
        cmocka_unit_test(text_joins_as_it_is),
        cmocka_unit_test(figures),
        cmocka_unit_test(wrong_command_lines),
    };
    return cmocka_run_group_tests_name("llmctl_sessions", tests, start, stop);
}
