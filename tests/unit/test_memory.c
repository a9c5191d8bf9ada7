/* test_memory.c - how much memory and how many CPUs there are, read from made-up proc and sys
 * trees. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../gpu/cpu/memory.h"
#include "../support/support.h"

/* A new tree whose machine has 1,000,000 KiB available. */
static const char *new_tree(void)
{
    static char root[512];
    static unsigned n;
    snprintf(root, sizeof root, "%s/tree%u", scratch_dir(), n++);
    assert_int_equal(mkdir(root, 0700), 0);
    return root;
}

static void put(const char *root, const char *name, const char *text)
{
    char path[1024];
    int n = snprintf(path, sizeof path, "%s/%s", root, name);
    assert_true(n > 0 && (size_t)n < sizeof path);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static const char meminfo[] = "MemTotal:        2000000 kB\n"
                              "MemFree:          100000 kB\n"
                              "MemAvailable:    1000000 kB\n";
enum { AVAILABLE = 1000000 * 1024 };

static void the_machine_alone(void **state)
{
    (void)state;
    const char *root = new_tree();
    assert_int_equal(memory_available(root), 0); /* nothing can be read: nothing is promised */
    put(root, "proc/meminfo", meminfo);
    assert_int_equal(memory_available(root), AVAILABLE);
    put(root, "proc/self/cgroup", "0::/\n"); /* the root group has no limit files */
    assert_int_equal(memory_available(root), AVAILABLE);
}

static void a_group_and_its_ancestors(void **state)
{
    (void)state;
    const char *root = new_tree();
    put(root, "proc/meminfo", meminfo);
    put(root, "proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n");
    put(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
    put(root, "sys/fs/cgroup/a/b/memory.current", "12345\n");
    assert_int_equal(memory_available(root), AVAILABLE);
    put(root, "sys/fs/cgroup/a/memory.max", "500000\n");
    put(root, "sys/fs/cgroup/a/memory.current", "200000\n");
    assert_int_equal(memory_available(root), 300000);
    put(root, "sys/fs/cgroup/a/memory.stat", "anon 100\ninactive_file 50000\nfile 70000\n");
    assert_int_equal(memory_available(root), 350000);
    put(root, "sys/fs/cgroup/a/b/memory.max", "12400\n");
    assert_int_equal(memory_available(root), 55);
    put(root, "sys/fs/cgroup/a/b/memory.current", "99999\n"); /* over its limit */
    assert_int_equal(memory_available(root), 0);
}

static void a_container_without_a_namespace(void **state)
{
    (void)state;
    const char *root = new_tree();
    put(root, "proc/meminfo", meminfo);
    put(root, "proc/self/cgroup", "0::/docker/0123/not/mounted/here\n");
    put(root, "sys/fs/cgroup/memory.max", "4096000\n");
    put(root, "sys/fs/cgroup/memory.current", "96000\n");
    assert_int_equal(memory_available(root), 4000000);
}

static void version_1(void **state)
{
    (void)state;
    const char *root = new_tree();
    put(root, "proc/meminfo", meminfo);
    put(root, "proc/self/cgroup", "4:memory:/jobs/7\n3:cpuacct,cpu:/jobs\n0::/\n");
    put(root, "sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "9223372036854771712\n");
    put(root, "sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "1000\n");
    assert_int_equal(memory_available(root), AVAILABLE);
    put(root, "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "80000\n");
    put(root, "sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "30000\n");
    put(root, "sys/fs/cgroup/memory/jobs/memory.stat",
        "inactive_file 1\ntotal_inactive_file 200\n");
    assert_int_equal(memory_available(root), 50200);
    put(root, "sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "-1\n");
    put(root, "sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000\n");
    unsigned all = memory_cpus(root);
    assert_true(all >= 1);
    put(root, "sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "50000\n");
    assert_int_equal(memory_cpus(root), 1);
}

static void cpu_quota(void **state)
{
    (void)state;
    const char *root = new_tree();
    unsigned all = memory_cpus(root);
    put(root, "proc/self/cgroup", "0::/a\n");
    put(root, "sys/fs/cgroup/a/cpu.max", "max 100000\n");
    assert_int_equal(memory_cpus(root), all);
    put(root, "sys/fs/cgroup/a/cpu.max", "1000000000 1000\n");
    assert_int_equal(memory_cpus(root), all);
    put(root, "sys/fs/cgroup/a/cpu.max", "100000 100000\n");
    assert_int_equal(memory_cpus(root), 1);
    put(root, "sys/fs/cgroup/a/cpu.max", "20000 100000\n"); /* a fifth of one is one */
    assert_int_equal(memory_cpus(root), 1);
    put(root, "sys/fs/cgroup/a/cpu.max", "150000 100000\n"); /* rounded up */
    assert_int_equal(memory_cpus(root), all < 2 ? all : 2);
}

/* Never "0 MiB": what was refused is named as if it were a little more. */
static void a_refusal_names_what_was_asked_for(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *says;
    } cases[] = {{1, "refused 1 MiB for the table"},
                 {1 << 20, "refused 1 MiB for the table"},
                 {(1 << 20) + 1, "refused 2 MiB for the table"},
                 {UINT64_MAX, "refused 17592186044416 MiB for the table"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fail f = {0};
        assert_int_equal(memory_refused("table", cases[i].bytes, &f), -ENOMEM);
        assert_non_null(strstr(f.text, cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_machine_alone),
        cmocka_unit_test(a_group_and_its_ancestors),
        cmocka_unit_test(a_container_without_a_namespace),
        cmocka_unit_test(version_1),
        cmocka_unit_test(cpu_quota),
        cmocka_unit_test(a_refusal_names_what_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
