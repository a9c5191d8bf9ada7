/* python.h - runs modules of client/python/tests beside an engine with the small model. */
#ifndef LLMD_TESTS_PYTHON_H
#define LLMD_TESTS_PYTHON_H

#include "support.h"

/* Group fixtures: the engine that all modules of a program share. */
int python_start(void **state);
int python_finish(void **state);

/* Runs all tests of a module; fails with what it said. A test that it skips is shown. */
void python_tests(const char *module);

#endif
