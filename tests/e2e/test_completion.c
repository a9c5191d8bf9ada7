/* test_completion.c - what bash offers at a TAB, for command lines cut into words as bash does. */
#include "../support/installed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Completes the last of the words; the offers come sorted, one a line. */
static char *offers(const char *program, const char *words)
{
    return succeeds(
        "bash -c '. etc/completion/%s; set -- %s; COMP_WORDS=(\"%s\" \"$@\"); "
        "COMP_CWORD=$#; _%s \"%s\" \"${COMP_WORDS[COMP_CWORD]}\" "
        "\"${COMP_WORDS[COMP_CWORD-1]}\"; printf \"%%s\\n\" \"${COMPREPLY[@]}\"' | sort",
        program, words, built(program), program, built(program));
}

static void offer(const char *program, const char *words, const char *want)
{
    char *got = offers(program, words);
    if (strcmp(got, want))
        fail_msg("%s %s: offered\n%sinstead of\n%s", program, words, got, want);
    free(got);
}

static bool offers_word(const char *program, const char *words, const char *word)
{
    char *got = offers(program, words), line[256], text[8192];
    snprintf(line, sizeof line, "\n%s\n", word);
    snprintf(text, sizeof text, "\n%.8000s", got);
    free(got);
    return strstr(text, line);
}

static void options_of_llmd(void **state)
{
    (void)state;
    offer("llmd", "--max-num", "--max-num-batched-tokens\n--max-num-seqs\n");
    assert_true(offers_word("llmd", "\"\"", "--model"));
    assert_true(offers_word("llmd", "--threads 2 \"\"", "--model"));
}

static void values_of_llmd(void **state)
{
    (void)state;
    offer("llmd", "--kv-cache-dtype \"\"", "f16\nf32\nint8\n");
    offer("llmd", "--kv-cache-dtype = f3", "f32\n");
    offer("llmd", "--kv-cache-dtype =", "f16\nf32\nint8\n");
    offer("llmd", "--threads \"\"", "\n");
}

static void files(void **state)
{
    (void)state;
    free(succeeds("mkdir -p '%s/models' && touch '%s/models/a.gguf' '%s/models/b.txt'",
                  scratch_dir(), scratch_dir(), scratch_dir()));
    char words[600], want[600];
    snprintf(words, sizeof words, "--model %s/models/", scratch_dir());
    snprintf(want, sizeof want, "%s/models/a.gguf\n", scratch_dir());
    offer("llmd", words, want);
    snprintf(words, sizeof words, "complete --prompt-file %s/models/b", scratch_dir());
    snprintf(want, sizeof want, "%s/models/b.txt\n", scratch_dir());
    offer("llmctl", words, want);
}

static void commands_of_llmctl(void **state)
{
    (void)state;
    offer("llmctl", "stat", "status\n");
    offer("llmctl", "-i demo compl", "complete\n");
    offer("llmctl", "--instance = demo compl", "complete\n");
    assert_true(offers_word("llmctl", "complete --", "--max-tokens") ||
                offers_word("llmctl", "complete --", "--temperature"));
    assert_true(offers_word("llmctl", "-i demo score --", "--json"));
    assert_false(offers_word("llmctl", "-i demo score --", "--temperature"));
    offer("llmctl", "complete --deadl", "--deadline-ms\n");
    offer("llmctl", "serve --max-num-s", "--max-num-seqs\n");
    assert_true(offers_word("llmctl", "serve --", "--api-key"));
    assert_true(offers_word("llmctl", "plan --requests", "--requests/s"));
}

static void verbs_of_a_session(void **state)
{
    (void)state;
    offer("llmctl", "session \"\"", "append\nclose\nfork\nopen\nreplace\nrewind\n");
    offer("llmctl", "-i demo session re", "replace\nrewind\n");
    offer("llmctl", "session append --ke", "--keep\n");
}

static int make_socket(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_true(strlen(path) < sizeof a.sun_path);
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a));
    return fd;
}

/* Instances are the sockets of the runtime directory; what a stranger calls a file is not run. */
static void instances(void **state)
{
    (void)state;
    static const char *const names[] = {"one", "two", "$(touch pwned)"};
    char path[256];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%.100s/%s.sock", scratch_dir(), names[i]);
        close(make_socket(path));
    }
    offer("llmctl", "-i \"\"", "one\ntwo\n");
    offer("llmctl", "--instance = t", "two\n");
    assert_int_not_equal(access("pwned", F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_llmd),
        cmocka_unit_test(values_of_llmd),
        cmocka_unit_test(files),
        cmocka_unit_test(commands_of_llmctl),
        cmocka_unit_test(verbs_of_a_session),
        cmocka_unit_test(instances),
    };
    return cmocka_run_group_tests_name("completion", tests, NULL, NULL);
}
