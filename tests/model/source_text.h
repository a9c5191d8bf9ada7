/* source_text.h - what the project's C sources do in which function: enough of a reader to hold the
 * table of handshakes.h against them. It knows comments, strings, and functions that begin at the
 * start of a line and end with a brace there, as clang-format leaves them.
 */
#ifndef LLMD_TESTS_MODEL_SOURCE_TEXT_H
#define LLMD_TESTS_MODEL_SOURCE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The whole file, NUL-terminated and malloc'ed, or NULL. */
char *source_read(const char *path);

/* Overwrites comments, strings and characters with blanks, line for line. */
void source_blank(char *text);

/* The body of the function, between its braces: offset in *begin and *end. False: there is none, or
 * more than one definition. */
bool source_function(const char *text, const char *function, size_t *begin, size_t *end);

/* The next call in *at .. end: its name and its arguments' extent. *at moves behind the opening
 * parenthesis, so that calls among the arguments are found too. */
struct source_call {
    char name[48];
    size_t begin, end; /* of the arguments */
};
bool source_next_call(const char *text, size_t *at, size_t end, struct source_call *call);

/* The last name in the call's first argument that takes an address: "&r->up->sq_tail" -> "sq_tail".
 * "" if there is none. */
void source_address(const char *text, const struct source_call *call, char *word, size_t size);

#endif
