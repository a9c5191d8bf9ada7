/* test_examples.c - the programs in client/examples do what they say, against a small engine. */
#include "../../client/llmclient.h"
#include "../support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct engine_process engine;

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", NULL);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    return engine_stop(&engine);
}

static char *succeeds(const char *command)
{
    int status;
    char *out = run_command(&status, "%s", command);
    if (status)
        fail_msg("%s: status %d, said %s", command, status, out);
    return out;
}

/* ---- simple.c ---- */

static void simple_says_what_llmctl_says(void **state)
{
    (void)state;
    char command[2048];
    snprintf(command, sizeof command, "'%s' %s", built("client/examples/simple"), engine.instance);
    char *said = succeeds(command);
    snprintf(command, sizeof command, "'%s' -i %s complete -n 16 'The capital of France is'",
             built("llmctl"), engine.instance);
    char *expected = succeeds(command);
    assert_true(strlen(said) > 0);
    assert_int_equal(strncmp(expected, said, strlen(said)), 0);
    free(said);
    free(expected);
}

/* The header shows the same program, but for the instance. */
static void simple_is_the_head_example(void **state)
{
    (void)state;
    char *shown = succeeds("sed -n '/#include <llmclient.h>/,/^ [*] Build/p' client/llmclient.h | "
                           "sed -e '$d' -e 's/^ [*] \\{5\\}//' -e 's/^ [*]$//' "
                           "-e 's/int main(void)/int main(int argc, char **argv)/' "
                           "-e 's/\"default\"/argc > 1 ? argv[1] : \"default\"/' | sed -e '$d'");
    char *whole = succeeds("cat client/examples/simple.c");
    const char *program = strstr(whole, "#include");
    assert_non_null(program);
    assert_string_equal(program, shown);
    free(shown);
    free(whole);
}

/* ---- epoll.c ---- */

enum { PROMPTS = 400, TOKENS = 16 };

static void prompt_of(uint32_t number, int32_t tokens[3])
{
    for (uint32_t i = 0; i < 3; i++)
        tokens[i] = (int32_t)((number * 7 + i * 31) % 250 + 1);
}

/* What the library gives for that prompt. */
static uint32_t generate(struct llm_client *c, uint32_t number, int32_t tokens[TOKENS])
{
    int32_t prompt[3];
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event e;
    prompt_of(number, prompt);
    r.tokens = prompt, r.n_tokens = 3, r.max_tokens = TOKENS;
    assert_int_equal(llm_submit(c, &r, NULL), 0);
    uint32_t n = 0;
    do {
        assert_int_equal(llm_wait(c, &e, 60000), 1);
        assert_true(n + e.n_tokens <= TOKENS);
        memcpy(tokens + n, e.tokens, e.n_tokens * sizeof *tokens);
        n += e.n_tokens;
    } while (e.type == LLM_EVENT_TOKENS);
    return n;
}

/* The lines of one prompt, in their order, each "NUMBER TOKEN" and at last "NUMBER done". */
static void expect_lines(const char *said, uint32_t number, const int32_t *tokens, uint32_t n)
{
    char line[64];
    const char *at = said;
    for (uint32_t i = 0; i <= n; i++) {
        if (i < n)
            snprintf(line, sizeof line, "\n%u %d\n", number, tokens[i]);
        else
            snprintf(line, sizeof line, "\n%u done\n", number);
        at = strstr(at, line);
        if (!at)
            fail_msg("of prompt %u the line %u is missing:%s", number, i, line);
        at++;
    }
}

static void write_prompts(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (uint32_t i = 1; i <= PROMPTS; i++) {
        int32_t t[3];
        prompt_of(i, t);
        fprintf(f, "%d %d %d%s", t[0], t[1], t[2], i < PROMPTS ? "\n" : ""); /* a ragged end */
    }
    fclose(f);
}

/* More prompts than may be in flight at once: the loop waits for room as well as for tokens. */
static void epoll_serves_a_pipe(void **state)
{
    (void)state;
    char path[512], command[2048];
    snprintf(path, sizeof path, "%.400s/prompts", scratch_dir());
    write_prompts(path);
    snprintf(command, sizeof command, "echo; cat '%s' | timeout 300 '%s' %s", path,
             built("client/examples/epoll"), engine.instance);
    char *said = succeeds(command);
    struct llm_client *c;
    assert_int_equal(llm_connect(&c, engine.instance, NULL), 0);
    size_t lines = 1;
    for (uint32_t i = 1; i <= PROMPTS; i++) {
        int32_t tokens[TOKENS];
        uint32_t n = generate(c, i, tokens);
        expect_lines(said, i, tokens, n);
        lines += n + 1;
    }
    for (const char *p = said; (p = strchr(p, '\n')); p++)
        lines--;
    assert_int_equal(lines, 0);
    llm_close(c);
    free(said);
}

