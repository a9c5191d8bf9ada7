/* plot.h - a line plot as an SVG file that stands for itself: no script, no font, no other file.
 * It follows the reader's light or dark scheme.
 *
 *      title
 *      subtitle
 *      -o- ours  -#- theirs            legend
 *     y label
 *      |               o ours 630
 *      |        o    # theirs 250     named at the right, if it comes so far; apart where they meet
 *      +--+--+--+--+--
 *            x label
 *
 * x is a doubling scale (1, 2, 4, ...), y is linear from 0 or logarithmic.
 */
#ifndef LLMD_BENCH_PLOT_H
#define LLMD_BENCH_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { PLOT_LINES_MAX = 6, PLOT_TICKS_MAX = 24 };

/* How a line looks; one colour and mark each. */
enum plot_look { PLOT_OURS, PLOT_OURS_PALE, PLOT_PEER, PLOT_PEER_BEST, PLOT_LIMIT, PLOT_LOOKS };

struct plot_line {
    const char *name;  /* in the legend */
    const char *label; /* at its end, behind the value: short */
    enum plot_look look;
    const double *y;          /* (n) NAN: not there */
    const double *low, *high; /* (n) a whisker, or NULL */
};

struct plot {
    const char *title, *subtitle, *x_label, *y_label; /* labels with their units */
    const double *x;                                  /* (n) ascending, > 0; each gets a tick */
    int n;
    bool y_log; /* every y > 0 */
    struct plot_line lines[PLOT_LINES_MAX];
    int n_lines;
};

/* False: writing failed, errno says why. A plot without any point has axes alone. */
bool plot_write(const struct plot *p, FILE *file);

/* ---- for itself and its tests ---- */

/* Round values from 0 to at least `most`, about five of them. Returns how many. */
int plot_ticks(double most, double out[PLOT_TICKS_MAX]);
/* 1, 2, 5, 10, 20, ...: the least one is at most `least`, the greatest at least `most`. */
int plot_log_ticks(double least, double most, double out[PLOT_TICKS_MAX]);
/* Moves values apart to at least `distance` within from .. to, each as little as that needs; their
 * order is kept, equal ones in the order of the array. (n <= PLOT_LINES_MAX; there is room for all.) */
void plot_spread(double *at, int n, double distance, double from, double to);

#endif
