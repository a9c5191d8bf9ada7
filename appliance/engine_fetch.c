/* engine_fetch.c - see engine_parts.h: what lies between two steps is fetched before.
 *
 * A step of a backend on this CPU reads many times what the caches hold, so all that is touched
 * behind it would be missed, line after line. While the backend samples, which needs little memory,
 * the lines are asked for a few at a time (gpu.h, soon). A backend that does not call leaves all of
 * it to the end of the step: then they are at least asked for together.
 *
 * In rounds, because the later ones look at what the earlier ones have brought:
 *   0  what runs, and where its rows of the next step go
 *   1  places in the rings, in the block tables, and where the histories are
 *   2  histories that are written to
 */
#include "engine_parts.h"

enum { LINE = 64, ROUNDS = 3 };

static void fetch_lines(const void *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch((const char *)at + i, 1);
}

/* What does not depend on who runs. */
static void fetch_fixed(const struct engine *e)
{
    const struct schedule *c = &e->schedule;
    fetch_lines(c, sizeof *c);
    fetch_lines(&e->delivery, sizeof e->delivery);
    for (size_t at = offsetof(struct llm_board, running);
         at < offsetof(struct llm_board, refused_for); at += LINE)
        stats_fetch(&e->stats, at);
    stats_fetch(&e->stats, offsetof(struct llm_board, last_step_ns));
    uint64_t step_ns = cost_predict(&c->cost, &c->shape);
    stats_fetch_histogram(&e->stats, offsetof(struct llm_board, step), step_ns);
    stats_fetch_histogram(&e->stats, offsetof(struct llm_board, itl), step_ns);
    stats_fetch_histogram(&e->stats, offsetof(struct llm_board, overhead), e->overhead_ns);
}

/* True if more than its tail is written to at the end of this step. */
static bool touches_history(const struct schedule *c, const struct sequence *s)
{
    return !s->lazy || s->flags & LLM_SQE_LOGPROBS || schedule_has_turn(c, s);
}

static void fetch_place(struct engine *e, uint32_t i)
{
    const struct schedule *c = &e->schedule;
    fetch_lines(c->running[i], SEQUENCE_HOT);
    __builtin_prefetch(&c->seqs[i], 1);
    if (i >= c->config->max_num_batched_tokens) /* more run than a step has rows */
        return;
    __builtin_prefetch(&c->results[i]);
    fetch_lines(&c->outputs[i], sizeof *c->outputs);
}

/* Those of a client mostly run side by side. */
static void fetch_completion(struct engine *e, uint32_t i)
{
    const struct sequence_owner *o = e->schedule.running[i]->owner;
    bool first = !i || e->schedule.running[i - 1]->owner != o;
    e->fetched.of_owner = first ? 0 : e->fetched.of_owner + 1;
    if (e->sink.fetch)
        e->sink.fetch(e->sink.context, o->client, e->fetched.of_owner);
}

static void fetch_pointed(struct engine *e, uint32_t i)
{
    const struct schedule *c = &e->schedule;
    const struct sequence *s = c->running[i];
    if (s->n_blocks * GPU_KV_BLOCK <= s->n_tokens) {
        __builtin_prefetch(&s->blocks[s->n_blocks], 1);
        kv_pool_fetch_free(&c->pool, e->fetched.blocks++);
    }
    if (touches_history(c, s))
        __builtin_prefetch(&s->tokens);
    fetch_completion(e, i);
}

static void fetch_history(struct engine *e, uint32_t i)
{
    const struct schedule *c = &e->schedule;
    const struct sequence *s = c->running[i];
    if (!touches_history(c, s))
        return;
    __builtin_prefetch(s->tokens + s->n_tokens, 1);
    if (s->flags & LLM_SQE_LOGPROBS)
        __builtin_prefetch(s->logprobs + s->n_tokens, 1);
    if (!schedule_has_turn(c, s))
        return;
    __builtin_prefetch(s->tokens + s->n_tokens - s->n_tail, 1);
    if (s->n_hashed == s->n_computed / GPU_KV_BLOCK)
        return;
    __builtin_prefetch(s->tokens + (uint64_t)s->n_hashed * GPU_KV_BLOCK);
    __builtin_prefetch(s->hashes + (s->n_hashed ? s->n_hashed - 1 : 0), 1);
    kv_pool_fetch(&c->pool, s->blocks[s->n_hashed]);
}

static void fetch_piece(struct engine *e, uint32_t piece)
{
    static void (*const rounds[ROUNDS])(struct engine * e,
                                        uint32_t i) = {fetch_place, fetch_pointed, fetch_history};
    uint32_t n = e->schedule.n_running;
    rounds[piece / n](e, piece % n);
}

void engine_fetch(struct engine *e, uint32_t left)
{
    uint32_t all = ROUNDS * e->schedule.n_running, upto;
    upto = e->fetched.n + (all - e->fetched.n + left - 1) / left;
    if (!e->fetched.n)
        fetch_fixed(e);
    while (e->fetched.n < upto)
        fetch_piece(e, e->fetched.n++);
}

void engine_soon(void *context, uint32_t left)
{
    engine_fetch(context, left);
}
