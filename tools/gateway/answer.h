/* answer.h - from the engine's events to the answer's text: tokens become text, log-probabilities,
 * tool calls; then chunks of a stream or one object.
 *
 * One definition of a token that counts: every token that was delivered, but for the end token that
 * ended the choice. So completion_tokens is the number of entries in logprobs, and their bytes put
 * together are the answer (or more than it, where a stop string ends within a token).
 *
 * All of it runs on the thread of the call's instance.
 */
#ifndef LLMD_GATEWAY_ANSWER_H
#define LLMD_GATEWAY_ANSWER_H

#include "call.h"
#include "tools.h"

/* Log-probabilities as JSON that is being put together: for chat the array `content`, for
 * completions the four arrays of the older object. Elements only, with commas between. */
struct logprobs {
    uint32_t n;
    struct buffer content;
    struct buffer tokens, values, tops, offsets;
};

/* A token as it came. */
struct token {
    int32_t id; /* -1: none */
    float logprob;
    uint32_t n_top;
    struct llm_candidate top[PARAMS_TOP_MAX];
};

struct choice {
    struct llm_detokenizer *detokenizer;
    struct buffer text; /* whole, or of a stream what is not sent yet */
    struct logprobs logprobs;
    struct tool_parser tools;
    struct buffer calls;     /* elements of tool_calls, as text */
    struct buffer arguments; /* of the call begun last, not in `calls` yet */
    struct token held;       /* may be the end token, or one that a stop string cuts */
    uint32_t n_tokens;       /* that count */
    size_t bytes;            /* in the buffers, as call.answer_bytes has it */
    size_t characters;       /* of the tokens so far: text_offset */
    const char *finish;      /* NULL: it goes on */
    bool begun;              /* its first chunk was sent */
};

/* Prepares the choices. 0, or -1 after a problem. */
int answer_begin(struct call *c, struct problem *problem);
void answer_free(struct call *c);

/* Takes an event of the choice (numbered over all prompts). What is to be sent of a stream is put
 * into `out`. True: the choice is over with it; its later events say nothing. */
bool answer_event(struct call *c, const struct llm_client *client, uint32_t choice,
                  const struct llm_event *e, struct buffer *out);
/* What has come is more than one answer may have. */
bool answer_too_large(const struct call *c);
/* Takes an event of what scores a prompt; it goes before all of answer_event. */
void answer_score(struct call *c, uint32_t prompt, const struct llm_event *e);
/* All prompts are scored, and nothing is to be generated: ends the choices. */
void answer_scored(struct call *c, struct buffer *out);
/* Behind the last final: the object, or the end of the stream. */
void answer_finish(struct call *c, struct buffer *out);
/* The end of a stream that cannot go on. */
void answer_fail(struct call *c, const struct problem *problem, struct buffer *out);

#endif
