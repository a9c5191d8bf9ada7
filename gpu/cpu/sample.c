/* sample.c - from a row of logits to a token: what both sample bodies share.
 *
 * Order of tokens: logit descending, then id ascending; it does not depend on the temperature.
 * Every filter keeps a prefix of this order:
 *     top_k  the first k, and all whose logit equals the k-th
 *     top_p  the fewest whose weights reach top_p of the weight of what top_k left, at least one
 *     min_p  those of weight >= min_p (the highest has weight 1)
 * where a token's weight is exp((logit - highest) / temperature).
 *
 * No filter sorts. Tokens that a filter can keep are first collected by a bound on the logit (a
 * bound that proves too high is lowered and the collection repeated); then the last token of the
 * prefix is found by cutting the range of their logits into parts, and the part where the prefix
 * ends again: at most four times, each linear in what is left.
 *
 * Biases and penalties (penalty.c) make a second row of logits, which is drawn from; a row without
 * them is drawn from as it is. Log-probabilities and candidates are of the first row always.
 *
 * The draw: tokens that are left, in the order of their ids; the first at which the running sum of
 * weights exceeds u times the total, u from rng.h. Sums over the whole vocabulary run in slices
 * merged in order (f32 in a slice, double over slices); sums over candidates run in double, by id
 * or, in select_last, part by part.
 */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "math.h"
#include "rng.h"
#include "sample_pass.h"

/* Tokens that may be drawn, ids ascending. */
struct candidates {
    uint32_t n;
    uint32_t *id, *key; /* key: the logit's order as an unsigned number */
    float *weight;
    uint32_t *list; /* scratch of select_last */
};

struct work {
    const struct sample_pass *pass;
    const float *logits; /* (vocab) */
    uint32_t vocab, slices;
    float top, log_sum; /* the highest logit; log of the sum of exp(logit - top) */
    float temperature;
    const struct sample_slice *of; /* (slices) what is known of each */
    struct sample_slice *room;     /* (slices) for those of a row that nobody has looked at */
    float *slice_sum;              /* (slices) weights */
    struct candidates c;
    float *changed; /* (vocab) room for the row after penalties; behind it penalty.c's scratch */
};

/* What is left after the filters: the candidates, or every token. */
struct rest {
    bool all;
    double total; /* weight */
};

/* ---- scratch ---- */

/* Room for each token, and for each lane's highest logit (bound_of_count). */
static size_t candidates_of(uint32_t vocab)
{
    size_t lanes = (size_t)sample_slices(vocab) * SAMPLE_LANES;
    return vocab > lanes ? vocab : lanes;
}

size_t sample_scratch_bytes(uint32_t vocab)
{
    size_t slices = sample_slices(vocab), words = slices + 4 * candidates_of(vocab) + vocab;
    return slices * sizeof(struct sample_slice) + words * sizeof(float) +
           penalty_scratch_bytes(vocab);
}

static void start_work(struct work *w, const struct sample_pass *pass, const float *logits,
                       uint32_t vocab, void *scratch)
{
    size_t candidates = candidates_of(vocab);
    assert(vocab > 0);
    *w = (struct work){
        .pass = pass, .logits = logits, .vocab = vocab, .slices = sample_slices(vocab)};
    w->room = scratch;
    w->slice_sum = (float *)(w->room + w->slices);
    w->c.weight = w->slice_sum + w->slices;
    w->c.id = (uint32_t *)(w->c.weight + candidates);
    w->c.key = w->c.id + candidates;
    w->c.list = w->c.key + candidates;
    w->changed = (float *)(w->c.list + candidates);
}

static const float *slice(const struct work *w, uint32_t s)
{
    return w->logits + (size_t)s * SAMPLE_SLICE;
}

static uint32_t slice_length(const struct work *w, uint32_t s)
{
    uint32_t left = w->vocab - s * SAMPLE_SLICE;
    return left < SAMPLE_SLICE ? left : SAMPLE_SLICE;
}

/* As sample_pass.h has it; -0 becomes +0. */
static float clean(float x)
{
    return sample_clean(x) + 0.0f;
}

