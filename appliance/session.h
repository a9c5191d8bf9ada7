/* session.h - the sessions that are open: found by (domain, key), the least recently used first.
 *
 * A session is a sequence that stays: its history, and an evictable lease on its blocks. Between
 * requests the sequence is SEQUENCE_IDLE; a request that uses it attaches it to its client.
 */
#ifndef LLMD_SESSION_H
#define LLMD_SESSION_H

#include "sequence.h"

struct session {
    struct domain *domain;
    uint64_t key;
    struct sequence *sequence;
    uint64_t used_ns;
    bool pinned;            /* its lease is never taken */
    bool no_cache;          /* what it was opened with holds for all that is done with it */
    uint32_t private_from;  /* what an entry with NO_CACHE brought begins here: neither that nor
                               what follows it becomes findable; UINT32_MAX: none did */
    uint32_t pinned_blocks; /* what it counts against the quota of pins */
    struct list chain;      /* its bucket, or the free ones */
    struct list use;        /* node of session_table.by_use */
};

struct session_table {
    uint32_t max, n;
    struct session *all; /* (max) */
    struct list free, *buckets;
    uint32_t n_buckets; /* a power of two */
    struct list by_use; /* the one used longest ago first */
    struct domains *domains;
};

int session_table_create(struct session_table *t, uint32_t max, struct domains *domains);
void session_table_destroy(struct session_table *t);

struct session *session_find(const struct session_table *t, uint32_t domain, uint64_t key);
/* Of a sequence that belongs to no session; t->n < t->max, and the key is free. */
struct session *session_add(struct session_table *t, struct sequence *s, uint64_t key,
                            uint64_t now_ns);
void session_remove(struct session_table *t, struct session *session);
void session_touch(struct session_table *t, struct session *session, uint64_t now_ns);

#endif
