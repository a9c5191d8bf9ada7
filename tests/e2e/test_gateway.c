/* test_gateway.c - llm-gateway in front of an engine: answers equal to the engine's own, streams,
 * what a lost connection frees, keys, keep-alive, Unix sockets, TLS, its end. */
#include "gateway_rig.h"

#include <sys/stat.h>
#include <sys/un.h>

static struct engine_process engine;
static struct gateway_process gateway;

#define PROMPT "[1, 5, 9, 13, 17]"

static int start(void **state)
{
    (void)state;
    engine_start(&engine, tiny_model(), "--threads", "1", NULL);
    gateway_start(&gateway, engine.instance, NULL);
    until_ready(&gateway);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    int rc = gateway_stop(&gateway);
    return rc ? rc : engine_stop(&engine);
}

static char *body_of(const char *more)
{
    static char text[2048];
    snprintf(text, sizeof text, "{\"model\": \"%s\", \"prompt\": " PROMPT ", \"temperature\": 0%s}",
             engine.instance, more);
    return text;
}

static json_t *complete(const char *more)
{
    return http_json(&gateway, 200, "POST", "/v1/completions", body_of(more));
}

/* ---- answers ---- */

static void the_same_as_the_engine(void **state)
{
    (void)state;
    int status;
    char *out = run_command(&status, "'%s' -i %s complete --tokens 1,5,9,13,17 -n 24 --json",
                            built("llmctl"), engine.instance);
    assert_int_equal(status, 0);
    json_t *own = json_loads(out, JSON_ALLOW_NUL, NULL), *answer = complete(", \"max_tokens\": 24");
    assert_string_equal(json_string_value(json_at(answer, "choices.0.text")),
                        json_string_value(json_object_get(own, "text")
                                              ? json_object_get(own, "text")
                                              : json_at(own, "choices.0.text")));
    assert_int_equal(json_integer_value(json_at(answer, "usage.prompt_tokens")), 5);
    json_decref(own);
    json_decref(answer);
    free(out);
}

/* Texts of a stream's events put together; *events counts them, *done says that [DONE] came last. */
static char *stream_text(const char *body, int *events, bool *done)
{
    char *text = calloc(1, 1 << 16), *rest;
    *events = 0;
    *done = false;
    for (char *line = strtok_r((char *)body, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        assert_int_equal(strncmp(line, "data: ", 6), 0);
        assert_false(*done);
        *done = !strcmp(line + 6, "[DONE]");
        json_t *v = *done ? NULL : json_loads(line + 6, JSON_ALLOW_NUL, NULL);
        const json_t *t = v ? json_at(v, "choices.0.text") : NULL;
        assert_true(*done || v);
        if (t)
            strcat(text, json_string_value(t));
        *events += !*done;
        json_decref(v);
    }
    return text;
}

static void a_stream_is_the_answer_in_pieces(void **state)
{
    (void)state;
    int events;
    bool done;
    struct http_answer a = http_ask(&gateway, "POST", "/v1/completions", "",
                                    body_of(", \"max_tokens\": 24, \"stream\": true"));
    char type[64], *text;
    assert_int_equal(a.status, 200);
    assert_true(http_header(&a, "Content-Type", type, sizeof type));
    assert_string_equal(type, "text/event-stream; charset=utf-8");
    text = stream_text(a.body, &events, &done);
    assert_true(done && events > 3);
    json_t *whole = complete(", \"max_tokens\": 24");
    assert_string_equal(text, json_string_value(json_at(whole, "choices.0.text")));
    json_decref(whole);
    free(text);
    free(a.body);
}

static void tokens_are_counted_once(void **state)
{
    (void)state;
    json_t *a = complete(", \"max_tokens\": 12, \"logprobs\": 1, \"n\": 3, \"temperature\": 1");
    size_t n = 0;
    for (size_t i = 0; i < 3; i++) {
        const json_t *choice = json_array_get(json_at(a, "choices"), i);
        n += json_array_size(json_at(choice, "logprobs.tokens"));
        assert_int_equal(json_array_size(json_at(choice, "logprobs.token_logprobs")),
                         json_array_size(json_at(choice, "logprobs.tokens")));
    }
    assert_int_equal(json_integer_value(json_at(a, "usage.completion_tokens")), n);
    json_decref(a);
}

/* ---- a client that goes away ---- */

static int begin(const char *more, bool wait_for_answer)
{
    char head[512];
    const char *body = body_of(more);
    int fd = http_connect(&gateway);
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             strlen(body));
    assert_true(http_write(fd, head, strlen(head)) && http_write(fd, body, strlen(body)));
    assert_true(!wait_for_answer || http_readable(fd));
    return fd;
}