static void epoll_tells_of_a_refusal(void **state)
{
    (void)state;
    char command[2048];
    snprintf(command, sizeof command, "printf '1 2 3\\n5 99999999\\n\\n7\\n' | timeout 300 '%s' %s",
             built("client/examples/epoll"), engine.instance);
    char *said = succeeds(command);
    assert_non_null(strstr(said, "1 done\n"));
    assert_non_null(strstr(said, "2 refused: "));
    assert_non_null(strstr(said, "3 done\n"));
    free(said);
}

/* ---- session.c ---- */

/* "WORDS: N tokens", or fails. */
static unsigned tokens_after(const char *said, const char *words)
{
    const char *at = strstr(said, words);
    if (!at)
        fail_msg("'%s' is not in: %s", words, said);
    return (unsigned)strtoul(at + strlen(words), NULL, 10);
}

/* It is run beside what README shows before it, whose session stays open. */
static void session_takes_a_call(void **state)
{
    (void)state;
    char command[2048];
    snprintf(
        command, sizeof command,
        "key=$(sed -n 's/.*session append \\([^ ]*\\) .*/\\1/p' README.md) && test -n \"$key\" && "
        "'%s' -i %s session append \"$key\" ' good morning' 2>&1",
        built("llmctl"), engine.instance);
    free(succeeds(command));
    snprintf(command, sizeof command, "timeout 300 '%s' %s", built("client/examples/session"),
             engine.instance);
    char *said = succeeds(command);
    unsigned opened = tokens_after(said, "opened: ");
    unsigned spoken = tokens_after(said, "the caller has spoken: ");
    unsigned cut = tokens_after(said, "interrupted after 6 tokens of the answer: ");
    unsigned again = tokens_after(said, "interrupted after 12: ");
    assert_true(opened > 0 && spoken > opened && cut == spoken + 6 && again > cut + 12);
    assert_non_null(strstr(said, "closed\n"));
    char *once_more = succeeds(command); /* nothing of the first call is left */
    assert_string_equal(said, once_more);
    free(said), free(once_more);
}

/* ---- choose.c ---- */

/* Log-probability of the label behind the prompt, by a score of both. */
static double score(const char *prompt, const char *label)
{
    struct llm_client *c;
    struct llm_tokenizer *t;
    struct llm_request r = LLM_REQUEST_INIT;
    struct llm_event e;
    int32_t tokens[256];
    double sum = 0;
    assert_int_equal(llm_connect(&c, engine.instance, NULL), 0);
    assert_int_equal(llm_tokenizer_open(&t, c), 0);
    long n = llm_tokenize(t, prompt, strlen(prompt), 0, tokens, 256);
    long more = llm_tokenize(t, label, strlen(label), 0, tokens + n, (size_t)(256 - n));
    assert_true(n > 0 && more > 0 && n + more <= 256);
    r.op = LLM_OP_SCORE, r.tokens = tokens, r.n_tokens = (uint32_t)(n + more);
    assert_int_equal(llm_submit(c, &r, NULL), 0);
    while (llm_wait(c, &e, 60000) == 1 && e.type == LLM_EVENT_TOKENS)
        for (uint32_t i = 0; i < e.n_tokens; i++)
            if (e.position + i >= (uint32_t)n)
                sum += (double)e.logprobs[i];
    assert_int_equal(e.type, LLM_EVENT_DONE);
    llm_tokenizer_close(t);
    llm_close(c);
    return sum;
}

static void choose_agrees_with_scores(void **state)
{
    (void)state;
    static const char prompt[] = "The capital of France is";
    static const char *const labels[] = {" Paris", " a big town", " no"};
    char command[2048], expected[1024] = "";
    double sums[3];
    int best = 0;
    snprintf(command, sizeof command, "timeout 300 '%s' %s '%s' '%s' '%s' '%s'",
             built("client/examples/choose"), engine.instance, prompt, labels[0], labels[1],
             labels[2]);
    char *said = succeeds(command);
    for (int i = 0; i < 3; i++) {
        sums[i] = score(prompt, labels[i]);
        best = sums[i] > sums[best] ? i : best;
    }
    for (int i = 0; i < 3; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%c %9.4f  %s\n",
                 i == best ? '*' : ' ', sums[i], labels[i]);
    assert_string_equal(said, expected);
    free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple_says_what_llmctl_says),
        cmocka_unit_test(simple_is_the_head_example),
        cmocka_unit_test(epoll_serves_a_pipe),
        cmocka_unit_test(epoll_tells_of_a_refusal),
        cmocka_unit_test(session_takes_a_call),
        cmocka_unit_test(choose_agrees_with_scores),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
