/* schedule.c - see schedule.h */
#include "schedule.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WATERMARK_SHARE = 64 }; /* one block in so many stays free at an admission */

int schedule_create(struct schedule *c, const struct engine_config *config, struct stats *stats,
                    struct fail *f)
{
    uint32_t rows = config->max_num_batched_tokens, seqs = config->max_num_seqs;
    *c = (struct schedule){.config = config, .stats = stats};
    list_init(&c->waiting);
    int code = kv_pool_create(&c->pool, config->n_blocks, f);
    if (code < 0)
        return code;
    c->watermark = (config->n_blocks + WATERMARK_SHARE - 1) / WATERMARK_SHARE;
    c->running = calloc(seqs, sizeof *c->running);
    c->turns = calloc(seqs, sizeof *c->turns);
    c->seqs = calloc(seqs, sizeof *c->seqs);
    c->copy_dst = calloc(seqs, sizeof *c->copy_dst);
    c->copy_src = calloc(seqs, sizeof *c->copy_src);
    c->tokens = calloc(rows, sizeof *c->tokens);
    c->outputs = calloc(rows, sizeof *c->outputs);
    c->results = calloc(rows, sizeof *c->results);
    c->output_of = calloc(rows, sizeof *c->output_of);
    if (!c->running || !c->turns || !c->seqs || !c->copy_dst || !c->copy_src || !c->tokens ||
        !c->outputs || !c->results || !c->output_of) {
        schedule_destroy(c);
        return fail(f, -ENOMEM, "no memory for steps of %u rows and %u sequences", rows, seqs);
    }
    c->step = (struct gpu_step){
        .tokens = c->tokens, .seqs = c->seqs, .outputs = c->outputs, .results = c->results};
    return 0;
}

void schedule_destroy(struct schedule *c)
{
    kv_pool_destroy(&c->pool);
    free(c->running);
    free(c->turns);
    free(c->seqs);
    free(c->copy_dst);
    free(c->copy_src);
    free(c->tokens);
    free(c->outputs);
    free(c->results);
    free(c->output_of);
    *c = (struct schedule){0};
}

/* ---- queue and running set ---- */

/* By order of arrival. What comes back is older than nearly all that waits: search from the front.
 */
static void queue_in_order(struct schedule *c, struct sequence *s)
{
    struct list *at = c->waiting.next;
    while (at != &c->waiting && LIST_OF(at, struct sequence, queue)->order < s->order)
        at = at->next;
    list_insert_before(at, &s->queue);
}

void schedule_enqueue(struct schedule *c, struct sequence *s)
{
    assert(s->state == SEQUENCE_WAITING);
    list_insert_before(&c->waiting, &s->queue);
    c->n_waiting++;
}

void schedule_follow(struct schedule *c, struct sequence *leader, struct sequence *s)
{
    assert(s->state == SEQUENCE_WAITING && leader->order < s->order && !leader->n_computed);
    s->leader = leader;
    list_insert_before(&leader->followers, &s->queue);
    c->n_waiting++;
}

/* Followers that get no fork compute the prompt themselves: the same bits, only later. */
static void dismiss_followers(struct schedule *c, struct sequence *leader)
{
    while (!list_empty(&leader->followers)) {
        struct sequence *s = LIST_OF(leader->followers.next, struct sequence, queue);
        list_remove(&s->queue);
        s->leader = NULL;
        queue_in_order(c, s);
    }
}

static void release_blocks(struct schedule *c, struct sequence *s)
{
    while (s->n_blocks)
        kv_pool_unref(&c->pool, s->blocks[--s->n_blocks]);
    if (s->spare != KV_NO_BLOCK)
        kv_pool_unref(&c->pool, s->spare);
    s->spare = KV_NO_BLOCK;
    s->fork = false;
    s->n_computed = 0;
}

static void leave_running(struct schedule *c, struct sequence *s)
{
    uint32_t i = 0;
    while (i < c->n_running && c->running[i] != s)
        i++;
    assert(i < c->n_running);
    memmove(&c->running[i], &c->running[i + 1], (c->n_running - i - 1) * sizeof *c->running);
    c->n_running--;
    release_blocks(c, s);
    s->rows = 0;
}

