/* session.c - see session.h */
#include "session.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int session_table_create(struct session_table *t, uint32_t max, struct domains *domains)
{
    *t = (struct session_table){.max = max, .n_buckets = 1, .domains = domains};
    while (t->n_buckets < max)
        t->n_buckets *= 2;
    t->all = calloc(max ? max : 1, sizeof *t->all);
    t->buckets = calloc(t->n_buckets, sizeof *t->buckets);
    if (!t->all || !t->buckets) {
        session_table_destroy(t);
        return -ENOMEM;
    }
    list_init(&t->free);
    list_init(&t->by_use);
    for (uint32_t i = 0; i < t->n_buckets; i++)
        list_init(&t->buckets[i]);
    for (uint32_t i = 0; i < max; i++) {
        list_init(&t->all[i].use);
        list_insert_before(&t->free, &t->all[i].chain);
    }
    return 0;
}

void session_table_destroy(struct session_table *t)
{
    free(t->all);
    free(t->buckets);
    *t = (struct session_table){0};
}

/* Fibonacci hashing: keys may be small numbers in a row. */
static struct list *bucket_of(const struct session_table *t, uint32_t domain, uint64_t key)
{
    uint64_t mixed = (key ^ (uint64_t)domain << 32) * 0x9E3779B97F4A7C15ull;
    return &t->buckets[mixed >> 32 & (t->n_buckets - 1)];
}

struct session *session_find(const struct session_table *t, uint32_t domain, uint64_t key)
{
    LIST_EACH (at, bucket_of(t, domain, key)) {
        struct session *session = LIST_OF(at, struct session, chain);
        if (session->key == key && session->domain->id == domain)
            return session;
    }
    return NULL;
}

struct session *session_add(struct session_table *t, struct sequence *s, uint64_t key,
                            uint64_t now_ns)
{
    assert(!list_empty(&t->free) && !s->session);
    struct session *session = LIST_OF(t->free.next, struct session, chain);
    list_remove(&session->chain);
    session->domain = domain_hold(t->domains, s->domain->id);
    session->key = key;
    session->sequence = s;
    session->used_ns = now_ns;
    session->pinned = false;
    session->no_cache = s->flags & LLM_SQE_NO_CACHE;
    session->private_from = UINT32_MAX;
    session->pinned_blocks = 0;
    list_insert_before(bucket_of(t, session->domain->id, key), &session->chain);
    list_insert_before(&t->by_use, &session->use);
    session->domain->sessions++;
    s->session = session;
    t->n++;
    return session;
}

void session_remove(struct session_table *t, struct session *session)
{
    session->sequence->session = NULL;
    session->domain->sessions--;
    session->domain->pinned_blocks -= session->pinned_blocks;
    domain_drop(t->domains, session->domain);
    list_remove(&session->use);
    list_remove(&session->chain);
    list_insert_before(t->free.next, &session->chain);
    t->n--;
}

void session_touch(struct session_table *t, struct session *session, uint64_t now_ns)
{
    session->used_ns = now_ns;
    list_remove(&session->use);
    list_insert_before(&t->by_use, &session->use);
}
