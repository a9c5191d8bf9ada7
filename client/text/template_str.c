/* template_str.c - strings: UTF-8 that knows how many characters it has. */
#include "template_internal.h"

struct grow { /* a buffer with room behind its last text */
    size_t used, room;
    char *p;
};

/* Characters that begin in eight bytes: those that are no continuation (10xxxxxx). */
static unsigned begin_in(uint64_t eight)
{
    const uint64_t ones = 0x0101010101010101u;
    return (unsigned)(((~eight >> 7 | eight >> 6) & ones) * ones >> 56);
}

static uint32_t count_chars(const char *p, size_t bytes)
{
    uint32_t n = 0;
    uint64_t eight;
    for (; bytes >= sizeof eight; p += sizeof eight, bytes -= sizeof eight) {
        memcpy(&eight, p, sizeof eight);
        n += begin_in(eight);
    }
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)p[i] & 0xc0) != 0x80;
    return n;
}

const struct str *tpl_str_ref(struct tpl *t, const char *p, size_t bytes)
{
    struct str *s = tpl_alloc(t, sizeof *s);
    *s = (struct str){.p = bytes ? p : "", .bytes = (uint32_t)bytes};
    s->chars = count_chars(p, bytes);
    return s;
}

const struct str *tpl_str_new(struct tpl *t, const char *p, size_t bytes)
{
    if (bytes > UINT32_MAX / 2)
        tpl_limit(t, "makes a text of more than %u bytes", UINT32_MAX / 2);
    char *copy = tpl_alloc(t, bytes);
    if (bytes)
        memcpy(copy, p, bytes);
    return tpl_str_ref(t, copy, bytes);
}

const struct str *tpl_str_text(struct tpl *t, const char *text)
{
    return tpl_str_ref(t, text, strlen(text));
}

/* Part of a string: shares its bytes. */
const struct str *tpl_str_sub(struct tpl *t, const struct str *s, size_t from, size_t to)
{
    tpl_step(t, (to - from) / 256);
    return tpl_str_ref(t, s->p + from, to - from);
}

struct value tpl_str_markup(struct tpl *t, const struct str *s, bool markup)
{
    if (s->markup == markup)
        return STR(s);
    struct str *copy = tpl_alloc(t, sizeof *copy);
    *copy = *s;
    copy->markup = markup;
    return STR(copy);
}

bool tpl_str_eq(const struct str *a, const struct str *b)
{
    return a == b || (a->bytes == b->bytes && !memcmp(a->p, b->p, a->bytes));
}

bool tpl_str_is(const struct str *s, const char *text)
{
    return s->bytes == strlen(text) && !memcmp(s->p, text, s->bytes);
}

/* By code points, which is the order of the bytes. */
int tpl_str_cmp(const struct str *a, const struct str *b)
{
    size_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
    int c = memcmp(a->p, b->p, n);
    return c ? (c < 0 ? -1 : 1) : a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

size_t tpl_str_offset(struct tpl *t, const struct str *s, uint32_t chars)
{
    if (s->chars == s->bytes || chars >= s->chars)
        return chars >= s->chars ? s->bytes : chars;
    tpl_step(t, chars / 64);
    size_t at = 0;
    uint64_t eight;
    for (unsigned n; s->bytes - at >= sizeof eight; at += sizeof eight, chars -= n) {
        memcpy(&eight, s->p + at, sizeof eight);
        n = begin_in(eight);
        if (n > chars)
            break;
    }
    for (;; at++)
        if (((unsigned char)s->p[at] & 0xc0) != 0x80 && !chars--)
            return at;
}

static const struct str *concat_copy(struct tpl *t, const struct str *a, const struct str *b,
                                     size_t bytes)
{
    bool roomy = bytes >= 512 && t->context; /* not for what renderings share */
    size_t room = roomy ? bytes * 2 : bytes;
    struct str *s = tpl_alloc(t, sizeof *s);
    char *p = tpl_alloc(t, room);
    memcpy(p, a->p, a->bytes);
    memcpy(p + a->bytes, b->p, b->bytes);
    *s = (struct str){.p = p, .bytes = (uint32_t)bytes, .chars = a->chars + b->chars};
    if (roomy) {
        s->grow = tpl_alloc(t, sizeof *s->grow);
        *s->grow = (struct grow){bytes, room, p};
    }
    return s;
}

/* A text that grows by appending does not copy itself each time: behind a long one there is room,
 * which the first to append takes. */
const struct str *tpl_str_concat(struct tpl *t, const struct str *a, const struct str *b)
{
    size_t bytes = (size_t)a->bytes + b->bytes;
    if (bytes > UINT32_MAX / 4)
        tpl_limit(t, "makes a text of more than %u bytes", UINT32_MAX / 4);
    struct grow *g = a->grow;
    if (!g || a->p + a->bytes != g->p + g->used || g->room - g->used < b->bytes)
        return concat_copy(t, a, b, bytes);
    tpl_step(t, b->bytes / 256);
    memcpy(g->p + g->used, b->p, b->bytes);
    g->used += b->bytes;
    struct str *s = tpl_alloc(t, sizeof *s);
    *s = (struct str){a->p, (uint32_t)bytes, a->chars + b->chars, false, g};
    return s;
}

const struct str *tpl_str_reverse(struct tpl *t, const struct str *s)
{
    struct sb b;
    tpl_sb_init(&b, t);
    for (const char *end = s->p + s->bytes; end > s->p;) {
        unsigned bytes;
        uni_before(s->p, end, &bytes);
        end -= bytes;
        tpl_sb_put(&b, end, bytes);
    }
    return tpl_sb_done(&b);
}

/* The first place of a needle, or NULL. */
const char *tpl_mem_find(const char *hay, size_t hay_bytes, const char *needle, size_t bytes)
{
    return bytes ? memmem(hay, hay_bytes, needle, bytes) : hay;
}
