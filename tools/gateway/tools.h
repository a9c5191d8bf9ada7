/* tools.h - tool calls in the text that a model writes, in the form of its family.
 *
 *   hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>     Qwen, Hermes, SmolLM2
 *   llama     {"name": ..., "parameters": {...}}, also behind <|python_tag|>    Llama 3
 *   mistral   [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]
 *
 * The family is read out of the model's chat template. The parser is fed as text comes, by any cut,
 * and says at once what is certain: text, the beginning of a call with its name, more of its
 * arguments. Arguments are handed out as the model wrote them.
 */
#ifndef LLMD_GATEWAY_TOOLS_H
#define LLMD_GATEWAY_TOOLS_H

#include <stdbool.h>
#include <stddef.h>

#include "buffer.h"

enum tool_format { TOOLS_NONE, TOOLS_HERMES, TOOLS_LLAMA, TOOLS_MISTRAL };

/* Which of them the template speaks; TOOLS_HERMES where it speaks none. */
enum tool_format tools_format_of_template(const char *source);
/* Whether the template shows tools to the model. */
bool tools_in_template(const char *source);

/* Where the results of a parser go. */
struct tool_sink {
    void (*text)(void *context, const char *text, size_t bytes);
    void (*call)(void *context, unsigned index, const char *name, size_t bytes);
    void (*arguments)(void *context, unsigned index, const char *text, size_t bytes);
    void *context;
};

enum tool_state {
    TOOL_TEXT,   /* outside of a call */
    TOOL_OPENED, /* behind a marker, before the object */
    TOOL_KEY,    /* in the object, before or in a key */
    TOOL_COLON,
    TOOL_VALUE,   /* before or in a value */
    TOOL_BEHIND,  /* behind a value */
    TOOL_CLOSED,  /* behind the object */
    TOOL_DIVERTED /* llama: what began as a call was none */
};

struct tool_parser {
    enum tool_format format;
    enum tool_state state;
    bool touched;        /* something but white space was written as text */
    unsigned n_calls;    /* calls that were begun */
    struct buffer held;  /* text that may be (a part of) a marker; llama: all of a call that has no
                              * name yet */
    struct buffer word;  /* key or name */
    struct buffer early; /* arguments before the name is known */
    bool named, in_string, escaped, is_name, is_arguments, scalar;
    unsigned depth; /* of the value */
};

/* What begins a call: may be a control token of the vocabulary. */
const char *tools_marker(enum tool_format format);

void tools_begin(struct tool_parser *t, enum tool_format format);
void tools_free(struct tool_parser *t);
void tools_feed(struct tool_parser *t, const char *text, size_t bytes,
                const struct tool_sink *sink);
/* The text is over: what was held back. */
void tools_end(struct tool_parser *t, const struct tool_sink *sink);

#endif
