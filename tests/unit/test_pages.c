/* test_pages.c - which pages there are, read from made-up proc and sys trees; the mappings
 * themselves; and which kind a trial chooses.
 */
#include "../../gpu/cpu/pages.h" /* before cmocka.h, which makes a macro of fail */
#include "../../gpu/cpu/pages_trial.h"

#include "../support/support.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { MIB = 1 << 20, HUGE = 2 * MIB };
static const uint64_t gib = 1ull << 30;

/* ---- trees ---- */

static const char *new_tree(void)
{
    static char root[512];
    static unsigned n;
    snprintf(root, sizeof root, "%s/tree%u", scratch_dir(), n++);
    assert_int_equal(mkdir(root, 0700), 0);
    return root;
}

static void put(const char *root, const char *name, const char *text)
{
    char path[1024];
    int n = snprintf(path, sizeof path, "%s/%s", root, name);
    assert_true(n > 0 && (size_t)n < sizeof path);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void put_hugetlb(const char *root, unsigned kib, const char *unused, const char *reserved)
{
    char name[128];
    snprintf(name, sizeof name, "sys/kernel/mm/hugepages/hugepages-%ukB/free_hugepages", kib);
    put(root, name, unused);
    snprintf(name, sizeof name, "sys/kernel/mm/hugepages/hugepages-%ukB/resv_hugepages", kib);
    put(root, name, reserved);
}

static void pages_that_are_set_apart(void **state)
{
    (void)state;
    const char *root = new_tree();
    assert_int_equal(pages_hugetlb_free(root, PAGES_HUGETLB), 0); /* the kernel has none */
    assert_false(pages_hugetlb_fit(root, 1, PAGES_HUGETLB));
    put_hugetlb(root, 2048, "50\n", "3\n");
    assert_int_equal(pages_hugetlb_free(root, PAGES_HUGETLB), 47 * HUGE);
    assert_true(pages_hugetlb_fit(root, 1, PAGES_HUGETLB));
    assert_true(pages_hugetlb_fit(root, 47 * HUGE, PAGES_HUGETLB));
    assert_true(pages_hugetlb_fit(root, 46 * HUGE + 1, PAGES_HUGETLB));
    assert_false(pages_hugetlb_fit(root, 47 * HUGE + 1, PAGES_HUGETLB));
    assert_false(pages_hugetlb_fit(root, 0, PAGES_HUGETLB));
    assert_false(pages_hugetlb_fit(root, UINT64_MAX, PAGES_HUGETLB));
    put_hugetlb(root, 2048, "3\n", "3\n"); /* all promised to others */
    assert_int_equal(pages_hugetlb_free(root, PAGES_HUGETLB), 0);
    put_hugetlb(root, 2048, "2\n", "3\n");
    assert_int_equal(pages_hugetlb_free(root, PAGES_HUGETLB), 0);
    static const char *const odd[] = {"", "none\n", "-1\n", "99999999999999999999\n"};
    for (int i = 0; i < 4; i++) {
        put_hugetlb(root, 2048, odd[i], "0\n");
        assert_false(pages_hugetlb_fit(root, 1, PAGES_HUGETLB));
    }
}

static void gigantic_ones_are_not_wasted(void **state)
{
    (void)state;
    const char *root = new_tree();
    put_hugetlb(root, 1048576, "8\n", "0\n");
    assert_true(pages_hugetlb_free(root, PAGES_HUGETLB_1G) == 8 * gib);
    assert_false(pages_hugetlb_fit(root, 100 * MIB, PAGES_HUGETLB_1G));
    assert_true(pages_hugetlb_fit(root, gib, PAGES_HUGETLB_1G));
    assert_true(pages_hugetlb_fit(root, gib - gib / 8, PAGES_HUGETLB_1G));
    assert_false(pages_hugetlb_fit(root, gib - gib / 8 - 1, PAGES_HUGETLB_1G));
    assert_false(pages_hugetlb_fit(root, gib + 1, PAGES_HUGETLB_1G));
    assert_true(pages_hugetlb_fit(root, 7 * gib + 1, PAGES_HUGETLB_1G));
    assert_false(pages_hugetlb_fit(root, 8 * gib + 1, PAGES_HUGETLB_1G));
}

static void transparent_ones(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool allowed;
    } lines[] = {{"[always] madvise never\n", true},
                 {"always [madvise] never\n", true},
                 {"always madvise [never]\n", false},
                 {"", false}};
    const char *root = new_tree();
    assert_false(pages_thp_allowed(root));
    for (int i = 0; i < 4; i++) {
        put(root, "sys/kernel/mm/transparent_hugepage/enabled", lines[i].text);
        assert_int_equal(pages_thp_allowed(root), lines[i].allowed);
    }
}

