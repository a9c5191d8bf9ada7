/* slots.h - the model of one slot and its clients, one after another: states, generations, and
 * events that come late.
 *
 *        admit            leave, evict               let_go
 *   FREE -----> LIVE ---------------------> LEAVING ---------> DRAINING -----> FREE, generation + 1
 *
 * A client's death is told by its socket and by its pidfd, in any order and as late as they like; a
 * futex wait ends by a wake, by a cancel, or not at all (munmap does not end it); with a device, up
 * to two steps that name the slot run on. Each completion carries the generation that it was made
 * for. All is done by the engine's one thread, so the memory does not matter.
 *
 * Two rules say when a slot is free:
 *   appliance/clients.h: once no wait in the kernel and no step names it.
 *   generations alone: once no step names it; what the waits still bring is dropped.
 *
 * Properties
 *   1. Nothing that was meant for an old client reaches a new one: deaths, results, wakes.
 *   2. Under the first rule, nothing is unmapped or closed while a wait in the kernel names it.
 *   3. Blocks of the KV pool are freed after the last step that used them.
 *   4. Every slot becomes free, and no wait outlives the last client.
 */
#ifndef LLMD_TESTS_MODEL_SLOTS_H
#define LLMD_TESTS_MODEL_SLOTS_H

#include "explore.h"

enum {
    SLOTS_ANY_SOCKET = 1 << 0,   /* on_client does not compare the generation: socket */
    SLOTS_ANY_PROCESS = 1 << 1,  /* ... pidfd */
    SLOTS_ANY_FUTEX = 1 << 2,    /* ... futex */
    SLOTS_ANY_STEP = 1 << 3,     /* results of a step: the generation is not compared */
    SLOTS_NO_BUMP = 1 << 4,      /* clients_free keeps the generation */
    SLOTS_NO_CANCEL = 1 << 5,    /* let_go cancels nothing */
    SLOTS_NO_BITS = 1 << 6,      /* on_client does not look at `armed` */
    SLOTS_EARLY = 1 << 7,        /* free while steps still run */
    SLOTS_BLOCKS_EARLY = 1 << 8, /* blocks are freed in clients_leave */
    SLOTS_NO_BLOCKS = 1 << 9     /* no fault: property 3 is not looked at, to see the others */
};

struct slots {
    const char *name, *says;
    bool generations_alone;
    bool device; /* steps run on while the engine's thread goes on */
    unsigned clients;
    unsigned faults;
    const char *violation; /* what must be found in it, or NULL */
};

extern const struct slots slots_cases[];
extern const unsigned n_slots_cases;

void slots_explore(const struct slots *c, bool traced, struct finding *f);

#endif
