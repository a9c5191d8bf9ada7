/* sampling.c - what shapes an answer besides the numbers of params.c: stop strings, biases,
 * candidates; from flags and from JSON. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmctl.h"

const char ctl_sampling_help[] =
    "  --repetition-penalty P  above 1: what stands in prompt or answer becomes less likely (1)\n"
    "  --presence-penalty P, --frequency-penalty P   -2 to 2: what stands in the answer, once; "
    "each "
    "time\n"
    "  --logit-bias ID=BIAS  -100 to 100, added to that token's logit (repeatable)\n"
    "  --stop TEXT           end where the answer has this text, which is cut off (repeatable, up "
    "to "
    "16)\n"
    "  --top-logprobs N      needs --json: the N likeliest tokens at each place (up to 20)\n";

/* ---- flags ---- */

static int add_stop(struct ctl_sampling *s, const char *text)
{
    size_t bytes = strlen(text);
    if (!bytes || bytes > LLM_STOP_BYTES_MAX)
        return ctl_usage("--stop: a text of 1 to %d bytes, not %zu", LLM_STOP_BYTES_MAX, bytes);
    if (s->n_stops == LLM_STOPS_MAX)
        return ctl_usage("--stop: at most %d of them", LLM_STOPS_MAX);
    s->stops[s->n_stops++] = (struct llm_stop){text, (uint32_t)bytes};
    return 0;
}

static int add_bias(struct ctl_sampling *s, const char *text)
{
    const char *value = strchr(text, '=');
    char *end;
    errno = 0;
    unsigned long id = strtoul(text, &end, 10);
    bool bad = !value || end != value || end == text || errno || id > INT32_MAX || *text == '-';
    float bias = 0;
    if (bad)
        return ctl_usage("--logit-bias: \"%.40s\" is not ID=BIAS", text);
    if (ctl_parse_float("--logit-bias", value + 1, &bias))
        return 2;
    if (!(fabsf(bias) <= 100))
        return ctl_usage("--logit-bias: \"%.40s\": a bias is from -100 to 100", text);
    if (s->n_biases == LLM_BIASES_MAX)
        return ctl_usage("--logit-bias: at most %d of them", LLM_BIASES_MAX);
    s->biases[s->n_biases++] = (struct llm_bias){(int32_t)id, bias};
    return 0;
}

static int set_top(const char *text, struct llm_request *r)
{
    uint64_t n = 0;
    int rc = ctl_parse_uint("--top-logprobs", text, 0, LLM_TOP_MAX, &n);
    r->top_logprobs = (uint32_t)n;
    return rc;
}

int ctl_set_sampling_option(int option, const char *text, struct ctl_sampling *s,
                            struct llm_request *r)
{
    switch (option) {
    case CTL_STOP:
        return add_stop(s, text);
    case CTL_LOGIT_BIAS:
        return add_bias(s, text);
    case CTL_TOP_LOGPROBS:
        return set_top(text, r);
    }
    return 0;
}

void ctl_use_sampling(const struct ctl_sampling *s, struct llm_request *r)
{
    r->stops = s->stops, r->n_stops = s->n_stops;
    r->biases = s->biases, r->n_biases = s->n_biases;
}

/* ---- JSON ---- */

static int json_stop(const json_t *v, const char *where, struct ctl_sampling *s)
{
    size_t bytes = json_string_length(v);
    if (!json_is_string(v) || !bytes || bytes > LLM_STOP_BYTES_MAX || s->n_stops == LLM_STOPS_MAX)
        return ctl_error("%s: \"stop\" must be a text of 1 to %d bytes, or up to %d of them", where,
                         LLM_STOP_BYTES_MAX, LLM_STOPS_MAX);
    s->stops[s->n_stops++] = (struct llm_stop){json_string_value(v), (uint32_t)bytes};
    return 0;
}

static int json_stops(const json_t *v, const char *where, struct ctl_sampling *s)
{
    s->n_stops = 0;
    if (!json_is_array(v))
        return json_stop(v, where, s);
    int rc = 0;
    for (size_t i = 0; i < json_array_size(v) && !rc; i++)
        rc = json_stop(json_array_get(v, i), where, s);
    return rc;
}

static int json_biases(json_t *v, const char *where, struct ctl_sampling *s)
{
    const char *key;
    json_t *bias;
    s->n_biases = 0;
    json_object_foreach(v, key, bias)
    {
        char *end;
        unsigned long id = strtoul(key, &end, 10);
        double number = json_number_value(bias);
        bool bad = *key < '0' || *key > '9' || *end || id > INT32_MAX || !json_is_number(bias);
        if (bad || !(fabs(number) <= 100) || s->n_biases == LLM_BIASES_MAX)
            return ctl_error(
                "%s: \"logit_bias\" must be {\"ID\": BIAS, ...}: token ids, and numbers "
                "from -100 to 100",
                where);
        s->biases[s->n_biases++] = (struct llm_bias){(int32_t)id, (float)number};
    }
    return json_is_object(v) ? 0 : ctl_error("%s: \"logit_bias\" must be an object", where);
}

static int json_top(const json_t *v, const char *where, struct llm_request *r)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > LLM_TOP_MAX)
        return ctl_error("%s: \"top_logprobs\" must be a whole number from 0 to %d", where,
                         LLM_TOP_MAX);
    r->top_logprobs = (uint32_t)json_integer_value(v);
    return 0;
}

int ctl_sampling_from_json(const json_t *line, const char *where, const struct ctl_sampling *flags,
                           struct llm_request *r, struct ctl_sampling **own)
{
    json_t *stop = json_object_get(line, "stop"), *bias = json_object_get(line, "logit_bias");
    const json_t *top = json_object_get(line, "top_logprobs");
    if ((stop || bias || top) && r->op != LLM_OP_GENERATE)
        return ctl_error("%s: \"stop\", \"logit_bias\" and \"top_logprobs\" are of a completion",
                         where);
    if (top && json_top(top, where, r))
        return 1;
    if (!stop && !bias)
        return 0;
    if (!(*own = malloc(sizeof **own)))
        return ctl_error("out of memory for %s", where);
    **own = *flags;
    if ((stop && json_stops(stop, where, *own)) || (bias && json_biases(bias, where, *own)))
        return 1;
    ctl_use_sampling(*own, r);
    return 0;
}

/* ---- what came ---- */

/* Bytes at the end that begin a UTF-8 character which is not whole: a detokenizer holds them back. */
static size_t open_tail(const char *text, size_t bytes)
{
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        unsigned char c = (unsigned char)text[bytes - back];
        if ((c & 0xC0) == 0x80)
            continue;
        size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        return length > back ? back : 0;
    }
    return 0;
}

size_t ctl_cut_text(const struct llm_tokenizer *t, int32_t last, uint32_t cut, const char *text,
                    size_t bytes)
{
    const char *own;
    long n = llm_token_bytes(t, last, &own);
    size_t held = n > 0 ? open_tail(own, (size_t)n) : 0, gone = cut > held ? cut - held : 0;
    bytes = gone < bytes ? bytes - gone : 0;
    return bytes - open_tail(text, bytes);
}

json_t *ctl_top_json(const struct llm_candidate *top, uint32_t n)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < n && top[i].token >= 0; i++) {
        json_t *one = json_object();
        json_object_set_new(one, "token", json_integer(top[i].token));
        json_object_set_new(one, "logprob", ctl_number(top[i].logprob));
        json_array_append_new(all, one);
    }
    return all;
}
