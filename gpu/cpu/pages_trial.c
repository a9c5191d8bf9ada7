/* pages_trial.c - see pages_trial.h. */
#define _GNU_SOURCE
#include "pages_trial.h"

#include <stddef.h>
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

enum {
    TRIAL_BYTES = 8 << 20,
    LINE = 64,
    AHEAD = 1024, /* bytes, of the prefetch: as products have it */
    CLEAR_ROUNDS = 2
};

#define CLEARLY 0.9 /* of the other's time */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- judgement ---- */

static uint64_t least(const uint64_t *v, unsigned n)
{
    uint64_t low = UINT64_MAX;
    for (unsigned i = 0; i < n; i++)
        low = v[i] < low ? v[i] : low;
    return low;
}

double pages_trial_ratio(const struct pages_times *t)
{
    return t->rounds ? (double)least(t->huge_ns, t->rounds) / (double)least(t->small_ns, t->rounds)
                     : 0;
}

static unsigned rounds_won_by_small(const struct pages_times *t)
{
    unsigned won = 0;
    for (unsigned i = 0; i < t->rounds; i++)
        won += t->small_ns[i] < t->huge_ns[i];
    return won;
}

/* Clearly at their best, and in all rounds but one. */
bool pages_trial_small_win(const struct pages_times *t)
{
    return t->rounds == PAGES_TRIAL_ROUNDS && rounds_won_by_small(t) + 1 >= t->rounds &&
           pages_trial_ratio(t) * CLEARLY > 1;
}

/* ---- walks ---- */

#if defined(__x86_64__)
__attribute__((target("clflushopt"))) static void flush_lines(const uint8_t *at)
{
    for (size_t i = 0; i < TRIAL_BYTES; i += LINE)
        _mm_clflushopt((void *)(at + i));
    _mm_mfence();
}
static bool can_flush(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_CLFLUSHOPT);
}
#else
static void flush_lines(const uint8_t *at)
{
    (void)at;
}
static bool can_flush(void)
{
    return false;
}
#endif

static uint64_t walk(const uint8_t *at)
{
    uint64_t sum[4] = {0}, start = now_ns();
    for (const uint8_t *p = at; p < at + TRIAL_BYTES; p += LINE) {
        const uint64_t *line = (const uint64_t *)(const void *)p;
        __builtin_prefetch(p + AHEAD);
        for (int i = 0; i < 4; i++)
            sum[i] += line[i] ^ line[i + 4];
    }
    __asm__ volatile("" ::"r"(sum[0] ^ sum[1] ^ sum[2] ^ sum[3]));
    return now_ns() - start;
}

/* ---- the thread ---- */

static bool in_time(const struct pages_trial *t)
{
    return now_ns() < t->end_ns;
}

/* By touching them: a call that populates would keep the others of the process from mapping anything
 * meanwhile. Only those that may not be there are asked for. */
static bool take_pages(const struct pages_trial *t, struct pages *p, enum pages_kind kind)
{
    enum { PIECE = 2 << 20, PAGE = 4096 };
    if (!pages_map(p, TRIAL_BYTES, kind))
        return false;
    for (uint64_t at = 0; at < TRIAL_BYTES; at += PIECE) {
        if (!in_time(t) || (kind == PAGES_HUGETLB && !pages_populate(p, at, at + PIECE)))
            return false;
        for (uint64_t i = 0; i < PIECE; i += PAGE)
            *(volatile uint8_t *)(p->at + at + i) = 0;
    }
    return true;
}

/* Ends early where huge pages are as fast, which nearly always shows at once. */
static void walk_in_turns(struct pages_trial *t, const struct pages *huge,
                          const struct pages *small)
{
    struct pages_times *times = &t->times;
    while (times->rounds < PAGES_TRIAL_ROUNDS && in_time(t)) {
        if (can_flush()) {
            flush_lines(huge->at);
            flush_lines(small->at);
        }
        times->huge_ns[times->rounds] = walk(huge->at);
        times->small_ns[times->rounds] = walk(small->at);
        times->rounds++;
        if (times->rounds >= CLEAR_ROUNDS && !rounds_won_by_small(times))
            return;
    }
}

static void *trial(void *context)
{
    struct pages_trial *t = context;
    struct pages huge = {0}, small = {0};
    if (take_pages(t, &huge, t->huge) && take_pages(t, &small, PAGES_SMALL))
        walk_in_turns(t, &huge, &small);
    pages_unmap(&huge);
    pages_unmap(&small);
    return NULL;
}

void pages_trial_begin(struct pages_trial *t, enum pages_kind huge)
{
    *t = (struct pages_trial){.huge = huge, .end_ns = now_ns() + PAGES_TRIAL_NS};
    t->started = !pthread_create(&t->thread, NULL, trial, t);
    if (t->started)
        (void)pthread_setname_np(t->thread, "llmd-trial");
}

bool pages_trial_end(struct pages_trial *t)
{
    if (!t->started)
        return false;
    pthread_join(t->thread, NULL);
    t->started = false;
    return pages_trial_small_win(&t->times);
}
