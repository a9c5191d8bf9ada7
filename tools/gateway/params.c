/* params.c - see params.h. Names and ranges: the OpenAI API reference; top_k, min_p,
 * repetition_penalty, ignore_eos and what concerns the template: vLLM's additions. */
#include "params.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    READ,           /* by a function of its own */
    BOOLEAN,        /* bool */
    WHOLE,          /* uint32_t within min .. max */
    NUMBER,         /* double within min .. max */
    STRING,         /* const char * */
    OBJECT,         /* const json_t * */
    WITHOUT_EFFECT, /* any value */
    ONLY,           /* refused unless it is the number `min` */
};

typedef int reader(struct params *p, const char *name, const json_t *v, struct problem *problem);

static reader read_stop, read_seed, read_logprobs, read_bias, read_stream_options, read_format,
    read_messages, read_tools, read_tool_choice, read_prompt, read_suffix, read_modalities,
    read_top_p, read_top_k, read_speculative;

/* ---- the table ---- */

#define AT(field) offsetof(struct params, field)
#define BOTH      (API_COMPLETION | API_CHAT)

static const struct parameter {
    const char *name;
    int apis; /* enum api, or'ed */
    enum kind kind;
    size_t at;
    double min, max;
    reader *read;
} table[] = {
    {"model", BOTH, STRING, AT(model)},
    {"stream", BOTH, BOOLEAN, AT(stream)},
    {"stream_options", BOTH, READ, .read = read_stream_options},
    {"n", BOTH, WHOLE, AT(n), 1, LLM_CHOICES_MAX},
    {"stop", BOTH, READ, .read = read_stop},
    {"seed", BOTH, READ, .read = read_seed},
    {"temperature", BOTH, NUMBER, AT(temperature), 0, 2},
    {"top_p", BOTH, READ, .read = read_top_p},
    {"top_k", BOTH, READ, .read = read_top_k},
    {"min_p", BOTH, NUMBER, AT(min_p), 0, 1},
    {"presence_penalty", BOTH, NUMBER, AT(presence), -2, 2},
    {"frequency_penalty", BOTH, NUMBER, AT(frequency), -2, 2},
    {"repetition_penalty", BOTH, NUMBER, AT(repetition), 0.01, 100},
    {"logit_bias", BOTH, READ, .read = read_bias},
    {"logprobs", BOTH, READ, .read = read_logprobs},
    {"ignore_eos", BOTH, BOOLEAN, AT(ignore_eos)},
    {"speculative", BOTH, READ, .read = read_speculative}, /* ours: what the engine's option says */
    {"user", BOTH, WITHOUT_EFFECT},
    {"max_tokens", API_CHAT, WHOLE, AT(max_tokens), 1, UINT32_MAX - 1},
    {"max_completion_tokens", API_CHAT, WHOLE, AT(max_tokens), 1, UINT32_MAX - 1},
    /* completions */
    {"max_tokens", API_COMPLETION, WHOLE, AT(max_tokens), 0, UINT32_MAX - 1},
    {"prompt", API_COMPLETION, READ, .read = read_prompt},
    {"echo", API_COMPLETION, BOOLEAN, AT(echo)},
    {"suffix", API_COMPLETION, READ, .read = read_suffix},
    {"best_of", API_COMPLETION, ONLY, .min = 1},
    /* chat */
    {"messages", API_CHAT, READ, .read = read_messages},
    {"top_logprobs", API_CHAT, WHOLE, AT(top_logprobs), 0, PARAMS_TOP_MAX},
    {"tools", API_CHAT, READ, .read = read_tools},
    {"tool_choice", API_CHAT, READ, .read = read_tool_choice},
    {"parallel_tool_calls", API_CHAT, WITHOUT_EFFECT},
    {"response_format", API_CHAT, READ, .read = read_format},
    {"modalities", API_CHAT, READ, .read = read_modalities},
    {"add_generation_prompt", API_CHAT, BOOLEAN, AT(add_generation_prompt)},
    {"continue_final_message", API_CHAT, BOOLEAN, AT(continue_final_message)},
    {"chat_template_kwargs", API_CHAT, OBJECT, AT(template_arguments)},
    {"metadata", API_CHAT, WITHOUT_EFFECT},
    {"store", API_CHAT, WITHOUT_EFFECT},
    {"service_tier", API_CHAT, WITHOUT_EFFECT},
    {"safety_identifier", API_CHAT, WITHOUT_EFFECT},
    {"prompt_cache_key", API_CHAT, WITHOUT_EFFECT},
    {"prompt_cache_retention", API_CHAT, WITHOUT_EFFECT},
    {"reasoning_effort", API_CHAT, WITHOUT_EFFECT},
    {"verbosity", API_CHAT, WITHOUT_EFFECT},
};

