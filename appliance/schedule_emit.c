/* schedule_emit.c - see schedule.h: the step as plain data, and what it changed. */
#include <assert.h>
#include <string.h>

#include "schedule_parts.h"

/* The next output. While a sequence runs its draws differ in the position alone: what the last step
 * left in the same place is not written again. */
static struct gpu_output *next_output(struct schedule *c, struct sequence *s, bool draws)
{
    uint32_t i = c->step.n_outputs++;
    uint64_t key = draws ? s->admission : 0;
    assert(i < c->config->max_num_batched_tokens);
    if (!draws || c->output_key[i] != key)
        c->outputs[i] =
            (struct gpu_output){.target = -1, .sampling = s->sampling, .n_prompt = s->n_prompt};
    c->output_key[i] = key;
    c->output_of[i] = s;
    return &c->outputs[i];
}

/* The token at that position: the next one of the history, or one behind a draft. */
static void emit_draw(struct schedule *c, struct sequence *s, uint32_t row, uint32_t position)
{
    struct gpu_output *o = next_output(c, s, true);
    o->row = row;
    o->position = position;
    if (!s->lazy) {
        o->history = s->tokens;
        o->n_history = position;
    }
    if (s->n_top) {
        o->n_top = s->n_top;
        o->top = sequence_top(s, position - s->base);
    }
}

static void emit_score(struct schedule *c, struct sequence *s, uint32_t row, uint32_t position)
{
    struct gpu_output *o = next_output(c, s, false);
    o->row = row;
    o->position = position;
    o->target = s->tokens[position];
}

/* Every row of what is scored says something of the token behind it, unless that was said before a
 * preemption or is not asked for. */
static void emit_scores(struct schedule *c, struct sequence *s, uint32_t first_row)
{
    for (uint32_t i = 0; i < s->rows; i++) {
        uint32_t position = s->n_computed + i + 1;
        if (position >= s->ready)
            emit_score(c, s, first_row + i, position);
    }
}

/* The fork of that leader behind running[*at]. A leader is in front of its forks. */
static struct sequence *next_fork(const struct schedule *c, const struct sequence *leader,
                                  uint32_t *at)
{
    while (!c->running[*at]->fork || c->running[*at]->leader != leader) {
        ++*at;
        assert(*at < c->n_running);
    }
    return c->running[(*at)++];
}

/* Of the last token's row, and of the rows of a draft. */
static void emit_draws(struct schedule *c, struct sequence *s, uint32_t first_row)
{
    uint32_t end = s->n_computed + s->rows, last_row = first_row + s->rows - 1;
    for (uint32_t position = s->n_tokens; position <= end; position++)
        emit_draw(c, s, last_row - (end - position), position);
    for (uint32_t i = 0, at = 0; i < s->n_forks; i++)
        emit_draw(c, next_fork(c, s, &at), last_row, s->n_tokens);
}

static void count_rows(struct schedule *c, const struct sequence *s)
{
    uint64_t context = (uint64_t)s->rows * s->n_computed + (uint64_t)s->rows * (s->rows + 1) / 2;
    bool decode = s->state == SEQUENCE_DECODE;
    *(decode ? &c->shape.decode_rows : &c->shape.prefill_rows) += s->rows;
    *(decode ? &c->shape.decode_context : &c->shape.prefill_context) += context;
}

/* The length that it declares: what it can grow to. */
static uint32_t declared_length(const struct sequence *s)
{
    return s->op == LLM_OP_GENERATE ? s->n_prompt + s->max_tokens : s->n_tokens;
}

/* True if every block that it writes to is its own. One that it is in the middle of was looked at
 * when it was begun, and cannot have been shared since. */
static bool writes_its_own(const struct schedule *c, const struct sequence *s)
{
    uint32_t begun = s->n_computed % GPU_KV_BLOCK && s->state == SEQUENCE_DECODE;
    for (uint32_t b = s->n_computed / GPU_KV_BLOCK + begun; b < s->n_blocks; b++)
        if (!kv_pool_writable(&c->pool, s->blocks[b]))
            return false;
    return true;
}

/* The tokens of its rows. */
static void copy_inputs(struct schedule *c, const struct sequence *s, uint32_t first_row)
{
    if (s->lazy && s->state == SEQUENCE_DECODE) {
        assert(s->rows == 1 && s->n_computed + 1 == s->n_tokens);
        c->tokens[first_row] = s->tail[s->n_computed % SEQUENCE_TAIL];
        return;
    }
    assert(!s->n_tail);
    memcpy(c->tokens + first_row, s->tokens + s->n_computed, s->rows * sizeof *c->tokens);
}

static void emit_rows(struct schedule *c, struct sequence *s)
{
    uint32_t first_row = c->step.n_rows;
    assert(s->n_computed + s->rows <= s->n_blocks * GPU_KV_BLOCK);
    assert(writes_its_own(c, s));
    c->seqs[c->step.n_seqs++] = (struct gpu_seq){.blocks = s->blocks,
                                                 .pos = s->n_computed,
                                                 .first_row = first_row,
                                                 .n_rows = s->rows,
                                                 .rope_len = declared_length(s)};
    copy_inputs(c, s, first_row);
    c->step.n_rows += s->rows;
    count_rows(c, s);
    if (sequence_scores(s))
        emit_scores(c, s, first_row);
    else if (s->op == LLM_OP_GENERATE)
        emit_draws(c, s, first_row);
}

