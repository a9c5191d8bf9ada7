/* sequence.c - see sequence.h */
#include "sequence.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kv_pool.h"

enum { BUCKETS_MAX = 4096, STRIDE_ALIGN = 64, HUGE_PAGE = 2 << 20, TOUCHED_SLOTS = 256 };

/* What a generation may bring in its option map. */
struct slot_options {
    struct stop_set stops;
    struct gpu_bias biases[LLM_BIASES_MAX];
    struct gpu_candidate top[SEQUENCE_TOP_WINDOW * LLM_TOP_MAX];
};
_Static_assert(_Alignof(struct slot_options) <= 8, "it lies behind the hashes");

static struct list *bucket_of(const struct sequence_table *t, uint32_t client)
{
    return &t->buckets[client & (t->n_buckets - 1)];
}

/* One mapping for all histories: address space now, pages when a slot uses them. */
static int map_memory(struct sequence_table *t, struct fail *f)
{
    t->stride = (uint64_t)t->max_len * (sizeof(int32_t) + sizeof(float));
    t->stride = (t->stride + 7) & ~(uint64_t)7;
    t->stride += (uint64_t)(t->max_len / GPU_KV_BLOCK) * sizeof(struct kv_hash);
    t->stride += sizeof(struct slot_options);
    t->stride = (t->stride + STRIDE_ALIGN - 1) & ~(uint64_t)(STRIDE_ALIGN - 1);
    uint64_t bytes;
    if (__builtin_mul_overflow(t->stride, t->max_requests, &bytes) || bytes > SIZE_MAX / 2)
        return fail(
            f, -EINVAL,
            "%u requests of %u tokens are more than the address space holds: lower --max-requests "
            "or --max-model-len",
            t->max_requests, t->max_len);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return fail(f, -ENOMEM,
                    "cannot map %llu bytes for the histories of %u requests of %u tokens: lower "
                    "--max-requests "
                    "or --max-model-len",
                    (unsigned long long)bytes, t->max_requests, t->max_len);
    t->memory = at;
    madvise(at, bytes, MADV_NOHUGEPAGE); /* a short history shall not take 2 MiB; may fail */
    return 0;
}

/* The first tokens and hashes of the slots that are used first: no step has to wait for the kernel
 * to bring their pages. */
static void touch_histories(struct sequence_table *t)
{
    for (uint32_t i = 0; i < t->max_requests && i < TOUCHED_SLOTS; i++) {
        *(volatile int32_t *)t->slots[i].tokens = 0;
        *(volatile uint64_t *)&t->slots[i].hashes->low = 0;
    }
}

/* Slots and block tables: every step looks at those of all that run, with nothing of them in the
 * caches. On a huge page they need one translation instead of one each. The first pages are touched
 * now: a step shall not wait until the kernel has cleared one. */
