/* report_json.c - see report.h. */
#include "report.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>

static json_t *number_json(double v)
{
    return isnan(v) ? json_null() : json_real(v);
}

static void set(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, number_json(v));
}

/* {median, rounds: [...]}, or null where nothing was measured. */
static json_t *series_json(const struct speed_series *s)
{
    if (!s->n)
        return json_null();
    json_t *rounds = json_array();
    for (int i = 0; i < s->n; i++)
        json_array_append_new(rounds, number_json(s->v[i]));
    return json_pack("{s:o, s:o}", "median", number_json(speed_median(s)), "rounds", rounds);
}

static json_t *goal_json(const struct speed_goal *g)
{
    json_t *o = json_object();
    if (g->roof > 0)
        set(o, "of_limit", g->roof);
    if (g->same > 0)
        set(o, "to_llama_cpp", g->same);
    if (g->q4_0 > 0)
        set(o, "to_llama_cpp_q4_0", g->q4_0);
    return o;
}

static json_t *case_json(const struct speed *s, const struct speed_case *c)
{
    char name[64];
    report_name(c, name, sizeof name);
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:s, s:o, s:o, s:o}", "name", name, "kind",
                          c->prefill ? "prefill" : "decode", "n", (int)c->n, "prompt_tokens",
                          (int)c->prompt, "tokens", (int)c->tokens, "limited_by",
                          c->by_reading ? "read" : "int8", "llmd", series_json(&c->ours), "limit",
                          series_json(&c->roof), "of_limit", series_json(&c->of_roof));
    if (s->peer) {
        json_object_set_new(o, "llama_cpp", series_json(&c->same));
        json_object_set_new(o, "to_llama_cpp", series_json(&c->to_same));
        json_object_set_new(o, "llama_cpp_q4_0", series_json(&c->q4_0));
        json_object_set_new(o, "to_llama_cpp_q4_0", series_json(&c->to_q4_0));
    }
    if (!c->prefill) {
        set(o, "gap_p50_ms", c->gap_p50);
        set(o, "gap_p99_ms", c->gap_p99);
    }
    if (s->goals)
        json_object_set_new(o, "goals", goal_json(&c->goal));
    return o;
}

static json_t *latency_json(const struct speed *s)
{
    const struct speed_latency *l = &s->latency;
    json_t *o = json_object();
    set(o, "gap_p50", l->gap);
    set(o, "bare_gap_p50", l->bare_gap);
    set(o, "gap_minus_bare", l->gap_minus_bare);
    set(o, "gap_minus_own_step_p50", l->gap_minus_step);
    set(o, "first_p50", l->first);
    set(o, "bare_first_p50", l->bare_first);
    set(o, "first_minus_bare", l->first_minus_bare);
    set(o, "first_minus_own_step_p50", l->first_minus_step);
    set(o, "first_of_sleeping_engine_p50", l->asleep_first);
    set(o, "engine_between_steps_p50", l->overhead_p50);
    set(o, "engine_between_steps_p99", l->overhead_p99);
    set(o, "bare_wake_call_p50", l->wake_call);
    set(o, "bare_wake_until_it_runs_p50", l->wake_back);
    json_object_set_new(o, "gaps", json_integer(l->tokens));
    json_object_set_new(o, "firsts", json_integer(l->firsts));
    if (s->goals)
        json_object_set_new(o, "goals",
                            json_pack("{s:i, s:i}", "gap_minus_bare", 30, "first_minus_bare", 50));
    return o;
}

static json_t *memory_json(const struct speed_memory *m)
{
    json_t *o = json_pack("{s:I, s:I, s:I, s:I, s:i, s:I}", "resident", (json_int_t)m->rss,
                          "proportional", (json_int_t)m->pss, "weights", (json_int_t)m->weights,
                          "kv_pool", (json_int_t)m->pool, "context_tokens", (int)m->context,
                          "weights_x_1_15_plus_pool_plus_30_mb", (json_int_t)m->goal);
    if (m->peer_rss)
        json_object_set_new(o, "llama_server_resident", json_integer((json_int_t)m->peer_rss));
    return o;
}

static json_t *whole_json(const struct speed *s)
{
    json_t *cases = json_array();
    for (int i = 0; i < s->n_cases; i++)
        json_array_append_new(cases, case_json(s, &s->cases[i]));
    json_t *o =
        json_pack("{s:s, s:i, s:s, s:s, s:i, s:o, s:o, s:{s:f, s:f, s:f, s:b}, s:o}", "cpu", s->cpu,
                  "threads", (int)s->threads, "model", s->model, "quantization", s->quantization,
                  "rounds", s->rounds, "read_bytes_per_s", series_json(&s->read_rate),
                  "int8_ops_per_s", series_json(&s->int8_rate), "token", "read_bytes",
                  s->work.bytes, "layer_weights", s->work.layer_weights, "head_weights",
                  s->work.head_weights, "int8", (int)s->work.int8, "cases", cases);
    json_object_set_new(o, "int8_instructions", json_string(s->int8_name));
    set(o, "int8_ops_per_s_avx2", s->int8_avx2);
    set(o, "cpu_share_of_other_programs", s->others);
    if (s->peer)
        json_object_set_new(o, "peer", json_string(s->peer_version));
    if (s->latency.measured)
        json_object_set_new(o, "latency_us", latency_json(s));
    if (s->memory.measured)
        json_object_set_new(o, "memory_bytes", memory_json(&s->memory));
    return o;
}

int report_json(const struct speed *s, const char *path, struct fail *f)
{
    json_t *o = whole_json(s);
    int failed = !o || json_dump_file(o, path, JSON_INDENT(1) | JSON_REAL_PRECISION(10));
    json_decref(o);
    return failed ? fail(f, -EIO, "%s cannot be written", path) : 0;
}
