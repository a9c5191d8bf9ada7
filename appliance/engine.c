/* engine.c - see engine.h: life, ends, steps. Entries are taken in engine_submit.c and
 * engine_session.c, times are kept in engine_time.c; what a step holds is decided in schedule.c,
 * what goes to the rings in deliver.c, what is refused in submission.c. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "engine_parts.h"

uint64_t engine_now(const struct engine *e)
{
    return e->config.clock ? e->config.clock(e->config.clock_context) : clock_ns();
}

uint32_t engine_domain(const struct engine *e, uint32_t client)
{
    return e->sink.domain ? e->sink.domain(e->sink.context, client) : 0;
}

/* ---- creation ---- */

static int check_config(const struct engine_config *config, struct fail *f)
{
    if (config->max_model_len < 2 || config->max_model_len > INT32_MAX)
        return fail(f, -EINVAL, "max_model_len is %u: a request needs at least 2 tokens",
                    config->max_model_len);
    if (!config->max_num_seqs || !config->max_num_batched_tokens)
        return fail(f, -EINVAL, "max_num_seqs is %u and max_num_batched_tokens %u: both start at 1",
                    config->max_num_seqs, config->max_num_batched_tokens);
    if (!config->vocab || config->vocab > INT32_MAX)
        return fail(f, -EINVAL, "a vocabulary of %u tokens cannot be served", config->vocab);
    return 0;
}

static int copy_eog(struct engine *e, const struct engine_config *config, struct fail *f)
{
    e->eog = calloc(config->n_eog ? config->n_eog : 1, sizeof *e->eog);
    if (!e->eog)
        return fail(f, -ENOMEM, "no memory for %u end tokens", config->n_eog);
    if (config->n_eog)
        memcpy(e->eog, config->eog, config->n_eog * sizeof *e->eog);
    e->config.eog = e->eog;
    return 0;
}

static int make_bits(struct engine *e, struct fail *f)
{
    e->biased = calloc((e->config.vocab + 63) / 64, sizeof *e->biased);
    return e->biased ? 0 : fail(f, -ENOMEM, "no memory for %u tokens", e->config.vocab);
}

static uint64_t backlog(const struct schedule *c)
{
    uint64_t rows = c->queue.tokens;
    for (uint32_t i = 0; i < c->n_running; i++)
        if (c->running[i]->state == SEQUENCE_PREFILL)
            rows += sequence_inputs(c->running[i]) - c->running[i]->n_computed;
    return rows;
}

void engine_publish_gauges(struct engine *e)
{
    const struct schedule *c = &e->schedule;
    uint64_t rows = backlog(c);
    struct cost_shape decodes = {0};
    struct gpu_figures gpu = {0};
    if (e->ops->figures)
        e->ops->figures(e->gpu, &gpu);
    STATS_SET(&e->stats, threads_in_use, gpu.threads_in_use);
    STATS_SET(&e->stats, running, c->n_running);
    STATS_SET(&e->stats, waiting, schedule_waiting(c));
    STATS_SET(&e->stats, kv_blocks_free, c->pool.n_free);
    STATS_SET(&e->stats, kv_blocks_cached, c->pool.n_cached);
    STATS_SET(&e->stats, sessions, e->sessions.n);
    STATS_SET(&e->stats, pinned_blocks, c->pinned_blocks);
    STATS_SET(&e->stats, backlog_tokens, rows);
    STATS_SET(&e->stats, backlog_us,
              cost_prefill_ns(&c->cost, rows, e->config.max_num_batched_tokens, &decodes) / 1000);
    e->stale = false;
}

void engine_publish(struct engine *e)
{
    if (e->stale)
        engine_publish_gauges(e);
}

