/* machine.h - the memories that the models run on, and how a model's thread is written.
 *
 *   SC   one memory; every store is seen at once.
 *   TSO  x86: each thread has a FIFO of stores that reach memory one by one, at any time; its own
 *        loads look into it first; a fence and every locked operation wait until it is empty.
 *   RA   C11 release / acquire as a machine of views. Each location is a list of messages {value,
 *        view} in the order of its one writer; a thread may read any message that is not older
 *        than its own view of that location, so a store may stay unseen for as long as nothing
 *        orders it. A release store carries the writer's view, an acquire load joins it; a full
 *        fence joins a view that all full fences share, both ways.
 *
 * Plain data (ring entries, texts) goes through machine_read and machine_write. Under RA they judge
 * whether the accesses race: the last write must happen before each read, and each read before the
 * next write. Under SC and TSO a value that is not what was meant shows the same fault.
 *
 * Invariants
 *   1. A location has one writer: that is why the order of its messages is known.
 *   2. The kernel's and the models' own bytes are read and written within single steps: the kernel
 *      does so under the lock of a futex bucket or a socket, which here is a kernel object with a
 *      view of its own.
 *   3. Equal situations are equal states: messages that nobody can read any more are dropped.
 *
 * Sources: Sewell et al., "x86-TSO" (2010); Lahav et al., "Repairing Sequential Consistency in
 * C/C++11" (2017), without load buffering, which neither x86 nor acquire loads followed by release
 * stores show; futex(2) and the comment on ordering at the head of Linux's kernel/futex/waitwake.c.
 */
#ifndef LLMD_TESTS_MODEL_MACHINE_H
#define LLMD_TESTS_MODEL_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum memory { MEMORY_SC, MEMORY_TSO, MEMORY_RA, MEMORIES };
extern const char *const memory_name[MEMORIES];

enum {
    THREADS_MAX = 4,
    DEPTH_MAX = 5, /* of calls within a thread */
    LOCATIONS_MAX = 40,
    MESSAGES_MAX = 16,
    BUFFERED_MAX = 24,
    OBJECTS_MAX = 6,
    OWN_MAX = 160,
    CHOICES_MAX = 8,
    CHOICE_MAX = 16
};

struct view {
    uint8_t at[LOCATIONS_MAX]; /* index of a message */
};

struct buffered {
    uint8_t location, value;
};

struct state {
    uint16_t pc[THREADS_MAX][DEPTH_MAX];
    uint8_t ended;        /* a bit a thread */
    uint8_t own[OWN_MAX]; /* the model's: registers of the threads, kernel, ghosts */
    /* SC, TSO */
    uint8_t memory[LOCATIONS_MAX];
    uint8_t n_buffered[THREADS_MAX];
    struct buffered buffer[THREADS_MAX][BUFFERED_MAX];
    /* RA */
    uint8_t n_messages[LOCATIONS_MAX]; /* oldest first */
    uint8_t value[LOCATIONS_MAX][MESSAGES_MAX];
    struct view message[LOCATIONS_MAX][MESSAGES_MAX];
    struct view current[THREADS_MAX];  /* what the thread is bound to see */
    struct view acquired[THREADS_MAX]; /* what it would be bound to after an acquire fence */
    struct view released[THREADS_MAX]; /* what it had seen at its last full fence */
    struct view fences;                /* what all full fences share */
    struct view object[OBJECTS_MAX];
};

struct location {
    char name[24];
    uint8_t users; /* threads that access it, a bit each */
    uint8_t initial;
};

struct machine {
    enum memory memory;
    unsigned n_threads, n_locations, n_objects, own_bytes;
    struct location location[LOCATIONS_MAX];
};

/* The picks of one step, where the machine or the model leaves something open. */
struct choices {
    unsigned n, at;
    uint8_t pick[CHOICES_MAX], of[CHOICES_MAX];
};

