/* instance.c - see instance.h. */
#include "instance.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"
#include "board.h"
#include "gateway.h"
#include "request.h"

/* What epoll says: these two, else the serial of a call. */
enum { TAG_MAILBOX = 1, TAG_ENGINE = 2, FIRST_SERIAL = 16 };
enum { EPOLL_BATCH = 64, PAUSE_MIN_MS = 20, PAUSE_MAX_MS = 250 };

/* So often the thread looks whether the engine lives, when nothing else wakes it. */
enum { WATCH_MS = 250, RETRY_MS = 2 };

/* A submission in flight. */
struct part {
    struct call *call; /* NULL: free */
    uint32_t unit, serial;
    uint32_t owed; /* finals to come */
};

struct instance {
    char name[LLM_INSTANCE_MAX + 1];
    pthread_t thread;
    int epoll, bell;
    uint32_t resume_timeout_ms;

    pthread_mutex_t lock; /* of the mailbox and the model */
    struct call *mail, **mail_end;
    bool closed; /* nobody reads it any more */
    struct model *model;
    atomic_bool connected, draining, stopping;

    /* the thread's */
    struct llm_client *client;
    struct board_watch board;
    struct call *calls; /* all that have not ended, the oldest last */
    struct part *parts; /* (n_parts) */
    uint32_t n_parts, next_part, part_serial;
    uint64_t next_serial;
    bool owes_cancels;
    uint32_t pending; /* calls with prompts that are not submitted */
    uint32_t engine_pid, pause_ms;
    enum { TOLD_NOTHING, TOLD_WAITING, TOLD_CONNECTED, TOLD_LOST } told; /* the log */
    struct buffer scratch;
    struct request_lists lists;
};

/* ---- for other threads ---- */

const char *instance_name(const struct instance *i)
{
    return i->name;
}

bool instance_connected(const struct instance *i)
{
    return atomic_load(&i->connected);
}

void instance_drain(struct instance *i)
{
    atomic_store(&i->draining, true);
}

struct model *instance_model(struct instance *i)
{
    pthread_mutex_lock(&i->lock);
    struct model *m = i->model ? model_ref(i->model) : NULL;
    pthread_mutex_unlock(&i->lock);
    return m;
}

void instance_notice(struct instance *i)
{
    uint64_t one = 1;
    ssize_t n = write(i->bell, &one, sizeof one);
    (void)n; /* a full counter rings as well */
}

static void refuse_mail(struct call *c)
{
    struct problem problem = {0};
    problem_set(&problem, 503, "shutting_down", NULL, "the gateway is stopping");
    call_end(c, NULL, &problem);
    call_unref(c);
}

void instance_submit(struct instance *i, struct call *c)
{
    c->queued = NULL;
    pthread_mutex_lock(&i->lock);
    bool closed = i->closed;
    if (!closed) {
        *i->mail_end = c;
        i->mail_end = &c->queued;
    }
    pthread_mutex_unlock(&i->lock);
    if (closed)
        refuse_mail(c);
    else
        instance_notice(i);
}

static void close_mailbox(struct instance *i)
{
    pthread_mutex_lock(&i->lock);
    i->closed = true;
    pthread_mutex_unlock(&i->lock);
}

static struct call *take_mail(struct instance *i)
{
    pthread_mutex_lock(&i->lock);
    struct call *c = i->mail;
    i->mail = NULL;
    i->mail_end = &i->mail;
    pthread_mutex_unlock(&i->lock);
    return c;
}

static void publish_model(struct instance *i, struct model *m)
{
    pthread_mutex_lock(&i->lock);
    struct model *old = i->model;
    i->model = m;
    pthread_mutex_unlock(&i->lock);
    model_unref(old);
}

/* ---- the calls ---- */

struct watch {
    struct instance *instance;
    struct call *call;
};

static void watch_socket(void *context, int socket)
{
    struct watch *w = context;
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = w->call->serial};
    if (epoll_ctl(w->instance->epoll, EPOLL_CTL_ADD, socket, &e) < 0 && errno == EEXIST)
        epoll_ctl(w->instance->epoll, EPOLL_CTL_MOD, socket, &e);
}

static void forget_socket(void *context, int socket)
{
    struct instance *i = context;
    epoll_ctl(i->epoll, EPOLL_CTL_DEL, socket, NULL);
}

static bool is_pending(const struct call *c)
{
    return !c->told && c->next_unit < c->end_unit;
}

static void link_call(struct instance *i, struct call *c)
{
    c->serial = i->next_serial++;
    c->before = NULL;
    c->next = i->calls;
    if (i->calls)
        i->calls->before = c;
    i->calls = c;
    struct watch w = {i, c};
    call_with_socket(c, watch_socket, &w);
}

