/* waiter_epoll.c - waiting with epoll, where io_uring cannot be had. A word's wake comes through an
 * eventfd from the threads of waiter_words.h. Where these cannot be had a sleep for which a word
 * was named is cut short, and the loop looks itself: after 2 milliseconds, and twice as long each
 * time that nothing has moved, up to 50.
 *
 * Invariants
 *   1. An entry is in the epoll set exactly while it is WAITING; DONE ones are handed out by `next`
 *      and become FREE.
 *
 * Sources: epoll(7), epoll_ctl(2), futex(2).
 */
#include "waiter.h"
#include "waiter_words.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    BATCH = 64,
    SLEEP_MS = 2, /* of a sleep for which a word is to be looked at; doubles while nothing moves */
    SLEEP_MS_MAX = 50, /* 20 looks a second */
    LOOK_NS = 5000000  /* between two looks while the loop is busy */
};

enum entry_state { FREE, WAITING, DONE };

struct entry {
    enum entry_state state;
    int fd, result;
    uint64_t tag;
};

/* Data of the eventfd's entry, no index of an entry. */
#define WORDS UINT32_MAX

/* The way of looking. What the words were that a sleep was for, in one number: where it changes,
 * somebody has done something. */
struct looks {
    bool named;
    uint64_t sum, last_sum;
    int sleep_ms;
};

struct epoll {
    struct waiter waiter;
    struct waiter_ops ops;
    int fd;
    struct words *words; /* NULL: the loop looks */
    struct looks looks;
    uint32_t n, n_done;
    uint64_t looked_ns;
    struct entry *entries; /* (n) */
};

static struct epoll *epoll(struct waiter *w)
{
    return (struct epoll *)w;
}

static void done(struct epoll *p, struct entry *e, int result)
{
    epoll_ctl(p->fd, EPOLL_CTL_DEL, e->fd, NULL);
    e->state = DONE;
    e->result = result;
    p->n_done++;
}

static struct entry *free_entry(struct epoll *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->entries[i].state == FREE)
            return &p->entries[i];
    assert(!"more waits than were announced");
    return NULL;
}

/* EPOLLIN and its kin have the values of POLLIN and its kin. */
static void epoll_poll(struct waiter *w, int fd, unsigned events, uint64_t tag)
{
    struct epoll *p = epoll(w);
    struct entry *e = free_entry(p);
    *e = (struct entry){.state = WAITING, .fd = fd, .tag = tag};
    struct epoll_event ev = {.events = events, .data.u32 = (uint32_t)(e - p->entries)};
    if (epoll_ctl(p->fd, EPOLL_CTL_ADD, fd, &ev) < 0)
        done(p, e, -errno);
}

static bool epoll_futex(struct waiter *w, const order_u32 *word, uint32_t last, uint64_t tag)
{
    struct looks *l = &epoll(w)->looks;
    if (epoll(w)->words)
        words_name(epoll(w)->words, word, last, tag);
    l->named = true;
    l->sum += last + tag;
    return false;
}

static void epoll_cancel(struct waiter *w, uint64_t tag)
{
    struct epoll *p = epoll(w);
    for (uint32_t i = 0; i < p->n; i++)
        if (p->entries[i].state == WAITING && p->entries[i].tag == tag)
            done(p, &p->entries[i], -ECANCELED);
}

static void epoll_wake(struct waiter *w, const order_u32 *word)
{
    (void)w;
    waiter_wake(word);
}

static void epoll_flush(struct waiter *w)
{
    (void)w;
}

/* Moves what has happened to DONE. Returns how many, or -errno. */
static int look(struct epoll *p, int timeout_ms)
{
    struct epoll_event events[BATCH];
    int n = epoll_wait(p->fd, events, BATCH, timeout_ms);
    for (int i = 0; i < n; i++)
        if (events[i].data.u32 == WORDS)
            words_heard(p->words);
        else
            done(p, &p->entries[events[i].data.u32], (int)events[i].events);
    return n < 0 ? -errno : n;
}

static bool epoll_next(struct waiter *w, uint64_t now_ns, uint64_t *tag, int *result)
{
    struct epoll *p = epoll(w);
    if (now_ns - p->looked_ns >= LOOK_NS) {
        p->looked_ns = now_ns;
        look(p, 0);
    }
    for (uint32_t i = 0; p->n_done && i < p->n; i++) {
        struct entry *e = &p->entries[i];
        if (e->state != DONE)
            continue;
        *tag = e->tag;
        *result = e->result;
        e->state = FREE;
        p->n_done--;
        return true;
    }
    *result = 0;
    return p->words && words_take(p->words, tag);
}

