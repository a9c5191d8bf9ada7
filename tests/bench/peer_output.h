/* peer_output.h - what llama-batched-bench says: with `--output-format jsonl` an object a line for
 * each combination of prompt length, tokens and streams, among other lines.
 */
#ifndef LLMD_BENCH_PEER_OUTPUT_H
#define LLMD_BENCH_PEER_OUTPUT_H

#include <stdint.h>

#include "../../gpu/fail.h"

/* What one stream does, and how many there are. */
struct peer_load {
    uint32_t prompt, tokens, streams;
};

/* Tokens/s of all streams together. */
struct peer_speed {
    double prefill, decode;
};

/* Finds the line of that load. 0; -EPROTO with a sentence where it is not there or not as expected. */
int peer_output_read(const char *text, const struct peer_load *load, struct peer_speed *out,
                     struct fail *f);

/* What a program said last before it failed: the last line that is not blank, up to `size`. */
void peer_output_last_line(const char *text, char *out, size_t size);

#endif
