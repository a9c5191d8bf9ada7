/* llmctl_rig.h - one engine, and llmctl run on it: what the tests of the command line share. */
#ifndef LLMD_TESTS_LLMCTL_RIG_H
#define LLMD_TESTS_LLMCTL_RIG_H

#include "../support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct engine_process engine;

static inline const char *tiny_model(void)
{
    return golden_path("tiny_gguf/llama.Q8_0.gguf");
}

static inline char *ctl(int *status, const char *arguments)
{
    return run_command(status, "'%s' -i %s %s", built("llmctl"), engine.instance, arguments);
}

/* Its standard output, whatever the exit status, which must be `want`. */
static inline char *ctl_text(int want, const char *arguments)
{
    int status;
    char *out = ctl(&status, arguments);
    if (status != want)
        fail_msg("llmctl %s: status %d instead of %d, output %s", arguments, status, want, out);
    return out;
}

static inline json_t *ctl_json_status(int want, const char *arguments)
{
    char *out = ctl_text(want, arguments);
    json_t *v = json_loads(out, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!v)
        fail_msg("llmctl %s: no JSON: %s", arguments, out);
    free(out);
    return v;
}

static inline json_t *ctl_json(const char *arguments)
{
    return ctl_json_status(0, arguments);
}

/* The command fails with that status and says something that holds `word`. */
static inline void refuses(const char *arguments, int want, const char *word)
{
    char all[2048];
    int status;
    snprintf(all, sizeof all, "%s 2>&1", arguments);
    char *out = ctl(&status, all);
    if (status != want || !strstr(out, word))
        fail_msg("llmctl %s: status %d, said: %s", arguments, status, out);
    free(out);
}

static inline const char *lines_file(const char *name, const char *text)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_dir(), name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

/* The result lines of `complete --jsonl`, as an array. */
static inline json_t *ctl_lines(const char *lines, const char *flags)
{
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "complete --jsonl %s %s",
             lines_file("lines.jsonl", lines), flags);
    char *out = ctl_text(0, arguments);
    json_t *all = json_array();
    for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"))
        json_array_append_new(all, json_loads(line, JSON_ALLOW_NUL, NULL));
    free(out);
    return all;
}

static inline int64_t whole(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v))
        fail_msg("there is no whole number \"%s\"", key);
    return json_integer_value(v);
}

static inline double real(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v))
        fail_msg("there is no number \"%s\"", key);
    return json_number_value(v);
}

static inline const char *word(const json_t *o, const char *key)
{
    const char *v = json_string_value(json_object_get(o, key));
    if (!v)
        fail_msg("there is no text \"%s\"", key);
    return v;
}

#endif
