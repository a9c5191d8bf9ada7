/* token_text.c - see token_text.h */
#include "token_text.h"

#include <errno.h>
#include <stdlib.h>

#include "../shm/vocab_text.h"

static void fill(struct token_text *t, const struct llm_vocab *image)
{
    size_t total = 0;
    for (uint32_t id = 0; id < t->n; id++) {
        if (vocab_class_of(image, id) != VOCAB_CONTROL)
            total += vocab_token_bytes(image, id, t->bytes + total);
        t->end[id] = (uint32_t)total; /* at most strings_bytes, to which u32 ends point */
    }
}

int token_text_create(struct token_text *t, const void *image, size_t bytes)
{
    const struct llm_vocab *v = image;
    *t = (struct token_text){0};
    if (llm_vocab_check(image, bytes))
        return LLM_EPROTO;
    t->n = v->n_tokens;
    t->bytes = malloc(v->strings_bytes + 1);
    t->end = malloc(t->n * sizeof *t->end);
    if (!t->bytes || !t->end) {
        token_text_destroy(t);
        return -ENOMEM;
    }
    fill(t, v);
    return 0;
}

void token_text_destroy(struct token_text *t)
{
    free(t->bytes);
    free(t->end);
    *t = (struct token_text){0};
}
