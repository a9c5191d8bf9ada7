/* pages.h - large memory, and the pages that it lies on.
 *
 *     struct pages p;
 *     if (!pages_map(&p, bytes, PAGES_THP)) ...
 *     ...p.at, zeroed...
 *     pages_unmap(&p);
 *
 * Huge pages spare the processor most of its page-table walks, and the start most of its page
 * faults. hugetlbfs pages are those that the administrator has set apart (vm.nr_hugepages);
 * transparent ones are made by the kernel where it finds them.
 */
#ifndef LLMD_CPU_PAGES_H
#define LLMD_CPU_PAGES_H

#include <stdbool.h>
#include <stdint.h>

enum pages_kind {
    PAGES_SMALL,
    PAGES_THP,       /* transparent, 2 MiB */
    PAGES_HUGETLB,   /* 2 MiB */
    PAGES_HUGETLB_1G /* 1 GiB */
};

struct pages {
    uint8_t *at;     /* aligned to 2 MiB; NULL: nothing is mapped */
    uint64_t mapped; /* bytes: whole pages of its kind, of 2 MiB where they are small */
    enum pages_kind kind;
};

/* Zeroed memory on such pages, which are there once they are touched (hugetlbfs ones are reserved,
 * so pages_populate is what finds out whether they can be had). False: the kernel refuses.
 * Transparent ones are a request: where the kernel has none it gives small ones. */
bool pages_map(struct pages *p, uint64_t bytes, enum pages_kind kind);
void pages_unmap(struct pages *p); /* nothing where nothing is mapped */

/* Has the kernel give the pages of a range of `p` that begins and ends between pages of its kind.
 * False: there are not enough, in this control group or on these nodes. */
bool pages_populate(const struct pages *p, uint64_t from, uint64_t to);

/* Whether bytes fit on hugetlbfs pages of that kind that are free; those of 1 GiB only where an
 * eighth of them at most is left over. `root` is "" (tests: a folder that holds sys/). */
bool pages_hugetlb_fit(const char *root, uint64_t bytes, enum pages_kind kind);
/* Bytes of such pages that nobody has taken or reserved. */
uint64_t pages_hugetlb_free(const char *root, enum pages_kind kind);
/* Whether the kernel may give transparent huge pages to who asks. */
bool pages_thp_allowed(const char *root);

/* Bytes of the mapping that lie on huge pages now. `root` as above, with proc/self/smaps. */
uint64_t pages_huge_bytes(const char *root, const struct pages *p);

uint64_t pages_whole(uint64_t bytes);       /* what they take on transparent pages; at most 2^63 */
uint64_t pages_bytes(enum pages_kind kind); /* of one: 2 MiB where they are small */
const char *pages_name(enum pages_kind kind); /* "small", "thp", "hugetlb", "hugetlb-1g" */

#endif
