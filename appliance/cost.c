/* cost.c - the cost model of a step: see cost.h.
 *
 * A step of shape x (1, rows, contexts) that took ns says x w = ns. All of them together are held
 * as the normal equations of weighted least squares,
 *
 *     a = sum z z'    b = sum z (ns / s)    z = x / s    s = max(ns, what was predicted)
 *
 * and w is their solution in w >= 0, found by coordinate descent from the last one. Dividing by s
 * makes the errors relative, and bounds what one step can do: a step of any length pulls at most as
 * hard as one that took no time at all; and one that is further off than usual counts for less.
 *
 * Invariants:
 * 1. Every number is finite and every weight is in 0 .. WEIGHT_MAX.
 * 2. `a` is symmetric and positive semidefinite: only squares are added, and forgetting multiplies
 *    row and column alike.
 * 3. What a step does not show is not forgotten: an hour of decodes leaves the weights of prefill as
 *    they were, and what they rest on.
 *
 * Sources: recursive least squares in its information form, and coordinate descent for non-negative
 * least squares, are textbook methods (Ljung, System Identification, ch. 11; Lawson and Hanson,
 * Solving Least Squares Problems, ch. 23 for the conditions at the solution).
 */
#include "cost.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    SWEEPS = 16, /* of coordinate descent a step, at most: w follows, over steps it converges */
    ERROR_WINDOW = 64,  /* steps, of the mean error */
    BIAS_WINDOW = 32,   /* steps, of the mean signed error */
    PRIOR_CONTEXT = 16, /* keys a row, of the step that the first guess stands for */
};

#define WEIGHT_MAX   18446744073709551616.0 /* 2^64: more ns than a step can report */
#define PRIOR_WEIGHT 0.02                   /* the first guess counts as a fiftieth of a step */
#define FORGET       0.005                  /* a step: the window is 200 steps */
#define FORGET_MAX   0.2
#define STILL        1e-8 /* descent went less far: no prediction changes by more than 10^-4 */
#define ERRORS_USUAL 3    /* of the mean error: further off is no noise */
#define BIAS_NORMAL  0.1 /* below: noise and outliers. Above: the machine or the model has changed */

static double clamp(double v, double high)
{
    return !(v > 0) ? 0 : v < high ? v : high; /* a NaN is 0 */
}

static double larger(double x, double y)
{
    return x > y ? x : y;
}

static double magnitude(double v)
{
    return v < 0 ? -v : v;
}

static uint64_t whole_ns(double ns)
{
    return ns < WEIGHT_MAX ? (uint64_t)(ns + 0.5) : UINT64_MAX;
}

static void features(double *x /* (COST_WEIGHTS) */, const struct cost_shape *shape)
{
    x[0] = 1;
    x[1] = shape->decode_rows;
    x[2] = shape->prefill_rows;
    x[3] = (double)shape->decode_context;
    x[4] = (double)shape->prefill_context;
}

static double dot(const double *x, const double *y)
{
    double sum = 0;
    for (int i = 0; i < COST_WEIGHTS; i++)
        sum += x[i] * y[i];
    return sum;
}

void cost_init(struct cost *c, double step_ns, double row_ns)
{
    *c = (struct cost){.error = 1};
    step_ns = larger(clamp(step_ns, WEIGHT_MAX), 1);
    row_ns = clamp(row_ns, step_ns);
    c->w[0] = step_ns - row_ns;
    c->w[1] = c->w[2] = row_ns;
    for (int i = 0; i < COST_WEIGHTS; i++) {
        double z = (i < 3 ? 1 : PRIOR_CONTEXT) / step_ns;
        c->a[i][i] = PRIOR_WEIGHT * z * z;
        c->b[i] = c->a[i][i] * c->w[i];
    }
}

/* The first step says how fast the machine is; of the guess only the proportions are kept. Else one
 * that was far too low would count as many steps, by its small errors. */
static void set_level(struct cost *c, double factor)
{
    if (!(factor > 0) || factor > WEIGHT_MAX)
        return;
    for (int i = 0; i < COST_WEIGHTS; i++) {
        c->w[i] = clamp(c->w[i] * factor, WEIGHT_MAX);
        c->b[i] /= factor;
        c->a[i][i] /= factor * factor;
    }
}

/* A lasting error of one sign means that what was learned holds no more: forget it faster. */
static double forgetting(const struct cost *c)
{
    double excess = larger(magnitude(c->bias) - BIAS_NORMAL, 0);
    return clamp(FORGET + excess * FORGET_MAX, FORGET_MAX);
}

/* Multiplies what is known along the features that the step has. `w` would solve the equations as
 * well as before: b is rebuilt from it, and from what was left over. */
static void forget(struct cost *c, const double *x)
{
    double left[COST_WEIGHTS], keep[COST_WEIGHTS];
    double kept = 1 - forgetting(c), root = 1 - (1 - kept) / 2; /* about sqrt(kept) */
    for (int i = 0; i < COST_WEIGHTS; i++) {
        left[i] = c->b[i] - dot(c->a[i], c->w);
        keep[i] = x[i] > 0 ? root : 1;
    }
    for (int i = 0; i < COST_WEIGHTS; i++) {
        for (int j = 0; j < COST_WEIGHTS; j++)
            c->a[i][j] *= keep[i] * keep[j];
        c->b[i] = dot(c->a[i], c->w) + left[i] * keep[i];
    }
}

