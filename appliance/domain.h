/* domain.h - the users (uids) that have something in the engine, and how much: quotas are judged by
 * these counts. A domain exists while somebody holds it. */
#ifndef LLMD_DOMAIN_H
#define LLMD_DOMAIN_H

#include <stdint.h>

#include "list.h"

struct domain {
    uint32_t id;   /* uid */
    uint32_t held; /* owners and sessions that point here */
    uint32_t requests, prompt_tokens, blocks, sessions, pinned_blocks;
    struct list chain; /* its bucket, or the free ones */
};

struct domains {
    struct domain *all; /* (max) */
    struct list free, buckets[64];
};

int domains_create(struct domains *d, uint32_t max); /* 0 or -ENOMEM */
void domains_destroy(struct domains *d);

/* Finds or makes it, and holds it. One of `max` must be left where it is new. */
struct domain *domain_hold(struct domains *d, uint32_t id);
/* NULL where nobody holds one of that id. */
struct domain *domain_find(const struct domains *d, uint32_t id);
void domain_drop(struct domains *d, struct domain *domain);

#endif
