/* test_fallbacks.c - where the system does not give what the engine would like to have it says so
 * once, with what to do, and serves all the same: the same set of promises (support/serving.h)
 * under each condition. Each has a process of its own, since none can be taken back; a condition
 * that cannot be made here is skipped, and said.
 * Failure test (12).
 */
#include "../support/forbid.h"
#include "../support/serving.h"
#include "../support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { AT_ONCE = 3 }; /* processes: most of the time they wait for an engine to sleep */

static const char *tiny(void)
{
    return golden_path("tiny_gguf/llama.Q4_0.gguf");
}

/* An engine with these arguments ends with that status and that sentence. */
static void refuses(const char *const *arguments, int status, const char *says)
{
    struct engine_process e = {0};
    engine_spawn(&e, tiny(), arguments);
    int rc = engine_wait(&e);
    char *log = engine_log(&e);
    if (rc != status || !strstr(log, says) || strstr(log, "ready"))
        fail_msg("status %d, says: %s\nnot: %s", rc, log, says);
    free(log);
}

static int skipped(const char *what, const char *needs)
{
    fprintf(stderr, "%s: skipped, it needs %s (%s)\n", what, needs, strerror(errno));
    return 0;
}

/* ---- how the loop waits ---- */

static int as_it_is(void)
{
    return serving_run("as it is", NULL, NULL);
}

static int epoll_asked_for(void)
{
    static const char *const epoll[] = {"--io", "epoll", NULL};
    return serving_run("epoll asked for", epoll, NULL);
}

static void is_refused_where_it_was_demanded(void **state)
{
    (void)state;
    static const char *const demanded[] = {"--io", "io_uring", NULL};
    refuses(demanded, 1, *state);
}

static int demanded(const char *name, const char *says)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(is_refused_where_it_was_demanded, (void *)says)};
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

static int no_io_uring(void)
{
    forbid_io_uring();
    return serving_run("no io_uring", NULL,
                       "io_uring cannot be used (Operation not permitted): allow it with the "
                       "sysctl kernel.io_uring_disabled=0, in a container also with a seccomp "
                       "profile that permits io_uring; until then epoll and helper threads stand "
                       "in") +
           demanded("no io_uring, demanded", "io_uring cannot be used (Operation not permitted)");
}

static int no_io_uring_and_no_waitv(void)
{
    forbid_io_uring();
    forbid_futex_waitv();
    return serving_run("no io_uring, no futex_waitv", NULL,
                       "until then epoll stands in, and futex_waitv cannot be used (Operation not "
                       "permitted): use Linux 5.16 or later, in a container also a seccomp profile "
                       "that permits it; until then an idle engine looks for requests every 2 to "
                       "50 milliseconds");
}

static int io_uring_without_futexes(void)
{
    forbid_io_uring_futexes();
    return serving_run("io_uring without futexes", NULL,
                       "this kernel's io_uring has no futex operations: use Linux 6.7 or later; "
                       "until then epoll and helper threads stand in") +
           demanded("io_uring without futexes, demanded",
                    "this kernel's io_uring has no futex operations: use Linux 6.7 or later");
}

/* ---- memory ---- */

/* For good: also root does not get it back with the next exec. */
static int give_up(unsigned capability)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (geteuid() == 0 && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))
        return -1;
    if (syscall(SYS_capget, &header, data))
        return -1;
    data[capability / 32].effective &= ~(1u << capability % 32);
    data[capability / 32].permitted &= ~(1u << capability % 32);
    data[capability / 32].inheritable &= ~(1u << capability % 32);
    return (int)syscall(SYS_capset, &header, data);
}

/* Some kernels count a ring's memory as locked, others do not. */
static bool rings_are_locked_memory(void)
{
    struct io_uring ring;
    int rc = io_uring_queue_init(4096, &ring, 0);
    if (!rc)
        io_uring_queue_exit(&ring);
    return rc == -ENOMEM;
}

