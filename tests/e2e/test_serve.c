/* test_serve.c - `llmctl serve`: an engine and a gateway start, are kept running, and stop together;
 * whatever happens, no process is left. No flag is taken and forgotten.
 *
 * The gateway is a stand-in that lies beside a copy of llmctl: it listens, writes down what it was
 * told, and says when it stops whether the engine is still there.
 */
#include "../support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char stand_in[] =
    "#!/usr/bin/env python3\n"
    "import os, signal, socket, sys\n"
    "log = os.environ['SERVE_LOG']\n"
    "def note(text):\n"
    "    with open(log, 'a') as f: f.write(text + '\\n')\n"
    "a = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
    "lock = os.path.join(os.environ['LLMD_RUNTIME_DIR'], a['--instance'] + '.sock')\n"
    "def stop(*_):\n"
    "    note('stops engine=%d' % os.path.exists(lock))\n"
    "    os._exit(0)\n"
    "signal.signal(signal.SIGTERM, stop)\n"
    "if os.environ.get('SERVE_DEAF'): signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.environ.get('SERVE_WRONG'): sys.exit(2)\n"
    "keys = open(a['--api-keys']).read().split() if '--api-keys' in a else []\n"
    "host, port = a['--listen'].rsplit(':', 1)\n"
    "s = socket.socket()\n"
    "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
    "s.bind((host, int(port)))\n"
    "s.listen()\n"
    "note('runs pid=%d instance=%s keys=%s argv=%s' % (os.getpid(), a['--instance'], "
    "','.join(keys),"
    " ' '.join(sys.argv)))\n"
    "while True:\n"
    "    c, _ = s.accept()\n"
    "    c.close()\n";

static const char *model(void)
{
    return golden_path("tiny_gguf/llama.Q8_0.gguf");
}

/* ---- one serve ---- */

static struct serve {
    pid_t pid;
    unsigned port;
    char instance[48], log[300], said[300]; /* log: the stand-in's; said: llmctl's and llmd's */
} serve;

static char *text_of(const char *path)
{
    int status;
    return run_command(&status, "cat '%s' 2>/dev/null", path);
}

static bool says(const char *path, const char *what)
{
    char *text = text_of(path);
    bool yes = strstr(text, what);
    free(text);
    return yes;
}

static void a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* False if it does not come within a time that is long for any machine. */
static bool wait_says(const char *path, const char *what)
{
    for (uint64_t start = test_now_ns(); test_now_ns() - start < 60000000000u; a_little())
        if (says(path, what))
            return true;
    return false;
}

/* A port that is free now. */
static unsigned free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&a, n) &&
                !getsockname(fd, (struct sockaddr *)&a, &n));
    close(fd);
    return ntohs(a.sin_port);
}

static void prepare(void)
{
    static unsigned count;
    serve = (struct serve){.port = free_port()};
    snprintf(serve.instance, sizeof serve.instance, "t%d-%u", (int)getpid(), count);
    snprintf(serve.log, sizeof serve.log, "%.200s/gateway-%u.log", scratch_dir(), count);
    snprintf(serve.said, sizeof serve.said, "%.200s/serve-%u.log", scratch_dir(), count++);
    setenv("SERVE_LOG", serve.log, 1);
}

/* Starts `llmctl serve` of the scratch folder with more words (NULL-terminated). */
static void spawn(const char *const *more)
{
    char program[400], port[8];
    snprintf(program, sizeof program, "%s/bin/llmctl", scratch_dir());
    snprintf(port, sizeof port, "%u", serve.port);
    const char *argv[32] = {program, "-i",     serve.instance, "serve",      "--model",
                            model(), "--port", port,           "--threads=1"};
    size_t n = 9;
    for (; more && *more && n < 31; more++)
        argv[n++] = *more;
    fflush(NULL);
    serve.pid = fork();
    assert_true(serve.pid >= 0);
    if (serve.pid)
        return;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int fd = open(serve.said, O_CREAT | O_WRONLY | O_APPEND, 0600);
    if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
        _exit(126);
    execv(program, (char *const *)argv);
    _exit(127);
}

