/* test_python_engine.c - the Python package against an engine: streams, sessions, labels, death. */
#include "../support/python.h"

static void against_an_engine(void **state)
{
    (void)state;
    python_tests("test_llmd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_an_engine),
    };
    return cmocka_run_group_tests(tests, python_start, python_finish);
}
