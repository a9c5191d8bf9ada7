/* source_text.c - see source_text.h */
#include "source_text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *source_read(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return NULL;
    char *text = NULL;
    size_t used = 0, n;
    do {
        char *more = realloc(text, used + 4097);
        if (!more)
            abort();
        text = more;
        n = fread(text + used, 1, 4096, f);
        used += n;
    } while (n);
    text[used] = 0;
    fclose(f);
    return text;
}

static void blank(char *from, const char *to)
{
    for (; from < to; from++)
        if (*from != '\n')
            *from = ' ';
}

/* Behind the comment, string or character that begins at p; p itself if none does. */
static char *behind_text(char *p)
{
    if (p[0] == '/' && p[1] == '*') {
        char *end = strstr(p + 2, "*/");
        return end ? end + 2 : p + strlen(p);
    }
    if (p[0] == '/' && p[1] == '/')
        return p + strcspn(p, "\n");
    if (*p != '"' && *p != '\'')
        return p;
    char *end = p + 1;
    while (*end && *end != *p)
        end += end[0] == '\\' && end[1] ? 2 : 1;
    return *end ? end + 1 : end;
}

void source_blank(char *text)
{
    for (char *p = text; *p;) {
        char *end = behind_text(p);
        blank(p, end);
        p = end == p ? p + 1 : end;
    }
}

static bool name_part(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static bool whole_word(const char *text, const char *at, size_t n)
{
    return (at == text || !name_part(at[-1])) && !name_part(at[n]);
}

/* Behind the bracket that closes the one at p; NULL if none does. */
static const char *behind_bracket(const char *p, char open, char close)
{
    int depth = 0;
    for (; *p; p++) {
        depth += (*p == open) - (*p == close);
        if (!depth)
            return p + 1;
    }
    return NULL;
}

static const char *skip_space(const char *p)
{
    return p + strspn(p, " \t\n");
}

/* The brace that opens the body if a definition of the function begins at `at`, else NULL: its
 * line begins with a name (a type), and behind the parameters stands a brace. */
static const char *body_of(const char *text, const char *at, const char *function)
{
    const char *line = at;
    while (line > text && line[-1] != '\n')
        line--;
    const char *p = skip_space(at + strlen(function));
    if (line == at || !isalpha((unsigned char)*line) || *p != '(')
        return NULL;
    p = behind_bracket(p, '(', ')');
    p = p ? skip_space(p) : NULL;
    return p && *p == '{' ? p : NULL;
}

bool source_function(const char *text, const char *function, size_t *begin, size_t *end)
{
    unsigned found = 0;
    size_t n = strlen(function);
    for (const char *at = strstr(text, function); at; at = strstr(at + 1, function)) {
        const char *brace = whole_word(text, at, n) ? body_of(text, at, function) : NULL;
        const char *behind = brace ? behind_bracket(brace, '{', '}') : NULL;
        if (!behind)
            continue;
        *begin = (size_t)(brace + 1 - text);
        *end = (size_t)(behind - 1 - text);
        found++;
    }
    return found == 1;
}

static bool keyword(const char *name)
{
    static const char *const words[] = {"if", "for", "while", "switch", "return", "sizeof"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(name, words[i]))
            return true;
    return false;
}

bool source_next_call(const char *text, size_t *at, size_t end, struct source_call *call)
{
    while (*at < end) {
        size_t n = 0;
        while (*at + n < end && name_part(text[*at + n]))
            n++;
        const char *p = skip_space(text + *at + n);
        size_t name = *at;
        *at += n ? n : 1;
        const char *behind = n && *p == '(' ? behind_bracket(p, '(', ')') : NULL;
        if (!behind || n >= sizeof call->name)
            continue;
        memcpy(call->name, text + name, n);
        call->name[n] = 0;
        if (keyword(call->name))
            continue;
        call->begin = (size_t)(p + 1 - text);
        call->end = (size_t)(behind - 1 - text);
        *at = call->begin;
        return true;
    }
    return false;
}

/* The end of the argument that begins at `at`. */
static size_t argument_end(const char *text, size_t at, size_t end)
{
    int depth = 0;
    for (; at < end && (depth || text[at] != ','); at++)
        depth += (text[at] == '(') - (text[at] == ')');
    return at;
}

void source_address(const char *text, const struct source_call *call, char *word, size_t size)
{
    word[0] = 0;
    for (size_t at = call->begin; at < call->end; at++) {
        size_t behind = argument_end(text, at, call->end);
        const char *p = skip_space(text + at);
        if (*p == '&') {
            size_t last = behind, n = 0;
            while (last > at && !name_part(text[last - 1]))
                last--;
            while (last - n > at && name_part(text[last - n - 1]))
                n++;
            snprintf(word, size, "%.*s", (int)n, text + last - n);
            return;
        }
        at = behind;
    }
}
