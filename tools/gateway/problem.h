/* problem.h - why a request cannot be answered, and how OpenAI's API says so:
 *
 *     {"error": {"message": "...", "type": "...", "param": "max_tokens", "code": "..."}}
 *
 * The first problem of a request wins: the place that found it knows most.
 */
#ifndef LLMD_GATEWAY_PROBLEM_H
#define LLMD_GATEWAY_PROBLEM_H

#include "buffer.h"

struct problem {
    int status;             /* of HTTP; 0: there is none */
    uint32_t retry_after_s; /* 0: no such header */
    const char *code;       /* a literal, or NULL */
    char param[64];         /* "" : none */
    char message[600];
};

/* Records it and returns -1. param may be NULL. */
__attribute__((format(printf, 5, 6))) int problem_set(struct problem *p, int status,
                                                      const char *code, const char *param,
                                                      const char *format, ...);
/* 400 "invalid_value". */
#define problem_value(p, param, ...) problem_set(p, 400, "invalid_value", param, __VA_ARGS__)

int problem_memory(struct problem *p);

/* What libllmclient or the engine answered: `code` an enum llm_error or an errno value, `fits` the
 * number that would have fitted (0: none), `sentence` llm_errmsg's or NULL. */
int problem_of_engine(struct problem *p, int code, uint32_t fits, const char *sentence);

void problem_write(const struct problem *p, struct buffer *out);

#endif
