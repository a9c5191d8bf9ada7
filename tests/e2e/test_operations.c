/* test_operations.c - what etc/ has for operators: every file can be read by the program it is for, the
 * figures that it asks for exist, alerts fire when they shall; and whole stacks, under make check-all.
 * Programs that are not installed are left out, with a word.
 */
#include "../../shm/board.h"
#include "../../tools/gateway/metrics.h"
#include "../support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Runs a command that ends with 0, or with 77 where something is not installed. */
__attribute__((format(printf, 1, 2))) static void passes(const char *format, ...)
{
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    int status;
    char *out = run_command(&status, "{ %s\n} 2>&1", command);
    if (status && status != 77)
        fail_msg("%s: status %d: %s", command, status, out);
    if (status)
        print_message("%s", out);
    free(out);
    if (status)
        skip();
}

#define NEEDS "command -v %s >/dev/null || { echo '%s is not installed: not checked'; exit 77; }; "

/* ---- figures ---- */

static struct llm_board board;

/* "\nname\nname...\n" of all families that the gateway writes. */
static char *families(void)
{
    char *text = NULL, path[600];
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    struct metrics_instance one = {
        .board = &board, .instance = "e", .model = "m", .lives = true, .now_ns = 1};
    assert_int_equal(metrics_write(out, &one, 1), 0);
    fclose(out);
    snprintf(path, sizeof path, "%s/metrics.txt", scratch_dir());
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    free(text);
    int status;
    return run_command(&status, "echo; sed -n 's/^# TYPE \\([^ ]*\\) .*/\\1/p' '%s'", path);
}

/* Dashboard, rules and scalers ask for nothing that is never written. */
static void figures_that_are_asked_for_exist(void **state)
{
    (void)state;
    char *have = families();
    int status;
    char *asked = run_command(
        &status, "cat etc/grafana/*.json etc/prometheus/llmd-rules*.yml "
                 "etc/keda/llmd-scaledobject.yaml | grep -ohE '(vllm:|llmd_)[a-z0-9_]+' | "
                 "sed -E 's/_(bucket|sum|count)$//' | sort -u");
    unsigned n = 0;
    for (char *name = strtok(asked, "\n"); name; name = strtok(NULL, "\n"), n++) {
        char line[128];
        snprintf(line, sizeof line, "\n%s\n", name);
        if (!strstr(have, line))
            fail_msg("%s is asked for in etc/, but is no metric", name);
    }
    assert_in_range(n, 25, 100);
    free(asked), free(have);
}

static void dashboard_is_json(void **state)
{
    (void)state;
    json_error_t error;
    json_t *d = json_load_file("etc/grafana/llmd-dashboard.json", JSON_REJECT_DUPLICATES, &error);
    if (!d)
        fail_msg("line %d: %s", error.line, error.text);
    size_t i;
    json_t *panel, *ids = json_object(), *panels = json_object_get(d, "panels");
    assert_in_range(json_array_size(panels), 20, 100);
    json_array_foreach(panels, i, panel)
    {
        char id[32];
        snprintf(id, sizeof id, "%lld",
                 (long long)json_integer_value(json_object_get(panel, "id")));
        assert_null(json_object_get(ids, id)); /* each panel has its own */
        json_object_set_new(ids, id, json_true());
        assert_non_null(json_string_value(json_object_get(panel, "title")));
        const json_t *place = json_object_get(panel, "gridPos");
        assert_in_range(json_integer_value(json_object_get(place, "x")) +
                            json_integer_value(json_object_get(place, "w")),
                        1, 24);
        if (strcmp(json_string_value(json_object_get(panel, "type")), "row"))
            assert_true(json_array_size(json_object_get(panel, "targets")) > 0);
    }
    json_decref(ids);
    json_decref(d);
}

/* ---- programs ---- */

static void promtool_accepts_the_rules(void **state)
{
    (void)state;
    passes(NEEDS "cd etc/prometheus && promtool check config llmd-prometheus.yml && "
                 "promtool test rules llmd-rules-test.yml",
           "promtool", "promtool");
}

