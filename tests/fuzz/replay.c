/* replay.c - runs a fuzzer over files instead of libFuzzer: `make check` links it with every
 * fuzz_NAME.c, under ASan and UBSan, and each file of tests/fuzz/corpus/NAME is one test.
 *
 *     build-asan/tests/fuzz/fuzz_gguf             its corpus
 *     build-asan/tests/fuzz/fuzz_gguf FILE...     just these: what a `make fuzz` has found
 *
 * A finding ends the program (the fuzzers abort); the last line `[ RUN      ]` names the file.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES_MAX = 1000 };

static char *paths[FILES_MAX];
static size_t n_paths;

/* The bytes in a block of exactly their size: reading past them is found. */
static uint8_t *read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s: %s", path, strerror(errno));
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long size = ftell(f);
    assert_true(size >= 0);
    rewind(f);
    uint8_t *data = malloc(size ? (size_t)size : 1);
    assert_non_null(data);
    *bytes = fread(data, 1, (size_t)size, f);
    assert_int_equal(*bytes, size);
    fclose(f);
    return data;
}

static void replay_one(void **state)
{
    size_t bytes;
    uint8_t *data = read_file(*state, &bytes);
    if (!bytes)
        data = realloc(data, 1);
    assert_int_equal(LLVMFuzzerTestOneInput(data, bytes), 0);
    free(data);
}

static void add_path(const char *folder, const char *name)
{
    size_t room = strlen(folder) + strlen(name) + 2;
    if (n_paths == FILES_MAX || !(paths[n_paths] = malloc(room))) {
        fprintf(stderr, "replay: more than %d files\n", FILES_MAX);
        exit(2);
    }
    snprintf(paths[n_paths++], room, "%s%s%s", folder, *folder ? "/" : "", name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A fuzzer without a corpus has tested nothing: that is a failure. */
static void list_corpus(const char *fuzzer)
{
    char folder[256];
    const char *name = strncmp(fuzzer, "fuzz_", 5) ? fuzzer : fuzzer + 5;
    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%.200s", name);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            add_path(folder, e->d_name);
    if (d)
        closedir(d);
    if (!n_paths) {
        fprintf(stderr, "replay: no files in %s\n", folder);
        exit(2);
    }
    qsort(paths, n_paths, sizeof *paths, by_name);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[FILES_MAX];
    const char *fuzzer = base_name(argv[0]);
    for (int i = 1; i < argc; i++)
        add_path("", argv[i]);
    if (argc < 2)
        list_corpus(fuzzer);
    for (size_t i = 0; i < n_paths; i++)
        tests[i] = (struct CMUnitTest){
            .name = base_name(paths[i]), .test_func = replay_one, .initial_state = paths[i]};
    int failed = _cmocka_run_group_tests(fuzzer, tests, n_paths, NULL, NULL);
    for (size_t i = 0; i < n_paths; i++)
        free(paths[i]);
    return failed;
}
