/* params.c - a request's parameters, from flags and from JSON. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmctl.h"

int ctl_parse_uint(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (end == text || *end || errno || strchr(text, '-') || v < min || v > max)
        return ctl_usage("%s: \"%s\" is no whole number from %llu to %llu", what, text,
                         (unsigned long long)min, (unsigned long long)max);
    *out = v;
    return 0;
}

int ctl_parse_float(const char *what, const char *text, float *out)
{
    char *end;
    float v = strtof(text, &end);
    if (end == text || *end || !isfinite(v))
        return ctl_usage("%s: \"%s\" is no finite number", what, text);
    *out = v;
    return 0;
}

int ctl_parse_amount(const char *what, const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || v < 0)
        return ctl_usage("%s: \"%s\" is no number from 0", what, text);
    *out = v;
    return 0;
}

/* ---- promises ---- */

const char ctl_promises_help[] =
    "  --deadline-ms N       the first token within N ms, or the request is refused\n"
    "  --timeout-ms N        end with what there is after N ms\n"
    "  --queue-timeout-ms N  begin within N ms, or the request is refused\n"
    "  --max-itl-ms N        the gap between two tokens that is promised\n"
    "  --priority P          high, normal or low; or a number: below 0, 0, above 0\n";

/* Milliseconds, with decimals, as microseconds in 32 bits. */
static bool to_us(double ms, uint32_t *out)
{
    double us = ms * 1000;
    if (!(us >= 0 && us <= UINT32_MAX))
        return false;
    *out = (uint32_t)(us + 0.5);
    if (!*out && ms > 0)
        *out = 1;
    return true;
}

static int set_us(const char *what, const char *text, uint32_t *out)
{
    double ms = 0;
    int rc = ctl_parse_amount(what, text, &ms);
    if (rc || to_us(ms, out))
        return rc;
    return ctl_usage("%s: \"%s\" is more than 4294967 ms", what, text);
}

/* Names, or vLLM's numbers, where the lower one goes first. */
static bool to_priority(const char *text, uint32_t *out)
{
    static const char *const names[] = {"normal", "high", "low"}; /* by enum llm_priority */
    for (uint32_t i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) {
            *out = i;
            return true;
        }
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (end == text || *end || errno)
        return false;
    *out = v < 0 ? LLM_PRIORITY_HIGH : v > 0 ? LLM_PRIORITY_LOW : LLM_PRIORITY_NORMAL;
    return true;
}

/* ---- speculation ---- */

const char ctl_speculative_help[] =
    "  --speculative ngram|off   prompt lookup, whatever the engine does by default: the same "
    "tokens,\n"
    "                        sooner where the answer repeats prompt or itself\n";

static bool to_speculation(const char *text, uint32_t *flags)
{
    bool on = !strcmp(text, "ngram");
    if (!on && strcmp(text, "off"))
        return false;
    *flags &= ~(uint32_t)(LLM_SQE_SPECULATE | LLM_SQE_NO_SPECULATION);
    *flags |= on ? LLM_SQE_SPECULATE : LLM_SQE_NO_SPECULATION;
    return true;
}

/* ---- all ---- */

static int set_promise(int option, const char *text, struct llm_request *r)
{
    uint64_t v = 0;
    int rc = 0;
    switch (option) {
    case CTL_DEADLINE:
        return set_us("--deadline-ms", text, &r->deadline_us);
    case CTL_MAX_ITL:
        return set_us("--max-itl-ms", text, &r->max_itl_us);
    case CTL_TIMEOUT:
        rc = ctl_parse_uint("--timeout-ms", text, 0, UINT32_MAX, &v);
        r->timeout_ms = (uint32_t)v;
        break;
    case CTL_QUEUE_TIMEOUT:
        rc = ctl_parse_uint("--queue-timeout-ms", text, 0, UINT32_MAX, &v);
        r->queue_timeout_ms = (uint32_t)v;
        break;
    case CTL_PRIORITY:
        if (!to_priority(text, &r->priority))
            return ctl_usage("--priority: \"%s\" is none of high, normal, low, or a whole number",
                             text);
        break;
    }
    return rc;
}

/* A penalty: `over` 0, or from -2 to 2. */
static int set_penalty(const char *what, const char *text, bool over, float *out)
{
    float v = 0;
    int rc = ctl_parse_float(what, text, &v);
    if (rc)
        return rc;
    if (over ? v <= 0 : fabsf(v) > 2)
        return ctl_usage("%s: \"%s\" is no number %s", what, text,
                         over ? "over 0 (1: off)" : "from -2 to 2 (0: off)");
    *out = v;
    return 0;
}