/* Whatever it asked for, and whenever it leaves: its request ends and its blocks come back. The text
 * is long enough for an hour. */
static void hanging_up_cancels(void **state)
{
    (void)state;
    static const char *const asks[] = {
        ", \"max_tokens\": 200, \"ignore_eos\": true, \"stream\": true",
        ", \"max_tokens\": 200, \"ignore_eos\": true",
        ", \"max_tokens\": 200, \"ignore_eos\": true, \"n\": 4, \"stream\": true"};
    for (size_t i = 0; i < 3; i++) {
        int64_t before = engine_figure(&engine, "finished") + engine_figure(&engine, "cancelled");
        int fds[8];
        for (int k = 0; k < 8; k++)
            fds[k] = begin(asks[i], i != 1);
        for (int k = 0; k < 8; k++)
            close(fds[k]);
        assert_true(engine_until(&engine, "running", 0));
        assert_true(engine_until(&engine, "waiting", 0));
        assert_true(engine_until(&engine, "kv_blocks_used", 0));
        assert_true(engine_figure(&engine, "finished") + engine_figure(&engine, "cancelled") >=
                    before);
    }
    json_decref(complete(", \"max_tokens\": 4"));
}

/* ---- HTTP ---- */

static void paths_and_methods(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *headers, *body;
        int status;
    } asks[] = {
        {"GET", "/health", "", NULL, 200},
        {"HEAD", "/health", "", NULL, 200},
        {"GET", "/ready", "", NULL, 200},
        {"GET", "/live", "", NULL, 200},
        {"GET", "/version", "", NULL, 200},
        {"GET", "/metrics", "", NULL, 200},
        {"GET", "/", "", NULL, 200},
        {"GET", "/v1/models", "", NULL, 200},
        {"GET", "/v1/models/none", "", NULL, 404},
        {"GET", "/v1/models/", "", NULL, 404},
        {"GET", "/v1", "", NULL, 404},
        {"POST", "/v1/models", "", "{}", 405},
        {"DELETE", "/v1/completions", "", NULL, 405},
        {"GET", "/v1/completions", "", NULL, 405},
        {"POST", "/v1/completions", "", NULL, 415},
        {"POST", "/v1/completions", "Content-Type: text/plain\r\n", NULL, 415},
        {"POST", "/v1/completions", "", "", 400},
        {"POST", "/v1/completions", "", "[]", 400},
        {"POST", "/v1/completions", "", "{\"prompt\": \"x\"}", 400},
        {"POST", "/v1/completions", "", "{\"model\": \"none\", \"prompt\": \"x\"}", 404},
        {"POST", "/tokenize", "", "{\"prompt\": 1}", 400},
        {"POST", "/detokenize", "", "{\"tokens\": [-1]}", 400},
    };
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        struct http_answer a =
            http_ask(&gateway, asks[i].method, asks[i].path, asks[i].headers, asks[i].body);
        if (a.status != asks[i].status)
            fail_msg("%s %s %s: status %d: %s", asks[i].method, asks[i].path,
                     asks[i].body ? asks[i].body : "", a.status, a.body);
        json_t *v = a.status >= 400 ? json_loads(a.body, JSON_ALLOW_NUL, NULL) : NULL;
        assert_true(a.status < 400 || json_is_string(json_at(v, "error.message")));
        json_decref(v);
        free(a.body);
    }
}

