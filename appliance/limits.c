/* limits.c - see limits.h. Sources: getrlimit(2), mlockall(2), sched_setaffinity(2), sched(7), capabilities(7), proc(5),
 * and the kernel's transhuge document for /sys/kernel/mm/transparent_hugepage/enabled.
 */
#define _GNU_SOURCE
#include "limits.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MCL_ONFAULT
#define MCL_ONFAULT 4
#endif

/* Raises the soft limit to `want`, or as far as the hard one allows. Returns it. */
static uint64_t raise_to(int resource, uint64_t want)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit))
        return 0;
    if (limit.rlim_cur >= want)
        return limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max < want ? limit.rlim_max : want;
    if (setrlimit((__rlimit_resource_t)resource, &limit))
        getrlimit((__rlimit_resource_t)resource, &limit);
    return limit.rlim_cur;
}

static bool capable(unsigned capability)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    return !syscall(SYS_capget, &header, data) &&
           (data[capability / 32].effective >> capability % 32 & 1);
}

/* ---- descriptors ---- */

enum {
    OF_A_CLIENT = 3,   /* socket, process, bell */
    FOR_A_MOMENT = 16, /* a connection in the making: segments, knocking sockets */
    OF_OUR_OWN = 32    /* model, ring, door, signals, what was inherited */
};

int limits_descriptors(uint32_t max_clients, struct fail *f)
{
    uint64_t rest = FOR_A_MOMENT + OF_OUR_OWN, need = rest + (uint64_t)OF_A_CLIENT * max_clients;
    uint64_t have = raise_to(RLIMIT_NOFILE, RLIM_INFINITY);
    if (have >= need)
        return 0;
    uint64_t fits = have > rest ? (have - rest) / OF_A_CLIENT : 0;
    char fewer[64] = "";
    if (fits)
        snprintf(fewer, sizeof fewer, ", or pass --max-clients %llu or less",
                 (unsigned long long)fits);
    return fail(f, -EMFILE,
                "--max-clients %u needs %llu descriptors and this process may open %llu: raise the "
                "limit (ulimit -n, LimitNOFILE=)%s",
                max_clients, (unsigned long long)need, (unsigned long long)have, fewer);
}

/* ---- locked memory ---- */

static int cannot_lock(uint64_t bytes, uint64_t limit, struct fail *f)
{
    return fail(f, -ENOMEM,
                "--mlock would lock %.1f MiB and this process may lock %.1f MiB: raise the limit "
                "(ulimit -l, LimitMEMLOCK=infinity), grant CAP_IPC_LOCK, or leave --mlock out",
                (double)bytes / (1 << 20), (double)limit / (1 << 20));
}

int limits_may_lock(uint64_t bytes, struct fail *f)
{
    uint64_t limit = raise_to(RLIMIT_MEMLOCK, RLIM_INFINITY);
    return limit >= bytes || capable(CAP_IPC_LOCK) ? 0 : cannot_lock(bytes, limit, f);
}

/* The mapped bytes, which is what counts against the limit. */
static uint64_t mapped_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%llu", &pages) != 1)
            pages = 0;
        fclose(file);
    }
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

int limits_lock(struct fail *f)
{
    if (!mlockall(MCL_CURRENT | MCL_ONFAULT))
        return 0;
    int code = errno;
    if (code == ENOMEM || code == EPERM)
        return cannot_lock(mapped_bytes(), raise_to(RLIMIT_MEMLOCK, RLIM_INFINITY), f);
    return fail(f, -code, "--mlock: the memory cannot be locked: %s", strerror(code));
}

/* ---- CPUs ---- */

static int go_to(uint32_t cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    if (cpu < CPU_SETSIZE)
        CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one);
}

/* Tried, as a cpuset may be wider than the CPUs that this thread is bound to now. */
int limits_may_run_on(const struct cpus *list, uint32_t n, uint32_t io_cpu, struct fail *f)
{
    cpu_set_t before;
    if (sched_getaffinity(0, sizeof before, &before))
        return 0; /* who pins will find out */
    uint32_t at = 0;
    while (at < n && !go_to(list->at[at]))
        at++;
    sched_setaffinity(0, sizeof before, &before);
    if (at == n)
        return 0;
    char here[6 * CPUS_MAX];
    struct cpus allowed;
    cpus_allowed(&allowed);
    cpus_print(&allowed, here, sizeof here);
    return fail(f, -EINVAL,
                "%s: this process cannot run on CPU %u: it runs on %.200s; name CPUs that it may "
                "use (taskset -p, the cpuset of its control group)",
                list->at[at] == io_cpu ? "--io-cpu" : "--cpu-list", list->at[at], here);
}

/* ---- real time ---- */

static int cannot_run_real_time(uint32_t priority, int code, struct fail *f)
{
    if (code != EPERM)
        return fail(f, -code, "--rt-priority %u cannot be set: %s", priority, strerror(code));
    struct rlimit limit = {0};
    getrlimit(RLIMIT_RTPRIO, &limit);
    return fail(f, -EPERM,
                "--rt-priority %u is not permitted: the limit of this process is %llu; raise it "
                "(ulimit -r, LimitRTPRIO=%u and RestrictRealtime=no), grant CAP_SYS_NICE, or leave "
                "--rt-priority out",
                priority, (unsigned long long)limit.rlim_cur, priority);
}

static int become(pid_t thread, int policy, uint32_t priority)
{
    struct sched_param param = {.sched_priority = (int)priority};
    return sched_setscheduler(thread, policy, &param) ? -errno : 0;
}

int limits_may_run_real_time(uint32_t priority, struct fail *f)
{
    raise_to(RLIMIT_RTPRIO, priority);
    int before = sched_getscheduler(0), rc = become(0, SCHED_FIFO, priority);
    if (rc < 0)
        return cannot_run_real_time(priority, -rc, f);
    return become(0, before, 0) < 0 ? fail(f, -EPERM, "the scheduler cannot be set back") : 0;
}

/* A thread may end while we look: that is no failure. */
static int raise_thread(pid_t thread, uint32_t priority)
{
    if (thread <= 0 || sched_getscheduler(thread) == SCHED_IDLE)
        return 0;
    int rc = become(thread, SCHED_FIFO, priority);
    return rc == -ESRCH ? 0 : rc;
}

int limits_run_real_time(uint32_t priority, struct fail *f)
{
    DIR *threads = opendir("/proc/self/task");
    if (!threads)
        return fail(f, -errno, "--rt-priority: /proc/self/task cannot be read: %s",
                    strerror(errno));
    int rc = 0;
    for (struct dirent *d; rc == 0 && (d = readdir(threads));)
        if (isdigit((unsigned char)d->d_name[0]))
            rc = raise_thread((pid_t)strtol(d->d_name, NULL, 10), priority);
    closedir(threads);
    return rc < 0 ? cannot_run_real_time(priority, -rc, f) : 0;
}

/* ---- huge pages ---- */

bool limits_huge_pages(const char *root, struct fail *notice)
{
    static const char name[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    char path[4096], line[128] = "";
    snprintf(path, sizeof path, "%.3900s%s", root, name);
    FILE *file = fopen(path, "re");
    bool known = file && fgets(line, sizeof line, file);
    if (file)
        fclose(file);
    if (known && !strstr(line, "[never]"))
        return true;
    fail(notice, -ENOTSUP,
         known ? "huge pages are off (%s says never): start-up and steps are slower; allow them "
                 "with: echo madvise > %s"
               : "this kernel has no transparent huge pages (no %s): start-up and steps are slower",
         name, name);
    return false;
}