static int locked_memory_of_64_KiB(void)
{
    struct rlimit l = {64 << 10, 64 << 10};
    if (give_up(CAP_IPC_LOCK) || setrlimit(RLIMIT_MEMLOCK, &l))
        return skipped("locked memory of 64 KiB", "the right to limit itself");
    return serving_run("locked memory of 64 KiB", NULL,
                       rings_are_locked_memory()
                           ? "KiB count as locked memory, of which this user may have 64 KiB; "
                             "raise the limit (ulimit -l, LimitMEMLOCK=), grant CAP_IPC_LOCK or "
                             "lower --max-clients; until then epoll and helper threads stand in"
                           : NULL);
}

/* A mount namespace of its own: what is mounted there nobody else sees. */
static int own_mounts(void)
{
    return unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ? -1 : 0;
}

/* As Docker gives it. */
static int shm_of_64_MiB(void)
{
    if (own_mounts() || mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m"))
        return skipped("a /dev/shm of 64 MiB", "the right to mount");
    return serving_run("a /dev/shm of 64 MiB", NULL, NULL);
}

/* ---- a control group that has little memory, as the engine reads of it ---- */

static bool put(const char *name, uint64_t value)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/fs/cgroup/%s", name);
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fprintf(file, "%llu\n", (unsigned long long)value);
    return fclose(file) == 0;
}

static bool group_of(uint64_t mib)
{
    return !own_mounts() && !mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "size=1m") &&
           put("memory.max", mib << 20) && put("memory.current", 1 << 20);
}

/* A quarter of it is the pool, or what one request needs. */
static int group_of_64_MiB(void)
{
    if (!group_of(64))
        return skipped("a control group of 64 MiB", "the right to mount");
    return serving_run("a control group of 64 MiB", NULL, "llmd: weights ");
}

static void asks_for_a_smaller_pool(void **state)
{
    (void)state;
    static const char *const pool[] = {"--kv-cache-memory", "256M", NULL};
    refuses(pool, 1, "MiB of memory that are free: pass --kv-cache-memory ");
}

static void says_what_does_not_fit(void **state)
{
    (void)state;
    refuses(
        NULL, 1,
        "MiB of memory that are free: one request of 256 tokens alone needs 0.1 MiB of KV: free "
        "memory, raise the limit of the control group (memory.max, MemoryMax=), or pass a "
        "smaller --max-model-len");
}

static int pool_that_does_not_fit(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(asks_for_a_smaller_pool)};
    if (!group_of(64))
        return skipped("a pool larger than the control group", "the right to mount");
    return cmocka_run_group_tests_name("a pool larger than the control group", tests, NULL, NULL);
}

/* Room for the weights, which take a huge page, and for reading them. */
static int group_of_6_MiB(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_what_does_not_fit)};
    if (!group_of(6))
        return skipped("a control group of 6 MiB", "the right to mount");
    return cmocka_run_group_tests_name("a control group of 6 MiB", tests, NULL, NULL);
}

int main(void)
{
    static int (*const conditions[])(void) = {as_it_is,
                                              epoll_asked_for,
                                              no_io_uring,
                                              no_io_uring_and_no_waitv,
                                              io_uring_without_futexes,
                                              locked_memory_of_64_KiB,
                                              shm_of_64_MiB,
                                              group_of_64_MiB,
                                              pool_that_does_not_fit,
                                              group_of_6_MiB};
    enum { N = sizeof conditions / sizeof *conditions };
    pid_t pid[N];
    int failed = 0;
    for (int i = 0; i < N; i++) {
        pid[i] = start_a_process(conditions[i]);
        if (i >= AT_ONCE - 1)
            failed |= end_of_process(pid[i - (AT_ONCE - 1)]);
    }
    for (int i = N - (AT_ONCE - 1); i < N; i++)
        failed |= end_of_process(pid[i]);
    return failed != 0;
}
