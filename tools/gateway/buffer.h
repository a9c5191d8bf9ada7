/* buffer.h - bytes that grow: answers are put together here, JSON included.
 *
 * A buffer that could not grow stays `failed` and ignores what is added: whoever sends it looks once,
 * at the end. An all-zero struct is an empty buffer.
 */
#ifndef LLMD_GATEWAY_BUFFER_H
#define LLMD_GATEWAY_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer {
    char *data;
    size_t bytes, room;
    bool failed; /* out of memory */
};

void buffer_free(struct buffer *b);
void buffer_clear(struct buffer *b); /* keeps its room */
void buffer_add(struct buffer *b, const void *data, size_t bytes);
void buffer_text(struct buffer *b, const char *text);
__attribute__((format(printf, 2, 3))) void buffer_format(struct buffer *b, const char *format, ...);
/* Takes the first bytes away. */
void buffer_take(struct buffer *b, size_t bytes);

/* ---- JSON ---- */

/* A string with its quotes. What is no UTF-8 becomes U+FFFD, one for each ill-formed byte. */
void json_put_string(struct buffer *b, const char *text, size_t bytes);
void json_put_text(struct buffer *b, const char *text);
/* A finite number with the digits that a float needs; what is not finite becomes -9999.0, as
 * OpenAI's log-probabilities have it. */
void json_put_float(struct buffer *b, double value);

/* Length of the UTF-8 character at text (1 .. 4), 0 where there is none. */
size_t utf8_length(const char *text, size_t bytes);
/* Bytes that a stream shows of the text: whole characters, and U+FFFD for each maximal ill-formed part;
 * nothing of a character that has only begun at the end. */
size_t utf8_shown(const char *text, size_t bytes);
/* Whether all of it is UTF-8. */
bool utf8_ok(const char *text, size_t bytes);

#endif