/* ---- what was granted ---- */

static void granted(const char *smaps, uint64_t expected)
{
    struct pages p = {.at = (uint8_t *)0x10000000, .mapped = 16 * MIB, .kind = PAGES_THP};
    const char *root = new_tree();
    put(root, "proc/self/smaps", smaps);
    assert_int_equal(pages_huge_bytes(root, &p), expected);
}

static void what_was_granted_is_read(void **state)
{
    (void)state;
#define VMA(range, kib)                                                                            \
    range " rw-p 00000000 00:00 0 \nSize:  1 kB\nRss:  1 kB\nAnonHugePages:  " kib                 \
          " kB\nVmFlags: rd wr mr mw me ac hg \n"
    granted(VMA("10000000-11000000", "16384"), 16 * MIB);
    granted(VMA("10000000-11000000", "6144"), 6 * MIB);
    granted(VMA("0f000000-10000000", "16384") VMA("11000000-12000000", "16384"), 0);
    granted(VMA("0f000000-10000000", "2048") VMA("10000000-10800000", "4096")
                VMA("10800000-11000000", "8192") VMA("11000000-12000000", "16384"),
            12 * MIB);
    granted(VMA("0f000000-12000000", "49152"), 16 * MIB); /* shown as one with its neighbours */
    granted("AnonHugePages: 5 kB\nnonsense\n10000000\n", 0);
#undef VMA
    struct pages apart = {.at = (uint8_t *)0x10000000, .mapped = 4 * MIB, .kind = PAGES_HUGETLB};
    assert_int_equal(pages_huge_bytes(new_tree(), &apart), 4 * MIB);
    apart.kind = PAGES_SMALL;
    assert_int_equal(pages_huge_bytes(new_tree(), &apart), 0);
}

/* ---- mappings ---- */

static void mappings(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 4096, HUGE - 1, HUGE, HUGE + 1};
    static const enum pages_kind kinds[] = {PAGES_SMALL, PAGES_THP};
    struct pages p;
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        uint64_t bytes = sizes[i / 2];
        assert_true(pages_map(&p, bytes, kinds[i % 2]));
        assert_int_equal((uintptr_t)p.at % HUGE, 0);
        assert_int_equal(p.mapped, (bytes + HUGE - 1) / HUGE * HUGE);
        assert_int_equal(p.kind, kinds[i % 2]);
        assert_int_equal(p.at[0] | p.at[p.mapped - 1], 0);
        p.at[0] = p.at[p.mapped - 1] = 1;
        assert_true(pages_huge_bytes("", &p) <= (kinds[i % 2] == PAGES_THP ? p.mapped : 0));
        pages_unmap(&p);
        assert_null(p.at);
    }
    static const uint64_t silly[] = {0, UINT64_MAX, UINT64_MAX / 2 - HUGE};
    for (size_t i = 0; i < 3; i++) {
        assert_false(pages_map(&p, silly[i], PAGES_THP));
        assert_null(p.at);
        assert_false(pages_map(&p, silly[i], PAGES_HUGETLB));
        pages_unmap(&p); /* nothing is mapped: nothing happens */
    }
}

