/* streams.h - streams of random prompts through the rings, as one client sees them. The client
 * sleeps while it waits: a spinning one would take a CPU from an engine that computes on all.
 *
 *     struct streams *s = streams_open(instance, 64);
 *     streams_run(s, 32, 16, 64);          // 32 streams, prompts of 16 tokens, 64 tokens each
 *     rate = streams_rate(s);
 *     streams_close(s);
 *
 * What fails ends the program with a sentence.
 */
#ifndef LLMD_BENCH_STREAMS_H
#define LLMD_BENCH_STREAMS_H

#include <stdint.h>

enum { STREAMS_TOKENS_MAX = 4096 };

struct streams;

struct streams *streams_open(const char *instance, uint32_t most);
void streams_close(struct streams *s);

uint32_t streams_max_len(const struct streams *s); /* prompt + generated tokens */

/* Runs `count` streams at once, to their ends. Greedy; no token ends a stream early. `seen` (NULL:
 * nothing) is called at each token of the first stream, right after its time was taken. */
void streams_run(struct streams *s, uint32_t count, uint32_t prompt, uint32_t tokens,
                 void (*seen)(void *context, uint64_t now_ns), void *context);

/* Of the last run: tokens/s of all together, while every stream decodes. */
double streams_rate(const struct streams *s);
/* Milliseconds between the tokens of a stream in that time, all streams; returns how many there
 * are, `max` at most. */
int streams_gaps(const struct streams *s, float *out, int max);
/* Seconds from the submission to the first token, of the first stream. */
double streams_first_s(const struct streams *s);

#endif
