/* chat.c - messages and tools to the text that the model's template makes of them.
 *
 * What templates expect is what Hugging Face's apply_chat_template gives them: contents are plain
 * strings, the arguments of tool calls are objects. Where a template does not know tools, they are
 * shown to the model in a system message, in Hermes' words (NousResearch, Hermes function calling).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prompt.h"
#include "tools.h"

/* ---- messages ---- */

static int bad(struct problem *problem, size_t i, const char *what)
{
    char param[40];
    snprintf(param, sizeof param, "messages[%zu]", i);
    return problem_value(problem, param, "messages[%zu]%s", i, what);
}

/* Text parts of a content array, put together. NULL: not all of it is text. */
static json_t *text_of_parts(const json_t *parts)
{
    size_t i;
    const json_t *part;
    struct buffer text = {0};
    json_array_foreach((json_t *)parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        bool refusal = type && !strcmp(type, "refusal");
        const json_t *v = json_object_get(part, refusal ? "refusal" : "text");
        if (!type || (!refusal && strcmp(type, "text")) || !json_is_string(v)) {
            buffer_free(&text);
            return NULL;
        }
        buffer_add(&text, json_string_value(v), json_string_length(v));
    }
    json_t *out = json_stringn(text.data ? text.data : "", text.bytes);
    buffer_free(&text);
    return out;
}

/* The content as a string. */
static json_t *plain_content(const json_t *message, size_t i, bool may_be_absent,
                             struct problem *problem)
{
    const json_t *content = json_object_get(message, "content");
    json_t *text = NULL;
    if (json_is_string(content))
        return json_incref((json_t *)content);
    if ((!content || json_is_null(content)) && may_be_absent)
        return json_string("");
    if (json_is_array(content) && json_array_size(content))
        text = text_of_parts(content);
    if (!text)
        bad(problem, i,
            ".content must be a string or an array of text parts: this model reads text");
    return text;
}

static json_t *plain_tool_call(const json_t *call)
{
    const json_t *function = json_object_get(call, "function"),
                 *name = json_object_get(function, "name"),
                 *arguments = json_object_get(function, "arguments");
    if (!json_is_string(name) || !json_is_string(arguments))
        return NULL;
    json_t *parsed = json_loadb(json_string_value(arguments), json_string_length(arguments),
                                JSON_ALLOW_NUL, NULL);
    json_t *out = json_deep_copy(call);
    if (json_is_object(parsed))
        json_object_set(json_object_get(out, "function"), "arguments", parsed);
    json_decref(parsed);
    return out;
}

static int add_tool_calls(json_t *to, const json_t *message, size_t i, struct problem *problem)
{
    size_t k;
    const json_t *call, *calls = json_object_get(message, "tool_calls");
    if (!calls || json_is_null(calls))
        return 0;
    if (!json_is_array(calls))
        return bad(problem, i, ".tool_calls must be an array");
    json_t *plain = json_array();
    json_array_foreach((json_t *)calls, k, call)
    {
        json_t *one = plain_tool_call(call);
        if (!one) {
            json_decref(plain);
            return bad(problem, i,
                       ".tool_calls: each has a function with name and arguments, both "
                       "strings");
        }
        json_array_append_new(plain, one);
    }
    json_object_set_new(to, "tool_calls", plain);
    return 0;
}

static int add_texts(json_t *to, const json_t *message, size_t i, struct problem *problem)
{
    static const char *const names[] = {"name", "tool_call_id"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const json_t *v = json_object_get(message, names[k]);
        if (!v || json_is_null(v))
            continue;
        if (!json_is_string(v))
            return bad(problem, i, k ? ".tool_call_id must be a string" : ".name must be a string");
        json_object_set(to, names[k], (json_t *)v);
    }
    return 0;
}

/* What templates call the role; NULL: no role. */
static const char *role_of(const json_t *message)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role && !strcmp(role, "developer"))
        return "system";
    if (role && !strcmp(role, "function"))
        return "tool";
    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(role, roles[i]))
            return role;
    return NULL;
}

