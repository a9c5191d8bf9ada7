/* device.h - a backend (gpu/gpu.h) without a model: a step takes the time that struct sim_cost says,
 * on a clock that only it moves forward, and its tokens are a hash of where they stand.
 *
 * Every step is checked as plain data: rows and outputs in order, blocks of the pool, none written by
 * two. `violation` is the first thing that was wrong. */
#ifndef LLMD_TESTS_SIM_DEVICE_H
#define LLMD_TESTS_SIM_DEVICE_H

#include "random.h"
#include "sim.h"

struct device {
    struct sim_cost cost;
    uint32_t vocab, n_blocks, max_rows;
    uint64_t now_ns; /* the clock */
    struct random random;
    const struct gpu_step *step;
    uint64_t steps;
    double step_ns;        /* of the last step */
    double without_ns;     /* the same, had it no prefill rows */
    uint32_t decode_rows;  /* sequences with one row */
    uint64_t *written_in;  /* (n_blocks) number of the step that wrote to it last */
    uint64_t copies;       /* blocks */
    const char *violation; /* NULL: none */
};

/* False without memory. */
bool device_open(struct device *d, const struct sim_config *config);
void device_close(struct device *d);
const struct gpu_ops *device_ops(void);
struct gpu *device_handle(struct device *d);
uint64_t device_clock(void *device); /* for engine_config.clock */

/* The token behind `token`, which stands at `position`. */
int32_t device_token(int32_t token, uint32_t position, uint32_t choice, uint32_t vocab);

#endif
