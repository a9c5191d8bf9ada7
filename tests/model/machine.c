/* machine.c - see machine.h */
#include "machine.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const memory_name[MEMORIES] = {"sc", "tso", "ra"};

unsigned machine_location(struct machine *m, unsigned users, uint8_t initial, const char *format,
                          ...)
{
    assert(m->n_locations < LOCATIONS_MAX);
    struct location *l = &m->location[m->n_locations];
    va_list args;
    va_start(args, format);
    vsnprintf(l->name, sizeof l->name, format, args);
    va_end(args);
    l->users = (uint8_t)users;
    l->initial = initial;
    return m->n_locations++;
}

void machine_start(const struct machine *m, struct state *s)
{
    memset(s, 0, sizeof *s);
    for (unsigned l = 0; l < m->n_locations; l++) {
        s->memory[l] = s->value[l][0] = m->location[l].initial;
        s->n_messages[l] = 1;
    }
}

/* ---- a step ---- */

void machine_tell(struct run *x, const char *function, const char *format, ...)
{
    if (!x->trace)
        return;
    fprintf(x->trace, "  %-9s %-18s ", x->thread_name, function);
    va_list args;
    va_start(args, format);
    vfprintf(x->trace, format, args);
    va_end(args);
    fputc('\n', x->trace);
}

void machine_check(struct run *x, bool good, const char *violation)
{
    if (!good && !x->violation)
        x->violation = violation;
}

unsigned machine_choose(struct run *x, unsigned n)
{
    struct choices *c = x->choices;
    assert(n && n <= CHOICE_MAX);
    if (c->at == c->n) {
        assert(c->n < CHOICES_MAX);
        c->pick[c->n] = 0;
        c->of[c->n++] = (uint8_t)n;
    }
    return c->pick[c->at++];
}

/* ---- views ---- */

static void join(const struct machine *m, struct view *a, const struct view *b)
{
    for (unsigned l = 0; l < m->n_locations; l++)
        if (b->at[l] > a->at[l])
            a->at[l] = b->at[l];
}

static void see(struct state *s, unsigned thread, unsigned location, unsigned message)
{
    uint8_t i = (uint8_t)message;
    if (s->current[thread].at[location] < i)
        s->current[thread].at[location] = i;
    if (s->acquired[thread].at[location] < i)
        s->acquired[thread].at[location] = i;
}

static uint8_t load_message(struct run *x, unsigned l, bool acquire)
{
    const struct machine *m = x->machine;
    struct state *s = x->s;
    unsigned t = x->thread, newest = s->n_messages[l] - 1u, oldest = s->current[t].at[l];
    unsigned i = newest - machine_choose(x, newest - oldest + 1);
    see(s, t, l, i);
    join(m, &s->acquired[t], &s->message[l][i]);
    if (acquire)
        join(m, &s->current[t], &s->message[l][i]);
    return s->value[l][i];
}

static void store_message(struct run *x, unsigned l, uint8_t value, bool release)
{
    struct state *s = x->s;
    unsigned i = s->n_messages[l]++;
    assert(i < MESSAGES_MAX);
    s->value[l][i] = value;
    see(s, x->thread, l, i);
    s->message[l][i] = release ? s->current[x->thread] : s->released[x->thread];
    s->message[l][i].at[l] = (uint8_t)i;
}

static void fence_views(struct run *x)
{
    struct state *s = x->s;
    join(x->machine, &s->fences, &s->acquired[x->thread]);
    s->current[x->thread] = s->acquired[x->thread] = s->released[x->thread] = s->fences;
}

/* ---- accesses ---- */

static const struct buffered *buffered(const struct state *s, unsigned thread, unsigned l)
{
    for (unsigned i = s->n_buffered[thread]; i-- > 0;)
        if (s->buffer[thread][i].location == l)
            return &s->buffer[thread][i];
    return NULL;
}

uint8_t machine_load(struct run *x, unsigned l, bool acquire)
{
    const struct buffered *b = NULL;
    if (x->machine->memory == MEMORY_RA)
        return load_message(x, l, acquire);
    if (x->machine->memory == MEMORY_TSO)
        b = buffered(x->s, x->thread, l);
    return b ? b->value : x->s->memory[l];
}

