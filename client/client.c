/* client.c - the end of a handle, and what can be asked of it. Its beginning is connect.c. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "handle.h"

void client_unmap(struct mapping *m)
{
    if (m->at)
        munmap(m->at, m->bytes);
    m->at = NULL;
}

void llm_close(struct llm_client *c)
{
    if (!c)
        return;
    resume_destroy(c);
    attempt_undo(c); /* the socket's end is what tells the engine */
    if (c->descriptor >= 0)
        close(c->descriptor);
    inflight_destroy(&c->inflight);
    free(c);
}

void llm_get_limits(const struct llm_client *c, struct llm_limits *out)
{
    *out = c->limits;
}

uint32_t llm_max_top_logprobs(const struct llm_client *c)
{
    return c->ring.top;
}

void llm_set_spin_us(struct llm_client *c, uint32_t spin_us)
{
    c->spin_us = spin_us;
}

uint32_t llm_inflight(const struct llm_client *c)
{
    return c->owed;
}

int client_vocabulary(const struct llm_client *c, const void **image, size_t *bytes)
{
    *image = c->vocabulary.at;
    *bytes = c->vocabulary.bytes;
    return c->vocabulary.at ? 0 : LLM_EPROTO;
}