/* Its queries are PromQL: as rules they are checked. */
static void promtool_accepts_the_dashboards_queries(void **state)
{
    (void)state;
    passes(
        NEEDS
        "cat >'%s/queries.py' <<'END'\n"
        "import json, sys\n"
        "panels = json.load(open('etc/grafana/llmd-dashboard.json'))['panels']\n"
        "rules = [{'record': 'q:%%d' %% i, 'expr': t['expr'].replace('$__rate_interval', '1m')}\n"
        "         for i, t in enumerate(t for p in panels for t in p.get('targets', []))]\n"
        "json.dump({'groups': [{'name': 'q', 'rules': rules}]}, sys.stdout)\n"
        "END\n"
        "python3 '%s/queries.py' >'%s/queries.yml' && promtool check rules '%s/queries.yml'",
        "promtool", "promtool", scratch_dir(), scratch_dir(), scratch_dir(), scratch_dir());
}

static void haproxy_accepts_its_configuration(void **state)
{
    (void)state;
    passes(
        "PATH=$PATH:/usr/sbin; " NEEDS
        "said=$(haproxy -c -f etc/haproxy/llmd-haproxy.cfg 2>&1) && case $said in *WARN*) false;; "
        "esac || { echo \"$said\"; exit 1; }",
        "haproxy", "haproxy");
}

static void yaml_can_be_read(void **state)
{
    (void)state;
    passes("python3 -c 'import yaml' 2>/dev/null || { echo 'python3-yaml is not installed: not "
           "checked'; exit 77; }; cat >'%s/read.py' <<'END'\n"
           "import glob, yaml\n"
           "kinds = [(d['apiVersion'], d['kind'], d['metadata']['name'])\n"
           "         for f in glob.glob('etc/k*/*.yaml') for d in yaml.safe_load_all(open(f))]\n"
           "assert len(kinds) == len(set(kinds)) == 5, kinds\n"
           "pod = "
           "next(yaml.safe_load_all(open('etc/kubernetes/"
           "llmd-deployment.yaml')))['spec']['template']['spec']\n"
           "volumes = {v['name'] for v in pod['volumes']}\n"
           "for c in pod['containers']:\n"
           "    assert {m['name'] for m in c['volumeMounts']} <= volumes\n"
           "    assert {'/dev/shm', '/run/llmd'} <= {m['mountPath'] for m in c['volumeMounts']}\n"
           "for c in pod['containers']:\n"
           "    print(c['command'][0], *c['args'])\n"
           "END\n"
           "python3 '%s/read.py' >'%s/commands'",
           scratch_dir(), scratch_dir(), scratch_dir());
}

/* The options that the examples give are ones of the programs. */
static void examples_name_options_that_exist(void **state)
{
    (void)state;
    passes(
        "sed -n 's/^ *- \\(--[a-z-]*\\)=.*/\\1/p' etc/kubernetes/llmd-deployment.yaml | sort -u | "
        "while read -r o; do { '%s' --help; '%s' --help; } | grep -q -- \"^  $o \" || "
        "{ echo \"$o is no option\"; exit 1; }; done",
        built("llmd"), built("llm-gateway"));
}

/* ---- stacks ---- */

static void stack(const char *which)
{
    if (!test_exhaustive() || test_sanitized()) {
        print_message("runs in make check-all\n");
        skip();
    }
    passes(
        "timeout 280 python3 -B tests/operations/check_stack.py %s \"$(dirname '%s')\" '%s' '%s' "
        "t%d-%s",
        which, built("llmctl"), golden_path("tiny_gguf/llama.Q8_0.gguf"), scratch_dir(),
        (int)getpid(), which);
}

static void haproxy_loses_no_request(void **state)
{
    (void)state;
    stack("haproxy");
}

static void prometheus_scrapes_and_evaluates(void **state)
{
    (void)state;
    stack("prometheus");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_that_are_asked_for_exist),
        cmocka_unit_test(dashboard_is_json),
        cmocka_unit_test(promtool_accepts_the_rules),
        cmocka_unit_test(promtool_accepts_the_dashboards_queries),
        cmocka_unit_test(haproxy_accepts_its_configuration),
        cmocka_unit_test(yaml_can_be_read),
        cmocka_unit_test(examples_name_options_that_exist),
        cmocka_unit_test(haproxy_loses_no_request),
        cmocka_unit_test(prometheus_scrapes_and_evaluates),
    };
    return cmocka_run_group_tests_name("operations", tests, NULL, NULL);
}
