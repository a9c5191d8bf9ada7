/* by_hand.h - a client without the library: what a stranger can say at the door, and a channel in
 * which everything can be done wrong.
 *
 *     struct hand h;
 *     assert_true(hand_open(&h, engine.instance, NULL));
 *     hand_entry(&h)->seq = 5;                    // committed, not yet published
 *     ring_submit(&h.ring);
 *     hand_expect_eviction(&h, "sequence number");
 */
#ifndef LLMD_TESTS_BY_HAND_H
#define LLMD_TESTS_BY_HAND_H

#include <stdbool.h>

#include "../../shm/board.h"
#include "../../shm/control.h"
#include "../../shm/ring.h"

struct hand {
    int socket, fds[LLM_CONTROL_FDS]; /* what WELCOME brought, all open */
    struct llm_welcome welcome;
    struct llm_reject reject; /* where there was no WELCOME */
    struct llm_up *up;
    const struct llm_down *down;
    const struct llm_pulse *pulse;
    struct ring_client ring;
};

/* A connection, or -1. */
int hand_knock(const char *instance);
/* A sound HELLO for small rings. */
struct llm_message hand_hello(void);
bool hand_say(int fd, const struct llm_message *m);
bool hand_wait(int fd); /* until it is readable; false after 20 s */

/* Connects, and maps everything; `hello` NULL: hand_hello(). False: h->reject says why, or is zero.
 * No assertion: for forked children too. */
bool hand_open(struct hand *h, const char *instance, const struct llm_message *hello);
/* Everything but the socket; then the socket. */
void hand_unmap(struct hand *h);
void hand_close(struct hand *h);

void hand_wake(order_u32 *word);
/* GENERATE of no token for one more, committed by the library's rules and yet unpublished. NULL:
 * the ring is full. */
struct llm_sqe *hand_entry(struct hand *h);
/* A round trip of a NOP that waits by looking, whatever cq_wait says. False after 20 s. */
bool hand_nop(struct hand *h);
/* Takes the next completion; false after 20 s. */
bool hand_take(struct hand *h, struct llm_cqe *cqe);

/* The engine's board, mapped for good; NULL: there is none. */
const struct llm_board *hand_board(const char *instance);
/* Until the figure is so much; false after 20 s. */
bool hand_until(const order_u64 *figure, uint64_t value);

/* These fail the test. */
/* Submits GENERATE of a prompt of five tokens, with ends of sequence ignored, and wakes the engine. */
void hand_generate(struct hand *h, uint32_t max_tokens);
void hand_take_all(struct hand *h); /* the completions of a request, to its DONE */
void hand_expect_reject(int fd, int code, const char *sentence);
void hand_expect_end(int fd); /* and closes it */
/* The engine says why, and has closed the socket; the channel is closed. */
void hand_expect_eviction(struct hand *h, const char *sentence);

#endif