static void unlink_call(struct instance *i, struct call *c)
{
    *(c->before ? &c->before->next : &i->calls) = c->next;
    if (c->next)
        c->next->before = c->before;
    call_unref(c);
}

static bool has_parts(const struct call *c)
{
    for (uint32_t k = 0; c->part_ids && k < 2 * c->n_prompts; k++)
        if (c->part_ids[k])
            return true;
    return false;
}

/* A call that is told leaves with its last part. */
static void maybe_leave(struct instance *i, struct call *c)
{
    if (c->told && !has_parts(c))
        unlink_call(i, c);
}

static void pay(struct call *c)
{
    uint64_t tokens = c->prompt_tokens;
    for (uint32_t k = 0; c->choices && k < call_choices(c); k++)
        tokens += c->choices[k].n_tokens;
    if (c->key)
        key_leave(c->key, gateway_now_ns(), tokens);
    c->key = NULL;
}

/* The end of the call, for the connection. `c` may be gone afterwards. */
static void tell_end(struct instance *i, struct call *c, struct buffer *more,
                     const struct problem *problem)
{
    if (c->told)
        return;
    i->pending -= is_pending(c);
    c->told = true;
    pay(c);
    call_with_socket(c, forget_socket, i);
    call_end(c, more, problem);
    for (uint32_t k = 0; c->part_ids && i->client && k < 2 * c->n_prompts; k++)
        if (c->part_ids[k] && llm_cancel(i->client, c->part_ids[k]) == -EAGAIN)
            i->owes_cancels = true;
    maybe_leave(i, c);
}

static void fail_call(struct instance *i, struct call *c, const struct problem *problem)
{
    buffer_clear(&i->scratch);
    if (c->opened)
        answer_fail(c, problem, &i->scratch);
    tell_end(i, c, &i->scratch, problem);
}

__attribute__((format(printf, 5, 6))) static void refuse_call(struct instance *i, struct call *c,
                                                              int status, const char *code,
                                                              const char *format, ...)
{
    struct problem problem = {0};
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    problem_set(&problem, status, code, NULL, "%s", text);
    fail_call(i, c, &problem);
}

static void fail_all(struct instance *i, const struct problem *problem)
{
    for (struct call *c = i->calls, *next; c; c = next) {
        next = c->next;
        fail_call(i, c, problem);
    }
}

/* Cancels that found the ring full. */
static void cancel_again(struct instance *i)
{
    i->owes_cancels = false;
    for (struct call *c = i->calls; c; c = c->next)
        for (uint32_t k = 0; c->told && c->part_ids && k < 2 * c->n_prompts; k++)
            if (c->part_ids[k] && llm_cancel(i->client, c->part_ids[k]) == -EAGAIN)
                i->owes_cancels = true;
}

/* Ends the calls whose connection is through or lost. */
static void drop_unwanted(struct instance *i)
{
    for (struct call *c = i->calls, *next; c; c = next) {
        next = c->next;
        if (!c->told && !call_wanted(c))
            tell_end(i, c, NULL, NULL);
    }
}

static void hung_up(struct instance *i, uint64_t serial)
{
    struct call *c = i->calls;
    while (c && c->serial != serial)
        c = c->next;
    if (c)
        refuse_call(i, c, 499, "client_closed_request", "the client has closed the connection");
}

/* ---- submitting ---- */

static struct part *free_part(struct instance *i)
{
    for (uint32_t n = 0; n < i->n_parts; n++) {
        struct part *p = &i->parts[i->next_part];
        i->next_part = (i->next_part + 1) % i->n_parts;
        if (!p->call)
            return p;
    }
    return NULL;
}

static uint64_t part_id(const struct instance *i, const struct part *p)
{
    return (uint64_t)p->serial << 32 | (uint32_t)(p - i->parts + 1);
}

static struct part *part_of(struct instance *i, uint64_t id)
{
    uint32_t at = (uint32_t)id - 1;
    struct part *p = at < i->n_parts ? &i->parts[at] : NULL;
    return p && p->call && part_id(i, p) == id ? p : NULL;
}

static int submit_unit(struct instance *i, struct call *c)
{
    struct llm_request r;
    struct part *p = free_part(i);
    if (!p)
        return -EAGAIN;
    request_fill(c, c->next_unit, &r, &i->lists);
    p->serial = ++i->part_serial;
    p->call = c;
    p->unit = c->next_unit;
    p->owed = p->unit < c->n_prompts ? 1 : c->params.n;
    r.user_data = part_id(i, p);
    int rc = llm_submit(i->client, &r, NULL);
    if (rc < 0)
        p->call = NULL;
    else
        c->part_ids[c->next_unit++] = r.user_data;
    return rc;
}

