/* python.c - see python.h. */
#include "python.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct engine_process engine;

int python_start(void **state)
{
    (void)state;
    engine_start(&engine, real_model_path(), "--threads", "1", "--max-model-len", "2048", NULL);
    return 0;
}

int python_finish(void **state)
{
    (void)state;
    return engine_stop(&engine);
}

/* What Python itself takes from the environment (PYTHONHOME, ...) stays: it may be needed to start.
 * -B: nothing is written into the source tree. timeout: a hang has a name then. */
void python_tests(const char *module)
{
    const char *b = getenv("B");
    int status;
    char *out = run_command(
        &status,
        "B='%s' LLMD_MODEL='%s' LLMCLIENT_TEST_INSTANCE=%s LLMCLIENT_LIBRARY= "
        "PYTHONPATH=client/python/tests timeout 600 python3 -B -W error -m unittest -v %s 2>&1",
        b && *b ? b : "build", real_model_path(), engine.instance, module);
    if (status || !strstr(out, "\nRan ")) {
        fputs(out, stderr); /* cmocka would cut it */
        fail_msg("%s: status %d", module, status);
    }
    for (const char *p = out; (p = strstr(p, " ... skipped ")); p++)
        print_message("%s: %.*s\n", module, (int)strcspn(p + 5, "\n"), p + 5);
    free(out);
}
