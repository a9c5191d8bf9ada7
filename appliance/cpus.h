/* cpus.h - lists of CPUs, as people write them: "0-1,3" is 0, 1, 3, in that order.
 */
#ifndef LLMD_CPUS_H
#define LLMD_CPUS_H

#include <stdint.h>

#include "../gpu/fail.h"

enum { CPUS_MAX = 512 }; /* in a list; the numbers themselves are below 1024 */

struct cpus {
    uint32_t n; /* 0: no list */
    uint32_t at[CPUS_MAX];
};

/* A number or a range, separated by commas; ascending ranges, no CPU twice. -EINVAL with the
 * sentence, which begins with `what`. */
int cpus_parse(struct cpus *out, const char *what, const char *text, struct fail *f);

/* The same list in the shortest spelling; cut where it does not fit. */
void cpus_print(const struct cpus *list, char *out, size_t bytes);

/* Puts a CPU in front, taking it out of its place if the list has it. */
void cpus_put_first(struct cpus *list, uint32_t cpu);

/* The CPUs that this thread may run on, ascending. */
void cpus_allowed(struct cpus *out);

#endif
