/* heap.c - see heap.h. Source: jemalloc(3), "MALLCTL NAMESPACE". */
#include "heap.h"

#include <stddef.h>

/* The sanitizers bring an allocator of their own; then this is NULL. */
extern int mallctl(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes)
    __attribute__((weak));

static bool read_figure(const char *name, uint64_t *out)
{
    size_t value, bytes = sizeof value;
    if (mallctl(name, &value, &bytes, NULL, 0) || bytes != sizeof value)
        return false;
    *out = value;
    return true;
}

bool heap_read(struct heap_figures *out)
{
    uint64_t epoch = 1; /* writing it brings the figures up to date */
    *out = (struct heap_figures){0};
    return mallctl && !mallctl("epoch", NULL, NULL, &epoch, sizeof epoch) &&
           read_figure("stats.allocated", &out->allocated) &&
           read_figure("stats.resident", &out->resident);
}