uint8_t machine_catch_up(struct run *x, unsigned l)
{
    if (x->machine->memory == MEMORY_RA)
        see(x->s, x->thread, l, x->s->n_messages[l] - 1u);
    return machine_newest(x->machine, x->s, l);
}

void machine_store(struct run *x, unsigned l, uint8_t value, bool release)
{
    struct state *s = x->s;
    if (x->machine->memory == MEMORY_RA) {
        store_message(x, l, value, release);
    } else if (x->machine->memory == MEMORY_TSO) {
        assert(s->n_buffered[x->thread] < BUFFERED_MAX);
        s->buffer[x->thread][s->n_buffered[x->thread]++] = (struct buffered){(uint8_t)l, value};
    } else {
        s->memory[l] = value;
    }
}

bool machine_drain(struct run *x)
{
    struct state *s = x->s;
    struct buffered *b = s->buffer[x->thread];
    uint8_t *n = &s->n_buffered[x->thread];
    if (x->machine->memory != MEMORY_TSO || !*n)
        return false;
    machine_tell(x, "", "        memory now has %s = %u", x->machine->location[b->location].name,
                 b->value);
    s->memory[b->location] = b->value;
    memmove(b, b + 1, --*n * sizeof *b);
    return true;
}

bool machine_fence(struct run *x)
{
    if (x->machine->memory == MEMORY_TSO)
        return !x->s->n_buffered[x->thread];
    if (x->machine->memory == MEMORY_RA)
        fence_views(x);
    return true;
}

/* On x86 a lock is a locked instruction: it empties the buffer. */
bool machine_enter(struct run *x, unsigned object, bool full)
{
    if (x->machine->memory != MEMORY_RA)
        return machine_fence(x);
    if (full)
        fence_views(x);
    machine_see(x, object);
    return true;
}

void machine_see(struct run *x, unsigned object)
{
    join(x->machine, &x->s->current[x->thread], &x->s->object[object]);
    join(x->machine, &x->s->acquired[x->thread], &x->s->object[object]);
}

void machine_leave(struct run *x, unsigned object)
{
    join(x->machine, &x->s->object[object], &x->s->current[x->thread]);
}

uint8_t machine_read(struct run *x, unsigned l, unsigned reads)
{
    struct state *s = x->s;
    if (x->machine->memory != MEMORY_RA)
        return machine_load(x, l, false);
    machine_check(x, s->current[x->thread].at[l] == s->n_messages[l] - 1,
                  "data race: read before its write happened before");
    see(s, x->thread, reads, s->n_messages[reads]++);
    assert(s->n_messages[reads] <= MESSAGES_MAX);
    return s->value[l][s->n_messages[l] - 1];
}

void machine_write(struct run *x, unsigned l, unsigned reads, uint8_t value)
{
    const struct state *s = x->s;
    if (x->machine->memory == MEMORY_RA)
        machine_check(x, s->current[x->thread].at[reads] == s->n_messages[reads] - 1,
                      "data race: overwritten before its read happened before");
    machine_store(x, l, value, false);
}

uint8_t machine_newest(const struct machine *m, const struct state *s, unsigned l)
{
    return m->memory == MEMORY_RA ? s->value[l][s->n_messages[l] - 1] : s->memory[l];
}

/* ---- equal situations, equal states ---- */

static void shift(const struct machine *m, struct view *v, const uint8_t *dropped)
{
    for (unsigned l = 0; l < m->n_locations; l++)
        v->at[l] = v->at[l] > dropped[l] ? (uint8_t)(v->at[l] - dropped[l]) : 0;
}

/* How many of the oldest messages no user of the location can read. */
static uint8_t unreadable(const struct machine *m, const struct state *s, unsigned l)
{
    uint8_t n = (uint8_t)(s->n_messages[l] - 1);
    for (unsigned t = 0; t < m->n_threads; t++)
        if (m->location[l].users >> t & 1 && !(s->ended >> t & 1) && s->current[t].at[l] < n)
            n = s->current[t].at[l];
    return n;
}

