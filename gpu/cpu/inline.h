/* inline.h - for kernel bodies that are compiled once for each of several constants: functions and
 * loops that must become straight code, so that arrays of sums become registers.
 */
#ifndef LLMD_CPU_INLINE_H
#define LLMD_CPU_INLINE_H

#define INLINE static inline __attribute__((always_inline))

/* Before a loop of constant bounds, at most 16. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
