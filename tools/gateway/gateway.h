/* gateway.h - what all parts of the process share: its instances, keys and limits. Written before the
 * first connection, then read alone. */
#ifndef LLMD_GATEWAY_GATEWAY_H
#define LLMD_GATEWAY_GATEWAY_H

#include <stdatomic.h>

#include "instance.h"
#include "keys.h"

enum { GATEWAY_INSTANCES_MAX = 16, GATEWAY_LISTENERS_MAX = 8 };

struct gateway {
    struct instance *instances[GATEWAY_INSTANCES_MAX];
    unsigned n_instances;
    struct keys *keys; /* NULL: any key is accepted */
    size_t max_body_bytes, max_answer_bytes;
    uint32_t header_bytes, max_connections, idle_timeout_s, read_timeout_s, threads;
    const char *tls_cert, *tls_key; /* PEM texts; NULL: plain HTTP */
    int64_t started;                /* seconds since 1970 */
    atomic_bool draining;
    atomic_uint exchanges; /* requests whose answer is not over */
};

/* The instance that serves a model of that name, and a reference to the model; else a problem: 404,
 * or 503 while an engine whose model is not known yet may be meant. */
struct instance *gateway_find(struct gateway *g, const char *model, struct model **m,
                              struct problem *problem);
/* The name that clients use for instance i's model: its served name, or the instance's where another
 * instance before it serves one of the same name. */
const char *gateway_model_name(struct gateway *g, unsigned i, const struct model *m);

/* CLOCK_MONOTONIC */
uint64_t gateway_now_ns(void);

#endif