static void emit_all(struct schedule *c, enum sequence_state state)
{
    for (uint32_t i = 0; i < c->n_running; i++)
        if (c->running[i]->state == state && c->running[i]->rows)
            emit_rows(c, c->running[i]);
}

void schedule_emit(struct schedule *c)
{
    bool prompts = c->shape.prefill_rows; /* of what was admitted, too */
    c->step.n_rows = c->step.n_seqs = c->step.n_outputs = 0;
    c->shape = (struct cost_shape){0};
    emit_all(c, SEQUENCE_DECODE);
    if (c->has_prompts || prompts)
        emit_all(c, SEQUENCE_PREFILL);
    c->decode_rows = c->shape.decode_rows;
    c->prefill_rows = c->shape.prefill_rows;
}

void schedule_form(struct schedule *c, uint64_t now_ns)
{
    c->now_ns = now_ns;
    c->budget = c->config->max_num_batched_tokens;
    c->n_copies = c->n_before = 0;
    c->n_decodes = 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        struct sequence *s = c->running[i];
        s->rows = s->n_forks = 0;
        c->n_decodes += s->state == SEQUENCE_DECODE;
    }
    c->has_prompts = c->n_decodes < c->n_running;
    schedule_plan(c);
    schedule_emit(c);
}

/* ---- after the step ---- */

static void adopt_prompt(struct schedule *c, const struct sequence *leader, struct sequence *s)
{
    uint32_t n = leader->n_computed, spare = s->spare;
    assert(s->n_blocks == 0 && s->n_tokens == leader->n_tokens && n == s->n_tokens);
    s->domain->blocks -= s->n_promised;
    s->n_promised = 0;
    schedule_share(c, s, leader, n - n % GPU_KV_BLOCK);
    if (spare != KV_NO_BLOCK)
        s->blocks[s->n_blocks++] = spare;
    s->spare = KV_NO_BLOCK;
    s->fork = false;
    s->leader = NULL;
    s->n_computed = n;
    s->state = SEQUENCE_DECODE;
}

static void count_again(struct schedule *c, struct sequence *s)
{
    uint32_t upto = s->n_computed + s->rows;
    if (s->n_computed < s->was_computed)
        STATS_ADD(c->stats, recomputed_tokens,
                  (upto < s->was_computed ? upto : s->was_computed) - s->n_computed);
    if (upto > s->was_computed)
        s->was_computed = upto;
}

/* The rows of a draft are paid for by its owner, right or wrong, and count as computed when their
 * tokens hold (schedule_confirm). */
static void advance(struct schedule *c, struct sequence *s)
{
    bool decodes = s->state == SEQUENCE_DECODE;
    if (!decodes)
        count_again(c, s);
    s->n_computed += decodes && s->rows ? 1 : s->rows;
    s->owner->served += s->rows;
    s->rows = 0;
    if (!decodes)
        schedule_publish(c, s);
    if (s->op == LLM_OP_GENERATE && s->n_computed == s->n_tokens)
        s->state = SEQUENCE_DECODE;
    if (s->op == LLM_OP_CHOOSE && s->n_computed >= s->n_prompt - 1)
        schedule_dismiss_followers(c, s);
    for (uint32_t k = 0, at = 0; k < s->n_forks; k++)
        adopt_prompt(c, s, next_fork(c, s, &at));
    s->n_forks = 0;
}

/* Streams that began together fill their blocks in the same step. Each is seen to in its turn: then
 * its tail goes into the history, and what is full becomes findable. */
bool schedule_has_turn(const struct schedule *c, const struct sequence *s)
{
    return s->state == SEQUENCE_DECODE && (s->admission + c->n_advances) % SEQUENCE_TAIL == 0;
}

/* What a crowd of streams takes in one step is made free in turns, too, up to the watermark. */
static void make_room(struct schedule *c)
{
    uint32_t ahead = c->n_running - c->n_running % SEQUENCE_TAIL;
    kv_pool_evict_ahead(&c->pool, ahead < c->watermark ? ahead : c->watermark,
                        c->n_running / SEQUENCE_TAIL + 1);
}

static void take_turns(struct schedule *c)
{
    for (uint32_t i = 0; i < c->n_running; i++) {
        struct sequence *s = c->running[i];
        if (!schedule_has_turn(c, s))
            continue;
        sequence_settle(s);
        schedule_publish(c, s);
    }
    make_room(c);
    c->n_advances++;
}

/* Appends to sessions bring no output: they end here. */
static void end_appends(struct schedule *c)
{
    for (uint32_t i = c->n_running; i-- > 0;) {
        struct sequence *s = c->running[i];
        bool appends = s->op != LLM_OP_GENERATE && !sequence_scores(s);
        if (!appends || s->n_computed < sequence_inputs(s))
            continue;
        schedule_remove(c, s);
        c->ended[c->n_ended++] = s;
    }
}

void schedule_advance(struct schedule *c, uint64_t step_ns)
{
    if (c->step.n_rows) {
        cost_observe(&c->cost, &c->shape, step_ns);
        speculate_observe(c, step_ns);
    }
    for (uint32_t i = 0; i < c->n_running; i++)
        advance(c, c->running[i]);
    take_turns(c);
    end_appends(c);
}
