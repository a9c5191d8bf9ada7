/* speculate.c - see speculate.h */
#include "speculate.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "schedule_parts.h"

enum {
    LEARNED_A_STEP = 512, /* tokens of histories that are read into indices, of all sequences */
    ROWS_AHEAD = 4,       /* rows that do not pay by themselves and are looked beyond */
    TRY_EVERY = 8,        /* steps: one of them may have a number of rows that was not seen */
    GAIN_PERCENT = 5, /* that a draft has to promise, and half of what steps deviate on average */
    HOPE = 8, /* what was not seen is tried as if rows cost so much less than they do on average */
    BESIDE_PERCENT = 25 /* what a step beside other owners' streams may take more */
};

/* ---- life ---- */

static int check(const struct engine_speculation *c, struct fail *f)
{
    if (c->max_tokens > GPU_KV_BLOCK)
        return fail(f, -EINVAL, "a draft of %u tokens is too long: %d at most", c->max_tokens,
                    GPU_KV_BLOCK);
    if (!c->min_match || c->min_match > c->max_match || c->max_match > NGRAM_MAX)
        return fail(f, -EINVAL,
                    "prompt lookup from %u to %u tokens: it goes from 1 on, up to %d, the lower "
                    "number first",
                    c->min_match, c->max_match, NGRAM_MAX);
    return 0;
}

