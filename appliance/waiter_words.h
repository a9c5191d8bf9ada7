/* waiter_words.h - waits for words in shared memory without io_uring: helper threads sleep in
 * futex_waitv for the loop, and write to an eventfd when a word was woken or is not what it was.
 *
 *     words_open(&w, max, &f);
 *     words_name(w, word, last, tag); ...   // what the coming sleep shall end for
 *     words_hand_over(w);                   // now they watch; the loop sleeps on words_event(w)
 *     words_heard(w);                       // it was readable
 *     while (words_take(w, &tag))           // whose wakes ended it
 *
 *   loop:    name, hand over -> sleep ................ eventfd -> heard -> works -> name ...
 *   helper:            copy -> futex_waitv ..... fired -> eventfd -> futex_waitv (own word only)
 *
 * A list is for one sleep: of what is not named again before the next one nothing is remembered. A
 * list that is the same again costs nothing: an idle engine's helpers sleep on.
 *
 * Invariants
 *   1. No wake is lost. The kernel compares each word with `last` when a helper goes to sleep on
 *      it, under the lock that the wake takes: a change before that ends the wait at once, a wake
 *      after it ends it then. What was not followed by a wake, because need_wakeup was not yet set,
 *      the loop's last look sees (E1). So it does not matter when the helper comes to it.
 *   2. Helpers never read a word themselves, the kernel does: a list may name memory that is
 *      unmapped meanwhile. That ends the wait (-EFAULT) and is no more than a needless look.
 *   3. The tag tells a word from another one that lies at the same address later.
 */
#ifndef LLMD_WAITER_WORDS_H
#define LLMD_WAITER_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "../gpu/fail.h"
#include "../shm/order.h"

struct words;

/* Threads for `max` words, all there is to allocate. The sentence says what is missing: -ENOSYS
 * (Linux 5.16), -EPERM (seccomp), others for threads and memory. */
int words_open(struct words **out, uint32_t max, struct fail *f);
void words_close(struct words *w); /* NULL is allowed */

int words_event(const struct words *w); /* an eventfd: readable when a word was woken */
void words_heard(struct words *w);
/* The next word that was woken. Not all are known: of those that were woken together one a helper,
 * and none that had changed before its helper came to it. */
bool words_take(struct words *w, uint64_t *tag);
bool words_pending(const struct words *w); /* there is one */

/* The first one after a hand-over begins a new list. At most `max` of them. */
void words_name(struct words *w, const order_u32 *word, uint32_t last, uint64_t tag);
/* Without a name since the last one everything stays as it is. */
void words_hand_over(struct words *w);

#endif
