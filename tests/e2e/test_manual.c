/* test_manual.c - the manual says what the programs do: every public function, option and command
 * has its place, what is named exists, every example compiles, and the pages are well-formed.
 */
#include "../support/installed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *page(const char *name)
{
    return succeeds("cat etc/man/%s", name);
}

/* Fails if a line of `wanted` is no line of `have`. */
static void each_in(const char *wanted, const char *have, const char *advice)
{
    char *copy = strdup(wanted), *at = copy, line[256];
    for (char *word; (word = next_word(&at));) {
        snprintf(line, sizeof line, "\n%.200s\n", word);
        if (!strstr(have, line))
            fail_msg("%s %s", word, advice);
    }
    free(copy);
}

/* ---- the library ---- */

static void every_function_has_a_page(void **state)
{
    (void)state;
    char *functions = succeeds("cat '%s'/usr/include/llm*.h | grep -v '^ *#' | tr '\\n' ' ' | "
                               "grep -oE 'LLM_API [^;(]*\\(' | "
                               "sed 's/.*[ *]\\(llm_[a-z0-9_]*\\)($/\\1/' | sort -u",
                               installed_root());
    char *pages = succeeds("echo; ls '%s/usr/share/man/man3' | sed 's/\\.3$//'", installed_root());
    char *synopses = succeeds("echo; sed -n 's/^\\.Fn \\(llm_[a-z0-9_]*\\).*/\\1/p' etc/man/*.3 | "
                              "sort -u");
    assert_non_null(strstr(functions, "llm_submit\n"));
    each_in(functions, pages, "has no page in etc/man");
    each_in(functions, synopses, "stands in no synopsis of etc/man");

    char *all = malloc(strlen(functions) + 2);
    sprintf(all, "\n%s", functions);
    each_in(synopses, all, "is described in etc/man, but no header declares it");
    free(all), free(functions), free(pages), free(synopses);
}

static void aliases_lead_to_pages(void **state)
{
    (void)state;
    free(succeeds(
        "cd '%s/usr/share/man' && n=0 && for f in man3/*; do "
        "to=$(sed -n '1s/^\\.so //p' $f); [ -z \"$to\" ] && continue; n=$((n + 1)); "
        "[ -f \"$to\" ] && grep -q '^\\.Sh NAME' \"$to\" || { echo \"$f: $to\"; exit 1; }; "
        "done && [ $n -ge 20 ]",
        installed_root()));
}

/* The programs and functions of the pages' examples, \e being a backslash in their source. */
static void examples_compile(void **state)
{
    (void)state;
    char *n = succeeds(
        "awk 'FNR == 1 {inside = 0} /^\\.Bd -literal/ {inside = 1; file = \"\"; next} "
        "/^\\.Ed/ {if (file) close(file); inside = 0; next} "
        "inside && /^#include/ && !file {file = sprintf(\"%s/page-%%d.c\", ++n)} "
        "inside && file {gsub(/\\\\e/, \"\\\\\"); print > file} END {print n}' etc/man/*.3",
        scratch_dir());
    assert_in_range(atoi(n), 7, 100);
    for (int i = 1; i <= atoi(n); i++) {
        static const char *const compilers[] = {"cc -std=c11 -pedantic", "c++ -x c++ -std=c++11"};
        char source[600], name[32];
        snprintf(source, sizeof source, "%s/page-%d.c", scratch_dir(), i);
        snprintf(name, sizeof name, "page-%d", i);
        char *main_there = succeeds("grep -c '^int main' '%s' || true", source);
        for (size_t c = 0; c < 2; c++) {
            char compiler[128];
            snprintf(compiler, sizeof compiler, "%s%s", compilers[c],
                     atoi(main_there) ? "" : " -shared -fPIC");
            build_program(compiler, source, name);
        }
        free(main_there);
    }
    free(n);
}

/* ---- options ---- */