static uint32_t key_of(float x)
{
    uint32_t bits = math_bits(clean(x));
    return bits ^ ((0u - (bits >> 31)) | 0x80000000u);
}

static float logit_of(uint32_t key)
{
    return math_from_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* ---- the unmodified distribution ---- */

static float highest_of_lanes(const struct sample_slice *s)
{
    float top = -INFINITY;
    for (uint32_t i = 0; i < SAMPLE_LANES; i++)
        top = s->lane[i] > top ? s->lane[i] : top;
    return top + 0.0f;
}

void sample_slice(const struct sample_pass *pass, const float *logits, uint32_t n,
                  struct sample_slice *out)
{
    pass->highest(logits, n, out->lane);
    float top = highest_of_lanes(out);
    out->sum = top == -INFINITY ? 0.0f : pass->sum(logits, n, top, 1.0f);
}

static void look_at_all(struct work *w)
{
    for (uint32_t s = 0; s < w->slices; s++)
        sample_slice(w->pass, slice(w, s), slice_length(w, s), &w->room[s]);
    w->of = w->room;
}

/* Fills top and log_sum. False if every logit is -infinity. */
static bool measure(struct work *w)
{
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t s = 0; s < w->slices; s++) {
        float part_top = highest_of_lanes(&w->of[s]);
        if (part_top == -INFINITY)
            continue;
        float merged = part_top > top ? part_top : top;
        sum = sum * math_exp(top - merged) + w->of[s].sum * math_exp(part_top - merged);
        top = merged;
    }
    w->top = top;
    w->log_sum = math_log(sum);
    return top != -INFINITY;
}

/* Fills `of` and top of another row, of which no log-probabilities are wanted. False if every logit
 * is -infinity. */
static bool find_top(struct work *w)
{
    w->top = -INFINITY;
    for (uint32_t s = 0; s < w->slices; s++) {
        w->pass->highest(slice(w, s), slice_length(w, s), w->room[s].lane);
        float top = highest_of_lanes(&w->room[s]);
        w->top = top > w->top ? top : w->top;
    }
    w->of = w->room;
    return w->top != -INFINITY;
}

static float logprob(const struct work *w, uint32_t token)
{
    return clean(w->logits[token]) - w->top - w->log_sum;
}

/* The token of the highest logit, the lowest id of several. */
static uint32_t greedy(const struct work *w)
{
    uint32_t s = 0;
    while (highest_of_lanes(&w->of[s]) != w->top)
        s++;
    uint32_t t = s * SAMPLE_SLICE;
    while (clean(w->logits[t]) != w->top)
        t++;
    return t;
}

/* ---- candidates ---- */

/* Fills slice_sum; their sum. */
static double weigh_all(struct work *w)
{
    double total = 0.0;
    for (uint32_t s = 0; s < w->slices; s++) {
        w->slice_sum[s] = w->pass->sum(slice(w, s), slice_length(w, s), w->top, w->temperature);
        total += (double)w->slice_sum[s];
    }
    return total;
}

static double weigh_candidates(const struct candidates *c)
{
    double total = 0.0;
    for (uint32_t i = 0; i < c->n; i++)
        total += (double)c->weight[i];
    return total;
}

/* Every token whose logit is at least cut (finite). */
static void collect(struct work *w, float cut)
{
    struct candidates *c = &w->c;
    c->n = 0;
    for (uint32_t s = 0; s < w->slices; s++)
        c->n +=
            w->pass->collect(slice(w, s), slice_length(w, s), cut, s * SAMPLE_SLICE, c->id + c->n);
    for (uint32_t i = 0; i < c->n; i++) {
        c->weight[i] = w->logits[c->id[i]];
        c->key[i] = key_of(c->weight[i]);
    }
    for (uint32_t i = 0; i < c->n; i += SAMPLE_SLICE) {
        uint32_t n = c->n - i < SAMPLE_SLICE ? c->n - i : SAMPLE_SLICE;
        w->pass->weigh(c->weight + i, n, w->top, w->temperature, c->weight + i);
    }
}