/* How much one step counts: less where it is further off than usual, unless steps have been so for
 * some time. */
static double weight_of(const struct cost *c, double error)
{
    double usual = ERRORS_USUAL * c->error;
    bool lasting = magnitude(c->bias) > BIAS_NORMAL;
    return lasting || magnitude(error) <= usual ? 1 : usual / magnitude(error);
}

static void learn(struct cost *c, const double *x, double scale, double ns, double weight)
{
    double z[COST_WEIGHTS], one = ns / scale;
    for (int i = 0; i < COST_WEIGHTS; i++)
        z[i] = x[i] / scale;
    for (int i = 0; i < COST_WEIGHTS; i++) {
        for (int j = 0; j < COST_WEIGHTS; j++)
            c->a[i][j] += weight * (z[i] * z[j]);
        c->b[i] += weight * (z[i] * one);
    }
}

/* Each weight in turn to the best value that it can have beside the others; `left` is b - a w, and
 * kept so. Returns how far they went: the square of the relative change of a prediction. */
static double descend(struct cost *c, double *left, const double *inverse)
{
    double went = 0;
    for (int i = 0; i < COST_WEIGHTS; i++) {
        double to = clamp(c->w[i] + left[i] * inverse[i], WEIGHT_MAX), by = to - c->w[i];
        c->w[i] = to;
        for (int j = 0; j < COST_WEIGHTS; j++)
            left[j] -= c->a[j][i] * by;
        went = larger(went, by * by * c->a[i][i]);
    }
    return went;
}

static void solve(struct cost *c)
{
    double left[COST_WEIGHTS], inverse[COST_WEIGHTS];
    for (int i = 0; i < COST_WEIGHTS; i++) {
        left[i] = c->b[i] - dot(c->a[i], c->w);
        inverse[i] = c->a[i][i] > 0 ? 1 / c->a[i][i] : 0;
    }
    for (int sweep = 0; sweep < SWEEPS && descend(c, left, inverse) > STILL; sweep++)
        ;
}

static void note_error(struct cost *c, double error)
{
    uint64_t n = ++c->observed;
    c->error += (magnitude(error) - c->error) / (double)(n < ERROR_WINDOW ? n : ERROR_WINDOW);
    c->bias += (error - c->bias) / BIAS_WINDOW;
}

void cost_observe(struct cost *c, const struct cost_shape *shape, uint64_t took_ns)
{
    double x[COST_WEIGHTS], ns = (double)took_ns;
    features(x, shape);
    if (!c->observed)
        set_level(c, ns / dot(c->w, x));
    double predicted = dot(c->w, x), scale = larger(larger(predicted, ns), 1);
    double error = (ns - predicted) / scale;
    note_error(c, error);
    forget(c, x);
    learn(c, x, scale, ns, weight_of(c, error));
    solve(c);
}

uint64_t cost_predict(const struct cost *c, const struct cost_shape *shape)
{
    double x[COST_WEIGHTS];
    features(x, shape);
    return whole_ns(dot(c->w, x));
}

/* The shape with `rows` more of a sequence at `pos`: they read pos + 1, pos + 2, ... keys. */
static struct cost_shape with_rows(const struct cost_shape *shape, uint32_t pos, uint32_t rows)
{
    struct cost_shape s = *shape;
    /* at most (2^32 - 1) (2^32 - 1) + 2^63 - 2^31: halves first, or the sum would not fit */
    uint64_t keys = (uint64_t)rows * pos, half = rows & 1 ? (uint64_t)rows * ((rows >> 1) + 1u)
                                                          : (uint64_t)(rows >> 1) * (rows + 1ull);
    if (__builtin_add_overflow(keys, half, &keys) ||
        __builtin_add_overflow(s.prefill_context, keys, &s.prefill_context))
        s.prefill_context = UINT64_MAX;
    if (__builtin_add_overflow(s.prefill_rows, rows, &s.prefill_rows))
        s.prefill_rows = UINT32_MAX;
    return s;
}

/* By halving: a sum of rounded products of what never falls never falls, so predictions are
 * monotone in the rows to the last bit. */
uint32_t cost_rows_within(const struct cost *c, const struct cost_shape *shape, uint32_t pos,
                          uint32_t max, uint64_t ns)
{
    uint32_t fits = 0, most = max;
    while (fits < most) {
        uint32_t rows = fits + (most - fits) / 2 + (most - fits) % 2;
        struct cost_shape s = with_rows(shape, pos, rows);
        if (cost_predict(c, &s) <= ns)
            fits = rows;
        else
            most = rows - 1;
    }
    return fits;
}

uint64_t cost_prefill_ns(const struct cost *c, uint64_t rows, uint32_t chunk,
                         const struct cost_shape *decodes)
{
    struct cost_shape beside = {0};
    if (decodes) {
        beside.decode_rows = decodes->decode_rows;
        beside.decode_context = decodes->decode_context;
    }
    double x[COST_WEIGHTS], n = (double)rows;
    features(x, &beside);
    double steps = (double)(chunk ? rows / chunk + (rows % chunk != 0) : rows);
    return whole_ns(steps * dot(c->w, x) + n * c->w[2] + n * (n + 1) / 2 * c->w[4]);
}
