/* pages.c - see pages.h. Sources: mmap(2), madvise(2), proc(5), and the kernel's documents hugetlbpage
 * (for /sys/kernel/mm/hugepages), transhuge (for /sys/kernel/mm/transparent_hugepage/enabled).
 */
#define _GNU_SOURCE
#include "pages.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

enum { LOG2_2M = 21, LOG2_1G = 30 };

static unsigned log2_of(enum pages_kind kind)
{
    return kind == PAGES_HUGETLB_1G ? LOG2_1G : LOG2_2M;
}

static bool is_hugetlb(enum pages_kind kind)
{
    return kind == PAGES_HUGETLB || kind == PAGES_HUGETLB_1G;
}

uint64_t pages_bytes(enum pages_kind kind)
{
    return 1ull << log2_of(kind);
}

const char *pages_name(enum pages_kind kind)
{
    static const char *const names[] = {[PAGES_SMALL] = "small",
                                        [PAGES_THP] = "thp",
                                        [PAGES_HUGETLB] = "hugetlb",
                                        [PAGES_HUGETLB_1G] = "hugetlb-1g"};
    return names[kind];
}

/* ---- mappings ---- */

static bool whole_pages(uint64_t bytes, enum pages_kind kind, uint64_t *out)
{
    uint64_t page = pages_bytes(kind), rounded;
    if (__builtin_add_overflow(bytes, page - 1, &rounded) || rounded > SIZE_MAX / 2)
        return false;
    *out = rounded / page * page;
    return *out > 0;
}

uint64_t pages_whole(uint64_t bytes)
{
    uint64_t mapped, most = 1ull << 63;
    return whole_pages(bytes, PAGES_THP, &mapped) ? mapped : bytes ? most : 0;
}

static uint8_t *map_anonymous(uint64_t bytes, int flags)
{
    void *at =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Aligned as huge pages are. */
static uint8_t *map_aligned(uint64_t bytes)
{
    uint64_t slack = 1ull << LOG2_2M;
    uint8_t *p = map_anonymous(bytes + slack, 0);
    if (!p)
        return NULL;
    uint64_t before = (slack - (uintptr_t)p % slack) % slack;
    if (before)
        munmap(p, before);
    if (slack - before)
        munmap(p + before + bytes, slack - before);
    return p + before;
}

bool pages_map(struct pages *p, uint64_t bytes, enum pages_kind kind)
{
    *p = (struct pages){.kind = kind};
    if (!whole_pages(bytes, kind, &p->mapped))
        return false;
    if (is_hugetlb(kind)) {
        p->at = map_anonymous(p->mapped, MAP_HUGETLB | (int)(log2_of(kind) << MAP_HUGE_SHIFT));
        return p->at;
    }
    p->at = map_aligned(p->mapped);
    /* a kernel without huge pages gives small ones: slower, not wrong */
    if (p->at)
        (void)madvise(p->at, p->mapped, kind == PAGES_THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return p->at;
}

void pages_unmap(struct pages *p)
{
    if (p->at)
        munmap(p->at, p->mapped);
    *p = (struct pages){0};
}

/* A page that cannot be had would be a SIGBUS where it is touched; here it is an error. */
bool pages_populate(const struct pages *p, uint64_t from, uint64_t to)
{
    assert(from <= to && to <= p->mapped);
    return from == to || !madvise(p->at + from, to - from, MADV_POPULATE_WRITE);
}

/* ---- what there is ---- */

static FILE *open_under(const char *root, const char *name)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s%s", root, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* 0 where there is none. */
static uint64_t read_number(const char *root, const char *name)
{
    uint64_t n = 0;
    FILE *file = open_under(root, name);
    if (file && fscanf(file, "%" SCNu64, &n) != 1)
        n = 0;
    if (file)
        fclose(file);
    return n;
}

uint64_t pages_hugetlb_free(const char *root, enum pages_kind kind)
{
    char name[128];
    uint64_t bytes, n[2];
    static const char *const counts[] = {"free", "resv"};
    assert(is_hugetlb(kind));
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "/sys/kernel/mm/hugepages/hugepages-%ukB/%s_hugepages",
                 1u << (log2_of(kind) - 10), counts[i]);
        n[i] = read_number(root, name);
    }
    if (n[0] <= n[1] || __builtin_mul_overflow(n[0] - n[1], pages_bytes(kind), &bytes))
        return 0;
    return bytes;
}

bool pages_hugetlb_fit(const char *root, uint64_t bytes, enum pages_kind kind)
{
    uint64_t mapped;
    if (!whole_pages(bytes, kind, &mapped) || mapped > pages_hugetlb_free(root, kind))
        return false;
    return kind != PAGES_HUGETLB_1G || mapped - bytes <= mapped / 8;
}

bool pages_thp_allowed(const char *root)
{
    char line[128] = "";
    FILE *file = open_under(root, "/sys/kernel/mm/transparent_hugepage/enabled");
    bool known = file && fgets(line, sizeof line, file);
    if (file)
        fclose(file);
    return known && !strstr(line, "[never]");
}

/* ---- what was granted ---- */

/* The part of p that lies in the mapping that `line` begins, bytes; 0 for any other line. */
static uint64_t part_of(const char *line, const struct pages *p)
{
    uint64_t from, to, start = (uintptr_t)p->at, end = start + p->mapped;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &from, &to) != 2)
        return 0;
    from = from > start ? from : start;
    to = to < end ? to : end;
    return from < to ? to - from : 0;
}

/* A mapping with others of its kind beside it may be shown as one with them: then what is huge is
 * taken to be ours first. */
uint64_t pages_huge_bytes(const char *root, const struct pages *p)
{
    if (is_hugetlb(p->kind))
        return p->mapped;
    char line[512];
    uint64_t part = 0, sum = 0, kib;
    FILE *file = open_under(root, "/proc/self/smaps");
    while (file && fgets(line, sizeof line, file)) {
        if (line[0] >= 'A' && line[0] <= 'Z') {
            if (part && sscanf(line, "AnonHugePages: %" SCNu64, &kib) == 1)
                sum += kib * 1024 < part ? kib * 1024 : part;
            continue;
        }
        uint64_t before = part;
        part = part_of(line, p);
        if (before && !part) /* they come in ascending order */
            break;
    }
    if (file)
        fclose(file);
    return sum;
}