/* ---- the last token of a prefix ---- */

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };

/* A range of keys cut into DIGITS equal parts, part i from base + (i << shift) on. */
struct range {
    uint32_t base;
    int shift;
};

struct last {
    uint32_t key, id;
};

/* A prefix's size, or the size that it shall reach: in one of the two. */
struct size {
    uint64_t count;
    double weight;
};

static struct size add(struct size a, uint64_t count, double weight)
{
    return (struct size){a.count + count, a.weight + weight};
}

static bool reaches(struct size a, struct size want)
{
    return a.count >= want.count || a.weight >= want.weight;
}

static uint32_t digit_of(const struct candidates *c, uint32_t i, struct range r)
{
    return (c->key[c->list[i]] - r.base) >> r.shift;
}

/* The range of the n candidates in list. False if their keys are all the same. */
static bool find_range(const struct candidates *c, uint32_t n, struct range *r)
{
    uint32_t low = UINT32_MAX, high = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = c->key[c->list[i]];
        low = key < low ? key : low;
        high = key > high ? key : high;
    }
    if (low == high)
        return false;
    int bits = 32 - __builtin_clz(high - low);
    *r = (struct range){low, bits > DIGIT_BITS ? bits - DIGIT_BITS : 0};
    return true;
}

/* Of the n candidates in list: the digit in which a prefix that starts with `before` reaches
 * `want`, or the lowest one if none does. before grows by the digits above it. */
static uint32_t find_digit(const struct candidates *c, uint32_t n, struct range r,
                           struct size *before, struct size want)
{
    struct size of[DIGITS] = {{0, 0.0}};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = digit_of(c, i, r);
        of[d] = add(of[d], 1, (double)c->weight[c->list[i]]);
    }
    for (uint32_t d = DIGITS - 1; d > 0; d--) {
        struct size with = add(*before, of[d].count, of[d].weight);
        if (of[d].count && reaches(with, want))
            return d;
        *before = with;
    }
    return 0; /* base is the key of one of them */
}

static uint32_t keep_digit(struct candidates *c, uint32_t n, struct range r, uint32_t digit)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool inside = digit_of(c, i, r) == digit;
        c->list[left] = c->list[i];
        left += inside;
    }
    return left;
}

/* The last token of the shortest prefix that reaches `want`; of all candidates if none does. */
static struct last select_last(struct candidates *c, struct size want)
{
    struct size before = {0, 0.0};
    struct range r;
    uint32_t n = c->n, i = 0;
    assert(n > 0);
    for (uint32_t j = 0; j < n; j++)
        c->list[j] = j;
    while (find_range(c, n, &r))
        n = keep_digit(c, n, r, find_digit(c, n, r, &before, want));
    for (;; i++) { /* equal logits, by id */
        before = add(before, 1, (double)c->weight[c->list[i]]);
        if (reaches(before, want) || i == n - 1)
            return (struct last){c->key[c->list[i]], c->id[c->list[i]]};
    }
}

/* Drops what comes after `last` or weighs less than min_weight. */
static void keep(struct candidates *c, struct last last, float min_weight)
{
    uint64_t end = (uint64_t)last.key << 32 | (UINT32_MAX - last.id);
    uint32_t n = 0; /* no branches: half of the tokens may go, in no pattern */
    for (uint32_t i = 0; i < c->n; i++) {
        uint64_t at = (uint64_t)c->key[i] << 32 | (UINT32_MAX - c->id[i]);
        bool inside = (at >= end) & (c->weight[i] >= min_weight);
        c->id[n] = c->id[i];
        c->key[n] = c->key[i];
        c->weight[n] = c->weight[i];
        n += inside;
    }
    c->n = n;
}

/* ---- bounds ---- */

static float finite_bound(float cut)
{
    return cut > -FLT_MAX ? cut : -FLT_MAX;
}

/* Not above any logit whose weight is exp(-depth) or more, rounding included. */
static float bound_of_depth(const struct work *w, float depth)
{
    return finite_bound(w->top - w->temperature * (depth + 0.01f) - fabsf(w->top) * 0x1p-20f);
}

