/* support.h - what tests share: golden files, private instances of the engine, small helpers.
 *
 * Every engine that a test starts has an instance name and a runtime folder of its own (by pid), so
 * that test runs beside each other do not meet; engine_stop and the process's end leave nothing
 * behind.
 */
#ifndef LLMD_TESTS_SUPPORT_H
#define LLMD_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>
#include <jansson.h>

/* Path of a golden file: GOLDEN_DIR, default tests/golden. Static buffers, four at a time. */
const char *golden_path(const char *relative);
/* The whole file, gunzipped where only NAME.gz exists; malloc'ed, NUL-terminated beyond *bytes.
 * Fails the test if absent. */
char *golden_read(const char *relative, size_t *bytes);
json_t *golden_json(const char *relative);
/* Path of SmolLM2's GGUF: $LLMD_MODEL, else what tools/fetch-model.sh prints. */
const char *real_model_path(void);

/* Path of a built program: $B (default build) / name. */
const char *built(const char *name);

struct engine_process {
    pid_t pid;
    char instance[48];
    char log[512]; /* file with stdout and stderr */
    bool stopped;
};

/* Starts llmd on the model with more arguments (NULL-terminated list) and waits for its ready line.
 * Fails the test, showing the log, if it does not come. The runtime folder (LLMD_RUNTIME_DIR) of
 * this test process is set on the first use. */
void engine_start(struct engine_process *e, const char *model, ...);
/* The same without waiting or failing: for engines that shall refuse. */
void engine_spawn(struct engine_process *e, const char *model, const char *const *arguments);
bool engine_wait_ready(struct engine_process *e); /* false: it exited first */
/* SIGTERM, waits; returns the exit status (128 + signal where it was killed). */
int engine_stop(struct engine_process *e);
int engine_kill(struct engine_process *e); /* SIGKILL, waits */
int engine_wait(struct engine_process *e);
char *engine_log(const struct engine_process *e); /* malloc'ed */

/* llmctl status --json of the engine */
json_t *engine_status(const struct engine_process *e);
int64_t engine_figure(const struct engine_process *e, const char *key);

/* Runs a command line through the shell; stdout is returned (malloc'ed), the exit status stored. */
char *run_command(int *status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The test's own folder, removed at exit. */
const char *scratch_dir(void);

/* A deterministic generator for tests (xorshift64*). */
struct rnd {
    uint64_t state;
};
uint32_t rnd_u32(struct rnd *r);
uint32_t rnd_below(struct rnd *r, uint32_t n);
float rnd_float(struct rnd *r); /* [-1, 1) */

uint64_t test_now_ns(void);
bool test_exhaustive(void); /* make check-all */
bool test_sanitized(void);  /* built with a sanitizer: everything is several times slower */

/* Whether this CPU runs the kernels for AVX2, FMA and F16C, and for AVX-512 with VNNI. */
bool test_avx2(void);
bool test_avx512(void);

#endif
