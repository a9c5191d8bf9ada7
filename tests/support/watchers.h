/* watchers.h - processes that wait for an engine: half of them in llm_wait, half in an epoll loop
 * of their own. For the test and the measurement of what they learn of its death.
 *
 *     watchers_start(&w, instance);   // all are connected
 *     kill(engine, SIGSTOP);
 *     watchers_wait(&w);              // each has requests in flight and sleeps
 *     kill(engine, SIGKILL);
 *     watchers_collect(&w, reports);
 */
#ifndef LLMD_TESTS_WATCHERS_H
#define LLMD_TESTS_WATCHERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { WATCHERS = 8, WATCHER_REQUESTS = 3 };

struct watchers {
    pid_t pid[WATCHERS];
    int go, said; /* pipes' ends */
};

/* What one of them was told: `finals` requests ended with LLM_EOWNERDEAD, then the handle with
 * `code`, at that time (CLOCK_MONOTONIC). */
struct watcher_report {
    uint32_t watcher;
    bool epoll;
    uint32_t finals;
    int code;
    uint64_t told_ns;
};

void watchers_start(struct watchers *w, const char *instance);
void watchers_wait(struct watchers *w);
/* Also waits for their end. Fails the test when no report comes for 10 s. */
void watchers_collect(struct watchers *w, struct watcher_report reports[WATCHERS]);

#endif
