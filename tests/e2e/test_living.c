/* test_living.c - an engine among the facts of a machine: its configuration file, limits that are
 * too small, the CPUs that it is given, its log, the service manager.
 */
#include "../../shm/control.h"
#include "../support/support.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *tiny(void)
{
    return golden_path("tiny_gguf/llama.Q4_0.gguf");
}

static const char *write_config(const char *text)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/engine.conf", scratch_dir());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

/* ---- engines that do not start ---- */

/* Runs llmd to its end through the shell, `before` in front of it. Returns what it said. */
static char *run_llmd(int *status, const char *before, const char *arguments)
{
    static unsigned count;
    return run_command(
        status, "LLMD_RUNTIME_DIR='%s' sh -c \"%s timeout 120 '%s' --instance l%d-%u %s\" 2>&1",
        scratch_dir(), before, built("llmd"), (int)getpid(), count++, arguments);
}

static void refuses(const char *before, const char *arguments, int want, const char *sentence)
{
    int status;
    char *text = run_llmd(&status, before, arguments);
    if (status != want || !strstr(text, sentence) || strstr(text, "ready"))
        fail_msg("%s llmd %s: status %d, says: %s\nnot: %s", before, arguments, status, text,
                 sentence);
    free(text);
}

static const char *with_tiny(const char *more)
{
    static char arguments[1200];
    snprintf(arguments, sizeof arguments, "--model '%s' --threads 1 %s", tiny(), more);
    return arguments;
}

/* Whether a command works here: some need rights that not everybody has. */
static bool works(const char *command)
{
    int status;
    free(run_command(&status, "%s >/dev/null 2>&1", command));
    return status == 0;
}

static void too_few_descriptors(void **state)
{
    (void)state;
    refuses("ulimit -n 60;", with_tiny(""), 1,
            "--max-clients 64 needs 240 descriptors and this process may open 60: raise the limit "
            "(ulimit -n, LimitNOFILE=), or pass --max-clients 4 or less");
    refuses("ulimit -n 12;", with_tiny("--max-clients 1"), 1,
            "--max-clients 1 needs 51 descriptors and this process may open 12: raise the limit "
            "(ulimit -n, LimitNOFILE=)\n");
}

/* Where root runs the tests, it runs the engine without the right to lock what it likes. */
static const char *without(const char *capability)
{
    static char text[128];
    snprintf(text, sizeof text, "setpriv --bounding-set -%s --", capability);
    return geteuid() ? "" : text;
}

static void locking_is_not_allowed(void **state)
{
    (void)state;
    char before[200], probe[200];
    snprintf(probe, sizeof probe, "%s true", without("ipc_lock"));
    if (!works(probe))
        skip();
    snprintf(before, sizeof before, "ulimit -l 64; exec %s", without("ipc_lock"));
    refuses(before, with_tiny("--mlock"), 1, "and this process may lock 0.1 MiB: raise the limit");
    if (test_sanitized())
        return;
    snprintf(before, sizeof before, "ulimit -l 3000; exec %s", without("ipc_lock"));
    refuses(before, with_tiny("--mlock"), 1, "and this process may lock 2.9 MiB: raise the limit");
}

static void real_time_is_not_allowed(void **state)
{
    (void)state;
    char before[200], probe[200];
    snprintf(probe, sizeof probe, "%s true", without("sys_nice"));
    if (!works(probe))
        skip();
    snprintf(before, sizeof before, "ulimit -r 0; exec %s", without("sys_nice"));
    refuses(before, with_tiny("--rt-priority 10"), 1, "--rt-priority 10 is not permitted");
}

static void too_little_memory(void **state)
{
    (void)state;
    refuses("", with_tiny("--num-kv-blocks 100000000"), 1, "do not fit into the");
    if (test_sanitized())
        return; /* they map terabytes */
    refuses("ulimit -v 1000000;", with_tiny("--kv-cache-memory 3G"), 1,
            "for the KV pool and the workspace: the address space of this process is limited to "
            "976 MiB (ulimit -v, LimitAS=); raise the limit");
}

