/* engine_load.h - random seeded workloads on the engine's rig: generations of one and several
 * choices, scores, labels, sessions (open, append, replace, rewind, fork, close, generate, interrupt),
 * stop strings, biases, candidates, cancels, rings that are full, clients that leave, few blocks, all kinds of limits.
 *
 *     struct load k;
 *     load_begin(&k, seed);      // limits are in k.r.config, to be changed if wanted
 *     rig_open(&k.r);
 *     load_run(&k, entries);     // then everything has its final
 *     ... look at k.r.streams
 *     load_check(&k);            // with the fake backend: every stream is as if it were alone
 *     rig_close(&k.r);
 */
#ifndef LLMD_TESTS_ENGINE_LOAD_H
#define LLMD_TESTS_ENGINE_LOAD_H

#include "../../appliance/token_text.h"

#include "engine_rig.h"

enum { LOAD_PIECES = 300 };

struct load {
    struct rig r;
    struct token_text text;
    uint32_t end[LOAD_PIECES];
    char bytes[3 * LOAD_PIECES];
    uint64_t random;
    uint32_t n;      /* entries so far */
    bool may_fail;   /* steps may fail; after the first one others will */
    bool has_failed; /* one has */
    bool stays_here; /* no client leaves */
    bool shut_down;  /* at the end, in the middle of everything */
    bool audited;    /* rig_audit between all steps */
    uint32_t served; /* streams that came whole; of load_check */
};

uint32_t load_below(struct load *k, uint32_t n);
void load_begin(struct load *k, uint64_t seed);
void load_run(struct load *k, uint32_t entries);
void load_check(struct load *k);

/* Was it ended before its end: by a cancel, its client, a time, a failed step? */
bool load_cut_short(const struct rig_stream *s);
/* Was it taken at all? */
bool load_refused(const struct rig_stream *s);

#endif
