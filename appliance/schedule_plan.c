/* schedule_plan.c - see schedule.h: how many rows each sequence gets in the step. */
#include <assert.h>

#include "schedule_parts.h"

enum {
    STARVED_STEPS = 4, /* a promise may leave prompts nothing for so many steps */
    PROMISE_PERCENT =
        90,    /* of the promised gap is planned; the rest is for what cannot be foreseen */
    CROWD = 4, /* an owner that runs more than so many times as much as another can wait a step */
    BRIEF_PERCENT = 150, /* of what a prompt takes alone: the step that brings its first token */
    LIMIT_ROWS = 4 * GPU_KV_BLOCK, /* prompts get so many whatever a step shall take */
    LIMIT_REST = 2 * GPU_KV_BLOCK, /* and a prompt its last ones, rather than a step of their own */
    POSTPONED = 3                  /* the oldest running prompt waits so many further steps */
};

/* ---- decodes ---- */

static bool prompts_want_rows(struct schedule *c)
{
    return c->has_prompts ||
           (c->queue.n && c->n_running < c->config->max_num_seqs && schedule_blocks_allow(c, 1));
}

/* Rows that decodes may take: all, but where they alone would fill every step, a quarter of every
 * second one is for prompts. */
static uint32_t decode_share(struct schedule *c)
{
    uint32_t quarter = (c->budget + 3) / 4;
    if (c->n_decodes < c->budget || !prompts_want_rows(c))
        return c->budget;
    c->prompts_turn = !c->prompts_turn;
    return c->prompts_turn ? c->budget - quarter : c->budget;
}

/* Decodes into c->turns: in order of admission, or, where they do not all fit, from the one behind
 * the last that was served. */
static uint32_t decode_turns(struct schedule *c, uint32_t share)
{
    uint32_t n = 0, start = 0;
    if (c->n_decodes > share)
        while (start < c->n_running && c->running[start]->admission <= c->served)
            start++;
    for (uint32_t i = 0; i < c->n_running; i++) {
        start = start < c->n_running ? start : 0;
        struct sequence *s = c->running[start++];
        if (s->state == SEQUENCE_DECODE)
            c->turns[n++] = s;
    }
    return n;
}

static uint64_t promise_of(const struct schedule *c, const struct sequence *s)
{
    uint64_t us = s->max_itl_us ? s->max_itl_us : c->config->max_itl_us;
    return us ? us * 10 * PROMISE_PERCENT : UINT64_MAX;
}

static void plan_decodes(struct schedule *c, uint32_t share)
{
    uint32_t n = decode_turns(c, share);
    for (uint32_t i = 0; i < n && share; i++) {
        struct sequence *s = c->turns[i];
        if (s->state != SEQUENCE_DECODE || !schedule_cover_by_force(c, s, s->n_tokens))
            continue;
        uint64_t promise_ns = promise_of(c, s);
        if (promise_ns < c->promise_ns)
            c->promise_ns = promise_ns;
        s->rows = 1;
        c->budget--;
        share--;
        c->served = s->admission;
    }
}

/* ---- prompts ---- */

/* A choice shares the leader's full blocks; the partial last one it will own is taken now, so that
 * after the step nothing can be missing. */
static void fork_choice(struct schedule *c, struct sequence *leader, struct sequence *s)
{
    s->fork = true;
    schedule_enter_running(c, s);
    s->leader = leader;
    s->n_cached = leader->n_cached;
    s->n_promised = leader->n_tokens / GPU_KV_BLOCK;
    s->domain->blocks += s->n_promised;
    c->budget--;
    leader->n_forks++;
    if (leader->n_tokens % GPU_KV_BLOCK) {
        s->spare = kv_pool_alloc(&c->pool);
        assert(s->spare != KV_NO_BLOCK);
        s->domain->blocks++;
        c->copy_dst[c->n_copies] = s->spare;
        c->copy_src[c->n_copies++] = leader->blocks[leader->n_tokens / GPU_KV_BLOCK];
    }
    schedule_keep_quota(c, s->domain);
}

/* The leader's prompt is computed in this step: its last row draws the first tokens of all. */
static void plan_forks(struct schedule *c, struct sequence *leader)
{
    leader->n_forks = 0;
    while (!list_empty(&leader->followers) && c->budget && c->n_running < c->config->max_num_seqs) {
        struct sequence *s = LIST_OF(leader->followers.next, struct sequence, queue);
        if (!schedule_quota_allows(c, s) || !schedule_blocks_allow(c, 1))
            break;
        fork_choice(c, leader, s);
    }
    schedule_dismiss_followers(c, leader);
}