/* Whatever this machine has: it is granted as a whole, or refused; and nobody dies of it. */
static void a_mapping_is_had_or_not(void **state)
{
    (void)state;
    static const enum pages_kind kinds[] = {PAGES_HUGETLB_1G, PAGES_HUGETLB};
    for (int i = 0; i < 2; i++) {
        struct pages p;
        bool fits = pages_hugetlb_fit("", 1, kinds[i]);
        if (!pages_map(&p, 1, kinds[i])) {
            assert_null(p.at);
            continue;
        }
        if (pages_populate(&p, 0, p.mapped)) {
            assert_true(fits || kinds[i] == PAGES_HUGETLB_1G); /* others may have taken it back */
            p.at[p.mapped - 1] = 1;
            assert_int_equal(pages_huge_bytes("", &p), p.mapped);
        }
        pages_unmap(&p);
    }
}

/* ---- trials ---- */

static struct pages_times times(const unsigned *huge, const unsigned *small, unsigned n)
{
    struct pages_times t = {.rounds = n};
    for (unsigned i = 0; i < n; i++) {
        t.huge_ns[i] = huge[i];
        t.small_ns[i] = small[i];
    }
    return t;
}

static bool small_win(const unsigned *huge, const unsigned *small, unsigned n)
{
    struct pages_times t = times(huge, small, n);
    return pages_trial_small_win(&t);
}

static void small_pages_have_to_be_clearly_faster(void **state)
{
    (void)state;
    static const unsigned as_usual[] = {100, 100, 100, 100, 100},
                          slower[] = {120, 120, 120, 125, 119}, little[] = {95, 95, 95, 95, 95},
                          clearly[] = {85, 84, 83, 86, 85}, once[] = {85, 84, 83, 86, 300},
                          twice[] = {85, 84, 300, 86, 300}, disturbed[] = {500, 400, 100, 600, 700};
    assert_false(small_win(as_usual, as_usual, 5));
    assert_false(small_win(as_usual, slower, 5));
    assert_false(small_win(as_usual, little, 5));
    assert_true(small_win(as_usual, clearly, 5));
    assert_true(small_win(as_usual, once, 5)); /* one round may have been disturbed */
    assert_false(small_win(as_usual, twice, 5));
    assert_false(small_win(disturbed, as_usual, 5)); /* at its best it is as fast */
    assert_false(small_win(as_usual, clearly, 4));   /* the time was up */
    assert_false(small_win(NULL, NULL, 0));
    struct pages_times t = times(as_usual, slower, 5);
    assert_true(pages_trial_ratio(&t) > 0.84 && pages_trial_ratio(&t) < 0.841);
    t.rounds = 0;
    assert_true(pages_trial_ratio(&t) == 0);
}

static void whole_pages_are_counted(void **state)
{
    (void)state;
    const uint64_t page = 2 << 20;
    assert_true(pages_whole(0) == 0);
    assert_true(pages_whole(1) == page);
    assert_true(pages_whole(page) == page);
    assert_true(pages_whole(page + 1) == 2 * page);
    assert_true(pages_whole(UINT64_MAX) == 1ull << 63); /* more than there can be */
    struct pages p;
    assert_true(pages_map(&p, page + 1, PAGES_THP));
    assert_true(p.mapped == pages_whole(page + 1));
    pages_unmap(&p);
}

/* It ends, whatever it finds, and leaves nothing mapped. */
static void a_trial_comes_to_an_end(void **state)
{
    (void)state;
    struct pages_trial t = {0};
    assert_false(pages_trial_end(&t)); /* none was begun */
    for (int i = 0; i < 3; i++) {
        pages_trial_begin(&t, i < 2 ? PAGES_THP : PAGES_HUGETLB);
        pages_trial_end(&t);
        assert_true(t.times.rounds <= PAGES_TRIAL_ROUNDS);
        for (unsigned r = 0; r < t.times.rounds; r++)
            assert_true(t.times.huge_ns[r] > 0 && t.times.small_ns[r] > 0);
        assert_false(t.started);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_that_are_set_apart),
        cmocka_unit_test(gigantic_ones_are_not_wasted),
        cmocka_unit_test(transparent_ones),
        cmocka_unit_test(what_was_granted_is_read),
        cmocka_unit_test(mappings),
        cmocka_unit_test(a_mapping_is_had_or_not),
        cmocka_unit_test(whole_pages_are_counted),
        cmocka_unit_test(small_pages_have_to_be_clearly_faster),
        cmocka_unit_test(a_trial_comes_to_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
