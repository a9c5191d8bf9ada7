/* test_gateway_hostile.c - what strangers send: they are refused or cut off, and others do not notice. */
#include "gateway_rig.h"

#include <sys/resource.h>

static struct engine_process engine;
static struct gateway_process gateway;

static int start(void **state)
{
    (void)state;
    static const char *const limits[] = {"--read-timeout-s",
                                         "2",
                                         "--idle-timeout-s",
                                         "2",
                                         "--max-body-bytes",
                                         "65536",
                                         "--threads",
                                         "1",
                                         NULL};
    engine_start(&engine, tiny_model(), "--threads", "1", NULL);
    gateway_start(&gateway, engine.instance, limits);
    until_ready(&gateway);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    int rc = gateway_stop(&gateway);
    return rc ? rc : engine_stop(&engine);
}

/* Others are served. */
static void others_are_served(void)
{
    char body[256];
    snprintf(body, sizeof body, "{\"model\": \"%s\", \"prompt\": [1, 2, 3], \"max_tokens\": 4}",
             engine.instance);
    json_decref(http_json(&gateway, 200, "POST", "/v1/completions", body));
}

static int refused(const char *body, size_t bytes, const char *code)
{
    char head[256];
    int fd = http_connect(&gateway);
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
             bytes);
    http_write(fd, head, strlen(head));
    http_write(fd, body, bytes);
    struct http_answer a = http_read(fd);
    json_t *v = json_loads(a.body, JSON_ALLOW_NUL, NULL);
    const char *got = json_string_value(json_at(v, "error.code"));
    if (!got || strcmp(got, code))
        fail_msg("%.60s: %d %s", body, a.status, a.body);
    json_decref(v);
    free(a.body);
    return a.status;
}

static void deep_json(void **state)
{
    (void)state;
    enum { DEEP = 60000 };
    char *body = malloc(DEEP + 1);
    memset(body, '[', DEEP);
    assert_int_equal(refused(body, DEEP, "invalid_json"), 400);
    for (int i = 0; i < DEEP; i++)
        body[i] = "{\"a\":"[i % 5];
    assert_int_equal(refused(body, DEEP, "invalid_json"), 400);
    free(body);
    others_are_served();
}

static void invalid_utf8(void **state)
{
    (void)state;
    static const char *const texts[] = {"\x80",     "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                        "\xE2\x82", "\xFF"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"model\": \"m\", \"prompt\": \"%s\"}", texts[i]);
        assert_int_equal(refused(body, strlen(body), "invalid_utf8"), 400);
    }
    static const char halves[] = "{\"model\": \"m\", \"prompt\": \"\\ud800\"}";
    assert_int_equal(refused(halves, sizeof halves - 1, "invalid_json"), 400);
    others_are_served();
}

/* It is told so, although it sends all of it before it reads. */
static void a_body_too_large(void **state)
{
    (void)state;
    size_t bytes = 1 << 20;
    char *body = malloc(bytes);
    memset(body, ' ', bytes);
    assert_int_equal(refused(body, bytes, "request_too_large"), 413);
    free(body);
    others_are_served();
}