/* As many of its units as there is room for. */
static void submit_call(struct instance *i, struct call *c)
{
    int rc = 0;
    while (!rc && is_pending(c) && (c->next_unit < c->n_prompts || !c->scores_owed))
        rc = submit_unit(i, c);
    if (!rc) {
        i->pending -= !is_pending(c);
    } else if (rc != -EAGAIN) {
        struct problem problem = {0};
        problem_of_engine(&problem, rc, 0, llm_errmsg(i->client));
        fail_call(i, c, &problem);
    }
}

/* The calls that wait for room, the oldest first. */
static void submit_pending(struct instance *i)
{
    struct call *last = i->pending ? i->calls : NULL;
    while (last && last->next)
        last = last->next;
    for (struct call *c = last, *before; c; c = before) {
        before = c->before;
        if (is_pending(c))
            submit_call(i, c);
    }
}

static bool engine_is_here(struct instance *i)
{
    return i->client && board_watch_lives(&i->board);
}

static void take_call(struct instance *i, struct call *c)
{
    struct problem problem = {0};
    link_call(i, c);
    i->pending++;
    if (answer_begin(c, &problem))
        fail_call(i, c, &problem);
    else if (atomic_load(&i->draining))
        refuse_call(i, c, 503, "shutting_down", "the gateway is stopping");
    else if (!engine_is_here(i))
        refuse_call(i, c, 503, "engine_unavailable", "the engine \"%s\" is not there at the moment",
                    i->name);
    else if (i->pending > INSTANCE_PENDING_MAX)
        refuse_call(i, c, 429, "queue_full", "%d requests wait for the engine: try again later",
                    INSTANCE_PENDING_MAX);
    else if (i->pending == 1) /* not before those that wait */
        submit_call(i, c);
}

static void read_mail(struct instance *i)
{
    for (struct call *c = take_mail(i), *next; c; c = next) {
        next = c->queued;
        take_call(i, c);
    }
}

/* ---- events ---- */

/* What ends a choice without an answer; false: it has one. */
static bool problem_of_final(const struct call *c, uint32_t index, const struct llm_event *e,
                             struct problem *problem)
{
    if (e->type == LLM_EVENT_ERROR)
        return problem_of_engine(problem, e->status, e->position, NULL), true;
    if (e->finish == LLM_FINISH_CANCELLED)
        return problem_set(problem, 503, "engine_stopping", NULL,
                           "the engine has cancelled the request: it is stopping"),
               true;
    bool late = e->finish == LLM_FINISH_TIMEOUT || e->finish == LLM_FINISH_DEADLINE;
    if (late && !c->choices[index].n_tokens)
        return problem_set(problem, 504, "timeout", NULL,
                           "the time for this request was over before its first token"),
               true;
    return false;
}

static void open_stream(struct call *c)
{
    if (!c->params.stream || c->opened)
        return;
    c->opened = true;
    call_open(c);
}

static void answer(struct instance *i, struct call *c, uint32_t index, const struct llm_event *e)
{
    struct problem problem = {0};
    if (e->type != LLM_EVENT_TOKENS && !c->choices[index].finish &&
        problem_of_final(c, index, e, &problem)) {
        fail_call(i, c, &problem);
        return;
    }
    buffer_clear(&i->scratch);
    open_stream(c);
    c->owed -= answer_event(c, i->client, index, e, &i->scratch);
    if (answer_too_large(c)) {
        refuse_call(i, c, 400, "answer_too_large",
                    "the answer has more than %zu bytes: ask for a stream, or for fewer tokens, "
                    "choices or log-probabilities",
                    c->max_answer_bytes);
    } else if (!c->owed) {
        answer_finish(c, &i->scratch);
        tell_end(i, c, &i->scratch, NULL);
    } else if (c->params.stream && i->scratch.bytes && !call_add(c, &i->scratch)) {
        tell_end(i, c, NULL, NULL);
    }
}

static void score(struct instance *i, struct call *c, uint32_t prompt, const struct llm_event *e)
{
    struct problem problem = {0};
    if (e->type == LLM_EVENT_TOKENS) {
        answer_score(c, prompt, e);
    } else if (problem_of_final(c, prompt * c->params.n, e, &problem)) {
        fail_call(i, c, &problem);
    } else if (!--c->scores_owed && c->end_unit == c->n_prompts) {
        buffer_clear(&i->scratch);
        open_stream(c);
        answer_scored(c, &i->scratch);
        answer_finish(c, &i->scratch);
        tell_end(i, c, &i->scratch, NULL);
    }
}

