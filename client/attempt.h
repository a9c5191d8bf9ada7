/* attempt.h - connecting in steps that do not block: llm_connect takes them with waits between,
 * resume.c from poll to poll.
 *
 *     attempt_knock  ->  the socket is connected, the greeting is sent
 *     attempt_answer ->  ATTEMPT_WAIT until the answer is there; then the rings are mapped
 *
 * A failure leaves its sentence in llm_connect_error().
 */
#ifndef LLMD_CLIENT_ATTEMPT_H
#define LLMD_CLIENT_ATTEMPT_H

#include <sys/un.h>

#include "llmclient.h"

struct llm_client;

enum {
    ATTEMPT_WAIT = -2001, /* no answer yet: the socket becomes readable with it */
    ATTEMPT_AGAIN = -2000 /* the engine's door is full, or it closed without an answer */
};

/* What llm_connect was asked for, without pointers into the caller's memory. */
struct wish {
    struct llm_options options; /* its `name` is NULL: */
    char instance[LLM_INSTANCE_MAX + 1], name[64];
    char directory[256], path[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

/* c->socket is -1 before, and again after a failure. 0, ATTEMPT_AGAIN, or a code. */
int attempt_knock(struct llm_client *c, const struct wish *w);

/* 0: rings, limits, mappings, socket and bell of `c` are set. After another failure than
 * ATTEMPT_WAIT attempt_undo takes back what there is. */
int attempt_answer(struct llm_client *c, const struct wish *w);
void attempt_undo(struct llm_client *c);

#endif
