/* waiter_words.c - see waiter_words.h.
 *
 * Each helper has a part of the list and a word of its own, `turn`, which it sleeps on beside the
 * others: a new turn is a new part. A part is spent when one of its words ended the wait; then the
 * helper sleeps for the next turn only. All of it is read and written under the helper's lock, but
 * by the kernel, which compares `turn` as it does the other words.
 *
 * The lock is held for a copy of the part, by a loop that is about to sleep anyway.
 *
 * Source: the kernel's futex2 document (futex_waitv: the first word that is not as expected gives
 * -EAGAIN without saying which; else the index of one that was woken), eventfd(2).
 */
#define _GNU_SOURCE
#include "waiter_words.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PART = FUTEX_WAITV_MAX - 1, STACK_BYTES = 256 << 10 };

struct name {
    const order_u32 *word;
    uint64_t tag;
    uint32_t last;
};

struct helper {
    pthread_t thread;
    int event;
    pthread_mutex_t lock; /* of all below */
    uint32_t turn, n;
    bool spent, stop;
    uint32_t woken; /* 1 + index in part of the word that spent it; 0: not known, or heard */
    struct name part[PART]; /* (n) */
};

struct words {
    int event;
    bool naming; /* since the last hand-over */
    uint32_t max, n, n_helpers;
    struct name *list; /* (max) */
    uint64_t *woken;   /* (n_helpers) tags, heard and not taken */
    uint32_t n_woken;
    struct helper *helpers;
};

/* ---- the helpers' side ---- */

static long futex_waitv(struct futex_waitv *v, uint32_t n)
{
    return syscall(SYS_futex_waitv, v, n, 0, NULL, CLOCK_MONOTONIC);
}

/* What to sleep on: the helper's own word, then its part if that is not spent. Returns how many, 0
 * at the end. */
static uint32_t what_to_watch(struct helper *h, uint32_t *turn,
                              struct futex_waitv v[FUTEX_WAITV_MAX])
{
    pthread_mutex_lock(&h->lock);
    *turn = h->turn;
    uint32_t n = h->spent ? 0 : h->n;
    v[0] = (struct futex_waitv){
        .uaddr = (uintptr_t)&h->turn, .val = *turn, .flags = FUTEX_32 | FUTEX_PRIVATE_FLAG};
    for (uint32_t i = 0; i < n; i++)
        v[1 + i] = (struct futex_waitv){
            .uaddr = (uintptr_t)h->part[i].word, .val = h->part[i].last, .flags = FUTEX_32};
    bool stop = h->stop;
    pthread_mutex_unlock(&h->lock);
    return stop ? 0 : 1 + n;
}

/* The word `woken` (1 + index, 0: not known which) ended the wait of that turn. False: there is another turn, whose part has not been waited
 * for yet. */
static bool spend(struct helper *h, uint32_t turn, uint32_t woken)
{
    pthread_mutex_lock(&h->lock);
    bool mine = h->turn == turn;
    if (mine) {
        h->spent = true;
        h->woken = woken;
    }
    pthread_mutex_unlock(&h->lock);
    return mine;
}

/* A result of 0 is a wake of the helper's own word, -EINTR a signal. All others are for a word of
 * the part, or say that the wait cannot be had, which the loop has to know too. */
static void *watch(void *context)
{
    struct helper *h = context;
    struct futex_waitv v[FUTEX_WAITV_MAX];
    uint32_t turn, n;
    while ((n = what_to_watch(h, &turn, v)) > 0) {
        long rc = futex_waitv(v, n);
        if ((rc > 0 || (rc < 0 && errno != EINTR)) && n > 1 &&
            spend(h, turn, rc > 0 ? (uint32_t)rc : 0))
            (void)!write(h->event, &(uint64_t){1}, sizeof(uint64_t));
    }
    return NULL;
}

/* ---- the loop's side ---- */

/* True if the helper sleeps on that part, or will: nothing is to be handed over. */
static bool watches(struct helper *h, const struct name *part, uint32_t n)
{
    pthread_mutex_lock(&h->lock);
    bool same = n == h->n && !(n && h->spent);
    for (uint32_t i = 0; same && i < n; i++)
        same = part[i].word == h->part[i].word && part[i].last == h->part[i].last &&
               part[i].tag == h->part[i].tag;
    pthread_mutex_unlock(&h->lock);
    return same;
}

