/* model.c - see model.h. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void learn_text(struct model *m, struct llm_client *c)
{
    if (llm_tokenizer_open(&m->tokenizer, c) < 0) {
        m->tokenizer = NULL;
        snprintf(m->why_no_text, sizeof m->why_no_text, "%s", llm_errmsg(c));
    }
}

static void learn_special(struct model *m, const struct llm_client *c)
{
    for (int i = LLM_BOS; i <= LLM_PAD && m->tokenizer; i++) {
        const char *text;
        int32_t token = llm_special_token(c, (enum llm_special)i);
        long bytes = token >= 0 ? llm_token_bytes(m->tokenizer, token, &text) : 0;
        if (bytes > 0 && (size_t)bytes < sizeof m->special[i])
            memcpy(m->special[i], text, (size_t)bytes);
    }
}

static bool learn_template(struct model *m, const struct llm_client *c)
{
    const char *source = "";
    size_t bytes = 0;
    if (llm_chat_template(c, &source, &bytes) < 0)
        bytes = 0;
    if (!(m->template_source = strndup(source, bytes)))
        return false;
    if (!bytes)
        snprintf(m->why_no_chat, sizeof m->why_no_chat,
                 "this model brings no chat template: use /v1/completions");
    else if (llm_template_parse(&m->template, source, bytes, m->why_no_chat,
                                sizeof m->why_no_chat) < 0)
        m->template = NULL;
    return true;
}

struct model *model_of_client(struct llm_client *c)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    atomic_init(&m->refs, 1);
    llm_get_limits(c, &m->limits);
    m->max_top_logprobs = llm_max_top_logprobs(c);
    memcpy(m->name, m->limits.model, sizeof m->name);
    m->name[sizeof m->name - 1] = 0;
    m->created = (int64_t)time(NULL);
    learn_text(m, c);
    learn_special(m, c);
    if (learn_template(m, c))
        return m;
    model_unref(m);
    return NULL;
}

struct model *model_ref(struct model *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void model_unref(struct model *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    llm_tokenizer_close(m->tokenizer);
    llm_template_free(m->template);
    free(m->template_source);
    free(m);
}