static const struct parameter *find(const char *name, enum api api)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].apis & (int)api && !strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

/* ---- values ---- */

static int wrong_type(struct problem *problem, const char *name, const char *wanted)
{
    return problem_set(problem, 400, "invalid_type", name, "'%.60s' must be %s", name, wanted);
}

static int read_whole(uint32_t *out, const struct parameter *t, const json_t *v,
                      struct problem *problem)
{
    if (!json_is_integer(v))
        return wrong_type(problem, t->name, "a whole number");
    json_int_t i = json_integer_value(v);
    if (i < (json_int_t)t->min || i > (json_int_t)t->max)
        return problem_value(problem, t->name, "'%s' is %lld: it must be from %.0f to %.0f",
                             t->name, (long long)i, t->min, t->max);
    *out = (uint32_t)i;
    return 0;
}

static int read_number(double *out, const struct parameter *t, const json_t *v,
                       struct problem *problem)
{
    if (!json_is_number(v))
        return wrong_type(problem, t->name, "a number");
    double d = json_number_value(v);
    if (!(d >= t->min && d <= t->max))
        return problem_value(problem, t->name, "'%s' is %g: it must be from %g to %g", t->name, d,
                             t->min, t->max);
    *out = d;
    return 0;
}

static int read_only(const struct parameter *t, const json_t *v, struct problem *problem)
{
    if (!json_is_number(v))
        return wrong_type(problem, t->name, "a number");
    if (json_number_value(v) == t->min)
        return 0;
    return problem_value(problem, t->name, "'%s' must be %g here", t->name, t->min);
}

static int read_value(struct params *p, const struct parameter *t, const json_t *v,
                      struct problem *problem)
{
    char *at = (char *)p + t->at;
    switch (t->kind) {
    case READ:
        return t->read(p, t->name, v, problem);
    case BOOLEAN:
        if (!json_is_boolean(v))
            return wrong_type(problem, t->name, "true or false");
        *(bool *)at = json_is_true(v);
        return 0;
    case WHOLE:
        return read_whole((uint32_t *)(void *)at, t, v, problem);
    case NUMBER:
        return read_number((double *)(void *)at, t, v, problem);
    case STRING:
        if (!json_is_string(v))
            return wrong_type(problem, t->name, "a string");
        *(const char **)(void *)at = json_string_value(v);
        return 0;
    case OBJECT:
        if (!json_is_object(v))
            return wrong_type(problem, t->name, "an object");
        *(const json_t **)(void *)at = v;
        return 0;
    case WITHOUT_EFFECT:
        return 0;
    case ONLY:
        return read_only(t, v, problem);
    }
    return 0;
}

/* ---- readers ---- */

static int read_top_p(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    const struct parameter range = {.name = name, .min = 0, .max = 1};
    int rc = read_number(&p->top_p, &range, v, problem);
    if (!rc && p->top_p < 1e-6)
        p->top_p = 1e-6; /* only the likeliest token */
    return rc;
}

