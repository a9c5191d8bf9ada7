/* template_core.c - memory, limits and errors of one parse or one rendering.
 *
 * Memory is an arena: chunks that are freed together. What was allocated last can grow in place,
 * which makes texts that are built piece by piece cheap. The rendered output is the one buffer
 * outside of the arena, since the caller gets it.
 */
#include "template_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct chunk {
    struct chunk *next;
    size_t used, room;
    char data[] __attribute__((aligned(16)));
};

#define CHUNK_BYTES (64u << 10)
#define STEP_BYTES  256

/* ---- errors ---- */

/* Cuts a character off that the end of the buffer has split. */
static void trim_character(char *text, size_t n)
{
    size_t i = n;
    while (i && n - i < 4 && ((unsigned char)text[i - 1] & 0xc0) == 0x80)
        i--;
    if (!i || (unsigned char)text[i - 1] < 0xc0)
        return;
    unsigned char lead = (unsigned char)text[i - 1];
    size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (n - (i - 1) < length)
        text[i - 1] = '\0';
}

static void describe(struct tpl *t, const char *format, va_list args)
{
    char *to = t->why;
    size_t room = t->why_size;
    int n = 0;
    if (t->line && t->what_name)
        n = snprintf(to, room, "line %u, %s '%.*s': ", t->line, t->what, (int)t->what_bytes,
                     t->what_name);
    else if (t->line && t->what)
        n = snprintf(to, room, "line %u, %s: ", t->line, t->what);
    else if (t->line)
        n = snprintf(to, room, "line %u: ", t->line);
    size_t at = n < 0 ? 0 : (size_t)n;
    if (at < room)
        vsnprintf(to + at, room - at, format, args);
    trim_character(to, strlen(to));
}

static _Noreturn void failed(struct tpl *t, int code, const char *format, va_list args)
{
    t->code = code;
    if (t->why && t->why_size)
        describe(t, format, args);
    longjmp(t->failed, 1);
}

_Noreturn void tpl_fail(struct tpl *t, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    failed(t, code, format, args);
}

_Noreturn void tpl_error(struct tpl *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    failed(t, LLM_TEMPLATE_EFAILED, format, args);
}

_Noreturn void tpl_limit(struct tpl *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    failed(t, LLM_TEMPLATE_ELIMIT, format, args);
}

_Noreturn void tpl_too_many_steps(struct tpl *t)
{
    tpl_limit(t, "the template needs more than %llu steps; raise max_steps if it is meant to",
              (unsigned long long)t->max_steps);
}

_Noreturn void tpl_too_deep(struct tpl *t)
{
    tpl_limit(t, "nested more than %u deep; raise max_depth if it is meant to", t->max_depth);
}

/* ---- memory ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + 15) & ~(size_t)15;
}

static struct chunk *chunk_add(struct tpl *t, size_t bytes)
{
    size_t room = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    if (room > t->max_memory - t->memory)
        room = bytes;
    if (room > t->max_memory - t->memory)
        tpl_limit(t,
                  "needs more than %zu bytes of memory; raise max_memory_bytes if it is meant to",
                  t->max_memory);
    struct chunk *c = malloc(sizeof *c + room);
    if (!c)
        tpl_fail(t, -ENOMEM, "out of memory");
    t->memory += room;
    *c = (struct chunk){.next = t->chunks, .room = room};
    t->chunks = c;
    return c;
}

void *tpl_alloc(struct tpl *t, size_t bytes)
{
    if (bytes > t->max_memory)
        tpl_limit(t, "needs more than %zu bytes of memory", t->max_memory);
    bytes = aligned(bytes ? bytes : 1);
    struct chunk *c = t->chunks;
    if (!c || bytes > c->room - c->used)
        c = chunk_add(t, bytes);
    void *p = c->data + c->used;
    c->used += bytes;
    if (bytes > STEP_BYTES)
        tpl_step(t, bytes / STEP_BYTES);
    return p;
}

void *tpl_zalloc(struct tpl *t, size_t bytes)
{
    return memset(tpl_alloc(t, bytes), 0, bytes);
}

/* Grows what was allocated last where it is; false if it was not the last or does not fit. */
static bool grow_in_place(struct tpl *t, const char *p, size_t old, size_t bytes)
{
    struct chunk *c = t->chunks;
    old = aligned(old ? old : 1);
    if (!c || p + old != c->data + c->used || bytes > t->max_memory)
        return false;
    size_t more = aligned(bytes) - old;
    if (more > c->room - c->used)
        return false;
    c->used += more;
    return true;
}