/* A promise under a misspelt name is refused, and the refusal says which names there are. */
static void headers_of_ours(void **state)
{
    (void)state;
    static const struct {
        const char *headers;
        int status;
    } asks[] = {{"X-LLMD-Deadline-Ms: 60000\r\nX-LLMD-Timeout-Ms: 60000\r\n"
                 "X-LLMD-Queue-Timeout-Ms: 60000\r\nX-LLMD-Max-ITL-Ms: 10000\r\n"
                 "X-LLMD-Priority: high\r\n",
                 200},
                {"x-llmd-deadline-ms: 60000\r\n", 200},
                {"X-LLM-Other: 1\r\nX-Forwarded-For: ::1\r\n", 200},
                {"X-LLMD-Deadline: 60000\r\n", 400},
                {"X-LLMD-Priority: high\r\nx-llmd-dead-line-ms: 60000\r\n", 400},
                {"X-LLMD-: 1\r\n", 400}};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        struct http_answer a = http_ask(&gateway, "POST", "/v1/completions", asks[i].headers,
                                        body_of(", \"max_tokens\": 2"));
        if (a.status != asks[i].status)
            fail_msg("%s: %d: %s", asks[i].headers, a.status, a.body);
        if (a.status == 400)
            assert_true(strcasestr(a.body, "the header x-llmd-d") || i == 5);
        if (a.status == 400)
            assert_non_null(strstr(a.body, "Deadline-Ms, Timeout-Ms"));
        free(a.body);
    }
    /* where no promise is made they mean nothing: a client may send them with everything */
    struct http_answer a = http_ask(&gateway, "GET", "/v1/models", asks[3].headers, NULL);
    assert_int_equal(a.status, 200);
    free(a.body);
}

static void one_connection_many_requests(void **state)
{
    (void)state;
    int fd = http_connect(&gateway);
    char text[4096];
    for (int i = 0; i < 20; i++) {
        static const char ask[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
        size_t got = 0;
        assert_true(http_write(fd, ask, sizeof ask - 1));
        do {
            assert_true(http_readable(fd));
            ssize_t n = recv(fd, text + got, sizeof text - got - 1, 0);
            assert_true(n > 0);
            text[got += (size_t)n] = 0;
        } while (!strstr(text, "\"ok\"}"));
    }
    close(fd);
}

/* ---- keys ---- */

static void keys(void **state)
{
    (void)state;
    struct gateway_process g;
    char path[300];
    snprintf(path, sizeof path, "%s/keys", scratch_dir());
    FILE *f = fopen(path, "w");
    fputs("# who may ask\nsk-one name=one\n\n  sk-two requests=1 tokens=60 # limited\nsk-#three\n",
          f);
    fclose(f);
    gateway_start(&g, engine.instance, (const char *const[]){"--api-keys", path, NULL});
    until_ready(&g);
    static const struct {
        const char *header;
        int status;
    } asks[] = {{"", 401},
                {"Authorization: Bearer \r\n", 401},
                {"Authorization: Bearer sk-on\r\n", 401},
                {"Authorization: Bearer sk-one1\r\n", 401},
                {"Authorization: Basic sk-one\r\n", 401},
                {"Authorization: Bearer #\r\n", 401},
                {"Authorization: Bearer sk-\r\n", 401},
                {"Authorization: Bearer sk-#three\r\n", 200},
                {"Authorization: Bearer sk-one\r\n", 200},
                {"Authorization: Bearer sk-one \t\r\n", 200},
                {"authorization: bearer sk-one\r\n", 200}};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        struct http_answer a = http_ask(&g, "GET", "/v1/models", asks[i].header, NULL);
        if (a.status != asks[i].status)
            fail_msg("%s: %d", asks[i].header, a.status);
        free(a.body);
    }
    /* 60 tokens a minute: the first request takes more, the second one comes too early */
    const char *two = "Authorization: Bearer sk-two\r\n", *ask = body_of(", \"max_tokens\": 100, "
                                                                         "\"ignore_eos\": true");
    struct http_answer first = http_ask(&g, "POST", "/v1/completions", two, ask),
                       second = http_ask(&g, "POST", "/v1/completions", two, ask);
    char after[32];
    assert_int_equal(first.status, 200);
    assert_int_equal(second.status, 429);
    assert_true(http_header(&second, "Retry-After", after, sizeof after));
    assert_in_range(atoi(after), 30, 60);
    free(first.body);
    free(second.body);
    assert_int_equal(gateway_stop(&g), 0);
}