/* -1 and 0: off */
static int read_top_k(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    const struct parameter range = {.name = name, .min = 0, .max = UINT32_MAX};
    if (json_is_integer(v) && json_integer_value(v) == -1)
        return p->top_k = 0, 0;
    return read_whole(&p->top_k, &range, v, problem);
}

static int read_speculative(struct params *p, const char *name, const json_t *v,
                            struct problem *problem)
{
    const char *method = json_string_value(v);
    if (!method)
        return wrong_type(problem, name, "a string");
    if (strcmp(method, "ngram") && strcmp(method, "off"))
        return problem_value(problem, name, "'%s' is \"%.40s\": it must be \"ngram\" or \"off\"",
                             name, method);
    p->speculation = strcmp(method, "off") ? LLM_SQE_SPECULATE : LLM_SQE_NO_SPECULATION;
    return 0;
}

/* Any 64-bit number; the one that means "draw one" to the library stands for another. */
static int read_seed(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    if (!json_is_integer(v))
        return wrong_type(problem, name, "a whole number");
    p->seed = (uint64_t)json_integer_value(v);
    if (p->seed == LLM_SEED_RANDOM)
        p->seed = 1ull << 63;
    return 0;
}

static int add_stop(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    if (!json_is_string(v))
        return wrong_type(problem, name, "a string or an array of strings");
    if (!json_string_length(v))
        return problem_value(problem, name, "a stop string is empty");
    if (json_string_length(v) > LLM_STOP_BYTES_MAX)
        return problem_value(problem, name, "a stop string has %zu bytes: at most %d",
                             json_string_length(v), LLM_STOP_BYTES_MAX);
    if (p->n_stops == PARAMS_STOPS_MAX)
        return problem_value(problem, name, "there are more than %d stop strings",
                             PARAMS_STOPS_MAX);
    p->stops[p->n_stops++] =
        (struct stop_text){json_string_value(v), (uint32_t)json_string_length(v)};
    return 0;
}

static int read_stop(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    size_t i;
    const json_t *one;
    if (!json_is_array(v))
        return add_stop(p, name, v, problem);
    json_array_foreach((json_t *)v, i, one) if (add_stop(p, name, one, problem)) return -1;
    return 0;
}

/* A boolean for chat; for completions the number of candidates. */
static int read_logprobs(struct params *p, const char *name, const json_t *v,
                         struct problem *problem)
{
    if (p->api == API_CHAT) {
        if (!json_is_boolean(v))
            return wrong_type(problem, name, "true or false");
        p->logprobs = json_is_true(v);
        return 0;
    }
    const struct parameter range = {.name = name, .min = 0, .max = 5};
    p->logprobs = true;
    return read_whole(&p->top_logprobs, &range, v, problem);
}

static int read_one_bias(struct token_bias *out, const char *name, const char *key, const json_t *v,
                         struct problem *problem)
{
    char *end;
    unsigned long id = strtoul(key, &end, 10);
    if (key[0] < '0' || key[0] > '9' || *end || id > INT32_MAX)
        return problem_value(problem, name, "'%.40s' in logit_bias is no token id", key);
    if (!json_is_number(v) || !(fabs(json_number_value(v)) <= 100))
        return problem_value(problem, name,
                             "the bias of token %.20s must be a number from -100 to "
                             "100",
                             key);
    *out = (struct token_bias){(int32_t)id, (float)json_number_value(v)};
    return 0;
}

static int read_bias(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    const char *key;
    const json_t *bias;
    if (!json_is_object(v))
        return wrong_type(problem, name, "an object of token ids and numbers");
    size_t n = json_object_size(v);
    if (n > PARAMS_BIASES_MAX)
        return problem_value(problem, name, "logit_bias has more than %d tokens",
                             PARAMS_BIASES_MAX);
    if (n && !(p->biases = calloc(n, sizeof *p->biases)))
        return problem_memory(problem);
    json_object_foreach((json_t *)v, key, bias)
    {
        if (read_one_bias(&p->biases[p->n_biases], name, key, bias, problem))
            return -1;
        p->n_biases++;
    }
    return 0;
}