static void a_body_of_100_MB(void **state)
{
    (void)state;
    static const char head[] =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: application/json\r\nContent-Length: 104857600\r\n\r\n";
    static const char chunked[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
                                  "application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    char block[16390] = "4000\r\n";
    memset(block + 6, ' ', 16384);
    for (int form = 0; form < 2; form++) {
        int fd = http_connect(&gateway);
        assert_true(form ? http_write(fd, chunked, sizeof chunked - 1)
                         : http_write(fd, head, sizeof head - 1));
        size_t sent = 0;
        while (sent < 100 << 20 &&
               (form ? http_write(fd, block, sizeof block) && http_write(fd, "\r\n", 2)
                     : http_write(fd, block + 6, 16384)))
            sent += 16384;
        assert_true(sent < 100 << 20); /* nobody takes so much */
        close(fd);
    }
    others_are_served();
}

/* Expects to be asked for the body, and is told that nobody wants it. */
static void a_body_announced(void **state)
{
    (void)state;
    static const char head[] =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        "Content-Type: application/json\r\nContent-Length: 104857600\r\n\r\n";
    int fd = http_connect(&gateway);
    assert_true(http_write(fd, head, sizeof head - 1));
    struct http_answer a = http_read(fd);
    assert_int_equal(a.status, 413);
    free(a.body);
}

static void a_flood_of_headers(void **state)
{
    (void)state;
    int fd = http_connect(&gateway);
    char line[128];
    bool open = http_write(fd, "GET /health HTTP/1.1\r\nHost: x\r\n", 31);
    for (int i = 0; open && i < 100000; i++) {
        snprintf(line, sizeof line, "X-Flood-%d: %064d\r\n", i, i);
        open = http_write(fd, line, strlen(line));
    }
    struct http_answer a = http_read(fd);
    assert_true(!open || a.status == 431 || a.status == 413 || !a.status);
    assert_int_not_equal(a.status, 200);
    free(a.body);
    others_are_served();
}

static void no_http(void **state)
{
    (void)state;
    static const char *const texts[] = {"\r\n\r\n\r\n",
                                        "GET\r\n\r\n",
                                        "\x16\x03\x01\x02",
                                        "GET /health HTTP/9.9\r\n\r\n",
                                        "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                                        "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999"
                                        "\r\n\r\n",
                                        "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                        "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int fd = http_connect(&gateway);
        http_write(fd, texts[i], strlen(texts[i]));
        shutdown(fd, SHUT_WR);
        struct http_answer a = http_read(fd);
        assert_int_not_equal(a.status, 200);
        assert_true(a.status < 500 || a.status == 505);
        free(a.body);
    }
    others_are_served();
}

/* Where such a request ends, a proxy may see otherwise: it is refused, and what stands behind it on the
 * connection is not taken for a request. */
static void two_lengths(void **state)
{
    (void)state;
#define SMUGGLED "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    static const char *const headers[] = {
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED,
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" SMUGGLED,
        "Content-Length: 2\r\nContent-Length: 4\r\n\r\n{}" SMUGGLED,
        "Content-Length : 40\r\n\r\n" SMUGGLED,
        "Transfer-Encoding: xchunked\r\n\r\n" SMUGGLED,
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SMUGGLED,
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        char text[512];
        int fd = http_connect(&gateway);
        snprintf(text, sizeof text,
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s",
                 headers[i]);
        http_write(fd, text, strlen(text));
        struct http_answer a = http_read(fd);
        if (a.status != 400 || strstr(a.body, "HTTP/1.1"))
            fail_msg("%s: %d %s", headers[i], a.status, a.body);
        free(a.body);
    }
    others_are_served();
}

