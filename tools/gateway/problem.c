/* problem.c - see problem.h. Types and codes: the OpenAI API reference, "Error codes". */
#include "problem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../../client/llmclient.h"

int problem_set(struct problem *p, int status, const char *code, const char *param,
                const char *format, ...)
{
    if (p->status)
        return -1;
    va_list args;
    va_start(args, format);
    vsnprintf(p->message, sizeof p->message, format, args);
    va_end(args);
    snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    p->status = status;
    p->code = code;
    p->retry_after_s = status == 429 || status == 503 ? 1 : 0;
    return -1;
}

int problem_memory(struct problem *p)
{
    return problem_set(p, 503, "out_of_memory", NULL, "the gateway has no memory for this request");
}

/* ---- what the engine says ---- */

static const struct meaning {
    int code, status;
    const char *name;
} meanings[] = {
    {LLM_ETOOLONG, 400, "context_length_exceeded"},
    {LLM_ETOKEN, 400, "invalid_token"},
    {LLM_EPARAM, 400, "invalid_value"},
    {-EINVAL, 400, "invalid_value"},
    {-E2BIG, 400, "context_length_exceeded"},
    {-ENOTSUP, 400, "unsupported_value"},
    {LLM_ENOSESSION, 404, "session_not_found"},
    {LLM_ESESSION, 409, "session_busy"},
    {LLM_EBUSY, 429, "queue_full"},
    {-EAGAIN, 429, "queue_full"},
    {LLM_EQUOTA, 429, "quota_exceeded"},
    {LLM_EUNREAD, 429, "slow_reader"},
    {LLM_EDEADLINE, 504, "deadline_exceeded"},
    {LLM_EQUEUETIME, 504, "queue_timeout"},
    {-ENOMEM, 503, "out_of_memory"},
    {LLM_ESHUTDOWN, 503, "engine_stopping"},
    {LLM_EOWNERDEAD, 503, "engine_unavailable"},
    {LLM_ENOENGINE, 503, "engine_unavailable"},
    {LLM_EEVICTED, 503, "engine_unavailable"},
    {LLM_EPROTO, 503, "engine_unavailable"},
    {LLM_ENUMERICS, 503, "engine_changed"},
    {LLM_EENGINE, 503, "engine_failed"},
};

static const struct meaning *meaning_of(int code)
{
    static const struct meaning other = {0, 500, "engine_error"};
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].code == code)
            return &meanings[i];
    return &other;
}

int problem_of_engine(struct problem *p, int code, uint32_t fits, const char *sentence)
{
    const struct meaning *m = meaning_of(code);
    const char *text = sentence && *sentence ? sentence : llm_strerror(code);
    if (!fits)
        return problem_set(p, m->status, m->name, NULL, "%s", text);
    if (code == LLM_EDEADLINE)
        return problem_set(p, m->status, m->name, NULL,
                           "%s: the first token was expected after %u ms", text,
                           (fits + 999) / 1000);
    return problem_set(p, m->status, m->name, NULL, "%s: %u would have fitted", text, fits);
}

/* ---- JSON ---- */

static const char *type_of(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    }
    return status < 500 ? "invalid_request_error" : "server_error";
}

static void put_or_null(struct buffer *out, const char *text)
{
    if (text && *text)
        json_put_text(out, text);
    else
        buffer_text(out, "null");
}

void problem_write(const struct problem *p, struct buffer *out)
{
    buffer_text(out, "{\"error\":{\"message\":");
    json_put_text(out, p->message);
    buffer_format(out, ",\"type\":\"%s\",\"param\":", type_of(p->status));
    put_or_null(out, p->param);
    buffer_text(out, ",\"code\":");
    put_or_null(out, p->code);
    buffer_text(out, "}}");
}
