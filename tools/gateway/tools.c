/* tools.c - see tools.h. The forms: the chat templates of Qwen2.5, Hermes 2 Pro, Llama 3.1 and
 * Mistral 7B v0.3.
 *
 *          marker          '{'        '"'      key'"'       ':'         value's end
 *   TEXT ---------> OPENED ----> KEY ----> KEY ------> COLON ---> VALUE ----------> BEHIND
 *     ^                           ^                                                  |  |
 *     |  end marker, other text   '-------------------- ',' ------------------------'  | '}'
 *     '------------------------------------- CLOSED <----------------------------------'
 *
 * White space before a marker belongs to it; so white space is held until something follows.
 */
#include "tools.h"

#include <string.h>

/* ---- the families ---- */

static const struct family {
    const char *begin, *end;    /* markers; NULL: none */
    const char *in_template[2]; /* what gives it away */
} families[] = {
    [TOOLS_NONE] = {NULL, NULL, {NULL}},
    [TOOLS_HERMES] = {"<tool_call>", "</tool_call>", {"<tool_call>"}},
    [TOOLS_LLAMA] = {"<|python_tag|>", NULL, {"<|python_tag|>", "Environment: ipython"}},
    [TOOLS_MISTRAL] = {"[TOOL_CALLS]", NULL, {"[TOOL_CALLS]"}},
};

enum { FAMILIES = sizeof families / sizeof *families };

enum tool_format tools_format_of_template(const char *source)
{
    for (unsigned f = TOOLS_HERMES; f < FAMILIES; f++)
        for (unsigned i = 0; i < 2; i++)
            if (families[f].in_template[i] && strstr(source, families[f].in_template[i]))
                return (enum tool_format)f;
    return TOOLS_HERMES;
}

bool tools_in_template(const char *source)
{
    return strstr(source, "tools") != NULL;
}

const char *tools_marker(enum tool_format format)
{
    return families[format].begin;
}

void tools_begin(struct tool_parser *t, enum tool_format format)
{
    *t = (struct tool_parser){.format = format};
}