static void add_prefill(struct cost_shape *shape, uint32_t pos, uint32_t rows)
{
    shape->prefill_rows += rows;
    shape->prefill_context += (uint64_t)rows * pos + (uint64_t)rows * (rows + 1) / 2;
}

/* An owner that runs much more than the one whose first token the step brings. */
static bool in_crowd(const struct schedule *c, const struct sequence *s)
{
    return s->owner->n_running > CROWD * c->brief_running;
}

/* What the step may take, for a chunk of s. */
static uint64_t time_for(const struct schedule *c, const struct sequence *s)
{
    return in_crowd(c, s) && c->brief_ns < c->promise_ns ? c->brief_ns : c->promise_ns;
}

/* What the decodes leave of a step: at least as much as they take. */
static uint64_t limit_of(const struct schedule *c, const struct cost_shape *decodes)
{
    uint64_t limit_ns = (uint64_t)c->config->max_step_us * 1000;
    if (!limit_ns || c->config->policy == ENGINE_FIRST_COME)
        return UINT64_MAX;
    uint64_t twice_ns = decodes->decode_rows ? 2 * cost_predict(&c->cost, decodes) : 0;
    return twice_ns > limit_ns ? twice_ns : limit_ns;
}

/* Of `rows` at that position those that keep the step within its length, or that it has to bear. */
static uint32_t rows_within_limit(const struct schedule *c, const struct cost_shape *shape,
                                  uint32_t pos, uint32_t rows, uint64_t limit_ns)
{
    uint32_t least = shape->prefill_rows < LIMIT_ROWS ? LIMIT_ROWS - shape->prefill_rows : 0;
    if (limit_ns == UINT64_MAX || rows <= least)
        return rows;
    uint32_t fit = cost_rows_within(&c->cost, shape, pos, rows, limit_ns);
    if (fit && rows - fit <= LIMIT_REST)
        return rows;
    return fit > least ? fit : least;
}

/* Rows that a prompt at that position may have of the step. */
static uint32_t rows_allowed(const struct schedule *c, const struct sequence *s)
{
    uint32_t rows = sequence_inputs(s) - s->n_computed, chunk = c->config->prefill_chunk;
    uint64_t ns = time_for(c, s);
    if (chunk && rows > chunk)
        rows = chunk;
    if (rows > c->budget)
        rows = c->budget;
    rows = rows_within_limit(c, &c->shape, s->n_computed, rows, c->limit_ns);
    if (ns == UINT64_MAX)
        return rows;
    uint32_t fit = cost_rows_within(&c->cost, &c->shape, s->n_computed, rows, ns);
    if (fit || c->starved < STARVED_STEPS || c->shape.prefill_rows)
        return fit;
    return rows < GPU_KV_BLOCK ? rows : (uint32_t)GPU_KV_BLOCK;
}

/* A step that brings the first token of s shall not take much more than the time that s alone would
 * have taken for the sake of owners that run much more: they had their turn and will have it
 * again. */
static void keep_brief(struct schedule *c, const struct sequence *s)
{
    struct cost_shape alone = {0};
    if (s->op != LLM_OP_GENERATE || s->t_first || c->config->policy == ENGINE_FIRST_COME)
        return;
    add_prefill(&alone, s->n_tokens - s->rows, s->rows);
    uint64_t ns = cost_predict(&c->cost, &alone) / 100 * BRIEF_PERCENT;
    if (ns < c->brief_ns)
        c->brief_ns = ns;
    if (s->owner->n_running < c->brief_running)
        c->brief_running = s->owner->n_running;
}

static void plan_chunk(struct schedule *c, struct sequence *s, uint32_t most)
{
    uint32_t inputs = sequence_inputs(s), rows = rows_allowed(c, s);
    uint32_t upto = s->n_computed + (rows < most ? rows : most);
    if (s == c->running[0]) {
        if (!schedule_cover_by_force(c, s, upto) && s->n_blocks * GPU_KV_BLOCK < upto)
            upto = s->n_blocks * GPU_KV_BLOCK;
    } else
        upto = schedule_cover_if_free(c, s, upto);
    if (upto <= s->n_computed)
        return;
    s->rows = upto - s->n_computed;
    c->budget -= s->rows;
    add_prefill(&c->shape, s->n_computed, s->rows);
    if (upto == inputs)
        keep_brief(c, s);
    if (upto == inputs && s->op == LLM_OP_GENERATE && !list_empty(&s->followers))
        plan_forks(c, s);
}

