/* session.c - a telephone call: words are appended while the caller speaks, the recognizer corrects
 * itself, the answer is generated from what is there already, and the caller interrupts it.
 *
 *     session [INSTANCE]
 */
#include <llmclient.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct llm_client *c;
static struct llm_tokenizer *tokenizer;

static void die(const char *what)
{
    fprintf(stderr, "session: %s\n", what);
    exit(1);
}

static uint32_t tokens_of(const char *text, int32_t tokens[256])
{
    long n = llm_tokenize(tokenizer, text, strlen(text), 0, tokens, 256);
    if (n < 0 || n > 256)
        die("the text cannot be tokenized");
    return (uint32_t)n;
}

static struct llm_event next_event(void)
{
    struct llm_event e;
    if (llm_wait(c, &e, 30000) != 1)
        die(llm_errmsg(c));
    if (e.type == LLM_EVENT_ERROR)
        die(llm_strerror(e.status));
    return e;
}

/* Waits for a session's operation: how many tokens the session has then. */
static uint32_t length_after(int rc, const uint64_t *id)
{
    if (rc < 0)
        die(llm_errmsg(c));
    struct llm_event e;
    do
        e = next_event();
    while (e.id != *id);
    return e.position;
}

static uint32_t append(uint64_t call, const char *words)
{
    int32_t tokens[256];
    uint32_t n = tokens_of(words, tokens);
    uint64_t id;
    return length_after(llm_session_append(c, call, tokens, n, &id), &id);
}

static uint32_t replace(uint64_t call, uint32_t keep, const char *words)
{
    int32_t tokens[256];
    uint32_t n = tokens_of(words, tokens);
    uint64_t id;
    return length_after(llm_session_replace(c, call, keep, tokens, n, &id), &id);
}

/* Generates on the session; after `hear` tokens the caller interrupts: what was generated beyond
 * them is forgotten. Returns the session's length. */
static uint32_t answer(uint64_t call, uint32_t length, uint32_t hear)
{
    struct llm_request r = LLM_REQUEST_INIT;
    uint64_t id, interrupt;
    uint32_t heard = 0;
    r.session = call, r.max_tokens = 40, r.flags = LLM_SQE_IGNORE_EOS;
    r.max_itl_us = 200000;
    if (llm_submit(c, &r, &id) < 0)
        die(llm_errmsg(c));
    while (heard < hear)
        heard += next_event().n_tokens;
    if (llm_session_interrupt(c, call, length + hear, &interrupt) < 0)
        die(llm_errmsg(c));
    for (int finals = 0; finals < 2;) { /* of the answer, which was cut off, and of the interrupt */
        struct llm_event e = next_event();
        finals += e.type == LLM_EVENT_DONE;
        if (e.type == LLM_EVENT_DONE && e.id == interrupt)
            length = e.position;
    }
    return length;
}

int main(int argc, char **argv)
{
    uint64_t call = llm_session_key("bakery-example"), id;
    int32_t tokens[256];
    if (llm_connect(&c, argc > 1 ? argv[1] : "default", NULL) < 0)
        die(llm_connect_error());
    if (llm_tokenizer_open(&tokenizer, c) < 0)
        die(llm_errmsg(c));

    uint32_t n = tokens_of("You answer the telephone of a bakery.\nCaller:", tokens);
    uint32_t length = length_after(llm_session_open(c, call, tokens, n, 0, &id), &id);
    printf("opened: %u tokens\n", length);
    append(call, " Hello,");
    uint32_t sure = append(call, " do you have");
    append(call, " dead");
    length = replace(call, sure, " bread today?\nBakery:"); /* it was heard better now */
    printf("the caller has spoken: %u tokens\n", length);
    length = answer(call, length, 6);
    printf("interrupted after 6 tokens of the answer: %u tokens\n", length);
    length = append(call, "\nCaller: And cake?\nBakery:");
    length = answer(call, length, 12);
    printf("interrupted after 12: %u tokens\n", length);
    length_after(llm_session_close(c, call, &id), &id);
    printf("closed\n");

    llm_tokenizer_close(tokenizer);
    llm_close(c);
    return 0;
}
