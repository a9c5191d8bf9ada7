/* test_log.c - lines on standard error: levels, plain and JSON, bytes that JSON does not take, the
 * journal's priorities; and how seldom progress speaks.
 */
#include "../../appliance/log.h"

#include "../support/support.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t second = 1000000000;

/* What body() writes to standard error. */
static char *said(void (*body)(void))
{
    char path[512];
    snprintf(path, sizeof path, "%s/said", scratch_dir());
    int file = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600), saved = dup(2);
    assert_true(file >= 0 && saved >= 0);
    dup2(file, 2);
    body();
    dup2(saved, 2);
    close(saved);
    close(file);
    int status;
    return run_command(&status, "cat '%s'", path);
}

static void one_of_each(void)
{
    log_error("error %d", 1);
    log_warn("warn %d", 2);
    log_info("info %d", 3);
    log_debug("debug %d", 4);
}

static void levels_let_through_what_is_worse(void **state)
{
    (void)state;
    static const char *const lines[] = {"llmd: error 1\n", "llmd: warning: warn 2\n",
                                        "llmd: info 3\n", "llmd: debug: debug 4\n"};
    for (enum log_level most = LOG_LEVEL_ERROR; most <= LOG_LEVEL_DEBUG; most++) {
        char want[200] = "";
        for (enum log_level i = LOG_LEVEL_ERROR; i <= most; i++)
            strcat(want, lines[i]);
        log_setup(most, false);
        char *text = said(one_of_each);
        assert_string_equal(text, want);
        assert_true(log_wants(most));
        free(text);
    }
    assert_true(log_wants(LOG_LEVEL_DEBUG));
    log_setup(LOG_LEVEL_INFO, false);
    assert_false(log_wants(LOG_LEVEL_DEBUG));
}

static void odd_texts(void)
{
    log_info("%s", "quote \" back \\ tab \t bell \a newline \n");
    log_warn("%s",
             "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 | \xff \xc3 \xed\xa0\x80 \xc0\x80 \xf5");
    char long_text[4000];
    memset(long_text, '"', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    log_error("%s", long_text);
}

/* Each line is a whole object, whatever the text was. */
static void json_lines_are_objects(void **state)
{
    (void)state;
    static const char bad[] = "\xef\xbf\xbd";
    char want[3][LOG_TEXT_MAX];
    strcpy(want[0], "quote \" back \\ tab \t bell \a newline \n");
    snprintf(want[1], sizeof want[1],
             "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 | %s %s %s%s%s %s%s %s", bad, bad, bad, bad,
             bad, bad, bad, bad);
    memset(want[2], '"', LOG_TEXT_MAX - 1);
    want[2][LOG_TEXT_MAX - 1] = 0; /* cut */
    static const char *const names[] = {"info", "warn", "error"};
    log_setup(LOG_LEVEL_INFO, true);
    char *text = said(odd_texts);
    int n = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), n++) {
        json_error_t error;
        json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        if (!o)
            fail_msg("no JSON: %s: %s", error.text, line);
        assert_true(n < 3);
        assert_string_equal(json_string_value(json_object_get(o, "text")), want[n]);
        assert_string_equal(json_string_value(json_object_get(o, "level")), names[n]);
        assert_int_equal(json_integer_value(json_object_get(o, "pid")), getpid());
        const char *time = json_string_value(json_object_get(o, "time"));
        assert_int_equal(strlen(time), strlen("2025-01-31T12:34:56.123456Z"));
        assert_int_equal(time[10], 'T');
        assert_int_equal(json_object_size(o), 4);
        json_decref(o);
    }
    assert_int_equal(n, 3);
    free(text);
    log_setup(LOG_LEVEL_INFO, false);
}

static void json_text_fits_its_room(void **state)
{
    (void)state;
    char out[16];
    for (unsigned room = 0; room < sizeof out; room++) {
        memset(out, '#', sizeof out);
        unsigned n = log_json_text(out, room, "a\"\x01\xc3\xa9z");
        assert_true(n <= room);
        assert_memory_equal(out, "a\\\"\\u0001\xc3\xa9z", n); /* whole characters only */
        assert_true(n == 0 || n == 1 || n == 3 || n == 9 || n == 11 || n == 12);
        for (unsigned i = n; i < sizeof out; i++)
            assert_int_equal(out[i], '#');
    }
}