/* Among the n in c->turns. */
static uint32_t oldest_of(const struct schedule *c, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (c->turns[i]->admission < c->turns[at]->admission)
            at = i;
    return at;
}

static void move_to_front(struct schedule *c, uint32_t at)
{
    struct sequence *oldest = c->turns[at];
    for (; at; at--)
        c->turns[at] = c->turns[at - 1];
    c->turns[0] = oldest;
}

/* Running prompts into c->turns, the most urgent first. */
static uint32_t sort_prefills(struct schedule *c, const struct queue_least *least)
{
    uint32_t n = 0;
    if (!c->has_prompts)
        return 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        struct sequence *s = c->running[i];
        if (s->state != SEQUENCE_PREFILL || s->fork)
            continue;
        uint32_t at = n++;
        for (; at && queue_before(&c->queue, s, c->turns[at - 1], least); at--)
            c->turns[at] = c->turns[at - 1];
        c->turns[at] = s;
    }
    return n;
}

static bool quota_allows(void *context, const struct sequence *s)
{
    return schedule_quota_allows(context, s);
}

/* Leases may be dropped for it, and with them what it would have shared: then it looks again. */
static bool blocks_are_there(struct schedule *c, const struct sequence *s)
{
    uint32_t wanted = schedule_blocks_wanted(s), shared, has;
    do {
        shared = schedule_blocks_shared(c, s);
        has = s->n_blocks + shared;
        if (!schedule_blocks_allow(c, wanted > has ? wanted - has : 0))
            return false;
    } while (shared && schedule_blocks_shared(c, s) != shared);
    return true;
}

/* A place and blocks for a waiting sequence, at the cost of what is less urgent. What it has of its
 * own is not taken for it. */
static bool make_room(struct schedule *c, struct sequence *s)
{
    schedule_end_lease(c, s);
    for (;;) {
        bool allowed = !c->n_running || blocks_are_there(c, s);
        if (allowed && c->n_running < c->config->max_num_seqs)
            return true;
        struct sequence *v = schedule_victim(c, s);
        if (!v) {
            schedule_keep_lease(c, s);
            return false;
        }
        schedule_preempt(c, v);
    }
}

/* In the queue's order, without looking behind one that does not fit: small ones would take its
 * blocks for ever. */
static struct sequence *next_waiting(struct schedule *c)
{
    bool same = c->next_changes == c->queue.changes && !c->config->quota.kv_blocks;
    if (!same)
        c->next = queue_next(&c->queue, quota_allows, c);
    c->next_changes = c->queue.changes;
    return c->next && rows_allowed(c, c->next) ? c->next : NULL;
}

/* Among those who wait or have the first of the running prompts: somebody who runs much less than the
 * owner of s. */
static bool somebody_modest(const struct schedule *c, const struct sequence *s)
{
    uint32_t least = c->turns[0]->owner->n_running;
    LIST_EACH (at, &c->queue.hungry) {
        uint32_t n = LIST_OF(at, struct sequence_owner, hungry)->n_running + 1;
        least = n < least ? n : least;
    }
    return s->owner->n_running > CROWD * least;
}

/* Of the running prompts the one that was admitted first goes first from time to time: what is more
 * urgent would else take all rows for ever. A crowd's lets somebody modest pass, a few times. */
static bool oldest_goes_first(struct schedule *c, uint32_t n)
{
    uint32_t at = oldest_of(c, n);
    if (c->config->policy != ENGINE_FAIR || ++c->prompt_steps < QUEUE_AGEING)
        return false;
    if (c->prompt_steps < QUEUE_AGEING + POSTPONED && somebody_modest(c, c->turns[at]))
        return false;
    c->prompt_steps = 0;
    move_to_front(c, at);
    return true;
}

/* True if the running r goes before the waiting w. */
static bool runs_first(const struct schedule *c, const struct sequence *r, const struct sequence *w,
                       const struct queue_least *least)
{
    return !w || (!queue_aged(&c->queue, w) && !queue_before(&c->queue, w, r, least));
}