void schedule_remove(struct schedule *c, struct sequence *s)
{
    if (sequence_running(s))
        leave_running(c, s);
    else if (s->state == SEQUENCE_WAITING) {
        list_remove(&s->queue);
        c->n_waiting--;
    }
    dismiss_followers(c, s);
    s->leader = NULL;
    s->state = SEQUENCE_ENDING;
}

static void enter_running(struct schedule *c, struct sequence *s)
{
    assert(s->state == SEQUENCE_WAITING && c->n_running < c->config->max_num_seqs);
    list_remove(&s->queue);
    c->n_waiting--;
    c->running[c->n_running++] = s;
    s->state = SEQUENCE_PREFILL;
    s->leader = NULL;
    s->admission = ++c->admissions;
    s->rows = 0;
    if (s->t_admit)
        return;
    s->t_admit = c->now_ns;
    STATS_OBSERVE(c->stats, queue, stats_elapsed(s->t_arrival, s->t_admit));
}

/* ---- blocks ---- */

static void preempt(struct schedule *c, struct sequence *s)
{
    assert(!s->fork && !s->n_forks); /* forks are planned after preemptions */
    c->budget += s->rows;
    leave_running(c, s);
    s->state = SEQUENCE_WAITING;
    s->preemptions++;
    queue_in_order(c, s);
    c->n_waiting++;
    STATS_ADD(c->stats, preemptions, 1);
}

/* Extends the block table over `inputs` tokens; takes blocks from whoever was admitted last. False
 * if that was s itself. */
static bool cover_by_force(struct schedule *c, struct sequence *s, uint32_t inputs)
{
    while (s->n_blocks < kv_blocks_for(inputs)) {
        uint32_t block = kv_pool_alloc(&c->pool);
        if (block != KV_NO_BLOCK) {
            s->blocks[s->n_blocks++] = block;
            continue;
        }
        struct sequence *last = c->running[c->n_running - 1];
        assert(last != s || c->n_running > 1); /* alone, every admitted sequence fits */
        preempt(c, last);
        if (last == s)
            return false;
    }
    return true;
}

/* Extends the block table as far towards `inputs` tokens as blocks are free. Returns how many
 * tokens it covers then, at most `inputs`. */
static uint32_t cover_if_free(struct schedule *c, struct sequence *s, uint32_t inputs)
{
    while (s->n_blocks < kv_blocks_for(inputs)) {
        uint32_t block = kv_pool_alloc(&c->pool);
        if (block == KV_NO_BLOCK)
            return s->n_blocks * GPU_KV_BLOCK;
        s->blocks[s->n_blocks++] = block;
    }
    return inputs;
}

/* Blocks for the known history and one token more, if there will be one. */
static uint32_t blocks_wanted(const struct sequence *s)
{
    uint32_t inputs = sequence_inputs(s) + 1, all = sequence_inputs_in_all(s);
    return kv_blocks_for(inputs < all ? inputs : all);
}

/* Blocks that running prefills have still to take. */
static uint32_t blocks_promised(const struct schedule *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        const struct sequence *s = c->running[i];
        uint32_t wanted = blocks_wanted(s);
        if (s->fork)
            n += s->spare == KV_NO_BLOCK;
        else if (s->state == SEQUENCE_PREFILL && wanted > s->n_blocks)
            n += wanted - s->n_blocks;
    }
    return n;
}

static bool blocks_allow(const struct schedule *c, uint32_t wanted)
{
    return c->pool.n_free >= (uint64_t)wanted + blocks_promised(c) + c->watermark;
}

/* ---- planning ---- */

static bool prompts_want_rows(const struct schedule *c)
{
    for (uint32_t i = 0; i < c->n_running; i++)
        if (c->running[i]->state == SEQUENCE_PREFILL)
            return true;
    return !list_empty(&c->waiting) && c->n_running < c->config->max_num_seqs &&
           blocks_allow(c, blocks_wanted(LIST_OF(c->waiting.next, struct sequence, queue)));
}

/* Rows that decodes may take: all, but where they alone would fill every step, a quarter of every
 * second one is for prompts. */
static uint32_t decode_share(struct schedule *c)
{
    uint32_t n_decodes = 0, quarter = (c->budget + 3) / 4;
    for (uint32_t i = 0; i < c->n_running; i++)
        n_decodes += c->running[i]->state == SEQUENCE_DECODE;
    if (n_decodes < c->budget || !prompts_want_rows(c))
        return c->budget;
    c->prompts_turn = !c->prompts_turn;
    return c->prompts_turn ? c->budget - quarter : c->budget;
}

