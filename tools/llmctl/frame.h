/* frame.h - what `top` shows, as lines of text for a given width: nothing of terminals here.
 *
 * A frame is built of groups: a heading, then items that flow into as many lines as the width
 * needs. So the same frame fits 80 columns and 40.
 */
#ifndef LLMCTL_FRAME_H
#define LLMCTL_FRAME_H

#include "board_view.h"

enum { FRAME_LINES = 64, FRAME_WIDTH_MIN = 24, FRAME_WIDTH_MAX = 200 };

struct frame {
    unsigned width, n, used; /* used: columns of the last line */
    char lines[FRAME_LINES][FRAME_WIDTH_MAX + 1];
};

/* Figures of `now`; rates and quantiles since `before` (NULL: since the engine's start). `gone`: the
 * board has been taken away since. At most `max_lines` (0: all). */
void frame_build(struct frame *f, unsigned width, unsigned max_lines, const struct board_view *now,
                 const struct board_view *before, bool gone);

#endif
