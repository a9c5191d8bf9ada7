/* test_limits.c - what the system grants: descriptors, locked memory, real-time priority, huge
 * pages. Each case runs in a process of its own, with limits of its own.
 */
#include "../../appliance/limits.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fail f;

static void limit(int resource, uint64_t soft, uint64_t hard)
{
    struct rlimit l = {.rlim_cur = soft, .rlim_max = hard};
    if (setrlimit((__rlimit_resource_t)resource, &l))
        _exit(77);
}

/* Without the capabilities that lift limits, whoever runs the tests. */
static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data))
        _exit(77);
    data[0].effective &= ~(1u << CAP_IPC_LOCK | 1u << CAP_SYS_NICE);
    data[0].permitted &= ~(1u << CAP_IPC_LOCK | 1u << CAP_SYS_NICE);
    if (syscall(SYS_capset, &header, data))
        _exit(77);
}

/* True if the body, in a process of its own, returns true; a body that cannot be set up (77) skips.
 */
static void in_a_child(bool (*body)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        f = (struct fail){0};
        bool good = body();
        if (!good)
            fprintf(stderr, "says: %s\n", f.text);
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool says(const char *sentence)
{
    return strstr(f.text, sentence) != NULL;
}

/* ---- descriptors ---- */

static bool soft_limit_is_raised(void)
{
    struct rlimit l;
    limit(RLIMIT_NOFILE, 20, 300);
    return !limits_descriptors(64, &f) && !getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur == 300;
}

static bool too_few_descriptors(void)
{
    limit(RLIMIT_NOFILE, 20, 100);
    return limits_descriptors(64, &f) == -EMFILE &&
           says("--max-clients 64 needs 240 descriptors and this process may open 100") &&
           says("ulimit -n, LimitNOFILE=") && says("--max-clients 17 or less");
}

static bool what_is_said_to_fit_does(void)
{
    limit(RLIMIT_NOFILE, 20, 100);
    return !limits_descriptors(17, &f) && limits_descriptors(18, &f) == -EMFILE;
}

/* Not even one client would fit: nothing is said of fewer. */
static bool hardly_any(void)
{
    limit(RLIMIT_NOFILE, 10, 10);
    return limits_descriptors(1024, &f) == -EMFILE && says("ulimit -n, LimitNOFILE=") &&
           !says("or less");
}

static void descriptors(void **state)
{
    (void)state;
    in_a_child(soft_limit_is_raised);
    in_a_child(too_few_descriptors);
    in_a_child(what_is_said_to_fit_does);
    in_a_child(hardly_any);
}

/* ---- locked memory ---- */

static bool may_not_lock(void)
{
    drop_capabilities();
    limit(RLIMIT_MEMLOCK, 65536, 8 << 20);
    return !limits_may_lock(8 << 20, &f) && limits_may_lock((8 << 20) + 1, &f) == -ENOMEM &&
           says("--mlock would lock 8.0 MiB and this process may lock 8.0 MiB") &&
           says("ulimit -l, LimitMEMLOCK=infinity");
}

static bool cannot_lock_all(void)
{
    drop_capabilities();
    limit(RLIMIT_MEMLOCK, 65536, 65536);
    return limits_lock(&f) == -ENOMEM && says("this process may lock 0.1 MiB");
}

static bool locks_what_is_there(void)
{
    char line[128];
    unsigned long kib = 0;
    if (limits_may_lock(1ull << 40, NULL))
        _exit(77); /* not to us */
    if (limits_lock(&f))
        return false;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        sscanf(line, "VmLck: %lu", &kib);
    fclose(file);
    return kib > 100;
}

static void locked_memory(void **state)
{
    (void)state;
    in_a_child(may_not_lock);
    if (!test_sanitized()) /* their mlockall does nothing */
        in_a_child(cannot_lock_all);
}

static void all_memory_is_locked(void **state)
{
    (void)state;
    if (test_sanitized())
        skip();
    in_a_child(locks_what_is_there);
}

/* ---- real time ---- */

static bool is_not_permitted(void)
{
    drop_capabilities();
    limit(RLIMIT_RTPRIO, 0, 0);
    return limits_may_run_real_time(6, &f) == -EPERM && says("--rt-priority 6 is not permitted") &&
           says("the limit of this process is 0") && says("LimitRTPRIO=6") &&
           sched_getscheduler(0) == SCHED_OTHER;
}

static bool is_permitted_within_the_limit(void)
{
    limit(RLIMIT_RTPRIO, 0, 5); /* needs more rights than dropping them later */
    drop_capabilities();
    return !limits_may_run_real_time(5, &f) && sched_getscheduler(0) == SCHED_OTHER;
}

static bool is_given(void)
{
    struct sched_param p;
    if (limits_may_run_real_time(1, NULL))
        _exit(77); /* not to us */
    return !limits_run_real_time(1, &f) && sched_getscheduler(0) == SCHED_FIFO &&
           !sched_getparam(0, &p) && p.sched_priority == 1;
}

static bool leaves_idle_threads_alone(void)
{
    if (limits_may_run_real_time(1, NULL))
        _exit(77);
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
    return !limits_run_real_time(1, &f) && sched_getscheduler(0) == SCHED_IDLE;
}

static void real_time_is_refused(void **state)
{
    (void)state;
    in_a_child(is_not_permitted);
}

static void real_time_is_given(void **state)
{
    (void)state;
    in_a_child(is_given);
    in_a_child(leaves_idle_threads_alone);
}

static void a_soft_limit_is_raised_for_real_time(void **state)
{
    (void)state;
    in_a_child(is_permitted_within_the_limit);
}

/* ---- huge pages ---- */

static void write_setting(const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "mkdir -p %s/sys/kernel/mm/transparent_hugepage", scratch_dir());
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/sys/kernel/mm/transparent_hugepage/enabled", scratch_dir());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void huge_pages(void **state)
{
    (void)state;
    struct fail none = {0};
    assert_false(limits_huge_pages(scratch_dir(), &none));
    assert_non_null(strstr(none.text, "this kernel has no transparent huge pages"));
    static const char *const good[] = {"[always] madvise never\n", "always [madvise] never\n"};
    for (int i = 0; i < 2; i++) {
        struct fail quiet = {0};
        write_setting(good[i]);
        assert_true(limits_huge_pages(scratch_dir(), &quiet));
        assert_int_equal(quiet.code, 0);
    }
    struct fail off = {0};
    write_setting("always madvise [never]\n");
    assert_false(limits_huge_pages(scratch_dir(), &off));
    assert_non_null(strstr(off.text, "huge pages are off"));
    assert_non_null(strstr(off.text, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors),
        cmocka_unit_test(locked_memory),
        cmocka_unit_test(all_memory_is_locked),
        cmocka_unit_test(real_time_is_refused),
        cmocka_unit_test(a_soft_limit_is_raised_for_real_time),
        cmocka_unit_test(real_time_is_given),
        cmocka_unit_test(huge_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