static int map_slots(struct sequence_table *t, struct fail *f)
{
    uint64_t slots_end = (uint64_t)t->max_requests * sizeof *t->slots;
    uint64_t tables = (uint64_t)t->max_requests * kv_blocks_for(t->max_len) * sizeof *t->tables;
    t->slots_bytes = slots_end + tables + HUGE_PAGE - 1;
    t->slots_bytes -= t->slots_bytes % HUGE_PAGE;
    t->slots_memory = mmap(NULL, t->slots_bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (t->slots_memory == MAP_FAILED) {
        t->slots_memory = NULL;
        return fail(f, -ENOMEM,
                    "no memory for %u requests of %u tokens: lower --max-requests "
                    "or --max-model-len",
                    t->max_requests, t->max_len);
    }
    uintptr_t at = ((uintptr_t)t->slots_memory + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    madvise((void *)at, t->slots_bytes, MADV_HUGEPAGE); /* may fail: then small pages it is */
    t->slots = (void *)at;
    t->tables = (void *)(at + slots_end);
    memset(t->slots, 0, slots_end);
    memset(t->tables, 0, tables < HUGE_PAGE ? tables : HUGE_PAGE);
    return 0;
}

static void bind_slot(struct sequence_table *t, uint32_t slot)
{
    struct sequence *s = &t->slots[slot];
    uint8_t *at = t->memory + t->stride * slot;
    s->tokens = (int32_t *)(void *)at;
    s->logprobs = (float *)(void *)(at + (uint64_t)t->max_len * sizeof(int32_t));
    s->blocks = t->tables + (uint64_t)slot * kv_blocks_for(t->max_len);
    uintptr_t hashes = (uintptr_t)(s->logprobs + t->max_len);
    s->hashes = (struct kv_hash *)((hashes + 7) & ~(uintptr_t)7);
    struct slot_options *options = (void *)(s->hashes + t->max_len / GPU_KV_BLOCK);
    s->stops = &options->stops;
    s->biases = options->biases;
    s->top = options->top;
    t->free_stack[t->max_requests - 1 - slot] = slot;
}

int sequence_table_create(struct sequence_table *t, uint32_t max_requests, uint32_t max_len,
                          struct fail *f)
{
    *t = (struct sequence_table){.max_requests = max_requests, .max_len = max_len};
    if (!max_requests || !max_len)
        return fail(f, -EINVAL, "the engine needs room for at least one request of one token");
    t->n_buckets = 1;
    while (t->n_buckets < max_requests && t->n_buckets < BUCKETS_MAX)
        t->n_buckets *= 2;
    t->free_stack = calloc(max_requests, sizeof *t->free_stack);
    t->owners = calloc(max_requests, sizeof *t->owners);
    t->buckets = calloc(t->n_buckets, sizeof *t->buckets);
    int code = -ENOMEM;
    if (!t->free_stack || !t->owners || !t->buckets || domains_create(&t->domains, max_requests))
        fail(f, code, "no memory for %u requests", max_requests);
    else if (!(code = map_memory(t, f)))
        code = map_slots(t, f);
    if (code < 0) {
        sequence_table_destroy(t);
        return code;
    }
    list_init(&t->free_owners);
    for (uint32_t i = 0; i < t->n_buckets; i++)
        list_init(&t->buckets[i]);
    for (uint32_t i = 0; i < max_requests; i++) {
        bind_slot(t, i);
        list_insert_before(&t->free_owners, &t->owners[i].hash);
    }
    touch_histories(t);
    t->n_free = max_requests;
    return 0;
}

void sequence_table_destroy(struct sequence_table *t)
{
    if (t->memory)
        munmap(t->memory, t->stride * t->max_requests);
    if (t->slots_memory)
        munmap(t->slots_memory, t->slots_bytes + HUGE_PAGE);
    free(t->free_stack);
    free(t->owners);
    free(t->buckets);
    domains_destroy(&t->domains);
    *t = (struct sequence_table){0};
}

struct sequence_owner *sequence_owner(const struct sequence_table *t, uint32_t client)
{
    LIST_EACH (at, bucket_of(t, client)) {
        struct sequence_owner *o = LIST_OF(at, struct sequence_owner, hash);
        if (o->client == client)
            return o;
    }
    return NULL;
}

static struct sequence_owner *owner_made(struct sequence_table *t, uint32_t client, uint32_t domain)
{
    struct sequence_owner *o = sequence_owner(t, client);
    if (o)
        return o;
    assert(!list_empty(&t->free_owners)); /* there are as many owners as slots */
    o = LIST_OF(t->free_owners.next, struct sequence_owner, hash);
    list_remove(&o->hash);
    list_insert_before(bucket_of(t, client), &o->hash);
    o->client = client;
    o->domain = domain_hold(&t->domains, domain);
    o->n_all = o->n_news = o->n_running = o->unread = 0;
    o->served = t->served;
    list_init(&o->all);
    list_init(&o->news);
    list_init(&o->due);
    list_init(&o->hungry);
    for (int i = 0; i < SEQUENCE_CLASSES; i++)
        list_init(&o->waiting[i]);
    return o;
}

static void owner_free(struct sequence_table *t, struct sequence_owner *o)
{
    assert(list_empty(&o->news) && !o->n_news && list_empty(&o->due) && list_empty(&o->hungry));
    assert(!o->n_running && !o->unread);
    domain_drop(&t->domains, o->domain);
    list_remove(&o->hash);
    list_insert_before(t->free_owners.next, &o->hash);
}

int32_t *sequence_next_tokens(struct sequence_table *t)
{
    assert(t->n_free > 0);
    return t->slots[t->free_stack[t->n_free - 1]].tokens;
}

void sequence_borrow(const struct sequence_table *t, struct sequence *s)
{
    assert(t->n_free > 0);
    const struct sequence *next = &t->slots[t->free_stack[t->n_free - 1]];
    s->stops = next->stops;
    s->biases = next->biases;
    s->top = next->top;
}

/* As if it had just come from that client. */
static void join_owner(struct sequence_table *t, struct sequence *s, uint32_t client,
                       uint32_t domain)
{
    s->owner = owner_made(t, client, domain);
    s->domain = s->owner->domain;
    s->order = t->arrivals++;
    s->state = SEQUENCE_WAITING;
    list_insert_before(&s->owner->all, &s->kin);
    s->owner->n_all++;
    s->domain->requests++;
}

static void leave_owner(struct sequence_table *t, struct sequence *s)
{
    struct sequence_owner *o = s->owner;
    if (!list_empty(&s->news)) {
        list_remove(&s->news);
        o->n_news--;
    }
    o->unread -= sequence_unsent(s);
    list_remove(&s->kin);
    o->n_all--;
    s->domain->requests--;
    s->owner = NULL;
    if (list_empty(&o->all))
        owner_free(t, o);
}

void sequence_settle(struct sequence *s)
{
    for (uint32_t at = s->n_tokens - s->n_tail; at < s->n_tokens; at++)
        s->tokens[at] = s->tail[at % SEQUENCE_TAIL];
    s->n_tail = 0;
}

struct sequence *sequence_take(struct sequence_table *t, uint32_t client, uint32_t domain)
{
    assert(t->n_free > 0);
    struct sequence *s = &t->slots[t->free_stack[--t->n_free]];
    assert(s->state == SEQUENCE_FREE);
    *s = (struct sequence){.tokens = s->tokens,
                           .logprobs = s->logprobs,
                           .blocks = s->blocks,
                           .hashes = s->hashes,
                           .stops = s->stops,
                           .biases = s->biases,
                           .top = s->top,
                           .due_ns = UINT64_MAX,
                           .expires_ns = UINT64_MAX,
                           .queue_expires_ns = UINT64_MAX,
                           .spare = KV_NO_BLOCK};
    list_init(&s->news);
    list_init(&s->queue);
    list_init(&s->turn);
    list_init(&s->lease);
    list_init(&s->followers);
    join_owner(t, s, client, domain);
    return s;
}

void sequence_release(struct sequence_table *t, struct sequence *s)
{
    assert(s->state != SEQUENCE_FREE && s->n_blocks == 0 && s->spare == KV_NO_BLOCK);
    assert(list_empty(&s->queue) && list_empty(&s->followers) && list_empty(&s->lease));
    assert(!s->session);
    if (s->owner)
        leave_owner(t, s);
    s->state = SEQUENCE_FREE;
    t->free_stack[t->n_free++] = (uint32_t)(s - t->slots);
}

void sequence_attach(struct sequence_table *t, struct sequence *s, uint32_t client, uint32_t domain)
{
    assert(s->state == SEQUENCE_IDLE && !s->owner);
    join_owner(t, s, client, domain);
}

void sequence_detach(struct sequence_table *t, struct sequence *s)
{
    assert(s->owner && list_empty(&s->queue) && list_empty(&s->followers));
    leave_owner(t, s);
    s->state = SEQUENCE_IDLE;
}

struct sequence *sequence_first(const struct sequence_owner *o)
{
    return list_empty(&o->all) ? NULL : LIST_OF(o->all.next, struct sequence, kin);
}

struct sequence *sequence_next(const struct sequence_owner *o, const struct sequence *s)
{
    return s->kin.next == &o->all ? NULL : LIST_OF(s->kin.next, struct sequence, kin);
}
