/* test_gateway_restart.c - engines that die, come back, drain; the gateway's own end. */
#include "gateway_rig.h"

#include <fcntl.h>

static struct engine_process engine;
static struct gateway_process gateway;

static char *body_of(unsigned tokens, bool stream)
{
    static char text[512];
    snprintf(text, sizeof text,
             "{\"model\": \"%s\", \"prompt\": [1, 5, 9, 13], \"max_tokens\": %u, \"seed\": 7, "
             "\"logprobs\": 0, \"stream\": %s, \"ignore_eos\": true}",
             engine.instance, tokens, stream ? "true" : "false");
    return text;
}

static int begin(const char *body)
{
    char head[1024];
    int fd = http_connect(&gateway);
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    assert_true(http_write(fd, head, strlen(head)));
    return fd;
}

static void start_engine(void)
{
    engine_start(&engine, tiny_model(), "--threads", "1", "--drain-timeout-ms", "0", NULL);
}

/* The texts of a stream's events; *done: [DONE] came. */
static char *text_of(const char *stream, bool *done)
{
    char *copy = strdup(stream), *text = calloc(1, 1 << 17), *rest;
    *done = false;
    for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *v = json_loads(line + 6, JSON_ALLOW_NUL, NULL), *tokens;
        size_t i;
        json_t *one;
        *done = !strcmp(line, "data: [DONE]");
        tokens = (json_t *)(v ? json_at(v, "choices.0.logprobs.tokens") : NULL);
        json_array_foreach(tokens, i, one)
        {
            char *shown = json_dumps(one, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
            strcat(text, shown);
            free(shown);
        }
        json_decref(v);
    }
    free(copy);
    return text;
}

static char *streamed(int fd, bool *done)
{
    struct http_answer a = http_read(fd);
    char *text = text_of(a.body, done);
    free(a.body);
    return text;
}

/* Slow enough that the streams are in their middle when the test acts; with a sanitizer the tiny model
 * has to do. */
static void start_slow_engine(void)
{
    engine_start(&engine, test_sanitized() ? tiny_model() : real_model_path(), "--threads", "1",
                 "--num-kv-blocks", "256", "--max-model-len", "256", NULL);
}

/* The engine is killed in the middle of streams; they go on with the tokens that would have come. */
static void streams_outlive_an_engine(void **state)
{
    (void)state;
    enum { STREAMS = 4, TOKENS = 60 };
    bool done;
    start_slow_engine();
    gateway_start(&gateway, engine.instance, NULL);
    until_ready(&gateway);
    char *alone = streamed(begin(body_of(TOKENS, true)), &done);
    assert_true(done && *alone);
    int fds[STREAMS];
    for (int k = 0; k < STREAMS; k++)
        fds[k] = begin(body_of(TOKENS, true));
    for (int k = 0; k < STREAMS; k++)
        assert_true(http_readable(fds[k]));
    engine_kill(&engine);
    /* its board outlives it: only the one that ran alone has finished */
    assert_true(test_sanitized() || engine_figure(&engine, "finished") == 1);
    struct http_answer a = http_ask(&gateway, "POST", "/v1/completions", "", body_of(4, false));
    char after[16];
    assert_int_equal(a.status, 503);
    assert_true(http_header(&a, "Retry-After", after, sizeof after));
    free(a.body);
    a = http_ask(&gateway, "GET", "/ready", "", NULL);
    assert_int_equal(a.status, 503);
    free(a.body);
    a = http_ask(&gateway, "GET", "/health", "", NULL);
    assert_int_equal(a.status, 200);
    free(a.body);
    start_slow_engine();
    for (int k = 0; k < STREAMS; k++) {
        char *text = streamed(fds[k], &done);
        assert_true(done);
        assert_string_equal(text, alone);
        free(text);
    }
    until_ready(&gateway);
    json_decref(http_json(&gateway, 200, "POST", "/v1/completions", body_of(4, false)));
    free(alone);
    assert_int_equal(engine_stop(&engine), 0);
    assert_int_equal(gateway_stop(&gateway), 0);
}

