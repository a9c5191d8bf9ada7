/* keys.h - API keys: who may ask, and how much.
 *
 *     # key                  limits, all optional
 *     sk-3f7a...             name=telephony requests=16 tokens=60000
 *
 * One key a line; `requests` is how many of its requests may run at the same time, `tokens` how many
 * (of prompts and answers together) it may use in a minute. '#' at the beginning of a
 * word begins a comment.
 *
 * The tokens of a minute are a bucket that fills steadily and holds one minute's: a request is let in
 * while it is not empty, and pays when it ends.
 */
#ifndef LLMD_GATEWAY_KEYS_H
#define LLMD_GATEWAY_KEYS_H

#include "problem.h"

struct keys;
struct key;

/* Reads the file. NULL after a message on standard error that names the line. */
struct keys *keys_load(const char *path);
void keys_free(struct keys *k); /* NULL is allowed */

/* The key of an Authorization header's value ("Bearer ..."); NULL after a problem (401). The time it
 * takes does not depend on how much of a key was right. */
struct key *keys_find(struct keys *k, const char *authorization, struct problem *problem);

/* Begins a request of the key; -1 after a problem (429) that says when to come back. */
int key_enter(struct key *k, uint64_t now_ns, struct problem *problem);
/* Ends it: so many tokens were used. */
void key_leave(struct key *k, uint64_t now_ns, uint64_t tokens);

#endif
