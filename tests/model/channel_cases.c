/* channel_cases.c - see channel_cases.h */
#include "channel_cases.h"

#include <assert.h>
#include <string.h>

/* clang-format off */
const struct channel_case channel_cases[] = {
    {"submit", "two clients submit, the engine's futex waits stay armed",
     {.silent = true, .clients = 2, .requests = {2, 1}}, false},
    {"submit-fresh", "the same, futex waits armed anew for each sleep",
     {.silent = true, .clients = 2, .requests = {2, 1}, .engine_wait = WAIT_FRESH}, false},
    {"submit-sockets", "the same without futex: sockets are the engine's bells",
     {.silent = true, .clients = 2, .requests = {2, 1}, .engine_wait = WAIT_SOCKETS}, false},
    {"submit-looks", "the same, the engine looks every now and then",
     {.silent = true, .clients = 2, .requests = {2, 1}, .engine_wait = WAIT_LOOKS}, false},
    {"submit-full", "four requests through a submission ring of two, over the wrap",
     {.silent = true, .requests = {4}}, false},
    {"submit-batch", "the same, two entries a ring_submit",
     {.silent = true, .requests = {4}, .batch = 2}, false},
    {"submit-big", "two clients, two requests each",
     {.silent = true, .clients = 2, .requests = {2, 2}}, true},
    {"complete", "two clients wait in futexes for what they submitted before",
     {.submitted = true, .clients = 2, .requests = {1, 1}}, false},
    {"complete-bell", "the same, asleep in poll with a bell",
     {.submitted = true, .clients = 2, .requests = {1, 1}, .client_wait = WAIT_BELL}, false},
    {"complete-either", "the same, now in a futex, now with a bell",
     {.submitted = true, .clients = 2, .requests = {1, 1}, .client_wait = WAIT_EITHER}, false},
    {"complete-spin", "the same, spinning",
     {.submitted = true, .clients = 2, .requests = {1, 1}, .client_wait = WAIT_SPIN}, false},
    {"complete-both", "two clients submit, and wait for what comes of it",
     {.clients = 2, .requests = {1, 1}}, true},
    {"complete-big", "two clients, two tokens each",
     {.submitted = true, .clients = 2, .requests = {1, 1}, .tokens = 2}, true},
    {"drain", "two requests over a full ring: tokens are held, both sides sleep",
     {.requests = {2}, .tokens = 2}, false},
    {"drain-late", "the same, the head is published at every second completion",
     {.requests = {2}, .tokens = 2, .release_every = 2}, false},
    {"drain-fresh", "the same, the engine's futex waits armed anew for each sleep",
     {.requests = {2}, .tokens = 2, .engine_wait = WAIT_FRESH}, false},
    {"drain-sockets", "the same, sockets are the engine's bells",
     {.requests = {2}, .tokens = 2, .engine_wait = WAIT_SOCKETS}, false},
    {"drain-bell", "the same, the client asleep in poll with a bell",
     {.requests = {2}, .tokens = 2, .client_wait = WAIT_BELL}, false},
    {"drain-looks", "the same, the engine looks every now and then",
     {.requests = {2}, .tokens = 2, .engine_wait = WAIT_LOOKS}, false},
    {"drain-either", "one place for tokens; the client asleep now in a futex, now with a bell",
     {.requests = {2}, .max_inflight = 3, .client_wait = WAIT_EITHER}, false},
    {"drain-spin", "the same, spinning",
     {.requests = {2}, .tokens = 2, .client_wait = WAIT_SPIN}, false},
    {"wrap", "three requests over the wrap of both rings, more than max_inflight",
     {.requests = {3}, .tokens = 1}, false},
    {"wrap-late", "the same, the head is published at every second completion",
     {.requests = {3}, .tokens = 1, .release_every = 2}, false},
    {"tight", "three requests, one at a time, through a completion ring of two",
     {.requests = {3}, .tokens = 1, .cq_entries = 2, .max_inflight = 1}, false},
    {"tight-late", "the same, the head is published when the ring is empty, or with a request",
     {.requests = {3}, .tokens = 1, .cq_entries = 2, .max_inflight = 1, .release_every = 3}, false},
    {"room", "two requests, of which one alone could fill the ring",
     {.requests = {2}, .tokens = 3, .release_every = 3}, false},
    {"wrap-big", "four requests of two tokens",
     {.requests = {4}, .tokens = 2}, true},
    {"wrap-big-late", "the same, the head is published at every second completion",
     {.requests = {4}, .tokens = 2, .release_every = 2}, true},
    {"wrap-big-bell", "the same with a bell",
     {.requests = {3}, .tokens = 2, .client_wait = WAIT_BELL}, true},
    {"wrap-big-sockets", "neither side has futexes",
     {.requests = {3}, .tokens = 2, .client_wait = WAIT_BELL, .engine_wait = WAIT_SOCKETS}, true},
};