/* A client hangs up in the middle: the engine computes hardly a step more for it. */
static void a_lost_connection_frees_its_blocks(void **state)
{
    (void)state;
    memset(&engine, 0, sizeof engine);
    start_slow_engine();
    gateway_start(&gateway, engine.instance, NULL);
    until_ready(&gateway);
    for (int k = 0; k < 3; k++) {
        bool stream = k != 1; /* else it has heard nothing when it leaves */
        int64_t requests = engine_figure(&engine, "requests");
        int fd = begin(body_of(200, stream));
        if (stream)
            assert_true(http_readable(fd));
        else if (test_sanitized()) /* it may be over before status has been asked */
            assert_true(engine_until(&engine, "requests", requests + 1));
        else
            assert_true(engine_until(&engine, "running", 1));
        int64_t used = engine_figure(&engine, "kv_blocks_used"),
                steps = engine_figure(&engine, "steps");
        close(fd);
        assert_true(engine_until(&engine, "kv_blocks_used", 0));
        steps = engine_figure(&engine, "steps") - steps;
        print_message("%d KV blocks free again after %d steps\n", (int)used, (int)steps);
        /* the figure before is some steps older than the end of the connection: status is a program
         * of its own. The answer would have had 200. */
        assert_true(test_sanitized() || (used > 0 && steps < 40));
    }
    assert_int_equal(gateway_stop(&gateway), 0);
    assert_int_equal(engine_stop(&engine), 0);
}

/* Before there ever was an engine; then it comes. */
static void a_gateway_may_come_first(void **state)
{
    (void)state;
    struct gateway_process *g = &gateway;
    memset(&engine, 0, sizeof engine);
    snprintf(engine.instance, sizeof engine.instance, "t%d-late", (int)getpid());
    scratch_dir();
    gateway_start(g, engine.instance, NULL);
    struct http_answer a = http_ask(g, "POST", "/v1/completions", "", body_of(4, false));
    assert_int_equal(a.status, 503);
    free(a.body);
    json_t *models = http_json(g, 200, "GET", "/v1/models", NULL);
    assert_int_equal(json_array_size(json_object_get(models, "data")), 0);
    json_decref(models);
    start_engine();
    until_ready(g);
    json_decref(http_json(g, 200, "POST", "/v1/completions", body_of(4, false)));
    models = http_json(g, 200, "GET", "/v1/models", NULL);
    assert_int_equal(json_array_size(json_object_get(models, "data")), 1);
    json_decref(models);
    assert_int_equal(gateway_stop(g), 0);
    assert_int_equal(engine_stop(&engine), 0);
}

/* SIGTERM: what runs is finished, and whole. */
static void the_gateway_drains(void **state)
{
    (void)state;
    bool done;
    memset(&engine, 0, sizeof engine);
    start_engine();
    gateway_start(&gateway, engine.instance, NULL);
    until_ready(&gateway);
    char *alone = streamed(begin(body_of(200, true)), &done);
    int fd = begin(body_of(200, true));
    assert_true(http_readable(fd));
    kill(gateway.pid, SIGTERM);
    char *text = streamed(fd, &done);
    assert_true(done);
    assert_string_equal(text, alone);
    int status;
    assert_int_equal(waitpid(gateway.pid, &status, 0), gateway.pid);
    assert_int_equal(status, 0);
    free(text);
    free(alone);
    assert_int_equal(engine_stop(&engine), 0);
}

/* Who keeps a connection is told to ask elsewhere, and the connection ends: it holds up nothing. */
static void kept_connections_end(void **state)
{
    (void)state;
    static const char ask[] = "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n",
                      begun[] =
                          "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                          "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n";
    char text[4096];
    int status = 200;
    memset(&engine, 0, sizeof engine);
    start_engine();
    gateway_start(&gateway, engine.instance, NULL);
    until_ready(&gateway);
    int open = http_connect(&gateway), kept = http_connect(&gateway);
    assert_true(http_write(open, begun, strlen(begun)));
    assert_true(http_readable(open) && recv(open, text, sizeof text, 0) > 0); /* 100 Continue */
    kill(gateway.pid, SIGTERM);
    while (status == 200) { /* until it has taken the signal */
        size_t used = 0;
        assert_true(http_write(kept, ask, strlen(ask)));
        do {
            assert_true(http_readable(kept));
            ssize_t n = recv(kept, text + used, sizeof text - 1 - used, 0);
            assert_true(n > 0);
            text[used += (size_t)n] = 0;
        } while (!strstr(text, "}}"));
        assert_int_equal(sscanf(text, "HTTP/1.1 %d", &status), 1);
        assert_int_equal(!!strstr(text, "\r\nConnection: close\r\n"), status == 503);
    }
    assert_int_equal(status, 503);
    size_t bytes;
    free(http_rest(kept, &bytes));
    assert_int_equal(bytes, 0);
    close(kept);
    assert_true(http_write(open, "{}", 2));
    struct http_answer a = http_read(open);
    assert_int_equal(a.status, 400);
    free(a.body);
    assert_int_equal(waitpid(gateway.pid, &status, 0), gateway.pid);
    assert_int_equal(status, 0);
    assert_int_equal(engine_stop(&engine), 0);
}

