/* model.h - what an engine told of its model, for as long as somebody uses it: many threads read it,
 * nobody writes it. A new engine that differs brings a new one. */
#ifndef LLMD_GATEWAY_MODEL_H
#define LLMD_GATEWAY_MODEL_H

#include <stdatomic.h>

#include "../../client/llm_template.h"
#include "../../client/llmclient.h"

struct model {
    atomic_uint refs;
    char name[128]; /* what clients call it */
    struct llm_limits limits;
    uint32_t max_top_logprobs;
    int64_t created;                 /* seconds since 1970 */
    struct llm_tokenizer *tokenizer; /* NULL: `why_no_text` says why */
    struct llm_template *template;   /* NULL: `why_no_chat` */
    char *template_source;           /* with NUL; "" where there is none */
    char special[5][128];            /* by enum llm_special; "" : none */
    char why_no_text[256], why_no_chat[512];
};

/* One reference; NULL when out of memory. */
struct model *model_of_client(struct llm_client *c);
struct model *model_ref(struct model *m);
void model_unref(struct model *m); /* NULL is allowed */

#endif
