/* test_old_client.c - a program that was built with the header and the library of ABI 1.0, kept as a
 * binary (tests/fixtures/old_client.c says how), gets from today's engine what today's library gets
 * for the same requests, line by line.
 */
#include "../../client/llmclient.h"
#include "../support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_MAX = 64, TOKENS = 12 };

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

static char *old_client_says(void)
{
    int status;
    free(run_command(&status,
                     "xz -dc tests/fixtures/old_client.xz >'%s/old_client' && "
                     "chmod 755 '%s/old_client'",
                     scratch_dir(), scratch_dir()));
    assert_int_equal(status, 0);
    char *said =
        run_command(&status, "timeout 60 '%s/old_client' %s", scratch_dir(), engine.instance);
    if (status)
        fail_msg("the old client: status %d, said %s", status, said);
    return said;
}

/* ---- the same requests, with today's library ---- */

static void run(FILE *out, struct llm_client *c, const char *name, const struct llm_request *r,
                bool cancel)
{
    uint64_t id;
    struct llm_event e;
    uint32_t owed = r->op == LLM_OP_GENERATE ? r->choices : 1;
    if (llm_submit(c, r, &id) < 0)
        fail_msg("%s", llm_errmsg(c));
    while (owed) {
        assert_int_equal(llm_wait(c, &e, 60000), 1);
        for (uint32_t i = 0; i < e.n_tokens && !cancel; i++)
            fprintf(out, "%s %u %u %d %.5f\n", name, e.choice, e.position + i, e.tokens[i],
                    (double)e.logprobs[i]);
        if (cancel && e.n_tokens)
            llm_cancel(c, id);
        if (e.type == LLM_EVENT_TOKENS)
            continue;
        owed--;
        fprintf(out, "%s %u ends: status %d finish %u\n", name, e.choice, e.status, e.finish);
    }
}

static void run_all(FILE *out, struct llm_client *c, const int32_t *prompt, uint32_t n)
{
    struct llm_request r = LLM_REQUEST_INIT, nop = LLM_REQUEST_INIT;
    nop.op = LLM_OP_NOP;
    run(out, c, "nop", &nop, false);
    r.tokens = prompt, r.n_tokens = n, r.max_tokens = TOKENS;
    r.flags = LLM_SQE_LOGPROBS | LLM_SQE_IGNORE_EOS, r.seed = 7;
    run(out, c, "greedy", &r, false);
    r.choices = 3, r.temperature = 0.8f, r.top_p = 0.9f;
    run(out, c, "sampled", &r, false);
    r.choices = 1, r.max_tokens = 200;
    run(out, c, "cancelled", &r, true);
    r.op = LLM_OP_SCORE;
    run(out, c, "scored", &r, false);
}

static char *todays_library_says(void)
{
    static const char text[] = "The capital of France is";
    struct llm_client *c;
    struct llm_tokenizer *t;
    int32_t prompt[PROMPT_MAX];
    char *said;
    size_t bytes;
    FILE *out = open_memstream(&said, &bytes);
    if (llm_connect(&c, engine.instance, NULL))
        fail_msg("%s", llm_connect_error());
    assert_int_equal(llm_tokenizer_open(&t, c), 0);
    long n = llm_tokenize(t, text, strlen(text), 0, prompt, PROMPT_MAX);
    assert_in_range(n, 2, PROMPT_MAX);
    run_all(out, c, prompt, (uint32_t)n);
    llm_tokenizer_close(t);
    llm_close(c);
    fclose(out);
    return said;
}

/* ---- the comparison ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Choices of one request may interleave in any way: the lines in the order of their text. And a
 * cancel may come too late. */
static uint32_t lines_of(char *said, char *lines[static 512])
{
    uint32_t n = 0;
    for (char *line = strtok(said, "\n"); line && n < 512; line = strtok(NULL, "\n"))
        lines[n++] = strcmp(line, "cancelled 0 ends: status 0 finish 2")
                         ? line
                         : (char *)"cancelled 0 ends: status 0 finish 3";
    qsort(lines, n, sizeof *lines, by_text);
    return n;
}

static void a_program_of_1_0_gets_the_same(void **state)
{
    (void)state;
    char *old = old_client_says(), *new = todays_library_says();
    char *old_lines[512], *new_lines[512];
    uint32_t n = lines_of(old, old_lines);
    assert_int_equal(n, lines_of(new, new_lines));
    assert_true(n > 4 * TOKENS + 8); /* nop, greedy, 3 sampled, cancelled, scored */
    for (uint32_t i = 0; i < n; i++)
        assert_string_equal(old_lines[i], new_lines[i]);
    free(old), free(new);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_of_1_0_gets_the_same),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
