/* row_times.h - how long steps of so many decode rows take: what was seen, count by count.
 *
 * A model that is linear in the rows (cost.h) is right for large steps and wrong for small ones: the
 * first few rows wait for the same weights and cost next to nothing, and kernels take rows in groups.
 * Whether a draft's row pays hangs on just that.
 *
 * Where steps of the same rows differ, what is expected lies above their mean, by the more the more they
 * differ and the fewer of them were seen. What was seen is forgotten after a while, the sooner the less
 * often it was seen, up to ROW_TIMES_FRESH steps: the machine may have changed.
 *
 * Deterministic; no allocation.
 */
#ifndef LLMD_ROW_TIMES_H
#define LLMD_ROW_TIMES_H

#include <stdbool.h>
#include <stdint.h>

enum { ROW_TIMES_MAX = 64, ROW_TIMES_FRESH = 512 };

struct row_times {
    uint64_t steps;                   /* observed, in all */
    uint32_t noise;                   /* how far they were from the means, on average: of 65536 */
    uint64_t seen[ROW_TIMES_MAX + 1]; /* by rows: value of `steps` then, 0: never */
    uint64_t ns[ROW_TIMES_MAX + 1];
    uint8_t samples[ROW_TIMES_MAX + 1]; /* of the mean; no more are counted than matter */
};

/* A step of decode rows alone; all zero at first. */
void row_times_observe(struct row_times *t, uint32_t rows, uint64_t ns);

/* Whether steps of so many rows were seen of late. */
bool row_times_known(const struct row_times *t, uint32_t rows);

/* What a step of so many rows will take: as seen, or between the two counts around it that were
 * seen, or row_ns for each row more than the largest that was. 0: nothing is known. */
uint64_t row_times_expect(const struct row_times *t, uint32_t rows, uint64_t row_ns);

/* What it might take at best: as seen, or row_ns for each row more than the next smaller count that
 * was; no more than is expected. Whoever goes by it sees what he has not seen yet. */
uint64_t row_times_hope(const struct row_times *t, uint32_t rows, uint64_t row_ns);

#endif