static void setup_and_say(void)
{
    struct stat s;
    char stream[64];
    assert_int_equal(fstat(2, &s), 0);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)s.st_dev,
             (unsigned long long)s.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_setup(LOG_LEVEL_DEBUG, false);
    one_of_each();
    setenv("JOURNAL_STREAM", "1:1", 1); /* standard error is not the journal's end any more */
    log_setup(LOG_LEVEL_ERROR, false);
    one_of_each();
    unsetenv("JOURNAL_STREAM");
}

static void a_journal_gets_priorities(void **state)
{
    (void)state;
    char *text = said(setup_and_say);
    assert_string_equal(text, "<3>llmd: error 1\n<4>llmd: warning: warn 2\n<6>llmd: info 3\n"
                              "<7>llmd: debug: debug 4\nllmd: error 1\n");
    free(text);
    log_setup(LOG_LEVEL_INFO, false);
}

/* ---- progress ---- */

static unsigned lines_said;

/* 1000 steps in `seconds`. */
static void load_in(double seconds)
{
    struct log_progress p;
    log_progress_begin(&p, "loading", 5 * second);
    assert_false(p.terminal);
    lines_said = 0;
    for (uint64_t i = 1; i <= 1000; i++)
        lines_said += log_progress(&p, i * 3, 3000, 5 * second + (uint64_t)(seconds * 1e6) * i);
    log_progress_end(&p);
}

static void load_for_minutes(void)
{
    load_in(100);
}
static void load_for_seconds(void)
{
    load_in(3.5);
}
static void load_at_once(void)
{
    load_in(0.9);
}

static void progress_speaks_seldom(void **state)
{
    (void)state;
    log_setup(LOG_LEVEL_INFO, false);
    char *text = said(load_at_once);
    assert_string_equal(text, "");
    free(text);
    text = said(load_for_seconds);
    assert_in_range(lines_said, 2, 3); /* a second apart */
    assert_memory_equal(text, "llmd: loading ", 14);
    free(text);
    text = said(load_for_minutes);
    assert_int_equal(lines_said, 10); /* each tenth */
    assert_non_null(strstr(text, "llmd: loading 10 %\nllmd: loading 20 %\n"));
    assert_non_null(strstr(text, "llmd: loading 100 %\n"));
    free(text);
    log_setup(LOG_LEVEL_WARN, false);
    text = said(load_for_minutes);
    assert_string_equal(text, "");
    free(text);
    log_setup(LOG_LEVEL_INFO, true);
    text = said(load_for_minutes);
    assert_non_null(strstr(text, "\"text\":\"loading 50 %\"}\n"));
    free(text);
    log_setup(LOG_LEVEL_INFO, false);
}

/* On a terminal one line, written over and taken away at the end. */
static void a_terminal_has_one_line(void **state)
{
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) || unlockpt(master))
        skip();
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY), saved = dup(2);
    assert_true(terminal >= 0 && saved >= 0);
    dup2(terminal, 2);
    struct log_progress p;
    log_progress_begin(&p, "loading", 0);
    bool is_terminal = p.terminal;
    unsigned said_times = 0;
    for (uint64_t i = 1; i <= 100; i++)
        said_times += log_progress(&p, i, 100, i * second / 20);
    log_progress_end(&p);
    dup2(saved, 2);
    close(saved);
    close(terminal);
    char text[4096];
    ssize_t n = 0, more;
    while ((more = read(master, text + n, sizeof text - 1 - (size_t)n)) > 0)
        n += more; /* it comes in parts; then EIO, as the other end is closed */
    close(master);
    assert_true(is_terminal && n > 0);
    text[n] = 0;
    assert_int_equal(said_times, 50); /* every tenth of a second */
    assert_memory_equal(text, "\rllmd: loading 2 %\rllmd: loading 4 %", 36);
    assert_null(strchr(text, '\n'));
    assert_string_equal(text + n - 4, "\r\033[K");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_let_through_what_is_worse),
        cmocka_unit_test(json_lines_are_objects),
        cmocka_unit_test(json_text_fits_its_room),
        cmocka_unit_test(a_journal_gets_priorities),
        cmocka_unit_test(progress_speaks_seldom),
        cmocka_unit_test(a_terminal_has_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
