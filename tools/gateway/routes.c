/* routes.c - which path is answered by what. */
#include <stdio.h>
#include <string.h>

#include "routes.h"

static const struct route routes[] = {
    {"/v1/chat/completions", "POST", true, true, route_chat},
    {"/v1/completions", "POST", true, true, route_completion},
    {"/v1/models", "GET", true, false, route_models},
    {"/v1/models/*", "GET", true, false, route_model},
    {"/tokenize", "POST", true, true, route_tokenize},
    {"/detokenize", "POST", true, true, route_detokenize},
    {"/health", "GET", false, false, route_health},
    {"/ready", "GET", false, false, route_ready},
    {"/live", "GET", false, false, route_live},
    {"/metrics", "GET", false, false, route_metrics},
    {"/version", "GET", false, false, route_version},
    {"/", "GET", false, false, route_page},
};

enum { ROUTES = sizeof routes / sizeof *routes };

static bool matches(const struct route *r, const char *path, const char **rest)
{
    size_t n = strlen(r->path);
    if (r->path[n - 1] != '*')
        return !strcmp(r->path, path);
    *rest = path + n - 1;
    return !strncmp(r->path, path, n - 1) && **rest;
}

const struct route *route_find(const char *method, const char *path, const char **rest,
                               struct problem *problem)
{
    const struct route *other = NULL;
    for (size_t i = 0; i < ROUTES; i++) {
        if (!matches(&routes[i], path, rest))
            continue;
        if (!strcmp(routes[i].method, method))
            return &routes[i];
        other = &routes[i];
    }
    if (other)
        problem_set(problem, 405, "method_not_allowed",
                    strcmp(other->method, "GET") ? other->method : "GET, HEAD",
                    "%.100s is asked with %s", path, other->method);
    else
        problem_set(problem, 404, "not_found", NULL, "there is nothing at this path");
    return NULL;
}
