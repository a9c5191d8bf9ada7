/* avx2_ops.c - the operations of ops.h on AVX2. */
#include "ops.h"

#ifdef __AVX2__

#include "vec_avx2.h"
#include "vec_ops.h"

const struct ops_kernels ops_avx2 = {
    .rms_norm = rms_norm, .add = add, .swiglu = swiglu, .rope = rope};

#else

const struct ops_kernels ops_avx2 = {0};

#endif