/* True if w is admitted for its age alone: others, or the running r, are more urgent. */
static bool only_aged(struct schedule *c, const struct sequence *w, const struct sequence *r,
                      const struct queue_least *least)
{
    if (c->queue.first_come || !queue_aged(&c->queue, w))
        return false;
    return (r && queue_before(&c->queue, r, w, least)) ||
           queue_first(&c->queue, quota_allows, c) != w;
}

/* Who is admitted for its age alone has a place then, and a block's rows at once. */
static void admit(struct schedule *c, struct sequence *w, bool aged)
{
    schedule_enter_running(c, w);
    plan_chunk(c, w, aged ? (uint32_t)GPU_KV_BLOCK : UINT32_MAX);
}

/* Each time the most urgent of what runs and what waits. A sequence that was preempted in this step
 * for its blocks is not back in it: they were taken one by one until one was missing. */
static void plan_prompts(struct schedule *c)
{
    struct queue_least least = queue_least_served(&c->queue);
    uint32_t n = sort_prefills(c, &least), i = 0;
    bool closed = false;                    /* nobody is admitted any more */
    c->next_changes = c->queue.changes - 1; /* owners were served since the last step */
    if (n && oldest_goes_first(c, n))
        plan_chunk(c, c->turns[i++], UINT32_MAX);
    while (c->budget) {
        while (i < n && (c->turns[i]->state != SEQUENCE_PREFILL || c->turns[i]->rows))
            i++; /* was preempted meanwhile, maybe admitted again */
        struct sequence *w = closed ? NULL : next_waiting(c);
        struct sequence *r = i < n ? c->turns[i] : NULL;
        if (!w && !r)
            return;
        if (r && runs_first(c, r, w, &least)) {
            plan_chunk(c, r, UINT32_MAX);
            i++;
        } else if (make_room(c, w))
            admit(c, w, only_aged(c, w, r, &least));
        else
            closed = true;
    }
}

/* ---- sparing ---- */

static bool can_wait(const struct schedule *c, const struct sequence *s)
{
    return s->state == SEQUENCE_DECODE && s->rows && in_crowd(c, s) &&
           promise_of(c, s) == UINT64_MAX;
}

static void spare(struct schedule *c, struct sequence *s)
{
    c->shape.decode_rows -= s->rows;
    c->shape.decode_context -= s->n_tokens;
    c->budget += s->rows;
    s->rows = 0;
    c->n_spared++;
    c->spared = s->admission;
}

static uint32_t count_waiters(const struct schedule *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_running; i++)
        n += can_wait(c, c->running[i]);
    return n;
}

/* Streams of the crowd wait a step, those first that did not last time, until the step is as brief
 * as it should be; a quarter of them does not. */
static void spare_decodes(struct schedule *c)
{
    uint32_t start = 0;
    c->n_spared = 0;
    if (c->brief_ns == UINT64_MAX || cost_predict(&c->cost, &c->shape) <= c->brief_ns)
        return;
    while (start < c->n_running && c->running[start]->admission <= c->spared)
        start++;
    uint32_t most = count_waiters(c) * 3 / 4;
    for (uint32_t i = 0; i < c->n_running && c->n_spared < most; i++) {
        struct sequence *s = c->running[(start + i) % c->n_running];
        if (can_wait(c, s))
            spare(c, s);
        if (cost_predict(&c->cost, &c->shape) <= c->brief_ns)
            return;
    }
}

static void count_decode_rows(struct schedule *c)
{
    for (uint32_t i = 0; i < c->n_running; i++)
        if (c->running[i]->rows) {
            c->shape.decode_rows++;
            c->shape.decode_context += c->running[i]->n_tokens;
        }
}

void schedule_plan(struct schedule *c)
{
    c->shape = (struct cost_shape){0};
    c->promise_ns = c->brief_ns = UINT64_MAX;
    c->brief_running = UINT32_MAX / CROWD;
    plan_decodes(c, decode_share(c));
    count_decode_rows(c);
    c->limit_ns = limit_of(c, &c->shape);
    bool wanted = c->queue.n || c->has_prompts;
    plan_prompts(c);
    spare_decodes(c);
    c->starved = wanted && !c->shape.prefill_rows ? c->starved + 1 : 0;
    if (c->budget == c->config->max_num_batched_tokens) /* the prompts found no blocks */
        plan_decodes(c, c->budget);
    speculate_plan(c);
}

