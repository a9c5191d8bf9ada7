/* schedule_blocks.c - see schedule.h: blocks taken, shared, found, leased, given back. */
#include <assert.h>
#include <string.h>

#include "schedule_parts.h"
#include "session.h"

/* ---- leases ---- */

void schedule_keep_lease(struct schedule *c, struct sequence *s)
{
    assert(!sequence_running(s) || !s->rows);
    bool pinned = s->session && s->session->pinned;
    schedule_end_lease(c, s);
    if (!s->n_blocks || pinned)
        return;
    list_insert_before(&c->leases, &s->lease);
    c->leased_blocks += s->n_blocks;
}

void schedule_end_lease(struct schedule *c, struct sequence *s)
{
    if (list_empty(&s->lease))
        return;
    list_remove(&s->lease);
    c->leased_blocks -= s->n_blocks;
}

/* What it had computed is to be computed again. */
static void forget_computed(struct schedule *c, struct sequence *s, uint32_t left)
{
    if (s->state == SEQUENCE_WAITING && !list_empty(&s->turn))
        c->queue.tokens += s->n_computed - left;
    s->n_computed = left;
    if (s->n_hashed > left / GPU_KV_BLOCK)
        s->n_hashed = left / GPU_KV_BLOCK;
}

static void give_back(struct schedule *c, struct sequence *s, uint32_t keep)
{
    bool leased = !list_empty(&s->lease);
    while (s->n_blocks > keep) {
        kv_pool_unref(&c->pool, s->blocks[--s->n_blocks]);
        s->domain->blocks--;
        c->leased_blocks -= leased;
    }
}

void schedule_release_blocks(struct schedule *c, struct sequence *s)
{
    schedule_end_lease(c, s);
    give_back(c, s, 0);
    if (s->spare != KV_NO_BLOCK) {
        kv_pool_unref(&c->pool, s->spare);
        s->domain->blocks--;
    }
    s->domain->blocks -= s->n_promised;
    s->n_promised = 0;
    s->spare = KV_NO_BLOCK;
    if (s->fork)
        s->leader = NULL;
    s->fork = false;
    forget_computed(c, s, 0);
}

bool schedule_drop_lease(struct schedule *c, const struct domain *domain)
{
    LIST_EACH (at, &c->leases) {
        struct sequence *s = LIST_OF(at, struct sequence, lease);
        if (domain && s->domain != domain)
            continue;
        if (s->session)
            STATS_ADD(c->stats, session_evictions, 1);
        schedule_release_blocks(c, s);
        return true;
    }
    return false;
}

void schedule_keep_quota(struct schedule *c, const struct domain *d)
{
    uint32_t quota = c->config->quota.kv_blocks;
    while (quota && d->blocks > quota && schedule_drop_lease(c, d))
        ;
}

void schedule_pin(struct schedule *c, struct sequence *s, bool pinned)
{
    s->session->pinned = pinned;
    schedule_keep_lease(c, s);
}

void schedule_cut(struct schedule *c, struct sequence *s, uint32_t n)
{
    if (n < s->n_computed)
        forget_computed(c, s, n);
    give_back(c, s, kv_blocks_for(s->n_computed));
    if (!s->n_blocks)
        schedule_end_lease(c, s);
}

void schedule_share(struct schedule *c, struct sequence *to, const struct sequence *from,
                    uint32_t n)
{
    assert(!to->n_blocks && !to->n_computed);
    if (n > from->n_computed)
        n = from->n_computed;
    to->n_computed = n;
    to->n_hashed = from->n_hashed < n / GPU_KV_BLOCK ? from->n_hashed : n / GPU_KV_BLOCK;
    memcpy(to->hashes, from->hashes, to->n_hashed * sizeof *to->hashes);
    for (; to->n_blocks < kv_blocks_for(n); to->n_blocks++) {
        kv_pool_ref(&c->pool, from->blocks[to->n_blocks]);
        to->blocks[to->n_blocks] = from->blocks[to->n_blocks];
        to->domain->blocks++;
    }
    if (!sequence_running(to))
        schedule_keep_lease(c, to);
    schedule_keep_quota(c, to->domain);
}

/* ---- taking ---- */

static uint32_t take_any(struct schedule *c)
{
    uint32_t block = kv_pool_alloc(&c->pool);
    while (block == KV_NO_BLOCK && schedule_drop_lease(c, NULL))
        block = kv_pool_alloc(&c->pool);
    return block;
}

