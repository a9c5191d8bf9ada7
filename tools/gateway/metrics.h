/* metrics.h - the boards of engines as Prometheus text, version 0.0.4.
 *
 *     struct metrics_instance one = {.board = &copy, .model = "smollm2", .lives = true,
 *                                    .now_ns = monotonic, .real_ns = realtime};
 *     metrics_write(out, &one, 1);
 *
 * All samples of a name stand together, as the format wants it: so all instances are written at
 * once. Names: vLLM's (vllm:...) where the meaning is the same, so that dashboards and autoscalers
 * made for it work; llmd_... for what is ours. Each sample of an instance carries model_name.
 */
#ifndef LLMD_METRICS_H
#define LLMD_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct llm_board;

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct metrics_instance {
    /* A private copy, never a mapping: whoever shares the board's name could truncate it. NULL:
     * there is none; then only llmd_up says so. */
    const struct llm_board *board;
    const char *instance; /* the engine's --instance */
    const char *model;    /* the name that it is served under */
    bool lives;           /* the board's lock is held */
    uint64_t now_ns;      /* CLOCK_MONOTONIC when the copy was made */
    uint64_t real_ns;     /* CLOCK_REALTIME */
};

/* Two instances have two `instance` names. 0, or -EIO where `out` took not everything. */
int metrics_write(FILE *out, const struct metrics_instance *instances, size_t n);

#endif