static void start(const char *const *more)
{
    prepare();
    spawn(more);
    if (!wait_says(serve.said, "llmctl: ready: "))
        fail_msg("serve did not become ready: %s", text_of(serve.said));
}

static int wait_end(void)
{
    int how;
    assert_int_equal(waitpid(serve.pid, &how, 0), serve.pid);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

static int stop(int number)
{
    assert_int_equal(kill(serve.pid, number), 0);
    return wait_end();
}

/* The last number behind `what` in a file. */
static pid_t number_behind(const char *path, const char *what)
{
    char *text = text_of(path), *at = text, *last = NULL;
    while ((at = strstr(at, what)))
        last = at += strlen(what);
    pid_t pid = last ? atoi(last) : 0;
    free(text);
    return pid;
}

static pid_t gateway_pid(void)
{
    return number_behind(serve.log, "pid=");
}

/* What the board says; 0 where no engine is ready. */
static pid_t engine_pid(void)
{
    int status;
    char *out = run_command(&status, "'%s' -i %s status --json 2>/dev/null", built("llmctl"),
                            serve.instance);
    json_t *v = status ? NULL : json_loads(out, 0, NULL);
    const char *state = json_string_value(json_object_get(v, "state"));
    pid_t pid =
        state && !strcmp(state, "ready") ? (pid_t)json_integer_value(json_object_get(v, "pid")) : 0;
    json_decref(v);
    free(out);
    return pid;
}

static void wait_gone(pid_t pid)
{
    for (uint64_t from = test_now_ns(); !kill(pid, 0) || errno != ESRCH; a_little())
        if (test_now_ns() - from > 60000000000u)
            fail_msg("process %d is still there", (int)pid);
}

static pid_t wait_other_engine(pid_t old)
{
    for (uint64_t from = test_now_ns(); test_now_ns() - from < 60000000000u; a_little()) {
        pid_t pid = engine_pid();
        if (pid && pid != old)
            return pid;
    }
    fail_msg("the engine was not started again: %s", text_of(serve.said));
    return 0;
}

/* ---- scenarios ---- */

static void both_start_and_stop(void **state)
{
    (void)state;
    const char *more[] = {"--api-key",     "one",
                          "--api-key=two", "--max-model-len",
                          "200",           "--gpu-memory-utilization",
                          "0.5",           "--served_model_name",
                          "small",         NULL};
    start(more);
    char want[200];
    snprintf(want, sizeof want, "ready: http://127.0.0.1:%u/v1 serves 'small'\n", serve.port);
    assert_true(says(serve.said, want));
    snprintf(want, sizeof want, "instance=%s keys=one,two ", serve.instance);
    assert_true(says(serve.log, want));
    assert_false(says(serve.log, " two")); /* not in a command line */
    pid_t engine = engine_pid(), gateway = gateway_pid();
    assert_true(engine > 0 && gateway > 0);
    assert_int_equal(stop(SIGTERM), 0);
    assert_int_equal(kill(engine, 0), -1); /* they were waited for */
    assert_int_equal(kill(gateway, 0), -1);
    assert_true(says(serve.log, "stops engine=1")); /* its streams have an engine to the end */
    int status;
    free(run_command(&status, "'%s' -i %s status 2>&1", built("llmctl"), serve.instance));
    assert_int_equal(status, 1); /* no board: an end in order */
}

static void an_interrupt_does_the_same(void **state)
{
    (void)state;
    start(NULL);
    pid_t engine = engine_pid(), gateway = gateway_pid();
    assert_int_equal(stop(SIGINT), 0);
    assert_int_equal(kill(engine, 0), -1);
    assert_int_equal(kill(gateway, 0), -1);
}

static void what_dies_is_started_again(void **state)
{
    (void)state;
    start(NULL);
    pid_t engine = engine_pid(), gateway = gateway_pid();
    kill(engine, SIGKILL);
    pid_t second = wait_other_engine(engine);
    assert_true(says(serve.said, "llmd was killed by signal 9"));
    assert_int_equal(gateway_pid(), gateway);
    kill(gateway, SIGKILL);
    for (uint64_t from = test_now_ns(); gateway_pid() == gateway; a_little())
        assert_true(test_now_ns() - from < 60000000000u);
    pid_t other = gateway_pid();
    assert_int_equal(stop(SIGTERM), 0);
    assert_int_equal(kill(second, 0), -1);
    assert_int_equal(kill(other, 0), -1);
}

static void not_for_ever(void **state)
{
    (void)state;
    const char *more[] = {"--restarts", "0", NULL};
    start(more);
    pid_t gateway = gateway_pid();
    kill(engine_pid(), SIGKILL);
    assert_int_equal(wait_end(), 1);
    assert_true(says(serve.said, "it is not started again"));
    assert_int_equal(kill(gateway, 0), -1);
}

/* Killed itself, it can do nothing more: the kernel tells both. */
static void none_is_left_when_it_is_killed(void **state)
{
    (void)state;
    start(NULL);
    pid_t engine = engine_pid(), gateway = gateway_pid();
    assert_int_equal(stop(SIGKILL), 128 + SIGKILL);
    wait_gone(engine);
    wait_gone(gateway);
}

static void a_drained_engine_ends_all(void **state)
{
    (void)state;
    start(NULL);
    pid_t gateway = gateway_pid();
    int status;
    free(run_command(&status, "'%s' -i %s drain 2>&1", built("llmctl"), serve.instance));
    assert_int_equal(status, 0);
    assert_int_equal(wait_end(), 0);
    assert_int_equal(kill(gateway, 0), -1);
}

static void a_deaf_gateway_is_killed(void **state)
{
    (void)state;
    setenv("SERVE_DEAF", "1", 1);
    const char *more[] = {"--drain-timeout", "0", NULL};
    start(more);
    unsetenv("SERVE_DEAF");
    pid_t engine = engine_pid(), gateway = gateway_pid();
    kill(serve.pid, SIGTERM);
    assert_true(wait_says(serve.said, "again to stop at once"));
    assert_int_equal(stop(SIGTERM), 1);
    assert_true(says(serve.said, "llm-gateway is killed"));
    assert_int_equal(kill(engine, 0), -1);
    assert_int_equal(kill(gateway, 0), -1);
}

static void what_never_ran_is_not_tried_again(void **state)
{
    (void)state;
    prepare();
    const char *wrong[] = {"--max-model-len", "1", NULL}; /* the engine's own range */
    spawn(wrong);
    assert_int_equal(wait_end(), 2);
    assert_true(says(serve.said, "--max-model-len 1 is out of range"));
    assert_int_equal(gateway_pid(), 0);

    prepare();
    setenv("SERVE_WRONG", "1", 1);
    spawn(NULL);
    assert_int_equal(wait_end(), 2);
    unsetenv("SERVE_WRONG");
    assert_true(says(serve.said, "llm-gateway has ended with status 2 before it was ready"));
    assert_int_equal(engine_pid(), 0);
}

static void a_taken_port_is_said_first(void **state)
{
    (void)state;
    start(NULL);
    unsigned taken = serve.port;
    struct serve first = serve;
    prepare();
    serve.port = taken;
    spawn(NULL);
    assert_int_equal(wait_end(), 1);
    assert_true(says(serve.said, "choose another --host or --port"));
    assert_false(says(serve.said, "llmd"));
    serve = first;
    assert_int_equal(stop(SIGTERM), 0);
}

/* An engine that is still loading, or has not come to handling signals. */
static void a_stop_while_it_loads(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        prepare();
        spawn(NULL);
        pid_t engine = 0;
        for (uint64_t from = test_now_ns(); !engine; a_little()) {
            int status;
            char *out = run_command(&status, "cat /proc/%d/task/%d/children", (int)serve.pid,
                                    (int)serve.pid);
            engine = atoi(out);
            free(out);
            assert_true(test_now_ns() - from < 60000000000u);
        }
        assert_int_equal(stop(SIGTERM), 0);
        assert_int_equal(kill(engine, 0), -1);
    }
}

