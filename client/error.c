/* error.c - codes and sentences: what a code means, and what failed last on a handle. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "handle.h"

static const char *own_code(int code)
{
    switch (code) {
    case -ETIMEDOUT: /* strerror speaks of a connection */
        return "the time that was allowed is over";
    case LLM_EOWNERDEAD:
        return "the engine died";
    case LLM_EPROTO:
        return "the other side broke the protocol, or its version does not fit";
    case LLM_EEVICTED:
        return "the engine has closed this client";
    case LLM_ETOOLONG:
        return "prompt and max_tokens exceed the model's length";
    case LLM_ETOKEN:
        return "a token id lies outside the vocabulary";
    case LLM_EBUSY:
        return "a limit of the engine is reached";
    case LLM_EENGINE:
        return "the engine's backend failed; the request may be sent again";
    case LLM_ENOENGINE:
        return "no engine of that name is running";
    case LLM_EPARAM:
        return "a parameter is out of its range";
    case LLM_ESHUTDOWN:
        return "the engine is stopping";
    case LLM_ENOTEXT:
        return "the model's tokenizer is not supported; token ids still work";
    case LLM_EDEADLINE:
        return "the first token cannot come, or did not come, before the deadline";
    case LLM_EQUEUETIME:
        return "the request waited longer than its queue timeout";
    case LLM_EQUOTA:
        return "a quota of this user is used up";
    case LLM_ENOSESSION:
        return "there is no session of that key; it was closed, or idle for too long";
    case LLM_ESESSION:
        return "another request generates on the session (wait for its end, or interrupt it), or "
               "the "
               "key of a new session is taken (close the old one, or choose another key)";
    case LLM_EUNREAD:
        return "cancelled: too many tokens were left unread";
    case LLM_ENUMERICS:
        return "the engine that came back computes other bits than the one before";
    }
    return NULL;
}

const char *llm_strerror(int code)
{
    const char *text = own_code(code);
    if (text)
        return text;
    if (code >= 0)
        return "success";
    text = code > -1000 ? strerrordesc_np(-code) : NULL;
    return text ? text : "unknown error";
}

void client_fail(struct llm_client *c, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->text, sizeof c->text, format, args);
    va_end(args);
    c->code = code;
}

int llm_errcode(const struct llm_client *c)
{
    return c->code;
}

const char *llm_errmsg(const struct llm_client *c)
{
    return c->text;
}