/* One mapping for all: address space now, pages where an index is used. */
static int map_indices(struct speculation *x, uint32_t max_len, struct fail *f)
{
    uint64_t each = ngram_bytes(max_len);
    if (__builtin_mul_overflow(each, x->n, &x->bytes) || x->bytes > SIZE_MAX / 2)
        return fail(f, -EINVAL,
                    "%u indices of %u tokens are more than the address space holds: lower one",
                    x->n, max_len);
    void *at = mmap(NULL, x->bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return fail(
            f, -ENOMEM,
            "cannot map %llu bytes for the prompt lookup of %u sequences of %u tokens: lower one, "
            "or allow no drafts (--speculative-tokens 0)",
            (unsigned long long)x->bytes, x->n, max_len);
    x->memory = at;
    madvise(at, x->bytes, MADV_NOHUGEPAGE); /* a short history shall not take 2 MiB; may fail */
    for (uint32_t i = 0; i < x->n; i++) {
        ngram_bind(&x->indices[i], (uint8_t *)at + each * i, max_len);
        x->free_stack[i] = x->n - 1 - i;
    }
    return 0;
}

int speculation_create(struct speculation *x, const struct engine_config *config, struct fail *f)
{
    *x = (struct speculation){.config = config->speculation};
    if (!x->config.max_tokens)
        return 0;
    int code = check(&x->config, f);
    if (code)
        return code;
    x->n = x->n_free = config->max_num_seqs;
    x->indices = calloc(x->n, sizeof *x->indices);
    x->free_stack = calloc(x->n, sizeof *x->free_stack);
    x->times = calloc(1, sizeof *x->times);
    code = x->indices && x->free_stack && x->times
               ? map_indices(x, config->max_model_len, f)
               : fail(f, -ENOMEM, "no memory for the prompt lookup of %u sequences", x->n);
    if (code)
        speculation_destroy(x);
    return code;
}

void speculation_destroy(struct speculation *x)
{
    if (x->memory)
        munmap(x->memory, x->bytes);
    free(x->indices);
    free(x->free_stack);
    free(x->times);
    *x = (struct speculation){0};
}

/* ---- who speculates ---- */

bool speculation_wanted(const struct engine_speculation *config, uint8_t flags)
{
    if (!config->max_tokens || flags & LLM_SQE_NO_SPECULATION)
        return false;
    return config->by_default || flags & LLM_SQE_SPECULATE;
}

void speculation_enter(struct speculation *x, struct sequence *s)
{
    assert(!s->lookup);
    if (s->op != LLM_OP_GENERATE || !(s->flags & LLM_SQE_SPECULATE))
        return;
    assert(x->n_free); /* as many as may run */
    s->lookup = &x->indices[x->free_stack[--x->n_free]];
    ngram_begin(s->lookup, s->n_prompt + s->max_tokens, x->config.min_match, x->config.max_match);
}

void speculation_leave(struct speculation *x, struct sequence *s)
{
    if (!s->lookup)
        return;
    x->free_stack[x->n_free++] = (uint32_t)(s->lookup - x->indices);
    s->lookup = NULL;
}

/* ---- what a draft is worth ---- */

/* The step as it is planned so far. */
struct prospect {
    uint32_t rows;     /* of decodes */
    bool mixed;        /* prompts have rows, too */
    bool tries;        /* what was not seen may be tried */
    double tokens;     /* that it is expected to bring; a prompt's row counts as one */
    uint64_t ns;       /* that it is expected to take */
    uint64_t row_ns;   /* what a row more costs, by the cost model */
    uint64_t limit_ns; /* that it may take */
};

static bool decodes(const struct sequence *s)
{
    return s->state == SEQUENCE_DECODE && s->rows;
}

/* Of a decode of mean context, or of a prompt, whichever is dearer. */
static uint64_t row_ns(const struct schedule *c, const struct cost_shape *shape)
{
    struct cost_shape decode = *shape, prefill = *shape;
    uint64_t ns = cost_predict(&c->cost, shape);
    decode.decode_context += decode.decode_context / decode.decode_rows;
    decode.decode_rows++;
    prefill.prefill_rows += prefill.prefill_rows > 0;
    uint64_t a = cost_predict(&c->cost, &decode), b = cost_predict(&c->cost, &prefill);
    return (a > b ? a : b) - ns;
}

/* What the step will take with so many rows more. */
static uint64_t expect_ns(const struct schedule *c, const struct prospect *p, uint32_t more)
{
    if (p->mixed)
        return p->ns + more * p->row_ns;
    return row_times_expect(c->speculation.times, p->rows + more, p->row_ns);
}

/* The same, or the best that it might be: steps that are all alike say nothing of what a row more or
 * less costs, so from time to time a number of rows is tried that was not seen. */
static uint64_t hope_ns(const struct schedule *c, const struct prospect *p, uint32_t more)
{
    if (!p->tries)
        return expect_ns(c, p, more);
    return row_times_hope(c->speculation.times, p->rows + more, p->ns / p->rows / HOPE);
}

/* The decodes of the step; *shared: they are not all of one owner. */
static struct cost_shape shape_of(const struct schedule *c, bool *shared)
{
    struct cost_shape shape = {.prefill_rows = c->shape.prefill_rows,
                               .prefill_context = c->shape.prefill_context};
    const struct sequence_owner *owner = NULL;
    *shared = false;
    for (uint32_t i = 0; i < c->n_running; i++) {
        const struct sequence *s = c->running[i];
        if (!decodes(s))
            continue;
        shape.decode_rows++;
        shape.decode_context += s->n_tokens;
        *shared |= owner && owner != s->owner;
        owner = s->owner;
    }
    return shape;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* At least one sequence decodes. */
static struct prospect look_ahead(const struct schedule *c)
{
    bool shared;
    struct cost_shape shape = shape_of(c, &shared);
    struct prospect p = {.rows = shape.decode_rows,
                         .mixed = shape.prefill_rows > 0,
                         .tries = !shape.prefill_rows &&
                                  c->speculation.times->steps >= c->speculation.next_try,
                         .tokens = (double)shape.decode_rows + (double)shape.prefill_rows,
                         .ns = shape.prefill_rows ? cost_predict(&c->cost, &shape) : 0,
                         .row_ns = row_ns(c, &shape),
                         .limit_ns = least(least(c->promise_ns, c->brief_ns), c->limit_ns)};
    p.ns = expect_ns(c, &p, 0);
    if (shared)
        p.limit_ns = least(p.limit_ns, p.ns + p.ns / 100 * BESIDE_PERCENT);
    return p;
}

static double rate_of(double tokens, uint64_t ns)
{
    return tokens / (double)ns;
}

/* The number of tokens, up to `most`, with which the step brings most a nanosecond. Rows come in
 * groups: the next one may not pay and the one after it still do. */
static uint32_t best_draft(const struct schedule *c, const struct ngram *g,
                           const struct prospect *p, uint32_t most)
{
    double tokens = p->tokens, chance = 1, gain = GAIN_PERCENT / 100.0;
    gain += c->speculation.times->noise / 65536.0 / 2;
    double rate = rate_of(tokens, p->ns) * (1 + gain);
    uint32_t best = 0;
    for (uint32_t k = 1; k <= most && k <= best + ROWS_AHEAD; k++) {
        uint64_t ns = hope_ns(c, p, k);
        if (expect_ns(c, p, k) > p->limit_ns)
            break;
        chance *= ngram_chance(g, k - 1);
        tokens += chance;
        if (rate_of(tokens, ns) <= rate)
            continue;
        rate = rate_of(tokens, ns);
        best = k;
    }
    return best;
}

static void count_draft(struct schedule *c, struct prospect *p, const struct ngram *g, uint32_t k)
{
    struct speculation *x = &c->speculation;
    double chance = 1;
    p->ns = hope_ns(c, p, k);
    p->rows += k;
    if (p->tries && !row_times_known(x->times, p->rows)) {
        p->tries = false; /* one draft's rows at a time: no step becomes many times as long */
        x->next_try = x->times->steps + TRY_EVERY;
    }
    for (uint32_t i = 0; i < k; i++)
        p->tokens += chance *= ngram_chance(g, i);
}

/* ---- drafts ---- */

/* Tokens that a draft of s may have: behind the last token that it may draw none is looked at. */
static uint32_t longest_draft(const struct schedule *c, const struct sequence *s)
{
    uint32_t most = c->speculation.config.max_tokens;
    uint32_t left = s->n_prompt + s->max_tokens - 1 - s->n_tokens;
    most = most < left ? most : left;
    most = most < c->budget ? most : c->budget;
    if (!s->n_top)
        return most;
    /* of candidates; one place is for the last token's own, one that is taken would end the stream */
    uint32_t unsent = s->n_tokens - s->base - s->sent, window = SEQUENCE_TOP_WINDOW - 2;
    uint32_t places = unsent < window ? window - unsent : 0;
    return most < places ? most : places;
}

static void plan_draft(struct schedule *c, struct sequence *s, struct prospect *p)
{
    uint32_t k = best_draft(c, s->lookup, p, longest_draft(c, s));
    if (k && !schedule_cover_to_spare(c, s, s->n_tokens + k)) {
        uint32_t left = s->n_blocks * GPU_KV_BLOCK - s->n_tokens;
        k = left < k ? left : k;
    }
    if (!k)
        return;
    ngram_draft(s->lookup, s->tokens, k);
    count_draft(c, p, s->lookup, k);
    s->rows += k;
    c->budget -= k;
    STATS_ADD(c->stats, spec_drafts, 1);
    STATS_ADD(c->stats, spec_draft_tokens, k);
}

/* New tokens into the indices: of what decodes the few that the last step brought, of a prompt or a
 * session's history as many as a step has time for. True if something is expected of a decode. */
static bool follow(struct schedule *c)
{
    uint32_t left = LEARNED_A_STEP;
    bool expects = false;
    for (uint32_t i = 0; i < c->n_running; i++) {
        struct sequence *s = c->running[i];
        if (s->lazy || !s->lookup)
            continue;
        left -= ngram_follow(s->lookup, s->tokens, s->n_tokens, left);
        expects |= decodes(s) && s->lookup->at;
    }
    return expects;
}

void speculate_plan(struct schedule *c)
{
    struct speculation *x = &c->speculation;
    if (x->n_free == x->n || !follow(c))
        return;
    struct prospect p = look_ahead(c);
    if (!p.ns) /* nothing is known of such a step: this one shows it */
        return;
    for (uint32_t i = 0; i < c->n_running; i++) {
        struct sequence *s = c->running[i];
        if (!s->lazy && s->lookup && s->lookup->at && decodes(s))
            plan_draft(c, s, &p);
    }
}

/* ---- after the step ---- */

void speculate_observe(struct schedule *c, uint64_t step_ns)
{
    struct speculation *x = &c->speculation;
    if (x->n_free < x->n && !c->shape.prefill_rows)
        row_times_observe(x->times, c->shape.decode_rows, step_ns);
}

bool schedule_confirm(struct schedule *c, struct sequence *s, uint32_t output)
{
    const struct gpu_output *o = &c->outputs[output];
    if (s->lazy)
        return true;
    if (s->state != SEQUENCE_DECODE || o->position != s->n_tokens ||
        c->tokens[o->row] != s->tokens[s->n_tokens - 1])
        return false;
    if (s->n_computed < s->n_tokens) {
        s->n_computed++;
        STATS_ADD(c->stats, spec_accepted_tokens, 1);
    }
    return true;
}