static void on_event(struct instance *i, const struct llm_event *e)
{
    struct part *p = part_of(i, e->id);
    if (!p)
        return;
    struct call *c = p->call;
    uint32_t unit = p->unit;
    bool over = e->type != LLM_EVENT_TOKENS && !--p->owed;
    if (over) {
        c->part_ids[p->unit] = 0;
        p->call = NULL;
    }
    if (c->told)
        maybe_leave(i, c);
    else if (unit < c->n_prompts)
        score(i, c, unit, e);
    else if (e->choice < c->params.n)
        answer(i, c, (unit - c->n_prompts) * c->params.n + e->choice, e);
}

/* Until there is none. 0, or why the handle has ended. */
static int take_events(struct instance *i)
{
    struct llm_event e;
    int rc;
    while ((rc = llm_poll(i->client, &e)) == 1)
        on_event(i, &e);
    return rc;
}

/* ---- what the log says of the engine: a line when that changes, however often it is tried ---- */

static void tell_connected(struct instance *i)
{
    if (i->told != TOLD_CONNECTED)
        fprintf(stderr, "llm-gateway: connected %sto the engine \"%s\"\n",
                i->told == TOLD_LOST ? "again " : "", i->name);
    i->told = TOLD_CONNECTED;
}

static void tell_absent(struct instance *i, const char *why)
{
    if (i->told == TOLD_NOTHING || i->told == TOLD_CONNECTED)
        fprintf(stderr, "llm-gateway: %s the engine \"%s\": %s\n",
                i->told == TOLD_CONNECTED ? "lost" : "waiting for", i->name, why);
    i->told = i->told == TOLD_NOTHING || i->told == TOLD_WAITING ? TOLD_WAITING : TOLD_LOST;
}

/* Whether the handle is one of the engine that lives now: a new one is there before it takes over. */
static bool is_engines(const struct instance *i)
{
    struct board_copy *b = board_read(i->name);
    bool is = b && b->lives && b->board.pid == i->engine_pid;
    free(b);
    return is;
}

static void tell_what_changed(struct instance *i, bool lives)
{
    if (!lives)
        tell_absent(i, "its process has ended; what runs waits for it");
    else if (i->told == TOLD_LOST && is_engines(i))
        tell_connected(i);
}

/* ---- connecting ---- */

static void update_model(struct instance *i)
{
    struct llm_limits limits;
    llm_get_limits(i->client, &limits);
    if (limits.engine_pid == i->engine_pid)
        return;
    struct model *m = model_of_client(i->client);
    if (!m)
        return;        /* out of memory: the next wake tries again */
    if (i->engine_pid) /* so quick that nobody saw it dead; tell_what_changed says the rest */
        tell_absent(i, "another process has taken its place");
    i->engine_pid = limits.engine_pid;
    publish_model(i, m);
}

static bool connect_engine(struct instance *i)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    o.name = "llm-gateway";
    o.max_inflight = INSTANCE_INFLIGHT;
    o.max_top_logprobs = PARAMS_TOP_MAX;
    if (llm_connect(&i->client, i->name, &o) < 0) {
        i->client = NULL;
        tell_absent(i, llm_connect_error());
        return false;
    }
    llm_resume(i->client, i->resume_timeout_ms, 0); /* an engine of 1.0 cannot: then without */
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = TAG_ENGINE};
    int fd = llm_fd(i->client);
    i->engine_pid = 0;
    if (fd < 0 || epoll_ctl(i->epoll, EPOLL_CTL_ADD, fd, &e) < 0) {
        llm_close(i->client);
        i->client = NULL;
        return false;
    }
    update_model(i);
    i->pause_ms = PAUSE_MIN_MS;
    atomic_store(&i->connected, true);
    tell_connected(i);
    return true;
}

/* Told calls whose parts ended with the handle. */
static void drop_told(struct instance *i)
{
    for (struct call *c = i->calls, *next; c; c = next) {
        next = c->next;
        maybe_leave(i, c);
    }
}

