/* waiter.h - what the io loop waits with: one-shot waits on descriptors and on words in shared
 * memory, wakes, and one sleep for all of them.
 *
 *     waiter_open(&w, WAITER_AUTO, max_waits, &f);
 *     w->ops->poll(w, fd, POLLIN, tag);          // asks
 *     w->ops->futex(w, word, last, tag);
 *     w->ops->wait(w, timeout_ns);               // hands over what was asked, sleeps
 *     while (w->ops->next(w, &tag, &result))     // takes what has come
 *
 *   kind      words                              while the loop is busy          needs
 *   io_uring  in the kernel                      completions appear in memory    Linux 6.7
 *   epoll     helper threads (waiter_words.h)    the kernel is asked every 5 ms  Linux 5.16
 *   epoll     looked at, every 2 to 50 ms        the same
 *
 * Epoll stands in where io_uring is forbidden (container seccomp profiles,
 * kernel.io_uring_disabled) or too old. The protocol is the same for clients, who know of one way
 * to wake an engine: FUTEX_WAKE of the word that they have moved. With helper threads a sleep ends
 * some tens of microseconds later, and an idle engine costs nothing either. Where these cannot be
 * had, what is submitted to an engine that sleeps waits for the next look.
 *
 * Invariants
 *   1. Every poll, and every futex that said true, brings exactly one completion: its event, or a
 *      negative result (-ECANCELED, -EAGAIN ...). Until then tag and descriptor stay valid.
 *   2. A futex that said false is for the next sleep alone, the second wait of it included. It may
 *      bring a completion, 0, where it is known that this word ended the sleep.
 *   3. Nothing is allocated after waiter_open.
 */
#ifndef LLMD_WAITER_H
#define LLMD_WAITER_H

#include <stdbool.h>
#include <stdint.h>

#include "../gpu/fail.h"
#include "../shm/order.h"

struct waiter;

struct waiter_ops {
    const char *name;
    bool wakes; /* a word's change ends a sleep: then a tick that finds work is a lost wake */

    /* One-shot poll(2) events; the result is the events that came. */
    void (*poll)(struct waiter *w, int fd, unsigned events, uint64_t tag);
    /* Waits for a wake of the word while it is `last`. False: a completion need not come. */
    bool (*futex)(struct waiter *w, const order_u32 *word, uint32_t last, uint64_t tag);
    /* Ends the wait of that tag; its completion still comes. */
    void (*cancel)(struct waiter *w, uint64_t tag);
    /* As waiter_wake; io_uring does them all in the next flush. */
    void (*wake)(struct waiter *w, const order_u32 *word);

    /* Hands over what was asked so far. No system call where nothing was. */
    void (*flush)(struct waiter *w);
    /* Takes a completion that has come. No system call (io_uring), or one now and then (epoll). */
    bool (*next)(struct waiter *w, uint64_t now_ns, uint64_t *tag, int *result);
    bool (*pending)(struct waiter *w); /* a completion lies there */
    /* Hands over and sleeps until a completion comes. 0: look again; -ETIME: none in time; others:
     * the kernel refuses for good. */
    int (*wait)(struct waiter *w, uint64_t timeout_ns);

    void (*close)(struct waiter *w);
};

/* The kinds begin with it. */
struct waiter {
    const struct waiter_ops *ops;
};

enum waiter_kind { WAITER_AUTO, WAITER_URING, WAITER_EPOLL };

/* At most `max_waits` waits at a time, half of them for words. With AUTO epoll is taken where
 * io_uring cannot be had. `notice` (may be NULL) is told in one sentence why, and what that costs;
 * also where epoll was asked for and must look. */
int waiter_open(struct waiter **out, enum waiter_kind kind, uint32_t max_waits, struct fail *notice,
                struct fail *f);
void waiter_close(struct waiter *w); /* NULL is allowed; no wait is left in the kernel */

/* By a system call each, at once. For few: where a step has just swept the caches one call takes 38 us
 * and its entry in io_uring 45, eight take 118 and 124, 32 take 314 and 281. */
enum { WAITER_FEW = 8 };
/* Wakes one waiter of the word. */
void waiter_wake(const order_u32 *word);
/* Sends a byte through a client's bell; a full one rings anyway. Never blocks, but takes as long as
 * there are who listen: a call each however many ring, so that the caller can see which one it was. */
void waiter_bell(int fd);

int waiter_uring_open(struct waiter **out, uint32_t max_waits, struct fail *f);
int waiter_epoll_open(struct waiter **out, uint32_t max_waits, struct fail *notice, struct fail *f);

#endif
