/* test_gateway_openai.c - clients of others against the gateway, with the small model: the official
 * Python client (tests/gateway/openai_client.py), LiteLLM, and Schemathesis, which makes requests out of
 * tests/gateway/openapi.json. Skipped, with a message, where PyPI cannot be reached. */
#include "gateway_rig.h"

#include <sys/stat.h>

static struct engine_process engine;
static struct gateway_process gateway, guarded;

static int start(void **state)
{
    (void)state;
    char keys[300];
    snprintf(keys, sizeof keys, "%s/keys", scratch_dir());
    FILE *f = fopen(keys, "w");
    if (!f || fputs("sk-full\nsk-limited requests=1\n", f) < 0 || fclose(f))
        return -1;
    engine_start(&engine, real_model_path(), "--threads", "2", "--max-model-len", "2048",
                 "--num-kv-blocks", "1024", NULL);
    gateway_start(&gateway, engine.instance, NULL);
    gateway_start(&guarded, engine.instance, (const char *const[]){"--api-keys", keys, NULL});
    until_ready(&gateway);
    until_ready(&guarded);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    int rc = gateway_stop(&gateway) | gateway_stop(&guarded);
    return rc ? rc : engine_stop(&engine);
}

/* Folder with packages of PyPI (malloc'ed); NULL where they cannot be had. */
static char *fetched(const char *packages)
{
    int status;
    char *folder = run_command(&status, "sh tests/gateway/packages.sh %s", packages);
    folder[strcspn(folder, "\n")] = 0;
    if (!status)
        return folder;
    print_message("skipped: %s cannot be fetched from PyPI\n", packages);
    free(folder);
    return NULL;
}

/* Runs a module of tests/gateway; false where its packages cannot be had. */
static bool run_module(const char *packages, const char *module)
{
    int status;
    char *folder = fetched(packages);
    if (!folder)
        return false;
    char *out = run_command(
        &status,
        "GATEWAY_URL=http://127.0.0.1:%d GATEWAY_KEYS_URL=http://127.0.0.1:%d GATEWAY_MODEL=%s "
        "GATEWAY_KEY=sk-full GATEWAY_LIMITED_KEY=sk-limited PYTHONPATH='%s:tests/gateway' "
        "timeout 300 python3 -B -m unittest -v %s 2>&1",
        gateway.port, guarded.port, engine.instance, folder, module);
    if (status || !strstr(out, "\nOK")) {
        fputs(out, stderr); /* cmocka would cut it */
        fail_msg("%s: status %d", module, status);
    }
    free(out);
    free(folder);
    return true;
}

static void the_official_client(void **state)
{
    (void)state;
    if (!run_module("openai", "openai_client"))
        skip();
}

/* Under `make check-all`: a client that others built. */
static void litellm(void **state)
{
    (void)state;
    if (!test_exhaustive() || !run_module("litellm", "litellm_client"))
        skip();
}

/* No 5xx, no status, content type or object that the description does not have. */
static void described_requests(void **state)
{
    (void)state;
    int status;
    char *folder = fetched("schemathesis");
    if (!folder)
        skip();
    char *out = run_command(
        &status,
        "sed 's/\"MODEL\"/\"%s\"/' tests/gateway/openapi.json >'%s/openapi.json' && "
        "cd '%s' && PYTHONPATH='%s' timeout 600 python3 -B -m schemathesis.cli run openapi.json -u "
        "http://127.0.0.1:%d --phases %s --max-examples %d --seed 1 --warnings off -c "
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_"
        "conformance 2>&1",
        engine.instance, scratch_dir(), scratch_dir(), folder, gateway.port,
        test_exhaustive() ? "coverage,fuzzing" : "fuzzing", test_exhaustive() ? 300 : 40);
    if (status || !strstr(out, "No issues found")) {
        fputs(out, stderr);
        fail_msg("schemathesis: status %d", status);
    }
    print_message("%.*s\n", (int)strcspn(strstr(out, "Test cases:"), "S"),
                  strstr(out, "Test cases:"));
    free(out);
    free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_official_client),
        cmocka_unit_test(litellm),
        cmocka_unit_test(described_requests),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
