/* session.c - sessions by name: each call is one request of the session's operations, checked and
 * sent by llm_submit. */
#include "handle.h"

uint64_t llm_session_key(const char *name)
{
    uint64_t h = 0xCBF29CE484222325ull;
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        h = (h ^ *p) * 0x100000001B3ull;
    return h ? h : 1;
}

static struct llm_request request(enum llm_op op, uint64_t key)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = op;
    r.session = key;
    return r;
}

int llm_session_open(struct llm_client *c, uint64_t key, const int32_t *tokens, uint32_t n,
                     uint32_t flags, uint64_t *id)
{
    struct llm_request r = request(LLM_OP_SESSION_OPEN, key);
    r.tokens = tokens, r.n_tokens = n, r.flags = flags;
    return llm_submit(c, &r, id);
}

int llm_session_append(struct llm_client *c, uint64_t key, const int32_t *tokens, uint32_t n,
                       uint64_t *id)
{
    return llm_session_replace(c, key, LLM_SESSION_ALL, tokens, n, id);
}

int llm_session_replace(struct llm_client *c, uint64_t key, uint64_t keep, const int32_t *tokens,
                        uint32_t n, uint64_t *id)
{
    struct llm_request r = request(LLM_OP_SESSION_APPEND, key);
    r.session_keep = keep, r.tokens = tokens, r.n_tokens = n;
    return llm_submit(c, &r, id);
}

int llm_session_rewind(struct llm_client *c, uint64_t key, uint64_t keep, uint64_t *id)
{
    return llm_session_replace(c, key, keep, NULL, 0, id);
}

int llm_session_interrupt(struct llm_client *c, uint64_t key, uint64_t keep, uint64_t *id)
{
    struct llm_request r = request(LLM_OP_SESSION_APPEND, key);
    r.session_keep = keep, r.flags = LLM_SQE_INTERRUPT;
    return llm_submit(c, &r, id);
}

int llm_session_fork(struct llm_client *c, uint64_t key, uint64_t new_key, uint64_t *id)
{
    struct llm_request r = request(LLM_OP_SESSION_FORK, key);
    r.session_to = new_key;
    return llm_submit(c, &r, id);
}

int llm_session_close(struct llm_client *c, uint64_t key, uint64_t *id)
{
    struct llm_request r = request(LLM_OP_SESSION_CLOSE, key);
    return llm_submit(c, &r, id);
}

int llm_prefix_pin(struct llm_client *c, uint64_t key, const int32_t *tokens, uint32_t n,
                   uint64_t *id)
{
    return llm_session_open(c, key, tokens, n, LLM_SQE_PIN, id);
}

int llm_prefix_unpin(struct llm_client *c, uint64_t key, uint64_t *id)
{
    return llm_session_close(c, key, id);
}