static json_t *plain_message(const json_t *message, size_t i, struct problem *problem)
{
    const char *role = role_of(message);
    if (!role) {
        bad(problem, i, ".role must be system, developer, user, assistant or tool");
        return NULL;
    }
    bool assistant = !strcmp(role, "assistant");
    json_t *content = plain_content(message, i, assistant, problem);
    if (!content)
        return NULL;
    json_t *out = json_pack("{s:s, s:o}", "role", role, "content", content);
    if (!out || add_texts(out, message, i, problem) ||
        (assistant && add_tool_calls(out, message, i, problem))) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static json_t *plain_messages(const json_t *messages, struct problem *problem)
{
    size_t i;
    const json_t *message;
    json_t *out = json_array();
    json_array_foreach((json_t *)messages, i, message)
    {
        json_t *plain = plain_message(message, i, problem);
        if (!plain) {
            json_decref(out);
            return NULL;
        }
        json_array_append_new(out, plain);
    }
    return out;
}

/* ---- tools ---- */

static const char before_tools[] =
    "You are a function calling AI model. You are provided with function signatures within "
    "<tools></tools> XML tags. You may call one or more functions to assist with the user query. "
    "Here are the available tools: <tools>";
static const char behind_tools[] =
    " </tools> For each function call return a JSON object with function name and arguments within "
    "<tool_call></tool_call> XML tags as follows:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-dict>}\n</tool_call>";

static json_t *tools_as_text(const json_t *tools, const json_t *system)
{
    struct buffer text = {0};
    char *json = json_dumps(tools, JSON_COMPACT);
    if (system) {
        buffer_text(&text, json_string_value(system));
        buffer_text(&text, "\n\n");
    }
    buffer_text(&text, before_tools);
    buffer_text(&text, json ? json : "[]");
    buffer_text(&text, behind_tools);
    json_t *out = text.failed || !json ? NULL : json_stringn(text.data, text.bytes);
    free(json);
    buffer_free(&text);
    return out;
}

/* Into the first system message, which is made if there is none. */
static bool tell_of_tools(json_t *messages, const json_t *tools)
{
    json_t *first = json_array_get(messages, 0);
    bool system = !strcmp(json_string_value(json_object_get(first, "role")), "system");
    json_t *text = tools_as_text(tools, system ? json_object_get(first, "content") : NULL);
    if (!text)
        return false;
    if (system)
        return !json_object_set_new(first, "content", text);
    return !json_array_insert_new(messages, 0,
                                  json_pack("{s:s, s:o}", "role", "system", "content", text));
}

/* Templates that know no role "tool" get results as a user's message. */
static void results_as_user(json_t *messages)
{
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message)
    {
        struct buffer text = {0};
        const json_t *content = json_object_get(message, "content");
        if (strcmp(json_string_value(json_object_get(message, "role")), "tool"))
            continue;
        buffer_text(&text, "<tool_response>\n");
        buffer_add(&text, json_string_value(content), json_string_length(content));
        buffer_text(&text, "\n</tool_response>");
        json_object_set_new(message, "role", json_string("user"));
        json_object_set_new(message, "content", json_stringn(text.data, text.bytes));
        buffer_free(&text);
    }
}

/* Calls that the assistant made, where the template would not show them. */
static void calls_as_text(json_t *messages)
{
    size_t i, k;
    json_t *message, *call;
    json_array_foreach(messages, i, message)
    {
        struct buffer text = {0};
        json_t *calls = json_object_get(message, "tool_calls");
        if (!calls)
            continue;
        buffer_text(&text, json_string_value(json_object_get(message, "content")));
        json_array_foreach(calls, k, call)
        {
            json_t *function = json_object_get(call, "function");
            json_t *shown = json_pack("{s:O, s:O}", "name", json_object_get(function, "name"),
                                      "arguments", json_object_get(function, "arguments"));
            char *json = json_dumps(shown, 0);
            buffer_text(&text, "<tool_call>\n");
            buffer_text(&text, json ? json : "{}");
            buffer_text(&text, "\n</tool_call>");
            free(json);
            json_decref(shown);
        }
        json_object_set_new(message, "content", json_stringn(text.data, text.bytes));
        json_object_del(message, "tool_calls");
        buffer_free(&text);
    }
}

static const json_t *function_named(const json_t *tools, const char *name)
{
    size_t i;
    const json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        if (!strcmp(json_string_value(json_object_get(function, "name")), name))
            return function;
    }
    return NULL;
}

/* The first argument that the tool cannot do without: the object begins with it. No space at the end:
 * it belongs to the token that follows. */
static void put_arguments(struct buffer *text, const json_t *function)
{
    const json_t *schema = json_object_get(function, "parameters"),
                 *first = json_array_get(json_object_get(schema, "required"), 0);
    if (!json_is_string(first))
        return;
    const json_t *property =
        json_object_get(json_object_get(schema, "properties"), json_string_value(first));
    const char *type = json_string_value(json_object_get(property, "type"));
    buffer_text(text, " {");
    json_put_string(text, json_string_value(first), json_string_length(first));
    buffer_text(text, type && !strcmp(type, "string") ? ": \"" : ":");
}

/* The beginning of the answer where a tool has to be called. With several tools the model writes the
 * name. */
static char *forced_beginning(const struct params *p, enum tool_format format)
{
    struct buffer text = {0};
    const json_t *function = p->tool_choice == TOOL_NAMED ? function_named(p->tools, p->tool_name)
                             : json_array_size(p->tools) == 1
                                 ? json_object_get(json_array_get(p->tools, 0), "function")
                                 : NULL;
    buffer_text(&text, format == TOOLS_HERMES    ? "<tool_call>\n{\"name\": \""
                       : format == TOOLS_MISTRAL ? "[TOOL_CALLS] [{\"name\": \""
                                                 : "{\"name\": \"");
    if (function) {
        buffer_text(&text, json_string_value(json_object_get(function, "name")));
        buffer_text(&text, format == TOOLS_LLAMA ? "\", \"parameters\":" : "\", \"arguments\":");
        put_arguments(&text, function);
    }
    buffer_add(&text, "", 1);
    if (text.failed)
        buffer_free(&text);
    return text.data;
}

