/* engine.c - see engine.h: takes entries, runs steps, ends sequences. What a step holds is decided
 * in schedule.c, what goes to the rings in deliver.c, what is refused in submission.c. */
#include "engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "deliver.h"
#include "schedule.h"
#include "sequence.h"
#include "stats.h"
#include "submission.h"

struct engine {
    struct engine_config config; /* config.eog is ours */
    int32_t *eog;                /* (n_eog) ascending */
    const struct gpu_ops *ops;
    struct gpu *gpu;
    struct stats stats;
    struct sequence_table table;
    struct schedule schedule;
    struct engine_sink sink;
    struct delivery delivery;
    uint8_t options[LLM_OPTIONS_MAX]; /* the map of the entry that is being taken */
    bool stopping;
    uint64_t step_end_ns; /* when the last step ended, 0 if there was nothing to do after it */
};

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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

static void publish_gauges(struct engine *e)
{
    STATS_SET(&e->stats, running, e->schedule.n_running);
    STATS_SET(&e->stats, waiting, e->schedule.n_waiting);
    STATS_SET(&e->stats, kv_blocks_free, e->schedule.pool.n_free);
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
                                    .stats = &e->stats,
                                    .numerics_id = config->numerics_id};
    list_init(&e->delivery.due);
    code = copy_eog(e, config, f);
    if (!code && (code = stats_create(&e->stats, board)) < 0)
        fail(f, code, "no memory for the engine's counters");
    if (!code)
        code = sequence_table_create(&e->table, config->max_requests, config->max_model_len, f);
    if (!code)
        code = schedule_create(&e->schedule, &e->config, &e->stats, f);
    if (code < 0) {
        engine_destroy(e);
        return code;
    }
    publish_gauges(e);
    *out = e;
    return 0;
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    schedule_destroy(&e->schedule);
    sequence_table_destroy(&e->table);
    stats_destroy(&e->stats);
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
    return e->schedule.n_waiting;
}

bool engine_has_work(const struct engine *e)
{
    return e->schedule.n_running || e->schedule.n_waiting;
}

bool engine_holds(const struct engine *e, uint32_t client)
{
    const struct sequence_owner *o = sequence_owner(&e->table, client);
    return o && o->n_news;
}

/* ---- ending ---- */

/* At once, whatever the state; tokens that find no room are dropped. */
static void end_now(struct engine *e, struct sequence *s, int32_t status, enum llm_finish finish,
                    uint64_t now_ns)
{
    schedule_remove(&e->schedule, s);
    deliver_end(&e->delivery, s, status, finish, now_ns);
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
        sequence_release(&e->table, s);
    }
    publish_gauges(e);
}

static void shut_down(struct engine *e, struct sequence *s, uint64_t now_ns)
{
    if (s->t_admit)
        end_now(e, s, 0, LLM_FINISH_CANCELLED, now_ns);
    else
        end_now(e, s, LLM_ESHUTDOWN, LLM_FINISH_ERROR, now_ns);
}

void engine_shutdown(struct engine *e)
{
    uint64_t now_ns = clock_ns();
    e->stopping = true;
    for (uint32_t i = 0; i < e->table.max_requests; i++)
        if (e->table.slots[i].state != SEQUENCE_FREE)
            shut_down(e, &e->table.slots[i], now_ns);
    publish_gauges(e);
}

/* ---- submission ---- */

uint32_t engine_finals(const struct llm_sqe *copy)
{
    return copy->op == LLM_OP_GENERATE && copy->choices > 1 ? copy->choices : 1;
}

/* Slots that the entry takes. One that will be refused takes none for long, but its tokens may need
 * the place to be looked at. */
static uint32_t slots_needed(const struct engine *e, const struct llm_sqe *copy)
{
    if (copy->op != LLM_OP_GENERATE && copy->op != LLM_OP_SCORE)
        return 0;
    uint32_t finals = engine_finals(copy);
    return finals <= LLM_CHOICES_MAX && finals <= e->config.max_requests ? finals : 1;
}

