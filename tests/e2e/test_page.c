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
#include <unistd.h>

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

/* The command ends with 0, or with 77 where there is no browser. */
static void checks(const char *command)
{
    int status;
    char *out = run_command(&status, "%s", command);
    bool none = status == 77;
    if (status && !none)
        fail_msg("status %d: %s", status, out);
    if (none)
        print_message("%s", out);
    free(out);
    if (none)
        skip();
}

static void in_a_browser(void **state)
{
    (void)state;
    if (!test_exhaustive()) {
        print_message("runs in make check-all\n");
        skip();
    }
    char command[1024];
    snprintf(command, sizeof command, "timeout 240 python3 -B tests/page/check_page.py '%s' 2>&1",
             scratch_dir());
    checks(command);
}

/* Served by the gateway: a real model answers. */
static void of_a_gateway(void **state)
{
    (void)state;
    if (!test_exhaustive() || test_sanitized()) {
        print_message("runs in make check-all\n");
        skip();
    }
    char command[2048];
    snprintf(command, sizeof command,
             "port=$(python3 -c 'import socket; s = socket.socket(); "
             "s.bind((\"127.0.0.1\", 0)); print(s.getsockname()[1])'); "
             "'%s' -i t%d-0 serve --model '%s' --max-model-len 1024 --kv-cache-memory 64M "
             "--port $port >'%s/serve.log' 2>&1 & serve=$!; "
             "until grep -q 'llmctl: ready' '%s/serve.log'; do kill -0 $serve || { cat "
             "'%s/serve.log'; exit 1; }; sleep 0.1; done; "
             "timeout 240 python3 -B tests/page/check_page.py '%s' http://127.0.0.1:$port/ 2>&1; "
             "rc=$?; kill $serve; wait $serve || rc=1; exit $rc",
             built("llmctl"), (int)getpid(), real_model_path(), scratch_dir(), scratch_dir(),
             scratch_dir(), scratch_dir());
    checks(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weighs_little),
        cmocka_unit_test(in_a_browser),
        cmocka_unit_test(of_a_gateway),
    };
    return cmocka_run_group_tests_name("page", tests, NULL, NULL);
}
