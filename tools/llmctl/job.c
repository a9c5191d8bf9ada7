/* job.c - runs requests over one connection and collects what comes back. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llmctl.h"

static volatile sig_atomic_t interrupted; /* set by the signal handler alone */

static void on_sigint(int signal)
{
    (void)signal;
    interrupted = 1;
}

bool ctl_interrupted(void)
{
    return interrupted;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct llm_client *ctl_connect(size_t finals, uint32_t spin_us)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    uint32_t inflight = finals < 8 ? 8 : finals > 4096 ? 4096 : (uint32_t)finals, entries = 64;
    while (entries < inflight && entries < 4096)
        entries *= 2;
    o.name = "llmctl";
    o.spin_us = spin_us;
    if (finals > 8) { /* a batch: room for all of it, as far as the engine grants it */
        o.max_inflight = inflight;
        o.sq_entries = entries;
        o.cq_entries = entries * 4 < 1024 ? 1024 : entries * 4;
    }
    if (llm_connect(&c, ctl_instance, &o) < 0) {
        ctl_error("%s", llm_connect_error());
        return NULL;
    }
    return c;
}

struct llm_tokenizer *ctl_tokenizer(struct llm_client *c)
{
    struct llm_tokenizer *t;
    if (llm_tokenizer_open(&t, c) < 0) {
        ctl_error("%s", llm_errmsg(c));
        return NULL;
    }
    return t;
}

static bool choice_room(struct ctl_choice *c, size_t more)
{
    if (c->n + more <= c->room)
        return true;
    size_t room = c->room ? c->room * 2 : 64;
    int32_t *tokens = realloc(c->tokens, room * sizeof *tokens);
    c->tokens = tokens ? tokens : c->tokens;
    float *logprobs = realloc(c->logprobs, room * sizeof *logprobs);
    c->logprobs = logprobs ? logprobs : c->logprobs;
    uint64_t *t_ns = realloc(c->t_ns, room * sizeof *t_ns);
    c->t_ns = t_ns ? t_ns : c->t_ns;
    if (!tokens || !logprobs || !t_ns)
        return false;
    c->room = room;
    return true;
}

static int take(struct ctl_job *jobs, size_t n, const struct llm_event *e, uint64_t now)
{
    size_t at = (size_t)(e->id - 1);
    if (e->id == 0 || at >= n || e->choice >= jobs[at].n_choices)
        return ctl_error("the engine answered a request that was never made");
    struct ctl_job *job = &jobs[at];
    struct ctl_choice *c = &job->choices[e->choice];
    if (e->type == LLM_EVENT_TOKENS) {
        if (!choice_room(c, e->n_tokens))
            return ctl_error("out of memory for the generated tokens");
        for (uint32_t i = 0; i < e->n_tokens; i++, c->n++) {
            c->tokens[c->n] = e->tokens[i];
            c->logprobs[c->n] = e->logprobs[i];
            c->t_ns[c->n] = now;
        }
        return 0;
    }
    if (!c->done)
        job->open--;
    c->done = true;
    c->status = e->type == LLM_EVENT_ERROR ? e->status : 0;
    c->fitting = e->position;
    c->finish = e->finish;
    c->result = e->result;
    return 0;
}

static void refuse(struct ctl_job *job, int code, const char *why)
{
    snprintf(job->refusal, sizeof job->refusal, "%s", why);
    for (uint32_t i = 0; i < job->n_choices; i++, job->open--) {
        job->choices[i].done = true;
        job->choices[i].status = code;
    }
}

/* Submits from *next on, until all are out or the engine has no room. Sets *stuck if not even one
 * fits although nothing is in flight. */
static int submit(struct llm_client *c, struct ctl_job *jobs, size_t n, size_t *next)
{
    for (; *next < n && !interrupted; ++*next) {
        struct ctl_job *job = &jobs[*next];
        job->request.tokens = job->prompt.ids;
        job->request.n_tokens = (uint32_t)job->prompt.n;
        job->request.user_data = *next + 1;
        job->t_submit_ns = now_ns();
        int rc = llm_submit(c, &job->request, NULL);
        if (rc == -EAGAIN && llm_inflight(c))
            return 0;
        if (rc == -EAGAIN)
            rc = LLM_EBUSY;
        if (rc == LLM_EOWNERDEAD || rc == LLM_EEVICTED || rc == LLM_EPROTO)
            return ctl_error("%s", llm_errmsg(c));
        if (rc < 0) /* refused on this side of the ring: an answer like the engine's */
            refuse(job, rc, llm_errmsg(c));
    }
    return 0;
}

static void cancel_all(struct llm_client *c, struct ctl_job *jobs, size_t n, size_t *from)
{
    for (; *from < n; ++*from)
        if (jobs[*from].open && llm_cancel(c, *from + 1) == -EAGAIN)
            return;
}

static int event_loop(struct llm_client *c, struct ctl_job *jobs, size_t n,
                      void (*on_tokens)(void *context, const struct llm_event *e), void *context)
{
    size_t next = 0, cancelled = 0;
    for (;;) {
        int rc = submit(c, jobs, n, &next);
        if (rc)
            return rc;
        if (interrupted)
            cancel_all(c, jobs, next, &cancelled);
        if (!llm_inflight(c) && (next == n || interrupted))
            return 0;
        if (!llm_inflight(c))
            continue;
        struct llm_event e;
        int got = llm_wait(c, &e, -1);
        if (got == -EINTR || got == 0)
            continue;
        if (got < 0)
            return got == -ENOENT ? 0 : ctl_error("%s", llm_errmsg(c));
        rc = take(jobs, n, &e, now_ns());
        if (rc)
            return rc;
        if (on_tokens && e.type == LLM_EVENT_TOKENS)
            on_tokens(context, &e);
    }
}

int ctl_run_jobs(struct llm_client *c, struct ctl_job *jobs, size_t n,
                 void (*on_tokens)(void *context, const struct llm_event *e), void *context)
{
    for (size_t i = 0; i < n; i++) {
        jobs[i].n_choices = jobs[i].open = jobs[i].request.choices;
        jobs[i].choices = calloc(jobs[i].n_choices, sizeof *jobs[i].choices);
        if (!jobs[i].choices)
            return ctl_error("out of memory for %zu requests", n);
    }
    struct sigaction act = {.sa_handler = on_sigint}, old;
    interrupted = 0;
    sigaction(SIGINT, &act, &old); /* no SA_RESTART: it must end a wait */
    int rc = event_loop(c, jobs, n, on_tokens, context);
    sigaction(SIGINT, &old, NULL);
    return rc;
}

void ctl_free_jobs(struct ctl_job *jobs, size_t n)
{
    for (size_t i = 0; jobs && i < n; i++) {
        for (uint32_t j = 0; jobs[i].choices && j < jobs[i].n_choices; j++) {
            free(jobs[i].choices[j].tokens);
            free(jobs[i].choices[j].logprobs);
            free(jobs[i].choices[j].t_ns);
        }
        free(jobs[i].choices);
        free(jobs[i].prompt.ids);
        json_decref(jobs[i].id);
    }
    free(jobs);
}
