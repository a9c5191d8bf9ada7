/* job.c - runs requests over one connection and collects what comes back.
 *
 * A request on a session that is not there comes back with LLM_ENOSESSION; where the job may open
 * it, it goes out a second time, behind the opening: who has a session pays no question for it.
 *
 *   waiting --send_job--> sent --take_final--> done
 *      ^                    |
 *      +----comes_again-----+   once
 */
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
    return ctl_connect_top(finals, spin_us, 0);
}

struct llm_client *ctl_connect_top(size_t finals, uint32_t spin_us, uint32_t top)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    uint32_t inflight = finals < 8 ? 8 : finals > 4096 ? 4096 : (uint32_t)finals, entries = 64;
    while (entries < inflight && entries < 4096)
        entries *= 2;
    o.name = "llmctl";
    o.spin_us = spin_us;
    o.max_top_logprobs = top;
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

static bool choice_room(struct ctl_choice *c, size_t more, uint32_t n_top)
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
    struct llm_candidate *top = n_top ? realloc(c->top, room * n_top * sizeof *top) : NULL;
    c->top = top ? top : c->top;
    if (!tokens || !logprobs || !t_ns || (n_top && !top))
        return false;
    c->room = room;
    return true;
}

/* ---- what comes back ---- */

/* Requests have the ids 1 .. n, the openings of their sessions n + 1 .. 2 n. */
static int take_opening(struct ctl_job *job, const struct llm_event *e)
{
    if (e->type == LLM_EVENT_ERROR && e->status != LLM_ESESSION) { /* else it is there by now */
        job->opening.status = e->status;
        job->opening.fitting = e->position;
    }
    return 0;
}

/* The session is not there: the job goes out again, behind its opening. */
static bool comes_again(struct ctl_job *job, const struct llm_event *e)
{
    bool missing = e->type == LLM_EVENT_ERROR && e->status == LLM_ENOSESSION;
    if (!missing || !job->open_session || job->opened || !job->prompt.n || interrupted)
        return false;
    job->missing = true;
    job->sent = false;
    return true;
}

static void take_final(struct ctl_job *job, struct ctl_choice *c, const struct llm_event *e)
{
    if (!c->done)
        job->open--;
    c->done = true;
    c->status = e->type == LLM_EVENT_ERROR ? e->status : 0;
    c->fitting = e->type == LLM_EVENT_ERROR ? e->position : 0;
    c->length = e->type == LLM_EVENT_DONE ? e->position : 0;
    c->finish = e->finish;
    c->result = e->result;
    if (c->status == LLM_ENOSESSION && job->opening.status) {
        c->status = job->opening.status;
        c->fitting = job->opening.fitting;
    }
}

static int take_tokens(const struct llm_client *client, struct ctl_choice *c, uint32_t n_top,
                       const struct llm_event *e, uint64_t now)
{
    if (!choice_room(c, e->n_tokens, n_top))
        return ctl_error("out of memory for the generated tokens");
    for (uint32_t i = 0; i < e->n_tokens; i++, c->n++) {
        uint32_t came = n_top ? llm_event_top(client, i, c->top + c->n * n_top, n_top) : 0;
        if (came < n_top)
            c->top[c->n * n_top + came].token = -1;
        c->tokens[c->n] = e->tokens[i];
        c->logprobs[c->n] = e->logprobs[i];
        c->t_ns[c->n] = now;
    }
    return 0;
}

/* Sets *first to an index that is to be sent again, if it lies before it. */
static int take(const struct llm_client *client, struct ctl_job *jobs, size_t n,
                const struct llm_event *e, uint64_t now, size_t *first)
{
    size_t at = (size_t)(e->id - 1);
    if (e->id > n && e->id <= 2 * n)
        return take_opening(&jobs[at - n], e);
    if (e->id == 0 || at >= n || e->choice >= jobs[at].n_choices)
        return ctl_error("the engine answered a request that was never made");
    struct ctl_job *job = &jobs[at];
    struct ctl_choice *c = &job->choices[e->choice];
    if (e->type == LLM_EVENT_TOKENS)
        return take_tokens(client, c, job->request.top_logprobs, e, now);
    if (!comes_again(job, e))
        take_final(job, c, e);
    else if (at < *first)
        *first = at;
    return 0;
}

/* As the engine says it: the output that fits behind this prompt, or else the prompt that fits. */
static uint32_t fitting_length(const struct llm_client *c, const struct ctl_job *job)
{
    struct llm_limits limits;
    llm_get_limits(c, &limits);
    uint32_t longest = limits.max_model_len, output = job->request.max_tokens;
    if (job->request.op != LLM_OP_GENERATE)
        return longest;
    if (job->prompt.n < longest)
        return longest - (uint32_t)job->prompt.n;
    return output < longest ? longest - output : 0;
}

