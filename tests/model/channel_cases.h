/* channel_cases.h - small configurations of channel.h, and faults that can be put into them.
 *
 * A fault is a change of the table of handshakes.h (an operation taken out, weakened, exchanged
 * with its neighbour, on another word), or of the protocol around it.
 */
#ifndef LLMD_TESTS_MODEL_CHANNEL_CASES_H
#define LLMD_TESTS_MODEL_CHANNEL_CASES_H

#include "channel.h"

enum { CHANNEL_EDITS = 2 };

struct channel_fault {
    const char *name, *says;
    struct channel_edit {
        enum handshake row;
        unsigned at;
        struct handshake_op becomes;
    } edit[CHANNEL_EDITS];
    unsigned n_edits;
    unsigned faults;     /* FAULT_... */
    unsigned cq_entries; /* 0: as configured */
};

struct channel_case {
    const char *name, *says;
    struct channel size; /* fields that are not 0 replace the defaults */
    bool big;            /* only where everything is run */
};

extern const struct channel_case channel_cases[];
extern const unsigned n_channel_cases;
extern const struct channel_fault channel_faults[];
extern const unsigned n_channel_faults;

const struct channel_case *channel_case(const char *name);   /* must exist */
const struct channel_fault *channel_fault(const char *name); /* NULL if there is none */

/* Explores the case; `fault` may be NULL. */
void channel_explore(const struct channel_case *c, const struct channel_fault *fault,
                     enum memory memory, bool traced, struct finding *f);

#endif
