/* test_python.c - the Python package without a model's help: struct layouts, the HTTP side against a
 * server of its own, what pip installs. Its tests lie in client/python/tests; they are run here as a
 * developer runs them, each module a process. */
#include "../support/python.h"

static void layouts_are_the_compilers(void **state)
{
    (void)state;
    python_tests("test_layout");
}

static void http_as_well(void **state)
{
    (void)state;
    python_tests("test_http");
}

static void installs_offline(void **state)
{
    (void)state;
    python_tests("test_package");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_the_compilers),
        cmocka_unit_test(http_as_well),
        cmocka_unit_test(installs_offline),
    };
    return cmocka_run_group_tests(tests, python_start, python_finish);
}
