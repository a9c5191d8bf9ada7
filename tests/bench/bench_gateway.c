/* bench_gateway.c - what the way over HTTP costs: time to first token and the gap between tokens of
 * 1, 8 and 16 streams, through the rings, through llm-gateway on the same engine, and, where its
 * binary is named, through llama.cpp's server on the same model; in turns, in one run.
 *
 *   bench_gateway MODEL [LLAMA_SERVER]
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../client/llmclient.h"
#include "../support/support.h"
#include "roof.h"
#include "server.h"

enum {
    STREAMS_MAX = 16,
    TOKENS = 48,
    ROUNDS = 3,
    WORDS = 40,
    SAMPLES = STREAMS_MAX * TOKENS * ROUNDS
};

/* One stream as its client sees it. */
struct stream {
    int fd;
    char line[1 << 16]; /* what is not yet a whole line */
    size_t used;
    uint64_t t_submit, t_last;
    uint32_t n;
    bool done;
};

struct figures {
    double ttft[SAMPLES], gaps[SAMPLES];
    int n_ttft, n_gaps;
};

static struct stream streams[STREAMS_MAX];

static void note_token(struct figures *f, struct stream *s, uint64_t now)
{
    if (!s->n)
        f->ttft[f->n_ttft++] = (double)(now - s->t_submit) * 1e-6;
    else
        f->gaps[f->n_gaps++] = (double)(now - s->t_last) * 1e-6;
    s->n++;
    s->t_last = now;
}

/* A text that no server has seen before. */
static void random_text(struct rnd *r, char *out, size_t size)
{
    static const char *const words[] = {"river", "stone",  "early", "market", "engine", "letter",
                                        "green", "answer", "count", "winter", "bridge", "quiet"};
    size_t n = (size_t)snprintf(out, size, "%u", rnd_below(r, 1000000));
    for (int i = 0; i < WORDS; i++)
        n += (size_t)snprintf(out + n, size - n, " %s", words[rnd_below(r, 12)]);
}

/* ---- over HTTP ---- */

static void send_request(struct stream *s, int port, const char *text)
{
    char body[2048], head[256];
    int bytes = snprintf(
        body, sizeof body,
        "{\"model\":\"m\",\"prompt\":\"%s\",\"max_tokens\":%d,\"temperature\":0,\"stream\":true,"
        "\"ignore_eos\":true}",
        text, TOKENS);
    int n = snprintf(head, sizeof head,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n",
                     bytes);
    s->fd = server_connect(port);
    if (s->fd < 0)
        bench_die("the server does not answer");
    s->used = s->n = 0;
    s->done = false;
    memmove(body + n, body, (size_t)bytes);
    memcpy(body, head, (size_t)n);
    s->t_submit = bench_now_ns();
    if (send(s->fd, body, (size_t)(n + bytes), MSG_NOSIGNAL) != n + bytes)
        bench_die("the request could not be sent");
}

static void take_line(struct figures *f, struct stream *s, const char *line, uint64_t now)
{
    if (!strncmp(line, "data: [DONE]", 12))
        s->done = true;
    else if (!strncmp(line, "data: {", 7) && s->n < TOKENS)
        note_token(f, s, now);
    else if (!strncmp(line, "HTTP/1.1 ", 9) && strncmp(line + 9, "200", 3))
        bench_die("%s", line);
}

static void take_bytes(struct figures *f, struct stream *s)
{
    ssize_t got = recv(s->fd, s->line + s->used, sizeof s->line - 1 - s->used, 0);
    uint64_t now = bench_now_ns();
    if (got <= 0)
        bench_die("the server closed a stream");
    s->used += (size_t)got;
    s->line[s->used] = 0;
    char *at = s->line, *end;
    while ((end = strchr(at, '\n'))) {
        *end = 0;
        take_line(f, s, at, now);
        at = end + 1;
    }
    s->used -= (size_t)(at - s->line);
    memmove(s->line, at, s->used);
}

static void run_http(struct figures *f, int port, unsigned n, struct rnd *r)
{
    char text[1024];
    unsigned open = n;
    for (unsigned i = 0; i < n; i++) {
        random_text(r, text, sizeof text);
        send_request(&streams[i], port, text);
    }
    while (open) {
        struct pollfd p[STREAMS_MAX];
        for (unsigned i = 0; i < n; i++)
            p[i] = (struct pollfd){streams[i].done ? -1 : streams[i].fd, POLLIN, 0};
        if (poll(p, n, 120000) <= 0)
            bench_die("a stream stands still");
        for (unsigned i = 0; i < n; i++) {
            if (!p[i].revents)
                continue;
            take_bytes(f, &streams[i]);
            if (streams[i].done) {
                close(streams[i].fd);
                open--;
            }
        }
    }
}

/* ---- through the rings ---- */