/* Decodes into c->turns: in order of admission, or, where they do not all fit, from the one behind
 * the last that was served. */
static uint32_t decode_turns(struct schedule *c, uint32_t share)
{
    uint32_t n = 0, start = 0;
    for (uint32_t i = 0; i < c->n_running; i++)
        n += c->running[i]->state == SEQUENCE_DECODE;
    if (n > share)
        while (start < c->n_running && c->running[start]->admission <= c->served)
            start++;
    n = 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        struct sequence *s = c->running[(start + i) % c->n_running];
        if (s->state == SEQUENCE_DECODE)
            c->turns[n++] = s;
    }
    return n;
}

static void plan_decodes(struct schedule *c, uint32_t share)
{
    uint32_t n = decode_turns(c, share);
    for (uint32_t i = 0; i < n && share; i++) {
        struct sequence *s = c->turns[i];
        if (s->state != SEQUENCE_DECODE || !cover_by_force(c, s, s->n_tokens))
            continue;
        s->rows = 1;
        c->budget--;
        share--;
        c->served = s->admission;
    }
}

/* A choice shares the leader's full blocks; the partial last one it will own is taken now, so that
 * after the step nothing can be missing. */
static void fork_choice(struct schedule *c, struct sequence *leader, struct sequence *s)
{
    enter_running(c, s);
    s->fork = true;
    c->budget--;
    leader->n_forks++;
    if (leader->n_prompt % GPU_KV_BLOCK == 0)
        return;
    s->spare = kv_pool_alloc(&c->pool);
    assert(s->spare != KV_NO_BLOCK);
    c->copy_dst[c->n_copies] = s->spare;
    c->copy_src[c->n_copies++] = leader->blocks[leader->n_prompt / GPU_KV_BLOCK];
}

/* The leader's prompt is computed in this step: its last row draws the first tokens of all. */
static void plan_forks(struct schedule *c, struct sequence *leader)
{
    leader->forks_from = c->n_running;
    leader->n_forks = 0;
    while (!list_empty(&leader->followers) && c->budget && c->n_running < c->config->max_num_seqs &&
           blocks_allow(c, 1))
        fork_choice(c, leader, LIST_OF(leader->followers.next, struct sequence, queue));
    dismiss_followers(c, leader);
}

static void plan_chunk(struct schedule *c, struct sequence *s)
{
    uint32_t inputs = sequence_inputs(s), rows = inputs - s->n_computed;
    if (c->config->prefill_chunk && rows > c->config->prefill_chunk)
        rows = c->config->prefill_chunk;
    if (rows > c->budget)
        rows = c->budget;
    uint32_t upto = s->n_computed + rows;
    if (s == c->running[0])
        cover_by_force(c, s, upto);
    else
        upto = cover_if_free(c, s, upto);
    s->rows = upto - s->n_computed;
    c->budget -= s->rows;
    if (upto == inputs && !list_empty(&s->followers))
        plan_forks(c, s);
}

static void plan_prefills(struct schedule *c)
{
    for (uint32_t i = 0; i < c->n_running && c->budget; i++)
        if (c->running[i]->state == SEQUENCE_PREFILL && !c->running[i]->fork)
            plan_chunk(c, c->running[i]);
}

/* Strictly in order: what does not fit keeps all behind it waiting. A sequence that was preempted
 * in this step is not back in it: its blocks were taken one by one until one was missing. */
static void plan_admissions(struct schedule *c)
{
    while (!list_empty(&c->waiting) && c->budget && c->n_running < c->config->max_num_seqs) {
        struct sequence *s = LIST_OF(c->waiting.next, struct sequence, queue);
        uint32_t wanted = blocks_wanted(s);
        if (c->n_running && !blocks_allow(c, wanted))
            return;
        assert(c->pool.n_free >= wanted); /* alone, every sequence fits */
        enter_running(c, s);
        plan_chunk(c, s);
    }
}

/* ---- the step as plain data ---- */

static void emit_output(struct schedule *c, struct sequence *s, uint32_t row, uint32_t position,
                        int32_t target)
{
    uint32_t i = c->step.n_outputs++;
    assert(i < c->config->max_num_batched_tokens);
    c->outputs[i] = (struct gpu_output){
        .row = row, .target = target, .position = position, .sampling = s->sampling};
    c->output_of[i] = s;
}