/* The library refused it: an answer like the engine's. */
static void refuse(const struct llm_client *c, struct ctl_job *job, int code)
{
    snprintf(job->refusal, sizeof job->refusal, "%s", llm_errmsg(c));
    for (uint32_t i = 0; i < job->n_choices; i++, job->open--) {
        job->choices[i].done = true;
        job->choices[i].status = code;
        job->choices[i].fitting = code == LLM_ETOOLONG ? fitting_length(c, job) : 0;
    }
}

/* ---- what goes out ---- */

/* A turn begins when the one before it has ended. */
static bool session_in_use(const struct ctl_job *jobs, size_t at)
{
    uint64_t session = jobs[at].request.session;
    for (size_t i = 0; session && i < at; i++)
        if (jobs[i].request.session == session && jobs[i].open)
            return true;
    return false;
}

/* Of a job that comes again. 0, or as llm_submit. */
static int send_opening(struct llm_client *c, struct ctl_job *job, uint64_t id)
{
    if (!job->missing || job->opened)
        return 0;
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = LLM_OP_SESSION_OPEN;
    r.session = job->request.session;
    r.flags = job->request.flags & LLM_SQE_NO_CACHE;
    r.user_data = id;
    r.tokens = &job->first;
    r.n_tokens = job->first >= 0;
    int rc = llm_submit(c, &r, NULL);
    job->opened = !rc;
    return rc;
}

/* The engine takes both in order. 0, or as llm_submit. */
static int send_job(struct llm_client *c, struct ctl_job *jobs, size_t n, size_t at)
{
    struct ctl_job *job = &jobs[at];
    job->request.tokens = job->prompt.ids;
    job->request.n_tokens = (uint32_t)job->prompt.n;
    job->request.user_data = at + 1;
    if (!job->missing)
        job->t_submit_ns = now_ns();
    int rc = send_opening(c, job, n + at + 1);
    return rc ? rc : llm_submit(c, &job->request, NULL);
}

/* Submits what can go, from *first on; those before it are out. *full: the engine had no room. */
static int submit(struct llm_client *c, struct ctl_job *jobs, size_t n, size_t *first, bool *full)
{
    *full = false;
    for (size_t i = *first; i < n && !interrupted; i++) {
        struct ctl_job *job = &jobs[i];
        if (!job->sent && !session_in_use(jobs, i)) {
            int rc = send_job(c, jobs, n, i);
            if (rc == -EAGAIN && llm_inflight(c)) {
                *full = true;
                return 0;
            }
            if (rc == -EAGAIN)
                rc = LLM_EBUSY;
            if (rc == LLM_EOWNERDEAD || rc == LLM_EEVICTED || rc == LLM_EPROTO)
                return ctl_error("%s", llm_errmsg(c));
            if (rc < 0)
                refuse(c, job, rc);
            job->sent = true;
        }
        *first += job->sent && i == *first;
    }
    return 0;
}

static void cancel_all(struct llm_client *c, struct ctl_job *jobs, size_t n, size_t *from)
{
    for (; *from < n; ++*from)
        if (jobs[*from].sent && jobs[*from].open && llm_cancel(c, *from + 1) == -EAGAIN)
            return;
}

static int event_loop(struct llm_client *c, struct ctl_job *jobs, size_t n,
                      void (*on_tokens)(void *context, const struct llm_event *e), void *context)
{
    size_t first = 0, cancelled = 0;
    bool look = true, full = false; /* look: something may go out now */
    for (;;) {
        int rc = look || full ? submit(c, jobs, n, &first, &full) : 0;
        if (rc)
            return rc;
        look = false;
        if (interrupted)
            cancel_all(c, jobs, n, &cancelled);
        if (!llm_inflight(c) && (first == n || interrupted))
            return 0;
        if (!llm_inflight(c)) {
            look = true;
            continue;
        }
        struct llm_event e;
        int got = llm_wait(c, &e, -1);
        if (got == -EINTR || got == 0)
            continue;
        if (got < 0)
            return got == -ENOENT ? 0 : ctl_error("%s", llm_errmsg(c));
        rc = take(c, jobs, n, &e, now_ns(), &first);
        if (rc)
            return rc;
        look = e.type != LLM_EVENT_TOKENS;
        if (on_tokens && e.type == LLM_EVENT_TOKENS)
            on_tokens(context, &e);
    }
}

static uint32_t finals_of(const struct llm_request *r)
{
    return r->op == LLM_OP_GENERATE ? r->choices : r->op == LLM_OP_CHOOSE ? r->n_labels : 1;
}

int ctl_run_jobs(struct llm_client *c, struct ctl_job *jobs, size_t n,
                 void (*on_tokens)(void *context, const struct llm_event *e), void *context)
{
    for (size_t i = 0; i < n; i++) {
        jobs[i].n_choices = jobs[i].open = finals_of(&jobs[i].request);
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
            free(jobs[i].choices[j].top);
        }
        free(jobs[i].choices);
        free(jobs[i].sampling);
        free(jobs[i].prompt.ids);
        json_decref(jobs[i].id);
    }
    free(jobs);
}