static void disconnect_engine(struct instance *i, int code)
{
    struct problem problem = {0};
    atomic_store(&i->connected, false);
    problem_of_engine(&problem, code, 0, llm_errmsg(i->client));
    if (i->told == TOLD_LOST && code != LLM_ESHUTDOWN)
        fprintf(stderr, "llm-gateway: engine \"%s\": %s\n", i->name, llm_errmsg(i->client));
    else if (!atomic_load(&i->stopping))
        tell_absent(i, llm_errmsg(i->client));
    epoll_ctl(i->epoll, EPOLL_CTL_DEL, llm_fd(i->client), NULL);
    llm_close(i->client);
    i->client = NULL;
    for (uint32_t k = 0; k < i->n_parts; k++)
        if (i->parts[k].call) {
            i->parts[k].call->part_ids[i->parts[k].unit] = 0;
            i->parts[k].call = NULL;
        }
    fail_all(i, &problem);
    drop_told(i);
}

/* ---- the thread ---- */

static void wait_for_news(struct instance *i, int timeout_ms)
{
    struct epoll_event events[EPOLL_BATCH];
    int n = epoll_wait(i->epoll, events, EPOLL_BATCH, timeout_ms);
    for (int k = 0; k < n; k++) {
        uint64_t rings;
        if (events[k].data.u64 >= FIRST_SERIAL)
            hung_up(i, events[k].data.u64);
        else if (events[k].data.u64 == TAG_MAILBOX && read(i->bell, &rings, sizeof rings) > 0)
            drop_unwanted(i);
    }
}

/* One round with an engine: everything that there is to do, then sleep. */
static void serve(struct instance *i)
{
    int rc = take_events(i);
    read_mail(i);
    if (!rc && i->owes_cancels)
        cancel_again(i);
    if (!rc)
        submit_pending(i);
    if (rc < 0) {
        disconnect_engine(i, rc);
        return;
    }
    update_model(i);
    bool lives = board_watch_lives(&i->board);
    atomic_store(&i->connected, lives);
    tell_what_changed(i, lives);
    bool retries = i->pending || i->owes_cancels; /* room in the ring comes without an event */
    wait_for_news(i, llm_arm(i->client) ? 0 : retries ? RETRY_MS : WATCH_MS);
}

static void serve_nobody(struct instance *i)
{
    if (connect_engine(i))
        return;
    read_mail(i);
    wait_for_news(i, (int)i->pause_ms);
    i->pause_ms = i->pause_ms * 2 < PAUSE_MAX_MS ? i->pause_ms * 2 : PAUSE_MAX_MS;
}

static void *run(void *context)
{
    struct instance *i = context;
    while (!atomic_load(&i->stopping)) {
        if (i->client)
            serve(i);
        else
            serve_nobody(i);
    }
    struct problem problem = {0};
    problem_set(&problem, 503, "shutting_down", NULL, "the gateway is stopping");
    close_mailbox(i);
    read_mail(i);
    fail_all(i, &problem);
    if (i->client)
        disconnect_engine(i, LLM_ESHUTDOWN);
    return NULL;
}

/* ---- beginning and end ---- */

static int prepare(struct instance *i)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = TAG_MAILBOX};
    i->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    i->epoll = epoll_create1(EPOLL_CLOEXEC);
    i->n_parts = INSTANCE_INFLIGHT;
    i->parts = calloc(i->n_parts, sizeof *i->parts);
    if (!i->parts)
        return -ENOMEM;
    if (i->bell < 0 || i->epoll < 0 || epoll_ctl(i->epoll, EPOLL_CTL_ADD, i->bell, &e) < 0)
        return -errno;
    return 0;
}

void instance_free(struct instance *i)
{
    if (i->bell >= 0)
        close(i->bell);
    if (i->epoll >= 0)
        close(i->epoll);
    board_watch_close(&i->board);
    model_unref(i->model);
    free(i->parts);
    buffer_free(&i->scratch);
    pthread_mutex_destroy(&i->lock);
    free(i);
}

int instance_start(struct instance **out, const char *name, uint32_t resume_timeout_ms)
{
    struct instance *i = calloc(1, sizeof *i);
    if (!i)
        return -ENOMEM;
    snprintf(i->name, sizeof i->name, "%s", name);
    pthread_mutex_init(&i->lock, NULL);
    i->mail_end = &i->mail;
    i->bell = i->epoll = -1;
    i->next_serial = FIRST_SERIAL;
    i->resume_timeout_ms = resume_timeout_ms;
    i->pause_ms = PAUSE_MIN_MS;
    board_watch_open(&i->board, name);
    int rc = prepare(i);
    if (!rc)
        rc = -pthread_create(&i->thread, NULL, run, i);
    if (rc) {
        instance_free(i);
        return rc;
    }
    *out = i;
    return 0;
}

void instance_stop(struct instance *i)
{
    atomic_store(&i->stopping, true);
    instance_notice(i);
    pthread_join(i->thread, NULL);
}
