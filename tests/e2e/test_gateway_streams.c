/* test_gateway_streams.c - 200 streams at the same time through the gateway: each whole, and equal to its
 * run alone; the gateway's memory stays what it was. Under `make check-all` for a minute. */
#include "gateway_rig.h"

#include "../support/process.h"

enum { STREAMS = 200, TOKENS = 40, EVENTS_MAX = 1 << 17 };

static struct engine_process engine;
static struct gateway_process gateway;

struct stream {
    int fd;
    size_t n;
    char *got; /* (EVENTS_MAX) */
};

static struct stream streams[STREAMS];
static char *alone[STREAMS];

static int start(void **state)
{
    (void)state;
    engine_start(&engine, tiny_model(), "--threads", "1", NULL);
    gateway_start(&gateway, engine.instance, NULL);
    until_ready(&gateway);
    for (int k = 0; k < STREAMS; k++)
        streams[k].got = malloc(EVENTS_MAX);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    for (int k = 0; k < STREAMS; k++) {
        free(streams[k].got);
        free(alone[k]);
    }
    int rc = gateway_stop(&gateway);
    return rc ? rc : engine_stop(&engine);
}

static void begin(struct stream *s, int k)
{
    char body[512], head[1024];
    snprintf(body, sizeof body,
             "{\"model\": \"%s\", \"prompt\": [%d, 5, 9], \"max_tokens\": %d, \"seed\": %d, "
             "\"temperature\": 1, \"logprobs\": 0, \"ignore_eos\": true, \"stream\": true}",
             engine.instance, 1 + k % 50, TOKENS, k);
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    s->n = 0;
    s->fd = http_connect(&gateway);
    assert_true(http_write(s->fd, head, strlen(head)));
}

static void add_tokens(char *text, const json_t *logprobs)
{
    size_t i;
    json_t *token;
    json_array_foreach(json_object_get(logprobs, "tokens"), i, token)
    {
        char *shown = json_dumps(token, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        const json_t *value = json_array_get(json_object_get(logprobs, "token_logprobs"), i);
        sprintf(text + strlen(text), "%s %.9g\n", shown, json_number_value(value));
        free(shown);
    }
}

/* Token texts of the stream's events with their log-probabilities, however they came together. */
static char *content(struct stream *s)
{
    char *text = calloc(1, EVENTS_MAX), *rest;
    bool done = false;
    s->got[s->n] = 0;
    for (char *line = strtok_r(s->got, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *v = strncmp(line, "data: {", 7) ? NULL : json_loads(line + 6, JSON_ALLOW_NUL, NULL);
        done |= !strncmp(line, "data: [DONE]", 12);
        if (v)
            add_tokens(text, json_at(v, "choices.0.logprobs"));
        json_decref(v);
    }
    assert_true(done);
    return text;
}

static void run(int from, int to)
{
    struct pollfd polls[STREAMS];
    int open = to - from;
    for (int k = from; k < to; k++)
        begin(&streams[k], k);
    while (open) {
        for (int k = from; k < to; k++)
            polls[k - from] = (struct pollfd){.fd = streams[k].fd, .events = POLLIN};
        assert_true(poll(polls, (nfds_t)(to - from), 30000) > 0);
        for (int k = from; k < to; k++) {
            struct stream *s = &streams[k];
            if (!polls[k - from].revents)
                continue;
            ssize_t n = recv(s->fd, s->got + s->n, EVENTS_MAX - 1 - s->n, 0);
            assert_true(n >= 0);
            s->n += (size_t)n;
            if (n)
                continue;
            close(s->fd);
            s->fd = -1;
            open--;
        }
    }
}

static void all_at_once(void **state)
{
    (void)state;
    for (int k = 0; k < STREAMS; k++) {
        run(k, k + 1);
        alone[k] = content(&streams[k]);
    }
    struct held before = {0};
    uint64_t end = test_now_ns() + (test_exhaustive() ? 60000000000ull : 0);
    unsigned rounds = 0;
    do {
        run(0, STREAMS);
        for (int k = 0; k < STREAMS; k++) {
            char *text = content(&streams[k]);
            assert_string_equal(text, alone[k]);
            free(text);
        }
        if (++rounds == 2)
            before = process_held(gateway.pid);
    } while (rounds < 5 || test_now_ns() < end);
    struct held after = process_held(gateway.pid);
    print_message("%u rounds; the gateway has %llu KiB, after the second it had %llu\n", rounds,
                  (unsigned long long)after.rss_kib, (unsigned long long)before.rss_kib);
    assert_int_equal(after.descriptors, before.descriptors);
    assert_int_equal(after.threads, before.threads);
    if (!test_sanitized()) /* which keeps what was freed */
        assert_true(after.rss_kib < before.rss_kib + 8192);
    assert_int_equal(engine_figure(&engine, "kv_blocks_used"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_at_once),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
