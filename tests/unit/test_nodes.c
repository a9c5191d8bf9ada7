/* test_nodes.c - where compute threads run: the CPUs that they are told, in that order; and which
 * memory nodes that makes.
 */
#include "../../gpu/cpu/load.h"
#include "../../gpu/cpu/pages.h"
#include "../../gpu/cpu/nodes.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"
#include "../support/tiny_model.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

enum { MOST = 64 };

/* The CPUs that this process may use. */
static unsigned cpus_here(uint32_t *cpus)
{
    cpu_set_t set;
    unsigned n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE && n < MOST; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[n++] = cpu;
    return n;
}

struct seen {
    int cpu[MOST];
};

static void look(void *context, unsigned thread, unsigned n_threads)
{
    struct seen *s = context;
    cpu_set_t set;
    (void)n_threads;
    s->cpu[thread] = -1;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1)
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &set))
                s->cpu[thread] = cpu;
}

static void threads_run_where_they_are_told(void **state)
{
    (void)state;
    uint32_t cpus[MOST], reversed[MOST];
    unsigned n = cpus_here(cpus);
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    for (unsigned i = 0; i < n; i++)
        reversed[i] = cpus[n - 1 - i];
    struct fail f = {0};
    struct pool *p;
    if (pool_create_on(&p, n, reversed, &f))
        fail_msg("%s", f.text);
    struct seen s;
    pool_run(p, look, &s);
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(s.cpu[i], reversed[i]);
        assert_int_equal(pool_cpu(p, i), reversed[i]);
    }
    pool_destroy(p);
    sched_setaffinity(0, sizeof before, &before);
}

static void without_a_list_the_caller_stays_free(void **state)
{
    (void)state;
    uint32_t cpus[MOST];
    unsigned n = cpus_here(cpus);
    struct pool *p;
    assert_int_equal(pool_create(&p, n, NULL), 0);
    struct seen s;
    pool_run(p, look, &s);
    assert_int_equal(pool_cpu(p, 0), -1);
    assert_int_equal(s.cpu[0], n == 1 ? (int)cpus[0] : -1);
    for (unsigned i = 1; i < n; i++)
        assert_int_equal(s.cpu[i], cpus[i]);
    pool_destroy(p);
    assert_int_equal(pool_create(&p, n + 1, NULL), 0); /* more threads than CPUs: none is pinned */
    for (unsigned i = 0; i <= n; i++)
        assert_int_equal(pool_cpu(p, i), -1);
    pool_destroy(p);
}

static void a_cpu_that_is_not_there_is_refused(void **state)
{
    (void)state;
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    uint32_t cpus[MOST];
    cpus_here(cpus);
    static const uint32_t nowhere[] = {CPU_SETSIZE - 1, CPU_SETSIZE, UINT32_MAX};
    for (int i = 0; i < 6; i++) {
        uint32_t list[2] = {i < 3 ? cpus[0] : nowhere[i - 3], i < 3 ? nowhere[i] : cpus[0]};
        char word[64];
        struct fail f = {0};
        struct pool *p;
        assert_int_equal(pool_create_on(&p, 2, list, &f), -EINVAL);
        assert_null(p);
        snprintf(word, sizeof word, "thread %d cannot run on CPU %u", i < 3, nowhere[i % 3]);
        if (!strstr(f.text, word))
            fail_msg("no '%s' in: %s", word, f.text);
        sched_setaffinity(0, sizeof before, &before);
    }
}

/* A machine of which every CPU is a node of its own, and one with a CPU of no node. */
static int each_its_own(int cpu)
{
    return cpu;
}
static int always_three(int cpu)
{
    (void)cpu;
    return 3;
}
static int nowhere(int cpu)
{
    (void)cpu;
    return -1;
}
static int beyond(int cpu)
{
    (void)cpu;
    return 64;
}

static void nodes_follow_from_the_cpus(void **state)
{
    (void)state;
    uint32_t cpus[MOST];
    unsigned n = cpus_here(cpus);
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    uint64_t all = 0;
    for (unsigned i = 0; i < n; i++)
        all |= cpus[i] < 64 ? 1ull << cpus[i] : 0;
    struct pool *p;
    assert_int_equal(pool_create_on(&p, n, cpus, NULL), 0);
    assert_true(nodes_of_pool(p, each_its_own) == all);
    assert_true(nodes_of_pool(p, always_three) == 1u << 3);
    assert_true(nodes_of_pool(p, nowhere) == 0);
    assert_true(nodes_of_pool(p, beyond) == 0);
    struct seen s;
    pool_run_crew(p, (bool[MOST]){true}, look, &s); /* where threads that sit out are counts */
    assert_true(nodes_of_pool(p, each_its_own) == all);
    struct pages m; /* harmless, however many nodes there are */
    assert_true(pages_map(&m, 1 << 20, PAGES_THP));
    nodes_spread(m.at, m.mapped, p);
    memset(m.at, 1, m.mapped);
    pages_unmap(&m);
    pool_destroy(p);
    sched_setaffinity(0, sizeof before, &before);
    assert_int_equal(pool_create(&p, 1, NULL), 0);
    assert_true(nodes_of_pool(p, each_its_own) == 0); /* pinned nowhere */
    pool_destroy(p);
}

/* ---- pages near their readers ---- */

