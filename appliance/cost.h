/* cost.h - how long a step will take: a linear model of the step's shape, fitted while the engine
 * runs.
 *
 *     ns = w0 + w1 decode_rows + w2 prefill_rows + w3 decode_context + w4 prefill_context
 *
 * where a context is the number of keys that the rows read: the sum over rows of (position + 1).
 * Weights are never negative. Fitted by recursive least squares with forgetting (a window of some
 * hundred steps), on relative errors, so that short steps count as much as long ones; a step that
 * took many times what was expected (the machine was busy elsewhere) moves the model only a little.
 *
 * Deterministic: the same steps, the same model. No allocation, no system call. Whatever is fed to
 * it, its numbers stay finite.
 */
#ifndef LLMD_COST_H
#define LLMD_COST_H

#include <stdint.h>

enum { COST_WEIGHTS = 5 };

struct cost_shape {
    uint32_t decode_rows, prefill_rows;
    uint64_t decode_context, prefill_context; /* keys read */
};

struct cost {
    double w[COST_WEIGHTS];               /* ns per unit, >= 0 */
    double a[COST_WEIGHTS][COST_WEIGHTS]; /* what the steps say of w: a w = b where it is exact */
    double b[COST_WEIGHTS];
    uint64_t observed; /* steps so far */
    double error;      /* mean relative error of late predictions, 0 .. 1: how far to trust it */
    double bias;       /* the same with its sign, > 0: steps take longer than predicted */
};

/* Starts from a guess: ns of a step of one row, and of each further row. They soon matter no more.
 */
void cost_init(struct cost *c, double step_ns, double row_ns);
void cost_observe(struct cost *c, const struct cost_shape *shape, uint64_t ns);
uint64_t cost_predict(const struct cost *c, const struct cost_shape *shape);

/* How many prefill rows of a sequence at position `pos` can join a step of that shape so that it is
 * still expected to take at most `ns`: the largest number by cost_predict(). 0 .. max. */
uint32_t cost_rows_within(const struct cost *c, const struct cost_shape *shape, uint32_t pos,
                          uint32_t max, uint64_t ns);

/* Expected time to compute the first `rows` rows of a prompt in steps of `chunk` rows beside that
 * many decodes of that context in all (NULL: none). */
uint64_t cost_prefill_ns(const struct cost *c, uint64_t rows, uint32_t chunk,
                         const struct cost_shape *decodes);

#endif
