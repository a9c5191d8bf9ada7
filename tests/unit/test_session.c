/* The table of sessions against a plain model: found by user and key, in order of use, counted. */
#include "../../appliance/session.h" /* before cmocka.h, whose fail() is a macro */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { SESSIONS = 12, KEYS = 5, USERS = 4 };

struct row { /* what is open */
    struct session *session;
    struct sequence *sequence;
    uint64_t key, used_ns;
    uint32_t domain;
};

struct model {
    struct sequence_table sequences;
    struct session_table table;
    struct row rows[SESSIONS];
    uint32_t n;
};

static uint64_t key_of(uint32_t i)
{
    static const uint64_t keys[KEYS] = {1, 2, UINT64_MAX, 1ull << 32, 1ull << 63};
    return keys[i];
}

static struct row *find(struct model *m, uint32_t domain, uint64_t key)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->rows[i].domain == domain && m->rows[i].key == key)
            return &m->rows[i];
    return NULL;
}

static void add(struct model *m, uint32_t domain, uint64_t key, uint64_t now_ns)
{
    struct sequence *s = sequence_take(&m->sequences, 100 + domain, domain);
    struct session *session = session_add(&m->table, s, key, now_ns);
    sequence_detach(&m->sequences, s);
    assert_ptr_equal(s->session, session);
    m->rows[m->n++] = (struct row){session, s, key, now_ns, domain};
}

static void drop(struct model *m, struct row *row)
{
    session_remove(&m->table, row->session);
    assert_null(row->sequence->session);
    sequence_release(&m->sequences, row->sequence);
    *row = m->rows[--m->n];
}

static void compare_order(struct model *m)
{
    uint64_t last_ns = 0;
    uint32_t n = 0;
    LIST_EACH (at, &m->table.by_use) {
        const struct session *session = LIST_OF(at, struct session, use);
        assert_true(session->used_ns > last_ns);
        last_ns = session->used_ns;
        n++;
    }
    assert_int_equal(n, m->n);
    assert_int_equal(m->table.n, m->n);
}

static void compare(struct model *m)
{
    for (uint32_t domain = 0; domain < USERS; domain++) {
        uint32_t open = 0;
        for (uint32_t i = 0; i < KEYS; i++) {
            struct row *row = find(m, domain, key_of(i));
            struct session *session = session_find(&m->table, domain, key_of(i));
            assert_ptr_equal(session, row ? row->session : NULL);
            open += row != NULL;
            if (!row)
                continue;
            assert_ptr_equal(session->sequence, row->sequence);
            assert_int_equal(session->used_ns, row->used_ns);
            assert_int_equal(session->domain->id, domain);
        }
        const struct domain *d = domain_find(&m->sequences.domains, domain);
        assert_int_equal(d ? d->sessions : 0, open);
        assert_true(d || !open);
    }
    compare_order(m);
}

static void random_use(void **state)
{
    (void)state;
    static struct model m;
    srand(3);
    assert_int_equal(sequence_table_create(&m.sequences, SESSIONS, 16, NULL), 0);
    assert_int_equal(session_table_create(&m.table, SESSIONS, &m.sequences.domains), 0);
    for (uint64_t now_ns = 1; now_ns < 30000; now_ns++) {
        uint32_t domain = (uint32_t)rand() % USERS;
        uint64_t key = key_of((uint32_t)rand() % KEYS);
        struct row *row = find(&m, domain, key);
        if (!row && m.n < SESSIONS)
            add(&m, domain, key, now_ns);
        else if (row && rand() % 2)
            drop(&m, row);
        else if (row) {
            session_touch(&m.table, row->session, now_ns);
            row->used_ns = now_ns;
        }
        compare(&m);
    }
    while (m.n)
        drop(&m, m.rows);
    compare(&m);
    session_table_destroy(&m.table);
    sequence_table_destroy(&m.sequences);
}

static void a_table_without_room(void **state)
{
    (void)state;
    struct domains domains;
    struct session_table t;
    assert_int_equal(domains_create(&domains, 1), 0);
    assert_int_equal(session_table_create(&t, 0, &domains), 0);
    assert_null(session_find(&t, 0, 1));
    assert_int_equal(t.max, 0);
    session_table_destroy(&t);
    domains_destroy(&domains);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_use),
        cmocka_unit_test(a_table_without_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