/* One step of one thread. */
struct run {
    const struct machine *machine;
    const void *model; /* its configuration */
    struct state *s;
    unsigned thread, depth;
    struct choices *choices;
    const char *thread_name;
    const char *violation; /* the first property that this step broke, or NULL */
    FILE *trace;           /* NULL while searching */
};

/* The index of a new location. */
unsigned machine_location(struct machine *m, unsigned users, uint8_t initial, const char *format,
                          ...) __attribute__((format(printf, 4, 5)));
/* Memory, buffers and views as they are before the first step; own bytes are zero. */
void machine_start(const struct machine *m, struct state *s);
/* Invariant 3. */
void machine_canonical(const struct machine *m, struct state *s);
/* The used bytes of a state, and back. */
size_t machine_pack(const struct machine *m, const struct state *s, uint8_t *out);
void machine_unpack(const struct machine *m, struct state *s, const uint8_t *in);
/* TSO: the thread's oldest buffered store reaches memory. False if there is none. */
bool machine_drain(struct run *x);
/* The newest value, whoever may see it. */
uint8_t machine_newest(const struct machine *m, const struct state *s, unsigned location);

uint8_t machine_load(struct run *x, unsigned location, bool acquire);
/* Time has passed: the thread can no longer miss the newest store. It orders nothing. */
uint8_t machine_catch_up(struct run *x, unsigned location);
void machine_store(struct run *x, unsigned location, uint8_t value, bool release);
/* A full fence. False: not yet, the thread's buffer is not empty. */
bool machine_fence(struct run *x);
/* Into a kernel object and out of it: its lock is acquired and released. `full`: with a full
 * barrier before, as FUTEX_WAIT and FUTEX_WAKE have. False: not yet. */
bool machine_enter(struct run *x, unsigned object, bool full);
void machine_leave(struct run *x, unsigned object);
/* What the other side of the object did happened before, without a call: a completion that lies in
 * memory. */
void machine_see(struct run *x, unsigned object);

/* Plain data; `reads` is a ghost location that counts the reads (RA). */
uint8_t machine_read(struct run *x, unsigned location, unsigned reads);
void machine_write(struct run *x, unsigned location, unsigned reads, uint8_t value);

/* One of 0 .. n - 1; all are explored. */
unsigned machine_choose(struct run *x, unsigned n);
void machine_check(struct run *x, bool good, const char *violation);
/* A line of a counterexample. */
void machine_tell(struct run *x, const char *function, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- threads ----
 *
 * A thread is straight C between BEGIN and END; so are the functions that it calls with CALL. STEP
 * stands before each access that others can notice: there any other thread may run. What lies
 * between two of them is one step. Locals do not live across a STEP.
 */
enum progress { BLOCKED, MOVED, DONE };

#define PC x->s->pc[x->thread][x->depth]
#define BEGIN                                                                                      \
    switch (PC) {                                                                                  \
    case 0:
#define END                                                                                        \
    }                                                                                              \
    PC = 0;                                                                                        \
    return DONE;

/* Others may run here; then `action`, a bool: false, and the thread is blocked. */
#define STEP(action) STEP_IF(true, action)
/* The same, where others can notice the action only if `noticed`. */
#define STEP_IF(noticed, action)                                                                   \
    do {                                                                                           \
        PC = __LINE__;                                                                             \
        if (noticed)                                                                               \
            return MOVED;                                                                          \
        __attribute__((fallthrough));                                                              \
    case __LINE__:                                                                                 \
        if (!(action))                                                                             \
            return BLOCKED;                                                                        \
    } while (0)

#define CALL(function)                                                                             \
    do {                                                                                           \
        PC = __LINE__;                                                                             \
        __attribute__((fallthrough));                                                              \
    case __LINE__:;                                                                                \
        x->depth++;                                                                                \
        enum progress callee = function;                                                           \
        x->depth--;                                                                                \
        if (callee != DONE)                                                                        \
            return callee;                                                                         \
    } while (0)

#endif