static void run_rings(struct figures *f, struct llm_client *c, struct llm_tokenizer *t, unsigned n,
                      struct rnd *r)
{
    char text[1024];
    int32_t ids[512];
    for (unsigned i = 0; i < n; i++) {
        struct llm_request q = LLM_REQUEST_INIT;
        random_text(r, text, sizeof text);
        streams[i] = (struct stream){.t_submit = bench_now_ns()};
        long tokens = llm_tokenize(t, text, strlen(text), 0, ids, 512);
        q.tokens = ids, q.n_tokens = (uint32_t)tokens, q.max_tokens = TOKENS;
        q.flags = LLM_SQE_IGNORE_EOS, q.user_data = i + 1;
        if (tokens < 1 || llm_submit(c, &q, NULL) < 0)
            bench_die("%s", llm_errmsg(c));
    }
    struct llm_event e;
    while (llm_inflight(c)) {
        if (llm_wait(c, &e, 120000) != 1 || e.type == LLM_EVENT_ERROR)
            bench_die("%s", llm_errmsg(c));
        uint64_t now = bench_now_ns();
        for (uint32_t i = 0; i < e.n_tokens; i++)
            note_token(f, &streams[e.id - 1], now);
    }
}

/* ---- servers ---- */

static void await_server(pid_t pid, int port, const char *path)
{
    if (!server_ready(pid, port))
        bench_die("%s did not become ready", path);
}

static pid_t start_gateway(const struct engine_process *e, int port)
{
    const char *b = getenv("B");
    char path[512], listen[32];
    snprintf(path, sizeof path, "%s/llm-gateway", b ? b : "build");
    snprintf(listen, sizeof listen, "127.0.0.1:%d", port);
    pid_t pid = server_spawn(
        (const char *const[]){path, "--instance", e->instance, "--listen", listen, NULL});
    await_server(pid, port, path);
    return pid;
}

static pid_t start_peer(const char *path, const char *model, int port)
{
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    pid_t pid = server_spawn((const char *const[]){path, "-m", model, "--host", "127.0.0.1",
                                                   "--port", text, "-t", "2", "-tb", "2", "-np",
                                                   "16", "-c", "16384", NULL});
    await_server(pid, port, path);
    return pid;
}

/* ---- printing ---- */

static void print_line(const char *name, struct figures *f)
{
    qsort(f->ttft, (size_t)f->n_ttft, sizeof *f->ttft, bench_by_value);
    qsort(f->gaps, (size_t)f->n_gaps, sizeof *f->gaps, bench_by_value);
    printf("    %-22s first token p50 %8.2f  p95 %8.2f  p99 %8.2f   gap p50 %7.2f  p95 %7.2f  p99 "
           "%7.2f ms\n",
           name, bench_quantile(f->ttft, f->n_ttft, 0.5), bench_quantile(f->ttft, f->n_ttft, 0.95),
           bench_quantile(f->ttft, f->n_ttft, 0.99), bench_quantile(f->gaps, f->n_gaps, 0.5),
           bench_quantile(f->gaps, f->n_gaps, 0.95), bench_quantile(f->gaps, f->n_gaps, 0.99));
}

int main(int argc, char **argv)
{
    if (argc < 2 || *argv[1] == '-')
        bench_die("usage: bench_gateway MODEL [LLAMA_SERVER]");
    static const unsigned counts[] = {1, 8, 16};
    static struct figures rings, gateway, peer;
    struct rnd r = {21};
    struct engine_process e = {0};
    struct llm_client *c;
    struct llm_tokenizer *t;
    int gateway_port = server_port(), peer_port = server_port();
    engine_start(&e, argv[1], "--served-model-name", "m", NULL);
    if (llm_connect(&c, e.instance, NULL) < 0)
        bench_die("%s", llm_connect_error());
    if (llm_tokenizer_open(&t, c) < 0)
        bench_die("%s", llm_errmsg(c));
    pid_t g = start_gateway(&e, gateway_port);
    pid_t p = argc > 2 ? start_peer(argv[2], argv[1], peer_port) : 0;
    printf("over HTTP, prompts of about %d tokens, %d tokens each, %d rounds in turns\n", WORDS + 4,
           TOKENS, ROUNDS);
    for (int k = 0; k < 3; k++) {
        rings.n_ttft = rings.n_gaps = gateway.n_ttft = gateway.n_gaps = peer.n_ttft = peer.n_gaps =
            0;
        for (int i = 0; i < ROUNDS; i++) {
            run_rings(&rings, c, t, counts[k], &r);
            run_http(&gateway, gateway_port, counts[k], &r);
            if (p)
                run_http(&peer, peer_port, counts[k], &r);
        }
        printf("  %u streams\n", counts[k]);
        print_line("rings", &rings);
        print_line("gateway", &gateway);
        if (p)
            print_line("llama.cpp's server", &peer);
    }
    server_end(p);
    server_end(g);
    llm_tokenizer_close(t);
    llm_close(c);
    return engine_stop(&e);
}
