/* invariants.c - see invariants.h */
#include "invariants.h"

#include <stdarg.h>

enum { LEARNED_STEPS = 256 }; /* the cost model may be judged then */

void invariants_broken(struct sim_result *result, const char *format, ...)
{
    va_list arguments;
    if (result->violation[0])
        return;
    va_start(arguments, format);
    vsnprintf(result->violation, sizeof result->violation, format, arguments);
    va_end(arguments);
}

static uint64_t figure(const struct invariants *v, size_t place)
{
    return stats_get(&v->engine->stats, place);
}

void invariants_open(struct invariants *v, const struct sim_config *config,
                     const struct engine *engine, const struct device *device,
                     struct sim_result *result)
{
    *v = (struct invariants){.config = config,
                             .engine = engine,
                             .device = device,
                             .result = result,
                             .oldest = UINT64_MAX};
}

/* ---- streams ---- */

void invariants_drew(struct invariants *v, uint64_t before)
{
    v->drew++;
    v->continued += before && before + 1 == v->step;
}

void invariants_ended(struct invariants *v, uint64_t last)
{
    if (!last)
        return;
    v->drew -= last == v->step;
    v->due -= last + 1 == v->step && v->due;
}

void invariants_before_step(struct invariants *v)
{
    v->due = v->drew; /* what ended between the steps was taken out of it */
    v->drew = v->continued = 0;
    v->step++;
    v->preemptions = figure(v, offsetof(struct llm_board, preemptions));
}

static void check_streams(struct invariants *v)
{
    uint64_t preempted = figure(v, offsetof(struct llm_board, preemptions)) - v->preemptions;
    uint32_t share = v->config->engine.max_num_batched_tokens * 3 / 4;
    uint32_t spared = v->engine->schedule.n_spared; /* for one step, for another's first token */
    if (v->due > v->continued + preempted + spared && v->due < share)
        invariants_broken(v->result,
                          "step %llu: %u streams of %u drew nothing, %llu were preempted",
                          (unsigned long long)v->step, v->due - v->continued, v->due,
                          (unsigned long long)preempted);
}

/* ---- blocks ---- */

static void check_blocks(struct invariants *v)
{
    const struct kv_pool *pool = &v->engine->schedule.pool;
    const struct sequence_table *t = &v->engine->table;
    uint64_t named = 0, referenced = 0, used = 0;
    for (uint32_t i = 0; i < t->max_requests; i++)
        if (t->slots[i].state != SEQUENCE_FREE)
            named += t->slots[i].n_blocks + (t->slots[i].spare != KV_NO_BLOCK);
    for (uint32_t b = 0; b < pool->n_blocks; b++) {
        uint32_t refs = kv_pool_refs(pool, b);
        referenced += refs;
        used += refs > 0;
    }
    if (named != referenced)
        invariants_broken(v->result, "step %llu: %llu blocks in tables, %llu references",
                          (unsigned long long)v->step, (unsigned long long)named,
                          (unsigned long long)referenced);
    if (used + pool->n_free != pool->n_blocks)
        invariants_broken(v->result, "step %llu: %llu blocks used and %u free, of %u",
                          (unsigned long long)v->step, (unsigned long long)used, pool->n_free,
                          pool->n_blocks);
}

/* ---- the queue ---- */

static void check_queue(struct invariants *v)
{
    const struct queue *q = &v->engine->schedule.queue;
    uint64_t oldest = UINT64_MAX;
    if (!list_empty(&q->arrivals))
        oldest = LIST_OF(q->arrivals.next, struct sequence, queue)->order;
    if (oldest != v->oldest) {
        v->oldest = oldest;
        v->picks = q->picks;
        v->older = figure(v, offsetof(struct llm_board, preemptions));
        return;
    }
    uint32_t passed = q->picks - v->picks;
    if (oldest == UINT64_MAX)
        return;
    if (passed > v->result->longest_picks)
        v->result->longest_picks = passed;
    uint64_t came_back = figure(v, offsetof(struct llm_board, preemptions)) - v->older;
    if (passed > QUEUE_AGEING * (1 + came_back))
        invariants_broken(v->result,
                          "step %llu: %u were admitted before the one that waits longest",
                          (unsigned long long)v->step, passed);
}

static void check_progress(struct invariants *v)
{
    uint64_t tokens = figure(v, offsetof(struct llm_board, output_tokens));
    v->without_output = tokens == v->output_tokens ? v->without_output + 1 : 0;
    v->output_tokens = tokens;
    if (v->without_output > v->result->longest_stall)
        v->result->longest_stall = v->without_output;
}

/* ---- the promise ---- */

static void check_promise(struct invariants *v)
{
    const struct schedule *c = &v->engine->schedule;
    double promise = v->config->engine.max_itl_us * 1e3;
    bool promised = promise > 0 && v->config->engine.policy == ENGINE_FAIR && c->decode_rows;
    if (!promised || v->device->without_ns > 0.85 * promise)
        return; /* no room for a prompt's row: what is given then is no part of the promise */
    v->result->promised_steps++;
    if (v->device->step_ns <= promise)
        return;
    v->result->late_steps++;
    double excess = v->device->step_ns / promise - 1;
    if (v->step > LEARNED_STEPS && excess > v->result->worst_excess)
        v->result->worst_excess = excess;
}

void invariants_after_step(struct invariants *v)
{
    check_streams(v);
    check_queue(v);
    check_progress(v);
    check_promise(v);
    if (v->config->check_every && v->step % v->config->check_every == 0)
        check_blocks(v);
    if (v->device->violation)
        invariants_broken(v->result, "step %llu: %s", (unsigned long long)v->step,
                          v->device->violation);
}

void invariants_at_end(struct invariants *v)
{
    const struct kv_pool *pool = &v->engine->schedule.pool;
    check_blocks(v);
    if (pool->n_free != pool->n_blocks)
        invariants_broken(v->result, "at the end %u of %u blocks are free", pool->n_free,
                          pool->n_blocks);
    if (v->engine->table.n_free != v->engine->table.max_requests)
        invariants_broken(v->result, "at the end %u of %u slots are free", v->engine->table.n_free,
                          v->engine->table.max_requests);
}