/* Reached by k logits or more: each lane whose highest logit reaches it has one. */
static float bound_of_count(struct work *w, uint32_t k)
{
    struct candidates *c = &w->c;
    c->n = w->slices * SAMPLE_LANES;
    if (k > c->n)
        return -FLT_MAX;
    for (uint32_t i = 0; i < c->n; i++) {
        c->id[i] = i;
        c->key[i] = key_of(w->of[i / SAMPLE_LANES].lane[i % SAMPLE_LANES]);
        c->weight[i] = 0.0f;
    }
    return finite_bound(logit_of(select_last(c, (struct size){k, INFINITY}).key));
}

/* ---- filters ---- */

static void keep_top_k(struct work *w, uint32_t k)
{
    collect(w, bound_of_count(w, k));
    struct last last = select_last(&w->c, (struct size){k, INFINITY});
    last.id = UINT32_MAX; /* all that equal the k-th */
    keep(&w->c, last, 0.0f);
}

static void keep_top_p(struct work *w, double total, float top_p)
{
    struct size want = {UINT64_MAX, total * (double)top_p};
    keep(&w->c, select_last(&w->c, want), 0.0f);
}

/* Collects a prefix of weight `enough` and more, or, if that has less, all down to `lowest`. */
static void collect_weight(struct work *w, double enough, float lowest)
{
    static const float depths[] = {6.0f, 16.0f};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        float cut = bound_of_depth(w, depths[i]);
        if (cut <= lowest)
            break;
        collect(w, cut);
        if (weigh_candidates(&w->c) >= enough)
            return;
    }
    collect(w, lowest);
}

static void collect_top_p(struct work *w, float top_p, float lowest)
{
    double total = weigh_all(w);
    collect_weight(w, total * (double)top_p, lowest);
    keep_top_p(w, total, top_p);
}

static struct rest filter(struct work *w, const struct gpu_sampling *s)
{
    bool by_k = s->top_k > 0 && s->top_k < w->vocab, by_p = s->top_p < 1.0f;
    bool by_min = s->min_p > 0.0f;
    float min_weight = !by_min ? 0.0f : s->min_p < 1.0f ? s->min_p : 1.0f;

    w->temperature = s->temperature < FLT_MAX ? s->temperature : FLT_MAX;
    float lowest = by_min ? bound_of_depth(w, -math_log(min_weight)) : -FLT_MAX;
    if (!by_k && !by_p && !by_min)
        return (struct rest){true, weigh_all(w)};
    if (by_k) {
        keep_top_k(w, s->top_k);
        if (by_p)
            keep_top_p(w, weigh_candidates(&w->c), s->top_p);
    } else if (by_p) {
        collect_top_p(w, s->top_p, lowest);
    } else {
        collect(w, lowest);
    }
    keep(&w->c, (struct last){0, UINT32_MAX}, min_weight);
    return (struct rest){false, weigh_candidates(&w->c)};
}

/* ---- the draw ---- */

/* Index of the first weight at which the running sum exceeds `at`; the last positive one if
 * rounding lets none. */
static uint32_t walk(const float *weight, uint32_t n, double at)
{
    double sum = 0.0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)weight[i];
        if (sum > at)
            return i;
        if (weight[i] > 0.0f)
            last = i;
    }
    return last;
}

static uint32_t draw_from_all(struct work *w, double at)
{
    uint32_t s = walk(w->slice_sum, w->slices, at), n = slice_length(w, s);
    for (uint32_t i = 0; i < s; i++)
        at -= (double)w->slice_sum[i];
    w->pass->weigh(slice(w, s), n, w->top, w->temperature, w->c.weight);
    return s * SAMPLE_SLICE + walk(w->c.weight, n, at);
}

static uint32_t draw(struct work *w, struct rest rest, double u)
{
    if (rest.all)
        return draw_from_all(w, u * rest.total);
    return w->c.id[walk(w->c.weight, w->c.n, u * rest.total)];
}

/* ---- the likeliest tokens ---- */

