/* test_abi.c - the contract between processes, and between programs and the library, has the sizes,
 * offsets and numbers that are written down; and what an earlier minor version named lies where it
 * lay. A deliberate change: make abi-check UPDATE=1.
 */
#include "../abi/listing.h"
#include "../support/support.h"

#include <stdlib.h>
#include <string.h>

static char *listing(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    abi_list(out);
    fclose(out);
    return text;
}

static char *committed(const char *name)
{
    int status;
    char *text = run_command(&status, "cat tests/abi/%s", name);
    assert_int_equal(status, 0);
    return text;
}

/* The first line in which the texts differ, for the message. */
static void expect_same(const char *have, const char *want)
{
    const char *line = want;
    for (size_t i = 0; have[i] == want[i] && want[i]; i++)
        if (want[i] == '\n')
            line = want + i + 1;
    if (strcmp(have, want))
        fail_msg("from '%.*s' on the contract is not what tests/abi/abi.txt says it is: it says "
                 "'%.*s' (make abi-check shows all differences)",
                 (int)strcspn(have + (line - want), "\n"), have + (line - want),
                 (int)strcspn(line, "\n"), line);
}

static void the_contract_is_the_one_written_down(void **state)
{
    (void)state;
    char *have = listing(), *want = committed("abi.txt");
    expect_same(have, want);
    free(have), free(want);
}

/* The line of the listing with the same first two words, or NULL. */
static const char *same_name(const char *text, const char *line)
{
    size_t n = strcspn(strchr(line, ' ') + 1, " ") + (size_t)(strchr(line, ' ') + 1 - line) + 1;
    for (const char *at = text; at && *at; at = strchr(at, '\n'), at = at ? at + 1 : NULL)
        if (!strncmp(at, line, n))
            return at;
    return NULL;
}

static long long number(const char *line)
{
    return strtoll(strchr(strchr(line, ' ') + 1, ' '), NULL, 10);
}

/* NULL: as it was; else what is wrong. */
static const char *compare(const char *have, const char *line)
{
    const char *now = same_name(have, line);
    if (!now)
        return "is gone";
    if (!strncmp(line, "grows ", 6) || !strncmp(line, "limit ", 6))
        return number(now) < number(line) ? "has become less" : NULL;
    size_t n = strcspn(line, "\n") + 1;
    return strncmp(now, line, n) ? "is not what it was" : NULL;
}

static void what_1_0_named_is_where_it_was(void **state)
{
    (void)state;
    char *have = listing(), *old = committed("abi-1.0.txt"), *at = old;
    int lines = 0;
    for (char *line; (line = strsep(&at, "\n")) && *line; lines++) {
        char whole[256];
        snprintf(whole, sizeof whole, "%s\n", line);
        const char *wrong = compare(have, whole);
        if (wrong)
            fail_msg("'%s' of ABI 1.0 %s", line, wrong);
    }
    assert_in_range(lines, 300, 1000);
    free(have), free(old);
}

/* The comparison sees each kind of change. */
static void changes_are_seen(void **state)
{
    (void)state;
    static const char have[] = "size a 8\nfield a.x 4 4\nvalue V -3\ngrows b 24\nlimit L 2\n";
    assert_null(compare(have, "size a 8\n"));
    assert_null(compare(have, "grows b 16\n"));
    assert_null(compare(have, "limit L 2\n"));
    assert_non_null(compare(have, "size a 80\n"));
    assert_non_null(compare(have, "field a.x 4 8\n"));
    assert_non_null(compare(have, "field a.x 0 4\n"));
    assert_non_null(compare(have, "field a.y 4 4\n"));
    assert_non_null(compare(have, "value V 3\n"));
    assert_non_null(compare(have, "grows b 32\n"));
    assert_non_null(compare(have, "limit L 3\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_contract_is_the_one_written_down),
        cmocka_unit_test(what_1_0_named_is_where_it_was),
        cmocka_unit_test(changes_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
