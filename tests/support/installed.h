/* installed.h - for tests of what a user gets: an installed tree below the test's own folder, and
 * programs that are built against it as a stranger would.
 */
#ifndef LLMD_TESTS_INSTALLED_H
#define LLMD_TESTS_INSTALLED_H

#include "support.h"

/* `make <goals and variables>` with the built programs as they are: nothing is compiled or linked.
 * Fails the test, showing the output, if make fails. */
void install_make(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The tree of a package: PREFIX=/usr below this DESTDIR. Installed on the first call. */
const char *installed_root(void);

/* Name of a file in scratch_dir(), which is written with this text. Eight names live at a time. */
const char *scratch_file(const char *name, const char *text);

/* Builds a program with pkg-config's flags of installed_root(): `compiler` and more flags, one
 * source. Warnings are errors. Returns its path; fails the test, showing the output. */
const char *build_program(const char *compiler, const char *source, const char *name);

/* Runs a command line; fails the test, showing what it said, unless it ends with 0. Returns what it
 * printed (malloc'ed). */
char *succeeds(const char *format, ...) __attribute__((format(printf, 1, 2)));

bool have_command(const char *name);

/* Words of a text, one a call: splits at blanks, tabs and line ends. Changes the text; *at starts
 * as the text. NULL at the end. */
char *next_word(char **at);

#endif
