/* http.c - see http.h. */
#include "http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server.h"

enum { STREAM_BLOCK = 16384, DISCARD_FACTOR = 64 };

const char *exchange_header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

bool exchange_draining(struct exchange *x)
{
    if (!x->looked)
        x->draining = atomic_load(&x->gateway->draining);
    x->looked = true;
    return x->draining;
}

/* ---- answers ---- */

static void add_header(struct MHD_Response *r, const char *name, const char *value)
{
    if (MHD_add_response_header(r, name, value) != MHD_YES)
        fprintf(stderr, "llm-gateway: out of memory for a header\n");
}

/* What every answer says. */
static void add_headers(struct exchange *x, struct MHD_Response *r)
{
    char text[160];
    if (x->call) {
        add_header(r, "X-Request-Id", x->call->id);
    }
    if (x->problem.retry_after_s) {
        snprintf(text, sizeof text, "%u", x->problem.retry_after_s);
        add_header(r, MHD_HTTP_HEADER_RETRY_AFTER, text);
    }
    if (x->problem.status == 401)
        add_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (x->problem.status == 405)
        add_header(r, MHD_HTTP_HEADER_ALLOW, x->problem.param);
    if (x->misframed || exchange_draining(x)) /* to who keeps asking: ask another */
        add_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    add_header(r, "X-Content-Type-Options", "nosniff");
    add_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
}

static enum MHD_Result queue(struct exchange *x, int status, struct MHD_Response *r)
{
    if (!r)
        return MHD_NO;
    add_headers(x, r);
    enum MHD_Result rc = MHD_queue_response(x->connection, (unsigned)status, r);
    MHD_destroy_response(r);
    return rc;
}

/* Hands the bytes over. */
static enum MHD_Result send_bytes(struct exchange *x, int status, const char *type,
                                  struct buffer *body)
{
    if (body->failed) {
        buffer_free(body);
        return MHD_NO;
    }
    struct MHD_Response *r =
        MHD_create_response_from_buffer(body->bytes, body->data, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        buffer_free(body);
        return MHD_NO;
    }
    *body = (struct buffer){0};
    add_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type ? type : "application/json");
    return queue(x, status, r);
}

static enum MHD_Result send_problem(struct exchange *x)
{
    struct buffer text = {0};
    bool allow = x->problem.status == 405; /* there `param` is the header's */
    struct problem shown = x->problem;
    if (allow)
        shown.param[0] = 0;
    problem_write(&shown, &text);
    return send_bytes(x, x->problem.status, NULL, &text);
}

static ssize_t read_stream(void *context, uint64_t position, char *out, size_t max)
{
    (void)position;
    long n = call_read(context, out, max);
    if (n == -1)
        return MHD_CONTENT_READER_END_OF_STREAM;
    return n < 0 ? MHD_CONTENT_READER_END_WITH_ERROR : n;
}

static void stream_done(void *context)
{
    call_unref(context);
}

static enum MHD_Result send_stream(struct exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, call_ref(x->call), stream_done);
    if (!r) {
        call_unref(x->call);
        return MHD_NO;
    }
    add_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
    add_header(r, "X-Accel-Buffering", "no"); /* a proxy shall pass every event on at once */
    return queue(x, 200, r);
}

/* What the call has become; suspends the connection while that is open. */
static enum MHD_Result send_call(struct exchange *x)
{
    struct call *c = x->call;
    if (call_wait(c))
        return MHD_YES;
    x->problem = c->problem; /* not written any more once it is set */
    if (x->problem.status)
        return send_problem(x);
    if (c->params.stream)
        return send_stream(x);
    struct buffer body = c->out;
    c->out = (struct buffer){0};
    return send_bytes(x, 200, NULL, &body);
}

/* ---- a request ---- */

/* What its headers say of where a request ends. */
struct framing {
    unsigned lengths, codings;
    bool other_coding, bad_name;
};

static enum MHD_Result look_at_header(void *context, enum MHD_ValueKind kind, const char *name,
                                      const char *value)
{
    (void)kind;
    struct framing *f = context;
    f->lengths += !strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (!strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        f->codings++;
        f->other_coding |= !value || strcasecmp(value, "chunked");
    }
    f->bad_name |= !*name || strpbrk(name, " \t");
    return MHD_YES;
}

/* What a proxy in front could read differently (and so take a part of this body for the next client's
 * request) is refused, and the connection with it: RFC 9112, 5.1, 6.1, 6.3. */
static bool is_misframed(struct exchange *x)
{
    struct framing f = {0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, look_at_header, &f);
    x->misframed = f.bad_name || f.lengths + f.codings > 1 || f.other_coding;
    if (f.bad_name)
        problem_set(&x->problem, 400, "invalid_header", NULL,
                    "the name of a header is empty or has white space behind it");
    else if (x->misframed)
        problem_set(&x->problem, 400, "invalid_header", NULL,
                    "a body needs one Content-Length, or \"Transfer-Encoding: chunked\" and no "
                    "Content-Length");
    return x->misframed;
}

/* Bytes of the body that its header announces; 0: none, or not known. */
static unsigned long long announced(const struct exchange *x)
{
    const char *text = exchange_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return text ? strtoull(text, NULL, 10) : 0;
}

