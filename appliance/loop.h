/* loop.h - the io loop: the one thread that owns everything, and how it sleeps.
 *
 *     take what was submitted -> a step while there is work -> publish, E2 -> wake those who sleep
 *
 * While there is work a round makes no system call, but those that wake sleeping clients which have
 * news: one each, or one for all futexes where they are many (waiter.h). Completions (a socket's end, a signal) are seen in memory (waiter.h).
 *
 * With no work the loop looks on for idle_spin_us, then sleeps:
 *
 *     need_wakeup = 1, cq_held -> E1 -> the last look -> waits on every sq_tail (and on the cq_head
 *     of those who hold), armed -> one sleep of at most a tick -> need_wakeup = 0
 *
 * Invariants
 *   1. A futex wait expects the private last value of its cursor. One that is still armed from an
 *      earlier sleep is not compared again; E1 and the last look cover it.
 *   2. Waits on sockets, pidfds and the stop event stay armed all the time; a completion ends a
 *      sleep, whatever its result.
 *   3. A tag carries event, slot and generation; a completion of another generation is dropped.
 *   4. A tick that finds work which nobody woke the loop for counts backstop_rescues. A client that
 *      was muted (clients.h) is not waited for and does not count.
 *   5. While there is work the door has at most a DOOR_SHARE-th of the time: newcomers wait, streams
 *      do not.
 */
#ifndef LLMD_LOOP_H
#define LLMD_LOOP_H

#include "clients.h"
#include "control_server.h"
#include "waiter.h"

#define LOOP_SPIN_FOREVER UINT32_MAX

struct loop;

/* Who wants to know how the loop fares. Called by the loop's thread between two rounds, under load
 * too: they must not wait. */
struct loop_hooks {
    void *context;
    uint64_t tick_ns; /* at most so long from tick to tick, a step's length apart; 0: a second */
    void (*tick)(void *context, bool busy, uint64_t now_ns); /* busy: there is work; or NULL */
    void (*stopping)(void *context); /* the service ends, what runs is told next; or NULL */
};

struct loop_config {
    struct engine *engine;
    const struct gpu_ops *ops;
    struct gpu *gpu;
    struct clients *clients;
    struct control_server *server;
    struct llm_pulse *pulse;
    struct board *board;
    struct stats *stats;
    uint32_t idle_spin_us; /* LOOP_SPIN_FOREVER: never sleeps */
    uint32_t
        drain_timeout_ms; /* running requests may go on for so long after a stop is asked for */
    enum waiter_kind waiter;
    struct loop_hooks hooks;
    int stop_event; /* readable when signals_stop_asked() is true */
};

/* The calling thread is the one that runs the loop. `notice`: see waiter_open. */
int loop_create(struct loop **out, const struct loop_config *config, struct fail *notice,
                struct fail *f);

/* State READY: whoever connects from now on is answered by loop_run. */
void loop_open(struct loop *l);

/* Serves until a stop is asked for, then drains: new requests are refused, those that are known may
 * end within drain_timeout_ms, or until a second stop is asked for; what is left then ends with
 * CANCELLED finals, which are delivered as far as clients take them within two seconds. 0, or the
 * code of a failure that ended the service. */
int loop_run(struct loop *l, struct fail *f);

/* No wait of anybody is left in the kernel. NULL is allowed. */
void loop_destroy(struct loop *l);

#endif