/* In a /dev/shm of its own: the machine's is other people's. */
static void shared_memory_is_full(void **state)
{
    (void)state;
    static const char *const small =
        "unshare -m sh -c 'mount -t tmpfs -o size=16k none /dev/shm &&";
    char command[2048];
    snprintf(command, sizeof command, "%s true'", small);
    if (!works(command))
        skip();
    int status;
    char *text = run_command(
        &status,
        "LLMD_RUNTIME_DIR='%s' %s exec timeout 120 \"%s\" --model \"%s\" --instance full-%d "
        "--threads 1' 2>&1",
        scratch_dir(), small, built("llmd"), tiny(), (int)getpid());
    if (status != 1 || !strstr(text, "/dev/shm is full: the board /dev/shm/llmd.full-") ||
        strstr(text, "ready"))
        fail_msg("status %d, says: %s", status, text);
    free(text);
}

static void cpus_that_are_not_there(void **state)
{
    (void)state;
    /* before the model is looked at */
    refuses("", "--model /nowhere/m.gguf --cpu-list 1023", 1,
            "--cpu-list: this process cannot run on CPU 1023: it runs on ");
    refuses("", "--model /nowhere/m.gguf --io-cpu 1023", 1,
            "--io-cpu: this process cannot run on CPU 1023: it runs on ");
    char one_is_there[128];
    snprintf(one_is_there, sizeof one_is_there,
             "--model /nowhere/m.gguf --cpu-list 1022 --io-cpu %d --threads 2", sched_getcpu());
    refuses("", one_is_there, 1, "--cpu-list: this process cannot run on CPU 1022: it runs on ");
    refuses("", with_tiny("--cpu-list 5-4"), 2, "--cpu-list takes CPU numbers");
}

/* ---- configuration ---- */

static void a_configuration_is_checked(void **state)
{
    (void)state;
    int status;
    char arguments[600];
    const char *path = write_config("model = /nowhere/m.gguf\nmax-num-seqs = 7\n");
    snprintf(arguments, sizeof arguments, "--config '%s' --check-config --threads 3", path);
    char *text = run_llmd(&status, "", arguments);
    assert_int_equal(status, 0); /* the options are right; the model is not looked for */
    assert_non_null(strstr(text, "model = /nowhere/m.gguf\n"));
    assert_non_null(strstr(text, "max-num-seqs = 7\n"));
    assert_non_null(strstr(text, "threads = 3\n"));
    assert_non_null(strstr(text, "max-clients = 64\n"));
    free(text);

    char sentence[700];
    write_config("model = m\nmax-num-seq = 7\n");
    snprintf(sentence, sizeof sentence,
             "%s:2: unknown option 'max-num-seq'; did you mean 'max-num-seqs'?", path);
    refuses("", arguments, 2, sentence);
    snprintf(arguments, sizeof arguments, "--config '%s'", path);
    refuses("", arguments, 2, sentence); /* also where it was meant to start */
    refuses("", "--config /nowhere/x.conf", 2,
            "the configuration /nowhere/x.conf cannot be opened");
}

static void an_engine_runs_as_configured(void **state)
{
    (void)state;
    struct engine_process e = {0};
    const char *path =
        write_config("[llmd]\nmodel = /nowhere/m.gguf\nmax-num-seqs = 3\nthreads = 1\n"
                     "max-model-len = 100   # less than the model's\n");
    engine_start(&e, tiny(), "--config", path, "--max-num-seqs", "5", NULL);
    assert_int_equal(engine_figure(&e, "max_num_seqs"), 5); /* the command line wins */
    assert_int_equal(engine_figure(&e, "max_model_len"), 100);
    assert_int_equal(engine_figure(&e, "threads"), 1);
    if (!test_sanitized()) { /* a sanitizer brings an allocator of its own */
        assert_in_range(engine_figure(&e, "heap_allocated_bytes"), 100000, 1 << 30);
        assert_in_range(engine_figure(&e, "heap_resident_bytes"),
                        engine_figure(&e, "heap_allocated_bytes"), 1 << 30);
    }
    assert_int_equal(engine_stop(&e), 0);
}

