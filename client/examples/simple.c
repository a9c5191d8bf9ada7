/* simple.c - one prompt, its text as it comes: the program at the head of llmclient.h, with the
 * engine's instance as an argument.
 *
 *     simple [INSTANCE]
 */
#include <llmclient.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct llm_client *c;
    int rc = llm_connect(&c, argc > 1 ? argv[1] : "default", NULL);
    if (rc < 0)
        return fprintf(stderr, "%s\n", llm_connect_error()), 1;

    struct llm_tokenizer *t;
    struct llm_detokenizer *d;
    int32_t prompt[64];
    if (llm_tokenizer_open(&t, c) < 0 || llm_detokenizer_open(&d, t, LLM_DETOK_UTF8) < 0)
        return fprintf(stderr, "%s\n", llm_errmsg(c)), 1;
    long n = llm_tokenize(t, "The capital of France is", 24, 0, prompt, 64);

    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = (uint32_t)n, r.max_tokens = 16;
    uint64_t id;
    if (n < 0 || llm_submit(c, &r, &id) < 0)
        return fprintf(stderr, "%s\n", llm_errmsg(c)), 1;

    struct llm_event e;
    do {
        if (llm_wait(c, &e, -1) < 0)
            return fprintf(stderr, "%s\n", llm_errmsg(c)), 1;
        for (unsigned i = 0; i < e.n_tokens; i++) {
            char text[256];
            long bytes = llm_detokenize(d, e.tokens[i], text, sizeof text);
            fwrite(text, 1, (size_t)(bytes > 0 ? bytes : 0), stdout);
        }
    } while (e.type == LLM_EVENT_TOKENS);
    putchar('\n');
    if (e.type == LLM_EVENT_ERROR)
        return fprintf(stderr, "%s\n", llm_strerror(e.status)), 1;

    llm_detokenizer_close(d);
    llm_tokenizer_close(t);
    llm_close(c);
}
