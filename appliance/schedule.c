/* schedule.c - see schedule.h: who waits, who runs, who has to leave. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "schedule_parts.h"

enum { WATERMARK_SHARE = 64 }; /* one block in so many stays free at an admission */
enum { SLACK_STEPS = 2 };      /* an owner may be so many full steps ahead before it goes last */
enum { WORTH = 4 };            /* rows of history that one new token is worth */

/* What the first predictions stand on: a small model on a small machine. */
#define FIRST_STEP_NS 5e6
#define FIRST_ROW_NS  1e6

static bool allocate(struct schedule *c, uint32_t rows, uint32_t seqs)
{
    c->running = calloc(seqs, sizeof *c->running);
    c->turns = calloc(seqs, sizeof *c->turns);
    c->ended = calloc(seqs, sizeof *c->ended);
    c->seqs = calloc(seqs, sizeof *c->seqs);
    c->before_dst = calloc(seqs, sizeof *c->before_dst);
    c->before_src = calloc(seqs, sizeof *c->before_src);
    c->copy_dst = calloc(seqs, sizeof *c->copy_dst);
    c->copy_src = calloc(seqs, sizeof *c->copy_src);
    c->tokens = calloc(rows, sizeof *c->tokens);
    c->outputs = calloc(rows, sizeof *c->outputs);
    c->results = calloc(rows, sizeof *c->results);
    c->output_of = calloc(rows, sizeof *c->output_of);
    c->output_key = calloc(rows, sizeof *c->output_key);
    return c->running && c->turns && c->ended && c->seqs && c->before_dst && c->before_src &&
           c->copy_dst && c->copy_src && c->tokens && c->outputs && c->results && c->output_of &&
           c->output_key;
}

