/* report.h - what bench_speed found: for people, and for programs. */
#ifndef LLMD_BENCH_REPORT_H
#define LLMD_BENCH_REPORT_H

#include "../../gpu/fail.h"
#include "speed.h"

/* A table. Goals stand beside what they are for; nothing is judged. */
void report_print(const struct speed *s, FILE *out);

/* The same with the value of every round, as one JSON object. Rates are tokens/s, times us, sizes
 * bytes; what was not measured is null or absent. */
int report_json(const struct speed *s, const char *path, struct fail *f);

/* "32 streams", "prefill of 512" */
void report_name(const struct speed_case *c, char *out, size_t size);

#endif