int engine_create(struct engine **out, const struct engine_config *config,
                  const struct gpu_ops *ops, struct gpu *gpu, struct llm_board *board,
                  const struct engine_sink *sink, struct fail *f)
{
    *out = NULL;
    int code = check_config(config, f);
    if (code < 0)
        return code;
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return fail(f, -ENOMEM, "no memory for the engine");
    e->config = *config;
    e->ops = ops;
    e->gpu = gpu;
    e->sink = *sink;
    e->delivery = (struct delivery){.sink = &e->sink,
                                    .table = &e->table,
                                    .sessions = &e->sessions,
                                    .stats = &e->stats,
                                    .numerics_id = config->numerics_id,
                                    .max_unread = config->max_unread};
    e->next_timer_ns = UINT64_MAX;
    list_init(&e->delivery.due);
    list_init(&e->delivery.behind);
    code = copy_eog(e, config, f);
    if (!code)
        code = make_bits(e, f);
    if (!code && (code = stats_create(&e->stats, board)) < 0)
        fail(f, code, "no memory for the engine's counters");
    if (!code)
        code = sequence_table_create(&e->table, config->max_requests + config->max_sessions,
                                     config->max_model_len, f);
    if (!code &&
        (code = session_table_create(&e->sessions, config->max_sessions, &e->table.domains)) < 0)
        fail(f, code, "no memory for %u sessions", config->max_sessions);
    if (!code)
        code = schedule_create(&e->schedule, &e->config, &e->stats, &e->table.served, f);
    e->schedule.step.soon = engine_soon;
    e->schedule.step.soon_context = e;
    if (code < 0) {
        engine_destroy(e);
        return code;
    }
    engine_publish_gauges(e);
    *out = e;
    return 0;
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    schedule_destroy(&e->schedule);
    session_table_destroy(&e->sessions);
    sequence_table_destroy(&e->table);
    stats_destroy(&e->stats);
    free(e->biased);
    free(e->eog);
    free(e);
}

/* ---- what is there ---- */

uint64_t engine_steps(const struct engine *e)
{
    return stats_get(&e->stats, offsetof(struct llm_board, steps));
}

uint32_t engine_running(const struct engine *e)
{
    return e->schedule.n_running;
}

uint32_t engine_waiting(const struct engine *e)
{
    return schedule_waiting(&e->schedule);
}

bool engine_has_work(const struct engine *e)
{
    return e->schedule.n_running || schedule_waiting(&e->schedule);
}

bool engine_holds(const struct engine *e, uint32_t client)
{
    const struct sequence_owner *o = sequence_owner(&e->table, client);
    return o && o->n_news;
}

/* ---- ending ---- */

/* What only appends to a session was answered when it came. */
static bool was_answered(const struct sequence *s)
{
    return s->op != LLM_OP_GENERATE && !sequence_scores(s);
}

/* Tokens that found no room are lost to the client, so they do not belong to its session. */
static void forget_undelivered(struct engine *e, struct sequence *s)
{
    uint32_t n = s->base + s->sent;
    if (s->op != LLM_OP_GENERATE || n == s->n_tokens)
        return;
    s->n_tokens = s->ready = n;
    schedule_cut(&e->schedule, s, n - 1);
}

void engine_end(struct engine *e, struct sequence *s, int32_t status, enum llm_finish finish,
                uint64_t now_ns)
{
    schedule_remove(&e->schedule, s);
    engine_release_withheld(s);
    if (was_answered(s))
        sequence_detach(&e->table, s);
    else
        deliver_end(&e->delivery, s, status, finish, now_ns);
    if (s->session)
        forget_undelivered(e, s);
}

void engine_interrupt(struct engine *e, struct sequence *s, uint64_t now_ns)
{
    schedule_remove(&e->schedule, s);
    s->owner->unread -= sequence_unsent(s);
    forget_undelivered(e, s);
    deliver_end(&e->delivery, s, 0, LLM_FINISH_CANCELLED, now_ns);
}

/* Blocks and place are free at once; the slot stays until the tokens are out. */
static void end_after_tokens(struct engine *e, struct sequence *s, enum llm_finish finish)
{
    schedule_remove(&e->schedule, s);
    s->finish = finish;
}

void engine_drop_client(struct engine *e, uint32_t client)
{
    const struct sequence_owner *o = sequence_owner(&e->table, client);
    struct sequence *next, *s = o ? sequence_first(o) : NULL;
    for (; s; s = next) {
        next = sequence_next(o, s);
        schedule_remove(&e->schedule, s);
        if (s->session) {
            session_touch(&e->sessions, s->session, engine_now(e));
            sequence_detach(&e->table, s);
            forget_undelivered(e, s);
        } else
            sequence_release(&e->table, s);
    }
    if (e->reservation.client == client)
        e->reservation.held = false;
    engine_publish_gauges(e);
}

static void shut_down(struct engine *e, struct sequence *s, uint64_t now_ns)
{
    if (s->t_admit)
        engine_end(e, s, 0, LLM_FINISH_CANCELLED, now_ns);
    else
        engine_end(e, s, LLM_ESHUTDOWN, LLM_FINISH_ERROR, now_ns);
}

