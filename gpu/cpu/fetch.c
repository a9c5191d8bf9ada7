/* fetch.c - the weights' bytes: read, packed, and given memory, all at the same time.
 *
 * Thread 0 reads tensor i + 1 while the others pack tensor i and touch the memory of tensor i + 2;
 * then it helps to pack. Between two tensors all meet.
 *
 *     thread 0   read 0  | read 1, pack 0   | read 2, pack 1   | ... | pack n - 1
 *     others     touch 1 | pack 0, touch 2  | pack 1, touch 3  | ... | pack n - 1
 *
 * A matrix is read to where its panels will lie and packed there, panel by panel, through a small
 * buffer of each thread: no second copy of the weights exists, and what is packed is still in the
 * cache. What cannot be packed in place (linear_in_place) and vectors come through two staging
 * buffers, for the tensor that is read and the one that is packed.
 */
#include <stdlib.h>

#include "load.h"
#include "memory.h"

enum { PACK_PANELS = 4 }; /* that a thread takes at a time */

struct fetching {
    const struct weight_list *list;
    const struct gpu_source *source;
    uint8_t *staging; /* 2 * staging_bytes, then a scratch for each thread */
    uint64_t staging_bytes, scratch_bytes;

    const struct weight *last, *next, *ahead; /* to pack, to read, to touch; or NULL */
    uint8_t *last_raw, *next_raw;
    _Atomic uint32_t panel; /* of `last`: the first that nobody has taken */
    int error;
    struct fail *f;
};

static bool in_place(const struct weight *w)
{
    return w->matrix && linear_in_place(w->matrix);
}

/* ---- one thread's part ---- */

static int read_weight(const struct fetching *x, const struct weight *w, uint8_t *raw)
{
    int error = x->source->fetch(x->source->context, w->tensor, raw, x->f);
    if (error)
        return fail(x->f, error, "%s: its bytes could not be read (%d)", w->tensor->name, error);
    if (w->vector)
        linear_dequantize(w->tensor->type, raw, w->n, *w->vector);
    return 0;
}

static void pack_panels(const struct fetching *x, uint32_t p0, uint32_t p1, unsigned thread)
{
    struct linear *l = x->last->matrix;
    uint8_t *scratch = x->staging + 2 * x->staging_bytes + thread * x->scratch_bytes;
    if (linear_in_place(l))
        linear_pack_in_place(l, p0, p1, scratch);
    else
        linear_pack(l, x->last_raw, p0, p1);
}

static void pack_weight(struct fetching *x, unsigned thread)
{
    uint32_t panels = x->last->matrix->panels;
    for (;;) {
        /* relaxed: the threads meet at the end of the job */
        uint32_t p = atomic_fetch_add_explicit(&x->panel, PACK_PANELS, memory_order_relaxed);
        if (p >= panels)
            return;
        pack_panels(x, p, panels - p < PACK_PANELS ? panels : p + PACK_PANELS, thread);
    }
}

/* This thread's share of a matrix that nobody has written to. */
static void touch_weight(const struct weight *w, unsigned thread, unsigned n_threads)
{
    if (in_place(w))
        touch_range(w->matrix->panels_at, (uint64_t)w->matrix->panels * w->matrix->panel_bytes,
                    thread, n_threads);
}

static void fetch_job(void *context, unsigned thread, unsigned n_threads)
{
    struct fetching *x = context;
    if (thread == 0 && x->next)
        x->error = read_weight(x, x->next, x->next_raw);
    if (x->last && x->last->matrix)
        pack_weight(x, thread);
    if (thread > 0 && x->ahead)
        touch_weight(x->ahead, thread - 1, n_threads - 1);
}

/* The first tensor is often the largest, and nobody has anything else to do. */
static void touch_job(void *context, unsigned thread, unsigned n_threads)
{
    const struct fetching *x = context;
    if (n_threads > 1 && x->next)
        touch_weight(x->next, thread, n_threads);
}

/* ---- all ---- */

static const struct weight *take_weight(const struct weight_list *list, uint32_t *at)
{
    while (*at < list->n && !list->at[*at].tensor)
        ++*at;
    return *at < list->n ? &list->at[(*at)++] : NULL;
}

static int fetch_all(struct fetching *x, struct pool *threads)
{
    uint32_t at = 0, turn = 0;
    x->next = take_weight(x->list, &at);
    pool_run(threads, touch_job, x);
    for (; (x->next || x->last) && !x->error; turn++) {
        x->ahead = take_weight(x->list, &at);
        if (x->next)
            x->next_raw = in_place(x->next) ? x->next->matrix->panels_at
                                            : x->staging + turn % 2 * x->staging_bytes;
        x->panel = 0;
        pool_run(threads, fetch_job, x);
        x->last = x->next;
        x->last_raw = x->next_raw;
        x->next = x->ahead;
    }
    return x->error;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
}

/* Fills in how large the buffers are; their bytes together. */
static uint64_t plan_staging(const struct gpu *g, struct fetching *x)
{
    for (uint32_t i = 0; i < x->list->n; i++) {
        const struct weight *w = &x->list->at[i];
        if (w->tensor && in_place(w))
            x->scratch_bytes = most(x->scratch_bytes, aligned(w->matrix->panel_bytes));
        else if (w->tensor)
            x->staging_bytes = most(x->staging_bytes, aligned(w->tensor->bytes));
    }
    return 2 * x->staging_bytes + g->config.threads * x->scratch_bytes;
}

uint64_t cpu_staging_bytes(const struct gpu *g, const struct weight_list *list)
{
    struct fetching x = {.list = list};
    return plan_staging(g, &x);
}

int cpu_fetch_weights(struct gpu *g, const struct weight_list *list,
                      const struct gpu_source *source, struct fail *f)
{
    struct fetching x = {.list = list, .source = source, .f = f};
    uint64_t bytes = plan_staging(g, &x);
    struct pages staging;
    if (!pages_map(&staging, bytes, PAGES_THP))
        return memory_refused("tensors while they are read", bytes, f);
    x.staging = staging.at;
    int error = fetch_all(&x, g->threads);
    pages_unmap(&staging);
    pool_rest(g->threads);
    return error;
}
