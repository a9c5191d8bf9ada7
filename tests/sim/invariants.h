/* invariants.h - what must be true of the engine after every step, whatever the workload:
 *
 *   1. A stream that drew a token in the last step draws one in this, unless it ended, was preempted,
 *      or the decodes are more than a step's share.
 *   2. Of the pool's blocks each is free or referenced, as often as tables name it.
 *   3. The sequence that has waited longest is among the next QUEUE_AGEING that are admitted; each
 *      that is preempted meanwhile may be older and have that turn.
 *   4. A step beside streams takes no longer than the promised gap, as far as the cost model can know:
 *      counted, with the worst excess.
 *
 * Looks into the engine (engine_parts.h) and changes nothing there. */
#ifndef LLMD_TESTS_SIM_INVARIANTS_H
#define LLMD_TESTS_SIM_INVARIANTS_H

#include "../../appliance/engine_parts.h"
#include "device.h"
#include "sim.h"

struct invariants {
    const struct sim_config *config;
    const struct engine *engine;
    const struct device *device;
    struct sim_result *result;

    /* streams: 1 */
    uint64_t step;      /* number of the one that runs or ran last */
    uint32_t due;       /* streams that drew in the last step and have not ended */
    uint32_t continued; /* of these, that drew in this one */
    uint32_t drew;      /* streams that drew in this one and have not ended */
    uint64_t preemptions;
    /* the queue: 3 */
    uint64_t oldest; /* order of the one that waits longest, UINT64_MAX: none */
    uint32_t picks;  /* when it became that */
    uint64_t older;  /* preemptions until then */
    uint64_t output_tokens, without_output;
};

void invariants_open(struct invariants *v, const struct sim_config *config,
                     const struct engine *engine, const struct device *device,
                     struct sim_result *result);

/* A stream drew a token; its last one before was in step `before`, 0: none. */
void invariants_drew(struct invariants *v, uint64_t before);
/* A stream whose last token was in step `last` has ended. */
void invariants_ended(struct invariants *v, uint64_t last);

void invariants_before_step(struct invariants *v);
void invariants_after_step(struct invariants *v);
/* When nothing runs or waits any more. */
void invariants_at_end(struct invariants *v);

/* Keeps the first sentence that is told. */
__attribute__((format(printf, 2, 3))) void invariants_broken(struct sim_result *result,
                                                             const char *format, ...);

#endif