int ctl_set_request_option(int option, const char *text, struct llm_request *r, uint32_t *spin_us)
{
    uint64_t v = 0;
    int rc = 0;
    switch (option) {
    case 'n':
    case CTL_MAX_TOKENS:
        rc = ctl_parse_uint("-n", text, 1, UINT32_MAX, &v);
        r->max_tokens = (uint32_t)v;
        break;
    case CTL_TOP_K:
        rc = ctl_parse_uint("--top-k", text, 0, UINT32_MAX, &v);
        r->top_k = (uint32_t)v;
        break;
    case CTL_SEED:
        rc = ctl_parse_uint("--seed", text, 0, UINT64_MAX - 1, &v);
        r->seed = v;
        break;
    case CTL_SPIN_US:
        rc = ctl_parse_uint("--spin-us", text, 0, UINT32_MAX, &v);
        *spin_us = (uint32_t)v;
        break;
    case CTL_SPECULATIVE:
        return to_speculation(text, &r->flags)
                   ? 0
                   : ctl_usage("--speculative: \"%s\" is neither ngram nor off", text);
    case CTL_TEMPERATURE:
        return ctl_parse_float("--temperature", text, &r->temperature);
    case CTL_TOP_P:
        return ctl_parse_float("--top-p", text, &r->top_p);
    case CTL_MIN_P:
        return ctl_parse_float("--min-p", text, &r->min_p);
    case CTL_REPETITION:
        return set_penalty("--repetition-penalty", text, true, &r->repetition);
    case CTL_PRESENCE:
        return set_penalty("--presence-penalty", text, false, &r->presence);
    case CTL_FREQUENCY:
        return set_penalty("--frequency-penalty", text, false, &r->frequency);
    default:
        return set_promise(option, text, r);
    }
    return rc;
}

static int json_uint(const json_t *line, const char *where, const char *key, uint64_t max,
                     uint64_t *out)
{
    const json_t *v = json_object_get(line, key);
    if (!v)
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > max)
        return ctl_error("%s: \"%s\" must be a whole number from 0 to %llu", where, key,
                         (unsigned long long)max);
    *out = (uint64_t)json_integer_value(v);
    return 0;
}

/* A seed takes 64 bits, a JSON integer here 63: a larger one comes as a string of digits. */
static int json_seed(const json_t *line, const char *where, uint64_t *out)
{
    const json_t *v = json_object_get(line, "seed");
    if (!json_is_string(v))
        return json_uint(line, where, "seed", INT64_MAX, out);
    char what[200];
    snprintf(what, sizeof what, "%.160s: \"seed\"", where);
    return ctl_parse_uint(what, json_string_value(v), 0, LLM_SEED_RANDOM - 1, out) ? 1 : 0;
}

/* `n` has the name of each of its flags. */
static int json_max_tokens(const json_t *line, const char *where, uint64_t *out)
{
    if (json_object_get(line, "n") && json_object_get(line, "max_tokens"))
        return ctl_error("%s: \"n\" and \"max_tokens\" mean the same: give one", where);
    int rc = json_uint(line, where, "n", UINT32_MAX, out);
    return rc ? rc : json_uint(line, where, "max_tokens", UINT32_MAX, out);
}

static int json_float(const json_t *line, const char *where, const char *key, float *out)
{
    const json_t *v = json_object_get(line, key);
    if (!v)
        return 0;
    if (!json_is_number(v))
        return ctl_error("%s: \"%s\" must be a number", where, key);
    *out = (float)json_number_value(v);
    return 0;
}

/* As set_penalty. */
static int json_penalty(const json_t *line, const char *where, const char *key, bool over,
                        float *out)
{
    float v = *out;
    int rc = json_float(line, where, key, &v);
    if (rc || !json_object_get(line, key))
        return rc;
    if (over ? !(v > 0) : !(fabsf(v) <= 2))
        return ctl_error("%s: \"%s\" must be a number %s", where, key,
                         over ? "over 0" : "from -2 to 2");
    *out = v;
    return 0;
}

static int json_flag(const json_t *line, const char *where, const char *key, uint32_t bit,
                     uint32_t *flags)
{
    const json_t *v = json_object_get(line, key);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return ctl_error("%s: \"%s\" must be true or false", where, key);
    *flags = json_is_true(v) ? *flags | bit : *flags & ~bit;
    return 0;
}

static int json_us(const json_t *line, const char *where, const char *key, uint32_t *out)
{
    const json_t *v = json_object_get(line, key);
    if (!v || (json_is_number(v) && to_us(json_number_value(v), out)))
        return 0;
    return ctl_error("%s: \"%s\" must be a number of milliseconds from 0 to 4294967", where, key);
}

static int json_ms(const json_t *line, const char *where, const char *key, uint32_t *out)
{
    uint64_t ms = *out;
    int rc = json_uint(line, where, key, UINT32_MAX, &ms);
    *out = (uint32_t)ms;
    return rc;
}

static int json_priority(const json_t *line, const char *where, uint32_t *out)
{
    const json_t *v = json_object_get(line, "priority");
    char number[32] = "";
    if (!v)
        return 0;
    if (json_is_integer(v))
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    if (to_priority(json_is_string(v) ? json_string_value(v) : number, out))
        return 0;
    return ctl_error("%s: \"priority\" must be \"high\", \"normal\", \"low\" or a whole number",
                     where);
}

