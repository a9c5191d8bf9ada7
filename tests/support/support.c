/* support.c - see support.h. */
#include "support.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

/* ---- files ---- */

const char *golden_path(const char *relative)
{
    static char paths[4][1024];
    static unsigned turn;
    const char *dir = getenv("GOLDEN_DIR");
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", dir && *dir ? dir : "tests/golden", relative);
    return path;
}

char *golden_read(const char *relative, size_t *bytes)
{
    char path[1100];
    snprintf(path, sizeof path, "%s", golden_path(relative));
    if (access(path, R_OK))
        snprintf(path, sizeof path, "%s.gz", golden_path(relative));
    gzFile f = gzopen(path, "rb"); /* reads plain files too */
    if (!f)
        fail_msg("no golden file %s", path);
    size_t n = 0, room = 1 << 16;
    char *data = malloc(room);
    for (;;) {
        int got = gzread(f, data + n, (unsigned)(room - n - 1));
        if (got < 0)
            fail_msg("cannot read %s", path);
        if (!got)
            break;
        n += (size_t)got;
        if (room - n < 2)
            data = realloc(data, room *= 2);
    }
    gzclose(f);
    data[n] = 0;
    if (bytes)
        *bytes = n;
    return data;
}

json_t *golden_json(const char *relative)
{
    size_t bytes;
    char *text = golden_read(relative, &bytes);
    json_error_t error;
    json_t *v = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    if (!v)
        fail_msg("%s: %s", relative, error.text);
    free(text);
    return v;
}

const char *real_model_path(void)
{
    static char path[1024];
    const char *given = getenv("LLMD_MODEL");
    if (given && *given)
        return given;
    if (!*path) {
        int status;
        char *out = run_command(&status, "sh tools/fetch-model.sh");
        assert_int_equal(status, 0);
        snprintf(path, sizeof path, "%.*s", (int)strcspn(out, "\n"), out);
        free(out);
    }
    return path;
}

const char *built(const char *name)
{
    static char paths[4][1024];
    static unsigned turn;
    const char *b = getenv("B");
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", b && *b ? b : "build", name);
    return path;
}

/* ---- a folder of the test's own ---- */

static char scratch[256];
static pid_t scratch_owner;

static int remove_one(const char *path, const struct stat *s, int flag, struct FTW *ftw)
{
    (void)s, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_scratch(void)
{
    if (getpid() == scratch_owner)
        nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_dir(void)
{
    if (!*scratch) {
        const char *tmp = getenv("TMPDIR");
        snprintf(scratch, sizeof scratch, "%.200s/llmd-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        assert_non_null(mkdtemp(scratch));
        scratch_owner = getpid();
        setenv("LLMD_RUNTIME_DIR", scratch, 1);
        atexit(remove_scratch);
    }
    return scratch;
}

/* ---- engines ---- */

enum { ENGINES_MAX = 64 };

/* Every engine that this process started. At exit what still runs is killed, and the boards of the
 * killed ones go: they outlive their engines, for the post-mortem. */
static struct {
    pid_t pid; /* 0: has ended */
    char instance[48];
} engines[ENGINES_MAX];
static pid_t engines_owner;

static void clean_up_engines(void)
{
    if (getpid() != engines_owner)
        return;
    for (size_t i = 0; i < ENGINES_MAX && *engines[i].instance; i++) {
        if (engines[i].pid) {
            kill(engines[i].pid, SIGKILL);
            waitpid(engines[i].pid, NULL, 0);
        }
        char name[64];
        snprintf(name, sizeof name, "/llmd.%s", engines[i].instance);
        shm_unlink(name);
    }
}

static void remember(const struct engine_process *e)
{
    if (!engines_owner)
        atexit(clean_up_engines);
    engines_owner = getpid();
    size_t i = 0;
    while (i < ENGINES_MAX && *engines[i].instance)
        i++;
    if (i == ENGINES_MAX)
        fail_msg("too many engines in one test program");
    engines[i].pid = e->pid;
    memcpy(engines[i].instance, e->instance, sizeof engines[i].instance);
}

static void forget(pid_t pid)
{
    for (size_t i = 0; i < ENGINES_MAX; i++)
        if (engines[i].pid == pid)
            engines[i].pid = 0;
}

void engine_spawn(struct engine_process *e, const char *model, const char *const *arguments)
{
    static unsigned count;
    const char *dir = scratch_dir();
    if (!*e->instance)
        snprintf(e->instance, sizeof e->instance, "t%d-%u", (int)getpid(), count);
    snprintf(e->log, sizeof e->log, "%.200s/%s-%u.log", dir, e->instance, count++);
    e->stopped = false;
    const char *argv[64] = {built("llmd"), "--model", model, "--instance", e->instance};
    size_t n = 5;
    for (; arguments && *arguments && n < 63; arguments++)
        argv[n++] = *arguments;
    fflush(NULL);
    pid_t test = getpid();
    e->pid = fork();
    assert_true(e->pid >= 0);
    if (!e->pid) {
        /* a test that crashes runs no exit handler: its engines end with it all the same */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != test)
            _exit(125);
        if (!freopen(e->log, "w", stdout) || dup2(1, 2) < 0)
            _exit(126);
        execv(argv[0], (char *const *)argv);
        fprintf(stderr, "cannot run %s: %s\n", argv[0], strerror(errno));
        fflush(stderr);
        _exit(127);
    }
    remember(e);
}

char *engine_log(const struct engine_process *e)
{
    size_t used = 0, room = 1 << 16;
    char *text = malloc(room);
    FILE *f = fopen(e->log, "rb"); /* the engine's process may not have come so far */
    for (size_t got; f && (got = fread(text + used, 1, room - used - 1, f)) > 0;) {
        used += got;
        if (room - used < 2)
            text = realloc(text, room *= 2);
    }
    if (f)
        fclose(f);
    text[used] = 0;
    return text;
}

bool engine_wait_ready(struct engine_process *e)
{
    for (;;) {
        char *log = engine_log(e);
        bool ready = strstr(log, "ready");
        free(log);
        if (ready)
            return true;
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)e->pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid)
            return false;
        nanosleep(&(struct timespec){0, 5000000},
                  NULL); /* polls a file that another process writes */
    }
}