/* ---- the template's input ---- */

static void add_special(json_t *input, const struct model *m)
{
    static const char *const names[] = {[LLM_BOS] = "bos_token",
                                        [LLM_EOS] = "eos_token",
                                        [LLM_UNK] = "unk_token",
                                        [LLM_PAD] = "pad_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i] && m->special[i][0])
            json_object_set_new(input, names[i], json_string(m->special[i]));
}

static json_t *input_of(const struct params *p, const struct model *m, struct problem *problem)
{
    json_t *messages = plain_messages(p->messages, problem);
    if (!messages)
        return NULL;
    bool tools = p->tools && p->tool_choice != TOOL_NONE;
    bool knows = tools_in_template(m->template_source);
    json_t *input = json_object();
    if (p->template_arguments)
        json_object_update(input, (json_t *)p->template_arguments);
    if (!knows) {
        calls_as_text(messages);
        results_as_user(messages);
    }
    if (tools && knows)
        json_object_set(input, "tools", (json_t *)p->tools);
    else if (tools && !tell_of_tools(messages, p->tools))
        problem_memory(problem);
    json_object_set_new(input, "messages", messages);
    json_object_set_new(input, "add_generation_prompt", json_boolean(p->add_generation_prompt));
    add_special(input, m);
    return input;
}

/* ---- */

static int problem_of_template(struct problem *problem, int code, const char *why)
{
    if (code == LLM_TEMPLATE_ERAISED || code == LLM_TEMPLATE_EINPUT)
        return problem_value(problem, "messages", "the model's chat template refuses this: %s",
                             why);
    if (code == LLM_TEMPLATE_ELIMIT)
        return problem_value(problem, "messages", "%s", why);
    if (code == -ENOMEM)
        return problem_memory(problem);
    return problem_value(problem, "messages",
                         "the model's chat template cannot be used with these "
                         "messages: %s",
                         why);
}

/* Text with what is forced behind it. */
static char *with_forced(char *text, size_t *bytes, const char *forced)
{
    size_t n = strlen(forced);
    char *longer = realloc(text, *bytes + n + 1);
    if (!longer) {
        llm_template_free_text(text);
        return NULL;
    }
    memcpy(longer + *bytes, forced, n + 1);
    *bytes += n;
    return longer;
}

/* The text backwards, malloc'ed. */
static char *reversed(const char *text, size_t bytes)
{
    char *out = malloc(bytes + 1);
    for (size_t i = 0; out && i < bytes; i++)
        out[i] = text[bytes - 1 - i];
    return out;
}

/* How many bytes lie behind the last place of a part (n > 0) in the text; -1: it is not there, -2: no
 * memory. In linear time: both come from outside. */
static ssize_t bytes_behind(const char *text, size_t bytes, const char *part, size_t n)
{
    char *a = reversed(text, bytes), *b = reversed(part, n);
    const char *found = a && b ? memmem(a, bytes, b, n) : NULL;
    ssize_t behind = found ? found - a : a && b ? -1 : -2;
    free(a);
    free(b);
    return behind;
}

/* The last message is continued: what the template puts behind it goes away. */
static int cut_behind_last(const struct params *p, const char *text, size_t *bytes,
                           struct problem *problem)
{
    const json_t *last = json_array_get(p->messages, json_array_size(p->messages) - 1),
                 *content = json_object_get(last, "content");
    size_t n = json_string_length(content);
    ssize_t behind = n ? bytes_behind(text, *bytes, json_string_value(content), n) : -1;
    if (behind == -2)
        return problem_memory(problem);
    if (behind >= 0) {
        *bytes -= (size_t)behind;
        return 0;
    }
    return problem_value(
        problem, "continue_final_message",
        "the last message cannot be continued: its text is not in what the model's "
        "template makes of it");
}

char *chat_render(const struct params *p, const struct model *m, size_t *bytes, char **forced,
                  struct problem *problem)
{
    char why[512] = "", *text = NULL;
    if (!m->template) {
        problem_set(problem, 400, "unsupported_value", "messages", "%s", m->why_no_chat);
        return NULL;
    }
    json_t *input = input_of(p, m, problem);
    char *json = input ? json_dumps(input, JSON_COMPACT) : NULL;
    json_decref(input);
    if (!json) {
        problem_memory(problem); /* unless another one came first */
        return NULL;
    }
    int rc =
        llm_template_render(m->template, json, strlen(json), NULL, &text, bytes, why, sizeof why);
    free(json);
    if (rc < 0) {
        problem_of_template(problem, rc, why);
        return NULL;
    }
    if (p->continue_final_message && cut_behind_last(p, text, bytes, problem)) {
        llm_template_free_text(text);
        return NULL;
    }
    if (p->tools && (p->tool_choice == TOOL_REQUIRED || p->tool_choice == TOOL_NAMED)) {
        *forced = forced_beginning(p, tools_format_of_template(m->template_source));
        text = *forced ? with_forced(text, bytes, *forced) : text;
        if (!*forced || !text)
            problem_memory(problem);
    }
    return text;
}
