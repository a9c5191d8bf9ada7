/* roof.h - what this machine could do at best, measured with as many threads as the process may
 * use. */
#ifndef LLMD_BENCH_ROOF_H
#define LLMD_BENCH_ROOF_H

#include <stdint.h>

double roof_read_bytes_per_s(void); /* reading 256 MiB of memory (huge pages where granted) */
double roof_f32_ops_per_s(void);    /* likewise of fused multiply-adds of f32 */
double roof_int8_ops_per_s(void);   /* 8-bit multiply and add counted as two; 0 without AVX2 */

uint64_t bench_now_ns(void);
int bench_by_value(const void *a, const void *b);       /* qsort of double */
double bench_median(double *v, int n);                  /* sorts v */
double bench_quantile(double *sorted, int n, double q); /* nearest rank */

#endif
