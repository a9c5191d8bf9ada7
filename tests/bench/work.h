/* work.h - what a token costs at least: the bytes of weights that it reads and the weights that it
 * multiplies, and the token rates that a machine's limits allow for that.
 *
 * Counted are the products with matrices alone. Attention, norms and the look-up of the embedding
 * come on top, so a limit of this kind cannot be reached.
 *
 *   one stream      reads every matrix once a token: read bandwidth / bytes
 *   n streams       read them once for n tokens, and multiply: the lower of
 *                   n * read bandwidth / bytes and int8 operations / (2 * weights)
 *   prefill of n    multiplies the layers n times and the output head once
 */
#ifndef LLMD_BENCH_WORK_H
#define LLMD_BENCH_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "../../gpu/gpu.h"

struct work {
    double bytes;         /* of all matrices as the backend packs them, the output head too (tied or
                           * not), an embedding that only looks up not */
    double layer_weights; /* of all layers' matrices */
    double head_weights;
    bool int8; /* every matrix takes int8 activations: the int8 limit is its own */
};

struct work work_of(const struct gpu_model *m);

/* Tokens/s. ops == 0: not known, only reading limits. *by_reading: which of both it is. */
double work_decode_limit(const struct work *w, uint32_t streams, double read_bytes_per_s,
                         double ops_per_s, bool *by_reading);
double work_prefill_limit(const struct work *w, uint32_t tokens, double read_bytes_per_s,
                          double ops_per_s, bool *by_reading);

#endif