static int read_stream_options(struct params *p, const char *name, const json_t *v,
                               struct problem *problem)
{
    const char *key;
    const json_t *value;
    if (!json_is_object(v))
        return wrong_type(problem, name, "an object");
    json_object_foreach((json_t *)v, key, value)
    {
        bool usage = !strcmp(key, "include_usage");
        if (!usage && strcmp(key, "include_obfuscation"))
            return problem_set(problem, 400, "unknown_parameter", name,
                               "'%.60s' is no member of stream_options", key);
        if (json_is_null(value))
            continue;
        if (!json_is_boolean(value))
            return wrong_type(problem, name,
                              usage ? "an object with a boolean include_usage"
                                    : "an object with booleans");
        if (usage)
            p->include_usage = json_is_true(value);
    }
    return 0;
}

static int read_format(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    (void)p;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type)
        return wrong_type(problem, name, "an object with a type");
    if (!strcmp(type, "text"))
        return 0;
    if (strcmp(type, "json_object") && strcmp(type, "json_schema"))
        return problem_value(problem, name, "response_format '%.40s' is not known", type);
    return problem_set(problem, 400, "unsupported_value", name,
                       "response_format '%s' is not supported: this engine cannot constrain its "
                       "answers yet; leave it out or use {\"type\": \"text\"}",
                       type);
}

static int read_modalities(struct params *p, const char *name, const json_t *v,
                           struct problem *problem)
{
    (void)p;
    const char *first = json_string_value(json_array_get(v, 0));
    if (json_array_size(v) == 1 && first && !strcmp(first, "text"))
        return 0;
    return problem_value(problem, name, "'modalities' must be [\"text\"]: this model writes text");
}

static int read_suffix(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    (void)p;
    if (!json_is_string(v))
        return wrong_type(problem, name, "a string");
    if (!json_string_length(v))
        return 0;
    return problem_set(problem, 400, "unsupported_value", name,
                       "'suffix' is not supported: this engine only continues a text");
}

static int read_prompt(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    if (!json_is_string(v) && !json_is_array(v))
        return wrong_type(problem, name, "a string, an array of strings or token ids");
    p->prompt = v;
    return 0;
}

static int read_messages(struct params *p, const char *name, const json_t *v,
                         struct problem *problem)
{
    if (!json_is_array(v))
        return wrong_type(problem, name, "an array of messages");
    if (!json_array_size(v))
        return problem_value(problem, name, "'messages' is empty: at least one message is needed");
    p->messages = v;
    return 0;
}

/* ---- tools ---- */

static const char *name_of_function(const json_t *tool)
{
    const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
    const char *text = json_string_value(name);
    return text && *text && strlen(text) == json_string_length(name) ? text : NULL;
}

static int check_tool(const json_t *tool, size_t i, struct problem *problem)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *function = json_object_get(tool, "function");
    if (!type || strcmp(type, "function"))
        return problem_value(problem, "tools", "tools[%zu].type must be \"function\"", i);
    const char *name = name_of_function(tool);
    if (!name || strlen(name) > 64 ||
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.") !=
            strlen(name))
        return problem_value(problem, "tools",
                             "tools[%zu].function.name must have 1 to 64 of A-Z a-z 0-9 _ - .", i);
    const json_t *description = json_object_get(function, "description"),
                 *parameters = json_object_get(function, "parameters");
    if (description && !json_is_string(description) && !json_is_null(description))
        return problem_value(problem, "tools", "tools[%zu].function.description must be a string",
                             i);
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return problem_value(problem, "tools",
                             "tools[%zu].function.parameters must be a JSON schema", i);
    return 0;
}

static int read_tools(struct params *p, const char *name, const json_t *v, struct problem *problem)
{
    size_t i;
    const json_t *tool;
    if (!json_is_array(v))
        return wrong_type(problem, name, "an array of tools");
    if (json_array_size(v) > 128)
        return problem_value(problem, name, "there are more than 128 tools");
    json_array_foreach((json_t *)v, i, tool) if (check_tool(tool, i, problem)) return -1;
    p->tools = json_array_size(v) ? v : NULL;
    return 0;
}

