/* test_gateway_tools.c - tool calls of all families, fed by every cut in two and byte by byte: always
 * the same text, names and arguments. */
#include "../../tools/gateway/tools.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What came out: text as it is, a call as [name|arguments]. */
struct said {
    char text[1024];
    bool open;
};

static void put(struct said *s, const char *text, size_t bytes)
{
    size_t n = strlen(s->text);
    assert_true(n + bytes + 2 < sizeof s->text);
    memcpy(s->text + n, text, bytes);
    s->text[n + bytes] = 0;
}

static void close_call(struct said *s)
{
    if (s->open)
        put(s, "]", 1);
    s->open = false;
}

static void on_text(void *context, const char *text, size_t bytes)
{
    close_call(context);
    put(context, text, bytes);
}

static void on_call(void *context, unsigned index, const char *name, size_t bytes)
{
    (void)index;
    struct said *s = context;
    close_call(s);
    put(s, "[", 1);
    put(s, name, bytes);
    put(s, "|", 1);
    s->open = true;
}

static void on_arguments(void *context, unsigned index, const char *text, size_t bytes)
{
    (void)index;
    assert_true(((struct said *)context)->open);
    put(context, text, bytes);
}

static void feed(enum tool_format format, const char *text, size_t cut, size_t step,
                 struct said *said)
{
    struct tool_parser t;
    struct tool_sink sink = {on_text, on_call, on_arguments, said};
    size_t n = strlen(text);
    tools_begin(&t, format);
    tools_feed(&t, text, cut, &sink);
    for (size_t at = cut; at < n; at += step)
        tools_feed(&t, text + at, n - at < step ? n - at : step, &sink);
    tools_end(&t, &sink);
    tools_free(&t);
    close_call(said);
}

static const struct scenario {
    enum tool_format format;
    const char *text, *said;
} scenarios[] = {
    {TOOLS_NONE, "<tool_call>{\"name\": \"f\"}", "<tool_call>{\"name\": \"f\"}"},
    {TOOLS_HERMES, "Hello, world. ", "Hello, world. "},
    {TOOLS_HERMES, "", ""},
    {TOOLS_HERMES, " \n", " \n"},
    {TOOLS_HERMES, "a < b <tool_ <<tool_cal", "a < b <tool_ <<tool_cal"},
    {TOOLS_HERMES, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     "[f|{\"a\": 1}]"},
    {TOOLS_HERMES, "I look.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n",
     "I look.[f|{}]"},
    {TOOLS_HERMES,
     "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"}]\\\"</tool_call>\"}}</tool_call>\n"
     "<tool_call>{\"name\":\"g\",\"arguments\":[1,{\"b\":[2]}]}</tool_call>",
     "[f|{\"s\":\"}]\\\"</tool_call>\"}][g|[1,{\"b\":[2]}]]"},
    {TOOLS_HERMES, "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>",
     "[f|{\"a\": 1}]"},
    {TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>", "[f|\"x\"]"},
    {TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "[f|null]"},
    {TOOLS_HERMES, "<tool_call>{\"id\": [{\"name\": 1}], \"name\": \"f\"}</tool_call>", "[f|]"},
    {TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", "[f|{\"a\": ]"},
    {TOOLS_HERMES, "<tool_call>nothing", "<tool_call>nothing"},
    {TOOLS_HERMES, "<tool_call>{\"name\": \"f\"}</tool_call> and more", "[f|] and more"},
    {TOOLS_LLAMA, "{\"name\": \"f\", \"parameters\": {\"a\": {\"b\": 2}}}",
     "[f|{\"a\": {\"b\": 2}}]"},
    {TOOLS_LLAMA,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", "
     "\"parameters\": {}}",
     "[f|{}][g|{}]"},
    {TOOLS_LLAMA, "{\"answer\": 42}", "{\"answer\": 42}"},
    {TOOLS_LLAMA, "{\"answer\": 42} or {so}", "{\"answer\": 42} or {so}"},
    {TOOLS_LLAMA, "The set {1, 2}", "The set {1, 2}"},
    {TOOLS_MISTRAL,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"[\"}}, {\"name\": \"g\", "
     "\"arguments\": {}}]",
     "[f|{\"a\": \"[\"}][g|{}]"},
    {TOOLS_MISTRAL, "[TOOL_X] [1]", "[TOOL_X] [1]"},
};

static void every_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        const struct scenario *s = &scenarios[i];
        for (size_t cut = 0; cut <= strlen(s->text); cut++)
            for (size_t step = 1; step < 200; step += 199 - 1) {
                struct said said = {0};
                feed(s->format, s->text, cut, step, &said);
                if (strcmp(said.text, s->said))
                    fail_msg("\"%s\" cut at %zu: \"%s\" instead of \"%s\"", s->text, cut, said.text,
                             s->said);
            }
    }
}

/* Nothing that is certain is held back: arguments come while they are written. */
static void at_once(void **state)
{
    (void)state;
    struct tool_parser t;
    struct said said = {0};
    struct tool_sink sink = {on_text, on_call, on_arguments, &said};
    static const char *const parts[][2] = {
        {"Hi", "Hi"},
        {" <", "Hi"},
        {"b", "Hi <b"},
        {"<tool_call>{\"name\": \"f\"", "Hi <b[f|"},
        {", \"arguments\": {\"a", "Hi <b[f|{\"a"},
        {"bc", "Hi <b[f|{\"abc"},
    };
    tools_begin(&t, TOOLS_HERMES);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        tools_feed(&t, parts[i][0], strlen(parts[i][0]), &sink);
        assert_string_equal(said.text, parts[i][1]);
    }
    tools_free(&t);
}

static void families(void **state)
{
    (void)state;
    assert_int_equal(tools_format_of_template("... <tool_call>\\n{\"name\": ..."), TOOLS_HERMES);
    assert_int_equal(tools_format_of_template("<|python_tag|>"), TOOLS_LLAMA);
    assert_int_equal(tools_format_of_template("{{ '[TOOL_CALLS] [' }}"), TOOLS_MISTRAL);
    assert_int_equal(tools_format_of_template("{{ messages }}"), TOOLS_HERMES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut),
        cmocka_unit_test(at_once),
        cmocka_unit_test(families),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
