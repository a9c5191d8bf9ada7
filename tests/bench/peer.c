/* peer.c - see peer.h. */
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "resident.h"
#include "roof.h"
#include "server.h"

enum {
    LIMIT_MS = 600000,  /* of a run; the longest takes half a minute on two cores */
    CELLS = 256,        /* llama.cpp rounds a stream's context up to a multiple of it */
    SERVED_PROMPT = 256 /* tokens that the server computes before it is looked at */
};

static void program(const struct peer *p, const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", p->folder, name);
}

int peer_check(const struct peer *p, struct fail *f)
{
    static const char *const programs[] = {"llama-batched-bench", "llama-server"};
    char path[4096];
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        program(p, programs[i], path, sizeof path);
        if (access(path, X_OK))
            return fail(f, -ENOENT, "no program %s: sh tests/bench/peer.sh builds it", path);
    }
    return 0;
}

/* ---- a program and what it says ---- */

struct run {
    pid_t pid;
    int out[2]; /* a pipe; its output and its complaints are one text */
    char *text; /* malloc'ed */
    size_t used, room;
};

static int start(struct run *r, const char *const argv[], struct fail *f)
{
    pid_t bench = getpid();
    if (pipe(r->out) < 0)
        return fail(f, -errno, "no pipe for %s: %s", argv[0], strerror(errno));
    fflush(NULL);
    r->pid = fork();
    if (!r->pid) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != bench || dup2(r->out[1], 1) < 0 ||
            dup2(r->out[1], 2) < 0)
            _exit(125);
        close(r->out[0]);
        close(r->out[1]);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(r->out[1]);
    return r->pid < 0 ? fail(f, -errno, "no process for %s: %s", argv[0], strerror(errno)) : 0;
}

static bool make_room(struct run *r)
{
    if (r->room - r->used > 1)
        return true;
    size_t room = r->room ? 2 * r->room : 65536;
    char *text = realloc(r->text, room);
    if (!text)
        return false;
    r->text = text, r->room = room;
    return true;
}

/* Until it closes its output. False: it does not within the limit. */
static bool read_all(struct run *r)
{
    uint64_t end = bench_now_ns() + (uint64_t)LIMIT_MS * 1000000;
    for (;;) {
        struct pollfd p = {r->out[0], POLLIN, 0};
        uint64_t now = bench_now_ns();
        if (now >= end || !make_room(r) || poll(&p, 1, (int)((end - now) / 1000000) + 1) <= 0)
            return false;
        ssize_t got = read(r->out[0], r->text + r->used, r->room - r->used - 1);
        if (got <= 0)
            return true;
        r->used += (size_t)got;
        r->text[r->used] = 0;
    }
}

/* Its exit status, 128 + signal. */
static int finish(struct run *r)
{
    int status;
    close(r->out[0]);
    if (waitpid(r->pid, &status, 0) < 0)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs it to its end; *text is malloc'ed. */
static int run_program(const char *const argv[], char **text, struct fail *f)
{
    struct run r = {.out = {-1, -1}};
    char last[256];
    int code = start(&r, argv, f);
    *text = NULL;
    if (code)
        return code;
    bool ended = read_all(&r);
    if (!ended)
        kill(r.pid, SIGKILL);
    int status = finish(&r);
    if (!r.text && !(r.text = calloc(1, 1)))
        return fail(f, -ENOMEM, "no memory for what %s says", argv[0]);
    peer_output_last_line(r.text, last, sizeof last);
    if (!ended)
        code = fail(f, -ETIMEDOUT, "%s did not end within %d s; last it said: %s", argv[0],
                    LIMIT_MS / 1000, last);
    else if (status == 128 + SIGILL)
        code = fail(f, -EIO,
                    "%s is built for another CPU: remove it, and sh tests/bench/peer.sh "
                    "builds it anew",
                    argv[0]);
    else if (status)
        code = fail(f, -EIO, "%s ended with %d%s; last it said: %s", argv[0], status,
                    status > 128 ? " (killed by a signal)" : "", last);
    if (code)
        free(r.text);
    else
        *text = r.text;
    return code;
}

/* ---- speed ---- */

static uint32_t cells(uint32_t tokens)
{
    return (tokens + CELLS - 1) / CELLS * CELLS;
}

int peer_measure(const struct peer *p, const char *model, const struct peer_load *load,
                 struct peer_speed *out, struct fail *f)
{
    char path[4096], threads[16], context[16], npp[16], ntg[16], npl[16], *text;
    program(p, "llama-batched-bench", path, sizeof path);
    snprintf(threads, sizeof threads, "%u", p->threads);
    snprintf(context, sizeof context, "%u", load->streams * cells(load->prompt + load->tokens));
    snprintf(npp, sizeof npp, "%u", load->prompt);
    snprintf(ntg, sizeof ntg, "%u", load->tokens);
    snprintf(npl, sizeof npl, "%u", load->streams);
    int code =
        run_program((const char *const[]){path,    "-m",    model,  "-t",    threads,
                                          "-tb",   threads, "-c",   context, "-b",
                                          "2048",  "-ub",   "512",  "-npp",  npp,
                                          "-ntg",  ntg,     "-npl", npl,     "--output-format",
                                          "jsonl", NULL},
                    &text, f);
    if (!code)
        code = peer_output_read(text, load, out, f);
    free(text);
    return code;
}

/* ---- memory ---- */

/* A prompt of token ids, which this server takes as they are. */
static int serve_prompt(int port, struct fail *f)
{
    static char body[16 * SERVED_PROMPT + 256], answer[1 << 16];
    size_t n =
        (size_t)snprintf(body, sizeof body, "{\"n_predict\":8,\"temperature\":0,\"prompt\":[");
    for (int i = 0; i < SERVED_PROMPT; i++)
        n += (size_t)snprintf(body + n, sizeof body - n, "%s%d", i ? "," : "", 100 + i);
    snprintf(body + n, sizeof body - n, "]}");
    int status = server_post(port, "/completion", body, answer, sizeof answer);
    return status == 200 ? 0 : fail(f, -EPROTO, "llama-server answered a prompt with %d", status);
}

int peer_resident(const struct peer *p, const char *model, uint32_t context, uint64_t *rss,
                  struct fail *f)
{
    char path[4096], port_text[16], threads[16], context_text[16];
    int port = server_port();
    uint64_t pss;
    program(p, "llama-server", path, sizeof path);
    snprintf(port_text, sizeof port_text, "%d", port);
    snprintf(threads, sizeof threads, "%u", p->threads);
    snprintf(context_text, sizeof context_text, "%u", context);
    pid_t pid = server_spawn((const char *const[]){path, "-m", model, "--host", "127.0.0.1",
                                                   "--port", port_text, "-t", threads, "-tb",
                                                   threads, "-c", context_text, NULL});
    int code = server_ready(pid, port) ? 0 : fail(f, -EIO, "%s did not become ready", path);
    if (!code)
        code = serve_prompt(port, f);
    if (!code)
        code = resident_bytes(pid, rss, &pss, f);
    server_end(pid);
    return code;
}