static bool is_json(const char *type)
{
    static const char want[] = "application/json";
    size_t n = sizeof want - 1;
    return type && !strncasecmp(type, want, n) && (!type[n] || strchr("; \t", type[n]));
}

/* What can be said before the body has come. */
static void judge_headers(struct exchange *x, const char *method)
{
    const char *type = exchange_header(x, MHD_HTTP_HEADER_CONTENT_TYPE);
    struct gateway *g = x->gateway;
    x->head = !strcmp(method, "HEAD");
    if (is_misframed(x) || x->problem.status)
        return;
    x->route = route_find(x->head ? "GET" : method, x->path, &x->rest, &x->problem);
    if (!x->route)
        return;
    if (x->route->guarded && g->keys &&
        !(x->key =
              keys_find(g->keys, exchange_header(x, MHD_HTTP_HEADER_AUTHORIZATION), &x->problem)))
        return;
    if (x->route->json && !is_json(type))
        problem_set(&x->problem, 415, "unsupported_media_type", NULL,
                    "the body must be JSON: send the header \"Content-Type: application/json\"");
    else if (announced(x) > g->max_body_bytes)
        problem_set(&x->problem, 413, "request_too_large", NULL,
                    "the body has %llu bytes: at most %zu are taken", announced(x),
                    g->max_body_bytes);
    if (x->problem.status)
        x->key = NULL;
    else if (x->key && x->route->json && key_enter(x->key, gateway_now_ns(), &x->problem))
        x->key = NULL;
    else if (!x->route->json)
        x->key = NULL; /* counts for nothing */
}

/* A body that nobody wants is read all the same, so that the client gets the answer instead of a
 * reset; unless it asks first, or is endless. */
static bool answers_at_once(const struct exchange *x)
{
    return x->misframed ||
           (x->problem.status && (exchange_header(x, MHD_HTTP_HEADER_EXPECT) ||
                                  announced(x) > DISCARD_FACTOR * x->gateway->max_body_bytes));
}

/* False: it goes on for ever. */
static bool take_body(struct exchange *x, const char *data, size_t bytes)
{
    if (!x->problem.status && x->body.bytes + bytes > x->gateway->max_body_bytes) {
        problem_set(&x->problem, 413, "request_too_large", NULL, "the body has more than %zu bytes",
                    x->gateway->max_body_bytes);
        buffer_free(&x->body);
    }
    if (!x->problem.status) {
        buffer_add(&x->body, data, bytes);
        return true;
    }
    x->discarded += bytes;
    return x->discarded <= DISCARD_FACTOR * x->gateway->max_body_bytes;
}

static enum MHD_Result handle(struct exchange *x)
{
    connection_received(x->peer);
    if (x->body.failed)
        problem_memory(&x->problem);
    if (x->problem.status || x->route->handle(x))
        return send_problem(x);
    buffer_free(&x->body);
    if (x->call) {
        x->call->key = x->key; /* it pays at its end */
        x->key = NULL;
        instance_submit(x->call->instance, call_ref(x->call));
        return send_call(x);
    }
    return send_bytes(x, 200, x->reply.content_type, &x->reply.body);
}

static struct exchange *exchange_create(struct gateway *g, struct MHD_Connection *c,
                                        const char *path)
{
    struct exchange *x = calloc(1, sizeof *x);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (!x)
        return NULL;
    x->gateway = g;
    atomic_fetch_add(&g->exchanges, 1);
    x->connection = c;
    x->peer = info ? info->socket_context : NULL;
    snprintf(x->path, sizeof x->path, "%s", path);
    if (strlen(path) >= sizeof x->path)
        problem_set(&x->problem, 404, "not_found", NULL, "there is nothing at this path");
    return x;
}

enum MHD_Result http_request(void *context, struct MHD_Connection *connection, const char *path,
                             const char *method, const char *version, const char *data,
                             size_t *bytes, void **request)
{
    (void)version;
    struct exchange *x = *request;
    if (!x) { /* the headers are there */
        if (!(x = *request = exchange_create(context, connection, path)))
            return MHD_NO;
        judge_headers(x, method);
        return answers_at_once(x) ? send_problem(x) : MHD_YES;
    }
    if (*bytes) {
        bool more = take_body(x, data, *bytes);
        *bytes = 0;
        return more ? MHD_YES : MHD_NO;
    }
    return x->call ? send_call(x) : handle(x); /* again after a suspension, or the first time */
}

void http_completed(void *context, struct MHD_Connection *connection, void **request,
                    enum MHD_RequestTerminationCode how)
{
    (void)context, (void)connection, (void)how;
    struct exchange *x = *request;
    if (!x)
        return;
    if (x->call && call_leave(x->call))
        instance_notice(x->call->instance);
    if (x->key)
        key_leave(x->key, gateway_now_ns(), 0);
    connection_answered(x->peer);
    atomic_fetch_sub(&x->gateway->exchanges, 1);
    call_unref(x->call);
    buffer_free(&x->body);
    buffer_free(&x->reply.body);
    free(x);
    *request = NULL;
}
