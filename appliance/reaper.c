/* reaper.c - see reaper.h. */
#include "reaper.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_BYTES = 256 << 10 };

static void reap(struct reaper_job *job)
{
    segment_free(&job->up);
    segment_free(&job->down);
    atomic_store_explicit(&job->state, REAPER_DONE,
                          memory_order_release); /* pairs with reaper_done */
}

/* WAITING -> CLAIMED; the acquire pairs with reaper_take. */
static bool claim(struct reaper_job *job)
{
    enum reaper_state expected = REAPER_WAITING;
    return atomic_compare_exchange_strong_explicit(&job->state, &expected, REAPER_CLAIMED,
                                                   memory_order_acquire, memory_order_relaxed);
}

/* One job, in turn; none where all were helped with. */
static void reap_next(struct reaper *r)
{
    for (uint32_t i = 0; i < r->places; i++) {
        struct reaper_job *job = &r->jobs[r->next++ % r->places];
        if (claim(job)) {
            reap(job);
            return;
        }
    }
}

/* Off the compute threads' CPUs and behind everybody: the creator's own CPU and priority are not
 * inherited. */
static void step_back(void)
{
    cpu_set_t all;
    const struct sched_param none = {0};
    memset(&all, 0xff, sizeof all); /* as far as the process may */
    (void)pthread_setaffinity_np(pthread_self(), sizeof all, &all);
    (void)pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
}

static void *run(void *context)
{
    struct reaper *r = context;
    step_back();
    for (;;) {
        while (sem_wait(&r->jobs_there))
            ; /* a signal came */
        if (atomic_load(&r->stop))
            return NULL;
        reap_next(r);
    }
}

static bool start_thread(struct reaper *r)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes))
        return false;
    bool started = !pthread_attr_setstacksize(&attributes, STACK_BYTES) &&
                   !pthread_create(&r->thread, &attributes, run, r);
    pthread_attr_destroy(&attributes);
    return started;
}

int reaper_start(struct reaper *r, uint32_t places)
{
    *r = (struct reaper){.places = places};
    r->jobs = calloc(places, sizeof *r->jobs);
    if (!r->jobs || sem_init(&r->jobs_there, 0, 0)) {
        free(r->jobs);
        *r = (struct reaper){0};
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < places; i++)
        r->jobs[i] = (struct reaper_job){.up = SEGMENT_NONE, .down = SEGMENT_NONE};
    r->running = start_thread(r);
    return 0;
}

void reaper_stop(struct reaper *r)
{
    if (!r->jobs)
        return;
    if (r->running) {
        atomic_store(&r->stop, true);
        sem_post(&r->jobs_there);
        pthread_join(r->thread, NULL);
    }
    for (uint32_t i = 0; i < r->places; i++)
        reap(&r->jobs[i]); /* what the thread did not come to */
    sem_destroy(&r->jobs_there);
    free(r->jobs);
    *r = (struct reaper){0};
}

void reaper_take(struct reaper *r, uint32_t place, struct segment *up, struct segment *down)
{
    struct reaper_job *job = &r->jobs[place];
    job->up = *up;
    job->down = *down;
    *up = *down = SEGMENT_NONE;
    if (!r->running) {
        reap(job);
        return;
    }
    atomic_store_explicit(&job->state, REAPER_WAITING, memory_order_release); /* pairs with claim */
    sem_post(&r->jobs_there);
}

bool reaper_done(const struct reaper *r, uint32_t place)
{
    return atomic_load_explicit(&r->jobs[place].state, memory_order_acquire) == REAPER_DONE;
}

bool reaper_help(struct reaper *r, uint32_t place)
{
    struct reaper_job *job = &r->jobs[place];
    if (!claim(job))
        return false;
    reap(job);
    return true;
}
