/* installed.c - see installed.h. */
#include "installed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *build_folder(void)
{
    const char *b = getenv("B");
    return b && *b ? b : "build";
}

char *succeeds(const char *format, ...)
{
    char command[6000];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_true(n > 0 && (size_t)n < sizeof command);
    int status;
    char *out = run_command(&status, "{ %s ; } 2>&1", command);
    if (status)
        fail_msg("status %d from: %s\n%s", status, command, out);
    return out;
}

/* The environment of an outer make, and the user's, must not reach in; -o: these are not made anew
 * even if a source is newer. */
void install_make(const char *format, ...)
{
    char goals[2048];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(goals, sizeof goals, format, args);
    va_end(args);
    assert_true(n > 0 && (size_t)n < sizeof goals);
    const char *b = build_folder();
    free(succeeds(
        "umask 077; env -i PATH=\"$PATH\" make -s --no-print-directory B='%s' -o '%s/llmd' "
        "-o '%s/llmctl' -o '%s/libllmclient.so' -o '%s/libllmclient.a' %s",
        b, b, b, b, b, goals));
}

const char *installed_root(void)
{
    static char root[512];
    if (!*root) {
        snprintf(root, sizeof root, "%.400s/root", scratch_dir());
        install_make("install DESTDIR='%s' PREFIX=/usr", root);
    }
    return root;
}

const char *scratch_file(const char *name, const char *text)
{
    static char paths[8][512];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%.300s/%.200s", scratch_dir(), name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    return path;
}

const char *build_program(const char *compiler, const char *source, const char *name)
{
    static char paths[8][512];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    const char *root = installed_root();
    snprintf(path, sizeof paths[0], "%.300s/%.200s", scratch_dir(), name);
    free(succeeds("%s -Wall -Wextra -Werror '%s' -o '%s' $(PKG_CONFIG_SYSROOT_DIR='%s' "
                  "PKG_CONFIG_PATH='%s/usr/lib/pkgconfig' pkg-config --cflags --libs llmclient)",
                  compiler, source, path, root, root));
    return path;
}

bool have_command(const char *name)
{
    int status;
    free(run_command(&status, "command -v '%s'", name));
    return status == 0;
}

char *next_word(char **at)
{
    char *word = *at + strspn(*at, " \t\n");
    if (!*word)
        return NULL;
    char *end = word + strcspn(word, " \t\n");
    *at = *end ? end + 1 : end;
    *end = 0;
    return word;
}
