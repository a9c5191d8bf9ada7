/* crew.h - which of the pool's threads compute the next step: decided from how steps went.
 *
 *     crew_create(&c, threads, caller_pinned);
 *     ...a step by the threads of crew_members(&c)...
 *     switch (crew_note(&c, &(struct crew_job){.end_ns = ..., .took_ns = ..., .work = ..., ...}))
 *         ...
 *
 * Why: a step is as fast as its slowest thread. Where somebody else's work takes half of one CPU,
 * two threads take longer than the other one takes alone; of sixteen, fifteen are nearly twice as
 * fast. So while threads are held up, and only then, fewer are tried, and what is faster stays:
 *
 *     SETTLED --some are held up--> MEASURES --they still are--> TRIES_FEWER
 *     SETTLED --fewer than all, for some time--> ASKS --a CPU is free--> TRIES_MORE
 *                                                  '---none is---> SETTLED, asks again later
 *     TRIES_* --faster---> SETTLED, with the new crew
 *     TRIES_* --slower---> SETTLED, with the crew before; waits longer next time
 *
 * A trial is a few steps, 40 ms or until it has cost 6 ms. Its time is compared with what its steps
 * would have taken before, by their work: steps of about the same size alone are compared. Where
 * nothing can be compared, how long threads were held up decides.
 *
 * Plain data and arithmetic: no clock, no lock, no system call. Which threads compute changes no
 * result.
 */
#ifndef LLMD_CPU_CREW_H
#define LLMD_CPU_CREW_H

#include <stdbool.h>
#include <stdint.h>

enum { CREW_KINDS = 256 /* of steps, by their work: four an octave */ };

/* The steps of a kind, lately. */
struct crew_cost {
    double took_ns, work;
    uint64_t end_ns; /* of the last one */
};

enum crew_state { CREW_SETTLED, CREW_MEASURES, CREW_ASKS, CREW_TRIES_FEWER, CREW_TRIES_MORE };

struct crew {
    unsigned threads;
    bool caller_pinned;
    bool *in;      /* (threads) the crew; in[0] is true */
    unsigned size; /* of it */
    double *held;  /* (threads) share of late steps for which others waited for it in vain */
    struct crew_cost *cost; /* (CREW_KINDS) of the settled crew */
    bool any_held;

    enum crew_state state;
    bool changed, caller_held; /* since the last job: the crew; because of the caller */
    bool *before;              /* (threads) the crew to go back to */
    unsigned size_before;
    struct crew_cost *trial;  /* (CREW_KINDS) of the crew that is tried */
    double took_ns, would_ns; /* of the trial's steps that can be compared */
    double all_ns, held_ns;   /* of all its steps; how long threads were held up in them */
    double worst_before;      /* share of the worst held thread when it began */

    uint64_t fewer_at_ns, ask_at_ns; /* not before */
    uint64_t fewer_wait_ns, ask_wait_ns;
    uint64_t more_kept_ns;  /* when more were last found faster */
    uint64_t calm_since_ns; /* when threads were last held up */
};

struct crew_job {
    uint64_t end_ns, took_ns;
    double work;             /* > 0; twice the work takes about twice the time */
    const uint64_t *held_ns; /* (threads) how long it held up others: pool_held; NULL: nobody did */
    const float *share; /* (threads) of a CPU, what those who are out got: pool_probed; NULL: that
                           is not known, or was told */
};

/* All threads take part. caller_pinned: thread 0, which always takes part, cannot leave its CPU.
 * 0 or -ENOMEM. */
int crew_create(struct crew *c, unsigned threads, bool caller_pinned);
void crew_destroy(struct crew *c);

static inline const bool *crew_members(const struct crew *c)
{
    return c->in;
}
static inline unsigned crew_size(const struct crew *c)
{
    return c->size;
}

/* What shall be done before the next job. */
enum crew_wish {
    CREW_GO_ON,
    CREW_PROBE, /* who is out tries how much of a CPU it gets; the shares come with a later job */
    CREW_MEET,  /* the crew is another one: the caller makes way for those who come (pool_place) */
    CREW_LEAVE  /* likewise, and it is the caller itself whose CPU is taken */
};
enum crew_wish crew_note(struct crew *c, const struct crew_job *job);

#endif
