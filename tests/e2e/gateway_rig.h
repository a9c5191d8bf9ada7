/* gateway_rig.h - a gateway process and a plain HTTP client: what the gateway's tests share. */
#ifndef LLMD_TESTS_GATEWAY_RIG_H
#define LLMD_TESTS_GATEWAY_RIG_H

#include "../support/support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static inline const char *tiny_model(void)
{
    return golden_path("tiny_gguf/llama.Q8_0.gguf");
}

struct gateway_process {
    pid_t pid;
    int port;
};

/* Starts it on a port of the kernel's choice, with more arguments (NULL-terminated), and waits for
 * its ready line. */
static inline void gateway_start(struct gateway_process *g, const char *instance,
                                 const char *const *arguments)
{
    const char *argv[48] = {built("llm-gateway"), "--instance", instance, "--listen",
                            "127.0.0.1:0"};
    int said[2], n = 5;
    for (; arguments && *arguments; arguments++)
        argv[n++] = *arguments;
    assert_int_equal(pipe(said), 0);
    fflush(NULL);
    pid_t test = getpid();
    g->pid = fork();
    assert_true(g->pid >= 0);
    if (!g->pid) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != test)
            _exit(125);
        dup2(said[1], 1);
        close(said[0]);
        close(said[1]);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(said[1]);
    char line[256] = "";
    FILE *f = fdopen(said[0], "r");
    if (!fgets(line, sizeof line, f) ||
        sscanf(line, "llm-gateway ready: listens on %*[^:]://127.0.0.1:%d", &g->port) != 1)
        fail_msg("the gateway did not start: \"%s\"", line);
    fclose(f);
}

static inline int gateway_stop(struct gateway_process *g)
{
    int status;
    kill(g->pid, SIGTERM);
    assert_int_equal(waitpid(g->pid, &status, 0), g->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- HTTP ---- */

static inline int http_connect(const struct gateway_process *g)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)g->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* False where the other side has closed. */
static inline bool http_write(int fd, const char *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Readable within 30 s? */
static inline bool http_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 30000) == 1;
}

struct http_answer {
    int status;      /* 0: the connection was closed before there was an answer */
    char head[4096]; /* status line and headers */
    char *body;      /* malloc'ed, NUL behind it */
    size_t bytes;
};

/* Value of a header, copied into `out`; false if it is not there. */
static inline bool http_header(const struct http_answer *a, const char *name, char *out,
                               size_t size)
{
    size_t n = strlen(name);
    for (const char *line = strstr(a->head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (!strncasecmp(line, name, n) && line[n] == ':') {
            line += n + 1 + strspn(line + n + 1, " ");
            snprintf(out, size, "%.*s", (int)strcspn(line, "\r"), line);
            return true;
        }
    }
    return false;
}

/* Everything up to the end of the connection. */
static inline char *http_rest(int fd, size_t *bytes)
{
    size_t room = 1 << 16, used = 0;
    char *text = malloc(room);
    for (ssize_t n; http_readable(fd) && (n = recv(fd, text + used, room - used - 1, 0)) > 0;) {
        used += (size_t)n;
        if (room - used < 1024)
            text = realloc(text, room *= 2);
    }
    text[used] = 0;
    *bytes = used;
    return text;
}

/* Chunked bodies to their content, in place. */
static inline void http_dechunk(struct http_answer *a)
{
    char *from = a->body, *to = a->body;
    for (;;) {
        char *end;
        size_t n = strtoul(from, &end, 16);
        if (end == from || strncmp(end, "\r\n", 2) || !n)
            break;
        assert_true(end + 2 + n <= a->body + a->bytes);
        memmove(to, end + 2, n);
        to += n;
        from = end + 2 + n + 2;
    }
    *to = 0;
    a->bytes = (size_t)(to - a->body);
}

/* The answer to what was written on a connection that the server closes behind it. */
static inline struct http_answer http_read(int fd)
{
    struct http_answer a = {0};
    size_t bytes;
    char *all = http_rest(fd, &bytes), *end = strstr(all, "\r\n\r\n"), coding[64];
    if (end && sscanf(all, "HTTP/1.1 %d", &a.status) == 1) {
        snprintf(a.head, sizeof a.head, "%.*s", (int)(end + 2 - all), all);
        a.bytes = bytes - (size_t)(end + 4 - all);
        a.body = malloc(a.bytes + 1);
        memcpy(a.body, end + 4, a.bytes + 1);
        if (http_header(&a, "Transfer-Encoding", coding, sizeof coding))
            http_dechunk(&a);
    } else {
        a.body = strdup("");
    }
    free(all);
    close(fd);
    return a;
}

/* One request; `headers`: more of them, each with \r\n behind it. */
static inline struct http_answer http_ask(const struct gateway_process *g, const char *method,
                                          const char *path, const char *headers, const char *body)
{
    char head[8192];
    int fd = http_connect(g);
    snprintf(head, sizeof head,
             "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s%sContent-Length: %zu\r\n\r\n",
             method, path, headers, body ? "Content-Type: application/json\r\n" : "",
             body ? strlen(body) : 0);
    http_write(fd, head, strlen(head));
    http_write(fd, body ? body : "", body ? strlen(body) : 0);
    return http_read(fd);
}

/* Its JSON; fails the test unless the status is as wanted. */
static inline json_t *http_json(const struct gateway_process *g, int status, const char *method,
                                const char *path, const char *body)
{
    struct http_answer a = http_ask(g, method, path, "", body);
    if (a.status != status)
        fail_msg("%s %s %s: status %d instead of %d: %s", method, path, body ? body : "", a.status,
                 status, a.body);
    json_t *v = json_loads(a.body, JSON_ALLOW_NUL, NULL);
    if (!v)
        fail_msg("%s: no JSON: %s", path, a.body);
    free(a.body);
    return v;
}

/* Member "a.b.0.c" of a value. */
static inline const json_t *json_at(const json_t *v, const char *path)
{
    char text[128], *rest;
    snprintf(text, sizeof text, "%s", path);
    for (char *word = strtok_r(text, ".", &rest); word; word = strtok_r(NULL, ".", &rest))
        v = json_is_array(v) ? json_array_get(v, strtoul(word, NULL, 10))
                             : json_object_get(v, word);
    return v;
}

/* Until the engine's figure (llmctl status) is so much; false after 20 s. */
static inline bool engine_until(const struct engine_process *e, const char *key, int64_t value)
{
    uint64_t end = test_now_ns() + 20000000000ull;
    while (engine_figure(e, key) != value)
        if (test_now_ns() > end)
            return false;
    return true;
}

static inline void until_ready(const struct gateway_process *g)
{
    uint64_t end = test_now_ns() + 20000000000ull;
    for (int status = 0; status != 200;) {
        struct http_answer a = http_ask(g, "GET", "/ready", "", NULL);
        status = a.status;
        free(a.body);
        if (test_now_ns() > end)
            fail_msg("the gateway does not become ready: status %d", status);
    }
}

#endif