bool engine_can_take(const struct engine *e, const struct llm_sqe *copy)
{
    return slots_needed(e, copy) <= e->table.n_free;
}

bool engine_can_take_from(const struct engine *e, uint32_t client, const struct llm_sqe *copy)
{
    const struct sequence_owner *o = sequence_owner(&e->table, client);
    uint32_t needed = slots_needed(e, copy), n_free = e->table.n_free;
    if (needed > n_free)
        return false;
    return !o || !needed || o->n_all + needed <= n_free - needed;
}

int32_t *engine_token_buffer(struct engine *e)
{
    return sequence_next_tokens(&e->table);
}

uint8_t *engine_option_buffer(struct engine *e)
{
    return e->options;
}

bool engine_carries_tokens(const struct llm_sqe *copy)
{
    return copy->op == LLM_OP_GENERATE || copy->op == LLM_OP_SCORE;
}

static void refuse(struct engine *e, uint32_t client, const struct llm_sqe *q,
                   struct submission_verdict v, uint64_t now_ns)
{
    uint32_t finals = engine_finals(q);
    for (uint32_t i = 0; i < finals; i++)
        deliver_answer(&e->delivery, client, q, i, v.code, v.fits, now_ns);
    STATS_ADD(&e->stats, refused, 1);
}

static void fill_sequence(struct sequence *s, const struct llm_sqe *q, uint32_t choice,
                          uint64_t now_ns)
{
    s->user_data = q->user_data;
    s->choice = choice;
    s->op = (enum llm_op)q->op;
    s->flags = q->flags;
    s->sampling = (struct gpu_sampling){.temperature = q->temperature,
                                        .top_p = q->top_p,
                                        .min_p = q->min_p,
                                        .top_k = q->top_k,
                                        .seed = q->seed,
                                        .choice = choice};
    s->n_prompt = s->n_tokens = q->tokens_len;
    s->max_tokens = s->op == LLM_OP_SCORE ? 0 : q->max_tokens;
    s->base = s->ready = s->op == LLM_OP_SCORE ? 1 : s->n_prompt;
    s->t_arrival = now_ns;
}

static void take_sequences(struct engine *e, uint32_t client, const struct llm_sqe *q,
                           uint64_t now_ns)
{
    struct sequence *leader = sequence_take(&e->table, client);
    fill_sequence(leader, q, 0, now_ns);
    schedule_enqueue(&e->schedule, leader);
    uint32_t choices = engine_finals(q);
    for (uint32_t i = 1; i < choices; i++) {
        struct sequence *s = sequence_take(&e->table, client);
        fill_sequence(s, q, i, now_ns);
        memcpy(s->tokens, leader->tokens, s->n_prompt * sizeof *s->tokens);
        schedule_follow(&e->schedule, leader, s);
    }
    STATS_ADD(&e->stats, requests, 1);
    STATS_ADD(&e->stats, prompt_tokens, q->tokens_len);
}

static void take_request(struct engine *e, uint32_t client, const struct llm_sqe *q,
                         uint64_t now_ns)
{
    struct submission_verdict v = {0};
    if (!engine_can_take(e, q))
        v.code = LLM_EBUSY;
    else
        v = submission_check_tokens(sequence_next_tokens(&e->table), q->tokens_len,
                                    e->config.vocab);
    if (v.code < 0)
        refuse(e, client, q, v, now_ns);
    else
        take_sequences(e, client, q, now_ns);
}

static void cancel(struct engine *e, uint32_t client, const struct llm_sqe *q, uint64_t now_ns)
{
    const struct sequence_owner *o = sequence_owner(&e->table, client);
    struct sequence *next, *s = o ? sequence_first(o) : NULL;
    int32_t status = -ENOENT;
    for (; s; s = next) {
        next = sequence_next(o, s);
        if (s->user_data != q->target)
            continue;
        end_now(e, s, 0, LLM_FINISH_CANCELLED, now_ns);
        status = 0;
    }
    deliver_answer(&e->delivery, client, q, 0, status, 0, now_ns);
}

