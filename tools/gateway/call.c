/* call.c - see call.h. */
#include "call.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"

struct call *call_create(void)
{
    struct call *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->refs = 1;
    c->socket = -1;
    return c;
}

static void destroy(struct call *c)
{
    answer_free(c);
    for (uint32_t i = 0; i < c->n_prompts; i++) {
        free(c->prompts[i].tokens);
        free(c->prompts[i].text);
    }
    free(c->prompts);
    free(c->part_ids);
    free(c->forced);
    params_free(&c->params);
    json_decref(c->body);
    model_unref(c->model);
    buffer_free(&c->out);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

struct call *call_ref(struct call *c)
{
    pthread_mutex_lock(&c->lock);
    c->refs++;
    pthread_mutex_unlock(&c->lock);
    return c;
}

void call_unref(struct call *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    assert(c->refs);
    bool last = !--c->refs;
    pthread_mutex_unlock(&c->lock);
    if (last)
        destroy(c);
}

uint32_t call_choices(const struct call *c)
{
    return c->n_prompts * c->params.n;
}

/* ---- the connection's side ---- */

static void suspend(struct call *c)
{
    c->suspended = true;
    MHD_suspend_connection(c->connection);
}

static void resume(struct call *c)
{
    if (!c->suspended || c->gone)
        return;
    c->suspended = false;
    MHD_resume_connection(c->connection);
}

bool call_wait(struct call *c)
{
    pthread_mutex_lock(&c->lock);
    bool wait = c->state == CALL_WAITING;
    if (wait && !c->suspended)
        suspend(c);
    pthread_mutex_unlock(&c->lock);
    return wait;
}

long call_read(struct call *c, char *out, size_t max)
{
    pthread_mutex_lock(&c->lock);
    long n = c->out.bytes < max ? (long)c->out.bytes : (long)max;
    if (n) {
        memcpy(out, c->out.data, (size_t)n);
        buffer_take(&c->out, (size_t)n);
    } else if (c->overflow || c->out.failed) {
        n = -2;
    } else if (c->state == CALL_ENDED) {
        n = -1;
    } else {
        suspend(c);
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

bool call_leave(struct call *c)
{
    pthread_mutex_lock(&c->lock);
    c->gone = true;
    bool runs = c->state != CALL_ENDED;
    pthread_mutex_unlock(&c->lock);
    return runs;
}

/* ---- the instance's side ---- */

bool call_wanted(struct call *c)
{
    pthread_mutex_lock(&c->lock);
    bool wanted = !c->gone && c->state != CALL_ENDED;
    pthread_mutex_unlock(&c->lock);
    return wanted;
}

void call_open(struct call *c)
{
    pthread_mutex_lock(&c->lock);
    if (c->state == CALL_WAITING) {
        c->state = CALL_STREAMING;
        resume(c);
    }
    pthread_mutex_unlock(&c->lock);
}

static void append(struct call *c, struct buffer *more)
{
    buffer_add(&c->out, more->data, more->bytes);
    c->out.failed |= more->failed;
    buffer_clear(more);
}

bool call_add(struct call *c, struct buffer *more)
{
    pthread_mutex_lock(&c->lock);
    bool wanted = !c->gone && !c->overflow && c->state == CALL_STREAMING;
    if (wanted && c->out.bytes + more->bytes > CALL_UNREAD_MAX) {
        c->overflow = true;
        wanted = false;
    }
    if (wanted)
        append(c, more);
    else
        buffer_clear(more);
    resume(c);
    pthread_mutex_unlock(&c->lock);
    return wanted;
}

void call_end(struct call *c, struct buffer *more, const struct problem *problem)
{
    pthread_mutex_lock(&c->lock);
    if (c->state != CALL_ENDED) {
        if (problem && c->state == CALL_WAITING)
            c->problem = *problem;
        if (more && !c->overflow)
            append(c, more);
        c->state = CALL_ENDED;
        resume(c);
    }
    pthread_mutex_unlock(&c->lock);
}

void call_with_socket(struct call *c, void (*what)(void *context, int socket), void *context)
{
    pthread_mutex_lock(&c->lock);
    if (!c->gone && c->socket >= 0)
        what(context, c->socket);
    pthread_mutex_unlock(&c->lock);
}