/* ---- flags ---- */

static void refused(const char *flags, const char *why)
{
    int status;
    char *out =
        run_command(&status, "'%s' serve --model '%s' %s 2>&1", built("llmctl"), model(), flags);
    char *end = strchr(out, '\n');
    if (status != 2 || !strstr(out, why) || !end || end[1])
        fail_msg("serve %s: status %d, said %s", flags, status, out);
    free(out);
}

static void flags_that_are_refused(void **state)
{
    (void)state;
    static const char *const table[][2] = {
        {"--quantization awq", "no such quantization yet"},
        {"--quantization=gptq", "no such quantization yet"},
        {"-q fp8", "no such quantization yet"},
        {"--enable-lora", "no adapters yet"},
        {"--enable_lora", "no adapters yet"},
        {"--lora-modules support=a legal=b", "no adapters yet"},
        {"--tensor-parallel-size 2", "one device"},
        {"-tp=2", "one device"},
        {"--dtype bfloat16", "follows the model file"},
        {"--speculative-config '{}'", "method \"ngram\" alone"},
        {"--speculative-config nonsense", "method \"ngram\" alone"},
        {"--speculative-config '{\"method\": \"eagle\"}'", "method \"ngram\" alone"},
        {"--speculative-config '{\"method\": \"ngram\", \"model\": \"x\"}'", "has no \"model\""},
        {"--speculative-config '{\"method\": \"ngram\", \"prompt_lookup_max\": \"4\"}'",
         "is a whole number"},
        {"--speculative-model x", "without a second model"},
        {"--seed 1", "a request's own"},
        {"--no-enable-chunked-prefill", "always read in chunks"},
        {"--trust-remote-code", "no model's code"},
        {"--chat-template x", "template inside the GGUF file"},
        {"--max-model-length 5", "did you mean --max-model-len?"},
        {"--max-model-len", "needs a value"},
        {"--no-max-model-len", "serve has no option"},
        {"--enable-prefix-caching=maybe", "is yes or no"},
        {"--frobnicate", "serve has no option --frobnicate"},
        {"-z", "serve has no option -z"},
        {"--", "serve has no option --"},
        {"other.gguf", "unexpected \"other.gguf\""},
        {"--port 0", "whole number from 1"},
        {"--port http", "whole number from 1"},
        {"--host a/b", "is no address"},
        {"--host $(printf %064d 0)", "is no address"},
        {"--api-key ''", "1 to 255 bytes"},
        {"--api-key=", "1 to 255 bytes"},
        {"--api-key 'a b'", "without blanks"},
        {"--api-key '#a'", "without '#'"},
        {"--api-key \"$(printf 'a\\nb')\"", "without blanks"},
        {"--api-key $(printf %0256d 0)", "1 to 255 bytes"},
        {"--api-keys /no/such/file", "cannot be read"},
        {"--ssl-certfile /no/such/file", "cannot be read"},
        {"--drain-timeout x", "--drain-timeout"},
        {"--drain-timeout 90000", "at most a day"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        refused(table[i][0], table[i][1]);
    int status;
    char *out = run_command(&status, "'%s' serve 2>&1", built("llmctl"));
    assert_true(status == 2 && strstr(out, "needs MODEL, or --model FILE"));
    free(out);
    out = run_command(&status, "'%s' serve Qwen/Qwen3-8B 2>&1", built("llmctl"));
    assert_true(status == 2 && strstr(out, "nothing is downloaded"));
    free(out);
}

/* What asks for what is so anyway gets it. */
static void flags_that_are_taken(void **state)
{
    (void)state;
    const char *more[] = {"--dtype=auto",
                          "--quantization",
                          "gguf",
                          "--tensor-parallel-size",
                          "1",
                          "--enable-chunked-prefill",
                          "--no-enable-prefix-caching",
                          "--speculative-config",
                          "{\"method\": \"ngram\", \"num_speculative_tokens\": 5, "
                          "\"prompt_lookup_max\": 4}",
                          "--kv-cache-dtype",
                          "auto",
                          "--block-size",
                          "16",
                          NULL};
    start(more);
    assert_int_equal(stop(SIGTERM), 0);
}

/* Every option that the engine has is one of serve too, or is refused with a reason. */
static void knows_the_engines_options(void **state)
{
    (void)state;
    int status;
    char *out = run_command(&status,
                            "'%s' --help | sed -n 's/^  --\\([a-z0-9-]*\\).*/\\1/p' | grep -vx -e "
                            "help -e version | while read -r o; do '%s' serve --$o 2>&1 "
                            "</dev/null | grep 'has no option'; done",
                            built("llmd"), built("llmctl"));
    assert_string_equal(out, "");
    free(out);
}

/* The real one, where it is built. */
static void with_the_gateway(void **state)
{
    (void)state;
    if (access(built("llm-gateway"), X_OK)) {
        print_message("llm-gateway is not built: not checked\n");
        skip();
    }
    int status;
    free(run_command(&status,
                     "mv '%s/bin/llm-gateway' '%s/bin/stand-in' && ln -s \"$(realpath '%s')\" "
                     "'%s/bin/llm-gateway'",
                     scratch_dir(), scratch_dir(), built("llm-gateway"), scratch_dir()));
    assert_int_equal(status, 0);
    const char *more[] = {"--max-model-len", "128", "--api-key", "secret", NULL};
    start(more);
    char *out = run_command(
        &status,
        "python3 -c \"import json, urllib.request as u\n"
        "r = u.Request('http://127.0.0.1:%u/v1/completions', json.dumps({'model': 'x', 'prompt': "
        "[5, 6], 'max_tokens': 3}).encode(), {'Authorization': 'Bearer secret', 'Content-Type': "
        "'application/json'})\n"
        "m = u.Request('http://127.0.0.1:%u/v1/models', None, {'Authorization': 'Bearer secret'})\n"
        "name = json.load(u.urlopen(m))['data'][0]['id']\n"
        "r.data = json.dumps({'model': name, 'prompt': [5, 6], 'max_tokens': 3}).encode()\n"
        "print(json.load(u.urlopen(r))['usage']['completion_tokens'] > 0)\" 2>&1",
        serve.port, serve.port);
    if (status || strcmp(out, "True\n"))
        fail_msg("status %d: %s %s", status, out, text_of(serve.said));
    free(out);
    pid_t engine = engine_pid();
    assert_int_equal(stop(SIGTERM), 0);
    assert_int_equal(kill(engine, 0), -1);
}

static int make_folder(void **state)
{
    (void)state;
    int status;
    const char *dir = scratch_dir();
    free(run_command(&status,
                     "mkdir '%s/bin' && cp '%s' '%s/bin/llmctl' && ln -s \"$(realpath '%s')\" "
                     "'%s/bin/llmd'",
                     dir, built("llmctl"), dir, built("llmd"), dir));
    assert_int_equal(status, 0);
    char path[400];
    snprintf(path, sizeof path, "%s/bin/llm-gateway", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(stand_in, f);
    assert_int_equal(fclose(f), 0);
    return chmod(path, 0755);
}

/* The boards of engines that were killed outlive them. */
static int remove_boards(void **state)
{
    (void)state;
    for (int i = 0; i < 64; i++) {
        char name[80];
        snprintf(name, sizeof name, "/llmd.t%d-%d", (int)getpid(), i);
        shm_unlink(name);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_that_are_refused),
        cmocka_unit_test(knows_the_engines_options),
        cmocka_unit_test(both_start_and_stop),
        cmocka_unit_test(an_interrupt_does_the_same),
        cmocka_unit_test(flags_that_are_taken),
        cmocka_unit_test(what_dies_is_started_again),
        cmocka_unit_test(not_for_ever),
        cmocka_unit_test(none_is_left_when_it_is_killed),
        cmocka_unit_test(a_drained_engine_ends_all),
        cmocka_unit_test(a_deaf_gateway_is_killed),
        cmocka_unit_test(what_never_ran_is_not_tried_again),
        cmocka_unit_test(a_taken_port_is_said_first),
        cmocka_unit_test(a_stop_while_it_loads),
        cmocka_unit_test(with_the_gateway),
    };
    return cmocka_run_group_tests_name("serve", tests, make_folder, remove_boards);
}