static void next_turn(struct helper *h, const struct name *part, uint32_t n, bool stop)
{
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < n; i++)
        h->part[i] = part[i];
    h->n = n;
    h->spent = false;
    h->woken = 0;
    h->stop = stop;
    h->turn++;
    pthread_mutex_unlock(&h->lock);
    syscall(SYS_futex, &h->turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void words_name(struct words *w, const order_u32 *word, uint32_t last, uint64_t tag)
{
    if (!w->naming)
        w->n = 0;
    w->naming = true;
    assert(w->n < w->max);
    w->list[w->n++] = (struct name){.word = word, .tag = tag, .last = last};
}

void words_hand_over(struct words *w)
{
    if (!w->naming)
        return;
    w->naming = false;
    for (uint32_t i = 0; i < w->n_helpers; i++) {
        uint32_t from = i * PART, left = w->n > from ? w->n - from : 0;
        uint32_t n = left < PART ? left : PART;
        if (!watches(&w->helpers[i], &w->list[from], n))
            next_turn(&w->helpers[i], &w->list[from], n, false);
    }
}

int words_event(const struct words *w)
{
    return w->event;
}

void words_heard(struct words *w)
{
    uint64_t count;
    (void)!read(w->event, &count, sizeof count);
    for (uint32_t i = 0; i < w->n_helpers; i++) {
        struct helper *h = &w->helpers[i];
        pthread_mutex_lock(&h->lock);
        if (h->woken && w->n_woken < w->n_helpers)
            w->woken[w->n_woken++] = h->part[h->woken - 1].tag;
        h->woken = 0;
        pthread_mutex_unlock(&h->lock);
    }
}

bool words_take(struct words *w, uint64_t *tag)
{
    if (!w->n_woken)
        return false;
    *tag = w->woken[--w->n_woken];
    return true;
}

bool words_pending(const struct words *w)
{
    return w->n_woken;
}

/* ---- life ---- */

/* Without a list the kernel only says whether it knows the call. */
static int check_kernel(struct fail *f)
{
    if (futex_waitv(NULL, 0) == 0 || errno == EINVAL)
        return 0;
    int rc = -errno;
    return fail(f, rc,
                "futex_waitv cannot be used (%s): use Linux 5.16 or later, in a container also a "
                "seccomp profile that permits it",
                strerror(-rc));
}

/* A small stack, and no signals: those are for the main thread. */
static int start_helper(struct helper *h, int event)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    h->event = event;
    pthread_mutex_init(&h->lock, NULL);
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&h->thread, &attributes, watch, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (rc)
        pthread_mutex_destroy(&h->lock);
    else
        pthread_setname_np(h->thread, "llmd-words");
    return -rc;
}

static int start_helpers(struct words *w, struct fail *f)
{
    uint32_t n = (w->max + PART - 1) / PART;
    w->helpers = calloc(n, sizeof *w->helpers);
    w->list = calloc(w->max, sizeof *w->list);
    w->woken = calloc(n, sizeof *w->woken);
    if (!w->helpers || !w->list || !w->woken)
        return fail(f, -ENOMEM, "no memory to watch %u words", w->max);
    for (; w->n_helpers < n; w->n_helpers++) {
        int rc = start_helper(&w->helpers[w->n_helpers], w->event);
        if (rc < 0)
            return fail(f, rc,
                        "the threads that sleep on the clients' words cannot be started (%s): "
                        "raise the limit of threads (ulimit -u, TasksMax=)",
                        strerror(-rc));
    }
    return 0;
}

int words_open(struct words **out, uint32_t max, struct fail *f)
{
    assert(max);
    int rc = check_kernel(f);
    if (rc < 0)
        return rc;
    struct words *w = calloc(1, sizeof *w);
    if (!w)
        return fail(f, -ENOMEM, "no memory to watch %u words", max);
    w->max = max;
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = w->event < 0 ? fail(f, -errno, "cannot make an eventfd: %s", strerror(errno))
                      : start_helpers(w, f);
    if (rc < 0)
        words_close(w);
    else
        *out = w;
    return rc;
}

void words_close(struct words *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; i < w->n_helpers; i++)
        next_turn(&w->helpers[i], NULL, 0, true);
    for (uint32_t i = 0; i < w->n_helpers; i++) {
        pthread_join(w->helpers[i].thread, NULL);
        pthread_mutex_destroy(&w->helpers[i].lock);
    }
    if (w->event >= 0)
        close(w->event);
    free(w->helpers);
    free(w->list);
    free(w->woken);
    free(w);
}