bool schedule_take_block(struct schedule *c, struct sequence *s)
{
    uint32_t block = take_any(c);
    if (block == KV_NO_BLOCK)
        return false;
    s->blocks[s->n_blocks++] = block;
    s->domain->blocks++;
    return true;
}

static bool domain_is_full(const struct schedule *c, const struct domain *d)
{
    return c->config->quota.kv_blocks && d->blocks >= c->config->quota.kv_blocks;
}

/* Who gives blocks up for s: what was admitted last of the least urgent class; maybe s itself. Of
 * that domain only, if one is named: it is at its quota. NULL: only running[0] and forks are left.
 */
static struct sequence *giver(const struct schedule *c, const struct domain *domain)
{
    struct sequence *worst = NULL;
    for (uint32_t i = c->n_running; i-- > 1;) {
        struct sequence *v = c->running[i];
        bool may = !v->fork && !v->n_forks && (!domain || v->domain == domain);
        if (may && (!worst || v->class > worst->class))
            worst = v;
    }
    return worst;
}

bool schedule_cover_by_force(struct schedule *c, struct sequence *s, uint32_t inputs)
{
    while (s->n_blocks < kv_blocks_for(inputs)) {
        bool full = domain_is_full(c, s->domain);
        if (full ? schedule_drop_lease(c, s->domain) : schedule_take_block(c, s))
            continue;
        struct sequence *v = giver(c, full ? s->domain : NULL);
        if (!v)
            return false;
        schedule_preempt(c, v);
        if (v == s)
            return false;
    }
    return true;
}

uint32_t schedule_cover_if_free(struct schedule *c, struct sequence *s, uint32_t inputs)
{
    while (s->n_blocks < kv_blocks_for(inputs))
        if ((domain_is_full(c, s->domain) && !schedule_drop_lease(c, s->domain)) ||
            !schedule_take_block(c, s))
            return s->n_blocks * GPU_KV_BLOCK;
    return inputs;
}

uint32_t schedule_blocks_wanted(const struct sequence *s)
{
    uint32_t inputs = sequence_inputs(s) + 1, all = sequence_inputs_in_all(s);
    return kv_blocks_for(inputs < all ? inputs : all);
}

static uint32_t still_wanted(const struct sequence *s)
{
    uint32_t wanted = schedule_blocks_wanted(s);
    return wanted > s->n_blocks ? wanted - s->n_blocks : 0;
}

/* Blocks that running prefills have still to take. */
static uint32_t blocks_promised(const struct schedule *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_running; i++) {
        const struct sequence *s = c->running[i];
        if (s->fork)
            n += s->spare == KV_NO_BLOCK;
        else if (s->state == SEQUENCE_PREFILL)
            n += still_wanted(s);
    }
    return n;
}

bool schedule_cover_to_spare(struct schedule *c, struct sequence *s, uint32_t inputs)
{
    while (s->n_blocks < kv_blocks_for(inputs)) {
        uint64_t kept = (uint64_t)blocks_promised(c) + c->n_running + c->watermark;
        if (c->pool.n_free <= kept || domain_is_full(c, s->domain) || !schedule_take_block(c, s))
            return false;
    }
    return true;
}

bool schedule_blocks_allow(struct schedule *c, uint32_t wanted)
{
    uint64_t all = (uint64_t)wanted + blocks_promised(c) + c->watermark;
    if ((uint64_t)c->pool.n_free + c->leased_blocks < all) /* no lease is dropped in vain */
        return false;
    while (c->pool.n_free < all && schedule_drop_lease(c, NULL))
        ;
    return c->pool.n_free >= all;
}

bool schedule_quota_allows(const struct schedule *c, const struct sequence *s)
{
    uint32_t quota = c->config->quota.kv_blocks;
    if (!quota || (uint64_t)s->domain->blocks + still_wanted(s) <= quota)
        return true;
    /* its leases may be dropped: what runs and what is pinned may not */
    uint32_t leased = 0;
    LIST_EACH (at, &c->leases) {
        const struct sequence *l = LIST_OF(at, struct sequence, lease);
        if (l->domain == s->domain && l != s)
            leased += l->n_blocks;
    }
    return (uint64_t)s->domain->blocks - leased + still_wanted(s) <= quota;
}

/* ---- the prefix cache ---- */

static bool may_cache(const struct schedule *c, const struct sequence *s)
{
    return c->config->prefix_cache && !(s->flags & LLM_SQE_NO_CACHE);
}