static int read_tool_choice(struct params *p, const char *name, const json_t *v,
                            struct problem *problem)
{
    static const char *const words[] = {
        [TOOL_AUTO] = "auto", [TOOL_NONE] = "none", [TOOL_REQUIRED] = "required"};
    const char *word = json_string_value(v);
    for (unsigned i = 0; word && i < sizeof words / sizeof *words; i++)
        if (!strcmp(word, words[i]))
            return p->tool_choice = (enum tool_choice)i, 0;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type || strcmp(type, "function") || !(p->tool_name = name_of_function(v)))
        return problem_value(problem, name,
                             "'tool_choice' must be \"none\", \"auto\", \"required\" "
                             "or {\"type\": \"function\", \"function\": {\"name\": "
                             "...}}");
    p->tool_choice = TOOL_NAMED;
    return 0;
}

static int check_tool_choice(const struct params *p, struct problem *problem)
{
    size_t i;
    const json_t *tool;
    if (p->tool_choice == TOOL_AUTO || p->tool_choice == TOOL_NONE)
        return 0;
    if (!p->tools)
        return problem_value(problem, "tool_choice", "'tool_choice' needs 'tools'");
    if (p->tool_choice == TOOL_REQUIRED)
        return 0;
    json_array_foreach((json_t *)p->tools, i,
                       tool) if (!strcmp(name_of_function(tool), p->tool_name)) return 0;
    return problem_value(problem, "tool_choice", "tool_choice: there is no tool '%.64s' in 'tools'",
                         p->tool_name);
}

/* ---- a whole request ---- */

static int check_together(const struct params *p, const json_t *body, struct problem *problem)
{
    if (!p->model)
        return problem_set(problem, 400, "missing_required_parameter", "model",
                           "you must name a model: GET /v1/models lists them");
    if (p->api == API_CHAT && !p->messages)
        return problem_set(problem, 400, "missing_required_parameter", "messages",
                           "'messages' is missing");
    if (p->api == API_COMPLETION && !p->prompt)
        return problem_set(problem, 400, "missing_required_parameter", "prompt",
                           "'prompt' is missing");
    if (p->api == API_CHAT && p->top_logprobs && !p->logprobs)
        return problem_value(problem, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (!p->stream && !json_is_null(json_object_get(body, "stream_options")) &&
        json_object_get(body, "stream_options"))
        return problem_value(problem, "stream_options", "'stream_options' needs 'stream': true");
    if (!p->max_tokens && !(p->echo && p->logprobs))
        return problem_value(problem, "max_tokens",
                             "'max_tokens' 0 needs 'echo': true and 'logprobs': it is for scores");
    if (p->continue_final_message && p->add_generation_prompt)
        return problem_value(problem, "continue_final_message",
                             "'continue_final_message' needs 'add_generation_prompt': false");
    return check_tool_choice(p, problem);
}

int params_read(struct params *p, enum api api, const json_t *body, struct problem *problem)
{
    const char *name;
    const json_t *value;
    *p = (struct params){.api = api,
                         .n = 1,
                         .max_tokens = UINT32_MAX,
                         .temperature = 1,
                         .top_p = 1,
                         .repetition = 1,
                         .seed = LLM_SEED_RANDOM,
                         .add_generation_prompt = true};
    json_object_foreach((json_t *)body, name, value)
    {
        const struct parameter *t = find(name, api);
        if (!t)
            return problem_set(problem, 400, "unknown_parameter", name,
                               "'%.60s' is no parameter of this endpoint", name);
        if (!json_is_null(value) && read_value(p, t, value, problem))
            return -1;
    }
    return check_together(p, body, problem);
}

void params_free(struct params *p)
{
    free(p->biases);
    p->biases = NULL;
}
