/* memory.c - the limits that the machine and the control groups set.
 *
 * Sources: proc(5) for /proc/meminfo and /proc/self/cgroup; the kernel's cgroup-v2 document for
 * memory.max, memory.current, memory.stat, cpu.max; its cgroup-v1 documents for
 * memory.limit_in_bytes, memory.usage_in_bytes, cpu.cfs_quota_us.
 *
 * A group's path is looked up under its mount point and then, shortened part by part, for each
 * ancestor up to the root: each of them may hold a limit. In a container without a namespace of its
 * own the path names nothing under the mount point; the root's files are then the container's.
 */
#define _GNU_SOURCE
#include "memory.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- refused ---- */

int memory_refused(const char *what, uint64_t bytes, struct fail *f)
{
    struct rlimit limit;
    uint64_t mib = (bytes >> 20) + (bytes % (1 << 20) != 0);
    if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY)
        return fail(f, -ENOMEM,
                    "the kernel refused %" PRIu64 " MiB for the %s: the address space of this "
                    "process is limited to %" PRIu64 " MiB (ulimit -v, LimitAS=); raise the limit",
                    mib, what, (uint64_t)limit.rlim_cur >> 20);
    return fail(f, -ENOMEM,
                "the kernel refused %" PRIu64 " MiB for the %s: ask for less, or allow more with "
                "the sysctl vm.overcommit_memory or vm.overcommit_ratio",
                mib, what);
}

/* ---- small files of numbers ---- */

enum { PATH_BYTES = 4096 + 256 };

static FILE *open_under(const char *root, const char *dir, const char *group, const char *name)
{
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s%s%s/%s", root, dir, group, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* The number that follows `key` at the start of a line; key "" takes the first line's. "max" and
 * anything else that is no number leaves *out alone and returns false. */
static bool read_number(FILE *file, const char *key, uint64_t *out)
{
    char line[256];
    size_t n = strlen(key);
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file))
        if (strncmp(line, key, n) == 0) {
            char *at = line + n + strspn(line + n, " \t");
            found = isdigit((unsigned char)*at);
            if (found)
                *out = strtoull(at, NULL, 10);
            else if (n == 0)
                break;
        }
    if (file)
        fclose(file);
    return found;
}

/* ---- control groups ---- */

struct hierarchy {
    const char *controller;                 /* as in /proc/self/cgroup; "" is v2 */
    const char *mount;                      /* where it is mounted */
    const char *limit, *used, *stat, *file; /* its files; `file` is a key in stat */
};
static const struct hierarchy memory_v2 = {
    "", "/sys/fs/cgroup", "memory.max", "memory.current", "memory.stat", "inactive_file "};
static const struct hierarchy memory_v1 = {
    "memory",      "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
    "memory.stat", "total_inactive_file "};
static const struct hierarchy cpu_v2 = {"", "/sys/fs/cgroup", "cpu.max", NULL, NULL, NULL};
static const struct hierarchy cpu_v1 = {
    "cpu", "/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us", NULL, NULL};

/* Whether `list` ("cpu,cpuacct") names the controller; the empty list names v2. */
static bool names_controller(const char *list, const char *controller)
{
    size_t n = strlen(controller);
    if (n == 0)
        return *list == '\0';
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, controller, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return true;
    return false;
}

/* Our group's path in the hierarchy ("" is its root); false if we are in none. Lines of
 * /proc/self/cgroup: number, controllers, path, separated by colons. */
static bool group_path(const char *root, const char *controller, char *path, size_t bytes)
{
    FILE *file = open_under(root, "/proc/self", "", "cgroup");
    char line[PATH_BYTES];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':'), *at = list ? strchr(list + 1, ':') : NULL;
        if (!at)
            continue;
        *at++ = '\0';
        if (names_controller(list + 1, controller) && strlen(at) < bytes) {
            strcpy(path, strcmp(at, "/") == 0 ? "" : at);
            found = true;
        }
    }
    if (file)
        fclose(file);
    return found;
}

/* The least limit of our group and its ancestors. */
static uint64_t least_limit(const char *root, const struct hierarchy *h,
                            uint64_t (*limit)(const char *root, const struct hierarchy *h,
                                              const char *group))
{
    char path[4096];
    uint64_t least = UINT64_MAX;
    if (!group_path(root, h->controller, path, sizeof path))
        return least;
    for (;;) {
        uint64_t here = limit(root, h, path);
        least = here < least ? here : least;
        char *slash = strrchr(path, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

static uint64_t group_memory(const char *root, const struct hierarchy *h, const char *group)
{
    uint64_t max, used, cache = 0;
    if (!read_number(open_under(root, h->mount, group, h->limit), "", &max) ||
        !read_number(open_under(root, h->mount, group, h->used), "", &used))
        return UINT64_MAX;
    read_number(open_under(root, h->mount, group, h->stat), h->file, &cache);
    used -= cache < used ? cache : used;
    return max > used ? max - used : 0;
}

static uint64_t group_cpus(const char *root, const struct hierarchy *h, const char *group)
{
    uint64_t quota, period = 100000;
    FILE *file = open_under(root, h->mount, group, h->limit);
    if (h->used) { /* v1: two files */
        if (!read_number(file, "", &quota) ||
            !read_number(open_under(root, h->mount, group, h->used), "", &period))
            return UINT64_MAX;
    } else { /* v2: "max 100000" or "150000 100000" */
        unsigned long long q = 0, p = 0;
        int n = file ? fscanf(file, "%llu %llu", &q, &p) : 0;
        if (file)
            fclose(file);
        if (n != 2)
            return UINT64_MAX;
        quota = q;
        period = p;
    }
    return period ? quota / period + (quota % period != 0) : UINT64_MAX;
}

/* ---- what is left ---- */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t memory_available(const char *root)
{
    uint64_t kib = 0;
    read_number(open_under(root, "/proc", "", "meminfo"), "MemAvailable:", &kib);
    uint64_t left = kib * 1024;
    left = min_u64(left, least_limit(root, &memory_v2, group_memory));
    return min_u64(left, least_limit(root, &memory_v1, group_memory));
}

unsigned memory_cpus(const char *root)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    uint64_t cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? (uint64_t)CPU_COUNT(&set) : 1;
    cpus = min_u64(cpus, least_limit(root, &cpu_v2, group_cpus));
    cpus = min_u64(cpus, least_limit(root, &cpu_v1, group_cpus));
    return cpus ? (unsigned)cpus : 1;
}
