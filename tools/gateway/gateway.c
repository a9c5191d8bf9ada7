/* gateway.c - see gateway.h. */
#include "gateway.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

uint64_t gateway_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool served_before(struct gateway *g, unsigned i, const char *name)
{
    bool found = false;
    for (unsigned k = 0; k < i && !found; k++) {
        struct model *m = instance_model(g->instances[k]);
        found = m && !strcmp(m->name, name);
        model_unref(m);
    }
    return found;
}

const char *gateway_model_name(struct gateway *g, unsigned i, const struct model *m)
{
    return m->name[0] && !served_before(g, i, m->name) ? m->name : instance_name(g->instances[i]);
}

struct instance *gateway_find(struct gateway *g, const char *model, struct model **m,
                              struct problem *problem)
{
    const char *unknown = NULL; /* an instance whose model is not known yet */
    for (unsigned i = 0; i < g->n_instances; i++) {
        *m = instance_model(g->instances[i]);
        if (!*m)
            unknown = instance_name(g->instances[i]);
        else if (!strcmp(model, gateway_model_name(g, i, *m)) ||
                 !strcmp(model, instance_name(g->instances[i])))
            return g->instances[i];
        model_unref(*m);
        *m = NULL;
    }
    if (unknown)
        problem_set(problem, 503, "engine_unavailable", NULL,
                    "the engine \"%s\" is not there at the moment", unknown);
    else
        problem_set(problem, 404, "model_not_found", "model",
                    "there is no model \"%.200s\" here: GET /v1/models lists them", model);
    return NULL;
}
