/* others.c - see others.h. The source of the fields of /proc/stat and /proc/PID/stat: proc(5). */
#include "others.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "roof.h"

static double seconds(uint64_t ticks)
{
    return (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

/* Everything but idle and waiting for a disk; what other guests of the host took (steal) is in it.
 * NAN where it cannot be read. */
static double busy(void)
{
    uint64_t v[8] = {0};
    FILE *f = fopen("/proc/stat", "r");
    int n = f ? fscanf(f,
                       "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                       " %" SCNu64 " %" SCNu64,
                       &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7])
              : 0;
    if (f)
        fclose(f);
    return n == 8 ? seconds(v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) : NAN;
}

/* The fields behind the name, which ends with the last ')'. */
static double of_process(pid_t pid)
{
    char path[64], text[1024];
    uint64_t user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    const char *rest = strrchr(text, ')');
    if (!rest || sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                        &user, &system) != 2)
        return NAN;
    return seconds(user + system);
}

static double of_usage(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

void others_begin(struct others *o, pid_t engine)
{
    o->t_ns = bench_now_ns();
    o->busy_s = busy();
    o->own_s = of_usage(RUSAGE_SELF) + of_usage(RUSAGE_CHILDREN) + of_process(engine);
}

double others_share(const struct others *o, pid_t engine)
{
    struct others now;
    others_begin(&now, engine);
    double all = (double)(now.t_ns - o->t_ns) * 1e-9 * (double)sysconf(_SC_NPROCESSORS_ONLN);
    double share = (now.busy_s - o->busy_s - (now.own_s - o->own_s)) / all;
    return share < 0 ? 0 : share; /* the clocks' grains */
}
