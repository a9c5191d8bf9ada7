/* step_crew.c - a step by those threads that make it fast: measures it, tells the crew (crew.h) how
 * it went, and does what the crew wishes for.
 */
#include "backend.h"

#include <string.h>
#include <time.h>

/* What the step costs, as the crew counts it: only the ratio of two steps matters. Reading the
 * weights takes as long as multiplying READ_ROWS rows by them. */
static double step_work(const struct gpu *g)
{
    enum { READ_ROWS = 5 };
    const struct gpu_step *s = g->step;
    double keys = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        keys += (double)s->seqs[i].n_rows * (s->seqs[i].pos + s->seqs[i].n_rows * 0.5);
    return (s->n_rows + READ_ROWS) * g->row_macs + keys * g->key_macs +
           (g->n_wanted ? g->n_wanted + READ_ROWS : 0) * g->output_macs;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void tell_crew(struct gpu *g, uint64_t start_ns, uint64_t end_ns)
{
    memset(g->held_ns, 0, g->config.threads * sizeof *g->held_ns);
    const struct crew_job j = {.end_ns = end_ns,
                               .took_ns = end_ns - start_ns,
                               .work = step_work(g),
                               .held_ns = pool_held(g->threads, g->held_ns) ? g->held_ns : NULL,
                               .share =
                                   pool_probed(g->threads, g->cpu_share) ? g->cpu_share : NULL};
    enum crew_wish wish = crew_note(&g->crew, &j);
    if (wish == CREW_PROBE)
        pool_probe(g->threads, crew_members(&g->crew));
    else if (wish != CREW_GO_ON)
        pool_place(g->threads, crew_members(&g->crew), wish == CREW_LEAVE);
}

void cpu_run_step(struct gpu *g, void (*job)(void *context, unsigned thread, unsigned n_threads))
{
    if (g->config.threads == 1) {
        pool_run(g->threads, job, g);
        return;
    }
    uint64_t start = now_ns();
    pool_run_crew(g->threads, crew_members(&g->crew), job, g);
    tell_crew(g, start, now_ns());
}