static void pages_go_where_most_of_them_is_read(void **state)
{
    (void)state;
    enum { PAGE = 2 << 20, PAGES = 6 };
    static const struct nodes_range ranges[] = {
        {0, PAGE, 1},               /* page 0: node 1 alone */
        {PAGE, PAGE + PAGE / 3, 1}, /* page 1: node 3 reads more */
        {PAGE + PAGE / 3, 2 * PAGE, 3},
        {2 * PAGE, 2 * PAGE + PAGE / 4, 0}, /* page 2: in two pieces node 0 reads more */
        {2 * PAGE + PAGE / 4, 2 * PAGE + 3 * (PAGE / 4), 2},
        {2 * PAGE + 3 * (PAGE / 4), 4 * PAGE + 64, 0}, /* all of page 3, a line of page 4 */
        {7 * PAGE, 8 * PAGE, 5},                       /* beyond */
    };
    int node[PAGES];
    assert_int_equal(nodes_choose(ranges, 7, PAGE, node, PAGES), 0);
    assert_int_equal(node[0], 1);
    assert_int_equal(node[1], 3);
    assert_int_equal(node[2], 0);
    assert_int_equal(node[3], 0);
    assert_int_equal(node[4], 0);
    assert_int_equal(node[5], -1); /* nobody's */
    struct pages m;
    assert_true(pages_map(&m, PAGES * PAGE, PAGES_THP));
    for (int i = 0; i < PAGES; i++)
        node[i] = i < 4 ? 0 : -1; /* the one node that is surely there */
    nodes_place(m.at, PAGE, node, PAGES);
    memset(m.at, 1, m.mapped);
    pages_unmap(&m);
}

static uint32_t first_far; /* CPUs from that one on are on another node */
static int halves(int cpu)
{
    return (uint32_t)cpu < first_far ? 4 : 9;
}

static void threads_have_a_node(void **state)
{
    (void)state;
    uint32_t cpus[MOST];
    unsigned n = cpus_here(cpus);
    int node[MOST];
    struct pool *p;
    first_far = cpus[n / 2];
    assert_int_equal(pool_create(&p, n, NULL), 0); /* the caller is bound to none */
    assert_false(nodes_of_threads(p, always_three, node));
    assert_false(nodes_of_threads(p, nowhere, node));
    if (n >= 3) {
        assert_true(nodes_of_threads(p, halves, node));
        for (unsigned i = 1; i < n; i++)
            assert_int_equal(node[i], halves((int)cpus[i]));
        assert_int_equal(node[0], node[1]);
    }
    pool_destroy(p);
    if (n < 2)
        return;
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    assert_int_equal(pool_create_on(&p, n, cpus, NULL), 0);
    assert_true(nodes_of_threads(p, halves, node));
    assert_int_equal(node[0], 4);
    assert_int_equal(node[n - 1], 9);
    pool_destroy(p);
    sched_setaffinity(0, sizeof before, &before);
}

/* A model's weights on two nodes: the first half of each matrix is read on the one. */
static void weights_lie_near_their_readers(void **state)
{
    (void)state;
    uint32_t cpus[MOST];
    cpu_set_t before;
    struct tiny_config config = tiny_mixed();
    struct tiny_model model;
    struct fail f = {0};
    struct gpu *g;
    const struct gpu_ops *ops = gpu_cpu_ops();
    if (cpus_here(cpus) < 2)
        skip();
    config.vocab = 200000; /* an output of several pages */
    tiny_make(&model, &config);
    sched_getaffinity(0, sizeof before, &before);
    uint32_t two[2] = {cpus[0], cpus[1]};
    struct gpu_config c = {.threads = 2,
                           .cpus = two,
                           .max_rows = 4,
                           .max_seqs = 1,
                           .max_outputs = 1,
                           .max_len = 32,
                           .huge_pages = GPU_HUGE_PAGES_OFF};
    struct gpu_source source = tiny_source(&model);
    assert_int_equal(ops->open(&g, &c, &f), 0);
    assert_int_equal(ops->load(g, &model.net, &source, &f), 0);
    size_t n = g->weights_pages.mapped >> 21;
    assert_in_range(n, 3, 64);
    int node[64];
    assert_int_equal(cpu_near_choose(g, &g->weights_pages, always_three, node), -ENOTSUP);
    assert_int_equal(cpu_near_choose(g, &g->weights_pages, each_its_own, node), 0);
    const struct linear *head = &g->head;
    uint64_t from = (uint64_t)(head->panels_at - g->weights),
             bytes = head->panels * head->panel_bytes;
    for (size_t i = 0; i < n; i++) {
        uint64_t start = i << 21, end = (i + 1) << 21;
        if (start >= from && end <= from + bytes / 2)
            assert_int_equal(node[i], cpus[0]);
        if (start >= from + bytes / 2 + head->panel_bytes && end <= from + bytes)
            assert_int_equal(node[i], cpus[1]);
    }
    assert_true(node[from >> 21] == (int)cpus[0] || from % (2 << 20));
    ops->close(g);
    tiny_free(&model);
    sched_setaffinity(0, sizeof before, &before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_run_where_they_are_told),
        cmocka_unit_test(without_a_list_the_caller_stays_free),
        cmocka_unit_test(a_cpu_that_is_not_there_is_refused),
        cmocka_unit_test(nodes_follow_from_the_cpus),
        cmocka_unit_test(pages_go_where_most_of_them_is_read),
        cmocka_unit_test(threads_have_a_node),
        cmocka_unit_test(weights_lie_near_their_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
