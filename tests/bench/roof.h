/* roof.h - what this machine could do at best, measured with as many threads as the process may
 * use. */
#ifndef LLMD_BENCH_ROOF_H
#define LLMD_BENCH_ROOF_H

#include <stdbool.h>
#include <stdint.h>

unsigned roof_threads(void); /* how many: one for each CPU that the process may use, 64 at most */

bool roof_has_avx2(void);

/* The best of a few passes: what disturbs one only makes it slower. */
double roof_read_bytes_per_s(void); /* reading 256 MiB of memory (huge pages where granted) */
double roof_f32_ops_per_s(void);    /* multiply and add of f32 counted as two; 0 without AVX2 */
/* The same of int8, by the instructions that the backend would take here: AVX-512 VNNI or AVX2. */
double roof_int8_ops_per_s(bool only_avx2);
const char *roof_int8_name(bool only_avx2);

uint64_t bench_now_ns(void);
int bench_by_value(const void *a, const void *b);       /* qsort of double */
double bench_median(double *v, int n);                  /* sorts v */
double bench_quantile(double *sorted, int n, double q); /* nearest rank */

/* Ends the program with a sentence. */
_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
