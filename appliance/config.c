/* config.c - see config.h.
 *
 * libinih's own liberties are taken away before it sees a line: an indented line would go on with
 * the value before it, a line too long for its buffer would be cut in two. So the reader here
 * removes indentation and comments behind values, and refuses what does not fit.
 */
#include "config.h"

#include <errno.h>
#include <ini.h>
#include <string.h>

/* Some builds of libinih have it as a variable, others a fixed buffer of 200 bytes. */
extern int ini_max_line;
#pragma weak ini_max_line

enum { LINE_BYTES = 4400, LINES_MAX = 10000 /* 16 bits have a line's number */ };

struct reading {
    struct options *o;
    FILE *file;
    const char *name;
    unsigned line;
    unsigned first[64]; /* the line where option i stood */
    struct fail *f;
    int rc; /* the first fault; what follows is not looked at */
};

__attribute__((format(printf, 3, 4))) static void wrong(struct reading *r, int code,
                                                        const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!r->rc)
        r->rc = fail(r->f, code, "%.100s:%u: %s", r->name, r->line, text);
}

/* ---- lines ---- */

/* The next byte that belongs to the text; EOF at the end and after a fault. */
static int next_byte(struct reading *r)
{
    int c = getc(r->file);
    if (c == EOF && ferror(r->file) && !r->rc)
        r->rc = fail(r->f, -EIO, "the configuration %.200s cannot be read: %s", r->name,
                     strerror(errno));
    if (c == 0)
        wrong(r, -EINVAL, "holds a zero byte: this is no text");
    return r->rc ? EOF : c;
}

/* Reads one line without its end; -1: there is none. */
static int read_line(struct reading *r, char *line, int room)
{
    int n = 0, c = next_byte(r);
    if (c == EOF)
        return -1;
    for (; c != EOF && c != '\n'; c = next_byte(r)) {
        if (n == room) {
            wrong(r, -EINVAL, "the line is longer than %d bytes", room);
            return -1;
        }
        line[n++] = (char)c;
    }
    return r->rc ? -1 : n;
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Takes away a byte order mark, indentation, and what follows a '#' behind a blank. */
static void tidy(char *line, int n)
{
    int from = n >= 3 && !memcmp(line, "\xef\xbb\xbf", 3) ? 3 : 0, end;
    while (from < n && is_blank(line[from]))
        from++;
    for (end = from; end < n; end++)
        if (line[end] == '#' && (end == from || is_blank(line[end - 1])))
            break;
    memmove(line, line + from, (size_t)(end - from));
    line[end - from] = 0;
}

static void not_a_pair(struct reading *r)
{
    wrong(r, -EINVAL, "this is no line of the form name = value");
}

/* What libinih reads with: as fgets(3). */
static char *next_line(char *line, int room, void *stream)
{
    struct reading *r = stream;
    r->line++;
    if (r->line > LINES_MAX)
        wrong(r, -EINVAL, "a configuration has no more than %d lines", LINES_MAX);
    int n = r->rc ? -1 : read_line(r, line, room - 3);
    if (n < 0)
        return NULL;
    tidy(line, n);
    if (*line && !strchr(";#[", *line) && !strpbrk(line, "=:"))
        not_a_pair(r);
    return line;
}

/* ---- pairs ---- */

static void take_pair(struct reading *r, const char *name, const char *value)
{
    unsigned known = 0;
    struct fail inner = {0};
    int rc = options_set_from_file(r->o, name, value, &known, &inner);
    if (rc < 0)
        wrong(r, -EINVAL, "%s", inner.text);
    else if (r->first[known])
        wrong(r, -EINVAL, "%s was set before, in line %u", name, r->first[known]);
    else
        r->first[known] = r->o->line[known] = (uint16_t)r->line;
}

static int on_pair(void *user, const char *section, const char *name, const char *value)
{
    struct reading *r = user;
    if (*section && strcmp(section, "llmd"))
        wrong(r, -EINVAL, "there is no section [%.64s]: options stand under [llmd], or under none",
              section);
    if (!r->rc)
        take_pair(r, name, value);
    return 1;
}

int config_read_file(struct options *o, FILE *file, const char *name, struct fail *f)
{
    struct reading r = {.o = o, .file = file, .name = name, .f = f};
    if (&ini_max_line)
        ini_max_line = LINE_BYTES;
    int line = ini_parse_stream(next_line, &r, on_pair, &r);
    if (!r.rc && line > 0) {
        r.line = (unsigned)line;
        not_a_pair(&r);
    }
    if (!r.rc && line < 0)
        r.rc = fail(f, -ENOMEM, "no memory to read the configuration %.200s", name);
    return r.rc;
}

int config_read(struct options *o, const char *path, struct fail *f)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return fail(f, -errno, "the configuration %.200s cannot be opened: %s", path,
                    strerror(errno));
    int rc = config_read_file(o, file, path, f);
    fclose(file);
    return rc;
}
