/* objects.h - the objects of OpenAI's API, as JSON text: completion, chat completion, their chunks. */
#ifndef LLMD_GATEWAY_OBJECTS_H
#define LLMD_GATEWAY_OBJECTS_H

#include "answer.h"

/* A token of the choice is added to its log-probabilities. */
void object_add_logprob(const struct call *c, struct choice *k, const struct token *token);

/* What the choice has to send now, as one event of the stream; what was written is taken out of it.
 * finish NULL: it goes on. */
void object_chunk(const struct call *c, struct choice *k, uint32_t index, struct buffer *out);
/* The chunk with the usage, behind all others. */
void object_usage_chunk(const struct call *c, struct buffer *out);
/* The whole answer. */
void object_answer(const struct call *c, struct buffer *out);

#endif