/* Every row of a scored prompt says something of the token behind it, unless that was said before a
 * preemption. */
static void emit_scores(struct schedule *c, struct sequence *s, uint32_t first_row)
{
    for (uint32_t i = 0; i < s->rows; i++) {
        uint32_t position = s->n_computed + i + 1;
        if (position >= s->ready)
            emit_output(c, s, first_row + i, position, s->tokens[position]);
    }
}

static void emit_draws(struct schedule *c, struct sequence *s, uint32_t last_row)
{
    if (s->n_computed + s->rows < s->n_tokens)
        return;
    emit_output(c, s, last_row, s->n_tokens, -1);
    for (uint32_t i = 0; i < s->n_forks; i++)
        emit_output(c, c->running[s->forks_from + i], last_row, s->n_tokens, -1);
}

static void emit_rows(struct schedule *c, struct sequence *s)
{
    uint32_t first_row = c->step.n_rows;
    assert(s->n_computed + s->rows <= s->n_blocks * GPU_KV_BLOCK);
    for (uint32_t b = s->n_computed / GPU_KV_BLOCK; b < s->n_blocks; b++)
        assert(kv_pool_writable(&c->pool, s->blocks[b]));
    c->seqs[c->step.n_seqs++] = (struct gpu_seq){.blocks = s->blocks,
                                                 .pos = s->n_computed,
                                                 .first_row = first_row,
                                                 .n_rows = s->rows,
                                                 .rope_len = s->n_prompt + s->max_tokens};
    memcpy(c->tokens + first_row, s->tokens + s->n_computed, s->rows * sizeof *c->tokens);
    c->step.n_rows += s->rows;
    *(s->state == SEQUENCE_DECODE ? &c->decode_rows : &c->prefill_rows) += s->rows;
    if (s->op == LLM_OP_SCORE)
        emit_scores(c, s, first_row);
    else
        emit_draws(c, s, c->step.n_rows - 1);
}

static void emit_all(struct schedule *c, enum sequence_state state)
{
    for (uint32_t i = 0; i < c->n_running; i++)
        if (c->running[i]->state == state && c->running[i]->rows)
            emit_rows(c, c->running[i]);
}

void schedule_form(struct schedule *c, uint64_t now_ns)
{
    c->now_ns = now_ns;
    c->budget = c->config->max_num_batched_tokens;
    c->n_copies = c->decode_rows = c->prefill_rows = 0;
    c->step.n_rows = c->step.n_seqs = c->step.n_outputs = 0;
    for (uint32_t i = 0; i < c->n_running; i++)
        c->running[i]->rows = c->running[i]->n_forks = 0;
    plan_decodes(c, decode_share(c));
    plan_prefills(c);
    plan_admissions(c);
    if (c->budget == c->config->max_num_batched_tokens) /* the prompts found no blocks */
        plan_decodes(c, c->budget);
    emit_all(c, SEQUENCE_DECODE);
    emit_all(c, SEQUENCE_PREFILL);
    assert(c->step.n_rows > 0 || (!c->n_running && !c->n_waiting));
}

/* ---- after the step ---- */

static void adopt_prompt(struct schedule *c, const struct sequence *leader, struct sequence *s)
{
    uint32_t full = leader->n_prompt / GPU_KV_BLOCK;
    assert(s->n_blocks == 0 && s->n_prompt == leader->n_prompt);
    for (; s->n_blocks < full; s->n_blocks++) {
        kv_pool_ref(&c->pool, leader->blocks[s->n_blocks]);
        s->blocks[s->n_blocks] = leader->blocks[s->n_blocks];
    }
    if (s->spare != KV_NO_BLOCK)
        s->blocks[s->n_blocks++] = s->spare;
    s->spare = KV_NO_BLOCK;
    s->fork = false;
    s->n_computed = s->n_prompt;
    s->state = SEQUENCE_DECODE;
}

void schedule_advance(struct schedule *c)
{
    for (uint32_t i = 0; i < c->n_running; i++) {
        struct sequence *s = c->running[i];
        s->n_computed += s->rows;
        s->rows = 0;
        if (s->op == LLM_OP_GENERATE && s->n_computed == s->n_tokens)
            s->state = SEQUENCE_DECODE;
        for (uint32_t k = 0; k < s->n_forks; k++)
            adopt_prompt(c, s, c->running[s->forks_from + k]);
        s->n_forks = 0;
    }
}