/* A byte now and then, for ever: cut off, while others are served. */
static void drips(const char *text, size_t bytes)
{
    enum { DRIPS = 40 };
    int fds[DRIPS];
    for (int k = 0; k < DRIPS; k++)
        fds[k] = http_connect(&gateway);
    uint64_t end = test_now_ns() + 20000000000ull;
    bool open = true;
    for (size_t i = 0; open; i++) {
        open = false;
        for (int k = 0; k < DRIPS; k++) {
            struct pollfd p = {.fd = fds[k], .events = POLLIN};
            char c;
            if (poll(&p, 1, 0) == 1 && recv(fds[k], &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
                continue; /* it has closed */
            open |= send(fds[k], i < bytes ? text + i : "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
        }
        others_are_served();
        if (test_now_ns() > end)
            fail_msg("a request that drips is not cut off");
    }
    for (int k = 0; k < DRIPS; k++)
        close(fds[k]);
}

static void slow_headers(void **state)
{
    (void)state;
    static const char text[] = "GET /health HTTP/1.1\r\nX-Slow: ";
    drips(text, sizeof text - 1);
}

static void slow_body(void **state)
{
    (void)state;
    static const char text[] =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n"
        "Content-Type: application/json\r\n\r\n{";
    int fd = http_connect(&gateway);
    close(fd);
    drips(text, sizeof text - 1);
}

/* They do not take the descriptors with which the gateway looks after its engine; where a process may
 * open few files by itself, it raises that. */
static void many_connections(void **state)
{
    (void)state;
    enum { MANY = 100 };
    struct gateway_process g;
    struct rlimit limit, few;
    int fds[MANY];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = limit;
    few.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    gateway_start(&g, engine.instance, (const char *const[]){"--max-connections", "256", NULL});
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    until_ready(&g);
    for (int k = 0; k < MANY; k++) { /* each one is served, and kept */
        static const char ask[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
        char text[1024];
        fds[k] = http_connect(&g);
        assert_true(http_write(fds[k], ask, strlen(ask)));
        assert_true(http_readable(fds[k]) && recv(fds[k], text, sizeof text, 0) > 0);
    }
    json_decref(http_json(&g, 200, "GET", "/ready", NULL));
    for (int k = 0; k < MANY; k++)
        close(fds[k]);
    assert_int_equal(gateway_stop(&g), 0);
}

/* An answer is put together in memory: it has a limit of its own. Streams have none. */
static void an_answer_too_large(void **state)
{
    (void)state;
    struct gateway_process g;
    char body[256];
    static const char format[] = "{\"model\": \"%s\", \"prompt\": [1, 2, 3], \"max_tokens\": 200, "
                                 "\"n\": %d, \"seed\": 1, \"logprobs\": 5, "
                                 "\"ignore_eos\": true, \"stream\": %s}";
    gateway_start(&g, engine.instance, (const char *const[]){"--max-answer-bytes", "100000", NULL});
    until_ready(&g);
    snprintf(body, sizeof body, format, engine.instance, 8, "false");
    json_t *v = http_json(&g, 400, "POST", "/v1/completions", body);
    assert_string_equal(json_string_value(json_at(v, "error.code")), "answer_too_large");
    json_decref(v);
    assert_true(engine_until(&engine, "kv_blocks_used", 0));
    snprintf(body, sizeof body, format, engine.instance, 1, "false");
    json_decref(http_json(&g, 200, "POST", "/v1/completions", body));
    snprintf(body, sizeof body, format, engine.instance, 8, "true");
    struct http_answer a = http_ask(&g, "POST", "/v1/completions", "", body);
    assert_int_equal(a.status, 200);
    assert_true(a.bytes > 100000 && strstr(a.body, "data: [DONE]"));
    free(a.body);
    assert_int_equal(gateway_stop(&g), 0);
}

/* A stream that nobody reads does not hold up the engine, nor the others. */
static void a_reader_that_sleeps(void **state)
{
    (void)state;
    char body[256], head[512];
    int fds[4];
    snprintf(
        body, sizeof body,
        "{\"model\": \"%s\", \"prompt\": [1, 2, 3], \"max_tokens\": 200, \"n\": 32, \"stream\": "
        "true, \"ignore_eos\": true, \"logprobs\": 1}",
        engine.instance);
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    for (int k = 0; k < 4; k++) {
        int small = 2048;
        fds[k] = http_connect(&gateway);
        setsockopt(fds[k], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        assert_true(http_write(fds[k], head, strlen(head)));
    }
    for (int i = 0; i < 10; i++)
        others_are_served();
    assert_true(engine_until(&engine, "running", 0));
    for (int k = 0; k < 4; k++)
        close(fds[k]);
    assert_true(engine_until(&engine, "kv_blocks_used", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deep_json),
        cmocka_unit_test(invalid_utf8),
        cmocka_unit_test(a_body_too_large),
        cmocka_unit_test(a_body_of_100_MB),
        cmocka_unit_test(a_body_announced),
        cmocka_unit_test(a_flood_of_headers),
        cmocka_unit_test(many_connections),
        cmocka_unit_test(an_answer_too_large),
        cmocka_unit_test(two_lengths),
        cmocka_unit_test(no_http),
        cmocka_unit_test(slow_headers),
        cmocka_unit_test(slow_body),
        cmocka_unit_test(a_reader_that_sleeps),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