void engine_submit(struct engine *e, uint32_t client, const struct llm_sqe *copy, uint64_t now_ns)
{
    struct submission_verdict v = submission_check(copy, &e->config);
    if (v.code == 0 && e->stopping && copy->op != LLM_OP_CANCEL)
        v.code = LLM_ESHUTDOWN;
    if (v.code < 0)
        refuse(e, client, copy, v, now_ns);
    else if (copy->op == LLM_OP_NOP)
        deliver_answer(&e->delivery, client, copy, 0, 0, 0, now_ns);
    else if (copy->op == LLM_OP_CANCEL)
        cancel(e, client, copy, now_ns);
    else
        take_request(e, client, copy, now_ns);
    publish_gauges(e);
}

/* ---- a step ---- */

static bool ends_generation(const struct engine *e, int32_t token)
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
    assert(position == s->ready && position < s->n_prompt);
    s->logprobs[position] = logprob;
    s->ready++;
    if (s->ready == s->n_prompt)
        end_after_tokens(e, s, LLM_FINISH_LENGTH);
}

static void absorb_token(struct engine *e, struct sequence *s, const struct gpu_result *r)
{
    assert(s->state == SEQUENCE_DECODE && s->n_computed == s->n_tokens);
    assert(r->token >= 0 && (uint32_t)r->token < e->config.vocab);
    s->tokens[s->n_tokens] = r->token;
    s->logprobs[s->n_tokens] = r->logprob;
    s->ready = ++s->n_tokens;
    STATS_ADD(&e->stats, output_tokens, 1);
    if (!(s->flags & LLM_SQE_IGNORE_EOS) && ends_generation(e, r->token))
        end_after_tokens(e, s, LLM_FINISH_STOP);
    else if (s->n_tokens - s->n_prompt == s->max_tokens)
        end_after_tokens(e, s, LLM_FINISH_LENGTH);
}

static void absorb_results(struct engine *e)
{
    struct schedule *c = &e->schedule;
    schedule_advance(c);
    for (uint32_t i = 0; i < c->step.n_outputs; i++) {
        struct sequence *s = c->output_of[i];
        if (s->op == LLM_OP_SCORE)
            absorb_score(e, s, c->outputs[i].position, c->results[i].logprob);
        else
            absorb_token(e, s, &c->results[i]);
        deliver_note(&e->delivery, s);
    }
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
    while (e->schedule.n_running)
        end_now(e, e->schedule.running[e->schedule.n_running - 1], LLM_EENGINE, LLM_FINISH_ERROR,
                now_ns);
}

/* Submits, waits, copies the blocks of forks. */
static int run_step(struct engine *e)
{
    const struct schedule *c = &e->schedule;
    uint64_t start_ns = clock_ns();
    if (e->step_end_ns)
        STATS_OBSERVE(&e->stats, overhead, stats_elapsed(e->step_end_ns, start_ns));
    int code = e->ops->submit(e->gpu, &c->step);
    if (!code)
        code = e->ops->wait(e->gpu);
    e->step_end_ns = clock_ns();
    if (code)
        return code;
    count_step(e, e->step_end_ns - start_ns, e->step_end_ns);
    return c->n_copies ? e->ops->copy_blocks(e->gpu, c->copy_dst, c->copy_src, c->n_copies) : 0;
}

void engine_tick(struct engine *e, uint64_t now_ns)
{
    (void)e, (void)now_ns;
}

int engine_step(struct engine *e)
{
    if (!engine_has_work(e))
        return 0;
    schedule_form(&e->schedule, clock_ns());
    int code = run_step(e);
    if (code)
        fail_running(e, e->step_end_ns);
    else
        absorb_results(e);
    deliver_due(&e->delivery, e->step_end_ns);
    if (!engine_has_work(e))
        e->step_end_ns = 0;
    publish_gauges(e);
    return code;
}

void engine_deliver(struct engine *e, uint32_t client)
{
    struct sequence_owner *o = sequence_owner(&e->table, client);
    if (o)
        deliver_owner(&e->delivery, o, clock_ns());
}