void tools_free(struct tool_parser *t)
{
    buffer_free(&t->held);
    buffer_free(&t->word);
    buffer_free(&t->early);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* ---- text ---- */

static void say(struct tool_parser *t, const char *text, size_t bytes, const struct tool_sink *sink)
{
    for (size_t i = 0; i < bytes && !t->touched; i++)
        t->touched = !is_space(text[i]);
    if (bytes)
        sink->text(sink->context, text, bytes);
}

/* Says the first bytes of what is held. */
static void release(struct tool_parser *t, size_t bytes, const struct tool_sink *sink)
{
    say(t, t->held.data, bytes, sink);
    buffer_take(&t->held, bytes);
}

static size_t spaces(const struct buffer *b)
{
    size_t n = 0;
    while (n < b->bytes && is_space(b->data[n]))
        n++;
    return n;
}

static void begin_object(struct tool_parser *t)
{
    t->state = TOOL_KEY;
    t->named = t->in_string = t->escaped = false;
    buffer_clear(&t->word);
    buffer_clear(&t->early);
}

/* Llama 3 writes calls without a marker: an object at the very beginning is one. */
static bool bare_object(const struct tool_parser *t, char first)
{
    return t->format == TOOLS_LLAMA && !t->touched && first == '{';
}

static void feed_text(struct tool_parser *t, char c, const struct tool_sink *sink)
{
    const char *marker = families[t->format].begin;
    buffer_add(&t->held, &c, 1);
    while (t->held.bytes && !t->held.failed) {
        size_t white = spaces(&t->held), n = t->held.bytes - white;
        const char *rest = t->held.data + white;
        if (!n)
            return;
        if (bare_object(t, *rest)) {
            begin_object(t);
            return;
        }
        if (n <= strlen(marker) && !memcmp(rest, marker, n)) {
            if (n == strlen(marker)) {
                buffer_clear(&t->held);
                t->state = TOOL_OPENED;
            }
            return;
        }
        release(t, white + 1, sink);
    }
}

/* ---- between marker and object, and behind it ---- */

static void back_to_text(struct tool_parser *t, const char *before, char c,
                         const struct tool_sink *sink)
{
    t->state = TOOL_TEXT;
    say(t, before, strlen(before), sink);
    feed_text(t, c, sink);
}

/* True while what is held is a beginning of the end marker; the whole marker ends the call. */
static bool feed_end_marker(struct tool_parser *t, char c)
{
    const char *end = families[t->format].end;
    if (!end || (!t->held.bytes && c != *end))
        return false;
    buffer_add(&t->held, &c, 1);
    size_t n = t->held.bytes;
    if (t->held.failed || n > strlen(end) || memcmp(t->held.data, end, n)) {
        buffer_clear(&t->held);
        return false;
    }
    if (n == strlen(end)) {
        buffer_clear(&t->held);
        t->state = TOOL_TEXT;
    }
    return true;
}

static void feed_around(struct tool_parser *t, char c, const struct tool_sink *sink)
{
    if (feed_end_marker(t, c) || is_space(c) || c == '[' || c == ']' || c == ',' || c == ';')
        return;
    if (c == '{')
        begin_object(t);
    else
        back_to_text(t, t->state == TOOL_OPENED ? families[t->format].begin : "", c, sink);
}

/* ---- the object ---- */

static void name_known(struct tool_parser *t, const struct tool_sink *sink)
{
    t->named = true;
    buffer_clear(&t->held);
    sink->call(sink->context, t->n_calls++, t->word.data ? t->word.data : "", t->word.bytes);
    if (t->early.bytes)
        sink->arguments(sink->context, t->n_calls - 1, t->early.data, t->early.bytes);
    buffer_clear(&t->early);
}

static void put_argument(struct tool_parser *t, char c, const struct tool_sink *sink)
{
    if (!t->is_arguments)
        return;
    if (t->named)
        sink->arguments(sink->context, t->n_calls - 1, &c, 1);
    else
        buffer_add(&t->early, &c, 1);
}

static bool is_word(const struct buffer *b, const char *word)
{
    return b->bytes == strlen(word) && !memcmp(b->data, word, b->bytes);
}

/* A byte of a string; true at the closing quote. */
static bool string_ends(struct tool_parser *t, char c)
{
    if (t->escaped)
        t->escaped = false;
    else if (c == '\\')
        t->escaped = true;
    else if (c == '"')
        t->in_string = false;
    return !t->in_string;
}

static void close_object(struct tool_parser *t, const struct tool_sink *sink)
{
    t->state = TOOL_CLOSED;
    if (t->named)
        return;
    if (t->format == TOOLS_LLAMA) { /* an object, but no call */
        t->state = TOOL_DIVERTED;
        release(t, t->held.bytes, sink);
    }
    buffer_clear(&t->held);
}

static void feed_key(struct tool_parser *t, char c, const struct tool_sink *sink)
{
    if (t->in_string) {
        if (!string_ends(t, c)) {
            buffer_add(&t->word, &c, 1);
            return;
        }
        t->is_name = is_word(&t->word, "name");
        t->is_arguments = is_word(&t->word, "arguments") || is_word(&t->word, "parameters");
        t->state = TOOL_COLON;
    } else if (c == '"') {
        t->in_string = true;
        buffer_clear(&t->word);
    } else if (c == '}') {
        close_object(t, sink);
    }
}

static void value_over(struct tool_parser *t, const struct tool_sink *sink)
{
    t->state = TOOL_BEHIND;
    if (t->is_name && !t->named)
        name_known(t, sink);
}

static void feed_value_string(struct tool_parser *t, char c, const struct tool_sink *sink)
{
    bool over = string_ends(t, c);
    if (t->is_name && !over)
        buffer_add(&t->word, &c, 1);
    put_argument(t, c, sink);
    if (over && !t->depth)
        value_over(t, sink);
}

static void feed_behind(struct tool_parser *t, char c, const struct tool_sink *sink)
{
    if (c == ',')
        t->state = TOOL_KEY;
    else if (c == '}')
        close_object(t, sink);
}

static void feed_value(struct tool_parser *t, char c, const struct tool_sink *sink)
{
    if (t->in_string) {
        feed_value_string(t, c, sink);
        return;
    }
    if (!t->depth && !t->scalar && is_space(c))
        return;
    if (t->scalar && !t->depth && (c == ',' || c == '}' || is_space(c))) {
        value_over(t, sink);
        feed_behind(t, c, sink);
        return;
    }
    put_argument(t, c, sink);
    if (c == '"')
        t->in_string = true;
    else if (c == '{' || c == '[')
        t->depth++;
    else if ((c == '}' || c == ']') && t->depth && !--t->depth)
        value_over(t, sink);
    else if (!t->depth)
        t->scalar = true;
}

static void feed_object(struct tool_parser *t, char c, const struct tool_sink *sink)
{
    if (t->format == TOOLS_LLAMA && !t->named && t->state != TOOL_CLOSED)
        buffer_add(&t->held, &c, 1);
    switch (t->state) {
    case TOOL_KEY:
        feed_key(t, c, sink);
        break;
    case TOOL_COLON:
        if (c != ':')
            break;
        t->state = TOOL_VALUE;
        t->depth = 0;
        t->scalar = false;
        if (t->is_name)
            buffer_clear(&t->word);
        break;
    case TOOL_VALUE:
        feed_value(t, c, sink);
        break;
    default:
        feed_behind(t, c, sink);
    }
}

/* ---- */

static void feed(struct tool_parser *t, char c, const struct tool_sink *sink)
{
    switch (t->state) {
    case TOOL_TEXT:
        feed_text(t, c, sink);
        break;
    case TOOL_OPENED:
    case TOOL_CLOSED:
        feed_around(t, c, sink);
        break;
    case TOOL_DIVERTED:
        say(t, &c, 1, sink);
        break;
    default:
        feed_object(t, c, sink);
    }
}

void tools_feed(struct tool_parser *t, const char *text, size_t bytes, const struct tool_sink *sink)
{
    if (t->format == TOOLS_NONE)
        say(t, text, bytes, sink);
    else
        for (size_t i = 0; i < bytes; i++)
            feed(t, text[i], sink);
}

void tools_end(struct tool_parser *t, const struct tool_sink *sink)
{
    bool white = t->n_calls && spaces(&t->held) == t->held.bytes;
    bool call = t->n_calls && t->state != TOOL_TEXT;
    if (!white && !call)
        release(t, t->held.bytes, sink);
    buffer_clear(&t->held);
}
