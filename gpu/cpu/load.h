/* load.h - the list of weights that load.c makes and fetch.c walks.
 */
#ifndef LLMD_CPU_LOAD_H
#define LLMD_CPU_LOAD_H

#include "backend.h"

/* A tensor and where it goes: exactly one of matrix and vector is not NULL. */
struct weight {
    const struct gpu_tensor *tensor; /* NULL: absent */
    struct linear *matrix;           /* (n, k) */
    float **vector;                  /* (n) */
    uint32_t k, n;
    bool optional;
    const char *role;
};

struct weight_list {
    struct weight *at;
    uint32_t n;
};

/* For weights that have their places but no pages: each page goes near the threads that read most of
 * it. Nothing to do where all are on one node. */
void cpu_near(const struct gpu *g, const struct pages *p);
/* Which node that is (NULL node_of: libnuma's): nodes (p->mapped / pages_bytes). 0, -ENOTSUP where
 * all are on one, -ENOMEM. */
int cpu_near_choose(const struct gpu *g, const struct pages *p, int (*node_of)(int cpu),
                    int *nodes);

/* Bytes that cpu_fetch_weights takes for itself, while it runs. After every matrix has its shape. */
uint64_t cpu_staging_bytes(const struct gpu *g, const struct weight_list *list);
/* Brings the bytes of every weight that is there to its place, packed. The places are mapped, zero,
 * and nobody has touched them. */
int cpu_fetch_weights(struct gpu *g, const struct weight_list *list,
                      const struct gpu_source *source, struct fail *f);

#endif