static bool epoll_pending(struct waiter *w)
{
    struct epoll *p = epoll(w);
    return p->n_done || (p->words && words_pending(p->words));
}

static int sleep_for(struct epoll *p, uint64_t ms)
{
    int rc = look(p, ms < INT_MAX ? (int)ms : INT_MAX);
    return rc > 0 || rc == -EINTR ? 0 : rc ? rc : -ETIME;
}

/* Rounded up: a sleep of less than a millisecond that is left of a longer one is no busy wait. */
static uint64_t in_ms(uint64_t ns)
{
    return ns / 1000000 + (ns % 1000000 != 0);
}

/* While helpers watch the words. */
static int epoll_sleep(struct waiter *w, uint64_t timeout_ns)
{
    words_hand_over(epoll(w)->words);
    return sleep_for(epoll(w), in_ms(timeout_ns));
}

/* How long until the loop shall look again. */
static int until_look(struct looks *l)
{
    bool moved = l->sum != l->last_sum || !l->sleep_ms;
    int next = 2 * l->sleep_ms < SLEEP_MS_MAX ? 2 * l->sleep_ms : SLEEP_MS_MAX;
    l->sleep_ms = moved ? SLEEP_MS : next;
    l->last_sum = l->sum;
    l->sum = 0;
    l->named = false;
    return l->sleep_ms;
}

static int epoll_sleep_and_look(struct waiter *w, uint64_t timeout_ns)
{
    struct epoll *p = epoll(w);
    uint64_t ms = in_ms(timeout_ns);
    if (p->looks.named) {
        uint64_t look_ms = (uint64_t)until_look(&p->looks);
        ms = look_ms < ms ? look_ms : ms;
    }
    return sleep_for(p, ms);
}

static void epoll_close(struct waiter *w)
{
    struct epoll *p = epoll(w);
    words_close(p->words);
    if (p->fd >= 0)
        close(p->fd);
    free(p->entries);
    free(p);
}

static const struct waiter_ops epoll_ops = {.name = "epoll",
                                            .wakes = true,
                                            .poll = epoll_poll,
                                            .futex = epoll_futex,
                                            .cancel = epoll_cancel,
                                            .wake = epoll_wake,
                                            .flush = epoll_flush,
                                            .next = epoll_next,
                                            .pending = epoll_pending,
                                            .wait = epoll_sleep,
                                            .close = epoll_close};

/* Helpers for the words, or the sentence why the loop must look. */
static void choose_way(struct epoll *p, uint32_t max_words, struct fail *notice)
{
    struct fail why = {0};
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = WORDS};
    p->ops = epoll_ops;
    int rc = words_open(&p->words, max_words, &why);
    if (!rc && epoll_ctl(p->fd, EPOLL_CTL_ADD, words_event(p->words), &ev) < 0) {
        rc = fail(&why, -errno, "an eventfd cannot be waited for (%s)", strerror(errno));
        words_close(p->words);
        p->words = NULL;
    }
    if (!rc)
        return;
    p->ops.wakes = false;
    p->ops.wait = epoll_sleep_and_look;
    fail(notice, rc,
         "%s; until then an idle engine looks for requests every %d to %d milliseconds, and each "
         "may wait that long",
         why.text, SLEEP_MS, SLEEP_MS_MAX);
}

int waiter_epoll_open(struct waiter **out, uint32_t max_waits, struct fail *notice, struct fail *f)
{
    struct epoll *p = calloc(1, sizeof *p);
    if (!p)
        return fail(f, -ENOMEM, "no memory for epoll");
    p->waiter.ops = &p->ops;
    p->n = max_waits;
    p->fd = epoll_create1(EPOLL_CLOEXEC);
    int code = p->fd < 0 ? -errno : 0;
    p->entries = calloc(max_waits, sizeof *p->entries);
    if (!code && !p->entries)
        code = -ENOMEM;
    if (code) {
        epoll_close(&p->waiter);
        return fail(f, code, "cannot make an epoll set for %u waits: %s", max_waits,
                    strerror(-code));
    }
    choose_way(p, (max_waits + 1) / 2, notice);
    *out = &p->waiter;
    return 0;
}
