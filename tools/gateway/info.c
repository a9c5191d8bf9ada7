/* info.c - what the gateway tells of itself, its engines and their models. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board.h"
#include "metrics.h"
#include "routes.h"

/* ---- models ---- */

static void put_model(struct exchange *x, unsigned i, const struct model *m)
{
    struct buffer *out = &x->reply.body;
    buffer_text(out, "{\"id\":");
    json_put_text(out, gateway_model_name(x->gateway, i, m));
    buffer_format(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"llmd\",\"root\":",
                  (long long)m->created);
    json_put_text(out, m->name);
    buffer_format(out, ",\"parent\":null,\"max_model_len\":%u}", m->limits.max_model_len);
}

int route_models(struct exchange *x)
{
    bool first = true;
    buffer_text(&x->reply.body, "{\"object\":\"list\",\"data\":[");
    for (unsigned i = 0; i < x->gateway->n_instances; i++) {
        struct model *m = instance_model(x->gateway->instances[i]);
        if (!m)
            continue;
        buffer_text(&x->reply.body, first ? "" : ",");
        put_model(x, i, m);
        model_unref(m);
        first = false;
    }
    buffer_text(&x->reply.body, "]}");
    return 0;
}

int route_model(struct exchange *x)
{
    struct model *m;
    const struct instance *found = gateway_find(x->gateway, x->rest, &m, &x->problem);
    unsigned i = 0;
    if (!found)
        return -1;
    while (x->gateway->instances[i] != found)
        i++;
    put_model(x, i, m);
    model_unref(m);
    return 0;
}

/* ---- health ---- */

int route_health(struct exchange *x)
{
    buffer_text(&x->reply.body, "{\"status\":\"ok\"}");
    return 0;
}

static const char *state_of(const struct board_copy *b)
{
    static const char *const names[] = {"starting", "ready", "draining", "stopped"};
    uint32_t state = b ? order_relaxed(&b->board.state) : 0;
    if (!b)
        return "absent";
    if (!b->lives && state != LLM_STATE_STOPPED)
        return "dead";
    return state < 4 ? names[state] : "unknown";
}

/* All instances, for which `good` is said; 503 unless it is so for all. */
static int judge(struct exchange *x, const char *what,
                 bool (*good)(const struct board_copy *b, const struct instance *i))
{
    struct buffer *out = &x->reply.body;
    const char *bad = NULL, *bad_state = NULL;
    bool draining = exchange_draining(x);
    buffer_text(out, "{\"status\":\"ok\",\"instances\":{");
    for (unsigned i = 0; i < x->gateway->n_instances; i++) {
        const char *name = instance_name(x->gateway->instances[i]);
        struct board_copy *b = board_read(name);
        buffer_text(out, i ? "," : "");
        json_put_text(out, name);
        buffer_format(out, ":\"%s\"", state_of(b));
        if (!bad && !(b && b->lives && good(b, x->gateway->instances[i]))) {
            bad = name;
            bad_state = state_of(b);
        }
        free(b);
    }
    buffer_text(out, "}}");
    if (draining)
        return problem_set(&x->problem, 503, "shutting_down", NULL, "the gateway is stopping");
    if (!bad)
        return 0;
    return problem_set(&x->problem, 503, "engine_unavailable", NULL,
                       "the engine \"%s\" is not %s: %s", bad, what, bad_state);
}

static bool is_ready(const struct board_copy *b, const struct instance *i)
{
    return instance_connected(i) && order_relaxed(&b->board.state) == LLM_STATE_READY;
}

static bool is_live(const struct board_copy *b, const struct instance *i)
{
    (void)i;
    return board_makes_progress(b);
}

int route_ready(struct exchange *x)
{
    return judge(x, "ready", is_ready);
}

int route_live(struct exchange *x)
{
    return judge(x, "making progress", is_live);
}

int route_version(struct exchange *x)
{
    buffer_format(&x->reply.body, "{\"version\":\"%s\"}", LLMD_VERSION);
    return 0;
}

/* ---- metrics ---- */

int route_metrics(struct exchange *x)
{
    struct metrics_instance all[GATEWAY_INSTANCES_MAX] = {0};
    struct board_copy *boards[GATEWAY_INSTANCES_MAX] = {0};
    struct model *models[GATEWAY_INSTANCES_MAX] = {0};
    struct gateway *g = x->gateway;
    char *text = NULL;
    size_t bytes = 0;
    for (unsigned i = 0; i < g->n_instances; i++) {
        const char *name = instance_name(g->instances[i]);
        struct board_copy *b = boards[i] = board_read(name);
        models[i] = instance_model(g->instances[i]);
        all[i] = (struct metrics_instance){
            .instance = name, .model = models[i] ? gateway_model_name(g, i, models[i]) : name};
        if (b)
            all[i].board = &b->board, all[i].lives = b->lives, all[i].now_ns = b->now_ns,
            all[i].real_ns = b->real_ns;
    }
    FILE *f = open_memstream(&text, &bytes);
    int rc = f ? metrics_write(f, all, g->n_instances) : -1;
    if (f && fclose(f))
        rc = -1;
    if (!rc)
        buffer_add(&x->reply.body, text, bytes);
    x->reply.content_type = METRICS_CONTENT_TYPE;
    free(text);
    for (unsigned i = 0; i < g->n_instances; i++) {
        free(boards[i]);
        model_unref(models[i]);
    }
    return rc ? problem_memory(&x->problem) : 0;
}

/* ---- the page ---- */

/* page.html, with the names that ld -b binary gives it */
extern const char _binary_tools_gateway_page_html_start[], _binary_tools_gateway_page_html_end[];

int route_page(struct exchange *x)
{
    const char *start = _binary_tools_gateway_page_html_start;
    x->reply.content_type = "text/html; charset=utf-8";
    buffer_add(&x->reply.body, start, (size_t)(_binary_tools_gateway_page_html_end - start));
    return 0;
}
