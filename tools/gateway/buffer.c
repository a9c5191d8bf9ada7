/* buffer.c - see buffer.h. Well-formed UTF-8: table 3-7 of the Unicode standard. */
#include "buffer.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buffer_free(struct buffer *b)
{
    free(b->data);
    *b = (struct buffer){0};
}

void buffer_clear(struct buffer *b)
{
    b->bytes = 0;
}

static bool reserve(struct buffer *b, size_t more)
{
    size_t want;
    if (b->failed || __builtin_add_overflow(b->bytes, more, &want)) {
        b->failed = true;
        return false;
    }
    if (want <= b->room)
        return true;
    size_t room = b->room ? b->room : 256;
    while (room < want)
        room = room > SIZE_MAX / 2 ? want : room * 2;
    char *data = realloc(b->data, room);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->room = room;
    return true;
}

void buffer_add(struct buffer *b, const void *data, size_t bytes)
{
    if (!bytes || !reserve(b, bytes))
        return;
    memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
}

void buffer_text(struct buffer *b, const char *text)
{
    buffer_add(b, text, strlen(text));
}

void buffer_format(struct buffer *b, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assert(n >= 0 && (size_t)n < sizeof text); /* texts of any length go through buffer_add */
    buffer_add(b, text, (size_t)n);
}

void buffer_take(struct buffer *b, size_t bytes)
{
    assert(bytes <= b->bytes);
    if (!bytes)
        return;
    memmove(b->data, b->data + bytes, b->bytes - bytes);
    b->bytes -= bytes;
}

/* ---- UTF-8 ---- */

static bool continues(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((p[i] & 0xC0) != 0x80)
            return false;
    return true;
}

size_t utf8_length(const char *text, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    if (!bytes)
        return 0;
    if (p[0] < 0x80)
        return 1;
    size_t n = p[0] >= 0xC2 && p[0] <= 0xDF   ? 2
               : p[0] >= 0xE0 && p[0] <= 0xEF ? 3
               : p[0] >= 0xF0 && p[0] <= 0xF4 ? 4
                                              : 0;
    if (!n || n > bytes || !continues(p + 1, n - 1))
        return 0;
    bool overlong = (p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xF0 && p[1] < 0x90);
    bool surrogate = p[0] == 0xED && p[1] > 0x9F, beyond = p[0] == 0xF4 && p[1] > 0x8F;
    return overlong || surrogate || beyond ? 0 : n;
}

/* A beginning of a character, of fewer bytes than it has. */
static bool begins(const char *text, size_t bytes)
{
    char whole[4] = {0, (char)0x80, (char)0x80, (char)0x80};
    if (bytes >= sizeof whole)
        return false;
    memcpy(whole, text, bytes);
    if (bytes == 1) /* the least second byte that fits */
        whole[1] = (char)(text[0] == '\xE0' ? 0xA0 : text[0] == '\xF0' ? 0x90 : 0x80);
    return utf8_length(whole, sizeof whole) > bytes;
}

size_t utf8_shown(const char *text, size_t bytes)
{
    size_t shown = 0;
    while (bytes) {
        size_t n = utf8_length(text, bytes), used = n ? n : 1;
        if (!n && begins(text, bytes))
            break;
        while (!n && begins(text, used) && begins(text, used + 1))
            used++;
        shown += n ? n : 3;
        text += used;
        bytes -= used;
    }
    return shown;
}

bool utf8_ok(const char *text, size_t bytes)
{
    while (bytes) {
        size_t n = utf8_length(text, bytes);
        if (!n)
            return false;
        text += n;
        bytes -= n;
    }
    return true;
}

/* ---- JSON ---- */

static void put_escaped(struct buffer *b, unsigned char c)
{
    static const char *const names[] = {
        ['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r"};
    if (c == '"' || c == '\\')
        buffer_add(b, (char[]){'\\', (char)c}, 2);
    else if (c < sizeof names / sizeof *names && names[c])
        buffer_text(b, names[c]);
    else
        buffer_format(b, "\\u%04x", c);
}

void json_put_string(struct buffer *b, const char *text, size_t bytes)
{
    buffer_add(b, "\"", 1);
    text = bytes ? text : "";
    size_t plain = 0; /* bytes before text that can be copied as they are */
    for (; bytes; bytes--, text++) {
        unsigned char c = (unsigned char)*text;
        size_t n = utf8_length(text, bytes);
        if (n && c >= ' ' && c != '"' && c != '\\' && c != 0x7F) {
            plain += n;
            text += n - 1;
            bytes -= n - 1;
            continue;
        }
        buffer_add(b, text - plain, plain);
        plain = 0;
        if (n)
            put_escaped(b, c);
        else
            buffer_text(b, "\xEF\xBF\xBD");
    }
    buffer_add(b, text - plain, plain);
    buffer_add(b, "\"", 1);
}

void json_put_text(struct buffer *b, const char *text)
{
    json_put_string(b, text, strlen(text));
}

void json_put_float(struct buffer *b, double value)
{
    if (!isfinite(value)) {
        buffer_text(b, "-9999.0");
        return;
    }
    char text[64];
    snprintf(text, sizeof text, "%.9g", value);
    buffer_text(b, text);
    if (!strpbrk(text, ".e"))
        buffer_text(b, ".0");
}
