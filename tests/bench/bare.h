/* bare.h - round trips between two processes without an engine: what the engine's own are compared
 * with. The caller's process is pinned to the first CPU that it may use, the other one to the
 * second; each call returns the p50 in microseconds. */
#ifndef LLMD_BENCH_BARE_H
#define LLMD_BENCH_BARE_H

#include <stddef.h>
#include <sys/types.h>

double bare_word(int trips);  /* one word, both spin */
double bare_ring(int trips);  /* a 128-byte entry there, a 64-byte one back, both spin */
double bare_futex(int trips); /* one word, both sleep in futex(2) */
double bare_unix(int trips);  /* 128 and 64 bytes over a Unix stream socket */
double bare_http(int trips);  /* a small POST and its answer over TCP on loopback, kept alive */

/* What a sleeper costs whoever wakes it when nothing of the kernel is left in the caches: between two
 * wakes `bytes` of memory are read, as a step reads the weights, while busy - 1 other processes spin,
 * as a step's threads do. p50 in microseconds: of the call, and from its beginning until the sleeper,
 * which runs where the system lets it, is back. */
struct bare_wake {
    double call, back;
};
struct bare_wake bare_wake_swept(int trips, size_t bytes, unsigned busy);

pid_t bare_spin(int n);     /* a process that spins on the n-th CPU, or, with -1, on any */
void bare_end(pid_t child); /* ends one */

int bare_cpu(int n);   /* the n-th CPU that this process was started with, or -1 */
void bare_pin(int n);  /* the calling thread to it, where there is one */
void bare_unpin(void); /* back to all of them */

#endif
