/* engine_audit.c - see engine_rig.h. Everything is counted again from the sequences. */
#include "../../appliance/engine_parts.h"

#include "engine_rig.h"

#include <stdlib.h>

struct count {
    uint32_t *refs; /* (n_blocks) */
    uint32_t queued, followers, running, sessions, pinned, leased;
    uint64_t queue_tokens;
};

/* Who runs and speculates has an index of its own. */
static void audit_indices(const struct engine *e)
{
    const struct speculation *x = &e->schedule.speculation;
    uint32_t used = 0;
    for (uint32_t i = 0; i < e->table.max_requests; i++) {
        const struct sequence *s = &e->table.slots[i];
        bool wanted = x->n && s->op == LLM_OP_GENERATE && s->flags & LLM_SQE_SPECULATE;
        if (s->state == SEQUENCE_FREE)
            continue;
        assert_int_equal(s->lookup != NULL, sequence_running(s) && wanted);
        used += s->lookup != NULL;
        for (uint32_t k = 0; s->lookup && k < x->n_free; k++)
            assert_true(s->lookup != &x->indices[x->free_stack[k]]);
    }
    assert_int_equal(x->n - x->n_free, used);
}

/* Blocks that nothing needs: at most one of each sequence. */
static void audit_history(const struct sequence *s, const struct engine *e)
{
    assert_true(s->n_tokens <= e->config.max_model_len && s->n_computed <= s->n_tokens);
    assert_true(s->n_hashed <= s->n_computed / GPU_KV_BLOCK);
    assert_true(s->n_blocks >= kv_blocks_for(s->n_computed));
    assert_true(s->n_blocks <= kv_blocks_for(s->n_computed) + 1);
    assert_int_equal(s->spare, KV_NO_BLOCK); /* forks end with their step */
    assert_false(s->fork);
    assert_true(s->base + s->sent <= s->ready && s->ready <= s->n_tokens);
}

static void audit_lease(const struct sequence *s)
{
    bool pinned = s->session && s->session->pinned;
    bool leased = !list_empty(&s->lease);
    assert_int_equal(leased, s->n_blocks && !sequence_running(s) && !pinned);
    assert_true(s->state != SEQUENCE_ENDING || s->session || !s->n_blocks);
}

static void audit_state(const struct sequence *s, struct count *n)
{
    bool queued = !list_empty(&s->turn), follows = s->state == SEQUENCE_WAITING && s->leader;
    assert_int_equal(queued, s->state == SEQUENCE_WAITING && !s->leader);
    assert_int_equal(s->state == SEQUENCE_IDLE, !s->owner);
    assert_true(s->state != SEQUENCE_IDLE || s->session);
    n->followers += follows;
    n->running += sequence_running(s);
    n->queued += queued;
    if (queued)
        n->queue_tokens += sequence_inputs(s) - s->n_computed;
}

static void audit_sequence(const struct engine *e, const struct sequence *s, struct count *n)
{
    audit_history(s, e);
    audit_lease(s);
    n->leased += list_empty(&s->lease) ? 0 : s->n_blocks;
    audit_state(s, n);
    for (uint32_t i = 0; i < s->n_blocks; i++)
        n->refs[s->blocks[i]]++;
    if (!s->session)
        return;
    assert_ptr_equal(s->session->sequence, s);
    assert_int_equal(s->session->domain->id, s->domain->id);
    n->sessions++;
    n->pinned += s->session->pinned_blocks;
}

static void audit_domain(const struct engine *e, const struct domain *d)
{
    uint32_t blocks = 0, requests = 0, prompt_tokens = 0, sessions = 0, pinned = 0;
    for (uint32_t i = 0; i < e->table.max_requests; i++) {
        const struct sequence *s = &e->table.slots[i];
        if (s->state == SEQUENCE_FREE || s->domain != d)
            continue;
        blocks += s->n_blocks;
        requests += s->owner != NULL;
        prompt_tokens += list_empty(&s->turn) ? 0 : s->n_brought;
        sessions += s->session != NULL;
        pinned += s->session ? s->session->pinned_blocks : 0;
    }
    assert_int_equal(d->blocks, blocks);
    assert_int_equal(d->requests, requests);
    assert_int_equal(d->prompt_tokens, prompt_tokens);
    assert_int_equal(d->sessions, sessions);
    assert_int_equal(d->pinned_blocks, pinned);
    if (e->config.quota.kv_blocks)
        assert_true(blocks <= e->config.quota.kv_blocks);
}

static void audit_owner(const struct sequence_owner *o)
{
    uint32_t all = 0, news = 0, running = 0, unread = 0;
    for (const struct sequence *s = sequence_first(o); s; s = sequence_next(o, s)) {
        all++;
        news += !list_empty(&s->news);
        running += sequence_running(s);
        unread += sequence_unsent(s);
        assert_ptr_equal(s->owner, o);
        assert_true(list_empty(&s->news) == !sequence_unsent(s));
    }
    assert_int_equal(o->n_all, all);
    assert_int_equal(o->n_news, news);
    assert_int_equal(o->n_running, running);
    assert_int_equal(o->unread, unread);
}

static void audit_pool(const struct kv_pool *p, const uint32_t *refs)
{
    uint32_t n_free = 0;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        assert_int_equal(kv_pool_refs(p, b), refs[b]);
        n_free += refs[b] == 0;
    }
    assert_int_equal(p->n_free, n_free);
    assert_true(p->n_cached <= p->n_free);
}

void rig_audit(const struct rig *r)
{
    const struct engine *e = r->engine;
    struct count n = {.refs = calloc(r->config.n_blocks, sizeof *n.refs)};
    assert_non_null(n.refs);
    for (uint32_t i = 0; i < e->table.max_requests; i++) {
        const struct sequence *s = &e->table.slots[i];
        if (s->state == SEQUENCE_FREE)
            continue;
        audit_sequence(e, s, &n);
        audit_domain(e, s->domain);
        if (s->owner && sequence_first(s->owner) == s)
            audit_owner(s->owner);
    }
    audit_pool(&e->schedule.pool, n.refs);
    audit_indices(e);
    assert_int_equal(e->schedule.n_running, n.running);
    assert_int_equal(e->schedule.n_followers, n.followers);
    assert_int_equal(e->schedule.queue.n, n.queued);
    assert_int_equal(e->schedule.queue.tokens, n.queue_tokens);
    assert_int_equal(e->schedule.pinned_blocks, n.pinned);
    assert_int_equal(e->schedule.leased_blocks, n.leased);
    assert_int_equal(e->sessions.n, n.sessions);
    free(n.refs);
}

bool rig_engine_has(const struct rig *r, uint32_t domain, uint64_t key)
{
    return session_find(&r->engine->sessions, domain, key) != NULL;
}

void rig_restart(struct rig *r)
{
    r->engine->stopping = false;
}
