/* explore.h - every reachable state of a small model, breadth first: what is found is shortest.
 *
 * A state is bad if the step into it broke a property, or if nothing can move in it and the model
 * says that work is left: a lost wake-up. There are no time-outs in a model, so nothing but the
 * protocol rescues a sleeper; and a thread that would spin is blocked until what it spins for is
 * there, so it does not hide one.
 *
 * States that were seen are kept as hashes of 64 bits: among 10^7 of them the chance that any one
 * was taken for another is below 10^-5.
 */
#ifndef LLMD_TESTS_MODEL_EXPLORE_H
#define LLMD_TESTS_MODEL_EXPLORE_H

#include "machine.h"

struct model {
    struct machine machine;
    const void *config; /* struct run's `model` */
    const char *thread[THREADS_MAX];
    void (*init)(const struct model *m, struct state *s); /* after machine_start */
    enum progress (*step)(struct run *x);
    /* Nothing can move: NULL if that is a good end, else what went wrong. */
    const char *(*stuck)(const struct model *m, const struct state *s);
};

struct finding {
    const char *violation; /* NULL: every reachable state is good */
    size_t states;
    unsigned steps; /* of the counterexample */
    char *trace;    /* the counterexample, a line an action; malloc'ed, or NULL */
};

/* `traced`: with the counterexample. */
void explore(const struct model *m, bool traced, struct finding *f);
void finding_free(struct finding *f);

#endif
