/* board.h - the boards of instances: whether an engine lives, and copies for metrics and health. */
#ifndef LLMD_GATEWAY_BOARD_H
#define LLMD_GATEWAY_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "../../shm/board.h"

/* Follows one instance through the lives of its engines. One thread. */
struct board_watch {
    char name[64]; /* for shm_open */
    int fd;        /* -1: none */
};

void board_watch_open(struct board_watch *w, const char *instance);
void board_watch_close(struct board_watch *w);
/* Whether an engine holds the board's lock now. Two system calls at most while it lives. */
bool board_watch_lives(struct board_watch *w);

struct board_copy {
    struct llm_board board;
    bool lives;
    uint64_t now_ns, real_ns; /* when it was made */
};

/* A private copy (malloc'ed), never a mapping: whoever shares its name could truncate it. NULL:
 * there is no complete board of this version, or no memory. */
struct board_copy *board_read(const char *instance);

/* An engine beats its heart every second, idle or not, or completes a step: far more often than this. */
enum { BOARD_STUCK_S = 30 };
/* False: it did neither for so long. One that is loading makes progress. */
bool board_makes_progress(const struct board_copy *b);

#endif