/* Two models behind one address; one engine ends, the other goes on. */
static void two_instances(void **state)
{
    (void)state;
    struct engine_process two = {0};
    memset(&engine, 0, sizeof engine);
    start_engine();
    engine_start(&two, tiny_model(), "--threads", "1", "--served-model-name", "other", NULL);
    gateway_start(&gateway, engine.instance,
                  (const char *const[]){"--instance", two.instance, NULL});
    until_ready(&gateway);
    json_t *models = http_json(&gateway, 200, "GET", "/v1/models", NULL);
    assert_int_equal(json_array_size(json_object_get(models, "data")), 2);
    assert_string_equal(json_string_value(json_at(models, "data.1.id")), "other");
    json_decref(models);
    static const char ask[] = "{\"model\": \"other\", \"prompt\": [3, 4], \"max_tokens\": 3}";
    json_decref(http_json(&gateway, 200, "POST", "/v1/completions", ask));
    engine_stop(&engine);
    json_decref(http_json(&gateway, 200, "POST", "/v1/completions", ask));
    json_decref(http_json(&gateway, 503, "POST", "/v1/completions", body_of(3, false)));
    json_decref(http_json(&gateway, 503, "GET", "/ready", NULL));
    assert_int_equal(gateway_stop(&gateway), 0);
    assert_int_equal(engine_stop(&two), 0);
}

/* ---- the log ---- */

static char log_path[400];

static int count_log(const char *text)
{
    int status;
    char *out = run_command(&status, "grep -cF '%s' '%s'", text, log_path);
    int n = atoi(out);
    free(out);
    return n;
}

static void until_log(const char *text)
{
    uint64_t end = test_now_ns() + 30000000000ull;
    while (!count_log(text))
        if (test_now_ns() > end)
            fail_msg("the log does not say: %s", text);
}

/* The engine is absent, comes, is killed, comes back, is drained, comes back: each is told once. */
static void the_log_says_what_changes(void **state)
{
    (void)state;
    memset(&engine, 0, sizeof engine);
    snprintf(engine.instance, sizeof engine.instance, "t%d-log", (int)getpid());
    snprintf(log_path, sizeof log_path, "%s/gateway.log", scratch_dir());
    int own = fcntl(2, F_DUPFD_CLOEXEC, 0),
        log = open(log_path, O_CLOEXEC | O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600);
    assert_true(own >= 0 && log >= 0);
    dup2(log, 2);
    gateway_start(&gateway, engine.instance, NULL);
    dup2(own, 2);
    close(log), close(own);
    until_log("waiting for the engine");
    start_engine();
    until_log("connected to the engine");
    until_ready(&gateway);
    engine_kill(&engine);
    until_log("lost the engine");
    start_engine();
    until_log("connected again to the engine");
    until_ready(&gateway);
    json_decref(http_json(&gateway, 200, "POST", "/v1/completions", body_of(4, false)));
    assert_int_equal(engine_stop(&engine), 0); /* a drain */
    uint64_t end = test_now_ns() + 30000000000ull;
    while (count_log("lost the engine") < 2)
        assert_true(test_now_ns() < end);
    assert_int_equal(gateway_stop(&gateway), 0);
    assert_int_equal(count_log("waiting for the engine"), 1);
    assert_int_equal(count_log("connected to the engine"), 1);
    assert_int_equal(count_log("connected again"), 1);
    assert_int_equal(count_log("lost the engine"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_outlive_an_engine),
        cmocka_unit_test(a_lost_connection_frees_its_blocks),
        cmocka_unit_test(a_gateway_may_come_first),
        cmocka_unit_test(the_gateway_drains),
        cmocka_unit_test(kept_connections_end),
        cmocka_unit_test(two_instances),
        cmocka_unit_test(the_log_says_what_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
