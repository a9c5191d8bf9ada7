/* mapping.c - memory for weights, the KV pool and the workspace: on the pages that the config asks
 * for, spread over the nodes of the threads that will read it.
 *
 * Kinds of pages are tried in this order: hugetlbfs ones of 1 GiB and of 2 MiB, where they are free
 * and the mapping fits on them as a whole; transparent huge ones; small ones. The config says where
 * the order begins; what cannot be had is never an error. A hugetlbfs mapping gets all of its pages
 * at once, from all threads: they are reserved for it and of no use to others, and one that cannot
 * be had (a control group's limit, a node without any) would be a SIGBUS in a step.
 */
#include "backend.h"
#include "memory.h"
#include "nodes.h"

/* The kinds from that one on, best first. */
static const enum pages_kind kinds[] = {PAGES_HUGETLB_1G, PAGES_HUGETLB, PAGES_THP, PAGES_SMALL};
enum { KINDS = sizeof kinds / sizeof *kinds, FIRST_HUGETLB = 0, FIRST_THP = 2, FIRST_SMALL = 3 };

static int first_kind(enum gpu_huge_pages wish)
{
    return wish == GPU_HUGE_PAGES_OFF   ? FIRST_SMALL
           : wish == GPU_HUGE_PAGES_THP ? FIRST_THP
                                        : FIRST_HUGETLB;
}

struct filling {
    const struct pages *pages;
    _Atomic bool failed;
};

static void fill_job(void *context, unsigned thread, unsigned n_threads)
{
    struct filling *x = context;
    uint64_t page = pages_bytes(x->pages->kind);
    struct cpu_share s = cpu_share((uint32_t)(x->pages->mapped / page), thread, n_threads);
    for (uint32_t i = s.from; i < s.to && !atomic_load(&x->failed); i++)
        if (!pages_populate(x->pages, i * page, (i + 1) * page))
            atomic_store(&x->failed, true);
}

static bool fill(struct gpu *g, const struct pages *p)
{
    struct filling x = {.pages = p};
    pool_run(g->threads, fill_job, &x);
    pool_rest(g->threads);
    return !atomic_load(&x.failed);
}

static void spread(struct gpu *g, const struct pages *p, void *context)
{
    (void)context;
    nodes_spread(p->at, p->mapped, g->threads);
}

static bool may_be_had(uint64_t bytes, enum pages_kind kind)
{
    return kind == PAGES_THP || kind == PAGES_SMALL || pages_hugetlb_fit("", bytes, kind);
}

bool cpu_map(struct gpu *g, struct pages *p, uint64_t bytes,
             void (*settle)(struct gpu *g, const struct pages *p, void *context), void *context)
{
    for (int i = first_kind(g->config.huge_pages); i < KINDS; i++) {
        if (!may_be_had(bytes, kinds[i]) || !pages_map(p, bytes, kinds[i]))
            continue;
        (settle ? settle : spread)(g, p, context);
        if (i >= FIRST_THP || fill(g, p))
            return true;
        pages_unmap(p);
    }
    return false;
}

/* In whole pages, as they are taken: where memory is short the difference is a process that is
 * killed while it loads. */
bool cpu_fits(const struct gpu *g, uint64_t bytes, uint64_t beside)
{
    uint64_t left = memory_available(""), all;
    for (int i = first_kind(g->config.huge_pages); i < FIRST_THP; i++)
        if (pages_hugetlb_fit("", bytes, kinds[i]))
            return pages_whole(beside) < left;
    return !__builtin_add_overflow(pages_whole(bytes), pages_whole(beside), &all) && all < left;
}

/* Pages of 1 GiB are left out: not every number of bytes fits on them. */
uint64_t cpu_memory_left(const struct gpu *g)
{
    uint64_t left = memory_available(""), apart = 0;
    if (first_kind(g->config.huge_pages) < FIRST_THP)
        apart = pages_hugetlb_free("", PAGES_HUGETLB);
    return apart > left ? apart : left;
}
