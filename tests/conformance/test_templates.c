/* test_templates.c - chat templates render byte for byte as the reference does: transformers' own
 * renderer on Jinja2. Data: tests/golden/templates (real templates of many model families, and
 * the language piece by piece), tests/golden/templates_extra (its README says how it was made).
 * Where the reference fails we must fail, and for raise_exception with its message.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../support/support.h"

#include "../../client/llm_template.h"

struct tally {
    unsigned cases, bad;
};

/* What came of it: the text (malloc'ed), or NULL and the reason. */
static char *render(const char *source, size_t source_bytes, const json_t *input, size_t *bytes,
                    char *why, size_t why_size)
{
    struct llm_template *t;
    char *text = NULL, *json = json_dumps(input, JSON_COMPACT);
    assert_non_null(json);
    if (llm_template_parse(&t, source, source_bytes, why, why_size) == 0) {
        llm_template_render(t, json, strlen(json), NULL, &text, bytes, why, why_size);
        llm_template_free(t);
    }
    free(json);
    return text;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static bool as_expected(const json_t *c, const char *text, size_t bytes, const char *why)
{
    const json_t *rendered = json_object_get(c, "rendered");
    const char *kind = json_string_value(json_object_get(c, "error_kind"));
    if (rendered)
        return text && bytes == json_string_length(rendered) &&
               !memcmp(text, json_string_value(rendered), bytes);
    if (text || !*why)
        return false;
    return strcmp(kind, "raise_exception") ||
           ends_with(why, json_string_value(json_object_get(c, "error")));
}

static void check(struct tally *tally, const char *name, const char *source, size_t source_bytes,
                  const json_t *input, const json_t *c)
{
    char why[1024] = "";
    size_t bytes = 0;
    char *text = render(source, source_bytes, input, &bytes, why, sizeof why);
    tally->cases++;
    if (!as_expected(c, text, bytes, why)) {
        char *wanted = json_dumps(c, JSON_COMPACT);
        tally->bad++;
        print_error("%s\n  wanted %s\n  got %s\n", name, wanted, text ? text : why);
        free(wanted);
    }
    free(text);
}

/* One JSON value a line; calls `each` with them. */
static void each_line(const char *path, void (*each)(struct tally *, const json_t *, void *),
                      struct tally *tally, void *context)
{
    size_t bytes;
    char *text = golden_read(path, &bytes);
    for (char *line = text, *end; line < text + bytes; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + bytes - line));
        if (!end)
            end = text + bytes;
        json_error_t error;
        json_t *c = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &error);
        if (!c)
            fail_msg("%s: %s", path, error.text);
        each(tally, c, context);
        json_decref(c);
    }
    free(text);
}

static void check_case(struct tally *tally, const json_t *c, void *context)
{
    json_t *inputs = context;
    const char *template = json_string_value(json_object_get(c, "template"));
    const char *name = json_string_value(json_object_get(c, "input"));
    char path[300], label[300];
    size_t bytes;
    snprintf(path, sizeof path, "templates/%s", template);
    snprintf(label, sizeof label, "%s with %s", template, name);
    char *source = golden_read(path, &bytes);
    json_t *input = json_copy(json_object_get(json_object_get(inputs, "inputs"), name));
    assert_non_null(input);
    json_object_update(input, json_object_get(inputs, "special_tokens"));
    json_object_set(input, "now", json_object_get(inputs, "now"));
    check(tally, label, source, bytes, input, c);
    json_decref(input);
    free(source);
}

static void model_templates(void **state)
{
    struct tally tally = {0};
    json_t *inputs = golden_json("templates/inputs.json");
    (void)state;
    each_line("templates/cases.jsonl", check_case, &tally, inputs);
    json_decref(inputs);
    print_message("%u cases\n", tally.cases);
    assert_true(tally.cases > 100);
    assert_int_equal(tally.bad, 0);
}

static void check_snippet(struct tally *tally, const json_t *c, void *context)
{
    const json_t *template = json_object_get(c, "template");
    check(tally, json_string_value(template), json_string_value(template),
          json_string_length(template), context, c);
}

/* The variables that snippets see. */
static json_t *snippet_context(const char *path)
{
    json_t *inputs = golden_json("templates/inputs.json"), *context = golden_json(path);
    json_object_update(context, json_object_get(inputs, "special_tokens"));
    json_object_set(context, "now", json_object_get(inputs, "now"));
    json_decref(inputs);
    return context;
}

static void check_snippets(const char *path, const char *context_path, unsigned least)
{
    struct tally tally = {0};
    json_t *context = snippet_context(context_path);
    each_line(path, check_snippet, &tally, context);
    json_decref(context);
    print_message("%u cases\n", tally.cases);
    assert_true(tally.cases >= least);
    assert_int_equal(tally.bad, 0);
}

static void language(void **state)
{
    (void)state;
    check_snippets("templates/snippets.jsonl", "templates/snippets_context.json", 20);
}

static void language_in_depth(void **state)
{
    (void)state;
    if (access(golden_path("templates_extra/snippets.jsonl.gz"), R_OK))
        skip(); /* another set of reference data */
    check_snippets("templates_extra/snippets.jsonl", "templates/snippets_context.json", 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_templates),
        cmocka_unit_test(language),
        cmocka_unit_test(language_in_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