/* ---- what to expect ---- */

/* True if s comes in the place of r: an entry on a session that is in use interrupts that. */
static bool takes_over(const struct sequence *s, const struct sequence *r)
{
    return s->session && s->session == r->session;
}

/* Prompt rows that go before s: what runs and is not behind it, what waits and is before it. */
static uint64_t rows_before(const struct schedule *c, const struct sequence *s)
{
    uint64_t rows = 0;
    struct queue_least least = queue_least_served(&c->queue);
    if (s->owner->served < least.served[s->class])
        least.served[s->class] = s->owner->served;
    for (uint32_t i = 0; i < c->n_running; i++) {
        const struct sequence *r = c->running[i];
        if (r->state == SEQUENCE_PREFILL && !takes_over(s, r) &&
            !queue_before(&c->queue, s, r, &least))
            rows += sequence_inputs(r) - r->n_computed;
    }
    return rows + queue_rows_before(&c->queue, s, &least);
}

/* Tokens that the running sequence which ends first has still to draw; 0 where a place is free or
 * somebody gives way. */
static uint32_t steps_to_a_place(const struct schedule *c, const struct sequence *s)
{
    uint32_t least = UINT32_MAX;
    if (c->n_running < c->config->max_num_seqs || schedule_victim(c, s))
        return 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        const struct sequence *r = c->running[i];
        if (takes_over(s, r))
            return 0;
        uint32_t left = r->op == LLM_OP_GENERATE ? r->n_prompt + r->max_tokens - r->n_tokens : 1;
        if (left < least)
            least = left;
    }
    return least;
}

static uint32_t rows_of_a_step(const struct schedule *c, const struct cost_shape *decodes)
{
    uint32_t rows = c->config->max_num_batched_tokens;
    rows = rows > decodes->decode_rows ? rows - decodes->decode_rows : 1;
    rows = rows_within_limit(c, decodes, 0, rows, limit_of(c, decodes));
    if (!decodes->decode_rows || !c->config->max_itl_us)
        return rows;
    uint64_t promise_ns = (uint64_t)c->config->max_itl_us * 10 * PROMISE_PERCENT;
    uint32_t fit = cost_rows_within(&c->cost, decodes, 0, rows, promise_ns);
    return fit ? fit : (uint32_t)GPU_KV_BLOCK / STARVED_STEPS;
}

/* The step that brings the first token is filled up with rows of what comes behind. */
static uint64_t rows_up_to_step_end(const struct schedule *c, uint64_t rows, uint64_t before,
                                    uint32_t rows_a_step)
{
    uint64_t backlog = c->queue.tokens, rest = (rows_a_step - rows % rows_a_step) % rows_a_step;
    for (uint32_t i = 0; i < c->n_running; i++)
        if (c->running[i]->state == SEQUENCE_PREFILL)
            backlog += sequence_inputs(c->running[i]) - c->running[i]->n_computed;
    uint64_t behind = backlog > before ? backlog - before : 0;
    return rows + (behind < rest ? behind : rest);
}

uint64_t schedule_estimate(const struct schedule *c, const struct sequence *s)
{
    enum { ENOUGH_STEPS = 32, DOUBT = 4 }; /* a young model is trusted with a fraction only */
    if (!c->cost.observed)
        return 0;
    struct cost_shape decodes = {0};
    for (uint32_t i = 0; i < c->n_running; i++)
        if (c->running[i]->state == SEQUENCE_DECODE && !takes_over(s, c->running[i])) {
            decodes.decode_rows++;
            decodes.decode_context += c->running[i]->n_tokens;
        }
    uint32_t rows_a_step = rows_of_a_step(c, &decodes);
    uint64_t before = rows_before(c, s);
    uint64_t rows = before + sequence_inputs(s) - schedule_cached(c, s);
    rows = rows_up_to_step_end(c, rows, before, rows_a_step);
    uint64_t wait_ns = (uint64_t)steps_to_a_place(c, s) * cost_predict(&c->cost, &decodes);
    wait_ns += cost_prefill_ns(&c->cost, rows, rows_a_step, &decodes);
    return c->cost.observed < ENOUGH_STEPS ? wait_ns / DOUBT : wait_ns;
}
