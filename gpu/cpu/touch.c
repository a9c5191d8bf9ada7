/* touch.c - see touch.h. */
#define _GNU_SOURCE
#include "touch.h"

#include <assert.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>

#include "memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { PAGE = 4096 };

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void touch_pages(uint8_t *at, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += PAGE)
        *(volatile uint8_t *)(at + i) = 0;
    if (bytes)
        *(volatile uint8_t *)(at + bytes - 1) = 0;
}

/* Shares meet between huge pages. */
void touch_range(uint8_t *at, uint64_t bytes, unsigned thread, unsigned n_threads)
{
    uint64_t pages = bytes / MEMORY_HUGE + 1;
    uint64_t from = pages * thread / n_threads * MEMORY_HUGE;
    uint64_t to = least(pages * (thread + 1) / n_threads * MEMORY_HUGE, bytes);
    if (from < to)
        touch_pages(at + from, to - from);
}

static void *populate(void *context)
{
    struct touch *t = context;
    uint64_t at = t->first / PAGE * PAGE;
    /* relaxed: nothing is handed over, the joining thread only wants an early end */
    for (; at < t->bytes && !atomic_load_explicit(&t->stop, memory_order_relaxed);
         at += TOUCH_STRIPE)
        if (madvise(t->at + at, least(TOUCH_STRIPE, t->bytes - at), MADV_POPULATE_WRITE))
            return NULL; /* the kernel cannot or will not */
    return NULL;
}

static void set_apart(const struct touch *t)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; t->cpus && i < t->n_cpus; i++)
        CPU_SET(t->cpus[i], &set);
    if (CPU_COUNT(&set))
        (void)pthread_setaffinity_np(t->thread, sizeof set, &set);
    (void)pthread_setschedparam(t->thread, SCHED_IDLE, &(struct sched_param){0});
    (void)pthread_setname_np(t->thread, "llmd-pages");
}

void touch_start(struct touch *t)
{
    atomic_store(&t->stop, false);
    assert((uintptr_t)t->at % PAGE == 0 && t->first <= t->bytes);
    if (t->first == t->bytes)
        return;
    t->started = pthread_create(&t->thread, NULL, populate, t) == 0;
    if (t->started)
        set_apart(t);
}

void touch_stop(struct touch *t)
{
    if (!t->started)
        return;
    atomic_store(&t->stop, true);
    pthread_join(t->thread, NULL);
    t->started = false;
}
