/* avx512_ops.c - the operations of ops.h on AVX-512. */
#include "ops.h"

#ifdef __AVX512F__

#include "vec_avx512.h"
#include "vec_ops.h"

const struct ops_kernels ops_avx512 = {
    .rms_norm = rms_norm, .add = add, .swiglu = swiglu, .rope = rope};

#else

const struct ops_kernels ops_avx512 = {0};

#endif
