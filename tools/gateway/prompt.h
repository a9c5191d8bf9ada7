/* prompt.h - what a request says to token ids: texts and ids of a completion, messages of a chat. */
#ifndef LLMD_GATEWAY_PROMPT_H
#define LLMD_GATEWAY_PROMPT_H

#include "call.h"

/* Fills the call's prompts from its parameters. 0, or -1 after a problem. */
int prompt_make(struct call *c, struct problem *problem);

/* Token ids of a text, malloc'ed; NULL after a problem. flags: enum llm_tokenize_flags. */
int32_t *prompt_tokenize(const struct model *m, const char *text, size_t bytes, unsigned flags,
                         uint32_t *n, struct problem *problem);
/* An array of ids within the vocabulary; NULL after a problem. */
int32_t *prompt_ids(const struct model *m, const json_t *array, const char *param, uint32_t *n,
                    struct problem *problem);

/* chat.c: the text that the model's template makes of the messages, for llm_template_free_text; NULL
 * after a problem. *forced: what it already says of the answer (malloc'ed), or NULL. */
char *chat_render(const struct params *p, const struct model *m, size_t *bytes, char **forced,
                  struct problem *problem);

#endif
