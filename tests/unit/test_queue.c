/* The queue against a plain model: an unsorted list, looked through for each question. */
#include "../../appliance/queue.h" /* before cmocka.h, whose fail() is a macro */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 48, CLIENTS = 6, SLACK = 100 };

struct model {
    struct sequence_table table;
    struct queue q;
    struct sequence *known[SLOTS];
    bool waits[SLOTS]; /* known[i] is in the queue */
    uint32_t n;
    uint32_t only; /* what fits: sequences whose slot is no multiple of it; 0: all */
};

static uint32_t below(uint32_t n)
{
    return (uint32_t)rand() % n;
}

static void begin(struct model *m, bool first_come)
{
    memset(m, 0, sizeof *m);
    assert_int_equal(sequence_table_create(&m->table, SLOTS, 64, NULL), 0);
    queue_init(&m->q, &m->table.served, SLACK, first_come);
}

static void take(struct model *m)
{
    uint32_t client = below(CLIENTS);
    struct sequence *s = sequence_take(&m->table, client, client % 2);
    s->op = LLM_OP_GENERATE;
    s->n_tokens = s->n_prompt = 1 + below(60);
    s->n_computed = below(s->n_tokens);
    s->max_tokens = 1;
    s->class = m->q.first_come ? 0 : (uint8_t)below(SEQUENCE_CLASSES);
    s->due_ns = m->q.first_come || below(2) ? UINT64_MAX : 1 + below(8);
    s->t_admit = below(4) ? 0 : 1;
    s->owner->served += below(3) * 60;
    s->owner->n_running = below(3);
    m->known[m->n] = s;
    m->waits[m->n++] = true;
    queue_add(&m->q, s);
}

static void give_back(struct model *m, uint32_t i)
{
    struct sequence *s = m->known[i];
    if (m->waits[i])
        queue_remove(&m->q, s);
    s->owner->n_running = 0;
    sequence_release(&m->table, s);
    m->known[i] = m->known[--m->n];
    m->waits[i] = m->waits[m->n];
}

/* ---- the order, as queue.h says it ---- */

static uint64_t least_served(const struct model *m, uint8_t class)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->waits[i] && m->known[i]->class == class && m->known[i]->owner->served < least)
            least = m->known[i]->owner->served;
    return least;
}

static uint64_t due(const struct sequence *s)
{
    return s->t_admit ? 0 : s->due_ns;
}

static bool before(const struct model *m, const struct sequence *a, const struct sequence *b)
{
    uint64_t least = least_served(m, a->class);
    bool a_more = a->owner->served > least + SLACK, b_more = b->owner->served > least + SLACK;
    if (m->q.first_come)
        return a->order < b->order;
    if (a->class != b->class)
        return a->class < b->class;
    if (a->owner != b->owner && a_more != b_more)
        return b_more;
    if (due(a) != due(b))
        return due(a) < due(b);
    if (a->owner->served != b->owner->served)
        return a->owner->served < b->owner->served;
    if (a->owner->n_running != b->owner->n_running)
        return a->owner->n_running < b->owner->n_running;
    return a->order < b->order;
}

static bool fits(void *context, const struct sequence *s)
{
    const struct model *m = context;
    return !m->only || (uint64_t)(s - m->table.slots) % m->only != 0;
}

/* Only what is first of its owner in its class is asked whether it fits. */
static bool is_first(const struct model *m, const struct sequence *s)
{
    for (uint32_t i = 0; i < m->n; i++) {
        const struct sequence *o = m->known[i];
        bool list = m->waits[i] && o->owner == s->owner && o->class == s->class;
        if (list && (due(o) != due(s) ? due(o) < due(s) : o->order < s->order))
            return false;
    }
    return true;
}

static struct sequence *next_of_model(struct model *m)
{
    struct sequence *best = NULL, *oldest = NULL;
    for (uint32_t i = 0; i < m->n; i++) {
        struct sequence *s = m->known[i];
        if (!m->waits[i])
            continue;
        if (!oldest || s->order < oldest->order)
            oldest = s;
        if (is_first(m, s) && fits(m, s) && (!best || before(m, s, best)))
            best = s;
    }
    bool aged = m->q.picks % QUEUE_AGEING == QUEUE_AGEING - 1;
    return aged && oldest && fits(m, oldest) ? oldest : best;
}

