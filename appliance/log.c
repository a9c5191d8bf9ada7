/* log.c - see log.h. Sources: RFC 8259 for JSON's strings, RFC 3629 for UTF-8, RFC 3339 for times,
 * sd-daemon(3) and systemd.exec(5) (JOURNAL_STREAM) for the journal.
 */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct {
    enum log_level most;
    bool json, journal;
} setup = {.most = LOG_LEVEL_INFO};

static const struct {
    const char *name, *prefix, *journal;
} levels[] = {[LOG_LEVEL_ERROR] = {"error", "", "<3>"},
              [LOG_LEVEL_WARN] = {"warn", "warning: ", "<4>"},
              [LOG_LEVEL_INFO] = {"info", "", "<6>"},
              [LOG_LEVEL_DEBUG] = {"debug", "debug: ", "<7>"}};

/* JOURNAL_STREAM names the device and inode of the journal's end; somebody may have redirected
 * standard error since. */
static bool is_journal(int fd)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat s;
    char here[64];
    if (!stream || fstat(fd, &s))
        return false;
    snprintf(here, sizeof here, "%llu:%llu", (unsigned long long)s.st_dev,
             (unsigned long long)s.st_ino);
    return !strcmp(stream, here);
}

void log_setup(enum log_level most, bool json)
{
    setup.most = most;
    setup.json = json;
    setup.journal = is_journal(STDERR_FILENO);
}

bool log_wants(enum log_level level)
{
    return level <= setup.most;
}

/* ---- JSON ---- */

/* Bytes of the UTF-8 character at s, 0 if there is none. */
static unsigned character(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    unsigned n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    for (unsigned i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) /* a NUL too */
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] > 0x9f, beyond = s[0] == 0xf4 && s[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : n;
}

unsigned log_json_text(char *out, unsigned room, const char *text)
{
    unsigned used = 0;
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        char one[8];
        unsigned n = character(s), bytes;
        if (!n)
            bytes = (unsigned)snprintf(one, sizeof one, "\\ufffd");
        else if (*s == '"' || *s == '\\')
            bytes = (unsigned)snprintf(one, sizeof one, "\\%c", *s);
        else if (*s < 0x20)
            bytes = (unsigned)snprintf(one, sizeof one, "\\u%04x", *s);
        else
            memcpy(one, s, bytes = n);
        if (used + bytes > room)
            break;
        memcpy(out + used, one, bytes);
        used += bytes;
        s += n ? n : 1;
    }
    return used;
}

enum { LINE_MAX_BYTES = 6 * LOG_TEXT_MAX + 128 }; /* every byte of the text may become \u00xx */

static unsigned json_line(char *line, enum log_level level, const char *text)
{
    struct timespec now;
    struct tm utc;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    unsigned n = (unsigned)snprintf(
        line, LINE_MAX_BYTES, "{\"time\":\"%s.%06ldZ\",\"level\":\"%s\",\"pid\":%d,\"text\":\"",
        date, now.tv_nsec / 1000, levels[level].name, (int)getpid());
    n += log_json_text(line + n, LINE_MAX_BYTES - n - 3, text);
    memcpy(line + n, "\"}\n", 3);
    return n + 3;
}

static unsigned plain_line(char *line, enum log_level level, const char *text)
{
    return (unsigned)snprintf(line, LINE_MAX_BYTES, "%sllmd: %s%s\n",
                              setup.journal ? levels[level].journal : "", levels[level].prefix,
                              text);
}

/* ---- lines ---- */

static void put(const char *bytes, size_t n)
{
    /* nobody can be told that nobody can be told */
    ssize_t ignored = write(STDERR_FILENO, bytes, n);
    (void)ignored;
}

static void say(enum log_level level, const char *format, va_list args)
{
    if (!log_wants(level))
        return;
    char text[LOG_TEXT_MAX], line[LINE_MAX_BYTES];
    vsnprintf(text, sizeof text, format, args);
    put(line, setup.json ? json_line(line, level, text) : plain_line(line, level, text));
}

#define DEFINE_LEVEL(NAME, LEVEL)                                                                  \
    void NAME(const char *format, ...)                                                             \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, format);                                                                    \
        say(LEVEL, format, args);                                                                  \
        va_end(args);                                                                              \
    }
DEFINE_LEVEL(log_error, LOG_LEVEL_ERROR)
DEFINE_LEVEL(log_warn, LOG_LEVEL_WARN)
DEFINE_LEVEL(log_info, LOG_LEVEL_INFO)
DEFINE_LEVEL(log_debug, LOG_LEVEL_DEBUG)

/* ---- progress ---- */

static const uint64_t between_lines_ns = 1000000000, between_updates_ns = 100000000;

void log_progress_begin(struct log_progress *p, const char *what, uint64_t now_ns)
{
    *p = (struct log_progress){
        .what = what, .shown_ns = now_ns, .terminal = !setup.json && isatty(STDERR_FILENO)};
}

static void overwrite(struct log_progress *p, unsigned percent)
{
    char line[128];
    int n = snprintf(line, sizeof line, "\rllmd: %s %u %%", p->what, percent);
    put(line, (size_t)n);
    p->open = true;
}

bool log_progress(struct log_progress *p, uint64_t done, uint64_t total, uint64_t now_ns)
{
    unsigned percent = (unsigned)((double)done / (double)total * 100);
    uint64_t since = now_ns - p->shown_ns;
    bool enough = p->terminal ? since >= between_updates_ns && percent > p->shown
                              : since >= between_lines_ns && percent / 10 > p->shown / 10;
    if (!log_wants(LOG_LEVEL_INFO) || !enough)
        return false;
    if (p->terminal)
        overwrite(p, percent);
    else
        log_info("%s %u %%", p->what, percent);
    p->shown = percent;
    p->shown_ns = now_ns;
    return true;
}

void log_progress_end(struct log_progress *p)
{
    if (p->open)
        put("\r\033[K", 4); /* the line's work is done: what comes next takes its place */
    p->open = false;
}
