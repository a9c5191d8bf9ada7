/* handshakes.h - the one list of what the ring functions do to shared words, in order.
 *
 * The models execute it: a step of a model is "function, number of the operation", and what it does
 * is what stands here. tests/unit/test_fences.c compares it with the source text. So whoever takes
 * a fence out of the code must take it out here too, and then the model shows the counterexample.
 */
#ifndef LLMD_TESTS_MODEL_HANDSHAKES_H
#define LLMD_TESTS_MODEL_HANDSHAKES_H

enum op {
    OP_NONE,
    OP_ACQUIRE, /* order_acquire */
    OP_RELEASE, /* order_release */
    OP_RELAXED, /* order_relaxed */
    OP_SET,     /* order_set */
    OP_FENCE,   /* order_fence */
    OP_TRAP,    /* in no row: the model reports that it came here */
    OPS
};

enum word {
    WORD_NONE,
    SQ_TAIL,
    SQ_HEAD,
    CQ_TAIL,
    CQ_HEAD,
    CQ_WAIT,
    CQ_HELD,
    NEED_WAKEUP,
    EVICTED,
    WORDS
};

enum handshake {
    /* shm/ring_client.c */
    RECLAIM,
    RING_SUBMIT,
    RING_POLL,
    RING_DRAINED,
    RING_WAIT_BEGIN,
    RING_WAIT_END,
    /* shm/ring_engine.c */
    RING_SWEEP,
    RING_TAKEN,
    REFRESH_CQ_HEAD,
    RING_PUBLISH,
    RING_AFTER_PUBLISH,
    RING_WANTS_WAKE,
    RING_ARM_ALL,
    RING_ARM,
    RING_ARM_FENCE,
    RING_RESCAN,
    RING_DISARM,
    RING_DISARM_ALL,
    RING_EVICT,
    /* client/events.c */
    LOOK_AT_MEMORY,
    HANDSHAKES
};

enum { HANDSHAKE_OPS = 4 };

struct handshake_op {
    enum op op;
    enum word word;
};

struct handshake_row {
    const char *file, *function;
    struct handshake_op op[HANDSHAKE_OPS]; /* up to the first OP_NONE */
};

extern const struct handshake_row handshake_table[HANDSHAKES];
extern const char *const op_name[OPS]; /* as in shm/order.h */
extern const char *const word_name[WORDS];

/* The callers that put the functions above into their order, and that wait for and wake the words:
 * what each calls, of all that is listed in any row. A name with a word: the call names that word.
 */
enum { CALLER_CALLS = 8 };

struct caller_row {
    const char *file, *function;
    const char *call[CALLER_CALLS]; /* up to NULL */
};

extern const struct caller_row caller_table[];
extern const unsigned n_callers;

#endif
