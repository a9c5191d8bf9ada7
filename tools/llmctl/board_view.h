/* board_view.h - the board of an instance, as an observer sees it: a private copy, never a mapping,
 * because whoever shares its name could truncate it under one.
 *
 * The figures of one copy need not be of one moment: each is a relaxed load of the engine's.
 */
#ifndef LLMCTL_BOARD_VIEW_H
#define LLMCTL_BOARD_VIEW_H

#include <stdbool.h>

#include "../../shm/board.h"
#include "llmctl.h"

struct board_view {
    struct llm_board board;
    bool lives;      /* the board's lock is held: for an engine's life */
    uint64_t now_ns; /* CLOCK_MONOTONIC and CLOCK_REALTIME when it was read */
    uint64_t real_ns;
};

/* malloc'ed; NULL after a message. */
struct board_view *board_view_create(void);

/* Reads the board of ctl_instance. 0, or 1 after a message; with `quiet` without one: -ENOENT where
 * there is no board, else 1. */
int board_view_read(struct board_view *v);
int board_view_read_quiet(struct board_view *v);

/* "starting", "ready", "draining", "stopped", "dead" */
const char *board_view_state(const struct board_view *v);
/* Since the last step or heartbeat, nanoseconds; UINT64_MAX: there was none. */
uint64_t board_view_since(const struct board_view *v, const order_u64 *moment);
/* How long the engine has run, or ran until its last sign of life. */
double board_view_uptime_s(const struct board_view *v);

/* Name of enum llm_refusal i, as in refused_for. */
const char *board_refusal_name(unsigned i);

/* Visits the last errors, the oldest first. `text` ends with NUL. */
void board_view_errors(const struct board_view *v,
                       void (*each)(void *context, uint64_t t_ns, const char *text), void *context);

/* ---- histograms ---- */

/* One that nobody writes: a copy, or the difference of two. */
struct histogram {
    uint64_t count, sum_ns, max_ns;
    uint64_t bucket[LLM_HIST_BUCKETS];
};

/* What `late` counted after `early` (NULL: all). The greatest value of a difference is not known:
 * max_ns is that of `late`. An `early` that is not earlier (of another engine) counts as NULL. */
void histogram_between(struct histogram *out, const struct llm_histogram *late,
                       const struct llm_histogram *early);
/* The upper edge of the bucket that holds the q-quantile, at most the greatest value, microseconds;
 * 0 of none. */
double histogram_quantile_us(const struct histogram *h, double q);
/* The lower edge: a lower bound. */
double histogram_floor_us(const struct histogram *h, double q);

#endif