/* ---- threads ---- */

struct thread_facts {
    char name[32], cpus[64];
    int policy;
};

/* Facts of every thread of the process; returns how many there are. */
static unsigned threads_of(pid_t pid, struct thread_facts *out, unsigned most)
{
    char path[600], line[256];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    unsigned n = 0;
    for (struct dirent *entry; n < most && (entry = readdir(d));) {
        int id = atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)pid, id);
        FILE *f = id > 0 ? fopen(path, "r") : NULL;
        if (!f)
            continue;
        while (fgets(line, sizeof line, f)) {
            sscanf(line, "Name: %31s", out[n].name);
            sscanf(line, "Cpus_allowed_list: %63s", out[n].cpus);
        }
        fclose(f);
        out[n++].policy = sched_getscheduler(id);
    }
    closedir(d);
    return n;
}

static struct thread_facts fact_of(pid_t pid, const char *name)
{
    struct thread_facts all[32];
    unsigned n = threads_of(pid, all, 32);
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(all[i].name, name))
            return all[i];
    fail_msg("no thread '%s' among %u", name, n);
    return all[0];
}

/* Two CPUs that this process may use, the higher first; false: there is but one. */
static bool two_cpus(unsigned *high, unsigned *low)
{
    cpu_set_t set;
    unsigned n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
        if (CPU_ISSET(cpu, &set))
            *(n++ ? high : low) = cpu;
    return n == 2;
}

static void threads_stay_on_their_cpus(void **state)
{
    (void)state;
    unsigned high, low;
    if (!two_cpus(&high, &low))
        skip();
    char list[32], io[16], high_text[16], low_text[16];
    snprintf(list, sizeof list, "%u,%u", high, low);
    snprintf(high_text, sizeof high_text, "%u", high);
    snprintf(low_text, sizeof low_text, "%u", low);
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--cpu-list", list, NULL);
    assert_string_equal(fact_of(e.pid, "llmd").cpus, high_text); /* in the list's order */
    assert_string_equal(fact_of(e.pid, "llmd-worker1").cpus, low_text);
    assert_int_equal(engine_figure(&e, "threads"), 2);
    assert_int_equal(engine_stop(&e), 0);

    snprintf(io, sizeof io, "%u", low);
    struct engine_process f = {0};
    engine_start(&f, tiny(), "--cpu-list", list, "--io-cpu", io, NULL);
    assert_string_equal(fact_of(f.pid, "llmd").cpus, low_text);
    assert_string_equal(fact_of(f.pid, "llmd-worker1").cpus, high_text);
    assert_int_equal(engine_stop(&f), 0);

    struct engine_process g = {0}; /* without a list: first among all that there are */
    engine_start(&g, tiny(), "--io-cpu", high_text, NULL);
    assert_string_equal(fact_of(g.pid, "llmd").cpus, high_text);
    assert_in_range(engine_figure(&g, "threads"), 2, 1024);
    assert_int_equal(engine_stop(&g), 0);
}

static void real_time_for_those_who_compute(void **state)
{
    (void)state;
    if (!works("chrt -f 1 true"))
        skip();
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--threads", "2", "--rt-priority", "1", "--kv-cache-memory", "64M",
                 "--max-num-seqs", "2000", NULL);
    assert_int_equal(fact_of(e.pid, "llmd").policy, SCHED_FIFO);
    assert_int_equal(fact_of(e.pid, "llmd-worker1").policy, SCHED_FIFO);
    struct thread_facts all[32];
    unsigned n = threads_of(e.pid, all, 32);
    for (unsigned i = 0; i < n; i++) /* pages come in the background: it may have ended by now */
        if (!strcmp(all[i].name, "llmd-pages"))
            assert_int_equal(all[i].policy, SCHED_IDLE);
    assert_int_equal(engine_stop(&e), 0);
}