int schedule_create(struct schedule *c, const struct engine_config *config, struct stats *stats,
                    uint64_t *floor, struct fail *f)
{
    uint32_t rows = config->max_num_batched_tokens, seqs = config->max_num_seqs;
    *c = (struct schedule){.config = config, .stats = stats};
    list_init(&c->leases);
    queue_init(&c->queue, floor, (uint64_t)SLACK_STEPS * rows, config->policy == ENGINE_FIRST_COME);
    cost_init(&c->cost, FIRST_STEP_NS, FIRST_ROW_NS);
    int code = kv_pool_create(&c->pool, config->n_blocks, f);
    if (code < 0)
        return code;
    code = speculation_create(&c->speculation, config, f);
    if (code < 0) {
        schedule_destroy(c);
        return code;
    }
    c->watermark = (config->n_blocks + WATERMARK_SHARE - 1) / WATERMARK_SHARE;
    if (!allocate(c, rows, seqs)) {
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
    speculation_destroy(&c->speculation);
    free(c->running);
    free(c->turns);
    free(c->ended);
    free(c->seqs);
    free(c->before_dst);
    free(c->before_src);
    free(c->copy_dst);
    free(c->copy_src);
    free(c->tokens);
    free(c->outputs);
    free(c->results);
    free(c->output_of);
    free(c->output_key);
    *c = (struct schedule){0};
}

/* ---- the queue ---- */

void schedule_enqueue(struct schedule *c, struct sequence *s)
{
    assert(s->state == SEQUENCE_WAITING);
    queue_add(&c->queue, s);
    s->domain->prompt_tokens += s->n_brought;
}

static void leave_queue(struct schedule *c, struct sequence *s)
{
    queue_remove(&c->queue, s);
    s->domain->prompt_tokens -= s->n_brought;
}

void schedule_follow(struct schedule *c, struct sequence *leader, struct sequence *s)
{
    assert(s->state == SEQUENCE_WAITING && leader->order < s->order && !leader->n_computed);
    s->leader = leader;
    list_insert_before(&leader->followers, &s->queue);
    c->n_followers++;
}

/* A label's prompt is the leader's: whole blocks of it are shared. */
static void share_prompt(struct schedule *c, const struct sequence *leader, struct sequence *s)
{
    uint32_t n = s->n_prompt - 1 < leader->n_computed ? s->n_prompt - 1 : leader->n_computed;
    if (s->op == LLM_OP_CHOOSE)
        schedule_share(c, s, leader, n - n % GPU_KV_BLOCK);
}

void schedule_dismiss_followers(struct schedule *c, struct sequence *leader)
{
    while (!list_empty(&leader->followers)) {
        struct sequence *s = LIST_OF(leader->followers.next, struct sequence, queue);
        list_remove(&s->queue);
        s->leader = NULL;
        c->n_followers--;
        share_prompt(c, leader, s);
        schedule_enqueue(c, s);
    }
}

/* ---- the running set ---- */

/* What a stream had put off until its turn. */
static void catch_up(struct schedule *c, struct sequence *s)
{
    if (s->state != SEQUENCE_DECODE)
        return;
    sequence_settle(s);
    schedule_publish(c, s);
    if (s->n_computed > s->was_computed)
        s->was_computed = s->n_computed;
}

void schedule_leave_running(struct schedule *c, struct sequence *s)
{
    uint32_t i = 0;
    catch_up(c, s);
    while (i < c->n_running && c->running[i] != s)
        i++;
    assert(i < c->n_running);
    memmove(&c->running[i], &c->running[i + 1], (c->n_running - i - 1) * sizeof *c->running);
    c->n_running--;
    s->owner->n_running--;
    s->rows = 0;
    speculation_leave(&c->speculation, s);
}

static void note_admission(struct schedule *c, struct sequence *s)
{
    if (s->t_admit)
        return;
    s->t_admit = c->now_ns;
    s->n_cached = s->n_computed < s->n_prompt ? s->n_computed : s->n_prompt;
    STATS_OBSERVE(c->stats, queue, stats_elapsed(s->t_arrival, s->t_admit));
    if (c->config->prefix_cache && !(s->flags & LLM_SQE_NO_CACHE) && !s->fork) {
        STATS_ADD(c->stats, prefix_queries, s->n_prompt);
        STATS_ADD(c->stats, prefix_hits, s->n_cached);
    }
}

void schedule_enter_running(struct schedule *c, struct sequence *s)
{
    assert(s->state == SEQUENCE_WAITING && c->n_running < c->config->max_num_seqs);
    if (s->leader) {
        list_remove(&s->queue);
        c->n_followers--;
        s->leader = NULL;
    } else {
        queue_picked(&c->queue, s);
        leave_queue(c, s);
    }
    schedule_end_lease(c, s);
    c->running[c->n_running++] = s;
    s->owner->n_running++;
    s->state = SEQUENCE_PREFILL;
    s->admission = ++c->admissions;
    s->fresh = true;
    s->n_admitted = s->n_tokens;
    s->rows = 0;
    speculation_enter(&c->speculation, s);
    if (!s->fork) {
        schedule_adopt_cached(c, s);
        schedule_own_last_block(c, s);
    }
    note_admission(c, s);
}

void schedule_remove(struct schedule *c, struct sequence *s)
{
    if (sequence_running(s))
        schedule_leave_running(c, s);
    else if (s->state == SEQUENCE_WAITING && s->leader) {
        list_remove(&s->queue);
        c->n_followers--;
    } else if (s->state == SEQUENCE_WAITING)
        leave_queue(c, s);
    s->leader = NULL;
    s->state = SEQUENCE_ENDING;
    schedule_dismiss_followers(c, s);
    if (!s->session) {
        schedule_release_blocks(c, s);
        return;
    }
    schedule_cut(c, s, s->n_computed);
    schedule_keep_lease(c, s);
}

void schedule_preempt(struct schedule *c, struct sequence *s)
{
    assert(!s->fork && !s->n_forks); /* forks end with the step */
    c->budget += s->rows;
    schedule_leave_running(c, s);
    schedule_dismiss_followers(c, s);
    schedule_release_blocks(c, s);
    s->state = SEQUENCE_WAITING;
    s->preemptions++;
    schedule_enqueue(c, s);
    STATS_ADD(c->stats, preemptions, 1);
}

/* True if what v has brought since its admission is worth what it took to compute its history. Else
 * a pool under pressure would do little but compute again. */
static bool was_worth_it(const struct sequence *v)
{
    return (uint64_t)(v->n_tokens - v->n_admitted) * WORTH >= v->n_admitted;
}

/* True if the running v has to make room for the waiting s: it is of a lower class, or its owner has
 * more than half of what runs. A stream is no good place to make up for a little unfairness. */
static bool gives_way(const struct schedule *c, const struct sequence *v, const struct sequence *s)
{
    if (v->fork || v->n_forks || v->fresh || v->class < s->class)
        return false;
    if (v->class > s->class)
        return was_worth_it(v);
    return v->owner != s->owner && v->owner->n_running > s->owner->n_running + 1 &&
           v->owner->n_running > c->n_running / 2;
}

static bool worse_victim(const struct sequence *a, const struct sequence *b)
{
    if (a->class != b->class)
        return a->class > b->class;
    if (a->owner->n_running != b->owner->n_running)
        return a->owner->n_running > b->owner->n_running;
    return a->admission > b->admission;
}

struct sequence *schedule_victim(const struct schedule *c, const struct sequence *s)
{
    struct sequence *worst = NULL;
    if (c->config->policy == ENGINE_FIRST_COME)
        return NULL;
    for (uint32_t i = 0; i < c->n_running; i++) {
        struct sequence *v = c->running[i];
        if (gives_way(c, v, s) && (!worst || worse_victim(v, worst)))
            worst = v;
    }
    return worst;
}
