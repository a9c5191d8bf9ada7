/* alone.h - the backend without an engine around it: one sequence in this process, a step at a
 * time. What a token costs when nothing of ours stands around it.
 *
 *     struct alone *a = alone_open(model, threads, 512);
 *     alone_begin(a, ids, 16);
 *     for (...)
 *         ns = alone_step_ns(a);          // the next token, greedy
 *     alone_rest(a);                      // its threads sleep: the machine is somebody else's
 *
 * What fails ends the program with a sentence.
 */
#ifndef LLMD_BENCH_ALONE_H
#define LLMD_BENCH_ALONE_H

#include <stdint.h>

#include "../../appliance/model/model.h"

struct alone;

struct alone *alone_open(struct model *m, unsigned threads, uint32_t max_len);
/* Forgets the sequence; the new one has the n tokens, of which the last is not yet computed. */
void alone_begin(struct alone *a, const int32_t *ids, uint32_t n);
/* Computes the last token and draws the next; the time of the step. */
uint64_t alone_step_ns(struct alone *a);
void alone_rest(struct alone *a);
void alone_close(struct alone *a);

#endif