void engine_refuse_new(struct engine *e)
{
    e->stopping = true;
}

void engine_shutdown(struct engine *e)
{
    uint64_t now_ns = engine_now(e);
    e->stopping = true;
    for (uint32_t i = 0; i < e->table.max_requests; i++)
        if (e->table.slots[i].owner)
            shut_down(e, &e->table.slots[i], now_ns);
    engine_publish_gauges(e);
}

/* ---- a step ---- */

bool engine_ends_generation(const struct engine *e, int32_t token)
{
    uint32_t low = 0, high = e->config.n_eog;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (e->eog[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low < e->config.n_eog && e->eog[low] == token;
}

static void absorb_score(struct engine *e, struct sequence *s, uint32_t position, float logprob)
{
    assert(position == s->ready && position < s->n_tokens);
    s->logprobs[position] = logprob;
    s->ready++;
    s->owner->unread++;
    if (s->ready == s->n_tokens)
        end_after_tokens(e, s, LLM_FINISH_LENGTH);
}

/* What was computed behind the answer does not belong to its session. */
static void end_at_stop(struct engine *e, struct sequence *s)
{
    end_after_tokens(e, s, LLM_FINISH_STOP);
    s->n_tokens = s->ready;
    if (s->session)
        schedule_cut(&e->schedule, s, s->n_tokens - 1);
}

static void end_with_all(struct engine *e, struct sequence *s, enum llm_finish finish)
{
    engine_release_withheld(s);
    end_after_tokens(e, s, finish);
}

static void absorb_token(struct engine *e, struct sequence *s, const struct gpu_result *r)
{
    assert(s->state == SEQUENCE_DECODE && s->n_computed == s->n_tokens);
    assert(r->token >= 0 && (uint32_t)r->token < e->config.vocab);
    if (s->flags & LLM_SQE_LOGPROBS)
        s->logprobs[s->n_tokens] = r->logprob;
    if (r->n_top < s->n_top)
        sequence_top(s, s->n_tokens - s->base)[r->n_top].token = -1;
    sequence_append(s, r->token);
    if (engine_accept(e, s))
        end_at_stop(e, s);
    else if (!(s->flags & LLM_SQE_IGNORE_EOS) && engine_ends_generation(e, r->token))
        end_with_all(e, s, LLM_FINISH_STOP);
    else if (s->n_tokens - s->n_prompt == s->max_tokens)
        end_with_all(e, s, LLM_FINISH_LENGTH);
}

/* No place is left for the candidates of the next token. */
static bool window_full(const struct sequence *s)
{
    return s->n_top && s->state == SEQUENCE_DECODE &&
           s->n_tokens - s->base - s->sent >= SEQUENCE_TOP_WINDOW;
}

static void end_as_unread(struct engine *e, struct sequence *s, uint64_t now_ns)
{
    STATS_ADD(&e->stats, unread_cancels, 1);
    engine_end(e, s, LLM_EUNREAD, LLM_FINISH_ERROR, now_ns);
}

/* To the rings, at the end of the step; a final that has no token before it, at once. */
static void offer(struct engine *e, struct sequence *s)
{
    if (window_full(s))
        end_as_unread(e, s, e->step_end_ns);
    else if (sequence_unsent(s))
        deliver_note(&e->delivery, s);
    else if (s->state == SEQUENCE_ENDING)
        deliver_end(&e->delivery, s, 0, s->finish, e->step_end_ns);
}

/* Appends that are done: nobody waits for them. */
static void end_appends(struct engine *e)
{
    while (e->schedule.n_ended) {
        struct sequence *s = e->schedule.ended[--e->schedule.n_ended];
        sequence_detach(&e->table, s);
    }
}

/* Whoever stated a deadline has no use for a first token behind it. */
static bool is_late(const struct sequence *s, uint64_t now_ns)
{
    return s->n_tokens == s->n_prompt && now_ns >= s->due_ns;
}

static void absorb_results(struct engine *e, uint64_t step_ns)
{
    struct schedule *c = &e->schedule;
    uint64_t drawn = 0;
    schedule_advance(c, step_ns);
    end_appends(e);
    for (uint32_t i = 0; i < c->step.n_outputs; i++) {
        struct sequence *s = c->output_of[i];
        if (!sequence_scores(s) && !schedule_confirm(c, s, i))
            continue;
        s->fresh = false;
        if (sequence_scores(s))
            absorb_score(e, s, c->outputs[i].position, c->results[i].logprob);
        else if (is_late(s, e->step_end_ns)) {
            engine_miss_deadline(e, s, 0, e->step_end_ns);
            continue;
        } else {
            absorb_token(e, s, &c->results[i]);
            drawn++;
        }
        offer(e, s);
    }
    STATS_ADD(&e->stats, output_tokens, drawn);
}

static void count_step(struct engine *e, uint64_t ns, uint64_t end_ns)
{
    const struct schedule *c = &e->schedule;
    STATS_ADD(&e->stats, steps, 1);
    STATS_ADD(&e->stats, mixed_steps, c->decode_rows && c->prefill_rows);
    STATS_ADD(&e->stats, rows, c->step.n_rows);
    STATS_ADD(&e->stats, decode_rows, c->decode_rows);
    STATS_ADD(&e->stats, prefill_rows, c->prefill_rows);
    STATS_MAX(&e->stats, max_rows_in_step, c->step.n_rows);
    STATS_MAX(&e->stats, max_seqs_in_step, c->step.n_seqs);
    STATS_SET(&e->stats, last_step_ns, end_ns);
    STATS_OBSERVE(&e->stats, step, ns);
}

/* What waits was not touched by the device and may try its luck. */
static void fail_running(struct engine *e, uint64_t now_ns)
{
    while (e->schedule.n_running) {
        struct sequence *s = e->schedule.running[e->schedule.n_running - 1];
        engine_end(e, s, LLM_EENGINE, LLM_FINISH_ERROR, now_ns);
        if (s->session)
            schedule_release_blocks(&e->schedule, s);
    }
}

/* Copies what is to be written, submits, waits, copies the blocks of forks. */
static int run_step(struct engine *e, uint64_t *step_ns)
{
    const struct schedule *c = &e->schedule;
    uint64_t start_ns = engine_now(e);
    int code = 0;
    if (e->step_end_ns) {
        e->overhead_ns = stats_elapsed(e->step_end_ns, start_ns);
        STATS_OBSERVE(&e->stats, overhead, e->overhead_ns);
    }
    e->fetched = (struct engine_fetched){0};
    if (c->n_before)
        code = e->ops->copy_blocks(e->gpu, c->before_dst, c->before_src, c->n_before);
    if (!code && c->step.n_rows)
        code = e->ops->submit(e->gpu, &c->step);
    if (!code && c->step.n_rows)
        code = e->ops->wait(e->gpu);
    e->step_end_ns = engine_now(e);
    if (code ||
        !c->step.n_rows) /* what an append brought was in the prefix cache: nothing to run */
        return code;
    engine_fetch(e, 1);
    *step_ns = e->step_end_ns - start_ns;
    count_step(e, *step_ns, e->step_end_ns);
    return c->n_copies ? e->ops->copy_blocks(e->gpu, c->copy_dst, c->copy_src, c->n_copies) : 0;
}

/* Those who leave too much unread: what nobody takes ends. */
static void end_unread(struct engine *e, uint64_t now_ns)
{
    struct list *behind = &e->delivery.behind;
    while (!list_empty(behind)) {
        struct sequence_owner *o = LIST_OF(behind->next, struct sequence_owner, due);
        struct sequence *next, *s = sequence_first(o);
        list_remove(&o->due);
        for (; s; s = next) {
            next = sequence_next(o, s);
            if (!sequence_unsent(s))
                continue;
            end_as_unread(e, s, now_ns);
        }
    }
}

int engine_step(struct engine *e)
{
    uint64_t step_ns = 0, now_ns = engine_now(e);
    engine_check_time(e, now_ns);
    if (!engine_has_work(e))
        return 0;
    schedule_form(&e->schedule, now_ns);
    STATS_SET(&e->stats, step_predicted_ns, cost_predict(&e->schedule.cost, &e->schedule.shape));
    int code = run_step(e, &step_ns);
    if (code)
        fail_running(e, e->step_end_ns);
    else
        absorb_results(e, step_ns);
    deliver_due(&e->delivery, e->step_end_ns);
    end_unread(e, e->step_end_ns);
    if (!engine_has_work(e))
        e->step_end_ns = 0;
    engine_publish_gauges(e);
    return code;
}

void engine_deliver(struct engine *e, uint32_t client)
{
    struct sequence_owner *o = sequence_owner(&e->table, client);
    if (!o)
        return;
    deliver_owner(&e->delivery, o, engine_now(e));
    end_unread(e, engine_now(e));
}