static void options_of_llmd(void **state)
{
    (void)state;
    char *help = succeeds("'%s' --help | sed -n 's/^  \\(--[a-z0-9-]*\\).*/\\1/p'", built("llmd"));
    char *described =
        succeeds("echo; sed -n 's/^\\.It Fl \\(-[a-z0-9-]*\\).*/-\\1/p' etc/man/llmd.8");
    assert_non_null(strstr(help, "--model\n"));
    each_in(help, described, "is an option that etc/man/llmd.8 does not describe");
    char *all = malloc(strlen(help) + 2);
    sprintf(all, "\n%s", help);
    each_in(described, all, "is described in etc/man/llmd.8, but llmd does not know it");
    free(all), free(help), free(described);
}

static void keys_of_the_example_configuration(void **state)
{
    (void)state;
    char *help = succeeds(
        "echo; '%s' --help | sed -n 's/^  --\\([a-z0-9-]*\\) .*/\\1/p' | grep -vx -e config "
        "-e check-config -e help -e version",
        built("llmd"));
    char *keys = succeeds("echo; sed -n 's/^\\(# \\)*\\([a-z0-9-]*\\) = .*/\\2/p' etc/llmd.conf");
    assert_non_null(strstr(keys, "\nmodel\n"));
    each_in(keys, help, "stands in etc/llmd.conf, but is no option of a file");
    each_in(help, keys, "is an option that etc/llmd.conf does not show");
    free(help), free(keys);
}

static void commands_of_llmctl(void **state)
{
    (void)state;
    const char *ctl = built("llmctl");
    char *commands = succeeds("'%s' --help | sed -n 's/^  \\([a-z][a-z-]*\\)  .*/\\1/p'", ctl);
    char *described =
        succeeds("echo; sed -n 's/^\\.Ss \\([a-z][a-z-]*\\).*/\\1/p' etc/man/llmctl.1");
    assert_non_null(strstr(commands, "status\n"));
    each_in(commands, described, "is a command that etc/man/llmctl.1 does not describe");
    char *all = malloc(strlen(commands) + 2);
    sprintf(all, "\n%s", commands);
    each_in(described, all, "is described in etc/man/llmctl.1, but llmctl does not know it");

    /* options, over all commands */
    char *options =
        succeeds("for c in $('%s' --help | sed -n 's/^  \\([a-z][a-z-]*\\)  .*/\\1/p'); do "
                 "'%s' $c --help; done | grep -oE -e '--[a-z][a-z0-9/-]*' | sort -u",
                 ctl, ctl);
    char *text = page("llmctl.1");
    char *copy = strdup(options), *at = copy;
    for (char *word; (word = next_word(&at));) {
        char flag[128];
        snprintf(flag, sizeof flag, "Fl %.100s ", word + 1);
        if (strcmp(word, "--help") && !strstr(text, flag)) {
            snprintf(flag, sizeof flag, "Fl %.100s\n", word + 1);
            if (!strstr(text, flag))
                fail_msg("%s is an option that etc/man/llmctl.1 does not describe", word);
        }
    }
    free(copy), free(text), free(options), free(all), free(described), free(commands);
}

/* ---- form ---- */

static void pages_are_well_formed(void **state)
{
    (void)state;
    bool any = false;
    if (have_command("man") && have_command("groff")) {
        char *said = succeeds("for f in etc/man/*; do "
                              "LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 -Z $f 2>&1 "
                              ">/dev/null || echo \"$f: cannot be formatted\"; done");
        assert_string_equal(said, "");
        free(said);
        any = true;
    }
    if (have_command("mandoc")) {
        /* references are to pages that need not be installed here */
        char *said = succeeds("for f in etc/man/*; do mandoc -T lint $f 2>&1; done | "
                              "grep -v 'referenced manual not found\\|outdated mandoc.db' || true");
        assert_string_equal(said, "");
        free(said);
        any = true;
    }
    if (!any)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_function_has_a_page),
        cmocka_unit_test(aliases_lead_to_pages),
        cmocka_unit_test(examples_compile),
        cmocka_unit_test(options_of_llmd),
        cmocka_unit_test(keys_of_the_example_configuration),
        cmocka_unit_test(commands_of_llmctl),
        cmocka_unit_test(pages_are_well_formed),
    };
    return cmocka_run_group_tests_name("manual", tests, NULL, NULL);
}
