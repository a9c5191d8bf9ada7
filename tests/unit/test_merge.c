/* The merge loop joins in the order that the definition says: again and again the best pair, the
 * leftmost among equals. */
#include <errno.h>
#include <stdlib.h>

#include "../../client/text/merge.h"
#include "../support/support.h"

enum { SYMBOLS = 8 };

/* A random table: what the pair (left, right) becomes, and when. */
struct table {
    uint32_t priority[SYMBOLS][SYMBOLS]; /* MERGE_NEVER: not at all */
    int32_t joined[SYMBOLS][SYMBOLS];
};

static void judge(const void *context, struct merge_symbol *symbols, uint32_t left)
{
    const struct table *t = context;
    struct merge_symbol *s = &symbols[left];
    s->priority = t->priority[s->id][symbols[s->next].id];
    s->joined = t->joined[s->id][symbols[s->next].id];
}

static void fill(struct table *t, struct rnd *r)
{
    for (int i = 0; i < SYMBOLS; i++)
        for (int k = 0; k < SYMBOLS; k++) {
            t->priority[i][k] = rnd_below(r, 3) ? rnd_below(r, 12) : MERGE_NEVER;
            t->joined[i][k] = (int32_t)rnd_below(r, SYMBOLS);
        }
}

/* By the definition, on an array. */
static uint32_t merge_plainly(const struct table *t, int32_t *ids, uint32_t n)
{
    for (;;) {
        uint32_t best = MERGE_NEVER, at = 0;
        for (uint32_t i = 0; i + 1 < n; i++)
            if (t->priority[ids[i]][ids[i + 1]] < best)
                best = t->priority[ids[i]][ids[i + 1]], at = i;
        if (best == MERGE_NEVER)
            return n;
        ids[at] = t->joined[ids[at]][ids[at + 1]];
        for (uint32_t i = at + 1; i + 1 < n; i++)
            ids[i] = ids[i + 1];
        n--;
    }
}

static void check(struct merge_space *m, const struct table *t, struct rnd *r, uint32_t n)
{
    int32_t ids[300];
    assert_int_equal(merge_reserve(m, n), 0);
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)rnd_below(r, SYMBOLS);
        m->symbols[i] =
            (struct merge_symbol){.id = ids[i], .previous = i ? i - 1 : MERGE_NEVER, .next = i + 1};
    }
    merge_run(m, n, (struct merge_rules){judge, t});
    uint32_t expected = merge_plainly(t, ids, n), got = 0;
    for (uint32_t i = 0; i != n; i = m->symbols[i].next, got++) {
        assert_true(got < expected);
        assert_int_equal(m->symbols[i].id, ids[got]);
    }
    assert_int_equal(got, expected);
}

static void random_tables_and_lengths(void **state)
{
    (void)state;
    struct rnd r = {3};
    struct merge_space m = {0};
    struct table t;
    for (int round = 0; round < 400; round++) {
        fill(&t, &r);
        check(&m, &t, &r, round % 100);              /* the scan */
        check(&m, &t, &r, 100 + rnd_below(&r, 200)); /* the heap */
    }
    merge_free(&m);
}

static void too_long_a_word_is_refused(void **state)
{
    (void)state;
    struct merge_space m = {0};
    assert_int_equal(merge_reserve(&m, (size_t)1 << 33), -E2BIG);
    merge_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_tables_and_lengths),
        cmocka_unit_test(too_long_a_word_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
