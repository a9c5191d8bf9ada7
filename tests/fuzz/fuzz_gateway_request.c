/* fuzz_gateway_request.c - libFuzzer: any bytes as the body of a request for a completion, for a chat,
 * or as the text of a model with tool calls. The first byte chooses. A body is refused with a problem
 * of its own, or its parameters lie in their ranges and its messages make a text; what a parser of
 * tool calls says does not depend on where its text was cut.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../tools/gateway/body.h"
#include "../../tools/gateway/prompt.h"
#include "../../tools/gateway/tools.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char template_source[] =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | "
    "tojson }}{% endif %}\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if "
    "add_generation_prompt %}<|assistant|>{% endif %}";

static void demand(bool condition)
{
    if (!condition)
        abort();
}

static struct model *model(bool knows_tools)
{
    static struct model models[2];
    struct model *m = &models[knows_tools];
    if (!m->template) {
        m->template_source = strdup(knows_tools ? template_source : "{{ messages }}");
        demand(!llm_template_parse(&m->template, template_source, sizeof template_source - 1,
                                   m->why_no_chat, sizeof m->why_no_chat));
        m->limits.vocab = 1000;
        m->limits.max_model_len = 4096;
    }
    return m;
}

static void check_params(const struct params *p)
{
    demand(p->n >= 1 && p->n <= LLM_CHOICES_MAX && p->n_stops <= PARAMS_STOPS_MAX);
    demand(p->temperature >= 0 && p->temperature <= 2 && p->top_p > 0 && p->top_p <= 1);
    demand(p->min_p >= 0 && p->min_p <= 1 && p->repetition > 0 && p->n_biases <= PARAMS_BIASES_MAX);
    demand(p->top_logprobs <= PARAMS_TOP_MAX && p->model);
    for (uint32_t i = 0; i < p->n_stops; i++)
        demand(p->stops[i].bytes >= 1 && p->stops[i].bytes <= LLM_STOP_BYTES_MAX);
    for (uint32_t i = 0; i < p->n_biases; i++)
        demand(p->biases[i].token >= 0);
}

static void check_problem(const struct problem *p)
{
    struct buffer text = {0};
    demand(p->status >= 400 && p->status < 500 && p->message[0]);
    problem_write(p, &text);
    json_t *v = json_loadb(text.data, text.bytes, JSON_ALLOW_NUL, NULL);
    demand(json_is_object(v));
    json_decref(v);
    buffer_free(&text);
}

static void try_chat(const struct params *p, bool knows_tools)
{
    struct problem problem = {0};
    size_t bytes;
    char *forced = NULL, *text = chat_render(p, model(knows_tools), &bytes, &forced, &problem);
    if (text)
        demand(utf8_ok(text, bytes) && !problem.status);
    else
        check_problem(&problem);
    llm_template_free_text(text);
    free(forced);
}

static void try_body(enum api api, const char *text, size_t bytes)
{
    struct problem problem = {0};
    struct params p = {0};
    json_t *body = body_parse(text, bytes, &problem);
    if (!body || params_read(&p, api, body, &problem)) {
        check_problem(&problem);
    } else {
        check_params(&p);
        for (int knows = 0; api == API_CHAT && knows < 2; knows++)
            try_chat(&p, knows);
    }
    params_free(&p);
    json_decref(body);
}

static void on_text(void *context, const char *text, size_t bytes)
{
    buffer_add(context, text, bytes);
}

static void on_call(void *context, unsigned index, const char *name, size_t bytes)
{
    buffer_format(context, "[%u:", index);
    buffer_add(context, name, bytes);
}

static void on_arguments(void *context, unsigned index, const char *text, size_t bytes)
{
    (void)index;
    buffer_add(context, text, bytes);
}

static struct buffer parsed(enum tool_format format, const char *text, size_t bytes, size_t cut)
{
    struct tool_parser t;
    struct buffer out = {0};
    struct tool_sink sink = {on_text, on_call, on_arguments, &out};
    tools_begin(&t, format);
    tools_feed(&t, text, cut, &sink);
    tools_feed(&t, text + cut, bytes - cut, &sink);
    tools_end(&t, &sink);
    tools_free(&t);
    return out;
}

static void try_tools(enum tool_format format, const char *text, size_t bytes)
{
    struct buffer whole = parsed(format, text, bytes, 0),
                  cut = parsed(format, text, bytes, bytes / 2);
    demand(whole.bytes == cut.bytes && (!whole.bytes || !memcmp(whole.data, cut.data, cut.bytes)));
    buffer_free(&whole);
    buffer_free(&cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 5) {
    case 0:
        try_body(API_COMPLETION, text, size - 1);
        break;
    case 1:
        try_body(API_CHAT, text, size - 1);
        break;
    default:
        try_tools((enum tool_format)(data[0] % 5 - 1), text, size - 1);
    }
    return 0;
}
