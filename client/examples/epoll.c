/* epoll.c - tokens in an event loop of your own. Prompts come on standard input, a line of token
 * ids each, while the tokens of those before are on their way; a token is printed when it comes,
 * with the number of its prompt in front.
 *
 *     printf '1 2 3\n4 5 6\n' | epoll [INSTANCE]
 */
#include <errno.h>
#include <llmclient.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { TOKENS_MAX = 4096 };

struct input {
    char text[65536];
    size_t used;
    uint64_t lines;   /* that were submitted; empty ones do not count */
    bool ended, full; /* full: a line waits until the engine has room */
};

static void die(const char *what)
{
    fprintf(stderr, "epoll: %s\n", what);
    exit(1);
}

/* ---- prompts in ---- */

static uint32_t parse(char *line, int32_t tokens[TOKENS_MAX])
{
    uint32_t n = 0;
    char *end;
    for (long id; n < TOKENS_MAX && (id = strtol(line, &end, 10), end != line); line = end)
        tokens[n++] = (int32_t)id;
    return n;
}

/* 0, or -EAGAIN while there is no room: then it is tried again when events were taken. */
static int submit(struct llm_client *c, char *line, uint64_t number)
{
    int32_t tokens[TOKENS_MAX];
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = tokens;
    r.n_tokens = parse(line, tokens);
    r.max_tokens = 16;
    r.user_data = number; /* comes back as the events' id */
    int rc = llm_submit(c, &r, NULL);
    if (rc < 0 && rc != -EAGAIN)
        printf("%llu refused: %s\n", (unsigned long long)number, llm_errmsg(c));
    return rc == -EAGAIN ? rc : 0;
}

static void submit_lines(struct llm_client *c, struct input *in)
{
    char *line = in->text, *end;
    in->full = false;
    while ((end = memchr(line, '\n', in->used)) != NULL) {
        *end = 0;
        if (end > line && submit(c, line, in->lines + 1) < 0) {
            *end = '\n';
            in->full = true;
            break;
        }
        in->lines += end > line;
        in->used -= (size_t)(end + 1 - line);
        line = end + 1;
    }
    memmove(in->text, line, in->used);
}

static void read_input(struct input *in)
{
    size_t room = sizeof in->text - 1 - in->used; /* the last byte is for the newline at the end */
    ssize_t n = room ? read(0, in->text + in->used, room) : 0;
    if (!room && !in->full)
        die("a line is too long");
    if (n > 0)
        in->used += (size_t)n;
    else if (room) {
        in->ended = true;
        in->text[in->used++] = '\n';
    }
}

/* Standard input tells once; it is asked again when there is a use for more. */
static void watch_input(int loop, const struct input *in)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = 0};
    if (!in->full && !in->ended && epoll_ctl(loop, EPOLL_CTL_MOD, 0, &ev) < 0)
        die("standard input cannot be watched");
}

/* ---- tokens out ---- */

static void print(const struct llm_event *e)
{
    for (uint32_t i = 0; i < e->n_tokens; i++)
        printf("%llu %d\n", (unsigned long long)e->id, e->tokens[i]);
    if (e->type == LLM_EVENT_DONE)
        printf("%llu done\n", (unsigned long long)e->id);
    if (e->type == LLM_EVENT_ERROR)
        printf("%llu failed: %s\n", (unsigned long long)e->id, llm_strerror(e->status));
    fflush(stdout);
}

static void take_events(struct llm_client *c)
{
    struct llm_event e;
    int rc;
    while ((rc = llm_poll(c, &e)) == 1)
        print(&e);
    if (rc < 0)
        die(llm_errmsg(c));
}

/* ---- the loop ---- */

static int make_loop(struct llm_client *c)
{
    int loop = epoll_create1(EPOLL_CLOEXEC), fd = llm_fd(c);
    struct epoll_event client = {.events = EPOLLIN, .data.fd = fd};
    struct epoll_event input = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = 0};
    if (fd < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, fd, &client) < 0)
        die(llm_errmsg(c));
    if (epoll_ctl(loop, EPOLL_CTL_ADD, 0, &input) < 0)
        die("standard input is no pipe, socket or terminal");
    return loop;
}

/* Each turn takes all events, announces that it is about to wait, and waits only if the library
 * agrees. */
static void run(struct llm_client *c, int loop, struct input *in)
{
    for (;;) {
        take_events(c);
        submit_lines(c, in);
        watch_input(loop, in);
        if (in->ended && !in->full && !llm_inflight(c))
            return;
        if (llm_arm(c))
            continue;
        struct epoll_event ev[2];
        int n = epoll_wait(loop, ev, 2, -1);
        for (int i = 0; i < n; i++)
            if (ev[i].data.fd == 0)
                read_input(in);
    }
}

int main(int argc, char **argv)
{
    static struct input in;
    struct llm_client *c;
    if (llm_connect(&c, argc > 1 ? argv[1] : "default", NULL) < 0)
        die(llm_connect_error());
    run(c, make_loop(c), &in);
    llm_close(c);
    return 0;
}
