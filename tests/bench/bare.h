/* bare.h - round trips between two processes without an engine: what the engine's own are compared
 * with. The caller's process is pinned to the first CPU that it may use, the other one to the
 * second; each call returns the p50 in microseconds. */
#ifndef LLMD_BENCH_BARE_H
#define LLMD_BENCH_BARE_H

double bare_word(int trips);  /* one word, both spin */
double bare_ring(int trips);  /* a 128-byte entry there, a 64-byte one back, both spin */
double bare_futex(int trips); /* one word, both sleep in futex(2) */
double bare_unix(int trips);  /* 128 and 64 bytes over a Unix stream socket */
double bare_http(int trips);  /* a small POST and its answer over TCP on loopback, kept alive */

int bare_cpu(int n);   /* the n-th CPU that this process was started with, or -1 */
void bare_pin(int n);  /* the calling thread to it, where there is one */
void bare_unpin(void); /* back to all of them */

#endif