static int json_speculation(const json_t *line, const char *where, struct llm_request *r)
{
    const json_t *v = json_object_get(line, "speculative");
    if (!v || (json_is_string(v) && to_speculation(json_string_value(v), &r->flags)))
        return 0;
    return ctl_error("%s: \"speculative\" must be \"ngram\" or \"off\"", where);
}

/* The line's session, or none; "keep" is of a session. */
static int json_session(const json_t *line, const char *where, struct llm_request *r)
{
    const json_t *v = json_object_get(line, "session");
    const char *name = json_string_value(v);
    if (v && (!name || !*name || strlen(name) != json_string_length(v)))
        return ctl_error("%s: \"session\" must be a name, without \\u0000", where);
    if (v)
        r->session = llm_session_key(name);
    if (!r->session && json_object_get(line, "keep"))
        return ctl_error("%s: \"keep\" is of a session", where);
    return json_uint(line, where, "keep", UINT32_MAX, &r->session_keep);
}

static int promises_from_json(const json_t *line, const char *where, struct llm_request *r)
{
    int rc = json_us(line, where, "deadline_ms", &r->deadline_us);
    rc = rc ? rc : json_us(line, where, "max_itl_ms", &r->max_itl_us);
    rc = rc ? rc : json_ms(line, where, "timeout_ms", &r->timeout_ms);
    rc = rc ? rc : json_ms(line, where, "queue_timeout_ms", &r->queue_timeout_ms);
    return rc ? rc : json_priority(line, where, &r->priority);
}

static int check_keys(const json_t *line, const char *where)
{
    static const char *const known[] = {"id",
                                        "tokens",
                                        "prompt",
                                        "n",
                                        "max_tokens",
                                        "choices",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "min_p",
                                        "seed",
                                        "ignore_eos",
                                        "logprobs",
                                        "deadline_ms",
                                        "timeout_ms",
                                        "queue_timeout_ms",
                                        "max_itl_ms",
                                        "priority",
                                        "session",
                                        "keep",
                                        "interrupt",
                                        "no_cache",
                                        "repetition_penalty",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "stop",
                                        "logit_bias",
                                        "top_logprobs",
                                        "speculative"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line, key, value)
    {
        size_t i = 0, n = sizeof known / sizeof *known;
        while (i < n && strcmp(key, known[i]))
            i++;
        if (i == n)
            return ctl_error("%s: unknown key \"%.40s\"", where, key);
    }
    return 0;
}

int ctl_request_from_json(const json_t *line, const char *where, struct llm_request *r)
{
    uint64_t n = r->max_tokens, choices = r->choices, top_k = r->top_k, seed = r->seed;
    if (!json_is_object(line))
        return ctl_error("%s: not a JSON object", where);
    int rc = check_keys(line, where);
    rc = rc ? rc : json_max_tokens(line, where, &n);
    rc = rc ? rc : json_uint(line, where, "choices", LLM_CHOICES_MAX, &choices);
    rc = rc ? rc : json_uint(line, where, "top_k", UINT32_MAX, &top_k);
    rc = rc ? rc : json_seed(line, where, &seed);
    rc = rc ? rc : json_float(line, where, "temperature", &r->temperature);
    rc = rc ? rc : json_float(line, where, "top_p", &r->top_p);
    rc = rc ? rc : json_float(line, where, "min_p", &r->min_p);
    rc = rc ? rc : json_penalty(line, where, "repetition_penalty", true, &r->repetition);
    rc = rc ? rc : json_penalty(line, where, "presence_penalty", false, &r->presence);
    rc = rc ? rc : json_penalty(line, where, "frequency_penalty", false, &r->frequency);
    rc = rc ? rc : json_flag(line, where, "ignore_eos", LLM_SQE_IGNORE_EOS, &r->flags);
    rc = rc ? rc : json_flag(line, where, "logprobs", LLM_SQE_LOGPROBS, &r->flags);
    rc = rc ? rc : json_flag(line, where, "interrupt", LLM_SQE_INTERRUPT, &r->flags);
    rc = rc ? rc : json_flag(line, where, "no_cache", LLM_SQE_NO_CACHE, &r->flags);
    rc = rc ? rc : json_speculation(line, where, r);
    rc = rc ? rc : promises_from_json(line, where, r);
    rc = rc ? rc : json_session(line, where, r);
    if (rc)
        return rc;
    if (!choices)
        return ctl_error("%s: \"choices\" must be at least 1", where);
    if (r->op == LLM_OP_SCORE && choices != 1)
        return ctl_error("%s: a score has no \"choices\"", where);
    if (r->op == LLM_OP_SCORE && json_object_get(line, "speculative"))
        return ctl_error("%s: a score has no \"speculative\"", where);
    r->max_tokens = (uint32_t)n;
    r->choices = (uint32_t)choices;
    r->top_k = (uint32_t)top_k;
    r->seed = seed;
    return 0;
}