const struct channel_fault channel_faults[] = {
    /* the fences */
    {"noC1", "ring_submit without its fence", .edit = {{RING_SUBMIT, 2, {OP_NONE}}}, .n_edits = 1},
    {"noE1", "ring_arm_fence does nothing", .edit = {{RING_ARM_FENCE, 0, {OP_NONE}}}, .n_edits = 1},
    {"noE2", "ring_after_publish does nothing",
     .edit = {{RING_AFTER_PUBLISH, 0, {OP_NONE}}}, .n_edits = 1},
    {"noC2", "ring_wait_begin without its fence",
     .edit = {{RING_WAIT_BEGIN, 1, {OP_NONE}}}, .n_edits = 1},
    {"noC3", "ring_drained without its fence",
     .edit = {{RING_DRAINED, 1, {OP_NONE}}}, .n_edits = 1},
    {"earlyC1", "ring_submit fences before it publishes the tail",
     .edit = {{RING_SUBMIT, 1, {OP_FENCE}}, {RING_SUBMIT, 2, {OP_RELEASE, SQ_TAIL}}}, .n_edits = 2},
    {"earlyC2", "ring_wait_begin fences before it sets cq_wait",
     .edit = {{RING_WAIT_BEGIN, 0, {OP_FENCE}}, {RING_WAIT_BEGIN, 1, {OP_SET, CQ_WAIT}}},
     .n_edits = 2},
    {"earlyC3", "ring_drained fences before it publishes the head",
     .edit = {{RING_DRAINED, 0, {OP_FENCE}}, {RING_DRAINED, 1, {OP_RELEASE, CQ_HEAD}}},
     .n_edits = 2},
    /* the last looks */
    {"norescan", "ring_rescan looks at nothing",
     .edit = {{RING_RESCAN, 0, {OP_NONE}}, {RING_RESCAN, 1, {OP_NONE}}}, .n_edits = 2},
    {"norescan-head", "ring_rescan does not look at cq_head",
     .edit = {{RING_RESCAN, 1, {OP_NONE}}}, .n_edits = 1},
    {"rescan-relaxed", "ring_rescan loads relaxed",
     .edit = {{RING_RESCAN, 0, {OP_RELAXED, SQ_TAIL}}, {RING_RESCAN, 1, {OP_RELAXED, CQ_HEAD}}},
     .n_edits = 2},
    {"norecheck", "ring_wait_begin does not look at cq_tail again",
     .edit = {{RING_WAIT_BEGIN, 2, {OP_NONE}}}, .n_edits = 1},
    /* the flags */
    {"noneed", "ring_arm_all does not set need_wakeup",
     .edit = {{RING_ARM_ALL, 0, {OP_NONE}}}, .n_edits = 1},
    {"noheld", "ring_arm does not set cq_held", .edit = {{RING_ARM, 0, {OP_NONE}}}, .n_edits = 1},
    {"nowait", "ring_wait_begin does not set cq_wait",
     .edit = {{RING_WAIT_BEGIN, 0, {OP_NONE}}}, .n_edits = 1},
    {"nodisarm", "the engine's flags stay set",
     .edit = {{RING_DISARM, 0, {OP_NONE}}, {RING_DISARM_ALL, 0, {OP_NONE}}}, .n_edits = 2},
    {"nowaitend", "cq_wait stays set",
     .edit = {{RING_WAIT_END, 0, {OP_NONE}}, {RING_WAIT_BEGIN, 3, {OP_NONE}}}, .n_edits = 2},
    /* acquire and release */
    {"submit-set", "ring_submit stores sq_tail relaxed",
     .edit = {{RING_SUBMIT, 1, {OP_SET, SQ_TAIL}}}, .n_edits = 1},
    {"sweep-relaxed", "ring_sweep loads sq_tail relaxed",
     .edit = {{RING_SWEEP, 0, {OP_RELAXED, SQ_TAIL}}}, .n_edits = 1},
    {"taken-set", "ring_taken stores sq_head relaxed",
     .edit = {{RING_TAKEN, 0, {OP_SET, SQ_HEAD}}}, .n_edits = 1},
    {"reclaim-relaxed", "reclaim loads sq_head relaxed",
     .edit = {{RECLAIM, 0, {OP_RELAXED, SQ_HEAD}}}, .n_edits = 1},
    {"publish-set", "ring_publish stores cq_tail relaxed",
     .edit = {{RING_PUBLISH, 0, {OP_SET, CQ_TAIL}}}, .n_edits = 1},
    {"poll-relaxed", "ring_poll loads cq_tail relaxed",
     .edit = {{RING_POLL, 0, {OP_RELAXED, CQ_TAIL}}}, .n_edits = 1},
    {"heads-set", "ring_drained and ring_submit store cq_head relaxed",
     .edit = {{RING_DRAINED, 0, {OP_SET, CQ_HEAD}}, {RING_SUBMIT, 0, {OP_SET, CQ_HEAD}}},
     .n_edits = 2},
    {"heads-relaxed", "ring_sweep and refresh_cq_head load cq_head relaxed",
     .edit = {{RING_SWEEP, 1, {OP_RELAXED, CQ_HEAD}}, {REFRESH_CQ_HEAD, 0, {OP_RELAXED, CQ_HEAD}}},
     .n_edits = 2},
    /* order and words */
    {"headfirst", "ring_sweep loads cq_head before sq_tail",
     .edit = {{RING_SWEEP, 0, {OP_ACQUIRE, CQ_HEAD}}, {RING_SWEEP, 1, {OP_ACQUIRE, SQ_TAIL}}},
     .n_edits = 2},
    {"nohead", "ring_submit does not publish cq_head",
     .edit = {{RING_SUBMIT, 0, {OP_NONE}}}, .n_edits = 1},
    {"wakeword", "progress of cq_head wakes sq_tail", .faults = FAULT_WAKE_WORD},
    {"waitword", "an engine that holds tokens waits on sq_tail alone", .faults = FAULT_WAIT_WORD},
    {"nodrain", "a client that publishes cq_head does not look at cq_held",
     .faults = FAULT_NO_DRAIN},
    {"norelease", "cq_head is not published when the ring is found empty",
     .faults = FAULT_NO_RELEASE},
    {"lookfirst", "cq_wait is read before cq_tail is published", .faults = FAULT_LOOK_FIRST},
    {"halfarmed", "the engine sleeps though its last wait was not handed over",
     .faults = FAULT_HALF_ARMED},
    {"wakeonce", "of two publishes only one wakes", .faults = FAULT_WAKE_ONCE},
    /* bells */
    {"socketlate", "the engine empties its sockets between the last look and the wait",
     .faults = FAULT_SOCKET_LATE},
    {"belllate", "the client empties its bell between the recheck and the wait",
     .faults = FAULT_BELL_LATE},
    {"bellfutex", "the engine wakes the futex of a client that waits for its bell",
     .faults = FAULT_BELL_FUTEX},
    /* room */
    {"noreserve", "tokens fill the completion ring", .faults = FAULT_NO_RESERVE},
    {"fewreserved", "room is kept only for the finals that are owed now",
     .faults = FAULT_FEW_RESERVED},
    {"capacity", "the capacity does not divide 2^32", .cq_entries = 3},
};
/* clang-format on */