static uint64_t rows_before(const struct model *m, const struct sequence *s)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->waits[i] && before(m, m->known[i], s))
            rows += sequence_inputs(m->known[i]) - m->known[i]->n_computed;
    return rows;
}

static void compare(struct model *m)
{
    uint32_t n = 0;
    uint64_t tokens = 0;
    struct queue_least least = queue_least_served(&m->q);
    for (uint32_t i = 0; i < m->n; i++) {
        n += m->waits[i];
        tokens += m->waits[i] ? sequence_inputs(m->known[i]) - m->known[i]->n_computed : 0;
    }
    assert_int_equal(m->q.n, n);
    assert_int_equal(m->q.tokens, tokens);
    for (uint8_t class = 0; class < SEQUENCE_CLASSES; class ++)
        assert_int_equal(least.served[class], least_served(m, class));
    m->only = 1 + below(5); /* 1: nothing fits */
    assert_ptr_equal(queue_next(&m->q, fits, m), next_of_model(m));
    if (!m->q.first_come && m->n && m->waits[0]) /* which judges no deadlines */
        assert_int_equal(queue_rows_before(&m->q, m->known[0], &least),
                         rows_before(m, m->known[0]));
}

/* The one that is next is admitted: it leaves, or comes back as one that had to go. */
static void pick(struct model *m)
{
    m->only = 2 + below(4);
    struct sequence *s = queue_next(&m->q, fits, m);
    if (!s)
        return;
    queue_picked(&m->q, s);
    queue_remove(&m->q, s);
    s->owner->served += s->n_tokens;
    s->t_admit = 1;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->known[i] == s)
            m->waits[i] = false;
}

static void come_back(struct model *m, uint32_t i)
{
    if (m->waits[i])
        return;
    m->waits[i] = true;
    queue_add(&m->q, m->known[i]);
}

static void random_use(bool first_come)
{
    static struct model m;
    begin(&m, first_come);
    for (int i = 0; i < 30000; i++) {
        uint32_t at = m.n ? below(m.n) : 0;
        switch (below(6)) {
        case 0:
        case 1:
            if (m.n < SLOTS)
                take(&m);
            break;
        case 2:
            if (m.n)
                give_back(&m, at);
            break;
        case 3:
            if (m.n)
                come_back(&m, at);
            break;
        default:
            pick(&m);
        }
        compare(&m);
    }
    while (m.n)
        give_back(&m, 0);
    assert_true(list_empty(&m.q.hungry) && list_empty(&m.q.arrivals) && !m.q.n && !m.q.tokens);
    sequence_table_destroy(&m.table);
}

static void by_all_rules(void **state)
{
    (void)state;
    srand(1);
    random_use(false);
}

static void by_arrival(void **state)
{
    (void)state;
    srand(2);
    random_use(true);
}

/* Whoever was away begins where the others stand, not where it stood. */
static void nobody_saves_up(void **state)
{
    (void)state;
    static struct model m;
    begin(&m, false);
    for (int i = 0; i < 10; i++) {
        struct sequence *s = sequence_take(&m.table, 1, 0);
        s->op = LLM_OP_GENERATE;
        s->n_tokens = s->n_prompt = 50;
        s->max_tokens = 1;
        queue_add(&m.q, s);
    }
    uint64_t served = 0;
    for (int i = 0; i < 7; i++) {
        struct sequence *s = queue_next(&m.q, fits, &m);
        queue_picked(&m.q, s);
        queue_remove(&m.q, s);
        served = s->owner->served;
        s->owner->served += 50;
        sequence_release(&m.table, s);
    }
    assert_true(served > 0);
    struct sequence *newcomer = sequence_take(&m.table, 2, 0);
    assert_int_equal(newcomer->owner->served, served);
    sequence_release(&m.table, newcomer);
    struct sequence *s;
    while ((s = queue_next(&m.q, fits, &m))) {
        queue_remove(&m.q, s);
        sequence_release(&m.table, s);
    }
    sequence_table_destroy(&m.table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_all_rules),
        cmocka_unit_test(by_arrival),
        cmocka_unit_test(nobody_saves_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
