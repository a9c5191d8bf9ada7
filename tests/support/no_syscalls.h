/* no_syscalls.h - a trap for system calls, for tests that promise none. */
#ifndef LLMD_TESTS_NO_SYSCALLS_H
#define LLMD_TESTS_NO_SYSCALLS_H

#include <stdbool.h>

/* Runs `body` in a child process in which, from its call of no_syscalls() on, every thread that
 * makes a system call other than exit_group is killed with its process. Returns whether body came
 * to its end and returned true. */
bool without_syscalls(bool (*body)(void *context), void *context);

/* Called by body once it has prepared; `waits`: sleeping, waking and looking for a free
 * CPU (futex, sched_yield, clock_gettime, affinities) stay allowed: a contended machine needs them. */
void no_syscalls(bool waits);

/* Whether the trap can be set here, and works. */
bool no_syscalls_works(void);

#endif