static struct kv_hash hash_of_block(const struct schedule *c, const struct sequence *s, uint32_t i)
{
    struct kv_hash parent = i ? s->hashes[i - 1] : kv_pool_root(&c->pool, s->domain->id, 0, 0);
    return kv_pool_chain(&c->pool, parent, s->tokens + (uint64_t)i * GPU_KV_BLOCK);
}

void schedule_adopt_cached(struct schedule *c, struct sequence *s)
{
    uint32_t reusable = sequence_reusable(s), i = s->n_blocks;
    if (!may_cache(c, s) || s->n_computed != i * GPU_KV_BLOCK || s->n_hashed != i)
        return;
    for (; (i + 1) * GPU_KV_BLOCK <= reusable; i++) {
        struct kv_hash hash = hash_of_block(c, s, i);
        uint32_t block = kv_pool_find(&c->pool, hash);
        if (block == KV_NO_BLOCK)
            break;
        kv_pool_ref(&c->pool, block);
        s->hashes[i] = hash;
        s->blocks[i] = block;
        s->domain->blocks++;
        s->n_blocks = s->n_hashed = i + 1;
        s->n_computed = s->n_blocks * GPU_KV_BLOCK;
    }
    schedule_keep_quota(c, s->domain);
}

/* Walks on from what it has, without taking anything, at most `most` blocks far. Returns the tokens
 * that it would have then; *held: how many of the blocks somebody holds. */
static uint32_t walk_cached(const struct schedule *c, const struct sequence *s, uint32_t most,
                            uint32_t *held)
{
    uint32_t reusable = sequence_reusable(s), n = s->n_computed;
    *held = 0;
    if (!may_cache(c, s) || n != s->n_hashed * GPU_KV_BLOCK)
        return n;
    struct kv_hash hash =
        n ? s->hashes[s->n_hashed - 1] : kv_pool_root(&c->pool, s->domain->id, 0, 0);
    for (; most && n + GPU_KV_BLOCK <= reusable; n += GPU_KV_BLOCK, most--) {
        hash = kv_pool_chain(&c->pool, hash, s->tokens + n);
        uint32_t block = kv_pool_find(&c->pool, hash);
        if (block == KV_NO_BLOCK)
            break;
        *held += kv_pool_refs(&c->pool, block) > 0;
    }
    return n;
}

uint32_t schedule_cached(const struct schedule *c, const struct sequence *s)
{
    uint32_t held;
    return walk_cached(c, s, UINT32_MAX, &held);
}

/* Further ones are taken for missing: this is asked in every step while s is next and finds no room.
 */
uint32_t schedule_blocks_shared(const struct schedule *c, const struct sequence *s)
{
    enum { FAR = 256 };
    uint32_t held;
    walk_cached(c, s, FAR, &held);
    return held;
}

void schedule_publish(struct schedule *c, struct sequence *s)
{
    uint32_t upto = s->n_computed;
    if (!may_cache(c, s))
        return;
    if (s->session && upto > s->session->private_from)
        upto = s->session->private_from;
    for (uint32_t i = s->n_hashed; (i + 1) * GPU_KV_BLOCK <= upto; i++) {
        s->hashes[i] = hash_of_block(c, s, i);
        s->n_hashed = i + 1;
        kv_pool_publish(&c->pool, s->blocks[i], s->hashes[i]);
    }
}

/* ---- copy on write ---- */

void schedule_own_last_block(struct schedule *c, struct sequence *s)
{
    uint32_t i = s->n_computed / GPU_KV_BLOCK;
    if (s->n_computed % GPU_KV_BLOCK == 0 || kv_pool_writable(&c->pool, s->blocks[i]))
        return;
    uint32_t old = s->blocks[i];
    if (kv_pool_refs(&c->pool, old) == 1) {
        kv_pool_forget(&c->pool, old);
        return;
    }
    uint32_t copy = c->n_before < c->config->max_num_seqs ? take_any(c) : KV_NO_BLOCK;
    if (copy == KV_NO_BLOCK) { /* compute its rows again instead */
        give_back(c, s, i);
        s->n_computed = i * GPU_KV_BLOCK;
        return;
    }
    c->before_dst[c->n_before] = copy;
    c->before_src[c->n_before++] = old;
    s->blocks[i] = copy;
    kv_pool_unref(&c->pool, old);
}
