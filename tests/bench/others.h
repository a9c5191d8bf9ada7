/* others.h - how much of the machine went to somebody else while something was measured: other
 * programs, or, on a virtual machine, other guests.
 *
 *     struct others o;
 *     others_begin(&o, engine);
 *     ...
 *     share = others_share(&o, engine);      // 0 .. 1 of all CPUs of the machine
 */
#ifndef LLMD_BENCH_OTHERS_H
#define LLMD_BENCH_OTHERS_H

#include <stdint.h>
#include <sys/types.h>

struct others {
    uint64_t t_ns;
    double busy_s, own_s; /* CPU seconds until then: of the machine, of ours */
};

/* Ours: this process, its children that have ended, and the process `engine`. */
void others_begin(struct others *o, pid_t engine);
/* Since others_begin; NAN where the kernel does not tell. */
double others_share(const struct others *o, pid_t engine);

#endif
