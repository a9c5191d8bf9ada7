/* instance.h - one engine: the thread that owns the connection to it.
 *
 *   mailbox ---eventfd---.
 *   llm_fd --------------+--> epoll --> submit, poll events, answer.c
 *   sockets of calls ----'              (a client that hung up is noticed here)
 *
 * Invariants
 *   1. The llm_client is used by this thread alone.
 *   2. What waits for an engine is bounded: while there is none calls are refused (503); a full ring
 *      keeps at most INSTANCE_PENDING_MAX calls, the next ones are refused (429).
 *   3. The handle resumes: streams outlive an engine that dies and comes back. Only when that fails
 *      is a new one opened.
 */
#ifndef LLMD_GATEWAY_INSTANCE_H
#define LLMD_GATEWAY_INSTANCE_H

#include "call.h"

enum { INSTANCE_PENDING_MAX = 256, INSTANCE_INFLIGHT = 1024 };

/* 0, or negative after a message on standard error. */
int instance_start(struct instance **out, const char *name, uint32_t resume_timeout_ms);
/* Cancels what runs, answers it, ends the thread. Calls that are submitted later are refused. */
void instance_stop(struct instance *i);
/* When no connection is left. */
void instance_free(struct instance *i);
/* No new call is taken from now on. */
void instance_drain(struct instance *i);

const char *instance_name(const struct instance *i);
/* A reference to its model; NULL: it was never connected. */
struct model *instance_model(struct instance *i);
bool instance_connected(const struct instance *i);

/* Takes over a reference. The call ends in any case. */
void instance_submit(struct instance *i, struct call *c);
/* After call_leave returned true. */
void instance_notice(struct instance *i);

#endif
