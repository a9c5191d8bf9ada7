/* test_gateway_chat.c - messages to text: what the last message's continuation keeps, and how long that
 * takes. */
#include "../../tools/gateway/prompt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* As Llama 3's: contents lose the white space around them. */
static const char source[] =
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<end>{% endfor %}";

static char *repeated(char c, size_t n, const char *behind)
{
    char *text = malloc(n + strlen(behind) + 1);
    memset(text, c, n);
    strcpy(text + n, behind);
    return text;
}

/* The text (malloc'ed) of a user's message and one of the assistant that is continued; NULL where it
 * is refused. */
static char *continued(const char *user, const char *assistant)
{
    char why[256], *forced = NULL;
    struct model m = {.template_source = (char *)source};
    struct problem problem = {0};
    size_t bytes = 0;
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", user, "role",
                                 "assistant", "content", assistant);
    struct params p = {.api = API_CHAT, .messages = messages, .continue_final_message = true};
    assert_int_equal(llm_template_parse(&m.template, source, strlen(source), why, sizeof why), 0);
    char *text = chat_render(&p, &m, &bytes, &forced, &problem), *out = NULL;
    if (text)
        out = strndup(text, bytes);
    else
        assert_string_equal(problem.param, "continue_final_message");
    llm_template_free_text(text);
    llm_template_free(m.template);
    json_decref(messages);
    return out;
}

static void cut_behind_the_last(void **state)
{
    (void)state;
    char *text = continued("say it: it is", "it is");
    assert_string_equal(text, "[user]say it: it is<end>[assistant]it is");
    free(text);
    text = continued("x", "aaa");
    assert_string_equal(text, "[user]x<end>[assistant]aaa");
    free(text);
    assert_null(continued("x", " trimmed "));
    assert_null(continued("x", ""));
}

/* Every place of the long text begins like the content that is not in it: compared at each of them,
 * this would take minutes. */
static void in_linear_time(void **state)
{
    (void)state;
    char *user = repeated('a', 2000000, ""), *assistant = repeated('a', 1000000, "b\n");
    assert_null(continued(user, assistant));
    free(user);
    free(assistant);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_behind_the_last),
        cmocka_unit_test(in_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