void *tpl_room(struct tpl *t, void *array, uint32_t n, uint32_t *room, size_t element)
{
    if (n < *room)
        return array;
    if (n > UINT32_MAX / 4)
        tpl_limit(t, "a list of more than %u elements", n);
    uint32_t wanted = n < 4 ? 4 : n * 2;
    if (!*room || !grow_in_place(t, array, *room * element, wanted * element)) {
        void *moved = tpl_alloc(t, wanted * element);
        if (n)
            memcpy(moved, array, n * element);
        array = moved;
    }
    *room = wanted;
    return array;
}

void tpl_free_all(struct tpl *t)
{
    for (struct chunk *c = t->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(t->out);
    t->chunks = NULL;
    t->out = NULL;
}

/* ---- texts being made ---- */

void tpl_sb_init(struct sb *b, struct tpl *t)
{
    *b = (struct sb){.t = t};
}

static void sb_need(struct sb *b, size_t more)
{
    if (more <= b->room - b->n)
        return;
    size_t wanted = b->n + more;
    if (more > b->t->max_memory || wanted > b->t->max_memory || wanted > UINT32_MAX / 2)
        tpl_limit(b->t, "makes a text of more than %zu bytes", b->t->max_memory);
    size_t room = wanted < 64 ? 64 : wanted + wanted / 2;
    if (!b->room || !grow_in_place(b->t, b->p, b->room, room)) {
        char *moved = tpl_alloc(b->t, room);
        if (b->n)
            memcpy(moved, b->p, b->n);
        b->p = moved;
    }
    b->room = room;
}

void tpl_sb_put(struct sb *b, const char *p, size_t bytes)
{
    if (!bytes)
        return;
    sb_need(b, bytes);
    memcpy(b->p + b->n, p, bytes);
    b->n += bytes;
}

void tpl_sb_char(struct sb *b, char c)
{
    tpl_sb_put(b, &c, 1);
}

void tpl_sb_fill(struct sb *b, const char *p, size_t bytes, uint64_t times)
{
    size_t all;
    if (!bytes || !times)
        return;
    if (__builtin_mul_overflow(bytes, times, &all))
        tpl_limit(b->t, "makes a text of more than %zu bytes", b->t->max_memory);
    sb_need(b, all);
    tpl_step(b->t, times / 16);
    if (bytes == 1)
        memset(b->p + b->n, *p, all);
    else
        for (size_t i = 0; i < all; i += bytes)
            memcpy(b->p + b->n + i, p, bytes);
    b->n += all;
}

void tpl_sb_text(struct sb *b, const char *text)
{
    tpl_sb_put(b, text, strlen(text));
}

void tpl_sb_cp(struct sb *b, uint32_t code_point)
{
    char c[4];
    tpl_sb_put(b, c, tpl_uni_put(c, code_point));
}

void tpl_sb_str(struct sb *b, const struct str *s)
{
    tpl_sb_put(b, s->p, s->bytes);
}

void tpl_sb_format(struct sb *b, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tpl_sb_put(b, text, n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

const struct str *tpl_sb_done(struct sb *b)
{
    return tpl_str_ref(b->t, b->p, b->n);
}

struct value tpl_sb_value(struct sb *b)
{
    return STR(tpl_sb_done(b));
}

/* ---- the output ---- */

void tpl_out(struct tpl *t, const char *p, size_t bytes)
{
    if (!bytes)
        return;
    if (bytes > t->max_out - t->out_bytes)
        tpl_limit(t,
                  "the output is longer than %zu bytes; raise max_output_bytes if it is meant to",
                  t->max_out);
    if (bytes >= t->out_room - t->out_bytes) {
        size_t room = (t->out_bytes + bytes) * 2 + 256;
        char *out = realloc(t->out, room);
        if (!out)
            tpl_fail(t, -ENOMEM, "out of memory");
        t->out = out;
        t->out_room = room;
    }
    memcpy(t->out + t->out_bytes, p, bytes);
    t->out_bytes += bytes;
    tpl_step(t, bytes / STEP_BYTES);
}

const struct str *tpl_out_take(struct tpl *t, size_t mark)
{
    const struct str *s = mark == t->out_bytes ? tpl_str_text(t, "")
                                               : tpl_str_new(t, t->out + mark, t->out_bytes - mark);
    t->out_bytes = mark;
    return s;
}
