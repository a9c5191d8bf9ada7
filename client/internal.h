/* internal.h - what the parts of libllmclient share: the text part (client/text/) sees a handle
 * only through these two functions; the parts that own a handle include handle.h instead.
 */
#ifndef LLMD_CLIENT_INTERNAL_H
#define LLMD_CLIENT_INTERNAL_H

#include <stddef.h>

#include "llmclient.h"

/* The vocabulary image of shm/vocab.h that the engine published: mapped read-only, sealed against
 * writing and resizing, and already accepted by llm_vocab_check. It lives as long as the handle:
 * what outlives the handle copies it. Returns 0, or LLM_EPROTO if the handle has none. */
int client_vocabulary(const struct llm_client *c, const void **image, size_t *bytes);

/* Records a failure of this handle for llm_errcode and llm_errmsg: the code and one sentence that
 * says what was wrong and what to do. The latest failure wins. */
void client_fail(struct llm_client *c, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
