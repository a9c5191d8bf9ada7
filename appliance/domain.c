/* domain.c - see domain.h */
#include "domain.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int domains_create(struct domains *d, uint32_t max)
{
    d->all = calloc(max, sizeof *d->all);
    if (!d->all)
        return -ENOMEM;
    list_init(&d->free);
    for (uint32_t i = 0; i < 64; i++)
        list_init(&d->buckets[i]);
    for (uint32_t i = 0; i < max; i++)
        list_insert_before(&d->free, &d->all[i].chain);
    return 0;
}

void domains_destroy(struct domains *d)
{
    free(d->all);
    d->all = NULL;
}

struct domain *domain_find(const struct domains *d, uint32_t id)
{
    LIST_EACH (at, &d->buckets[id % 64]) {
        struct domain *domain = LIST_OF(at, struct domain, chain);
        if (domain->id == id)
            return domain;
    }
    return NULL;
}

struct domain *domain_hold(struct domains *d, uint32_t id)
{
    struct domain *domain = domain_find(d, id);
    if (!domain) {
        assert(!list_empty(&d->free));
        domain = LIST_OF(d->free.next, struct domain, chain);
        list_remove(&domain->chain);
        *domain = (struct domain){.id = id};
        list_init(&domain->chain);
        list_insert_before(&d->buckets[id % 64], &domain->chain);
    }
    domain->held++;
    return domain;
}

void domain_drop(struct domains *d, struct domain *domain)
{
    assert(domain->held > 0);
    if (--domain->held)
        return;
    assert(!domain->requests && !domain->blocks && !domain->sessions && !domain->prompt_tokens);
    list_remove(&domain->chain);
    list_insert_before(d->free.next, &domain->chain);
}