static void memory_is_locked(void **state)
{
    (void)state;
    if (test_sanitized() || (geteuid() && !works("test \"$(ulimit -Hl)\" = unlimited")))
        skip();
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--threads", "1", "--mlock", NULL);
    char path[64], line[128];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)e.pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        sscanf(line, "VmLck: %lu", &kib);
    fclose(f);
    assert_true(kib * 1024 > (uint64_t)engine_figure(&e, "weights_bytes") +
                                 (uint64_t)engine_figure(&e, "kv_bytes"));
    assert_int_equal(engine_stop(&e), 0);
}

/* ---- pages ---- */

static void check_pages(const char *wish, const char *line, const char *name)
{
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--threads", "2", "--huge-pages", wish, NULL);
    char *log = engine_log(&e);
    json_t *status = engine_status(&e);
    if (!strstr(log, line))
        fail_msg("no '%s' in:\n%s", line, log);
    if (name)
        assert_string_equal(json_string_value(json_object_get(status, "weights_pages")), name);
    assert_true(json_integer_value(json_object_get(status, "weights_huge_bytes")) <=
                json_integer_value(json_object_get(status, "weights_bytes")));
    assert_in_range(json_integer_value(json_object_get(status, "compute_threads_in_use")), 1, 2);
    json_decref(status);
    free(log);
    assert_int_equal(engine_stop(&e), 0);
}

static void pages_are_told(void **state)
{
    (void)state;
    check_pages("off", "llmd: pages: weights on small pages, 0.0 MiB of them huge", "small");
    check_pages("thp", "llmd: pages: weights on thp pages, ", "thp");
    check_pages("auto", "llmd: pages: weights on ", NULL);
    if (works("grep -qx 0 /sys/kernel/mm/hugepages/hugepages-*/free_hugepages &&"
              " ! grep -qvx 0 /sys/kernel/mm/hugepages/hugepages-*/free_hugepages"))
        check_pages("hugetlb", "raise the sysctl vm.nr_hugepages", "thp");
    else
        check_pages("hugetlb", "llmd: pages: weights on ", NULL);
}

/* ---- what computes ---- */

/* The body of the kernels, though AVX2 and AVX-512 share their numerics. */
static void the_kernels_are_told(void **state)
{
    (void)state;
    static const char *const backends[] = {"cpu-plain", "cpu-avx2", "cpu"};
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        struct engine_process e = {0};
        engine_start(&e, tiny(), "--threads", "1", "--backend", backends[i], NULL);
        char *log = engine_log(&e), *kernels = strstr(log, " kernels, 1 threads, numerics cpu-");
        assert_non_null(kernels);
        while (kernels[-1] != ' ')
            kernels--;
        *strchr(kernels, ' ') = 0;
        if (!i)
            assert_string_equal(kernels, "cpu-plain");
        else if (i == 1 || strcmp(kernels, "cpu-avx512")) /* a CPU may have neither */
            assert_true(!strcmp(kernels, "cpu-avx2") || !strcmp(kernels, "cpu-plain"));
        int status;
        char *text = run_command(&status, "LLMD_RUNTIME_DIR='%s' \"%s\" -i %s status 2>&1",
                                 scratch_dir(), built("llmctl"), e.instance);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "backend %s\n", kernels);
        assert_int_equal(status, 0);
        assert_non_null(strstr(text, wanted));
        free(text);
        free(log);
        assert_int_equal(engine_stop(&e), 0);
    }
}

/* ---- the log ---- */