static void a_wrong_key_file_is_refused(void **state)
{
    (void)state;
    static const char *const files[] = {"",
                                        "# none\n",
                                        "sk-a limit\n",
                                        "sk-a requests=x\n",
                                        "sk-a requests=-1\n",
                                        "sk-a colour=red\n",
                                        "sk-a\nsk-a\n",
                                        "sk-a requests=1\n# b\nsk-b\n sk-a requests=2\n"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[300];
        int status;
        snprintf(path, sizeof path, "%s/bad-keys", scratch_dir());
        FILE *f = fopen(path, "w");
        fputs(files[i], f);
        fclose(f);
        char *out =
            run_command(&status, "timeout 30 '%s' --listen 127.0.0.1:0 --api-keys '%s' 2>&1",
                        built("llm-gateway"), path);
        assert_int_equal(status, 1);
        assert_non_null(strstr(out, path));
        if (i == sizeof files / sizeof *files - 1) /* which lines, and no key in a log */
            assert_true(strstr(out, "line 4: ") && strstr(out, "line 1 ") && !strstr(out, "sk-a"));
        free(out);
    }
}

/* ---- sockets ---- */

static void a_unix_socket(void **state)
{
    (void)state;
    struct gateway_process g;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char listen[200];
    snprintf(a.sun_path, sizeof a.sun_path, "%.90s/gw.sock", scratch_dir());
    snprintf(listen, sizeof listen, "unix:%s", a.sun_path);
    gateway_start(&g, engine.instance, (const char *const[]){"--listen", listen, NULL});
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    static const char ask[] = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert_true(http_write(fd, ask, sizeof ask - 1));
    struct http_answer answer = http_read(fd);
    assert_int_equal(answer.status, 200);
    free(answer.body);
    assert_int_equal(gateway_stop(&g), 0);
    assert_int_equal(access(a.sun_path, F_OK), -1);
}

