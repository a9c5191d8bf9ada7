/* fetch.h - reads stretches of the model file into memory, with many reads in flight (io_uring)
 * where the kernel grants a ring, else one after the other.
 */
#ifndef LLMD_MODEL_FETCH_H
#define LLMD_MODEL_FETCH_H

#include <stdint.h>

#include "gguf.h"

enum {
    FETCH_DEPTH = 16,      /* reads in flight */
    FETCH_CHUNK = 1 << 20, /* bytes of each */
    FETCH_PLAIN = 0        /* as a depth: no ring */
};

struct fetch_job {
    const char *what; /* for messages: the tensor's name */
    uint64_t offset, bytes;
    void *dst;
    /* Called with each stretch of dst as it becomes whole: in order, without gaps. */
    void (*arrived)(void *context, const void *at, uint64_t bytes);
    void *context;
};

struct fetch;

/* `depth` 1 .. FETCH_DEPTH, or FETCH_PLAIN. Keeps g, for its descriptor and its name. */
int fetch_open(struct fetch **out, const struct gguf *g, unsigned depth, struct fail *f);
int fetch_read(struct fetch *x, const struct fetch_job *job, struct fail *f);
void fetch_close(struct fetch *x); /* NULL is allowed */

#endif
