/* board.h - the engine's side of the board (shm/board.h): creating it, keeping it alive, removing
 * it.
 *
 * Anyone of the same uid may truncate a named segment; the engine's next store to it would then
 * raise SIGBUS. Invariant: after board_create every address of the map can be stored to for as long
 * as the process lives. The handler maps anonymous memory over the range, counts board_lost there,
 * and the engine goes on, unseen by observers but unharmed.
 *
 * The name is that of the instance alone, whatever the runtime directory. So the board has a lock
 * of its own (flock), held for life: who finds it free knows that the board is stale, and an engine
 * removes no board but its own.
 */
#ifndef LLMD_BOARD_SERVER_H
#define LLMD_BOARD_SERVER_H

#include <stdint.h>

#include "../gpu/fail.h"
#include "../shm/board.h"

struct board {
    struct llm_board *map; /* NULL: none */
    uint64_t errors;       /* written so far; the board itself is never read back */
    char name[64];
    int fd; /* holds the lock; valid with map */
};

/* A new board in state STARTING, zero but for that, in place of a stale one; -EBUSY where an engine
 * holds the board of that name. The caller fills the identity, then calls board_publish. One board
 * a process. */
int board_create(struct board *b, const char *instance, struct fail *f);
/* Stores magic, with release: observers may read from now on. */
void board_publish(struct board *b);
/* Unlinks and unmaps; may be called on an empty one. */
void board_remove(struct board *b);

/* Writes one sentence into the ring of last errors. */
__attribute__((format(printf, 3, 4))) void board_error(struct board *b, int64_t code,
                                                       const char *format, ...);

#endif
