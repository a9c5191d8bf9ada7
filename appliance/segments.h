/* segments.h - the sealed memory between engine and clients: creating it, so that the kernel
 * enforces who writes.
 *
 *   segment      engine maps   a client can map    seals
 *   up           read          read and write      SHRINK GROW SEAL
 *   down, pulse  read, write   read                SHRINK GROW SEAL FUTURE_WRITE
 *   vocabulary   -             read                SHRINK GROW SEAL WRITE
 *
 * Invariants
 *   1. Every page that the engine writes exists when the segment is handed out (posix_fallocate),
 * so no store of ours faults for lack of memory later. Of `up` only the first SEGMENT_READY bytes
 *      do: what lies behind comes into being when the client touches it, on its time and account. A
 *      large arena must not hold up the steps of others, and a hole reads as zeros.
 *      A large `down` comes into being piece by piece (segment_begin, _grow), between others' steps.
 *   2. The size never changes: neither side can be made to read past the end.
 *   3. FUTURE_WRITE is set after the engine's own writable mapping and before anyone else can see
 *      the descriptor.
 *
 * Sources: memfd_create(2), fcntl(2) F_ADD_SEALS.
 */
#ifndef LLMD_SEGMENTS_H
#define LLMD_SEGMENTS_H

#include <stddef.h>

#include "../gpu/fail.h"

enum { SEGMENT_READY = 256 << 10 };

/* Who writes it. */
enum segment_side { SEGMENT_FROM_CLIENT, SEGMENT_TO_CLIENT };

struct segment {
    int fd;    /* -1: closed */
    void *map; /* the engine's mapping, or NULL */
    size_t bytes;
    size_t there, ready; /* bytes whose pages exist; that must exist before it is handed out */
};

#define SEGMENT_NONE                                                                               \
    (struct segment)                                                                               \
    {                                                                                              \
        .fd = -1                                                                                   \
    }

/* Zeroed memory that clients write and this process reads. */
int segment_from_client(struct segment *s, const char *name, size_t bytes, struct fail *f);
/* Zeroed memory that this process writes and clients read. */
int segment_to_client(struct segment *s, const char *name, size_t bytes, struct fail *f);
/* The same in pieces: begun, it has no pages yet. Each segment_grow adds up to *budget bytes of them
 * and takes what it added from *budget. 1: it may be handed out; 0: there is more to come; or a
 * code, and the segment is gone. */
int segment_begin(struct segment *s, enum segment_side side, const char *name, size_t bytes,
                  struct fail *f);
int segment_grow(struct segment *s, const char *name, size_t *budget, struct fail *f);

/* A copy of `image` that nobody can change. Not mapped here. */
int segment_frozen(struct segment *s, const char *name, const void *image, size_t bytes,
                   struct fail *f);

/* The descriptor alone: the mapping stays. */
void segment_close_fd(struct segment *s);
/* Both; may be called twice. */
void segment_free(struct segment *s);

#endif