static void the_log_has_levels(void **state)
{
    (void)state;
    static const struct {
        const char *level;
        bool info, debug;
    } cases[] = {{"error", false, false}, {"info", true, false}, {"debug", true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct engine_process e = {0};
        engine_start(&e, tiny(), "--threads", "1", "--log-level", cases[i].level, NULL);
        char *log = engine_log(&e);
        assert_int_equal(strstr(log, ", loading ") != NULL, cases[i].info);
        assert_int_equal(strstr(log, "debug: start-up took") != NULL, cases[i].debug);
        /* of a model of a few KiB */
        assert_int_equal(strstr(log, "debug: huge pages were not compared") != NULL,
                         cases[i].debug);
        assert_null(strstr(log, "(0 rounds)"));
        assert_non_null(strstr(log, "concurrent requests of")); /* on standard output */
        free(log);
        assert_int_equal(engine_stop(&e), 0);
    }
}

static void the_log_speaks_json(void **state)
{
    (void)state;
    struct engine_process e = {0};
    engine_start(&e, tiny(), "--threads", "1", "--log-level", "debug", "--log-json", NULL);
    assert_int_equal(engine_stop(&e), 0);
    char *log = engine_log(&e);
    int objects = 0;
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        if (*line != '{') {
            assert_memory_equal(line, "llmd: ", 6); /* standard output's */
            continue;
        }
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        assert_int_equal(json_integer_value(json_object_get(o, "pid")), e.pid);
        assert_non_null(json_string_value(json_object_get(o, "text")));
        json_decref(o);
        objects++;
    }
    assert_true(objects >= 2);
    free(log);

    int status;
    char *text = run_llmd(&status, "", "--model /nowhere/m.gguf --log-json");
    assert_int_equal(status, 1);
    json_t *o = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(o, "level")), "error");
    json_decref(o);
    free(text);
}

/* ---- the service manager ---- */

static int manager_socket(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "llmd-living-%d", (int)getpid());
    socklen_t bytes =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(at.sun_path + 1));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, bytes), 0);
    at.sun_path[0] = '@';
    setenv("NOTIFY_SOCKET", at.sun_path, 1);
    return fd;
}

/* The next message that begins like that; what comes before it is let go. */
static void hears(int fd, const char *begin)
{
    char text[1024];
    struct timeval patience = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (;;) {
        ssize_t n = recv(fd, text, sizeof text - 1, 0);
        size_t end = n > 0 && (size_t)n < sizeof text ? (size_t)n : 0;
        if (n < 0)
            fail_msg("the engine did not say %s", begin);
        text[end] = 0;
        if (!strncmp(text, begin, strlen(begin)))
            return;
    }
}

static void the_service_manager_is_told(void **state)
{
    (void)state;
    struct engine_process e = {0};
    int manager = manager_socket();
    setenv("WATCHDOG_USEC", "200000", 1);
    engine_spawn(&e, tiny(), (const char *const[]){"--threads", "1", NULL});
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    hears(manager, "READY=1\nSTATUS=serving ");
    assert_true(engine_wait_ready(&e)); /* the line is there before the message */
    for (int i = 0; i < 5; i++)
        hears(manager, "WATCHDOG=1");
    kill(e.pid, SIGTERM);
    hears(manager, "STOPPING=1");
    assert_int_equal(engine_wait(&e), 0);
    close(manager);
}

/* Left over from a session: it is told, and no reason not to serve. */
static void a_service_manager_that_is_not_there(void **state)
{
    (void)state;
    struct engine_process e = {0};
    setenv("NOTIFY_SOCKET", "/nowhere/notify", 1);
    engine_start(&e, tiny(), "--threads", "1", NULL);
    unsetenv("NOTIFY_SOCKET");
    char *log = engine_log(&e);
    assert_non_null(strstr(log, "llmd: warning: the service manager's socket '/nowhere/notify'"));
    free(log);
    assert_int_equal(engine_stop(&e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_few_descriptors),
        cmocka_unit_test(locking_is_not_allowed),
        cmocka_unit_test(real_time_is_not_allowed),
        cmocka_unit_test(too_little_memory),
        cmocka_unit_test(shared_memory_is_full),
        cmocka_unit_test(cpus_that_are_not_there),
        cmocka_unit_test(a_configuration_is_checked),
        cmocka_unit_test(an_engine_runs_as_configured),
        cmocka_unit_test(threads_stay_on_their_cpus),
        cmocka_unit_test(real_time_for_those_who_compute),
        cmocka_unit_test(memory_is_locked),
        cmocka_unit_test(pages_are_told),
        cmocka_unit_test(the_kernels_are_told),
        cmocka_unit_test(the_log_has_levels),
        cmocka_unit_test(the_log_speaks_json),
        cmocka_unit_test(the_service_manager_is_told),
        cmocka_unit_test(a_service_manager_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