/* A client that checks the certificate gets a stream; one that speaks plain HTTP gets nothing. */
static void tls(void **state)
{
    (void)state;
    struct gateway_process g;
    char cert[300], key[300];
    int status;
    snprintf(cert, sizeof cert, "%s/cert.pem", scratch_dir());
    snprintf(key, sizeof key, "%s/key.pem", scratch_dir());
    free(run_command(&status,
                     "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
                     "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -out '%s' -keyout "
                     "'%s' 2>&1",
                     cert, key));
    if (status)
        skip();
    gateway_start(&g, engine.instance,
                  (const char *const[]){"--tls-cert", cert, "--tls-key", key, NULL});
    char *out = run_command(
        &status,
        "python3 -B -c 'import json, ssl, sys, time, urllib.request as u\n"
        "context = ssl.create_default_context(cafile=sys.argv[1])\n"
        "body = json.dumps({\"model\": sys.argv[3], \"prompt\": [1, 5, 9], \"max_tokens\": 20, "
        "\"stream\": True}).encode()\n"
        "ask = u.Request(sys.argv[2] + \"/v1/completions\", body, {\"Content-Type\": "
        "\"application/json\"})\n"
        "for _ in range(100):\n"
        "    try:\n"
        "        print(u.urlopen(ask, context=context).read().decode())\n"
        "        break\n"
        "    except u.HTTPError as e:\n" /* the engine is not connected yet */
        "        assert e.code == 503, e.code\n"
        "        time.sleep(0.05)\n"
        "' '%s' https://127.0.0.1:%d %s 2>&1",
        cert, g.port, engine.instance);
    if (status || !strstr(out, "data: [DONE]"))
        fail_msg("status %d: %s", status, out);
    free(out);
    int fd = http_connect(&g);
    static const char plain[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    http_write(fd, plain, sizeof plain - 1);
    struct http_answer a = http_read(fd);
    assert_int_equal(a.status, 0);
    free(a.body);
    assert_int_equal(gateway_stop(&g), 0);
}

static void wrong_command_lines(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        int status;
    } lines[] = {{"--help", 0},
                 {"--version", 0},
                 {"--no-such-option", 2},
                 {"word", 2},
                 {"--instance a/b", 2},
                 {"--instance a --instance a", 2},
                 {"--threads 0", 2},
                 {"--tls-cert x", 2},
                 {"--listen nonsense", 2},
                 {"--listen 127.0.0.1:99999999", 2},
                 {"--listen 127.0.0.1:99999", 2},
                 {"--listen '[::1]:65536'", 2},
                 {"--listen :+1", 2},
                 {"--listen unix:", 2},
                 {"--listen unix:/$(printf %0107d 0)", 2},
                 {"--listen unix:/no/such/folder/x", 1},
                 {"--api-keys /no/such/file", 1},
                 {"--tls-cert /no/such/file --tls-key /no/such/file", 1}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int status;
        char *out = run_command(&status, "'%s' %s 2>&1", built("llm-gateway"), lines[i].arguments);
        if (status != lines[i].status || !*out)
            fail_msg("%s: status %d: %s", lines[i].arguments, status, out);
        free(out);
    }
}

/* What is wrong, and where to look. */
static void wrong_options_are_explained(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"--no-such-option",
         "llm-gateway: not understood: --no-such-option; see llm-gateway --help"},
        {"-x", "llm-gateway: not understood: -x; see llm-gateway --help"},
        {"--help=3", "llm-gateway: not understood: --help=3; see llm-gateway --help"},
        {"--threads", "llm-gateway: --threads needs a value; see llm-gateway --help"},
        {"--threads 0", "--threads \"0\" is no whole number from 1 to 64; see llm-gateway --help"},
        {"--instance a/b", "1 to 48 letters, digits, '.', '_' or '-', not starting with a dot"},
        {"--listen :65536", "ports up to 65535"}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int status;
        char *out = run_command(&status, "'%s' %s 2>&1", built("llm-gateway"), lines[i][0]);
        if (status != 2 || !strstr(out, lines[i][1]))
            fail_msg("%s: status %d: %s", lines[i][0], status, out);
        free(out);
    }
}

/* The manual page has the options of --help, and no others. */
static void the_manual_has_all_options(void **state)
{
    (void)state;
    int status;
    char *help = run_command(&status, "'%s' --help | sed -n 's/^  \\(--[a-z-]*\\).*/\\1/p' | sort",
                             built("llm-gateway"));
    char *page = run_command(&status, "sed -n 's/^\\.It Fl -\\([a-z-]*\\).*/--\\1/p' "
                                      "etc/man/llm-gateway.8 | sort");
    assert_true(strlen(help) > 100);
    assert_string_equal(page, help);
    free(help);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_as_the_engine),
        cmocka_unit_test(a_stream_is_the_answer_in_pieces),
        cmocka_unit_test(tokens_are_counted_once),
        cmocka_unit_test(hanging_up_cancels),
        cmocka_unit_test(paths_and_methods),
        cmocka_unit_test(headers_of_ours),
        cmocka_unit_test(one_connection_many_requests),
        cmocka_unit_test(keys),
        cmocka_unit_test(a_wrong_key_file_is_refused),
        cmocka_unit_test(a_unix_socket),
        cmocka_unit_test(tls),
        cmocka_unit_test(wrong_command_lines),
        cmocka_unit_test(wrong_options_are_explained),
        cmocka_unit_test(the_manual_has_all_options),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
