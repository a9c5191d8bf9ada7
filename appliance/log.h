/* log.h - what the engine says about itself, on standard error: one line an event.
 *
 *     log_setup(LOG_LEVEL_INFO, false);
 *     log_info("loading %s", name);            llmd: loading SmolLM2
 *     log_warn("...");                         llmd: warning: ...
 *
 * As JSON (--log-json) a line is one object: time (RFC 3339, UTC), level, pid, text. Under a
 * journal the lines carry its priorities (sd-daemon(3): "<4>" before a warning).
 *
 * A line is one write(2): lines of several processes in one file do not mix. Never called from the
 * step path: a write may block. What happens there goes to the board (board_error).
 */
#ifndef LLMD_LOG_H
#define LLMD_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum { LOG_TEXT_MAX = 1024 }; /* bytes of a line's text, its NUL included; what is longer is cut */

/* Before it: level info, plain lines. */
void log_setup(enum log_level most, bool json);
bool log_wants(enum log_level level);

/* The text has no newline. */
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- progress of something long ---- */

/* On a terminal one line that is written over; else a line for each further tenth, but no more than
 * one a second, so that what is quick leaves no line at all. */
struct log_progress {
    const char *what; /* "loading" */
    unsigned shown;   /* percent that was last said */
    uint64_t shown_ns;
    bool terminal, open; /* open: the terminal's line has no end yet */
};

void log_progress_begin(struct log_progress *p, const char *what, uint64_t now_ns);
/* 0 <= done <= total, total > 0. True if something was said. */
bool log_progress(struct log_progress *p, uint64_t done, uint64_t total, uint64_t now_ns);
void log_progress_end(struct log_progress *p);

/* ---- parts, for tests ---- */

/* Writes `text` as the inside of a JSON string; bytes that are no UTF-8 become U+FFFD. Returns the
 * bytes written, without a NUL; what does not fit whole is left out. */
unsigned log_json_text(char *out, unsigned room, const char *text);

#endif
