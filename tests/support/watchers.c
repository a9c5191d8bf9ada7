/* watchers.c - see watchers.h. */
#include "watchers.h"

#include "../../client/llmclient.h"
#include "support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- in the child ---- */

/* A step that cannot fail here; its number is the exit status. */
static void need(bool done, int step)
{
    if (!done)
        _exit(step);
}

static void submit(struct llm_client *c)
{
    static const int32_t prompt[] = {1, 2, 3, 4, 5};
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = 200, r.flags = LLM_SQE_IGNORE_EOS;
    for (int i = 0; i < WATCHER_REQUESTS; i++)
        need(!llm_submit(c, &r, NULL), 3);
}

static void note(struct watcher_report *r, const struct llm_event *e)
{
    r->finals += e->type == LLM_EVENT_ERROR && e->status == LLM_EOWNERDEAD;
}

static int wait_in_library(struct llm_client *c, struct watcher_report *r)
{
    struct llm_event e;
    int rc;
    while ((rc = llm_wait(c, &e, -1)) == 1)
        note(r, &e);
    return rc;
}

static int wait_in_epoll(struct llm_client *c, struct watcher_report *r)
{
    int loop = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN};
    need(!epoll_ctl(loop, EPOLL_CTL_ADD, llm_fd(c), &ev), 4);
    for (;;) {
        struct llm_event e;
        int rc;
        while ((rc = llm_poll(c, &e)) == 1)
            note(r, &e);
        if (rc < 0)
            return rc;
        if (!llm_arm(c))
            epoll_wait(loop, &ev, 1, -1);
    }
}

static void watch(uint32_t i, const char *instance, int go, int say)
{
    struct watcher_report r = {.watcher = i, .epoll = i % 2};
    struct llm_client *c;
    char x;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    need(!llm_connect(&c, instance, NULL), 1);
    need(write(say, "c", 1) == 1, 2);
    need(read(go, &x, 1) == 1, 2);
    submit(c);
    need(write(say, "w", 1) == 1, 2);
    r.code = r.epoll ? wait_in_epoll(c, &r) : wait_in_library(c, &r);
    r.told_ns = test_now_ns();
    need(write(say, &r, sizeof r) == sizeof r, 2);
    llm_close(c);
    _exit(0);
}

/* ---- in the parent ---- */

static void hear(const struct watchers *w, void *to, size_t bytes)
{
    struct pollfd p = {w->said, POLLIN, 0};
    if (poll(&p, 1, 10000) != 1)
        fail_msg("a waiting client was told nothing for 10 s");
    assert_int_equal(read(w->said, to, bytes), bytes);
}

void watchers_start(struct watchers *w, const char *instance)
{
    int go[2], said[2];
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(said), 0);
    fflush(NULL);
    for (uint32_t i = 0; i < WATCHERS; i++) {
        w->pid[i] = fork();
        assert_true(w->pid[i] >= 0);
        if (!w->pid[i])
            watch(i, instance, go[0], said[1]);
    }
    close(go[0]);
    close(said[1]);
    w->go = go[1];
    w->said = said[0];
    for (int i = 0; i < WATCHERS; i++)
        hear(w, &(char){0}, 1);
}

static bool sleeps(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    bool read_it = fgets(text, sizeof text, f);
    fclose(f);
    const char *name_end = strrchr(text, ')');
    return read_it && name_end && name_end[2] == 'S';
}

void watchers_wait(struct watchers *w)
{
    assert_int_equal(write(w->go, "gggggggg", WATCHERS), WATCHERS);
    for (int i = 0; i < WATCHERS; i++)
        hear(w, &(char){0}, 1);
    for (int i = 0; i < WATCHERS; i++)
        while (!sleeps(w->pid[i]))
            nanosleep(&(struct timespec){0, 100000}, NULL);
}

void watchers_collect(struct watchers *w, struct watcher_report reports[WATCHERS])
{
    for (int i = 0; i < WATCHERS; i++)
        hear(w, &reports[i], sizeof reports[i]);
    for (int i = 0; i < WATCHERS; i++) {
        int status;
        assert_int_equal(waitpid(w->pid[i], &status, 0), w->pid[i]);
        assert_int_equal(status, 0);
    }
    close(w->go);
    close(w->said);
}
