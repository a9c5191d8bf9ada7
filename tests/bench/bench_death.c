/* bench_death.c - how soon waiting clients learn that their engine was killed: 20 kills under eight
 * clients, four in llm_wait and four in an epoll loop, each asleep for up to 200 ms.
 *
 *   bench_death MODEL
 */
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>

#include "../support/support.h"
#include "../support/watchers.h"
#include "roof.h"

enum { KILLS = 20, SAMPLES = KILLS * WATCHERS / 2 };

static double ms[2][SAMPLES];
static int n[2];

static void one_kill(const char *model, int round)
{
    struct engine_process e = {0};
    struct watchers w;
    struct watcher_report reports[WATCHERS];
    siginfo_t info;
    engine_start(&e, model, "--threads", "1", "--max-model-len", "256", NULL);
    watchers_start(&w, e.instance);
    kill(e.pid, SIGSTOP);
    waitid(P_PID, (id_t)e.pid, &info, WSTOPPED);
    watchers_wait(&w);
    nanosleep(&(struct timespec){0, round * 37 % 200 * 1000000}, NULL);
    uint64_t killed_ns = bench_now_ns();
    kill(e.pid, SIGKILL);
    watchers_collect(&w, reports);
    engine_wait(&e);
    for (int i = 0; i < WATCHERS; i++) {
        bool epoll = reports[i].epoll;
        ms[epoll][n[epoll]++] = (double)(reports[i].told_ns - killed_ns) * 1e-6;
    }
}

int main(int argc, char **argv)
{
    if (argc != 2 || *argv[1] == '-')
        return fprintf(stderr, "usage: bench_death MODEL\n"), 1;
    for (int round = 0; round < KILLS; round++)
        one_kill(argv[1], round);
    static const char *const how[2] = {"in llm_wait", "in an epoll loop"};
    printf("kill -9 to \"the engine died\" in every client, %d kills under %d clients:\n", KILLS,
           WATCHERS);
    for (int i = 0; i < 2; i++) {
        double max = 0;
        for (int j = 0; j < n[i]; j++)
            max = ms[i][j] > max ? ms[i][j] : max;
        printf("  %-18s p50 %6.1f ms   max %6.1f ms\n", how[i], bench_median(ms[i], SAMPLES), max);
    }
    return 0;
}
