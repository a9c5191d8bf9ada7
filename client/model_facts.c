/* model_facts.c - what the vocabulary image tells of conversations: template and special tokens. */
#include "../shm/vocab.h"
#include "internal.h"

static const struct llm_vocab *image_of(const struct llm_client *c)
{
    const void *image;
    size_t bytes;
    return client_vocabulary(c, &image, &bytes) < 0 ? NULL : image;
}

int llm_chat_template(const struct llm_client *c, const char **source, size_t *bytes)
{
    const struct llm_vocab *v = image_of(c);
    if (!v)
        return LLM_EPROTO;
    *source = (const char *)v + v->template_off;
    *bytes = v->template_bytes;
    return 0;
}

int32_t llm_special_token(const struct llm_client *c, enum llm_special which)
{
    const struct llm_vocab *v = image_of(c);
    if (!v)
        return -1;
    switch (which) {
    case LLM_BOS:
        return v->bos;
    case LLM_EOS:
        return v->eos;
    case LLM_EOT:
        return v->eot;
    case LLM_UNK:
        return v->unk;
    case LLM_PAD:
        return v->pad;
    }
    return -1;
}