const unsigned n_channel_cases = sizeof channel_cases / sizeof channel_cases[0];
const unsigned n_channel_faults = sizeof channel_faults / sizeof channel_faults[0];

const struct channel_case *channel_case(const char *name)
{
    for (unsigned i = 0; i < n_channel_cases; i++)
        if (!strcmp(channel_cases[i].name, name))
            return &channel_cases[i];
    fprintf(stderr, "no case '%s'\n", name);
    assert(false);
    return NULL;
}

const struct channel_fault *channel_fault(const char *name)
{
    for (unsigned i = 0; i < n_channel_faults; i++)
        if (!strcmp(channel_faults[i].name, name))
            return &channel_faults[i];
    return NULL;
}

static void resize(struct channel *c, const struct channel *size)
{
    c->silent = size->silent;
    c->submitted = size->submitted;
    c->engine_wait = size->engine_wait;
    c->client_wait = size->client_wait;
    memcpy(c->requests, size->requests, sizeof c->requests);
    if (size->clients)
        c->clients = size->clients;
    if (size->tokens)
        c->tokens = size->tokens;
    if (size->batch)
        c->batch = size->batch;
    if (size->cq_entries)
        c->cq_entries = size->cq_entries;
    if (size->max_inflight)
        c->max_inflight = size->max_inflight;
    if (size->release_every)
        c->release_every = size->release_every;
}

static void apply(struct channel *c, const struct channel_fault *fault)
{
    for (unsigned i = 0; i < fault->n_edits; i++)
        c->op[fault->edit[i].row][fault->edit[i].at] = fault->edit[i].becomes;
    c->faults = fault->faults;
    if (fault->cq_entries) {
        c->cq_entries = fault->cq_entries;
        c->max_inflight = 1;
    }
}

void channel_explore(const struct channel_case *c, const struct channel_fault *fault,
                     enum memory memory, bool traced, struct finding *f)
{
    struct channel channel;
    struct model m;
    channel_defaults(&channel);
    resize(&channel, &c->size);
    if (fault)
        apply(&channel, fault);
    channel_model(&channel, memory, &m);
    explore(&m, traced, f);
}