/* Order of tokens as one number: the first has the highest. */
static uint64_t rank_of(const struct candidates *c, uint32_t i)
{
    return (uint64_t)c->key[i] << 32 | (UINT32_MAX - c->id[i]);
}

/* The first n of the order into `top`; how many there are. */
static uint32_t likeliest(struct work *w, uint32_t n, struct gpu_candidate *top)
{
    uint64_t rank[GPU_TOP_LOGPROBS_MAX];
    struct candidates *c = &w->c;
    uint32_t found = 0;
    assert(n <= GPU_TOP_LOGPROBS_MAX);
    if (!n)
        return 0;
    n = n < w->vocab ? n : w->vocab;
    collect(w, bound_of_count(w, n));
    for (uint32_t i = 0; i < c->n; i++) {
        uint64_t r = rank_of(c, i);
        if (found == n && r < rank[n - 1])
            continue;
        uint32_t at = found < n ? found++ : n - 1;
        for (; at && rank[at - 1] < r; at--)
            rank[at] = rank[at - 1];
        rank[at] = r;
    }
    for (uint32_t i = 0; i < found; i++) {
        uint32_t token = UINT32_MAX - (uint32_t)rank[i];
        top[i] = (struct gpu_candidate){(int32_t)token, logprob(w, token)};
    }
    return found;
}

/* ---- entry points ---- */

/* From here on w is of the row that is drawn from. False if nothing is left of it. */
static bool change(struct work *w, const struct gpu_output *out)
{
    if (!penalty_needed(out))
        return w->top != -INFINITY;
    penalty_apply(out, w->logits, w->vocab, w->changed, w->changed + w->vocab);
    w->logits = w->changed;
    return find_top(w);
}

static uint32_t draw_token(struct work *w, const struct gpu_output *out)
{
    const struct gpu_sampling *s = &out->sampling;
    if (!change(w, out))
        return 0;
    if (!(s->temperature > 0.0f))
        return greedy(w);
    return draw(w, filter(w, s), rng_uniform(s->seed, out->position, s->choice));
}

struct gpu_result sample_row(const struct sample_pass *pass, const float *logits,
                             const struct sample_slice *slices, uint32_t vocab,
                             const struct gpu_output *out, void *scratch)
{
    struct work w, drawn;
    struct gpu_result r = {.token = out->target >= 0 ? out->target : 0, .logprob = -INFINITY};
    assert(out->target < 0 || (uint32_t)out->target < vocab);
    start_work(&w, pass, logits, vocab, scratch);
    w.of = slices;
    if (!slices)
        look_at_all(&w);
    if (!measure(&w))
        return r;
    if (out->top)
        r.n_top = likeliest(&w, out->n_top, out->top);
    drawn = w;
    if (out->target < 0)
        r.token = (int32_t)draw_token(&drawn, out);
    r.logprob = logprob(&w, (uint32_t)r.token);
    return r;
}

static void spread(struct work *w, struct rest rest, float *probs)
{
    for (uint32_t i = 0; !rest.all && i < w->c.n; i++)
        probs[w->c.id[i]] = (float)((double)w->c.weight[i] / rest.total);
    for (uint32_t s = 0; rest.all && s < w->slices; s++) {
        float *p = probs + (size_t)s * SAMPLE_SLICE;
        w->pass->weigh(slice(w, s), slice_length(w, s), w->top, w->temperature, p);
        for (uint32_t i = 0; i < slice_length(w, s); i++)
            p[i] = (float)((double)p[i] / rest.total);
    }
}

void sample_distribution(const float *logits, uint32_t vocab, const struct gpu_output *out,
                         float *probs, void *scratch)
{
    const struct gpu_sampling *s = &out->sampling;
    struct work w;
    start_work(&w, &sample_pass_plain, logits, vocab, scratch);
    memset(probs, 0, vocab * sizeof *probs);
    look_at_all(&w);
    if (!measure(&w) || !change(&w, out))
        probs[0] = 1.0f;
    else if (!(s->temperature > 0.0f))
        probs[greedy(&w)] = 1.0f;
    else
        spread(&w, filter(&w, s), probs);
}
