/* generate.c - /v1/completions and /v1/chat/completions: from a body to a call. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "body.h"
#include "prompt.h"
#include "request.h"
#include "routes.h"

/* ---- headers ---- */

/* Milliseconds, with decimals. */
static int read_ms(const struct exchange *x, const char *name, double max_ms, double *out,
                   struct problem *problem)
{
    const char *text = exchange_header(x, name);
    char *end;
    *out = 0;
    if (!text)
        return 0;
    double ms = strtod(text, &end);
    end += end == text ? 0 : strspn(end, " \t"); /* no part of a header's value */
    if (end == text || *end || !isfinite(ms) || ms < 0 || ms > max_ms)
        return problem_value(problem, name,
                             "the header %s must be a number of milliseconds from 0 "
                             "to %.0f",
                             name, max_ms);
    *out = ms;
    return 0;
}

static int read_us_header(const struct exchange *x, const char *name, uint32_t *out,
                          struct problem *problem)
{
    double ms;
    if (read_ms(x, name, 4294967, &ms, problem))
        return -1;
    *out = (uint32_t)ceil(ms * 1000);
    return 0;
}

static int read_ms_header(const struct exchange *x, const char *name, uint32_t *out,
                          struct problem *problem)
{
    double ms;
    if (read_ms(x, name, 4294967295.0, &ms, problem))
        return -1;
    *out = (uint32_t)ceil(ms);
    return 0;
}

static int read_priority(const struct exchange *x, uint32_t *out, struct problem *problem)
{
    static const char *const names[] = {"normal", "high", "low"}; /* by enum llm_priority */
    const char *text = exchange_header(x, "X-LLMD-Priority");
    for (uint32_t i = 0; text && i < 3; i++)
        if (!strcasecmp(text, names[i]))
            return *out = i, 0;
    if (!text)
        return 0;
    return problem_value(problem, "X-LLMD-Priority",
                         "the header X-LLMD-Priority must be high, normal or low");
}

/* A promise under a name that is not known would not be kept, and nobody would hear of it. */
static enum MHD_Result refuse_unknown(void *context, enum MHD_ValueKind kind, const char *name,
                                      const char *value)
{
    static const char *const known[] = {"Deadline-Ms", "Timeout-Ms", "Queue-Timeout-Ms",
                                        "Max-ITL-Ms", "Priority"};
    (void)kind, (void)value;
    if (strncasecmp(name, "X-LLMD-", 7))
        return MHD_YES;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcasecmp(name + 7, known[i]))
            return MHD_YES;
    problem_set(context, 400, "unknown_parameter", name,
                "the header %.60s is not known here: of X-LLMD- there are Deadline-Ms, Timeout-Ms, "
                "Queue-Timeout-Ms, Max-ITL-Ms and Priority",
                name);
    return MHD_NO;
}

static int read_promises(const struct exchange *x, struct promises *p, struct problem *problem)
{
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, refuse_unknown, problem);
    if (problem->status)
        return -1;
    if (read_us_header(x, "X-LLMD-Deadline-Ms", &p->deadline_us, problem) ||
        read_us_header(x, "X-LLMD-Max-ITL-Ms", &p->max_itl_us, problem) ||
        read_ms_header(x, "X-LLMD-Timeout-Ms", &p->timeout_ms, problem) ||
        read_ms_header(x, "X-LLMD-Queue-Timeout-Ms", &p->queue_timeout_ms, problem))
        return -1;
    return read_priority(x, &p->priority, problem);
}

/* ---- the call ---- */

static void name_call(struct call *c)
{
    unsigned char bytes[14];
    char *at = c->id;
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) /* never, for so few */
        memset(bytes, 0, sizeof bytes);
    at += sprintf(at, c->params.api == API_CHAT ? "chatcmpl-" : "cmpl-");
    for (size_t i = 0; i < sizeof bytes; i++)
        at += sprintf(at, "%02x", bytes[i]);
    c->created = (int64_t)time(NULL);
}

static int socket_of(const struct exchange *x)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static int fill_call(struct exchange *x, struct call *c, enum api api)
{
    struct problem *problem = &x->problem;
    if (!(c->body = body_parse(x->body.data, x->body.bytes, problem)) ||
        params_read(&c->params, api, c->body, problem) || read_promises(x, &c->promises, problem))
        return -1;
    if (!(c->instance = gateway_find(x->gateway, c->params.model, &c->model, problem)))
        return -1;
    if (atomic_load(&x->gateway->draining))
        return problem_set(problem, 503, "shutting_down", NULL, "the gateway is stopping");
    if (!instance_connected(c->instance))
        return problem_set(problem, 503, "engine_unavailable", NULL,
                           "the engine \"%s\" is not there at the moment",
                           instance_name(c->instance));
    if (prompt_make(c, problem) || request_judge(c, problem))
        return -1;
    name_call(c);
    c->max_answer_bytes = x->gateway->max_answer_bytes;
    c->connection = x->connection;
    c->socket = socket_of(x);
    return 0;
}

static int generate(struct exchange *x, enum api api)
{
    struct call *c = call_create();
    if (!c)
        return problem_memory(&x->problem);
    if (fill_call(x, c, api)) {
        call_unref(c);
        return -1;
    }
    x->call = c;
    return 0;
}

int route_chat(struct exchange *x)
{
    return generate(x, API_CHAT);
}

int route_completion(struct exchange *x)
{
    return generate(x, API_COMPLETION);
}
