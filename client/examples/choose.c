/* choose.c - which of some continuations of a text the model finds the most likely: each label with
 * its log-probability, the best one marked.
 *
 *     choose INSTANCE 'Is Paris in France? Answer:' ' yes' ' no' ' perhaps'
 */
#include <llmclient.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1024 };

static void die(const char *what)
{
    fprintf(stderr, "choose: %s\n", what);
    exit(1);
}

static uint32_t tokens_of(const struct llm_tokenizer *t, const char *text, int32_t *tokens)
{
    long n = llm_tokenize(t, text, strlen(text), 0, tokens, TOKENS_MAX);
    if (n < 0 || n > TOKENS_MAX)
        die("a text cannot be tokenized, or is too long");
    return (uint32_t)n;
}

int main(int argc, char **argv)
{
    static int32_t prompt[TOKENS_MAX], of_label[LLM_CHOICES_MAX][TOKENS_MAX];
    struct llm_label labels[LLM_CHOICES_MAX];
    struct llm_choose_result result;
    struct llm_client *c;
    struct llm_tokenizer *t;
    struct llm_event e;
    uint64_t id;
    uint32_t n = argc > 3 ? (uint32_t)argc - 3 : 0;
    if (!n || n > LLM_CHOICES_MAX)
        die("usage: choose INSTANCE PROMPT LABEL...");
    if (llm_connect(&c, argv[1], NULL) < 0)
        die(llm_connect_error());
    if (llm_tokenizer_open(&t, c) < 0)
        die(llm_errmsg(c));

    uint32_t n_prompt = tokens_of(t, argv[2], prompt);
    for (uint32_t i = 0; i < n; i++) {
        labels[i].tokens = of_label[i];
        labels[i].n_tokens = tokens_of(t, argv[3 + i], of_label[i]);
    }
    if (llm_choose(c, prompt, n_prompt, labels, n, &id) < 0)
        die(llm_errmsg(c));
    llm_choose_begin(&result, id, n);
    int rc = 0;
    while (rc == 0) {
        if (llm_wait(c, &e, -1) < 0)
            die(llm_errmsg(c));
        rc = llm_choose_add(&result, &e);
    }
    if (rc < 0)
        die(llm_strerror(rc));
    for (uint32_t i = 0; i < n; i++)
        printf("%c %9.4f  %s\n", i == llm_choose_best(&result) ? '*' : ' ', result.logprob[i],
               argv[3 + i]);

    llm_tokenizer_close(t);
    llm_close(c);
    return 0;
}
