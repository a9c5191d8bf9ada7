/* test_page.c - the status page in headless Chromium, at the sizes of a desktop and a phone, light
 * and dark: figures move, a chat streams and can be stopped, nothing sticks out, markup from a model
 * stays text, there is no console error and no other host. Part of `make check-all`, where there is
 * a Chromium.
 */
#include "../support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Small enough for one answer, and nothing to fetch. */
static void weighs_little(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(stat("tools/gateway/page.html", &st), 0);
    assert_in_range(st.st_size, 1000, 40 << 10);
    int status;
    char *out = run_command(&status, "grep -nE 'innerHTML|https?://|src=|@import|url\\(' "
                                     "tools/gateway/page.html");
    assert_string_equal(out, "");
    free(out);
}

static void in_a_browser(void **state)
{
    (void)state;
    if (!test_exhaustive()) {
        print_message("runs in make check-all\n");
        skip();
    }
    int status;
    char *out = run_command(&status, "timeout 240 python3 -B tests/page/check_page.py '%s' 2>&1",
                            scratch_dir());
    bool none = status == 77;
    if (status && !none)
        fail_msg("status %d: %s", status, out);
    if (none)
        print_message("%s", out);
    free(out);
    if (none)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weighs_little),
        cmocka_unit_test(in_a_browser),
    };
    return cmocka_run_group_tests_name("page", tests, NULL, NULL);
}
