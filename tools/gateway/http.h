/* http.h - connections, requests, answers: what libmicrohttpd does, and what it is told.
 *
 *   headers -> route found, key checked -> body, up to the limit -> the route's handler
 *           -> an answer at once, or a call: the connection is suspended until it has something
 *
 * Invariants
 *   1. No thread waits for an engine: a connection that does is suspended.
 *   2. A connection's memory is bounded: header_bytes for its headers, max_body_bytes for a body,
 *      CALL_UNREAD_MAX for what it does not read.
 *   3. A request has to come within read_timeout_s; one that drips is cut off.
 */
#ifndef LLMD_GATEWAY_HTTP_H
#define LLMD_GATEWAY_HTTP_H

#include "gateway.h"

struct exchange;

/* Who answers what. */
struct route {
    const char *path; /* with a '*' at its end: anything may follow */
    const char *method;
    bool guarded; /* a key is needed */
    bool json;    /* the body is JSON */
    /* Fills x->reply or starts x->call. 0, or -1 after x->problem. */
    int (*handle)(struct exchange *x);
};

/* One request. */
struct exchange {
    struct gateway *gateway;
    struct MHD_Connection *connection;
    struct connection *peer;
    const struct route *route;
    const char *rest;      /* of the path, behind a route's '*' */
    bool begun, head;      /* HEAD: the answer without its body */
    bool misframed;        /* where it ends is not certain: nothing behind it is read */
    bool looked, draining; /* exchange_draining() has been asked, and what it said */
    struct problem problem;
    struct buffer body;
    unsigned long long discarded; /* bytes of a body that nobody wants */
    struct {
        const char *content_type; /* NULL: JSON */
        struct buffer body;
    } reply;
    struct call *call;
    struct key *key; /* entered */
    char path[256];
};

const struct route *route_find(const char *method, const char *path, const char **rest,
                               struct problem *problem);

/* Value of a request's header, or NULL. */
const char *exchange_header(const struct exchange *x, const char *name);

/* Whether the gateway drains: looked at once, so that an answer about it and its headers agree. */
bool exchange_draining(struct exchange *x);

/* libmicrohttpd's callbacks; `context` is the gateway. */
enum MHD_Result http_request(void *context, struct MHD_Connection *connection, const char *path,
                             const char *method, const char *version, const char *data,
                             size_t *bytes, void **request);
void http_completed(void *context, struct MHD_Connection *connection, void **request,
                    enum MHD_RequestTerminationCode how);

#endif
