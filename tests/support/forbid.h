/* forbid.h - what a container or an old kernel does not permit, for a test and the programs that it
 * starts: a seccomp filter, which cannot be taken back. So such tests run in a process of their
 * own.
 */
#ifndef LLMD_TESTS_FORBID_H
#define LLMD_TESTS_FORBID_H

#include <stdint.h>
#include <sys/types.h>

/* The system call fails with `error` from now on. */
void forbid_call(long call, int error);
/* Only where its argument (0 ..) has that value. */
void forbid_call_with(long call, unsigned argument, uint32_t value, int error);

/* As Docker's default profile does. */
void forbid_io_uring(void);
/* As profiles older than the call do. */
void forbid_futex_waitv(void);
/* io_uring as on kernels before 6.7: it cannot say that it has the futex operations. */
void forbid_io_uring_futexes(void);

/* As where the limit of threads is reached; processes can still be made. */
void forbid_threads(void);

/* Runs it in a process of its own, which exits with its result. Returns the exit status, 128 +
 * signal where it was killed. */
int in_a_process(int (*run)(void));
/* The two halves of it, for several at once. */
pid_t start_a_process(int (*run)(void));
int end_of_process(pid_t pid);

#endif