static void drop_messages(struct state *s, unsigned l, unsigned n)
{
    unsigned left = s->n_messages[l] - n;
    memmove(s->value[l], s->value[l] + n, left);
    memmove(s->message[l], s->message[l] + n, left * sizeof s->message[l][0]);
    s->n_messages[l] = (uint8_t)left;
}

static void shift_all(const struct machine *m, struct state *s, const uint8_t *dropped)
{
    for (unsigned l = 0; l < m->n_locations; l++)
        for (unsigned i = 0; i < s->n_messages[l]; i++)
            shift(m, &s->message[l][i], dropped);
    for (unsigned t = 0; t < m->n_threads; t++) {
        shift(m, &s->current[t], dropped);
        shift(m, &s->acquired[t], dropped);
        shift(m, &s->released[t], dropped);
    }
    for (unsigned o = 0; o < m->n_objects; o++)
        shift(m, &s->object[o], dropped);
    shift(m, &s->fences, dropped);
}

void machine_canonical(const struct machine *m, struct state *s)
{
    if (m->memory != MEMORY_RA)
        return;
    for (unsigned t = 0; t < m->n_threads; t++)
        if (s->ended >> t & 1)
            s->current[t] = s->acquired[t] = s->released[t] = (struct view){0};
    uint8_t dropped[LOCATIONS_MAX];
    bool any = false;
    for (unsigned l = 0; l < m->n_locations; l++) {
        dropped[l] = unreadable(m, s, l);
        if (dropped[l])
            drop_messages(s, l, dropped[l]);
        any |= dropped[l] > 0;
    }
    if (any)
        shift_all(m, s, dropped);
}

/* ---- packing ---- */

/* One walk for both ways. */
struct packer {
    uint8_t *out;
    const uint8_t *in;
};

static void move(struct packer *p, void *field, size_t bytes)
{
    if (p->out) {
        memcpy(p->out, field, bytes);
        p->out += bytes;
    } else {
        memcpy(field, p->in, bytes);
        p->in += bytes;
    }
}

static void move_buffers(struct packer *p, const struct machine *m, struct state *s)
{
    move(p, s->memory, m->n_locations);
    for (unsigned t = 0; m->memory == MEMORY_TSO && t < m->n_threads; t++) {
        move(p, &s->n_buffered[t], 1);
        move(p, s->buffer[t], s->n_buffered[t] * sizeof s->buffer[t][0]);
    }
}

static void move_views(struct packer *p, const struct machine *m, struct state *s)
{
    unsigned bytes = m->n_locations;
    move(p, s->n_messages, bytes);
    for (unsigned l = 0; l < m->n_locations; l++) {
        move(p, s->value[l], s->n_messages[l]);
        for (unsigned i = 0; i < s->n_messages[l]; i++)
            move(p, s->message[l][i].at, bytes);
    }
    for (unsigned t = 0; t < m->n_threads; t++) {
        move(p, s->current[t].at, bytes);
        move(p, s->acquired[t].at, bytes);
        move(p, s->released[t].at, bytes);
    }
    for (unsigned o = 0; o < m->n_objects; o++)
        move(p, s->object[o].at, bytes);
    move(p, s->fences.at, bytes);
}

static void move_state(struct packer *p, const struct machine *m, struct state *s)
{
    move(p, s->pc, m->n_threads * sizeof s->pc[0]);
    move(p, &s->ended, 1);
    move(p, s->own, m->own_bytes);
    if (m->memory == MEMORY_RA)
        move_views(p, m, s);
    else
        move_buffers(p, m, s);
}

size_t machine_pack(const struct machine *m, const struct state *s, uint8_t *out)
{
    struct packer p = {.out = out};
    move_state(&p, m, (struct state *)s);
    return (size_t)(p.out - out);
}

/* What the memory of the model does not have stays as it was, and is not looked at. */
void machine_unpack(const struct machine *m, struct state *s, const uint8_t *in)
{
    struct packer p = {.in = in};
    move_state(&p, m, s);
}