void engine_start(struct engine_process *e, const char *model, ...)
{
    const char *arguments[48];
    size_t n = 0;
    va_list args;
    va_start(args, model);
    while (n < 47 && (arguments[n] = va_arg(args, const char *)))
        n++;
    va_end(args);
    arguments[n] = NULL;
    engine_spawn(e, model, arguments);
    if (!engine_wait_ready(e))
        fail_msg("the engine did not start:\n%s", engine_log(e));
}

int engine_wait(struct engine_process *e)
{
    int status;
    assert_int_equal(waitpid(e->pid, &status, 0), e->pid);
    forget(e->pid);
    e->stopped = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int engine_stop(struct engine_process *e)
{
    kill(e->pid, SIGTERM);
    return engine_wait(e);
}

int engine_kill(struct engine_process *e)
{
    kill(e->pid, SIGKILL);
    return engine_wait(e);
}

json_t *engine_status(const struct engine_process *e)
{
    int status;
    char *text = run_command(&status, "'%s' -i %s status --json", built("llmctl"), e->instance);
    json_error_t error;
    json_t *v = json_loads(text, 0, &error);
    if (status || !v)
        fail_msg("status failed with %d: %s", status, text);
    free(text);
    return v;
}

int64_t engine_figure(const struct engine_process *e, const char *key)
{
    json_t *s = engine_status(e);
    json_t *v = json_object_get(s, key);
    if (!json_is_integer(v))
        fail_msg("status has no figure %s", key);
    int64_t figure = json_integer_value(v);
    json_decref(s);
    return figure;
}

char *run_command(int *status, const char *format, ...)
{
    char command[8192];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_true(n > 0 && (size_t)n < sizeof command);
    fflush(NULL);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    size_t used = 0, room = 65536;
    char *out = malloc(room);
    for (size_t got; (got = fread(out + used, 1, room - used - 1, p)) > 0;) {
        used += got;
        if (room - used < 2)
            out = realloc(out, room *= 2);
    }
    out[used] = 0;
    int rc = pclose(p);
    *status = WIFEXITED(rc) ? WEXITSTATUS(rc) : 128 + WTERMSIG(rc);
    return out;
}

/* ---- numbers ---- */

uint32_t rnd_u32(struct rnd *r)
{
    if (!r->state)
        r->state = 0x9e3779b97f4a7c15u;
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return (uint32_t)((r->state * 0x2545f4914f6cdd1du) >> 32);
}

uint32_t rnd_below(struct rnd *r, uint32_t n)
{
    return (uint32_t)((uint64_t)rnd_u32(r) * n >> 32);
}

float rnd_float(struct rnd *r)
{
    return (float)(int32_t)rnd_u32(r) * 0x1p-31f;
}

uint64_t test_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool test_exhaustive(void)
{
    const char *v = getenv("LLMD_EXHAUSTIVE");
    return v && *v && strcmp(v, "0");
}

bool test_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

#if defined(__x86_64__)
bool test_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool test_avx512(void)
{
    return test_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#else
bool test_avx2(void)
{
    return false;
}
bool test_avx512(void)
{
    return false;
}
#endif
